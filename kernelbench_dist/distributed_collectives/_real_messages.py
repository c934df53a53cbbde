"""What goes from process to process: results on the CPU, and failures."""

from __future__ import annotations

import io
import pickle
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernelbench_dist.distributed_collectives._errors import RankError


class _Pickler(pickle.Pickler):
    """Moves each tensor to the CPU, wherever it is in an object."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        if not isinstance(obj, torch.nn.Parameter) and type(obj) is not torch.Tensor:
            if type(obj).__name__ == "DTensor":
                raise TypeError(
                    "a DTensor cannot leave its rank, since its mesh is of that rank's groups: "
                    "return x.full_tensor() or x.to_local()"
                )
            return NotImplemented
        x = obj.detach()
        if x.device.type not in ("cpu", "meta"):
            x = x.cpu()
        if x.layout is torch.strided and not x.is_quantized and x.device.type == "cpu":
            if x.is_conj() or x.is_neg():
                x = x.resolve_conj().resolve_neg()
            if x.nbytes < x.untyped_storage().nbytes():
                x = x.clone()  # a view would take its whole storage with it
        return x.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def dumps(obj: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(obj)
    return file.getvalue()


class RankTraceback(Exception):  # noqa: N818 - it is no error of its own
    """The traceback of another process, as text: the cause of the exception that came from it."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass
class Failure:
    """What a rank raised, in a form that always gets through, or how it died."""

    rank: int
    said: str
    when: float  # by the system's monotonic clock, which all processes of a machine share
    error: bytes | None = None
    trace: str = ""
    lost_peer: bool = False  # it may say no more than that another rank is gone

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Failure:
        when = time.monotonic()
        said = "".join(traceback.format_exception_only(type(error), error)).strip()
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            pickled = dumps(error)
            pickle.loads(pickled)  # an exception with an __init__ of its own may fail only here
        except Exception:
            pickled = None
        lost = re.search(r"gloo/transport|NCCL|(closed|reset) by peer|Broken pipe", said)
        return cls(rank, said, when, pickled, trace, bool(lost))

    def exception(self, world_size: int, original: BaseException | None = None) -> BaseException:
        """What to raise; `original` where it was raised in this process."""
        cause = original
        if cause is None and self.trace:
            try:
                assert self.error is not None
                cause = pickle.loads(self.error)
            except Exception:
                cause = RuntimeError(self.said)
            assert cause is not None
            cause.__cause__ = RankTraceback(self.trace)
        if isinstance(cause, RankError):
            return cause
        error = RankError(self.rank, f"rank {self.rank} of {world_size} failed: {self.said}")
        error.__cause__ = cause
        return error


def result_of(program: Callable[[], Any]) -> bytes:
    try:
        return dumps(program())
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
        return dumps(None)
