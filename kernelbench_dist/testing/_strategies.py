"""Hypothesis strategies for tensors of virtual ranks, of every dtype and every kind of strides.

Hypothesis draws only shapes, kinds and one seed; torch fills in the values, with a generator on the
CPU, so that a seed gives the same numbers on every device. Sizes are built by construction, never
filtered. Memory around a view is filled with NaN (integers: a large number), so that code which
reads beyond a view, or ignores its strides, gives a wrong answer. Values are finite unless asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from hypothesis import currently_in_test_context, note
from hypothesis import strategies as st

__all__ = [
    "LAYOUTS",
    "LinearProblem",
    "dtypes",
    "linear_problems",
    "rank_lists",
    "shapes",
    "stacked_tensors",
]

Shape: TypeAlias = tuple[int, ...]
DTypes: TypeAlias = torch.dtype | st.SearchStrategy[torch.dtype]
Device: TypeAlias = torch.device | str

LAYOUTS = ("contiguous", "transposed", "expanded", "sliced", "stepped", "offset")
"""Kinds of strides.

- contiguous: dense, row after row.
- transposed: dense, the last two dims exchanged in memory.
- expanded: one dim has stride 0, and so equal values.
- sliced: columns cut from a wider tensor; the last stride is 1, the row pitch is larger.
- stepped: every second element of the last dim.
- offset: dense, but one element after the start of the storage, so that it is not aligned.
"""

_KINDS: dict[str, tuple[torch.dtype, ...]] = {  # the simplest first: examples shrink towards it
    "floating": (torch.float32, torch.float64, torch.bfloat16, torch.float16),
    "integer": (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    "bool": (torch.bool,),
    "complex": (torch.complex64, torch.complex128),
}
_SEEDS = st.integers(0, 2**32 - 1)


def shapes(
    *, min_dims: int = 0, max_dims: int = 3, min_side: int = 0, max_side: int = 9
) -> st.SearchStrategy[Shape]:
    """Tensor shapes: min_dims to max_dims sizes, each from min_side to max_side elements.

    >>> from hypothesis import given
    >>> @given(shapes(min_dims=1, max_side=4))
    ... def sides_are_small(shape):
    ...     assert 1 <= len(shape) <= 3 and max(shape) <= 4
    >>> sides_are_small()
    """
    sides = st.integers(min_side, max_side)
    return st.lists(sides, min_size=min_dims, max_size=max_dims).map(tuple)


def dtypes(*kinds: str) -> st.SearchStrategy[torch.dtype]:
    """dtypes of the kinds "floating", "integer", "bool" and "complex"; floating by default.

    Raises:
        ValueError: for another kind.

    >>> from hypothesis import given
    >>> @given(dtypes("integer", "bool"))
    ... def no_floats(dtype):
    ...     assert not dtype.is_floating_point
    >>> no_floats()
    """
    for kind in kinds:
        if kind not in _KINDS:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(_KINDS)}")
    return st.sampled_from([dtype for kind in kinds or ("floating",) for dtype in _KINDS[kind]])


@st.composite
def stacked_tensors(
    draw: st.DrawFn,
    *,
    min_ranks: int = 1,
    max_ranks: int = 8,
    shape: Shape | st.SearchStrategy[Shape] | None = None,
    dtype: DTypes | None = None,
    layouts: Sequence[str] = LAYOUTS,
    requires_grad: bool = False,
    nonfinite: bool = False,
    device: Device = "cpu",
) -> torch.Tensor:
    """A stacked tensor (R, *s): row r is what rank r holds.

    Args:
        min_ranks: smallest R.
        max_ranks: largest R.
        shape: s, the shape on one rank, or a strategy for it; `shapes` by default.
        dtype: a dtype or a strategy for it; `dtypes` by default. Floats are standard normal,
            integers uniform over the whole dtype.
        layouts: which of `LAYOUTS`. A tensor with too few dims for one of them is contiguous.
        requires_grad: whether floating and complex tensors are leaves that require grad.
        nonfinite: whether about one element in eight is NaN or an infinity.
        device: where the tensor is; the values do not depend on it.

    Raises:
        ValueError: for an unknown layout.

    >>> from hypothesis import given
    >>> @given(stacked_tensors(max_ranks=4, shape=(3, 2)))
    ... def has_ranks_in_front(x):
    ...     assert x.dim() == 3 and 1 <= x.shape[0] <= 4 and x.isfinite().all()
    >>> has_ranks_in_front()
    """
    ranks = draw(st.integers(min_ranks, max_ranks))
    rest = _drawn(draw, shapes() if shape is None else shape)
    recipe = _Recipe(draw, dtype, layouts, nonfinite, device, requires_grad)
    return recipe.tensor(draw, "x", (ranks, *rest))


@st.composite
def rank_lists(
    draw: st.DrawFn,
    *,
    min_ranks: int = 1,
    max_ranks: int = 8,
    shape: Shape | st.SearchStrategy[Shape] | None = None,
    uneven_dim: int | None = 0,
    max_side: int = 9,
    dtype: DTypes | None = None,
    layouts: Sequence[str] = LAYOUTS,
    requires_grad: bool = False,
    nonfinite: bool = False,
    device: Device = "cpu",
) -> list[torch.Tensor]:
    """A list of R tensors, one a rank, of one dtype; each may have a layout of its own.

    Args:
        min_ranks: smallest R.
        max_ranks: largest R.
        shape: the shape on one rank, or a strategy for it; one to three dims by default.
        uneven_dim: the dim whose size differs from rank to rank, 0 to ``max_side`` elements; may be
            negative. None: all ranks have the same shape.
        max_side: the largest size along ``uneven_dim``.
        dtype, layouts, requires_grad, nonfinite, device: as in `stacked_tensors`.

    Raises:
        ValueError: for an unknown layout, or a shape that has no ``uneven_dim``.

    >>> from hypothesis import given
    >>> @given(rank_lists(shape=(0, 3), max_side=5))
    ... def differ_in_rows_only(xs):
    ...     assert all(x.shape[0] <= 5 and x.shape[1:] == (3,) for x in xs)
    >>> differ_in_rows_only()
    """
    ranks = draw(st.integers(min_ranks, max_ranks))
    if shape is None:
        needed = 1 if uneven_dim is None else (uneven_dim + 1 if uneven_dim >= 0 else -uneven_dim)
        shape = shapes(min_dims=needed, max_dims=max(3, needed))
    sides = list(_drawn(draw, shape))
    if uneven_dim is not None and not -len(sides) <= uneven_dim < len(sides):
        raise ValueError(f"uneven_dim={uneven_dim} is not a dim of the shape {tuple(sides)}")
    recipe = _Recipe(draw, dtype, layouts, nonfinite, device, requires_grad)
    tensors = []
    for rank in range(ranks):
        if uneven_dim is not None:
            sides[uneven_dim] = draw(st.integers(0, max_side))
        tensors.append(recipe.tensor(draw, f"rank {rank}", tuple(sides)))
    return tensors


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """The operands of all-gather + Linear; ``repr`` is short, and says how they were made."""

    x: torch.Tensor
    """(R, *b, H)"""
    weight: torch.Tensor
    """(K, R*H)"""
    bias: torch.Tensor | None
    """(K,) or none"""
    recipe: str
    """sizes, dtype, layouts and seed in words"""

    @property
    def args(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return self.x, self.weight, self.bias

    def __repr__(self) -> str:
        return f"LinearProblem({self.recipe})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Hypothesis prints a failing example by this, and would spell out a dataclass's fields.
        printer.text(repr(self))


@st.composite
def linear_problems(
    draw: st.DrawFn,
    *,
    max_ranks: int = 64,
    max_side: int = 33,
    max_batch_dims: int = 3,
    dtype: DTypes | None = None,
    layouts: Sequence[str] = LAYOUTS,
    bias: bool | None = None,
    requires_grad: bool | None = None,
    nonfinite: bool = False,
    device: Device = "cpu",
) -> LinearProblem:
    """Operands x (R, *b, H), weight (K, R*H) and bias (K,) or none, all standard normal.

    Args:
        max_ranks: R is from 1 to this.
        max_side: H, K and a single batch dim are from 0 to this; of several batch dims each is so
            small that together they hold no more rows than about this.
        max_batch_dims: the number of dims in b is from 0 to this.
        dtype: a dtype or a strategy for it; the floating `dtypes` by default.
        layouts: which of `LAYOUTS`; each operand has one of its own.
        bias: True or False; None draws either.
        requires_grad: True or False for all three; None draws a subset of them.
        nonfinite: whether about one element in eight is NaN or an infinity.
        device: where the operands are; the values do not depend on it.

    Raises:
        ValueError: for an unknown layout.

    >>> from hypothesis import given
    >>> @given(linear_problems(max_ranks=4, max_side=8))
    ... def weight_fits(p):
    ...     assert p.weight.shape[1] == p.x.shape[0] * p.x.shape[-1]
    >>> weight_fits()
    """
    side = st.integers(0, max_side)
    ranks = draw(st.integers(1, max_ranks))
    batch_dims = draw(st.integers(0, max_batch_dims))
    row = st.integers(0, round(max_side ** (1 / max(batch_dims, 1))))
    batch = [draw(row) for _ in range(batch_dims)]
    features, outputs = draw(side), draw(side)
    recipe = _Recipe(draw, dtype, layouts, nonfinite, device, requires_grad)
    x = recipe.tensor(draw, "x", (ranks, *batch, features))
    weight = recipe.tensor(draw, "weight", (outputs, ranks * features))
    has_bias = draw(st.booleans()) if bias is None else bias
    b = recipe.tensor(draw, "bias", (outputs,)) if has_bias else None
    return LinearProblem(x, weight, b, str(recipe))


def _drawn(draw: st.DrawFn, value: Any) -> Any:
    return draw(value) if isinstance(value, st.SearchStrategy) else value


class _Recipe:
    """How the tensors of one example are made: dtype and seed drawn once, a layout for each."""

    def __init__(
        self,
        draw: st.DrawFn,
        dtype: DTypes | None,
        layouts: Sequence[str],
        nonfinite: bool,
        device: Device,
        requires_grad: bool | None,
    ) -> None:
        for layout in layouts:
            if layout not in LAYOUTS:
                raise ValueError(f"layout {layout!r} is not one of {', '.join(LAYOUTS)}")
        self.dtype = _drawn(draw, dtypes() if dtype is None else dtype)
        self.layouts = st.sampled_from(layouts)
        self.nonfinite = nonfinite
        self.device = device
        self.requires_grad = requires_grad
        seed = draw(_SEEDS)
        self.generator = torch.Generator().manual_seed(seed)
        self.words = [f"{self.dtype}, seed {seed}"]

    def tensor(self, draw: st.DrawFn, name: str, shape: Shape) -> torch.Tensor:
        layout = draw(self.layouts)
        dim = draw(st.integers(0, len(shape) - 1)) if layout == "expanded" and shape else 0
        values = _values(shape, self.dtype, self.generator, self.nonfinite).to(self.device)
        tensor = _laid_out(values, layout, dim)
        words = f"{name} {tuple(shape)} {layout}"
        if self.dtype.is_floating_point or self.dtype.is_complex:
            wanted = self.requires_grad
            tensor.requires_grad_(draw(st.booleans()) if wanted is None else wanted)
            words += " requires_grad" if tensor.requires_grad else ""
        self.words.append(words)
        if currently_in_test_context():  # a tensor's own repr does not tell its strides
            note(f"drawn: {words}, {self.words[0]}")
        return tensor

    def __str__(self) -> str:
        return ", ".join([*self.words[1:], self.words[0]])


def _values(
    shape: Shape, dtype: torch.dtype, generator: torch.Generator, nonfinite: bool
) -> torch.Tensor:
    if not (dtype.is_floating_point or dtype.is_complex):
        bits = torch.empty(shape, dtype=torch.int64, device="cpu")
        bits.random_(-(2**63), None, generator=generator)  # all 64 bits
        return (bits & 1).bool() if dtype == torch.bool else bits.to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    values = torch.randn(shape, dtype=wide, device="cpu", generator=generator)
    if nonfinite:
        pick = torch.randint(24, shape, device="cpu", generator=generator)
        for which, value in enumerate((math.nan, math.inf, -math.inf)):
            values[pick == which] = value
    return values.to(dtype)


def _laid_out(values: torch.Tensor, layout: str, dim: int) -> torch.Tensor:
    """A tensor of the same values in memory of the given layout (expanded: of row 0's values)."""
    shape = values.shape
    if layout == "transposed" and values.dim() >= 2:
        return values.mT.contiguous().mT
    if layout == "expanded" and values.dim() >= 1 and shape[dim] > 0:
        return values.narrow(dim, 0, 1).contiguous().expand(shape)
    if layout in ("sliced", "stepped") and values.dim() >= 1:
        width = shape[-1]
        room = _surroundings((*shape[:-1], 2 * width + 1), values)
        view = room[..., 1 : width + 1] if layout == "sliced" else room[..., 1 : 2 * width + 1 : 2]
        return view.copy_(values)
    if layout == "offset":
        return _surroundings((values.numel() + 1,), values)[1:].view(shape).copy_(values)
    return values.contiguous()


def _surroundings(shape: Shape, like: torch.Tensor) -> torch.Tensor:
    if like.dtype.is_floating_point or like.dtype.is_complex:
        return torch.full(shape, math.nan, dtype=like.dtype, device=like.device)
    largest = True if like.dtype == torch.bool else torch.iinfo(like.dtype).max
    return torch.full(shape, largest, dtype=like.dtype, device=like.device)
