"""Reductions over ranks, as folds in rank order.

torch.sum and torch.prod do not specify their order, and torch.sum widens integers, so the sum of R
ranks here is ((x_0 + x_1) + x_2) + ... + x_{R-1}: the same bits on every run.
fp16 and bf16 are folded in float32 and rounded once.

The folds are torch operations, and their derivatives are the right ones without more work: each
factor of a product gets the product of the others, with no division, so zeros are safe; torch.where
sends the gradient of a minimum or maximum to the one winning rank.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

# A string of OPS, or the torch.distributed.ReduceOp member of that name. The type of the members
# is not given: torch.distributed may be left out of a build of torch.
Op: TypeAlias = Any

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)

_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}


def _minimum(acc: Tensor, t: Tensor) -> Tensor:
    # Not torch.minimum, which halves the gradient at a tie. A NaN, once in acc, stays.
    return torch.where((acc <= t) | acc.isnan(), acc, t)


def _maximum(acc: Tensor, t: Tensor) -> Tensor:
    return torch.where((acc >= t) | acc.isnan(), acc, t)


# For each op the step of the fold and the dtypes it has. + of bools is or, * of bools is and.
_Combine = Callable[[Tensor, Tensor], Tensor]
_OPS: dict[str, tuple[_Combine, tuple[torch.dtype, ...]]] = {
    "sum": (operator.add, (torch.bool, *_INTEGERS, *_FLOATS, *_COMPLEX)),
    "avg": (operator.add, (*_FLOATS, *_COMPLEX)),
    "prod": (operator.mul, (torch.bool, *_INTEGERS, *_FLOATS, *_COMPLEX)),
    "min": (_minimum, (torch.bool, *_INTEGERS, *_FLOATS)),
    "max": (_maximum, (torch.bool, *_INTEGERS, *_FLOATS)),
    "band": (operator.and_, (torch.bool, *_INTEGERS)),
    "bor": (operator.or_, (torch.bool, *_INTEGERS)),
    "bxor": (operator.xor, (torch.bool, *_INTEGERS)),
}

OPS = tuple(_OPS)
COMBINE = {name: combine for name, (combine, _) in _OPS.items()}

if dist.is_available():
    _REDUCE_OPS: list[tuple[Any, str]] = [
        (getattr(dist.ReduceOp, "PRODUCT" if name == "prod" else name.upper()), name)
        for name in OPS
    ]
else:
    _REDUCE_OPS = []


def check_op(fn: str, op: Op, dtype: torch.dtype, accepted: Sequence[str] = OPS) -> str:
    """The op's name, for an op that the function and the dtype have."""
    # By identity first: in torch 2.11 torch.compile can neither hash nor compare the members. By
    # equality for a copy, from pickle say, which torch.compile does not meet.
    name = next((name for member, name in _REDUCE_OPS if op is member), op)
    if _REDUCE_OPS and isinstance(op, dist.ReduceOp) and not torch.compiler.is_compiling():
        name = next((name for member, name in _REDUCE_OPS if op == member), op)
    if not isinstance(name, str) or name not in accepted:
        raise ValueError(
            f"{fn}: op {op!r} is not one of {', '.join(accepted)}, "
            "or the torch.distributed.ReduceOp member of that name"
        )
    dtypes = _OPS[name][1]
    if dtype not in dtypes:
        raise TypeError(
            f"{fn}: op {name!r} is not defined for {dtype}; it takes {', '.join(map(str, dtypes))}"
        )
    return name


def fold(xs: Sequence[Tensor], op: str) -> Tensor:
    """x_0 op x_1 op ... op x_{R-1}, from the left, in x's dtype; with R = 1, x_0 itself."""
    acc = functools.reduce(_OPS[op][0], xs[1:], _widen(xs[0], op))
    if op == "avg":
        # By a tensor: on a GPU, torch multiplies with the reciprocal of a number.
        acc = acc / torch.full((), len(xs), dtype=acc.dtype, device=acc.device)
    return acc.to(xs[0].dtype)


def prefixes(xs: Sequence[Tensor], op: str) -> list[Tensor]:
    """The R values the fold goes through; the first is x_0 itself."""
    accs = itertools.accumulate(xs[1:], _OPS[op][0], initial=_widen(xs[0], op))
    return [acc.to(xs[0].dtype) for acc in accs]


def identity(t: Tensor, op: str) -> Tensor:
    """A tensor like t full of the op's identity."""
    if op == "prod":
        return constant(t, 1)
    if op == "band":
        return ~constant(t, 0)
    if op in ("min", "max"):
        if t.dtype == torch.bool:
            return constant(t, op == "min")
        if t.dtype.is_floating_point:
            return constant(t, float("inf") if op == "min" else float("-inf"))
        limits = torch.iinfo(t.dtype)
        return constant(t, limits.max if op == "min" else limits.min)
    return constant(t, 0)


def constant(t: Tensor, value: float) -> Tensor:
    """A tensor like t full of one value, and a function of t to autograd, with derivative 0.

    torch.full_like would do for the value, but then a result that happens to be constant (a shift
    on one rank, say) would not require grad, and backward would work on some world sizes only.
    """
    if not (t.dtype.is_floating_point or t.dtype.is_complex):
        return torch.full_like(t, value, memory_format=torch.contiguous_format)
    everywhere = torch.ones((), dtype=torch.bool, device=t.device)
    return torch.where(everywhere, torch.full((), value, dtype=t.dtype, device=t.device), t)


def _widen(t: Tensor, op: str) -> Tensor:
    # Only the first rank is copied: type promotion takes each later one into the wider dtype.
    # min, max and the bit operations do not round.
    return t.to(_WIDE.get(t.dtype, t.dtype)) if op in ("sum", "avg", "prod") else t
