"""The key-value store of a run: a rank that waits for a key hands the baton on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from kernelbench_dist.distributed_collectives._current import current_rank
from kernelbench_dist.distributed_collectives.virtual._baton import Run
from kernelbench_dist.distributed_collectives.virtual._calls import users_line


class _Keys:
    def __init__(self, store: RunStore, keys: Sequence[str]) -> None:
        self.store = store
        self.keys = keys
        self.line = users_line()

    def ready(self) -> bool:
        return all(key in self.store.values for key in self.keys)

    def describe(self) -> str:
        # Without the prefix that torch gives to the keys of a group.
        missing = [k.rpartition("//")[2] for k in self.keys if k not in self.store.values]
        return f"waits in the store for {', '.join(map(repr, missing))} at {self.line}"


class RunStore(dist.Store):
    """All ranks' one store."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self.values[key] = _bytes(value)
        self.run.progress += 1

    def get(self, key: str) -> bytes:
        self._wait([key])
        return self.values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: Any) -> None:
        self.set(
            key,
            self.values.get(key, b"")
            + (value.encode() if isinstance(value, str) else bytes(value)),
        )

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        expected, desired = (
            v.encode() if isinstance(v, str) else bytes(v) for v in (expected, desired)
        )
        found = self.values.get(key)
        if found == expected or (found is None and not expected):
            self.set(key, desired)
        return self.values.get(key, expected)

    def add(self, key: str, value: int) -> int:
        total = int(self.values.get(key, b"0")) + value
        self.set(key, str(total))
        return total

    def check(self, keys: Sequence[str]) -> bool:
        if all(key in self.values for key in keys):
            return True
        if (rank := current_rank()) is not None:
            self.run.yield_turn(rank, _Keys(self, list(keys)))  # it may be a loop that polls
        return all(key in self.values for key in keys)

    def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
        self._wait(keys)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self.values)

    def set_timeout(self, timeout: Any) -> None:
        pass  # a wait that cannot end is found without one

    def has_extended_api(self) -> bool:
        return True

    def _wait(self, keys: Sequence[str]) -> None:
        waiting = _Keys(self, list(keys))
        rank = current_rank()
        if rank is not None and not waiting.ready():
            self.run.wait(rank, waiting)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
