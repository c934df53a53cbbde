#include "bindings/tile_choice.h"

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
  double least = 0;
  for (int i = 0; i < cuda::kTileWayCount; ++i) {
    const TileWork work = tile_work(cuda::kTileWays[i], R, B, H, K, element_size);
    const TileCost& cost = costs->of_way[i];
    const double time = cost.launch + static_cast<double>(work.rounds) *
                                          (cost.tile + static_cast<double>(work.steps) * cost.step);
    if (i == 0 || time < least) {
      best = i;
      least = time;
    }
  }
  const double bytes = static_cast<double>(R * B * H * element_size);
  const double reference =
      costs->gather_launch + bytes * costs->gather_byte + costs->library * least;
  if (least >= reference) return std::nullopt;
  return best;
}

}  // namespace kernelbench_dist
