"""Forward and backward of an MLP in a pipeline, one layer a rank, with the schedule 1F1B.

Formula, for each micro-batch m:
    h[0] = x[m];  h[r+1] = tanh(h[r] @ w[r].T) for r = 0, ..., R-1;  y[m] = h[R]
    loss = the sum over m and all elements of (y[m] - target[m])^2 / (2 M B)
    returned: y, and grad, the gradient of loss by w

Shapes:
    x, target and y (M, B, D): M micro-batches of B rows. x is for rank 0 only, and target for rank
    R-1 only; y is the same on every rank. w and grad (R, D, D): row r is the layer on rank r. R, M,
    B and D vary.

Where used:
    Pipeline parallel training. After a few forward passes, a rank does one forward, one backward in
    turn, so that it keeps the inputs of R micro-batches at most, not of all M.

Source:
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", arXiv:2104.04473, section 2.2.1 (the schedule PipeDream-Flush).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from kernelbench_dist.problems import draws

R = 4  # ranks
M = 6  # micro-batches
B = 8  # rows of a micro-batch
D = 24  # features

SIZES = {
    "tiny": {"R": 4, "M": 6, "B": 8, "D": 24},
    "small": {"R": 8, "M": 8, "B": 32, "D": 512},
    "large": {"R": 8, "M": 16, "B": 32, "D": 2048},
    "awkward": {"R": 3, "M": 5, "B": 13, "D": 61},
}
VARIES = ("R", "M", "B", "D")
SHARED = ("x", "target")
OUTPUT = ("same", "stacked")


class Model(nn.Module):
    """x (M, B, D), target (M, B, D), w (R, D, D) -> y (M, B, D), grad (R, D, D)."""

    def forward(
        self, x: torch.Tensor, target: torch.Tensor, w: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        h = [x.flatten(0, 1)]
        for layer in w:
            h.append((h[-1] @ layer.T).tanh())
        back = (h[-1] - target.flatten(0, 1)) / len(h[0])
        grads = []
        for r in reversed(range(len(w))):
            back = back * (1 - h[r + 1].square())  # through tanh
            grads.append(back.T @ h[r])
            back = back @ w[r]
        return h[-1].view_as(x), torch.stack(grads[::-1])


class RankModel(nn.Module):
    """x (M, B, D), target (M, B, D), w (D, D) -> y (M, B, D), grad (D, D)."""

    def forward(
        self, x: torch.Tensor, target: torch.Tensor, w: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rank, ranks, batches = dist.get_rank(), dist.get_world_size(), len(x)
        y, grad = torch.zeros_like(x), torch.zeros_like(w)
        previous, following = rank - 1, rank + 1
        # NCCL: all ranks must take part in a group's first call, and not all do in a trade.
        dist.all_reduce(x.new_zeros(1))
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []  # micro-batches under way, oldest first

        def forward(m: int, received: torch.Tensor | None) -> torch.Tensor:
            given = x[m] if received is None else received
            result = (given @ w.T).tanh()
            kept.append((given, result))
            return result

        def backward(m: int, received: torch.Tensor | None) -> torch.Tensor:
            given, result = kept.pop(0)
            if received is None:  # the last rank: from the loss
                y[m] = result
                received = (result - target[m]) / (batches * x.shape[1])
            back = received * (1 - result.square())
            grad.add_(back.T @ given)
            return back @ w

        def trade(
            peer: int, sent: torch.Tensor | None, receives: bool = False
        ) -> torch.Tensor | None:
            """Send to a neighbour and receive from it at once; None where there is none."""
            if not 0 <= peer < ranks:
                return None
            got = torch.empty_like(x[0]) if receives else None
            both = [] if sent is None else [dist.P2POp(dist.isend, sent, peer)]
            both += [] if got is None else [dist.P2POp(dist.irecv, got, peer)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
            return got

        ahead = min(ranks - 1 - rank, batches)  # forward passes before the first backward
        for m in range(ahead):
            trade(following, forward(m, trade(previous, None, receives=True)))
        received = trade(previous, None, receives=True) if ahead < batches else None
        for m in range(batches - ahead):
            result = forward(ahead + m, received)
            back = backward(m, trade(following, result, receives=True))
            received = trade(previous, back, receives=ahead + m + 1 < batches)
        for m in range(batches - ahead, batches):
            trade(previous, backward(m, trade(following, None, receives=True)))
        dist.broadcast(y, ranks - 1)
        return y, grad


def get_inputs(generator: torch.Generator | None = None, jitter: bool = True) -> list[torch.Tensor]:
    n = draws.sizes(globals(), generator, jitter)
    return [
        draws.normal(n.M, n.B, n.D, generator=generator),
        draws.normal(n.M, n.B, n.D, generator=generator),
        1.5 * n.D**-0.5 * draws.normal(n.R, n.D, n.D, generator=generator),
    ]


def get_init_inputs() -> list[int]:
    return []


def get_cost(x: torch.Tensor, target: torch.Tensor, w: torch.Tensor) -> tuple[int, int]:
    """Bytes that must move (inputs and outputs, once each) and FLOPs (of the products).

    Each layer has three products, but the first: nobody needs the gradient by x.
    """
    ranks, features = w.shape[0], w.shape[1]
    elements = 3 * x.numel() + 2 * w.numel()
    return elements * x.element_size(), 2 * x.numel() * features * (3 * ranks - 1)
