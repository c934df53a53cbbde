// Whether the extension holds code for the current CUDA device.
#pragma once

namespace kernelbench_dist {

// Asked once a device. Also true where there is no device at all: the choice of a kernel can then
// be asked for, and nothing can be run.
bool device_runs_our_code();

// The same for the code for Hopper's tensor cores (sm_90a).
bool device_runs_tiles();

}  // namespace kernelbench_dist
