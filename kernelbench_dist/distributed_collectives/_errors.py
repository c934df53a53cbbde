"""What goes wrong in a program on R ranks."""

from __future__ import annotations


class RankError(RuntimeError):
    """A rank failed. `rank` says which; `__cause__` is what it raised, where it raised."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.rank, str(self))


class DeadlockError(RankError):
    """No rank can go on; `rank` is the lowest that waits."""


class MismatchError(RankError):
    """Ranks do not agree in a call; `rank` is the one whose call does not fit the earlier ones."""
