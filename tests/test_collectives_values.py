"""Values of the stacked collectives, against plain loops and literal values.

Data that moves must arrive as it was, NaN and infinities included. Float reductions are compared
bit for bit with a left fold in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from kernelbench_dist import distributed_collectives as dc
from kernelbench_dist.testing import oracles, rank_lists, stacked_tensors

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX]
DTYPES_OF = {
    "sum": ALL,
    "avg": FLOATS + COMPLEX,
    "prod": ALL,
    "min": [torch.bool, *INTEGERS, *FLOATS],
    "max": [torch.bool, *INTEGERS, *FLOATS],
    "band": [torch.bool, *INTEGERS],
    "bor": [torch.bool, *INTEGERS],
    "bxor": [torch.bool, *INTEGERS],
}

world_sizes = st.integers(1, 8)
many_ranks = st.one_of(world_sizes, st.sampled_from([16, 64]))
sides = st.lists(st.integers(0, 3), min_size=1, max_size=3)


@st.composite
def inputs(
    draw: st.DrawFn,
    dtypes: Sequence[torch.dtype] = ALL,
    min_dims: int = 0,
    ranks: st.SearchStrategy[int] = world_sizes,
    multiple_of_ranks: bool = False,
    nonfinite: bool = True,
) -> tuple[torch.Tensor | list[torch.Tensor], int]:
    """A stacked tensor, or a list of ranks of one shape; and a dim of the shape."""
    R = draw(ranks)
    s = draw(st.lists(st.integers(0, 3), min_size=min_dims, max_size=3))
    dim = draw(st.integers(-len(s), len(s) - 1)) if s else 0
    if multiple_of_ranks:
        s[dim] *= R
    kwargs: dict[str, Any] = {"min_ranks": R, "max_ranks": R, "shape": tuple(s)}
    kwargs |= {"dtype": st.sampled_from(dtypes), "nonfinite": nonfinite}
    x = stacked_tensors(**kwargs) | rank_lists(uneven_dim=None, **kwargs)
    return draw(x), dim


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[torch.Tensor], int]:
    """A list of ranks whose sizes differ along a dim, zero included; and the dim."""
    s = draw(sides)
    dim = draw(st.integers(-len(s), len(s) - 1))
    dtype = st.sampled_from(ALL)
    x = rank_lists(shape=tuple(s), uneven_dim=dim, max_side=3, dtype=dtype, nonfinite=True)
    return draw(x), dim


def arrays(x: torch.Tensor | list[torch.Tensor]) -> list[np.ndarray]:
    """The numpy array of each rank. numpy has no bfloat16; float32 holds its values."""
    return [(t.float() if t.dtype == torch.bfloat16 else t).numpy() for t in x]


def assert_equal(actual: torch.Tensor, expected: np.ndarray, dtype: torch.dtype) -> None:
    """Same dtype, shape and bits (of a NaN only that it is one), and contiguous."""
    want = torch.from_numpy(np.asarray(expected)).to(dtype)
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    torch.testing.assert_close(actual, want, rtol=0, atol=0, equal_nan=True)
    if dtype.is_floating_point:
        number = ~want.isnan()
        assert torch.equal(actual[number].signbit(), want[number].signbit())


def assert_ranks(
    actual: torch.Tensor | list[torch.Tensor],
    expected: Sequence[Any],
    dtype: torch.dtype,
    as_list: bool,
) -> None:
    """What each rank holds is as expected, in the container that is due."""
    assert isinstance(actual, list if as_list else torch.Tensor)
    assert len(actual) == len(expected)
    if not as_list:
        assert actual.is_contiguous()
    for a, e in zip(actual, expected, strict=True):
        assert_equal(a, e, dtype)


def left_fold(xs: list[np.ndarray], op: str, dtype: torch.dtype) -> np.ndarray:
    """Numpy's fold over ranks of a sum, mean or product, in float32 or float64, not yet rounded."""
    wide = np.float64 if dtype == torch.float64 else np.float32
    acc = np.asarray(xs[0], wide)
    for x in xs[1:]:
        acc = acc * x.astype(wide) if op == "prod" else acc + x.astype(wide)
    return acc / wide(len(xs)) if op == "avg" else acc


def reduced(xs: list[np.ndarray], op: str, dtype: torch.dtype) -> np.ndarray:
    if dtype.is_floating_point and op in ("sum", "avg", "prod"):
        return left_fold(xs, op, dtype)
    return oracles.all_reduce(xs, op)[0]


# ---- moving data -------------------------------------------------------------------------------


