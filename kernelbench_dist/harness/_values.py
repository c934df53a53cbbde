"""Compare what a submission returned with the exact values, and name what is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelbench_dist._compare import MatchReport, Tally
from kernelbench_dist.harness._answers import RunAnswer
from kernelbench_dist.harness._channel import dtype_name
from kernelbench_dist.harness._oracle import NO_BOUND
from kernelbench_dist.harness._results import ErrorMap, Output
from kernelbench_dist.harness._verdicts import Verdict

_MOST_TILES = 32  # of an error map, in either direction


@dataclass(frozen=True)
class Expected:
    """The exact outputs on one rank: float64 (integers as they are), and each element's bound."""

    names: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    values: tuple[torch.Tensor, ...]
    bounds: tuple[torch.Tensor, ...]

    def sizes_bytes(self) -> list[int]:
        """Of the outputs in their own dtypes."""
        pairs = zip(self.values, self.dtypes, strict=True)
        return [v.numel() * d.itemsize for v, d in pairs]

    def most_bytes(self) -> int:
        """What an answer may hold: more than is right, so that it can be said what is wrong."""
        return 2 * sum(self.sizes_bytes()) + (1 << 20)

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors are as many as the outputs, of their dtypes and shapes."""
        right = [(d, v.shape) for d, v in zip(self.dtypes, self.values, strict=True)]
        return [(t.dtype, t.shape) for t in tensors] == right


@dataclass(frozen=True)
class Fault:
    """What is wrong with a result."""

    verdict: Verdict
    reason: str


def wrong_kind(expected: Expected, answer: RunAnswer, device: str) -> Fault | None:
    """What is wrong with the number, types, shapes, dtypes or device of outputs, if anything."""
    for got in answer.outputs:
        if got.not_a_tensor is not None:
            return Fault(
                Verdict.INCORRECT_SHAPE,
                f"{got.name} is a {got.not_a_tensor}; a plain torch.Tensor is accepted",
            )
    if len(answer.outputs) != len(expected.names) or len(answer.shapes) != len(answer.outputs):
        names = ", ".join(got.name for got in answer.outputs) or "nothing"
        return Fault(
            Verdict.INCORRECT_SHAPE,
            f"it returned {names}, where the reference gives {', '.join(expected.names)}",
        )
    for name, value, (_, dims) in zip(expected.names, expected.values, answer.shapes, strict=True):
        if tuple(dims) != tuple(value.shape):
            return Fault(
                Verdict.INCORRECT_SHAPE,
                f"{name} has shape {_dims(dims)}, where the reference has {_dims(value.shape)}",
            )
    for name, dtype, got, (its, _) in zip(
        expected.names, expected.dtypes, answer.outputs, answer.shapes, strict=True
    ):
        right = dtype_name(dtype)
        if its != right:
            return Fault(
                Verdict.INCORRECT_DTYPE, f"{name} is {its}, where the reference is {right}"
            )
        if got.device != device:
            return Fault(Verdict.INCORRECT_DTYPE, f"{name} is on {got.device}, expected {device}")
        if not got.is_real:
            return Fault(Verdict.INCORRECT_SHAPE, f"{name} has no memory of its own")
    return None


def compare(
    expected: Expected, got: Sequence[torch.Tensor], rank: int
) -> tuple[list[Output], Fault | None]:
    """Every output against its exact values; the fault is that of the first wrong output."""
    outputs, fault = [], None
    for name, dtype, value, bound, mine in zip(
        expected.names, expected.dtypes, expected.values, expected.bounds, got, strict=True
    ):
        eps = torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 1.0
        free = bound >= NO_BOUND
        # NaN and the other infinity stand there too, and no bound is wide enough for them.
        settled = torch.where(free, value.to(mine.dtype), mine) if bool(free.any()) else mine
        tally = Tally(1.0)
        tally.add(settled, value, bound / eps, None)
        report = tally.report()
        outputs.append(_output(name, rank, mine, report))
        if report.mismatches and fault is None:
            finite = torch.isfinite(value)
            not_finite = bool((finite & ~free & ~torch.isfinite(mine)).any())
            verdict = Verdict.NOT_FINITE if not_finite else Verdict.INCORRECT_VALUES
            fault = Fault(verdict, _reason(name, rank, mine, report))
    return outputs, fault


def with_map(
    outputs: Sequence[Sequence[Output]],
    expected: Sequence[Expected],
    got: Sequence[Sequence[torch.Tensor]],
) -> list[Output]:
    """The outputs of all ranks in one list; the worst one in its bound has its error map."""
    flat = [(r, i, output) for r, own in enumerate(outputs) for i, output in enumerate(own)]
    shown = [output for _, _, output in flat]
    ranked = [(o.share_of_bound, at) for at, o in enumerate(shown) if o.share_of_bound is not None]
    if ranked:
        at = max(ranked, key=lambda item: item[0])[1]
        rank, i, output = flat[at]
        e = expected[rank]
        found = error_map(got[rank][i], e.values[i], e.bounds[i])
        shown[at] = output.model_copy(update={"error_map": found})
    return shown


def error_map(got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> ErrorMap | None:
    """The largest error over its bound in each tile of an output; None where it is empty.

    An element that is not finite and should be is off by infinity, and so is a wrong integer.
    """
    if not got.numel():
        return None
    columns = got.shape[-1] if got.ndim else 1
    rows = got.numel() // columns
    tile_rows, tile_columns = (-(-n // _MOST_TILES) for n in (rows, columns))
    flat = [t.reshape(rows, columns) for t in (got, exact, bound)]
    # In strips of the longer side, so that a large output does not need its size once more.
    if rows >= columns:
        worst = _worst_tiles(flat, tile_rows, tile_columns)
    else:
        turned = _worst_tiles([t.T for t in flat], tile_columns, tile_rows)
        worst = [list(row) for row in zip(*turned, strict=True)]
    return ErrorMap(
        rows=rows,
        columns=columns,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        worst=tuple(map(tuple, worst)),
    )


def _worst_tiles(
    tensors: Sequence[torch.Tensor], tile_rows: int, tile_columns: int
) -> list[list[float]]:
    """Of results, exact values and bounds in two dims: the largest share of each tile."""
    worst = []
    for strips in zip(*(t.split(tile_rows) for t in tensors), strict=True):
        mine, right, allowed = strips
        wide = torch.complex128 if mine.is_complex() else torch.float64
        error = (mine.to(wide) - right.to(wide)).abs()
        settled = (mine == right) | (torch.isnan(mine) & torch.isnan(right)) | (allowed >= NO_BOUND)
        share = torch.where(settled, 0.0, error / allowed.to(torch.float64))
        most = torch.nan_to_num(share, nan=math.inf, posinf=math.inf).amax(0)
        worst.append([_three_digits(float(part.max())) for part in most.split(tile_columns)])
    return worst


def _three_digits(share: float) -> float:
    rounded = float(f"{share:.3g}")
    return 1.01 if rounded <= 1 < share else rounded  # what is wrong stays so


def passes(expected: Expected, got: Sequence[torch.Tensor]) -> bool:
    """Whether values of any dtype would pass for the outputs (gradients left out)."""
    for name, dtype, value, bound, mine in zip(
        expected.names, expected.dtypes, expected.values, expected.bounds, got, strict=True
    ):
        if not name.startswith("output"):
            continue
        if mine.shape != value.shape:
            return False
        eps = torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 1.0
        tally = Tally(1.0)
        tally.add(mine.to(dtype), value, bound / eps, None)
        if tally.mismatches:
            return False
    return True


def same_bits(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Whether two runs gave the same bits; NaNs must be the same too."""
    return all(
        torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))
        for x, y in zip(a, b, strict=True)
    )


