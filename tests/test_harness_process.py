"""Workers: what they may do, how they end, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest
import torch

from kernelbench_dist.harness import _sandbox, _tree
from kernelbench_dist.harness._channel import (
    DTYPES,
    Channel,
    ChannelError,
    ClosedError,
    LateError,
)
from kernelbench_dist.harness._process import Worker, soon


def program(code: str, **options) -> Worker:
    return Worker(argv=[sys.executable, "-c", textwrap.dedent(code)], **options)


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends: a zombie has."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


# The channel


@pytest.fixture
def ends():
    here, there = socket.socketpair()
    yield Channel(here), Channel(there)
    here.close()
    there.close()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_tensors_of_every_dtype_arrive_bit_for_bit(ends, dtype):
    here, there = ends
    bits = torch.randint(0, 2, (3, 4 * dtype.itemsize), dtype=torch.uint8)
    sent = [bits.view(dtype), bits.view(dtype).T, bits[:0].view(dtype), bits.view(dtype)[0, 0]]
    here.send({"a": 1}, sent)
    message, got = there.receive()
    assert message == {"a": 1}
    for mine, theirs in zip(sent, got, strict=True):
        assert (theirs.dtype, theirs.shape) == (mine.dtype, mine.shape)
        as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (mine, theirs)]
        assert torch.equal(*as_bytes)


def test_a_large_tensor_arrives(ends):
    here, there = ends
    sent = torch.arange(1 << 22)
    sender = threading.Thread(target=here.send, args=({}, [sent]))
    sender.start()
    _, (got,) = there.receive()
    sender.join()
    assert torch.equal(got, sent)


def raw(head: bytes, length: int | None = None) -> bytes:
    return (len(head) if length is None else length).to_bytes(8, "little") + head


@pytest.mark.parametrize(
    "data",
    [
        raw(b"", 1 << 40),
        raw(b"not json"),
        raw(b"[]"),
        raw(b"{}"),
        raw(b"[" * 100_000),
        raw(json.dumps({"tensors": [{"dtype": "object", "shape": [1]}]}).encode()),
        raw(json.dumps({"tensors": [{"dtype": "int8", "shape": [-1]}]}).encode()),
        raw(json.dumps({"tensors": [{"dtype": "int8", "shape": [1.5]}]}).encode()),
        raw(json.dumps({"tensors": [{"dtype": "int8", "shape": [1 << 40, 1 << 40]}]}).encode()),
        raw(json.dumps({"tensors": [{"dtype": "int8", "shape": [101]}]}).encode()),
        raw(json.dumps({"tensors": 5}).encode()),
    ],
)
def test_what_is_no_message_is_refused_before_memory_is_taken(ends, data):
    here, there = ends
    here.sock.sendall(data)
    with pytest.raises(ChannelError):
        there.receive(deadline=soon(5), most_bytes=100)


def test_no_wait_is_without_end(ends):
    here, there = ends
    with pytest.raises(LateError):
        there.receive(deadline=soon(0.05))
    with pytest.raises(LateError):  # the other side does not read
        here.send({}, [torch.zeros(1 << 24)], deadline=soon(0.2))
    here.close()
    with pytest.raises(ClosedError):
        there.receive(deadline=soon(5))


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 1.5, "x", [1, [2, (3, "y")]], {"k": [1], 2: None}, torch.float16, float("inf")],
)
def test_arguments_come_back_as_they_were(value):
    packed = json.loads(json.dumps(_tree.pack(value, [])))
    assert _tree.unpack(packed, []) == value


def test_what_cannot_travel_is_named():
    with pytest.raises(TypeError, match="object values"):
        _tree.pack([object()], [])


# Workers


def test_output_and_exit_code():
    with program("import sys; print('hello'); print('there', file=sys.stderr); sys.exit(3)") as w:
        assert w.wait() == (3, "exit")
        assert w.output().split() == ["hello", "there"]


def test_a_program_has_the_variables_that_it_is_given(monkeypatch):
    code = "import os; print(os.environ.get('A_NAME'), 'HOME' in os.environ)"
    with program(code) as w:  # now the supervisor runs
        assert w.wait() == (0, "exit")
    monkeypatch.setenv("A_NAME", "set later")
    with program(code, environment={"A_NAME": os.environ["A_NAME"]}) as w:
        assert w.wait() == (0, "exit")
        assert w.output().split() == ["set", "later", "False"]


def test_limits():
    with program("while True: pass", time_limit_s=0.5) as w:
        assert w.wait()[1] == "time"
    hog = "a = []\nwhile True: a.append(b'x' * (1 << 24))"
    with program(hog, memory_limit_bytes=300 << 20, time_limit_s=60) as w:
        assert w.wait()[1] == "memory"
    with program("while True: print('x' * 100000)", time_limit_s=60) as w:
        assert w.wait()[1] == "output"
        assert len(w.output()) <= 1 << 20


def test_a_daemon_in_a_session_of_its_own_does_not_survive():
    code = """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                print(os.getpid(), flush=True)
                time.sleep(1000)
            os._exit(0)
        os.wait()
        time.sleep(0.3)
    """
    with program(code) as w:
        w.wait()
        daemon = int(w.output())
    assert gone(daemon)


def test_close_kills_at_once():
    w = program("import time; print(__import__('os').getpid(), flush=True); time.sleep(1000)")
    deadline = time.monotonic() + 20
    while not w.output() and time.monotonic() < deadline:
        time.sleep(0.01)
    w.close()
    assert gone(int(w.output()))


def test_nothing_survives_a_judge_that_is_killed():
    code = """
        import os, sys, time
        from kernelbench_dist.harness._process import Worker
        w = Worker(argv=[sys.executable, "-c", '''
        import os, time
        if os.fork() == 0:
            os.setsid()
        os.write(1, b"%d " % os.getpid())  # whole: a print may be two writes, of two processes
        time.sleep(1000)
        '''.replace("        ", "")])
        while len(w.output().split()) < 2:
            time.sleep(0.01)
        supervisor = __import__("psutil").Process(int(w.output().split()[0])).ppid()
        print(*w.output().split(), supervisor, flush=True)
        time.sleep(1000)
    """
    judge = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert judge.stdout is not None
    pids = [int(pid) for pid in judge.stdout.readline().split()]
    assert len(pids) == 3
    judge.send_signal(signal.SIGKILL)
    judge.wait()
    judge.stdout.close()
    assert all(gone(pid) for pid in pids)


def test_many_at_once():
    def one(i: int) -> None:
        with program(f"print({i})") as w:
            assert w.wait() == (0, "exit")
            assert w.output().split() == [str(i)]
            done.append(i)

    done: list[int] = []
    threads = [threading.Thread(target=one, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(done) == list(range(12))


# The sandbox


needs_landlock = pytest.mark.skipif(
    _sandbox.landlock_version() < 6, reason="needs Landlock 6 (Linux 6.12), and it is not here"
)


@needs_landlock
def test_what_the_sandbox_takes_away(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "file").write_text("kept")
    code = f"""
        import os, signal
        from pathlib import Path
        from kernelbench_dist.harness import _sandbox
        assert _sandbox.restrict([{str(inside)!r}]) >= 6
        tries = {{
            "write inside": lambda: Path({str(inside / "new")!r}).write_text("x"),
            "read outside": lambda: Path({str(outside / "file")!r}).read_text(),
            "write outside": lambda: Path({str(outside / "file")!r}).write_text("x"),
            "truncate": lambda: os.truncate({str(outside / "file")!r}, 0),
            "create": lambda: Path({str(outside / "new")!r}).touch(),
            "remove": lambda: os.remove({str(outside / "file")!r}),
            "move in": lambda: os.rename({str(outside / "file")!r}, {str(inside / "moved")!r}),
            "memory": lambda: open("/proc/{os.getpid()}/mem", "rb"),
            "signal": lambda: os.kill({os.getpid()}, signal.SIGUSR1),
            "own signal": lambda: os.kill(os.getpid(), 0),
            "null": lambda: open("/dev/null", "w").write("x"),
        }}
        for name, action in tries.items():
            try:
                action()
                print(name)
            except OSError:
                pass
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    allowed = done.stdout.splitlines()
    assert allowed == ["write inside", "read outside", "own signal", "null"]
    assert (outside / "file").read_text() == "kept"
