"""Ranks of a distributed program on one device."""

from kernelbench_dist._version import __version__

__all__ = ["__version__"]
