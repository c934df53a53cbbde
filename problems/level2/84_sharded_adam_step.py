"""An Adam step whose states are sharded over the ranks (ZeRO stage 1).

Formula, element by element, at step T:
    g  = (grads[0] + ... + grads[R-1]) / R
    m' = BETA1 m + (1 - BETA1) g
    v' = BETA2 v + (1 - BETA2) g^2
    p' = p - LR * (m' / (1 - BETA1^T)) / (sqrt(v' / (1 - BETA2^T)) + EPS)
    returned: p', m', v'

Shapes:
    p (R*S,): all parameters, the same on every rank. grads (R, R*S): row r is rank r's gradient of
    all of them. m, v (R, S): row r is what rank r keeps, of the elements r*S to (r+1)*S. p' is the
    same on every rank. R and S vary.

Where used:
    Data parallelism without R copies of the optimizer's states: gradients are reduce-scattered,
    each rank updates its shard, and the new parameters are gathered.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    arXiv:1910.02054, section 5.1; Kingma and Ba, "Adam", arXiv:1412.6980, algorithm 1.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
S = 256  # parameters of one rank's shard
LR, BETA1, BETA2, EPS = 1e-2, 0.9, 0.999, 1e-8
STEP = 10.0  # T; no size, therefore a float

SIZES = {
    "tiny": {"R": 4, "S": 256},
    "small": {"R": 8, "S": 65536},
    "large": {"R": 8, "S": 1 << 20},
    "awkward": {"R": 3, "S": 1009},
}
VARIES = ("R", "S")
SHARED = ("p",)
OUTPUT = ("same", "stacked", "stacked")

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Three:
    m = BETA1 * m + (1 - BETA1) * g
    v = BETA2 * v + (1 - BETA2) * g.square()
    step = (m / (1 - BETA1**STEP)) / ((v / (1 - BETA2**STEP)).sqrt() + EPS)
    return p - LR * step, m, v


class Model(nn.Module):
    """p (R*S,), grads (R, R*S), m (R, S), v (R, S) -> p', m', v'."""

    def forward(
        self, p: torch.Tensor, grads: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> Three:
        p, m, v = adam(p.view_as(m), grads.mean(0).view_as(m), m, v)
        return p.flatten(), m, v


class RankModel(nn.Module):
    """p (R*S,), grad (R*S,), m (S,), v (S,) -> p' (R*S,), m' (S,), v' (S,)."""

    def forward(
        self, p: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> Three:
        g = torch.empty_like(m)
        dist.reduce_scatter_tensor(g, grad)
        shard = p.view(-1, len(m))[dist.get_rank()]
        shard, m, v = adam(shard, g / dist.get_world_size(), m, v)
        p = torch.empty_like(p)
        dist.all_gather_into_tensor(p, shard)
        return p, m, v


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """States as after some steps: m is of the size of g's mean, v of (1 - BETA2^T) g^2."""
    n = draws.sizes(globals(), generator, jitter)
    return [
        0.1 * draws.normal(n.R * n.S, generator=generator),
        draws.normal(n.R, n.R * n.S, generator=generator),
        0.2 * draws.normal(n.R, n.S, generator=generator),
        draws.uniform(0.001, 0.01, n.R, n.S, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(
    p: torch.Tensor, grads: torch.Tensor, m: torch.Tensor, v: torch.Tensor
) -> tuple[int, int]:
    """Bytes that must move (grads once; p, m and v in and out) and FLOPs (15 for Adam's part)."""
    elements = grads.numel() + 2 * (p.numel() + m.numel() + v.numel())
    return elements * p.element_size(), grads.numel() + 15 * p.numel()
