#include "bindings/tile_choice.h"

#include <limits>
#include <utility>

#include "bindings/tile_costs.h"

namespace kernelbench_dist {
namespace {

constexpr int64_t kProcessors = 132;  // of an H100 or H200

int64_t over(int64_t size, int64_t part) { return (size + part - 1) / part; }

const std::optional<TileCosts>& costs_of(cuda::Scalar type) {
  static constexpr std::optional<TileCosts> kNone;
  switch (type) {
    case cuda::Scalar::f16:
      return kFloat16Costs;
    case cuda::Scalar::bf16:
      return kBFloat16Costs;
    case cuda::Scalar::f32:
      return kTf32Costs;
    default:
      return kNone;
  }
}

}  // namespace

TileWork tile_work(const cuda::TileWay& way, int64_t R, int64_t B, int64_t H, int64_t K,
                   int64_t element_size) {
  const int64_t steps = R * over(H * element_size, 128);
  const int64_t tiles = over(B, way.rows) * over(K, way.outputs);
  if (way.kernel == cuda::TileWay::persistent) return {over(tiles, kProcessors), steps};
  // Two blocks of this kernel fit on a multiprocessor.
  return {over(tiles * way.blocks, 2 * kProcessors), over(steps, way.blocks)};
}

std::optional<int> choose_tile(cuda::Scalar type, int64_t R, int64_t B, int64_t H, int64_t K) {
  const std::optional<TileCosts>& costs = costs_of(type);
  if (!costs) return std::nullopt;
  const int64_t element_size = type == cuda::Scalar::f32 ? 4 : 2;
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&]<int WAY>() {  // a constant, so that its divisions are shifts
    const TileWork work = tile_work(cuda::kTileWays[WAY], R, B, H, K, element_size);
    const TileCost& cost = costs->of_way[WAY];
    const double time = cost.launch + static_cast<double>(work.rounds) *
                                          (cost.tile + static_cast<double>(work.steps) * cost.step);
    if (time < least) {
      best = WAY;
      least = time;
    }
  };
  [&]<int... WAYS>(std::integer_sequence<int, WAYS...>) {
    (consider.template operator()<WAYS>(), ...);
  }(std::make_integer_sequence<int, cuda::kTileWayCount>());
  const double bytes = static_cast<double>(R * B * H * element_size);
  const double reference =
      costs->gather_launch + bytes * costs->gather_byte + costs->library * least;
  if (least >= reference) return std::nullopt;
  return best;
}

}  // namespace kernelbench_dist
