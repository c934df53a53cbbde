"""A mixture-of-experts layer: gate, dispatch, experts on all ranks, combine.

Formula:
    p[r, b] = softmax over the experts of x[r, b] @ gate.T;  e = the expert with the largest
    y[r, b] = p[r, b, e] * relu(x[r, b] @ w1[e].T) @ w2[e].T, or 0 where e has no room for it
    Expert e is the (e mod L)-th of rank e // L. It has room for C = ceil(5 B / (4 R L)) tokens of
    each rank: for the first C of rank r's that chose it.

Shapes:
    x and y (R, B, D): row r is rank r's tokens. gate (R*L, D) is the same on every rank. w1
    (R, L, F, D), w2 (R, L, D, F): row r is the experts of rank r. R and B vary; L experts a rank, D
    and F are choices of the model.

Where used:
    Large language models with expert parallelism: a token runs through one expert's parameters, and
    goes to the rank that has them and back by all-to-all.

Source:
    Fedus et al., "Switch Transformers: Scaling to Trillion Parameter Models with Simple and
    Efficient Sparsity", arXiv:2101.03961, sections 2.1 and 2.2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 24  # tokens on one rank
D = 32  # features
L = 2  # experts on one rank
F = 40  # features within an expert

SIZES = {
    "tiny": {"R": 4, "B": 24, "D": 32, "L": 2, "F": 40},
    "small": {"R": 8, "B": 256, "D": 256, "L": 2, "F": 512},
    "large": {"R": 8, "B": 1024, "D": 1024, "L": 2, "F": 2048},
    "awkward": {"R": 3, "B": 67, "D": 61, "L": 3, "F": 37},
}
VARIES = ("R", "B")
SHARED = ("gate",)
OUTPUT = "stacked"


class Model(nn.Module):
    """x (R, B, D), gate (R*L, D), w1 (R, L, F, D), w2 (R, L, D, F) -> y (R, B, D)."""

    def route(
        self, x: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x (B, D) -> p (B, 1); place (B,) among E * C, or E * C; x in its places (E, C, D)."""
        (tokens, features), count = x.shape, len(gate)
        room = -(-5 * tokens // (4 * count))
        p, expert = (x @ gate.T).softmax(-1).max(-1, keepdim=True)
        chosen = expert == torch.arange(count, device=x.device)
        order = chosen.cumsum(0).gather(1, expert) - 1  # among the tokens that chose the same
        place = torch.where(order < room, expert * room + order, count * room).flatten()
        placed = x.new_zeros(count * room + 1, features)  # the last for those without a place
        placed[place] = x
        return p, place, placed[:-1].view(count, room, features)

    def experts(self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        """x (E, any tokens, D), w1 (E, F, D), w2 (E, D, F) -> like x."""
        return (x @ w1.mT).relu() @ w2.mT

    def combine(self, p: torch.Tensor, place: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
        """done (E, C, D) -> each token's result (B, D)."""
        rows = torch.cat([done.flatten(0, 1), done.new_zeros(1, done.shape[-1])])
        return p * rows[place]

    def forward(
        self, x: torch.Tensor, gate: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor
    ) -> torch.Tensor:
        p, place, sent = zip(*(self.route(tokens, gate) for tokens in x), strict=True)
        received = torch.cat(sent, dim=1)  # (E, R*C, D)
        done = self.experts(received, w1.flatten(0, 1), w2.flatten(0, 1)).chunk(len(x), dim=1)
        return torch.stack([self.combine(*rank) for rank in zip(p, place, done, strict=True)])


class RankModel(Model):
    """x (B, D), gate (R*L, D), w1 (L, F, D), w2 (L, D, F) -> y (B, D)."""

    def forward(
        self, x: torch.Tensor, gate: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor
    ) -> torch.Tensor:
        ranks = dist.get_world_size()
        p, place, sent = self.route(x, gate)
        received = torch.empty_like(sent)  # (R*L, C, D): of each rank for the L experts here
        dist.all_to_all_single(received, sent)

        by_expert = received.unflatten(0, (ranks, -1)).transpose(0, 1)  # (L, R, C, D)
        done = self.experts(by_expert.flatten(1, 2), w1, w2)
        done = done.view(by_expert.shape).transpose(0, 1).contiguous().view_as(sent)
        returned = torch.empty_like(done)
        dist.all_to_all_single(returned, done)
        return self.combine(p, place, returned)


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """x is such that a token's logits are 0, s, 2 s, ... in a random order, s in [0.3, 1).

    So no two are near, and rounding does not change which expert a token goes to.
    """
    n = draws.sizes(globals(), generator, jitter)
    count = n.R * n.L
    x = draws.normal(n.R, n.B, n.D, generator=generator)
    gate = n.D**-0.5 * draws.normal(count, n.D, generator=generator)
    logits = draws.normal(n.R, n.B, count, generator=generator).argsort(-1)
    logits = logits * draws.uniform(0.3, 1, n.R, n.B, 1, generator=generator)
    wide = gate.double()  # so that x is the same bit for bit on every machine
    x += (logits - x.double() @ wide.T) @ torch.linalg.pinv(wide).T
    w1 = n.D**-0.5 * draws.normal(n.R, n.L, n.F, n.D, generator=generator)
    w2 = n.F**-0.5 * draws.normal(n.R, n.L, n.D, n.F, generator=generator)
    return [x, gate, w1, w2]


def get_init_inputs() -> list[int]:
    return []


def get_cost(
    x: torch.Tensor, gate: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor
) -> tuple[int, int]:
    """Bytes that must move (inputs and y, once each) and FLOPs (two for each product).

    Of the experts' products, those for x's tokens: places that stay empty need none.
    """
    rows, features = x.shape[0] * x.shape[1], x.shape[2]
    elements = 2 * x.numel() + gate.numel() + w1.numel() + w2.numel()
    return elements * x.element_size(), 2 * rows * features * (len(gate) + 2 * w1.shape[2])
