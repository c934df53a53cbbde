"""Cases of differentiable collectives, each beside the same with stacked tensors.

A case computes a result, a gradient and a second gradient, on any backend of torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from kernelbench_dist import distributed_collectives as stacked
from kernelbench_dist.distributed_collectives import functional

R = 4


@dataclass(frozen=True)
class Case:
    """shape: of each rank's tensor, or a list with one a rank.

    ranks: the function on a rank's tensor. stacked: on all of them, to a list with one a rank.
    """

    name: str
    shape: tuple[int, ...] | list[tuple[int, ...]]
    ranks: Callable[[Tensor, int], Tensor]
    stacked: Callable[[list[Tensor]], list[Tensor]]
    values: str = "normal"

    def inputs(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(len(self.name))
        shapes = self.shape if isinstance(self.shape, list) else [self.shape] * R
        xs = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
        if self.values == "few":  # so that there are ties, and zeros
            xs = [x.round().clamp(-1, 1) for x in xs]
        return xs


def _ops(shape: tuple[int, ...]) -> list[Case]:
    cases = []
    for op in ("sum", "avg", "prod", "min", "max"):
        for values in ("normal", "few"):
            cases += [
                Case(
                    f"all_reduce {op} {values}",
                    shape,
                    lambda x, r, op=op: functional.all_reduce(x, op),
                    lambda xs, op=op: stacked.all_reduce(xs, op, stacked=True),
                    values,
                ),
                Case(
                    f"reduce {op} {values}",
                    shape,
                    lambda x, r, op=op: functional.reduce(x, 2, op),
                    lambda xs, op=op: [
                        stacked.reduce(xs, 2, op) if r == 2 else 0 * x for r, x in enumerate(xs)
                    ],
                    values,
                ),
                Case(
                    f"reduce_scatter {op} {values}",
                    (3, R * 2, 2),
                    lambda x, r, op=op: functional.reduce_scatter(x, 1, op),
                    lambda xs, op=op: stacked.reduce_scatter(xs, 1, op),
                    values,
                ),
                Case(
                    f"reduce_scatter uneven {op} {values}",
                    (6, 2),
                    lambda x, r, op=op: functional.reduce_scatter(x, 0, op, sizes=[3, 0, 1, 2]),
                    lambda xs, op=op: stacked.reduce_scatter(xs, 0, op, sizes=[3, 0, 1, 2]),
                    values,
                ),
            ]
    return cases


def _scans() -> list[Case]:
    return [
        Case(
            f"scan {op} {values}{' exclusive' * exclusive}",
            (2, 3),
            lambda x, r, op=op, exclusive=exclusive: functional.scan(x, op, exclusive),
            lambda xs, op=op, exclusive=exclusive: stacked.scan(xs, op, exclusive),
            values,
        )
        for op in ("sum", "prod", "max")
        for values in ("normal", "few")
        for exclusive in (False, True)
    ]


SPLITS = [[1, 0, 2, 1], [0, 0, 0, 3], [2, 2, 0, 1], [0, 0, 0, 0]]
UNEVEN = [(2, 2, 3), (2, 1, 3), (2, 0, 3), (2, 3, 3)]
PAIRS = [(0, 2), (2, 0), (3, 3)]

CASES = [
    *_ops((2, 3)),
    *_scans(),
    Case(
        "all_reduce of scalars",
        (),
        lambda x, r: functional.all_reduce(x, dist.ReduceOp.SUM),
        lambda xs: stacked.all_reduce(xs, stacked=True),
    ),
    Case(
        "all_reduce of nothing",
        (0, 3),
        lambda x, r: functional.all_reduce(x),
        lambda xs: stacked.all_reduce(xs, stacked=True),
    ),
    Case(
        "all_gather",
        (2, 3),
        lambda x, r: functional.all_gather(x, -1),
        lambda xs: stacked.all_gather(xs, -1, stacked=True),
    ),
    Case(
        "all_gather alike",
        (2, 3),
        lambda x, r: functional.all_gather(x, alike=True),
        lambda xs: stacked.all_gather(xs, stacked=True),
    ),
    Case(
        "all_gather uneven",
        UNEVEN,
        lambda x, r: functional.all_gather(x, 1),
        lambda xs: stacked.all_gather(xs, 1, stacked=True),
    ),
    Case(
        "all_gather of nothing",
        (0, 3),
        lambda x, r: functional.all_gather(x, 1),
        lambda xs: stacked.all_gather(xs, 1, stacked=True),
    ),
    Case(
        "gather",
        UNEVEN,
        lambda x, r: functional.gather(x, 3, 1),
        lambda xs: [stacked.gather(xs, 3, 1) if r == 3 else 0 * xs[2] for r in range(R)],
    ),
    Case(
        "scatter",
        (2, 8),
        lambda x, r: functional.scatter(x, 1, 1),
        lambda xs: stacked.scatter(stacked.join(xs), 1, 1),
    ),
    Case(
        "scatter uneven",
        (6, 2),
        lambda x, r: functional.scatter(x, 1, sizes=[3, 0, 1, 2] if r == 1 else None),
        lambda xs: stacked.scatter(stacked.join(xs), 1, sizes=[3, 0, 1, 2]),
    ),
    Case(
        "broadcast",
        (2, 3),
        lambda x, r: functional.broadcast(x, 3),
        lambda xs: stacked.broadcast(xs, 3, stacked=True),
    ),
    Case(
        "all_to_all",
        (2, 8, 3),
        lambda x, r: functional.all_to_all(x, 1, 2),
        lambda xs: stacked.all_to_all(xs, 1, 2),
    ),
    Case(
        "all_to_all uneven",
        [(4, 2), (3, 2), (5, 2), (0, 2)],
        lambda x, r: functional.all_to_all(x, input_splits=SPLITS[r]),
        lambda xs: stacked.all_to_all(xs, splits=SPLITS),
    ),
    Case(
        "all_to_all alike",
        [(4, 2), (3, 2), (5, 2), (0, 2)],
        lambda x, r: functional.all_to_all(
            x, input_splits=SPLITS[r], output_splits=[row[r] for row in SPLITS], alike=True
        ),
        lambda xs: stacked.all_to_all(xs, splits=SPLITS),
    ),
    Case(
        "permute",
        (2, 3),
        lambda x, r: functional.permute(x, PAIRS),
        lambda xs: stacked.permute(xs, PAIRS),
    ),
    Case(
        "permute of other shapes",
        [(1,), (2, 2), (), (0,)],
        lambda x, r: functional.permute(x, PAIRS),
        lambda xs: stacked.permute(xs, PAIRS),
    ),
    Case(
        "shift",
        (2, 3),
        lambda x, r: functional.shift(x, -1),
        lambda xs: stacked.shift(xs, -1),
    ),
    Case(
        "shift without wrap",
        (2, 3),
        lambda x, r: functional.shift(x, 1, wrap=False),
        lambda xs: stacked.shift(xs, 1, wrap=False),
    ),
    Case(
        "shift by a whole turn",
        (2, 3),
        lambda x, r: functional.shift(x, R),
        lambda xs: stacked.shift(xs, R),
    ),
    Case(
        "a transposed input",
        (3, 2),
        lambda x, r: functional.all_gather(x.t()),
        lambda xs: stacked.all_gather([x.t() for x in xs], stacked=True),
    ),
    Case(
        "one after another",
        (4, 2),
        lambda x, r: functional.all_reduce(
            functional.shift(functional.reduce_scatter(x)).sin() * x[:1], "max"
        ),
        lambda xs: stacked.all_reduce(
            [
                y.sin() * x[:1]
                for y, x in zip(stacked.shift(stacked.reduce_scatter(xs)), xs, strict=True)
            ],
            "max",
            stacked=True,
        ),
    ),
]
BY_NAME = {case.name: case for case in CASES}


def loss_of(y: Tensor, r: int) -> Tensor:
    """A loss of rank r's own. Rank 0's is linear: its first derivative is constant."""
    weights = torch.arange(1, y.numel() + 1, dtype=y.dtype, device=y.device).view(y.shape)
    return (r + 1) * (weights * (y if r == 0 else y * y)).sum()


def second_loss_of(gradient: Tensor, r: int) -> Tensor:
    return (r + 2) * (gradient * gradient).sum()


def run_case(name: str) -> list[Tensor]:
    """The result, the gradient, and the second gradient on this rank."""
    case, r = BY_NAME[name], dist.get_rank()
    x = case.inputs()[r].requires_grad_()
    y = case.ranks(x, r)
    (gradient,) = torch.autograd.grad(loss_of(y, r), x, create_graph=True)
    (second,) = torch.autograd.grad(second_loss_of(gradient, r), x)
    return [y.detach(), gradient.detach(), second]


def expected(name: str) -> list[list[Tensor]]:
    """The same, of all ranks, by the stacked collectives."""
    case = BY_NAME[name]
    xs = [x.requires_grad_() for x in case.inputs()]
    ys = case.stacked(xs)
    loss = sum(loss_of(y, r) for r, y in enumerate(ys))
    gradients = torch.autograd.grad(loss, xs, create_graph=True, materialize_grads=True)
    second = sum(second_loss_of(g, r) for r, g in enumerate(gradients))
    seconds = torch.autograd.grad(second, xs, materialize_grads=True)
    return [list(row) for row in zip(ys, gradients, seconds, strict=True)]


def run_cases() -> dict[str, list[Tensor]]:
    """All cases, one after the other."""
    return {case.name: run_case(case.name) for case in CASES}
