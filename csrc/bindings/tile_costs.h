// What a tile costs by each way, measured. Written by benchmarks/fit_tiles.py.
//
// Not measured yet. A dtype without costs is one for which no tile is chosen.
#pragma once

#include <optional>

#include "bindings/tile_choice.h"

namespace kernelbench_dist {

inline constexpr std::optional<TileCosts> kFloat16Costs;
inline constexpr std::optional<TileCosts> kBFloat16Costs;
inline constexpr std::optional<TileCosts> kTf32Costs;

}  // namespace kernelbench_dist
