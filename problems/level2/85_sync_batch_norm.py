"""Batch normalisation in training, with mean and variance over the batches of all ranks.

Formula, for each channel c:
    mean[c] = the mean of x[:, :, c, :]
    var[c]  = the mean of (x[:, :, c, :] - mean[c])^2
    y[r, b, c, l] = (x[r, b, c, l] - mean[c]) / sqrt(var[c] + EPS) * weight[c] + bias[c]

Shapes:
    x (R, B, C, L) and y alike: row r is rank r's batch of B images of L points. weight and bias
    (C,) are parameters, the same on every rank. R, B and L vary. C does not: weight and bias fix
    it.

Where used:
    Data parallel training of detectors and segmenters, where one rank has few images only.

Source:
    Ioffe and Szegedy, "Batch Normalization", arXiv:1502.03167, algorithm 1; over devices as
    Peng et al., "MegDet: A Large Mini-Batch Object Detector", arXiv:1711.07240, section 3.3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 2  # images on one rank
C = 12  # channels
L = 49  # points of an image
EPS = 1e-5

SIZES = {
    "tiny": {"R": 4, "B": 2, "C": 12, "L": 49},
    "small": {"R": 8, "B": 4, "C": 64, "L": 784},
    "large": {"R": 8, "B": 16, "C": 128, "L": 3136},
    "awkward": {"R": 3, "B": 3, "C": 23, "L": 67},
}
VARIES = ("R", "B", "L")
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, B, C, L) -> y (R, B, C, L)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.batch_norm(
            x.flatten(0, 1), None, None, self.weight, self.bias, training=True, eps=EPS
        )
        return y.view_as(x)


class RankModel(Model):
    """x (B, C, L) -> y (B, C, L)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        var, mean = torch.var_mean(x, dim=(0, 2), correction=0)
        local = torch.stack([mean, var])
        every = local.new_empty(2 * dist.get_world_size(), len(mean))
        dist.all_gather_into_tensor(every, local)
        means, variances = every[::2], every[1::2]  # (R, C) each
        mean = means.mean(0)
        # Of all elements: the mean variance within a rank, and the variance of the ranks' means.
        var = variances.mean(0) + (means - mean).square().mean(0)
        return F.batch_norm(x, mean, var, self.weight, self.bias, training=False, eps=EPS)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """Every rank and channel has a mean and a spread of its own."""
    n = draws.sizes(globals(), generator, jitter)
    mean = draws.normal(n.R, 1, n.C, 1, generator=generator)
    spread = draws.uniform(0.5, 2, n.R, 1, n.C, 1, generator=generator)
    return [mean + spread * draws.normal(n.R, n.B, n.C, n.L, generator=generator)]


def get_init_inputs() -> list[int]:
    return [C]


def get_cost(x: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (x, y, weight and bias, once each) and FLOPs."""
    return (2 * x.numel() + 2 * C) * x.element_size(), 6 * x.numel()