@given(st.one_of(inputs(min_dims=1, ranks=many_ranks), ragged()), st.data())
def test_all_gather_and_gather(case: tuple[Any, int], data: st.DataObject) -> None:
    x, dim = case
    R, dtype = len(x), x[0].dtype
    expected = oracles.all_gather(arrays(x), dim)
    assert_equal(dc.all_gather(x, dim), expected[0], dtype)
    assert_ranks(dc.all_gather(x, dim, stacked=True), expected, dtype, isinstance(x, list))

    dst = data.draw(st.integers(0, R - 1))
    assert_equal(dc.gather(x, dst, dim), oracles.gather(arrays(x), dst, dim)[dst], dtype)


@given(inputs(), st.data())
def test_broadcast(case: tuple[Any, int], data: st.DataObject) -> None:
    x, _ = case
    src = data.draw(st.integers(0, len(x) - 1))
    expected = oracles.broadcast(arrays(x), src)
    assert_equal(dc.broadcast(x, src), expected[0], x[0].dtype)
    assert_ranks(dc.broadcast(x, src, stacked=True), expected, x[0].dtype, isinstance(x, list))


@given(inputs(min_dims=1, multiple_of_ranks=True), st.data())
def test_scatter(case: tuple[Any, int], data: st.DataObject) -> None:
    x, dim = case
    src = data.draw(st.integers(0, len(x) - 1))
    expected = oracles.scatter(arrays(x), src, dim)
    assert_ranks(dc.scatter(x, src, dim), expected, x[0].dtype, isinstance(x, list))


@given(ragged(), st.data())
def test_scatter_with_sizes_reads_src_alone(case: tuple[Any, int], data: st.DataObject) -> None:
    # The pieces of a ragged list are the sizes; the other ranks hold tensors of any shape.
    pieces, dim = case
    sizes = [p.shape[dim] for p in pieces]
    src = data.draw(st.integers(0, len(pieces) - 1))
    x = [torch.zeros(r, dtype=pieces[0].dtype) for r in range(len(pieces))]
    x[src] = torch.cat(pieces, dim)
    assert_ranks(dc.scatter(x, src, dim, sizes=sizes), arrays(pieces), x[0].dtype, as_list=True)


@st.composite
def equal_exchanges(draw: st.DrawFn) -> tuple[Any, int, int]:
    x, split_dim = draw(inputs(min_dims=1, multiple_of_ranks=True))
    dims = x[0].dim()
    return x, split_dim, draw(st.integers(-dims, dims - 1))


@given(equal_exchanges())
def test_all_to_all(case: tuple[Any, int, int]) -> None:
    x, split_dim, concat_dim = case
    expected = oracles.all_to_all(arrays(x), split_dim, concat_dim)
    actual = dc.all_to_all(x, split_dim, concat_dim)
    assert_ranks(actual, expected, x[0].dtype, isinstance(x, list))


def test_all_to_all_of_64_ranks_is_a_transpose() -> None:
    x = torch.arange(64 * 64).view(64, 64)
    assert torch.equal(dc.all_to_all(x), x.T)


@st.composite
def uneven_exchanges(draw: st.DrawFn) -> tuple[Any, int, int, list[list[int]]]:
    """Sizes by construction: any split along one dim, equal columns where the dims differ."""
    R = draw(world_sizes)
    s = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    split_dim = draw(st.integers(0, len(s) - 1))
    concat_dim = draw(st.integers(0, len(s) - 1))
    rows = st.lists(st.integers(0, 3), min_size=R, max_size=R)
    splits = [draw(rows) for _ in range(R)] if split_dim == concat_dim else [draw(rows)] * R
    dtype = draw(st.sampled_from(ALL))
    x = []
    for row in splits:
        if split_dim != concat_dim:
            s[concat_dim] = draw(st.integers(0, 2))
        s[split_dim] = sum(row)
        x.append(draw(stacked_tensors(max_ranks=1, shape=tuple(s), dtype=dtype))[0])
    return x, split_dim, concat_dim, splits


@given(uneven_exchanges())
def test_all_to_all_with_splits(case: tuple[Any, int, int, list[list[int]]]) -> None:
    x, split_dim, concat_dim, splits = case
    expected = oracles.all_to_all(arrays(x), split_dim, concat_dim, splits)
    actual = dc.all_to_all(x, split_dim, concat_dim, splits=splits)
    assert_ranks(actual, expected, x[0].dtype, as_list=True)


