"""The table of what each backend has: operation x dtype x backend.

What gloo lacks is compared with gloo; what gloo or NCCL lacks, with what mode="portable" refuses.

What is not in GAPS, every backend has; what is not in DIFFERENCES is the same, bit for bit.
The calls themselves are in conformance_calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from conformance_calls import MOVING, REDUCE_OPS, REDUCING, Case

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64,)
DTYPES = (torch.bool, *INTEGERS, *FLOATS, *COMPLEX)
BACKENDS = ("virtual", "gloo")
OPERATIONS = [*((name, op) for name in REDUCING for op in REDUCE_OPS), *((n, "") for n in MOVING)]

_ALL_REDUCE = ("all_reduce", "all_reduce_coalesced", "all_reduce_managed")
_STACKED = ("all_gather_into_tensor_stacked", "reduce_scatter_tensor_stacked")
_UNEVEN = ("all_gather_uneven", "all_to_all_uneven")
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
_WITHOUT_DTYPE = (
    "barrier", "monitored_barrier", "broadcast_object_list", "all_gather_object", "gather_object",
    "scatter_object_list", "send_recv_object_list",
)  # fmt: skip
# gloo moves the bytes of these, whatever they are.
_BYTES = (
    "send_recv", "recv_any_source", "isend_irecv", "batch_isend_irecv", *_WITHOUT_DTYPE,
)  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """A call that raises on every rank, at each world size of 2 or more.

    empty: only with tensors without elements, and only on the ranks that have a part in it; such a
    gap is not in the table, which is about operations and dtypes.
    """

    backends: tuple[str, ...]
    names: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    reason: str
    ops: tuple[str, ...] = ("", *REDUCE_OPS)
    empty: bool = False

    def has(self, backend: str, name: str, op: str, dtype: torch.dtype) -> bool:
        in_row = backend in self.backends and name in self.names
        return in_row and op in self.ops and dtype in self.dtypes


GAPS = [
    Gap(
        BACKENDS,
        REDUCING,
        (torch.bool, *INTEGERS),
        "an average of integers is no integer",
        ("avg",),
    ),
    Gap(
        BACKENDS,
        REDUCING,
        (torch.bool, *INTEGERS),
        "the factor is a float, and NCCL too has premul_sum for floats alone",
        ("premul_sum",),
    ),
    Gap(
        BACKENDS,
        REDUCING,
        (*FLOATS, *COMPLEX),
        "the bits of a float are no number",
        ("band", "bor", "bxor"),
    ),
    Gap(BACKENDS, REDUCING, COMPLEX, "complex numbers have no order", ("min", "max")),
    Gap(
        BACKENDS,
        _ALL_REDUCE,
        COMPLEX,
        "torch.distributed has it not: it hands complex numbers on as pairs of real ones",
        ("product",),
    ),
    Gap(("gloo",), REDUCING, COMPLEX, "gloo reduces complex numbers as real ones", ("product",)),
    Gap(("gloo",), REDUCING, DTYPES, "gloo has no premul_sum; NCCL has", ("premul_sum",)),
    Gap(("gloo",), _STACKED, DTYPES, "gloo joins on the first dimension only; NCCL stacks too"),
    Gap(("gloo",), _UNEVEN, DTYPES, "gloo asks that all tensors of a list have one shape"),
    *(
        [Gap(("gloo",), ("all_to_all",), DTYPES, "gloo has no list form before torch 2.13")]
        if TORCH < (2, 13)
        else []
    ),
    Gap(("gloo",), ("gather",), COMPLEX, "gloo's gather has no complex numbers"),
    Gap(
        ("gloo",),
        tuple(n for n in (*REDUCING, *MOVING) if n not in _BYTES),
        (torch.int16,),
        "gloo has no int16",
    ),
    Gap(
        ("gloo",),
        ("recv_any_source",),
        DTYPES,
        "gloo cannot receive from any source without a place for an element",
        empty=True,
    ),
    # As test_spmd_gpu.py sees it on one rank, and by the source of what needs several.
    Gap(
        ("nccl",),
        tuple(n for n in (*REDUCING, *MOVING) if n not in _WITHOUT_DTYPE),
        (torch.int16,),
        "NCCL has no int16",
    ),
    Gap(("nccl",), REDUCING, (torch.bool, *INTEGERS), "NCCL has no bits", ("band", "bor", "bxor")),
    Gap(("nccl",), ("recv_any_source",), DTYPES, "a receive names its source in NCCL"),
    Gap(("nccl",), ("reduce",), COMPLEX, "NCCL reduces complex numbers as real ones", ("product",)),
    Gap(("nccl",), ("gather",), COMPLEX, "NCCL's gather has no complex numbers"),
    Gap(("nccl",), ("all_gather_coalesced",), DTYPES, "torch has no such call for NCCL"),
    Gap(("nccl",), ("monitored_barrier",), DTYPES, "torch has it for gloo alone"),
]


@dataclass(frozen=True)
class Difference:
    """Something seen of a call (keys of what `call` gives) that is not the same on both.

    example: where it shows, at world size 2.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]
    reason: str
    example: Case


DIFFERENCES = [
    Difference(
        ("reduce",),
        ("x off the root",),
        "gloo leaves sums of some of the ranks in the tensors of ranks that are not the root; "
        "virtual ranks leave these tensors as they are",
        Case("reduce", "sum"),
    ),
    Difference(
        ("reduce",),
        ("future",),
        "off the root gloo's future holds that tensor; a virtual rank's holds none",
        Case("reduce", "sum", how="future"),
    ),
    Difference(
        ("reduce_scatter", "reduce_scatter_uneven", "reduce_scatter_tensor"),
        ("future",),
        "gloo's work has no future; NCCL's and a virtual rank's have",
        Case("reduce_scatter", "sum", how="future"),
    ),
    Difference(
        ("reduce_scatter", "reduce_scatter_uneven", "reduce_scatter_tensor"),
        ("completed",),
        "gloo's work never says that it is completed, even after wait",
        Case("reduce_scatter_tensor", "sum", how="work"),
    ),
    Difference(
        ("all_gather_into_tensor",),
        ("future",),
        "gloo's future holds a part for each rank; NCCL's and a virtual rank's hold the output",
        Case("all_gather_into_tensor", how="future"),
    ),
]


def gap(backend: str, name: str, op: str, dtype: torch.dtype) -> Gap | None:
    """Why a backend does not have a call; None where it has."""
    return next((g for g in GAPS if not g.empty and g.has(backend, name, op, dtype)), None)


def cells(name: str) -> Iterator[Case]:
    """All of an operation's row, or rows."""
    for operation, op in OPERATIONS:
        if operation == name:
            for dtype in DTYPES:
                yield Case(name, op, dtype)


def lacks(backend: str, case: Case) -> bool:
    empty = 0 in case.shape
    return any(
        g.has(backend, case.name, case.op, case.dtype) and (empty or not g.empty) for g in GAPS
    )


def comparable(case: Case, seen: dict[str, Any]) -> dict[str, Any]:
    """What is seen of a call, without what is known to differ."""
    if "raised" in seen or not seen:
        return {"raised": "raised" in seen}
    known = {key for one in DIFFERENCES if case.name in one.names for key in one.keys}
    kept = {key: value for key, value in seen.items() if key not in known}
    kept["changed"] = [name for name in seen["changed"] if name not in known]
    return kept
