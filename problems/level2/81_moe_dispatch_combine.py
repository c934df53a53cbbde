"""Dispatch of tokens to experts on other ranks, and combine: the two all-to-alls of an MoE layer.

Formula:
    Rank r's token x[r, b] goes to the K experts e = experts[r, b, k]; expert e is on rank e // L.
    An expert has room for C = ceil(5 K B / (4 R L)) tokens of each rank. Rank r's tokens get its
    places in the order of k, then b; where none is left the token does not reach this expert.
    received[d, l, r, c] = the token of rank r in place c of expert d * L + l, 0 where it is empty
    y[r, b] = sum over the k that have a place of gates[r, b, k] * scale[expert] * x[r, b]

Shapes:
    x (R, B, D), experts (R, B, K) int64, all different in a token, gates (R, B, K): row r is rank
    r's tokens. scale (R, L, D): row d is what the experts of rank d multiply by. received
    (R, L, R, C, D), y (R, B, D). R, B and D vary; the number of experts a rank, L, is a choice of
    the model, as is K.

Where used:
    Expert parallelism. Places of fixed number make every message of one size. Here an expert is
    one multiplication, so that moving the tokens is what costs.

Source:
    Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic
    Sharding", arXiv:2006.16668, section 2.2 and algorithm 1.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 16  # tokens on one rank
D = 32  # features
K = 2  # experts of one token
L = 2  # experts on one rank

SIZES = {
    "tiny": {"R": 4, "B": 16, "D": 32, "K": 2, "L": 2},
    "small": {"R": 8, "B": 256, "D": 1024, "K": 2, "L": 2},
    "large": {"R": 8, "B": 2048, "D": 2048, "K": 2, "L": 4},
    "awkward": {"R": 3, "B": 67, "D": 61, "K": 2, "L": 3},
}
VARIES = ("R", "B", "D")
OUTPUT = "stacked"


def capacity(tokens: int, choices: int, experts: int) -> int:
    """Places for one rank's tokens at one expert: a quarter more than the mean."""
    return -(-5 * tokens * choices // (4 * experts))


def places(experts: torch.Tensor, count: int, room: int) -> torch.Tensor:
    """experts (..., B, K) -> each choice's place among count * room; count * room where none is."""
    chosen = F.one_hot(experts.transpose(-1, -2).flatten(-2), count)  # in the order of k, then b
    before = (chosen.cumsum(-2) * chosen).sum(-1) - 1
    before = before.unflatten(-1, (experts.shape[-1], experts.shape[-2])).transpose(-1, -2)
    return torch.where(before < room, experts * room + before, count * room)


class Model(nn.Module):
    """x, experts, gates, scale -> received (R, L, R, C, D), y (R, B, D)."""

    def forward(
        self, x: torch.Tensor, experts: torch.Tensor, gates: torch.Tensor, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (ranks, tokens, features), choices = x.shape, experts.shape[-1]
        count = scale.shape[0] * scale.shape[1]
        room = capacity(tokens, choices, count)
        place = places(experts, count, room)

        # One more place takes the choices that have none; it goes nowhere.
        sent = x.new_zeros(ranks, count * room + 1, features)
        index = place.flatten(1)[..., None].expand(-1, -1, features)
        sent.scatter_(1, index, x.repeat_interleave(choices, dim=1))
        sent = sent[:, :-1].unflatten(1, (*scale.shape[:2], room))  # (from, to, L, C, D)
        received = sent.movedim(0, 2).contiguous()

        done = gates[..., None] * (scale.flatten(0, 1)[experts] * x[:, :, None])  # (R, B, K, D)
        y = torch.where(place[..., None] < count * room, done, 0).sum(2)
        return received, y


class RankModel(nn.Module):
    """x (B, D), experts (B, K), gates (B, K), scale (L, D) -> received (L, R, C, D), y (B, D)."""

    def forward(
        self, x: torch.Tensor, experts: torch.Tensor, gates: torch.Tensor, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (tokens, features), choices = x.shape, experts.shape[-1]
        ranks, local = dist.get_world_size(), scale.shape[0]
        room = capacity(tokens, choices, ranks * local)
        place = places(experts, ranks * local, room)

        sent = x.new_zeros(ranks * local * room + 1, features)
        sent[place.flatten()] = x.repeat_interleave(choices, dim=0)
        sent = sent[:-1].view(ranks, local, room, features)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)

        done = received * scale[:, None]
        returned = torch.empty_like(done)
        dist.all_to_all_single(returned, done)
        found = torch.cat([returned.flatten(0, 2), x.new_zeros(1, features)])[place]  # (B, K, D)
        y = (gates[..., None] * found).sum(1)
        return received.transpose(0, 1).contiguous(), y


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    x = draws.normal(n.R, n.B, n.D, generator=generator)
    # K neighbours of one drawn expert: all different, and some experts have more than their room.
    first = draws.integers(0, n.R * n.L, n.R, n.B, 1, generator=generator)
    experts = (first + torch.arange(n.K, device=first.device)) % (n.R * n.L)
    gates = draws.uniform(0.1, 1, n.R, n.B, n.K, generator=generator)
    scale = draws.normal(n.R, n.L, n.D, generator=generator)
    return [x, experts, gates / gates.sum(-1, keepdim=True), scale]


def get_init_inputs() -> list[int]:
    return []


def get_cost(
    x: torch.Tensor, experts: torch.Tensor, gates: torch.Tensor, scale: torch.Tensor
) -> tuple[int, int]:
    """Bytes that must move (inputs, received and y, once each) and FLOPs."""
    ranks, tokens, features = x.shape
    count, choices = scale.shape[0] * scale.shape[1], experts.shape[-1]
    received = ranks * count * capacity(tokens, choices, count) * features
    elements = 2 * x.numel() + gates.numel() + scale.numel() + received
    nbytes = elements * x.element_size() + experts.numel() * experts.element_size()
    return nbytes, 3 * choices * x.numel()
