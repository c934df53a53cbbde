"""What the judge knows of a problem, and the inputs and seeds that it draws for it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class ProblemInfo:
    """What a problem file declares; see docs/harness.md."""

    name: str
    path: Path
    sha256: str
    constants: Mapping[str, int]
    sizes: Mapping[str, Mapping[str, int]]
    varies: tuple[str, ...]
    right_trivial_answers: frozenset[str]
    backward: bool
    deterministic: bool
    world_size: int


@dataclass
class Draw:
    """Inputs on all ranks: how they are packed, and the tensors (and cotangents) of each rank."""

    id: int
    seed: int
    packed: list[Any]
    counts: list[int]
    tensors: list[list[torch.Tensor]]

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the inputs of all ranks."""
        pairs = zip(self.tensors, self.counts, strict=True)
        return tuple(tuple(t.shape) for ts, n in pairs for t in ts[:n])

    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for ts in self.tensors for t in ts)


def new_seed() -> int:
    """A seed that nobody can guess."""
    return secrets.randbits(62)


def derived(seed: int, what: str) -> int:
    """A seed for one purpose, from which no other can be told."""
    digest = hashlib.blake2b(f"{seed}/{what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
