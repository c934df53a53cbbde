"""What a worker gives up before it runs untrusted code, as far as the machine allows.

Landlock (Linux 5.13) takes rights away from a process and all its children, without privileges:
it can then write only below given folders, cannot read the memory of processes outside (that would
be ptrace), and from Linux 6.12 cannot send them signals. Its three system calls have no wrapper in
libc; the packages that there are cover neither signals nor releases, so the calls are made here.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_SET_NO_NEW_PRIVS, _SET_DUMPABLE = 38, 4

# Rights to the file system by bit (linux/landlock.h). Those not handled stay free: reading and
# executing files is what a submission needs, and no secret of the judge lies in a file.
_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE = sum(1 << bit for bit in range(6, 13))  # char, dir, reg, sock, fifo, block, sym
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # from versions 2 and 3
_SCOPE_SOCKETS_AND_SIGNALS = 3  # from version 6

FULL_LANDLOCK = 6
"""The version that takes away all that `restrict` would."""


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("fs", ctypes.c_uint64),
        ("net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("access", ctypes.c_uint64), ("fd", ctypes.c_int32))


def landlock_version() -> int:
    """The kernel's version of Landlock, 0 where there is none."""
    return max(_syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG), 0)


def restrict(writable: Iterable[Path | str]) -> int:
    """Give up all that Landlock can take, but for writing below `writable` and to devices.

    Returns the version of Landlock in force, 0 for none. It holds for the calling thread and what
    that starts: other threads that there are already keep their rights.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    version = landlock_version()
    if version == 0:
        return 0
    rights = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE
    rights |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rules = _Ruleset(rights, 0, _SCOPE_SOCKETS_AND_SIGNALS if version >= 6 else 0)
    ruleset = _syscall(_CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    if ruleset < 0:
        return 0
    # /dev holds the GPU's devices and the shared memory that multiprocessing uses.
    for folder in (*writable, "/dev"):
        _allow(ruleset, rights, folder)
    # The CUDA driver names its threads there.
    _allow(ruleset, _WRITE_FILE | (_TRUNCATE if version >= 3 else 0), "/proc/self/task")
    done = _syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return version if done == 0 else 0


def forbid_inspection() -> None:
    """Keep other processes of the same user from reading this one's memory."""
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _allow(ruleset: int, rights: int, path: Path | str) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    rule = _PathBeneath(rights, fd)
    _syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    os.close(fd)


def _syscall(number: int, *args: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return int(libc.syscall(ctypes.c_long(number), *plain))
