"""A training step of an MLP with a sharded optimizer: forward, backward, update (ZeRO stage 2).

Formula:
    loss[q] = the sum of (tanh(x[q] @ w1.T) @ w2.T - target[q])^2 / (2 B)       on rank q
    g  = the mean over q of the gradient of loss[q] by w1 and w2, flattened, one after the other,
         and padded with zeros to R*S elements; as rows (R, S)
    m' = MU m + g
    w1', w2' = w1, w2 - LR m', m' without its padding
    returned: w1', w2', m'

Shapes:
    w1 (F, D) and w2 (D, F) are the same on every rank, before and after. x, target (R, B, D): row
    r is rank r's batch. m, m' (R, S): row r is what rank r keeps, S = ceil(2*F*D / R). All of R,
    B, D and F vary.

Where used:
    Data parallel training: each rank keeps the gradients and the optimizer's states of its shard
    only, and the new parameters are gathered at the end.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    arXiv:1910.02054, sections 5.1 and 5.2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 8  # rows on one rank
D = 16  # features in and out
F = 33  # features between
LR, MU = 0.05, 0.9

SIZES = {
    "tiny": {"R": 4, "B": 8, "D": 16, "F": 33},
    "small": {"R": 8, "B": 64, "D": 256, "F": 1024},
    "large": {"R": 8, "B": 256, "D": 1024, "F": 4096},
    "awkward": {"R": 3, "B": 31, "D": 61, "F": 67},
}
VARIES = ("R", "B", "D", "F")
SHARED = ("w1", "w2")
OUTPUT = ("same", "same", "stacked")

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Model(nn.Module):
    """x, target (R, B, D), w1 (F, D), w2 (D, F), m (R, S) -> w1', w2', m'."""

    def forward(
        self,
        x: torch.Tensor,
        target: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        m: torch.Tensor,
    ) -> Three:
        # The mean over ranks of means over their rows is that over all rows.
        g = padded_gradient(x.flatten(0, 1), target.flatten(0, 1), w1, w2, m.numel())
        m = MU * m + g.view_as(m)
        return *updated(w1, w2, m.flatten()), m


class RankModel(nn.Module):
    """x, target (B, D), w1 (F, D), w2 (D, F), m (S,) -> w1', w2', m'."""

    def forward(
        self,
        x: torch.Tensor,
        target: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        m: torch.Tensor,
    ) -> Three:
        ranks = dist.get_world_size()
        g = torch.empty_like(m)
        dist.reduce_scatter_tensor(g, padded_gradient(x, target, w1, w2, ranks * len(m)))
        m = MU * m + g / ranks
        # What is gathered is the update: the parameters are whole on every rank.
        every = m.new_empty(ranks * len(m))
        dist.all_gather_into_tensor(every, m)
        return *updated(w1, w2, every), m


def padded_gradient(
    x: torch.Tensor, target: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, length: int
) -> torch.Tensor:
    """The gradient of a batch's loss by w1 and w2 as a vector (length,) with zeros at its end."""
    h = (x @ w1.T).tanh()
    back = (h @ w2.T - target) / len(x)
    grad2 = back.T @ h
    grad1 = ((back @ w2) * (1 - h.square())).T @ x
    flat = torch.cat([grad1.flatten(), grad2.flatten()])
    return nn.functional.pad(flat, (0, length - len(flat)))


def updated(
    w1: torch.Tensor, w2: torch.Tensor, step: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    step1, step2, _ = step.tensor_split([w1.numel(), w1.numel() + w2.numel()])
    return w1 - LR * step1.view_as(w1), w2 - LR * step2.view_as(w2)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    shard = -(-2 * n.F * n.D // n.R)
    return [
        draws.normal(n.R, n.B, n.D, generator=generator),
        draws.normal(n.R, n.B, n.D, generator=generator),
        n.D**-0.5 * draws.normal(n.F, n.D, generator=generator),
        n.F**-0.5 * draws.normal(n.D, n.F, generator=generator),
        0.1 * draws.normal(n.R, shard, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(
    x: torch.Tensor, target: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, m: torch.Tensor
) -> tuple[int, int]:
    """Bytes that must move (x and target once; w1, w2 and m in and out) and FLOPs (of products).

    Five products: two forwards, and backwards all but the gradient by x.
    """
    rows = x.shape[0] * x.shape[1]
    elements = 2 * x.numel() + 2 * (w1.numel() + w2.numel() + m.numel())
    return elements * x.element_size(), 5 * 2 * rows * w1.numel()
