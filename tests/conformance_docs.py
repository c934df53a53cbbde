"""docs/conformance.md, out of the tables in this folder: `python tests/conformance_docs.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from conformance import BACKENDS, DIFFERENCES, DTYPES, GAPS, OPERATIONS, gap
from conformance_calls import MOVING, REDUCING
from conformance_wrong import HANGS, TAKES

DOCUMENT = Path(__file__).parents[1] / "docs/conformance.md"
_NAMES = {"virtual": "virtual ranks", "gloo": "gloo", "nccl": "NCCL"}
_TEXT = """\
# Virtual ranks and real backends, call by call

`python tests/conformance_docs.py` makes this page out of the tables by which
`tests/test_conformance.py` holds virtual ranks and gloo together: each call, on random numbers, in
groups of 1 to 8 ranks and subgroups of them, gives both the same values (bit for bit, with
`order="gloo_ring"`), dtypes and effects on its arguments, except for what is listed here. As of
torch 2.13. NCCL is run on one rank, where it gives the values of a virtual rank (but for
`premul_sum`, whose factor NCCL leaves out of reduce_scatter on one rank; its bf16 gives zeros).
What is said of receives and of int16 on it is from torch's source.

## Who has what

`_stacked`: of a tensor with a dimension for the ranks. `_uneven`: of tensors of several sizes.
`_managed`: several in a coalescing manager. `mode="portable"` refuses what gloo or NCCL lacks.

{table}
Why:

{gaps}

## Where gloo has the call and does something else

{differences}

## What gloo takes, and virtual ranks refuse

{takes}

Where gloo waits for ever, or its process ends, virtual ranks raise: {hangs}.
"""


def document() -> str:
    return _TEXT.format(
        table=_table(),
        gaps="\n".join(
            f"- {_several(one.names)}{_some(one.ops)}, {_of_dtypes(one.dtypes)}"
            f"{' without elements' * one.empty}, not on "
            f"{' and '.join(_NAMES[b] for b in one.backends)}: {one.reason}."
            for one in GAPS
        ),
        differences="\n".join(
            f"- {_several(one.names)} ({', '.join(one.keys)}): {one.reason}." for one in DIFFERENCES
        ),
        takes="\n".join(f"- {_said(fn)}: {reason}." for fn, reason in TAKES),
        hangs=", ".join(map(_said, HANGS)),
    )


def _table() -> str:
    """A row for operations that have the same, a column for dtypes that do."""

    def cell(name: str, op: str, dtype: torch.dtype) -> str:
        has = [b for b in BACKENDS if not gap(b, name, op, dtype)]
        return "both" if len(has) == len(BACKENDS) else ", ".join(has) or "-"

    columns: dict[tuple[str, ...], list[torch.dtype]] = {}
    for dtype in DTYPES:
        column = tuple(cell(name, op, dtype) for name, op in OPERATIONS)
        columns.setdefault(column, []).append(dtype)
    cells = dict(zip(OPERATIONS, zip(*columns, strict=True), strict=True))
    names_of: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (name, op), row in cells.items():
        names_of.setdefault((op, row), []).append(name)
    ops_of: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (op, row), names in names_of.items():
        ops_of.setdefault((tuple(names), row), []).append(op)
    titles = [", ".join(_dtype(d) for d in dtypes) for dtypes in columns.values()]
    lines = [
        f"| operation | op | {' | '.join(titles)} |",
        f"| --- | --- |{' --- |' * len(titles)}",
        *(
            f"| {_several(names)} | {', '.join(ops)} | {' | '.join(row)} |"
            for (names, row), ops in ops_of.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _of_dtypes(dtypes: tuple[torch.dtype, ...]) -> str:
    return "any dtype" if dtypes == DTYPES else ", ".join(map(_dtype, dtypes))


def _several(names: Sequence[str]) -> str:
    """The names, or what is left out, whichever is shorter."""
    texts = [", ".join(f"`{name}`" for name in names)]
    for kind, of_kind in (
        ("all", [*REDUCING, *MOVING]),
        ("all reductions", [*REDUCING]),
        ("all others", [*MOVING]),
    ):
        if set(names) <= set(of_kind):
            others = [f"`{name}`" for name in of_kind if name not in names]
            texts.append(f"{kind} but {', '.join(others)}" if others else kind)
    return min(texts, key=len)


def _some(ops: tuple[str, ...]) -> str:
    return "" if "" in ops else f" of {', '.join(ops)}"


def _said(fn: Callable[[], None]) -> str:
    return fn.__name__.replace("_", " ")


if __name__ == "__main__":
    DOCUMENT.write_text(document())
