"""What the ranks of a group call a collective with: exchanged, compared, and checked.

Each rank learns what every other holds before data moves. So ranks that do not agree raise the same
error everywhere instead of waiting for each other, sizes may differ where a function allows it, and
backward runs on all ranks if it runs on one.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernelbench_dist.distributed_collectives.functional._maps import Ranks, join_flat

_HEADER = 512  # bytes that are enough for most calls


@dataclass(frozen=True)
class Met:
    """What the ranks hold, in rank order.

    held: tensors without data, for their shapes and dtypes; None where a rank gives none.
    own: what else each rank said.
    """

    ranks: Ranks
    held: list[Tensor | None]
    own: list[Any]
    device: torch.device
    needs_grad: bool

    @property
    def tensors(self) -> list[Tensor]:
        """held, where every rank gives a tensor."""
        return [t for t in self.held if t is not None]

    def tied(self, x: Tensor) -> Tensor:
        """x, which takes part in backward if it takes place on any rank."""
        return x.detach().requires_grad_() if self.needs_grad and not x.requires_grad else x


def ranks_of(fn: str, group: dist.ProcessGroup | None) -> Ranks:
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{fn}: this rank is not in the group; it takes a group that has it")
    return Ranks(group, rank, dist.get_world_size(group))


def meet(fn: str, ranks: Ranks, x: Tensor | None, alike: bool, own: Any = None, **same: Any) -> Met:
    """Tell the other ranks what this one calls fn with, and see that they agree.

    alike: take it that they hold what this one does.
    own: what may differ from rank to rank.
    same: the arguments that all must give alike.
    """
    grad_mode = torch.is_grad_enabled()
    call = {
        "fn": fn,
        "same": same,
        "own": own,
        "dtype": str(x.dtype).removeprefix("torch.") if x is not None else None,
        "shape": list(x.shape) if x is not None else None,
        "device": x.device.type if x is not None else None,
        "needs_grad": x is not None and x.requires_grad and grad_mode,
        "grad mode": grad_mode,
    }
    calls = [call] * ranks.size if alike else _exchange(call, ranks, x)
    _compare(fn, calls)
    held = {id(c): _held(c) for c in calls}  # ranks that call alike share one
    return Met(
        ranks,
        [held[id(c)] for c in calls],
        [c["own"] for c in calls],
        x.device if x is not None else _device_of(calls),
        any(c["needs_grad"] for c in calls),
    )


def _held(call: dict[str, Any]) -> Tensor | None:
    if call["shape"] is None:
        return None
    return torch.empty(call["shape"], dtype=getattr(torch, call["dtype"]), device="meta")


def _compare(fn: str, calls: Sequence[dict[str, Any]]) -> None:
    """Every difference from rank 0's call that no function allows."""
    first = calls[0]
    for r, call in enumerate(calls):
        if call is first:
            continue
        if call["fn"] != first["fn"]:
            raise ValueError(
                f"{first['fn']}: rank {r} calls {call['fn']} and rank 0 {first['fn']}; "
                "all ranks must call one function"
            )
        for name, value in call["same"].items():
            other = first["same"][name]
            if value != other:
                raise ValueError(
                    f"{fn}: rank {r} has {name}={value!r} and rank 0 has {other!r}; "
                    f"all ranks must give one {name}"
                )
    given = [(r, call) for r, call in enumerate(calls) if call["shape"] is not None]
    for r, call in given:
        q, base = given[0]
        if call["dtype"] != base["dtype"]:
            raise TypeError(
                f"{fn}: rank {r} has dtype torch.{call['dtype']} and rank {q} has "
                f"torch.{base['dtype']}; all ranks must have one dtype"
            )
        if call["device"] != base["device"]:
            raise TypeError(
                f"{fn}: rank {r} is on {call['device']} and rank {q} on {base['device']}; "
                "all ranks must be on one kind of device"
            )
    if any(call["needs_grad"] for call in calls):
        for r, call in enumerate(calls):
            if not call["grad mode"]:
                raise ValueError(
                    f"{fn}: rank {r} calls it without gradients, and another rank's tensor needs "
                    "one; all ranks must be in one grad mode"
                )


def _exchange(call: dict[str, Any], ranks: Ranks, x: Tensor | None) -> list[dict[str, Any]]:
    """The calls of all ranks: one small all_gather, and a second one for long calls."""
    text = json.dumps(call).encode()
    row = len(text).to_bytes(8, "little") + text
    device = _small_device(ranks, x)
    rows = _gather_bytes(row, _HEADER, ranks, device)
    longest = max(int.from_bytes(r[:8], "little") for r in rows) + 8
    if longest > _HEADER:
        rows = _gather_bytes(row, longest, ranks, device)
    texts = [r[8 : 8 + int.from_bytes(r[:8], "little")] for r in rows]
    read = {text: json.loads(text) for text in set(texts)}
    return [read[text] for text in texts]


def _gather_bytes(row: bytes, length: int, ranks: Ranks, device: torch.device) -> list[bytes]:
    sent = torch.frombuffer(bytearray(row[:length].ljust(length, b"\0")), dtype=torch.uint8)
    with torch.no_grad():
        got = join_flat(sent.to(device), ranks).cpu()
    flat = ctypes.string_at(got.data_ptr(), len(got))  # bytes(got.tolist()) takes 1 ms for 64 ranks
    return [flat[i : i + length] for i in range(0, len(flat), length)]


def _small_device(ranks: Ranks, x: Tensor | None) -> torch.device:
    """The CPU where the group carries it: that does not wait for a GPU."""
    if "cpu" in str(dist.get_backend_config(ranks.group)):
        return torch.device("cpu")
    return x.device if x is not None else torch.device("cuda", torch.cuda.current_device())


def _device_of(calls: Sequence[dict[str, Any]]) -> torch.device:
    """Where a rank that gives no tensor takes part: the current device of the others' kind."""
    kind = next(call["device"] for call in calls if call["device"] is not None)
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
