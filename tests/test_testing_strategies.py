"""The strategies of kernelbench_dist.testing draw what they say, and all of it."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from kernelbench_dist import testing
from kernelbench_dist.testing import (
    LAYOUTS,
    dtypes,
    linear_problems,
    rank_lists,
    shapes,
    stacked_tensors,
)

FLOATING = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
ALL_KINDS = ("floating", "integer", "bool", "complex")


def collect(strategy: st.SearchStrategy[Any], examples: int = 150) -> list[Any]:
    """What a fixed run of that many examples draws."""
    drawn: list[Any] = []

    @settings(max_examples=examples, derandomize=True, phases=[Phase.generate], database=None)
    @given(strategy)
    def draw(value: Any) -> None:
        drawn.append(value)

    draw()
    return drawn


def test_shapes_reach_their_ends() -> None:
    drawn = collect(shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    assert {len(shape) for shape in drawn} == {1, 2, 3}
    assert {side for shape in drawn for side in shape} == {0, 1, 2, 3, 4}
    assert all(type(shape) is tuple for shape in drawn)


def test_dtypes_by_kind() -> None:
    assert set(collect(dtypes())) == FLOATING
    whole = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}
    assert set(collect(dtypes("integer", "bool"))) == whole
    assert set(collect(dtypes("complex"))) == {torch.complex64, torch.complex128}
    with pytest.raises(ValueError, match="'float' is not one of floating, integer"):
        dtypes("float")


def test_stacked_tensors_reach_every_corner() -> None:
    drawn = collect(stacked_tensors(max_ranks=5))
    assert {x.shape[0] for x in drawn} == {1, 2, 3, 4, 5}
    assert {x.dim() for x in drawn} == {1, 2, 3, 4}
    assert {x.dtype for x in drawn} == FLOATING
    assert any(x.numel() == 0 for x in drawn)
    assert not any(x.requires_grad for x in drawn)
    assert all(bool(x.isfinite().all()) for x in drawn)


STRIDES = {  # of shape (3, 4, 5), written by hand; and the offset of the first element
    "contiguous": ({(20, 5, 1)}, 0),
    "transposed": ({(20, 1, 4)}, 0),
    "expanded": ({(0, 5, 1), (5, 0, 1), (4, 1, 0)}, 0),
    "sliced": ({(44, 11, 1)}, 1),
    "stepped": ({(44, 11, 2)}, 1),
    "offset": ({(20, 5, 1)}, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    strategy = stacked_tensors(
        min_ranks=3, max_ranks=3, shape=(4, 5), dtype=torch.int32, layouts=[layout]
    )
    drawn = collect(strategy)
    strides, offset = STRIDES[layout]
    assert {x.stride() for x in drawn} == strides
    assert {x.storage_offset() for x in drawn} == {offset}
    if layout == "offset":
        assert all(x.data_ptr() % 8 == 4 for x in drawn)


@pytest.mark.parametrize("layout", ["sliced", "stepped", "offset"])
def test_memory_around_a_view_is_poisoned(layout: str) -> None:
    for x in collect(stacked_tensors(shape=(2, 3), dtype=torch.float32, layouts=[layout])):
        whole = torch.empty(0).set_(x.untyped_storage())
        assert whole.numel() > x.numel()
        assert int(whole.isnan().sum()) == whole.numel() - x.numel()
        assert not x.isnan().any()


@given(st.data(), st.sampled_from(LAYOUTS), dtypes(*ALL_KINDS))
def test_any_dtype_in_any_layout(data: st.DataObject, layout: str, dtype: torch.dtype) -> None:
    x = data.draw(stacked_tensors(dtype=dtype, layouts=[layout]))
    assert x.dtype == dtype
    assert type(x) is torch.Tensor
    assert torch.equal(x, x.clone())  # reads every element


def test_values_depend_on_the_seed_and_not_on_the_layout() -> None:
    """One recipe for every layout: the same numbers, but for expanded, which repeats some."""
    values = matches_values(torch.float32)
    for layout in set(LAYOUTS) - {"expanded"}:
        assert torch.equal(testing._strategies._laid_out(values, layout, 0), values)
    expanded = testing._strategies._laid_out(values, "expanded", 1)
    assert torch.equal(expanded, values[:, :1].repeat(1, values.shape[1], 1))


def matches_values(dtype: torch.dtype, nonfinite: bool = False, size: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return testing._strategies._values((size, 5, 6), dtype, generator, nonfinite)


def test_values_fill_their_dtype() -> None:
    normal = matches_values(torch.float64, size=2000)
    assert abs(float(normal.mean())) < 0.02
    assert abs(float(normal.std()) - 1) < 0.02
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int64):
        info = torch.iinfo(dtype)
        whole = matches_values(dtype, size=2000).double()
        middle = (info.max + info.min) / 2
        assert abs(float(whole.mean()) - middle) < 0.02 * (info.max - info.min)
        assert float(whole.max()) > info.max - 0.01 * (info.max - info.min)
        assert float(whole.min()) < info.min + 0.01 * (info.max - info.min)
    assert 0.45 < float(matches_values(torch.bool, size=200).double().mean()) < 0.55


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_nonfinite_values_only_when_asked(dtype: torch.dtype) -> None:
    assert matches_values(dtype, size=500).isfinite().all()
    some = matches_values(dtype, nonfinite=True, size=500)
    assert 0.08 < float((~some.isfinite()).double().mean()) < 0.17
    real = some.real if dtype.is_complex else some
    assert all(bool(kind.any()) for kind in (real.isnan(), real == math.inf, real == -math.inf))
    assert any(bool((~x.isfinite()).any()) for x in collect(stacked_tensors(nonfinite=True)))


def test_rank_lists_differ_along_one_dim_only() -> None:
    drawn = collect(rank_lists(shape=(7, 2), uneven_dim=0, max_side=3, dtype=torch.int8))
    assert {len(xs) for xs in drawn} == set(range(1, 9))
    assert {x.shape[0] for xs in drawn for x in xs} == {0, 1, 2, 3}
    assert {x.shape[1:] for xs in drawn for x in xs} == {(2,)}
    assert any(len({x.shape for x in xs}) > 1 for xs in drawn)
    last = collect(rank_lists(uneven_dim=-1))
    assert {x.dim() for xs in last for x in xs} == {1, 2, 3}
    for xs in last:
        assert len({x.dtype for x in xs}) == len({x.shape[:-1] for x in xs}) == 1
    for xs in collect(rank_lists(uneven_dim=None)):
        assert len({x.shape for x in xs}) == 1


def test_ranks_hold_different_values() -> None:
    strategy = rank_lists(min_ranks=2, shape=(20,), uneven_dim=None, layouts=["contiguous"])
    assert all(not torch.equal(xs[0], xs[1]) for xs in collect(strategy))


def test_linear_problems_reach_every_corner() -> None:
    drawn = collect(linear_problems(), 400)
    assert {p.x.shape[0] for p in drawn} >= {1, 2, 64}
    assert {p.x.dim() for p in drawn} == {2, 3, 4, 5}
    for p in drawn:
        assert p.weight.shape[1] == p.x.shape[0] * p.x.shape[-1]
        assert p.bias is None or p.bias.shape == (p.weight.shape[0],)
        assert len({t.dtype for t in p.args if t is not None}) == 1
        assert p.args == (p.x, p.weight, p.bias)
    assert any(0 in p.x.shape[1:-1] for p in drawn)  # B = 0
    assert any(p.x.shape[-1] == 0 for p in drawn)  # H = 0
    assert any(p.weight.shape[0] == 0 for p in drawn)  # K = 0
    grads = {tuple(t.requires_grad for t in p.args) for p in drawn if p.bias is not None}
    assert len(grads) == 8
    assert {p.bias is None for p in drawn} == {True, False}


def test_linear_problems_options() -> None:
    for p in collect(linear_problems(max_ranks=3, max_side=4, bias=True, requires_grad=False)):
        assert p.bias is not None
        assert not any(t.requires_grad for t in p.args)
    for p in collect(linear_problems(bias=False, requires_grad=True, max_batch_dims=1)):
        assert p.bias is None
        assert p.x.requires_grad
        assert p.weight.requires_grad
        assert p.x.dim() <= 3


def test_a_problem_is_told_by_its_recipe() -> None:
    p = collect(linear_problems(dtype=torch.float64, layouts=["stepped"], bias=True))[-1]
    assert re.fullmatch(
        r"LinearProblem\(x \(.*\) stepped.*, weight \(.*\) stepped.*, bias \(\d+,\) stepped.*, "
        r"torch\.float64, seed \d+\)",
        repr(p),
    )
    assert len(repr(p)) < 250


def test_unknown_layouts_and_dims_are_refused() -> None:
    with pytest.raises(ValueError, match="'diagonal' is not one of contiguous, transposed"):
        collect(stacked_tensors(layouts=["diagonal"]))
    with pytest.raises(ValueError, match="uneven_dim=2 is not a dim of the shape"):
        collect(rank_lists(shape=(3, 4), uneven_dim=2))


def test_a_failure_shrinks_to_a_small_problem() -> None:
    smallest = find(
        linear_problems(),
        lambda p: p.x.shape[0] >= 3 and p.weight.shape[0] >= 2,
        settings=settings(max_examples=500, derandomize=True, database=None),
    )
    assert (smallest.x.shape, smallest.weight.shape) == ((3, 0), (2, 0))
    assert (smallest.x.dtype, smallest.bias) == (torch.float32, None)


def test_no_health_check_fails() -> None:
    """Nothing is filtered and little is drawn. (Being slow is the machine's affair.)"""
    everything = st.tuples(linear_problems(), stacked_tensors(), rank_lists(), shapes(), dtypes())

    @settings(
        max_examples=100,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(everything)
    def draw(value: Any) -> None:
        pass

    draw()
