"""The program that a tool starts: a submission's worker, met by the judge at a socket.

python -m kernelbench_dist.harness.profile._under_tool SOCKET FOLDER DEVICE confined|free
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reachable(address: str) -> Iterator[str]:
    """A short name of a socket's path: what the system takes ends at 107 bytes."""
    folder, name = os.path.split(address)
    held = os.open(folder, os.O_PATH)
    try:
        yield f"/proc/self/fd/{held}/{name}"
    finally:
        os.close(held)


def main() -> int:
    address, folder, device, rights = sys.argv[1:]
    import torch

    from kernelbench_dist.harness import _worker

    if device.startswith("cuda"):
        # The tool comes into the process with the CUDA driver, and opens what it needs there.
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
    sock = socket.socket(socket.AF_UNIX)
    with reachable(address) as near:
        sock.connect(near)
    os.chdir(folder)
    return _worker.main({"folder": folder, "sandbox": rights == "confined"}, sock)


if __name__ == "__main__":
    sys.exit(main())
