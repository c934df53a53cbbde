"""Time functions honestly, in process, on a CPU or a CUDA device.

>>> import torch
>>> x = torch.ones(64, 64)
>>> functions = {"matmul": lambda x: x @ x, "einsum": lambda x: torch.einsum("ij,jk->ik", x, x)}
>>> result = bench(functions, x, rounds=10, min_time_ms=0.1)
>>> result["matmul"].call.n
10
>>> BenchResult.from_json(result.to_json()) == result
True
"""

from kernelbench_dist.timing._bench import bench
from kernelbench_dist.timing._result import BenchResult, Candidate, Environment, Ratio, Timing

__all__ = ["BenchResult", "Candidate", "Environment", "Ratio", "Timing", "bench"]
