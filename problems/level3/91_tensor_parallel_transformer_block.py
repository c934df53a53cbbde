"""A transformer block, its heads and its MLP's features split over the ranks.

Formula, * being one rank's part:
    a = norm1(x);  q, k, v = the heads of a @ wqkv[*].T
    h = x + sum over ranks of attention(q, k, v) @ wo[*].T           (causal)
    y = h + sum over ranks of gelu(norm2(h) @ w1[*].T) @ w2[*].T     (gelu by erf)
    attention(q, k, v) = softmax(q k.T / sqrt(H), only keys not after the query) v

Shapes:
    x and y (B, T, D), the same on every rank. Row r of each of the following is rank r's part:
    wqkv (R, 3*N*H, D), the rows of q, k, v in turn; wo (R, D, N*H); w1 (R, F, D); w2 (R, D, F).
    The weights and biases of norm1 and norm2 (D,) are parameters, the same on every rank. R, B
    and T vary. The norms fix D; N heads a rank, H features a head and F are choices of the model.

Where used:
    Tensor parallelism within a node: two all-reduces a block.

Source:
    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
    Parallelism", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from kernelbench_dist.problems import draws

R = 4  # ranks
B = 2  # sequences
T = 16  # tokens of a sequence
D = 64  # features
N = 2  # heads on one rank
H = 8  # features of a head
F = 64  # features of the MLP on one rank

SIZES = {
    "tiny": {"R": 4, "B": 2, "T": 16, "D": 64, "N": 2, "H": 8, "F": 64},
    "small": {"R": 8, "B": 2, "T": 128, "D": 512, "N": 1, "H": 64, "F": 256},
    "large": {"R": 8, "B": 1, "T": 1024, "D": 2048, "N": 2, "H": 128, "F": 1024},
    "awkward": {"R": 3, "B": 3, "T": 37, "D": 61, "N": 2, "H": 11, "F": 53},
}
VARIES = ("R", "B", "T")
SHARED = ("x",)
OUTPUT = "same"


class Model(nn.Module):
    """x (B, T, D) and the ranks' weights -> y (B, T, D)."""

    def __init__(self, features: int, head_features: int) -> None:
        super().__init__()
        self.head_features = head_features
        self.norm1 = nn.LayerNorm(features)
        self.norm2 = nn.LayerNorm(features)

    def attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """qkv (B, T, 3, any heads * H) -> (B, T, any heads * H)."""
        q, k, v = qkv.unflatten(-1, (-1, self.head_features)).permute(2, 0, 3, 1, 4)
        return (
            functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )

    def forward(
        self,
        x: torch.Tensor,
        wqkv: torch.Tensor,
        wo: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
    ) -> torch.Tensor:
        # Unsharded: the heads of all ranks beside each other, and so the features of the MLP.
        wqkv = wqkv.unflatten(1, (3, -1)).transpose(0, 1).flatten(0, 2)
        qkv = functional.linear(self.norm1(x), wqkv).unflatten(-1, (3, -1))
        h = x + functional.linear(self.attend(qkv), wo.transpose(0, 1).flatten(1))
        hidden = functional.gelu(functional.linear(self.norm2(h), w1.flatten(0, 1)))
        return h + functional.linear(hidden, w2.transpose(0, 1).flatten(1))


class RankModel(Model):
    """x (B, T, D), wqkv (3*N*H, D), wo (D, N*H), w1 (F, D), w2 (D, F) -> y (B, T, D)."""

    def forward(
        self,
        x: torch.Tensor,
        wqkv: torch.Tensor,
        wo: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
    ) -> torch.Tensor:
        qkv = functional.linear(self.norm1(x), wqkv).unflatten(-1, (3, -1))
        attended = functional.linear(self.attend(qkv), wo)
        dist.all_reduce(attended)
        h = x + attended
        mixed = functional.linear(functional.gelu(functional.linear(self.norm2(h), w1)), w2)
        dist.all_reduce(mixed)
        return h + mixed


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    """Weights of a size that keeps each layer's output near that of its input."""
    n = draws.sizes(globals(), generator, jitter)
    heads = n.N * n.H
    return [
        draws.normal(n.B, n.T, n.D, generator=generator),
        n.D**-0.5 * draws.normal(n.R, 3 * heads, n.D, generator=generator),
        (n.R * heads) ** -0.5 * draws.normal(n.R, n.D, heads, generator=generator),
        n.D**-0.5 * draws.normal(n.R, n.F, n.D, generator=generator),
        (n.R * n.F) ** -0.5 * draws.normal(n.R, n.D, n.F, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return [D, H]


def get_cost(
    x: torch.Tensor, wqkv: torch.Tensor, wo: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor
) -> tuple[int, int]:
    """Bytes that must move (x, y and all weights, once each) and FLOPs (of the products)."""
    sequences, tokens, features = x.shape
    weights = sum(w.numel() for w in (wqkv, wo, w1, w2))
    pairs = sequences * tokens * (tokens + 1) // 2  # of a query and a key not after it
    heads_features = wo.shape[0] * wo.shape[2]
    flops = 2 * sequences * tokens * weights + 4 * pairs * heads_features
    return (2 * x.numel() + weights + 4 * features) * x.element_size(), flops