@given(st.one_of(inputs(), ragged()), st.data())
def test_permute(case: tuple[Any, int], data: st.DataObject) -> None:
    x, _ = case
    R = len(x)
    count = data.draw(st.integers(0, R))
    sources = data.draw(st.permutations(range(R)))[:count]
    destinations = data.draw(st.permutations(range(R)))[:count]
    pairs = list(zip(sources, destinations, strict=True))
    expected = oracles.permute(arrays(x), pairs)
    assert_ranks(dc.permute(x, pairs), expected, x[0].dtype, isinstance(x, list))


@given(st.one_of(inputs(ranks=many_ranks), ragged()), st.integers(-70, 70), st.booleans())
def test_shift(case: tuple[Any, int], by: int, wrap: bool) -> None:
    x, _ = case
    expected = oracles.shift(arrays(x), by, wrap)
    assert_ranks(dc.shift(x, by, wrap), expected, x[0].dtype, isinstance(x, list))


@given(inputs())
def test_join_split_and_replicate(case: tuple[Any, int]) -> None:
    xs, dtype = list(case[0]), case[0][0].dtype
    joined = dc.join(xs)
    assert_ranks(joined, arrays(xs), dtype, as_list=False)
    assert_ranks(dc.split(joined), arrays(xs), dtype, as_list=True)
    assert_ranks(dc.replicate(xs[0], 3), oracles.replicate(arrays(xs)[0], 3), dtype, as_list=False)


# ---- reductions --------------------------------------------------------------------------------


def reducible(op: str, **kwargs: Any) -> st.SearchStrategy[tuple[Any, int]]:
    """Inputs of the dtypes that have the op. Complex numbers are rounded elsewise in numpy."""
    dtypes = [dtype for dtype in DTYPES_OF[op] if not dtype.is_complex]
    if op not in ("min", "max"):
        return inputs(dtypes, nonfinite=False, **kwargs)
    return inputs(dtypes, **kwargs).map(lambda case: (with_ties(case[0]), case[1]))


def with_ties(x: Any) -> Any:
    """Few different values, zeros of both signs among them."""
    if isinstance(x, list):
        return [with_ties(t) for t in x]
    return x.round() if x.is_floating_point() else x


@pytest.mark.parametrize("op", DTYPES_OF)
@given(st.data())
def test_all_reduce_and_reduce(op: str, data: st.DataObject) -> None:
    x, _ = data.draw(reducible(op, ranks=many_ranks))
    dtype = x[0].dtype
    expected = reduced(arrays(x), op, dtype)
    assert_equal(dc.all_reduce(x, op), expected, dtype)
    assert_equal(dc.reduce(x, len(x) - 1, op), expected, dtype)
    copies = dc.all_reduce(x, op, stacked=True)
    assert_ranks(copies, [expected] * len(x), dtype, isinstance(x, list))


@given(
    inputs([torch.bool, *INTEGERS, torch.float64], nonfinite=False),
    st.sampled_from(["sum", "prod"]),
)
def test_float64_and_integers_equal_the_oracle(case: tuple[Any, int], op: str) -> None:
    x, _ = case
    assert_equal(dc.all_reduce(x, op), oracles.all_reduce(arrays(x), op)[0], x[0].dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["sum", "avg", "prod"])
def test_floats_equal_a_left_fold_bit_for_bit(op: str, dtype: torch.dtype) -> None:
    x = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert_equal(dc.all_reduce(x, op), left_fold(arrays(x), op, dtype), dtype)
    if op != "avg":
        expected = [left_fold(arrays(x)[: r + 1], op, dtype) for r in range(7)]
        assert_ranks(dc.scan(x, op), expected, dtype, as_list=False)


