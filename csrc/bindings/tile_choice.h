// How long all_gather_linear's tiles would take, by a model with measured costs, and the choice
// among them.
//
// A way takes launch + rounds * (tile + steps * step): the tiles go over the chip in `rounds`, and
// a block multiplies `steps` pieces of 128 bytes for each of its tiles. torch.cat and F.linear take
// what gathering does, launch + bytes * byte, and then a share of what the best way of ours takes,
// since the library has its own choice of tiles.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/all_gather_linear_tiles.h"

namespace kernelbench_dist {

struct TileWork {
  int64_t rounds, steps;
};
TileWork tile_work(const cuda::TileWay& way, int64_t R, int64_t B, int64_t H, int64_t K,
                   int64_t element_size);

// In nanoseconds, on the device of tile_costs.h.
struct TileCost {
  float launch, tile, step;
};
struct TileCosts {
  TileCost of_way[cuda::kTileWayCount];
  float gather_launch, gather_byte;
  float library;  // the time of F.linear on a gathered tensor over that of our best way
};

// The number in cuda::kTileWays of the way that takes least, where that is less than torch.cat and
// F.linear take; none where it is not, or nothing has been measured.
std::optional<int> choose_tile(cuda::Scalar type, int64_t R, int64_t B, int64_t H, int64_t K);

}  // namespace kernelbench_dist
