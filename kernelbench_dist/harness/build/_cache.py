"""Finished builds by the hash of all that they depend on. There are no locks: a build is made in a
folder of its own and appears whole, by a rename; two judges may make the same one, harmlessly."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from kernelbench_dist.harness._results import Build
from kernelbench_dist.harness.build._environment import Environment
from kernelbench_dist.harness.build._request import BuildRequest

SCHEMA = 1  # to be raised when the same request is built in another way
_LEFT_AFTER_S = 24 * 3600
_ATTEMPTS = 5


def default_cache_dir() -> Path:
    """$KERNELBENCH_DIST_CACHE, else kernelbench_dist in $XDG_CACHE_HOME or ~/.cache."""
    if named := os.environ.get("KERNELBENCH_DIST_CACHE"):
        return Path(named).expanduser().absolute()
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser().absolute() / "kernelbench_dist"


def cache_key(request: BuildRequest, environment: Environment) -> str:
    """The hash of the request, the versions of the tools, and how this package builds.

    Headers outside the toolchain are no part of it: an entry lists their hashes.
    """
    parts = [SCHEMA, request.model_dump(mode="json"), asdict(environment)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def file_hash(path: str | Path) -> str | None:
    """The hash of a file's bytes, None where it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def load_entry(cache: Path, key: str) -> tuple[Build, Path] | None:
    """A build and its library, None where there is no entry or a file of it has changed."""
    folder = cache / "builds" / key
    try:
        entry = json.loads((folder / "result.json").read_text())
        build = Build.model_validate(entry["build"])
        library = folder / f"{build.name}.so"
        whole = (
            (entry["key"], build.key) == (key, key)
            and library.stat().st_size == entry["size"]
            and file_hash(library) == entry["sha256"]
            and all(file_hash(path) == value for path, value in entry["dependencies"].items())
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return (build, library) if whole else None


def store_entry(cache: Path, library: Path, build: Build, dependencies: Mapping[str, str]) -> Path:
    """Move a library into the cache, or find that another process was first; returns its path.

    `dependencies` are the headers that the entry is good for: paths and hashes.
    """
    staging = new_folder(cache)
    try:
        os.rename(library, staging / f"{build.name}.so")
        entry = {
            "key": build.key,
            "size": (staging / f"{build.name}.so").stat().st_size,
            "sha256": file_hash(staging / f"{build.name}.so"),
            "dependencies": dict(dependencies),
            "build": build.model_dump(mode="json"),
        }
        (staging / "result.json").write_text(json.dumps(entry, indent=1) + "\n")
        staging.chmod(0o755)  # the submission's process may belong to another user
        target = cache / "builds" / build.key
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(_ATTEMPTS):
            try:
                os.rename(staging, target)
                return target / f"{build.name}.so"
            except OSError:
                if found := load_entry(cache, build.key):
                    return found[1]
                if attempt == _ATTEMPTS - 1:
                    raise
                _move_away(cache, target)
        raise AssertionError("the last attempt returns or raises")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move_away(cache: Path, broken: Path) -> None:
    """Remove what stands in an entry's place, at once for those who look there."""
    grave = new_folder(cache)
    try:
        os.rename(broken, grave / "broken")
    except FileNotFoundError:
        pass  # another process did
    finally:
        shutil.rmtree(grave, ignore_errors=True)


def new_folder(cache: Path) -> Path:
    """A fresh folder in the cache's file system, whose name says which process made it."""
    root = cache / "tmp"
    root.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))


def remove_leftovers(cache: Path) -> None:
    """Remove folders that dead processes have left, a day after their last change."""
    for folder in (cache / "tmp").glob("*-*"):
        pid = folder.name.partition("-")[0]
        try:
            old = time.time() - folder.stat().st_mtime > _LEFT_AFTER_S
        except OSError:
            continue
        if old and not (pid.isdigit() and Path("/proc", pid).exists()):
            shutil.rmtree(folder, ignore_errors=True)