@pytest.mark.parametrize("op", DTYPES_OF)
@given(st.data())
def test_reduce_scatter(op: str, data: st.DataObject) -> None:
    x, dim = data.draw(reducible(op, min_dims=1, multiple_of_ranks=True))
    dtype, R, n = x[0].dtype, len(x), x[0].shape[dim]
    whole = [reduced(arrays(x), op, dtype)]
    equal = oracles.scatter(whole * R, 0, dim)
    assert_ranks(dc.reduce_scatter(x, dim, op), equal, dtype, isinstance(x, list))

    cuts = sorted(data.draw(st.lists(st.integers(0, n), min_size=R - 1, max_size=R - 1)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    uneven = oracles.scatter(whole * R, 0, dim, sizes)
    assert_ranks(dc.reduce_scatter(x, dim, op, sizes=sizes), uneven, dtype, as_list=True)


@pytest.mark.parametrize("op", [op for op in DTYPES_OF if op != "avg"])
@given(st.data())
def test_scan(op: str, data: st.DataObject) -> None:
    x, _ = data.draw(reducible(op))
    xs, dtype, as_list = arrays(x), x[0].dtype, isinstance(x, list)
    inclusive = [reduced(xs[: r + 1], op, dtype) for r in range(len(xs))]
    assert_ranks(dc.scan(x, op), inclusive, dtype, as_list)
    identity = oracles.scan(xs, op, exclusive=True)[0]
    assert_ranks(dc.scan(x, op, exclusive=True), [identity, *inclusive[:-1]], dtype, as_list)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
@pytest.mark.parametrize("op", ["sum", "avg", "prod"])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_complex_reductions(op: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, 4, dtype=torch.complex64, generator=generator).to(dtype)
    wide = x.to(torch.complex128)
    tolerance = {torch.complex32: 2e-3, torch.complex64: 1e-6, torch.complex128: 1e-14}[dtype]

    actual = [dc.all_reduce(x, op)]
    expected = [oracles.all_reduce(arrays(wide), op)[0]]
    if op != "avg":
        actual += dc.scan(x, op).unbind(0)
        expected += oracles.scan(arrays(wide), op)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == dtype
        want = torch.from_numpy(np.asarray(e))
        torch.testing.assert_close(a.to(wide.dtype), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SUM", 9),
        ("PRODUCT", 18),
        ("MIN", 3),
        ("MAX", 6),
        ("BAND", 2),
        ("BOR", 7),
        ("BXOR", 5),
        ("AVG", 4.5),
    ],
)
def test_reduce_op_members(name: str, expected: float) -> None:
    x = torch.tensor([[6], [3]]) if name != "AVG" else torch.tensor([[6.0], [3.0]])
    assert dc.all_reduce(x, getattr(dist.ReduceOp, name)).item() == expected


def test_half_types_are_summed_in_float32_and_rounded_once() -> None:
    # In bfloat16 256 + 1 is 256 again, so eight ones would be lost one by one.
    x = torch.tensor([256.0] + [1.0] * 8, dtype=torch.bfloat16)
    assert dc.all_reduce(x).item() == 264.0
    # In float16 the running sum would overflow.
    assert dc.all_reduce(torch.tensor([6e4, 6e4, -6e4], dtype=torch.float16)).item() == 60000.0
    assert dc.scan(x)[-1].item() == 264.0


def test_sums_go_from_rank_0_up() -> None:
    # 1e8 + 1 is 1e8 in float32: from the left the ones vanish, from the right they do not.
    x = torch.tensor([1e8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1e8])
    assert dc.all_reduce(x).item() == 0.0
    assert dc.all_reduce(x.flip(0)).item() == 0.0
    assert dc.all_reduce(torch.tensor([1.0, 1e8, -1e8])).item() == 0.0
    assert dc.all_reduce(torch.tensor([1e8, -1e8, 1.0])).item() == 1.0


def test_integers_wrap_and_bools_stay() -> None:
    assert dc.all_reduce(torch.tensor([100, 28], dtype=torch.int8)).item() == -128
    assert dc.all_reduce(torch.tensor([200, 100], dtype=torch.uint8)).item() == 44
    assert dc.all_reduce(torch.tensor([2**62, 2**62])).item() == -(2**63)
    x = torch.tensor([[True, True, False], [True, False, False]])
    assert dc.all_reduce(x).tolist() == [True, True, False]
    assert dc.all_reduce(x, "prod").tolist() == [True, False, False]
    assert dc.all_reduce(x, "bxor").tolist() == [False, True, False]


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("nan_rank", [0, 1, 2])
def test_minimum_and_maximum_pass_nan_on(op: str, nan_rank: int) -> None:
    x = torch.tensor([[1.0], [3.0], [2.0]])
    x[nan_rank] = float("nan")
    assert dc.all_reduce(x, op).isnan().all()


@pytest.mark.parametrize(
    ("op", "dtype", "identity"),
    [
        ("sum", torch.int32, 0),
        ("prod", torch.float16, 1.0),
        ("min", torch.int64, 2**63 - 1),
        ("max", torch.int8, -128),
        ("max", torch.uint8, 0),
        ("min", torch.bfloat16, float("inf")),
        ("max", torch.float64, float("-inf")),
        ("min", torch.bool, True),
        ("max", torch.bool, False),
        ("band", torch.int16, -1),
        ("band", torch.uint8, 255),
        ("band", torch.bool, True),
        ("bor", torch.uint8, 0),
        ("bxor", torch.bool, False),
        ("prod", torch.complex64, 1 + 0j),
    ],
)
def test_exclusive_scan_starts_with_the_identity(
    op: str, dtype: torch.dtype, identity: complex
) -> None:
    x = torch.ones(2, 1, dtype=dtype)
    out = dc.scan(x, op, exclusive=True)
    assert out.dtype == dtype
    assert out.tolist() == [[identity], [1]]


# ---- literal cases, each from a bug that other implementations had ------------------------------


def test_average_divides_by_ranks_not_elements() -> None:
    assert dc.all_reduce(torch.ones(2, 4), "avg").tolist() == [1.0, 1.0, 1.0, 1.0]


def test_reduce_scatter_of_transposed_ranks() -> None:
    x = torch.arange(24).reshape(4, 3, 2).transpose(1, 2).expand(4, 4, 2, 3)
    out = dc.reduce_scatter(x)
    assert out.shape == (4, 1, 2, 3)
    assert out[0].tolist() == [[[0, 8, 16], [4, 12, 20]]]
    assert out[3].tolist() == [[[72, 80, 88], [76, 84, 92]]]


def test_all_to_all_with_uneven_splits() -> None:
    x = torch.stack([10.0 * r + torch.arange(6.0) for r in range(3)]).requires_grad_()
    out = dc.all_to_all(x, splits=[[3, 2, 1], [2, 2, 2], [1, 2, 3]])
    assert [t.tolist() for t in out] == [
        [0, 1, 2, 10, 11, 20],
        [3, 4, 12, 13, 21, 22],
        [5, 14, 15, 23, 24, 25],
    ]
    # Weighted by itself each element's gradient is its own value, wherever it went.
    sum((t * t.detach()).sum() for t in out).backward()
    assert torch.equal(x.grad, x.detach())


def test_gather_of_different_leading_sizes_has_no_padding() -> None:
    xs = [torch.ones(2, 3), 2 * torch.ones(1, 3), torch.empty(0, 3)]
    assert dc.all_gather(xs, dim=0).tolist() == [[1.0] * 3, [1.0] * 3, [2.0] * 3]


def test_calls_do_not_accumulate() -> None:
    assert [dc.all_reduce(torch.full((8, 1), 4.0)).item() for _ in range(2)] == [32.0, 32.0]


def test_scalars_are_stacked_by_join() -> None:
    assert dc.join([torch.tensor(123), torch.tensor(456)]).tolist() == [123, 456]
    assert dc.all_gather(torch.tensor([123, 456]).unsqueeze(1)).tolist() == [123, 456]


def test_one_rank_keeps_the_layout_of_many() -> None:
    x = torch.ones(1, 2, 3)
    shapes = [
        dc.all_gather(x.unsqueeze(1), dim=0).shape,
        dc.all_gather(x, dim=-1).shape,
        dc.all_gather(x, stacked=True).shape,
        dc.all_reduce(x).shape,
        dc.reduce_scatter(x).shape,
        dc.all_to_all(x).shape,
        dc.broadcast(x).shape,
        dc.scan(x).shape,
    ]
    one, many = (2, 3), (1, 2, 3)
    assert shapes == [many, one, many, one, many, many, one, many]


def test_results_of_channels_last_ranks_are_contiguous() -> None:
    x = torch.arange(2 * 3 * 4 * 2 * 2).view(2, 3, 4, 2, 2)
    xs = [t.contiguous(memory_format=torch.channels_last) for t in x.unbind(0)]
    assert_equal(dc.all_gather(xs, 1), oracles.all_gather(arrays(x), 1)[0], x.dtype)
    assert_equal(dc.all_reduce(xs), oracles.all_reduce(arrays(x))[0], x.dtype)
    assert_ranks(
        dc.all_to_all(xs, 1, 0, splits=[[1, 3]] * 2),
        oracles.all_to_all(arrays(x), 1, 0, [[1, 3]] * 2),
        x.dtype,
        as_list=True,
    )
    assert_ranks(dc.join(xs), arrays(x), x.dtype, as_list=False)
    assert_ranks(dc.shift(xs, wrap=False), oracles.shift(arrays(x), wrap=False), x.dtype, True)


def test_conjugate_views_are_resolved() -> None:
    x = torch.tensor([[1 + 2j], [3 - 1j]]).conj()
    assert dc.all_reduce(x).tolist() == [4 - 1j]
    assert dc.all_gather(x).tolist() == [1 - 2j, 3 + 1j]
    assert not dc.broadcast(x).is_conj()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16])
def test_moving_data_takes_dtypes_without_arithmetic(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 2], [3, 4]]).to(dtype)
    assert dc.all_gather(x).to(torch.int64).tolist() == [1, 2, 3, 4]
    assert dc.all_to_all(x).to(torch.int64).tolist() == [[1, 3], [2, 4]]
    assert dc.shift(x, wrap=False).to(torch.int64).tolist() == [[0, 0], [1, 2]]
