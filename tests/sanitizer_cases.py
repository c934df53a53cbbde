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

            def late(t: torch.Tensor) -> torch.Tensor:
                """The same numbers one element late: not aligned, and ending with the storage."""
                return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)

            strided = x.mT.contiguous().mT
            for rows, matrix in ((x, weight), (late(x), late(weight)), (strided, weight)):
                for way in range(len(operators._all_gather_linear_ways())):
                    if operators._all_gather_linear_way_refusal(rows, matrix, bias, way):
                        continue
                    operators._all_gather_linear_by(rows, matrix, bias, way)
                    operators._all_gather_linear_by(rows, matrix, None, way)
                for wanted in ((rows, matrix, True), (rows, None, False), (None, matrix, False)):
                    operators._all_gather_linear_backward(grad, *wanted[:2], R, wanted[2])
                    one = grad[:1, :1].expand(B, K)
                    operators._all_gather_linear_backward(one, *wanted[:2], R, wanted[2])
    for dtype in FLOATS:
        for count in (1, 7, 1000, 1025):
            for offset in (0, 1):
                xs = [torch.randn(count + offset).to("cuda", dtype)[offset:] for _ in range(5)]
                for op in ("sum", "avg", "prod", "min", "max"):
                    assert operators._fold_ranks(xs, xs, op)
                    assert operators._fold_ranks(xs, xs[3:4], op)
    torch.cuda.synchronize()
    print("all kernels ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