def differ_beyond(expected: Expected, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Whether two runs differ from each other by more than either may from the exact values."""
    for x, y, bound in zip(a, b, expected.bounds, strict=True):
        wide = torch.complex128 if x.is_complex() else torch.float64
        apart = (x.to(wide) - y.to(wide)).abs()
        same = torch.isnan(x) & torch.isnan(y) | (x == y)
        if bool((~same & ~(apart <= 2 * bound)).any()):
            return True
    return False


def _output(name: str, rank: int, tensor: torch.Tensor, report: MatchReport) -> Output:
    return Output(
        name=name,
        rank=rank,
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor.dtype),
        elements=report.elements,
        mismatches=report.mismatches,
        max_abs_error=report.max_abs_error,
        mean_abs_error=report.mean_abs_error,
        max_rel_error=report.max_rel_error,
        worst_index=report.worst_index,
        worst_result=_plain(report.worst_result),
        worst_expected=_plain(report.worst_expected),
        worst_error=_plain(report.worst_error),
        worst_bound=_plain(report.worst_bound),
        worst_ulp=_plain(report.worst_ulp),
    )


def _plain(value: Any) -> Any:
    """JSON has no complex numbers, and no infinities."""
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


def _reason(name: str, rank: int, tensor: torch.Tensor, report: MatchReport) -> str:
    where = f"{name} on rank {rank}" if rank else name
    allowed = f"{report.worst_bound:.3g} is allowed"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        allowed = "integers and bools must be equal"
    return (
        f"{where}: {report.mismatches} of {report.elements} elements are wrong, the worst at "
        f"{list(report.worst_index or ())}: {report.worst_result}, expected "
        f"{report.worst_expected}; {allowed}"
    )


def _dims(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"
