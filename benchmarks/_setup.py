"""What the benchmark scripts share: dtypes by name, the commit, and where a result is kept."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
DTYPES = ("float32", "tf32", "bfloat16", "float16", "float64")


@contextmanager
def dtype_named(name: str) -> Iterator[tuple[torch.dtype, float]]:
    """The torch dtype and its eps. "tf32" is float32 with torch's flag for it set."""
    before = torch.backends.cuda.matmul.allow_tf32
    # This older name of the flag sets the newer one as well; mixing both is what torch refuses.
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        dtype: torch.dtype = torch.float32 if name == "tf32" else getattr(torch, name)
        yield dtype, 2.0**-10 if name == "tf32" else torch.finfo(dtype).eps
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def parse_dtypes(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(DTYPES)}")
    return list(dict.fromkeys(names))


def output_of(*command: str) -> str:
    """What it prints, or nothing where it fails."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()
    return ""


def commit() -> str:
    """GIT_COMMIT, for a copy without git's folder; else what git says."""
    said = os.environ.get("GIT_COMMIT")
    return said or output_of("git", "-C", str(HERE), "rev-parse", "HEAD") or "unknown"


def file_names_only(arguments: list[str]) -> list[str]:
    """The arguments without folders: those of the machine that measured are nobody's business.

    >>> file_names_only(["--quick", "--json", "/home/me/a.json", "--plot=out/b.png"])
    ['--quick', '--json', 'a.json', '--plot=b.png']
    """
    return [re.sub(r"[^=]*/", "", argument) for argument in arguments]


def result_path(name: str, device_name: str, date: str) -> Path:
    """The file in results/ of a run; the date is ISO's, and a time after it is left out."""
    device = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return HERE / "results" / f"{name}-{device}-{date[:10]}.json"
