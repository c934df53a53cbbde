"""Gradients of the stacked collectives, against adjoints that are collectives themselves.

The expected gradient of each linear collective is what an oracle of another collective gives for
the incoming gradients: all_gather's is a reduce_scatter, scatter's a gather, and so on. Gradients
of products, minima and maxima are derived by hand. gradcheck and gradgradcheck of every collective
are in test_collectives_transforms.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelbench_dist import distributed_collectives as dc
from kernelbench_dist.testing import oracles

seeds = st.integers(0, 2**32 - 1)


def randn(shape: Any, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def assert_adjoint(
    collective: Callable[[Any], Any], x: Any, adjoint: Callable[[Any], Any], seed: int
) -> None:
    """Backward of the collective at x is the adjoint, and the two meet <A x, g> = <x, A* g>.

    x is a stacked tensor or a list. The adjoint takes the gradient of the result in numpy, a
    list for a list, and returns the list of the ranks' gradients.
    """
    leaves = [x] if isinstance(x, torch.Tensor) else x
    for leaf in leaves:
        leaf.requires_grad_()
    result = collective(x)
    parts = result if isinstance(result, list) else [result]
    gradients = [randn(p.shape, seed + i) for i, p in enumerate(parts)]
    actual = torch.autograd.grad(parts, leaves, gradients, materialize_grads=True)

    arrays = [g.numpy() for g in gradients]
    expected = adjoint(arrays if isinstance(result, list) else arrays[0])
    ranks = list(actual[0]) if isinstance(x, torch.Tensor) else list(actual)
    for a, e in zip(ranks, expected, strict=True):
        torch.testing.assert_close(a, torch.from_numpy(np.asarray(e)))

    forward = sum((p.detach() * g).sum() for p, g in zip(parts, gradients, strict=True))
    backward = sum((t.detach().numpy() * e).sum() for t, e in zip(list(x), expected, strict=True))
    np.testing.assert_allclose(float(forward), backward, rtol=1e-9, atol=1e-9)


@st.composite
def cases(draw: st.DrawFn, multiple_of_ranks: bool = False) -> tuple[torch.Tensor, int, int]:
    """A stacked float64 tensor, a dim counted from 0, and a seed for the gradients."""
    R = draw(st.integers(1, 6))
    s = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    dim = draw(st.integers(0, len(s) - 1))
    if multiple_of_ranks:
        s[dim] *= R
    seed = draw(seeds)
    return randn([R, *s], seed), dim, seed + 1


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[torch.Tensor], int, list[int], int]:
    """A float64 list whose ranks differ along a dim, the dim, their sizes and a seed."""
    s = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    dim = draw(st.integers(0, len(s) - 1))
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    seed = draw(seeds)
    x = [randn([*s[:dim], n, *s[dim + 1 :]], seed + r) for r, n in enumerate(sizes)]
    return x, dim, sizes, seed + 100


# ---- linear collectives ------------------------------------------------------------------------


@given(cases())
def test_all_gather_splits_the_gradient(case: tuple[torch.Tensor, int, int]) -> None:
    x, dim, seed = case
    sizes = [x.shape[1 + dim]] * len(x)
    for collective in (
        lambda x: dc.all_gather(x, dim),
        lambda x: dc.gather(x, len(x) - 1, dim),
    ):
        assert_adjoint(
            collective, x, lambda g: oracles.scatter([g] * len(sizes), 0, dim, sizes), seed
        )
    # One copy a rank: the adjoint is the sum reduce_scatter.
    assert_adjoint(
        lambda x: dc.all_gather(x, dim, stacked=True),
        x,
        lambda g: oracles.reduce_scatter(list(g), dim, "sum", sizes),
        seed,
    )


@given(ragged())
def test_all_gather_of_a_ragged_list(case: tuple[Any, int, list[int], int]) -> None:
    x, dim, sizes, seed = case
    assert_adjoint(
        lambda x: dc.all_gather(x, dim, stacked=True),
        x,
        lambda g: oracles.reduce_scatter(g, dim, "sum", sizes),
        seed,
    )


@given(cases(), st.sampled_from(["sum", "avg"]))
def test_all_reduce_gives_every_rank_the_gradient(
    case: tuple[torch.Tensor, int, int], op: str
) -> None:
    x, _, seed = case
    R = len(x)
    factor = 1 / R if op == "avg" else 1
    assert_adjoint(lambda x: dc.all_reduce(x, op), x, lambda g: [factor * g] * R, seed)
    assert_adjoint(lambda x: dc.reduce(x, R - 1, op), x, lambda g: [factor * g] * R, seed)
    # One copy a rank: the adjoint is the sum (or avg) all_reduce itself.
    for ranks in (x, list(x.detach().unbind(0))):
        assert_adjoint(
            lambda x: dc.all_reduce(x, op, stacked=True),
            ranks,
            lambda g: oracles.all_reduce(list(g), op),
            seed,
        )


@given(cases(multiple_of_ranks=True), st.sampled_from(["sum", "avg"]))
def test_reduce_scatter_gathers_the_gradients(case: tuple[torch.Tensor, int, int], op: str) -> None:
    x, dim, seed = case
    factor = 1 / len(x) if op == "avg" else 1
    assert_adjoint(
        lambda x: dc.reduce_scatter(x, dim, op),
        x,
        lambda g: oracles.all_gather(list(factor * g), dim),
        seed,
    )


@given(ragged())
def test_reduce_scatter_and_scatter_with_sizes(case: tuple[Any, int, list[int], int]) -> None:
    pieces, dim, sizes, seed = case
    R = len(sizes)
    whole = torch.cat(pieces, dim)
    x = torch.stack([whole * (r + 1) for r in range(R)])
    assert_adjoint(
        lambda x: dc.reduce_scatter(x, dim, sizes=sizes),
        x,
        lambda g: oracles.all_gather(g, dim),
        seed,
    )
    src = R - 1
    for ranks in (x.detach(), list(x.detach().unbind(0))):
        assert_adjoint(
            lambda x: dc.scatter(x, src, dim, sizes=sizes),
            ranks,
            lambda g: [
                np.zeros(whole.shape) if held is None else held
                for held in oracles.gather(g, src, dim)
            ],
            seed,
        )


@given(cases(multiple_of_ranks=True), st.data())
def test_all_to_all_is_inverted(case: tuple[torch.Tensor, int, int], data: st.DataObject) -> None:
    x, split_dim, seed = case
    concat_dim = data.draw(st.integers(0, x.dim() - 2))
    for ranks in (x, list(x.detach().unbind(0))):
        assert_adjoint(
            lambda x: dc.all_to_all(x, split_dim, concat_dim),
            ranks,
            lambda g: oracles.all_to_all(list(g), concat_dim, split_dim),
            seed,
        )


@given(st.integers(1, 5), st.data(), seeds)
def test_all_to_all_with_splits_is_inverted(R: int, data: st.DataObject, seed: int) -> None:
    splits = [data.draw(st.lists(st.integers(0, 3), min_size=R, max_size=R)) for _ in range(R)]
    x = [randn([2, sum(row)], seed + q) for q, row in enumerate(splits)]
    swapped = [list(column) for column in zip(*splits, strict=True)]
    assert_adjoint(
        lambda x: dc.all_to_all(x, 1, 1, splits=splits),
        x,
        lambda g: oracles.all_to_all(g, 1, 1, swapped),
        seed + R,
    )


@given(cases(), st.data())
def test_broadcast_gives_src_the_gradient(
    case: tuple[torch.Tensor, int, int], data: st.DataObject
) -> None:
    x, _, seed = case
    R = len(x)
    src = data.draw(st.integers(0, R - 1))

    def to_src(g: np.ndarray) -> list[np.ndarray]:
        return [g if r == src else np.zeros_like(g) for r in range(R)]

    assert_adjoint(lambda x: dc.broadcast(x, src), x, to_src, seed)
    for ranks in (x, list(x.detach().unbind(0))):
        assert_adjoint(
            lambda x: dc.broadcast(x, src, stacked=True),
            ranks,
            lambda g: to_src(oracles.all_reduce(list(g))[0]),
            seed,
        )


@given(cases(), st.data())
def test_permute_reverses_the_pairs(
    case: tuple[torch.Tensor, int, int], data: st.DataObject
) -> None:
    x, _, seed = case
    R = len(x)
    count = data.draw(st.integers(0, R))
    sources = data.draw(st.permutations(range(R)))[:count]
    destinations = data.draw(st.permutations(range(R)))[:count]
    pairs = list(zip(sources, destinations, strict=True))
    reverse = list(zip(destinations, sources, strict=True))
    for ranks in (x, list(x.detach().unbind(0))):
        assert_adjoint(
            lambda x: dc.permute(x, pairs), ranks, lambda g: oracles.permute(list(g), reverse), seed
        )


@given(cases(), st.integers(-9, 9), st.booleans())
def test_shift_shifts_back(case: tuple[torch.Tensor, int, int], by: int, wrap: bool) -> None:
    x, _, seed = case
    assert_adjoint(
        lambda x: dc.shift(x, by, wrap), x, lambda g: oracles.shift(list(g), -by, wrap), seed
    )


@given(cases(), st.booleans())
def test_scan_sum_scans_back(case: tuple[torch.Tensor, int, int], exclusive: bool) -> None:
    x, _, seed = case
    assert_adjoint(
        lambda x: dc.scan(x, "sum", exclusive),
        x,
        lambda g: oracles.scan(list(g)[::-1], "sum", exclusive)[::-1],
        seed,
    )


@given(cases())
def test_join_split_and_replicate(case: tuple[torch.Tensor, int, int]) -> None:
    x, _, seed = case
    R = len(x)
    assert_adjoint(dc.split, x, list, seed)
    assert_adjoint(dc.join, list(x.detach().unbind(0)), list, seed)
    # replicate's argument is one tensor: as a list of one rank here.
    assert_adjoint(
        lambda x: dc.replicate(x[0], R),
        [x.detach()[0].clone()],
        lambda g: oracles.all_reduce(list(g))[:1],
        seed,
    )


# ---- products, minima and maxima ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "gradients"),
    [
        ([2.0, 3.0, 5.0], [15.0, 10.0, 6.0]),
        ([0.0, 3.0, 5.0], [15.0, 0.0, 0.0]),
        ([2.0, 0.0, 5.0], [0.0, 10.0, 0.0]),
        ([0.0, 0.0, 5.0], [0.0, 0.0, 0.0]),
    ],
)
def test_each_factor_gets_the_product_of_the_others(
    values: list[float], gradients: list[float]
) -> None:
    x = torch.tensor(values, requires_grad=True)
    dc.all_reduce(x, "prod").backward()
    assert x.grad.tolist() == gradients


nan = float("nan")


@pytest.mark.parametrize(
    ("op", "values", "winner"),
    [
        ("min", [3.0, 1.0, 2.0], 1),
        ("max", [1.0, 2.0, 3.0], 2),
        ("min", [2.0, 1.0, 1.0], 1),
        ("max", [3.0, 3.0, 3.0], 0),
        ("min", [0.0, -0.0, 0.0], 0),
        ("max", [1.0, nan, 2.0], 1),
        ("min", [nan, 0.0, nan], 0),
        ("max", [-float("inf"), -float("inf"), nan], 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_smallest_winning_rank_gets_the_gradient(
    op: str, values: list[float], winner: int, dtype: torch.dtype
) -> None:
    x = torch.tensor(values, dtype=dtype, requires_grad=True)
    dc.all_reduce(x, op).backward(torch.tensor(7.0, dtype=dtype))
    assert x.grad.tolist() == [7.0 if r == winner else 0.0 for r in range(3)]


def test_scan_of_maxima_gives_each_prefix_to_its_winner() -> None:
    # The maxima of the prefixes are won by ranks 0, 0, 2, 2.
    x = torch.tensor([2.0, 1.0, 5.0, 5.0], requires_grad=True)
    dc.scan(x, "max").backward(torch.tensor([1.0, 10.0, 100.0, 1000.0]))
    assert x.grad.tolist() == [11.0, 0.0, 1100.0, 0.0]


def test_scan_of_products() -> None:
    # Prefixes 2, 2 * 0, 2 * 0 * 5: rank 0 gets 1 + 0 + 0, rank 1 gets 2 + 2 * 5, rank 2 gets 0.
    x = torch.tensor([2.0, 0.0, 5.0], requires_grad=True)
    dc.scan(x, "prod").sum().backward()
    assert x.grad.tolist() == [1.0, 12.0, 0.0]


def test_exclusive_scan_of_products() -> None:
    # Prefixes 1, 2, 2 * 3: rank 0 gets 1 + 3, rank 1 gets 2, and rank 2 is in no prefix.
    x = torch.tensor([2.0, 3.0, 5.0], requires_grad=True)
    dc.scan(x, "prod", exclusive=True).sum().backward()
    assert x.grad.tolist() == [4.0, 2.0, 0.0]


def test_complex_products_are_conjugated() -> None:
    # For real L of z = a b the gradient of a, in torch's convention, is g times conj(b).
    x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    dc.all_reduce(x, "prod").backward(torch.tensor(1 + 0j))
    assert x.grad.tolist() == [3 + 1j, 1 - 2j]


# ---- literal cases, each from a bug that other implementations had ------------------------------


def test_gradient_of_all_gather_sums_the_losses_of_all_ranks() -> None:
    x = torch.tensor([[1.0], [2.0], [3.0], [4.0]], requires_grad=True)
    gathered = dc.all_gather(x, stacked=True)
    sum((r + 1) * gathered[r].sum() for r in range(4)).backward()
    assert x.grad.flatten().tolist() == [10.0, 10.0, 10.0, 10.0]

    x.grad = None
    gathered = dc.all_gather(x)
    sum((r + 1) * gathered.sum() for r in range(4)).backward()
    assert x.grad.flatten().tolist() == [10.0, 10.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("weights", "gradient"),
    [([1, 1, 1, 1], 4.0), ([1, 0, 0, 0], 1.0), ([1, 10, 100, 1000], 1111.0)],
)
@pytest.mark.parametrize("as_list", [False, True])
def test_gradient_of_all_reduce_sums_over_the_copies_used(
    weights: list[int], gradient: float, as_list: bool
) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    copies = dc.all_reduce(list(x.unbind(0)) if as_list else x, stacked=True)
    assert [copy.item() for copy in copies] == [10.0] * 4
    sum(w * copy for w, copy in zip(weights, copies, strict=True)).backward()
    assert x.grad.tolist() == [gradient] * 4


def test_gathered_parts_of_other_ranks_get_gradients() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    out = dc.all_gather(x.unsqueeze(1), dim=0)
    assert out.requires_grad
    out[2].sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]


# ---- what holds on any number of ranks ----------------------------------------------------------


@pytest.mark.parametrize("R", [1, 2])
@pytest.mark.parametrize(
    "collective",
    [
        lambda x: dc.shift(x, by=5, wrap=False),
        lambda x: dc.permute(x, []),
        lambda x: dc.scan(x[:1], exclusive=True),
    ],
    ids=["shift", "permute", "scan"],
)
def test_a_constant_result_still_has_a_gradient(
    collective: Callable[[torch.Tensor], torch.Tensor], R: int
) -> None:
    x = torch.full((R, 2), nan, requires_grad=True)
    out = collective(x)
    assert not out.detach().any()
    out.sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0]] * R


def test_ranks_of_a_list_that_are_not_read_get_no_gradient() -> None:
    xs = [torch.ones(2, requires_grad=True) for _ in range(2)]
    dc.broadcast(xs, src=1).sum().backward()
    assert xs[0].grad is None
    assert xs[1].grad.tolist() == [1.0, 1.0]
