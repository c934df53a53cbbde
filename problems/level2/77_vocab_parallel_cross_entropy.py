"""Vocabulary-parallel cross-entropy: each rank has the logits of some of the classes.

Formula:
    z[b] = concat(logits[0, b], ..., logits[R-1, b])
    loss[b] = log(sum over v of exp(z[b, v])) - z[b, target[b]]

Shapes:
    logits (R, B, V): rank r has those of classes r*V to (r+1)*V - 1; target (B,): int64 from 0 to
    R*V - 1, every rank has it whole; loss (B,), the same on every rank. R, B and V vary.

Where used:
    Tensor parallelism: the loss of a language model. Three numbers a token are reduced over ranks
    (maximum, sum, the target's logit), where a gather would move all of its logits.

Source:
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
    Parallelism", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 20  # tokens
V = 40  # classes of one rank

SIZES = {
    "tiny": {"R": 4, "B": 20, "V": 40},
    "small": {"R": 8, "B": 256, "V": 2000},
    "large": {"R": 8, "B": 2048, "V": 4000},
    "awkward": {"R": 3, "B": 127, "V": 1009},
}
VARIES = ("R", "B", "V")
SHARED = ("target",)
OUTPUT = "same"


class Model(nn.Module):
    """logits (R, B, V), target (B,) -> loss (B,)."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.cat(logits.unbind(0), dim=-1), target, reduction="none")


class RankModel(nn.Module):
    """logits (B, V), target (B,) -> loss (B,)."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        classes = logits.shape[1]
        top = logits.amax(-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        shifted = logits - top.unsqueeze(-1)

        local = target - dist.get_rank() * classes
        elsewhere = (local < 0) | (local >= classes)
        picked = shifted.gather(-1, local.clamp(0, classes - 1).unsqueeze(-1)).squeeze(-1)
        sums = torch.stack([shifted.exp().sum(-1), picked.masked_fill(elsewhere, 0)])
        dist.all_reduce(sums)
        return sums[0].log() - sums[1]


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [
        3 * draws.normal(n.R, n.B, n.V, generator=generator),  # some classes stand out
        draws.integers(0, n.R * n.V, n.B, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(logits: torch.Tensor, target: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (logits, target and loss, once each) and FLOPs.

    The FLOPs of a logit: a comparison, a subtraction, an exponential and an addition.
    """
    nbytes = (logits.numel() + target.numel()) * logits.element_size()
    return nbytes + target.numel() * target.element_size(), 4 * logits.numel()
