"""The compiled extension: what it was built for, whether it fits this torch, and loading it.

An extension built under one torch can load under another and misbehave without a word, so the
stamp that setup.py leaves beside it is compared first. Where the extension is missing or unfit the
package works from torch's own operations, and `build_info` says why.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import platform
import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch

from kernelbench_dist._version import __version__

_REBUILD = "build it here with `pip install --no-build-isolation .`"


@dataclasses.dataclass(frozen=True)
class BuildInfo:
    """What this installation can do, and why it can not do more.

    extension: whether the compiled extension is loaded. cuda: whether its CUDA part is there.
    built_for_torch, built_for_cuda, architectures: from the build stamp; None or empty where there
    is none. missing: one sentence for each part that is missing, with the remedy.
    """

    version: str
    python: str
    torch: str
    torch_cuda: str | None
    device: str
    extension: bool
    cuda: bool
    built_for_torch: str | None
    built_for_cuda: str | None
    architectures: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        rows = {
            "kernelbench_dist": self.version,
            "python": self.python,
            "torch": f"{self.torch} (CUDA {self.torch_cuda or 'none'})",
            "device": self.device,
            "extension": f"built for torch {self.built_for_torch}" if self.extension else "none",
            "CUDA part": f"CUDA {self.built_for_cuda}, architectures "
            + ", ".join(self.architectures)
            if self.cuda
            else "none",
        }
        lines = [f"{name:<17} {value}" for name, value in rows.items()]
        return "\n".join(lines + [f"{'missing':<17} {sentence}" for sentence in self.missing])


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _unfit(stamp: dict[str, Any]) -> str | None:
    """Why an extension with this stamp must not be loaded here, or None."""
    if _minor(stamp["torch"]) != _minor(torch.__version__):
        return (
            f"the extension was built for torch {stamp['torch']} and this is torch"
            f" {torch.__version__}: {_REBUILD}"
        )
    if stamp["cuda"] is not None and stamp["cuda"] != torch.version.cuda:
        return (
            f"the extension was built for CUDA {stamp['cuda']} and this torch is built for CUDA"
            f" {torch.version.cuda or 'none'}: {_REBUILD}"
        )
    return None


def _read_stamp(path: Path) -> dict[str, Any] | None:
    """The stamp, or None where there is none or it is not one."""
    try:
        stamp = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_stamp = isinstance(stamp, dict) and isinstance(stamp.get("torch"), str)
    return {"cuda": None, "architectures": [], **stamp} if is_stamp else None


def _load() -> tuple[dict[str, Any] | None, str | None]:
    """Load the extension. Returns its stamp, and why it is not loaded (None: it is)."""
    folder = Path(__file__).parent
    if not any((folder / f"_C{suffix}").is_file() for suffix in EXTENSION_SUFFIXES):
        others = sorted(path.name for path in folder.glob("_C.*.so"))
        if others:
            return None, f"{others[0]} was not built for this Python: {_REBUILD}"
        return None, f"there is no compiled extension: {_REBUILD}"
    stamp = _read_stamp(folder / "_build_stamp.json")
    if stamp is None:
        return None, f"nothing says which torch the extension was built for: {_REBUILD}"
    why = _unfit(stamp)
    if why is None:
        try:
            importlib.import_module("kernelbench_dist._C")
        except ImportError as error:
            why = f"the extension does not load ({error}): {_REBUILD}"
    return stamp, why


def _runs_on(architecture: str, major: int, minor: int) -> bool:
    """Whether code for "8.0", "9.0a", "10.0f" or "9.0+PTX" runs on this compute capability."""
    parts = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", architecture)
    if parts is None:
        return False
    built = int(parts[1]), int(parts[2])
    if parts[3] == "a":
        return built == (major, minor)
    return (built[0] == major and built[1] <= minor) or (bool(parts[4]) and built <= (major, minor))


_stamp, _not_loaded = _load()
EXTENSION = _not_loaded is None


def _device_name() -> str:
    if not torch.cuda.is_available():
        return "cpu"
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} (compute capability {major}.{minor})"


def build_info() -> BuildInfo:
    """What is installed, what it was built for, and what is missing and why.

    >>> build_info().version
    '0.1.0'
    """
    stamp = _stamp or {"torch": None, "cuda": None, "architectures": []}
    missing = [_not_loaded] if _not_loaded else []
    if EXTENSION and stamp["cuda"] is None:
        why = stamp.get("no_cuda_because", "the stamp does not say why")
        missing.append(f"the CUDA part was not built: {why}")
    elif EXTENSION and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability()
        if not any(_runs_on(built, *capability) for built in stamp["architectures"]):
            built_for = ", ".join(stamp["architectures"])
            missing.append(
                f"the CUDA part was built for {built_for}, and {_device_name()} runs none of them:"
                f" set TORCH_CUDA_ARCH_LIST={'{}.{}'.format(*capability)} and {_REBUILD}"
            )
    return BuildInfo(
        version=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        device=_device_name(),
        extension=EXTENSION,
        cuda=EXTENSION and stamp["cuda"] is not None,
        built_for_torch=stamp["torch"],
        built_for_cuda=stamp["cuda"],
        architectures=tuple(stamp["architectures"]),
        missing=tuple(missing),
    )
