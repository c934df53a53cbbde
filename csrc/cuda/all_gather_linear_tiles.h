// all_gather_linear on the tensor cores of Hopper (sm_90a): the ways to cut it up, and the
// launcher. Plain C++, as all_gather_linear.h is.
#pragma once

#include <cstdint>

#include "cuda/all_gather_linear.h"

namespace kernelbench_dist::cuda {

// One way. A block computes `rows` x `outputs` elements of out at a time.
struct TileWay {
  enum Kernel {
    persistent,  // blocks that stay, each with one tile after another
    split,       // one tile a cluster, whose blocks share out the R*H products of each element
  } kernel;
  int rows, outputs;
  int blocks;   // of a cluster: they share a tile's weights (persistent) or its products (split)
  bool shared;  // of persistent: both warpgroups work on one tile; else each has its own in turn

  constexpr bool operator==(const TileWay&) const = default;
};

inline constexpr TileWay kTileWays[] = {
    {TileWay::persistent, 64, 64, 1, false},
    {TileWay::persistent, 64, 128, 1, false},
    {TileWay::persistent, 64, 256, 1, false},
    {TileWay::persistent, 128, 128, 1, false},
    {TileWay::persistent, 64, 256, 2, false},
    {TileWay::persistent, 128, 128, 2, false},
    {TileWay::persistent, 128, 256, 1, true},
    {TileWay::persistent, 256, 128, 1, true},
    {TileWay::persistent, 128, 256, 2, true},
    {TileWay::split, 8, 64, 1},
    {TileWay::split, 8, 64, 2},
    {TileWay::split, 8, 64, 4},
    {TileWay::split, 8, 64, 8},
    {TileWay::split, 16, 64, 1},
    {TileWay::split, 16, 64, 2},
    {TileWay::split, 16, 64, 4},
    {TileWay::split, 16, 64, 8},
    {TileWay::split, 32, 64, 1},
    {TileWay::split, 32, 64, 2},
    {TileWay::split, 32, 64, 4},
    {TileWay::split, 32, 64, 8},
    {TileWay::split, 64, 64, 1},
    {TileWay::split, 64, 64, 2},
    {TileWay::split, 64, 64, 4},
    {TileWay::split, 64, 64, 8},
};
inline constexpr int kTileWayCount = sizeof(kTileWays) / sizeof(kTileWays[0]);

// Why these kernels cannot compute this call, or null where they can. Offsets may be beyond 32
// bits.
const char* tiles_refuse(const AllGatherLinear& call);

// A cudaError_t as int; 0 is success. The call is one that is not refused; fp32 is rounded to TF32.
int launch_all_gather_linear_tiles(const AllGatherLinear& call, int tile_way, CUstream_st* stream);

// float32 in three TF32 products ("3xTF32"), in tiles of this size, one after another.
inline constexpr int kSplitFloatRows = 128, kSplitFloatOutputs = 128;
int launch_all_gather_linear_3xtf32(const AllGatherLinear& call, CUstream_st* stream);

// Whether the current device is of the kind, and this build holds the code for it.
bool tiles_run_on_current_device();

}  // namespace kernelbench_dist::cuda
