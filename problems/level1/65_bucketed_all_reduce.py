"""All-reduce with the mean of the gradients of a whole block, many of which are small.

Formula:
    mean of g over ranks, for each of the nine gradients g of a Llama block:
    mean[...] = (g[0, ...] + ... + g[R-1, ...]) / R

Shapes:
    norm1, norm2 (R, D); query, out (R, D, D); key, value (R, K, D); gate, up (R, F, D); down
    (R, D, F): row r is what rank r holds. Outputs: the nine means, without dim 0, the same on every
    rank. R, D, K and F vary. How gradients are put into buckets of at most BUCKET elements does not
    change the outputs.

Where used:
    Data parallelism. A collective of a few KB costs its latency only, so that gradients are joined
    in buckets, last parameter first, as that is the order in which backward makes them.

Source:
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    arXiv:2006.15704, section 3.2 (gradient bucketing).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
D = 16  # features
K = 8  # features of keys and values
F = 40  # features inside the MLP
BUCKET = 1024  # elements

SIZES = {
    "tiny": {"R": 4, "D": 16, "K": 8, "F": 40, "BUCKET": 1024},
    "small": {"R": 8, "D": 256, "K": 64, "F": 688, "BUCKET": 1 << 18},
    "large": {"R": 4, "D": 1536, "K": 384, "F": 4096, "BUCKET": 25 << 18},
    "awkward": {"R": 3, "D": 61, "K": 13, "F": 127, "BUCKET": 8191},
}
VARIES = ("R", "D", "K", "F")
OUTPUT = "same"
RIGHT_TRIVIAL_ANSWERS = ("ranks reversed", "the mean over ranks")


class Model(nn.Module):
    """Nine gradients (R, ...) -> nine means (...)."""

    def forward(
        self,
        norm1: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        norm2: torch.Tensor,
        gate: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        grads = (norm1, query, key, value, out, norm2, gate, up, down)
        return tuple(grad.mean(0) for grad in grads)


class RankModel(nn.Module):
    """This rank's nine gradients -> nine means."""

    def forward(self, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        buckets: list[list[torch.Tensor]] = []
        room = 0  # in the last bucket
        for grad in reversed(grads):
            if not buckets or grad.numel() > room:
                buckets.append([])
                room = BUCKET
            buckets[-1].append(grad)
            room -= grad.numel()

        means: list[torch.Tensor] = []
        for bucket in buckets:
            flat = torch.cat([grad.flatten() for grad in bucket])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            parts = flat.split([grad.numel() for grad in bucket])
            means += [part.view(grad.shape) for part, grad in zip(parts, bucket, strict=True)]
        return tuple(reversed(means))


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    attention = [(n.D,), (n.D, n.D), (n.K, n.D), (n.K, n.D), (n.D, n.D)]
    mlp = [(n.D,), (n.F, n.D), (n.F, n.D), (n.D, n.F)]
    return [draws.normal(n.R, *shape, generator=generator) for shape in attention + mlp]


def get_init_inputs() -> list[int]:
    return []


def get_cost(*grads: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (gradients and means, once each) and FLOPs."""
    held = sum(grad.numel() for grad in grads)
    return (held + held // len(grads[0])) * grads[0].element_size(), held
