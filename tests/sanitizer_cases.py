"""Every CUDA kernel once at each kind of size, for compute-sanitizer:

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck python tests/sanitizer_cases.py

Without torch's caching allocator each tensor is an allocation of its own that ends with its last
element, so a read beyond it is seen.
"""

from __future__ import annotations

import os
import sys

import torch

WAYS = 5
SIZES = [(4, 12, 32, 56), (3, 5, 7, 9), (1, 1, 1, 1), (2, 9, 40, 70), (5, 33, 8, 17)]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def main() -> int:
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1":
        print("set PYTORCH_NO_CUDA_MEMORY_CACHING=1: else reads past an end go unseen")
        return 2
    import kernelbench_dist

    assert kernelbench_dist.build_info().cuda, "this build has no CUDA part"
    operators = torch.ops.kernelbench_dist
    for R, B, H, K in SIZES:
        for dtype in FLOATS:
            x = torch.randn(R, B, H).to("cuda", dtype)
            weight = torch.randn(K, R * H).to("cuda", dtype)
            bias = torch.randn(K).to("cuda", dtype)
            grad = torch.randn(B, K).to("cuda", dtype)
            # A view that starts one element late, so not aligned, and ends with its allocation.
            late = torch.randn(R * B * H + 1).to("cuda", dtype)[1:].view(R, B, H)
            for rows in (x, late):
                for way in range(WAYS):
                    operators._all_gather_linear_by(rows, weight, bias, way)
                operators._all_gather_linear_backward(grad, rows, weight, R, True)
    torch.cuda.synchronize()
    print("all kernels ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
