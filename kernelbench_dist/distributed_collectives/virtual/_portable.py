"""What gloo or NCCL lacks of what virtual ranks have: mode="portable" refuses it.

A row is there only where its backend is known to refuse such a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelbench_dist.distributed_collectives.virtual._calls import Call

_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
_MESSAGES = ("send", "recv")  # gloo moves their bytes, whatever they are
_GLOO_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
)  # fmt: skip
_NO_TENSOR = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class Lack:
    """Some calls that a backend refuses.

    has_not: whether a call, with the first tensor in it (bytes, where it has none), is one; a text
        says what is accepted.
    """

    backend: str
    what: str
    has_not: Callable[[Call, Tensor], bool | str]


def _operation(call: Call) -> str:
    return call.name.split()[0]


def _several_shapes(call: Call) -> bool:
    return any(len({t.shape for t in row}) > 1 for row in (call.inputs, call.outputs))


def _stacked(call: Call) -> str:
    if call.name == "all_gather_single":
        pairs = zip(call.inputs, call.outputs, strict=True)
    elif call.name == "reduce_scatter_single":
        pairs = zip(call.outputs, call.inputs, strict=True)
    else:
        return ""
    for part, whole in pairs:
        if part.dim() and whole.dim() > part.dim():
            return f"{(whole.shape[0] * part.shape[0], *part.shape[1:])} is accepted"
    return ""


LACKS = [
    Lack(
        "gloo",
        "this dtype",
        lambda call, t: t.dtype not in _GLOO_DTYPES and _operation(call) not in _MESSAGES,
    ),
    Lack("NCCL", "this dtype", lambda call, t: t.dtype in (torch.int16, torch.uint16)),
    Lack("gloo", "this op", lambda call, t: call.op == "premul_sum"),
    Lack("NCCL", "this op", lambda call, t: call.op in ("band", "bor", "bxor")),
    Lack(
        "gloo", "products of complex numbers", lambda call, t: call.op == "prod" and t.is_complex()
    ),
    Lack(
        "gloo",
        "gather of complex numbers",
        lambda call, t: call.name == "gather" and t.is_complex(),
    ),
    Lack("gloo", "the stacked form", lambda call, t: _stacked(call)),
    Lack(
        "gloo",
        "tensors of several shapes in one list",
        lambda call, t: call.name in ("all_gather", "all_to_all") and _several_shapes(call),
    ),
    Lack(
        "NCCL",
        "this call of complex numbers",
        lambda call, t: (
            t.is_complex() and (call.name == "gather" or (call.name, call.op) == ("reduce", "prod"))
        ),
    ),
    Lack("NCCL", "receives from any rank", lambda call, t: call.name == "recv from any rank"),
    Lack(
        "NCCL",
        "this call",
        lambda call, t: call.name in ("all_gather_coalesced", "monitored_barrier"),
    ),
]
if _TORCH < (2, 13):
    LACKS.append(
        Lack(
            "gloo",
            "all_to_all of lists before torch 2.13",
            lambda call, t: call.name == "all_to_all",
        )
    )


def check(call: Call) -> None:
    first = next(iter((*call.inputs, *call.outputs)), _NO_TENSOR)
    found = []
    for one in LACKS:
        has_not = one.has_not(call, first)
        if has_not:
            hint = f" ({has_not})" if isinstance(has_not, str) else ""
            found.append(f"{one.backend} lacks {one.what}{hint}")
    if found:
        raise ValueError(
            f"{call.what()} at {call.line}: {', '.join(found)}; mode='portable' accepts what gloo "
            "and NCCL both have"
        )
