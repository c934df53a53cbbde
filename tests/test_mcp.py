"""The MCP server, driven by the SDK's own client."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from submissions import gather_linear

pytest.importorskip("mcp")
from mcp import Client, StdioServerParameters, stdio_client

from kernelbench_dist.harness import mcp, tools
from kernelbench_dist.harness.tools import Trail

ROOT = Path(__file__).resolve().parents[1]
SLOW = gather_linear("import time\ntime.sleep(60)\nreturn self.right(x)")
WAIT_S = 120


@pytest.fixture
def trail(tmp_path) -> Trail:
    return Trail(tmp_path / "trail.jsonl")


def server(trail: Trail) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "kernelbench_dist", "mcp", "--trail", str(trail.path)],
        env=dict(os.environ),
    )


def arguments(source: str, **options):
    return {"source": source, "problem": "47", "trials": 1, "device": "cpu", **options}


def test_it_lists_the_tools_and_answers_calls(trail):
    async def main():
        async with Client(mcp._server(trail, None)) as client:
            listed = (await client.list_tools()).tools
            meta = {mcp.MODEL_KEY: "hm", mcp.TOKENS_KEY: {"prompt": 1}}
            right = await client.call_tool("prompt", {"problem": "47"}, meta=meta)
            wrong = await client.call_tool("static_check", {"source": "/etc/passwd"})
            odd = await client.call_tool("prompt", {"problem": "47"}, meta={mcp.TOKENS_KEY: 3})
        return listed, right, wrong, odd

    listed, right, wrong, odd = asyncio.run(main())
    assert [(t.name, t.description, t.input_schema) for t in listed] == [
        (t["name"], t["description"], t["input_schema"]) for t in tools.definitions()
    ]
    assert not right.is_error
    assert right.content[0].text == right.structured_content["report"]
    assert right.content[0].text.startswith("# Task: level2/47")
    assert wrong.is_error
    assert wrong.content[0].text == (
        "source is '/etc/passwd'; the text of a whole file is accepted, and no path"
    )
    assert odd.is_error
    assert [(e.tool, e.model) for e in trail.read()] == [("prompt", "hm"), ("static_check", None)]
    assert trail.read()[0].tokens.prompt == 1


def test_a_served_problem_need_not_be_named():
    async def main():
        async with Client(mcp._server(None, "47")) as client:
            return await client.call_tool("prompt", {})

    assert asyncio.run(main()).content[0].text.startswith("# Task: level2/47")


def test_without_the_sdk_the_error_names_the_extra(monkeypatch):
    for name in [n for n in sys.modules if n == "mcp" or n.startswith("mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'kernelbench-dist\[mcp\]'"):
        mcp.serve()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_course_of_the_example_and_its_trail(trail, load_file, capsys):
    agent = load_file(ROOT / "examples" / "agent.py")
    assert agent.main(["--mcp", "--trail", str(trail.path), "--rounds", "8"]) == 0
    entries = trail.read()
    assert [(e.tool, e.verdict and e.verdict.value) for e in entries] == [
        ("prompt", None),
        ("compile_kernel", "COMPILE_ERROR"),
        ("compile_kernel", "PASSED"),
        ("run_correctness", "INCORRECT_VALUES"),
        ("run_correctness", "PASSED"),
        ("static_check", "PASSED"),
        ("submit_kernel", "PASSED"),
        ("submit_kernel", "PASSED"),
        ("submit_kernel", "PASSED"),
    ]
    assert [e.source_is_correct for e in entries] == [None] * 3 + [False] + [True] * 5
    assert all(e.model for e in entries)
    assert len({e.problem for e in entries}) == 1
    # The fix was tested, then the values fixed, checked and submitted; the last is one of the two.
    hashes = [e.sha256 for e in entries]
    assert hashes[2] == hashes[3]
    assert hashes[4] == hashes[5] == hashes[6]
    assert len({*hashes[1:8]}) == 4
    assert hashes[8] in hashes[6:8]
    first, second, last = entries[6:]
    assert all(e.figures.time_us > 0 and e.figures.ratio > 0 for e in (first, second, last))
    assert first.delta_to_last is None
    change = second.figures.time_us / first.figures.time_us - 1
    assert second.delta_to_best.change == pytest.approx(change)
    assert last.delta_to_last.sha256 == second.sha256
    assert str(trail) in capsys.readouterr().out


async def _start_a_slow_run(client: Client, processes: list[psutil.Process]) -> asyncio.Task:
    """A call whose submission sleeps; adds all processes that it needs."""
    (server_process,) = (child for child in psutil.Process().children() if "mcp" in child.cmdline())
    running = asyncio.Event()

    async def progress(_progress, _total, message):
        if message.startswith("trials"):
            running.set()

    call = asyncio.create_task(
        client.call_tool("run_correctness", arguments(SLOW), progress_callback=progress)
    )
    await asyncio.wait_for(running.wait(), WAIT_S)
    processes += [server_process, *server_process.children(recursive=True)]
    return call


def _left(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_cancelled_call_ends_and_the_next_is_answered(trail):
    processes: list[psutil.Process] = []

    async def main():
        async with Client(stdio_client(server(trail))) as client:
            call = await _start_a_slow_run(client, processes)
            start = time.monotonic()
            await client.list_tools()  # answered while a tool runs
            waited = time.monotonic() - start
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            reply = await client.call_tool("run_correctness", arguments(gather_linear()))
            return waited, reply.structured_content["result"]["verdict"]

    waited, verdict = asyncio.run(main())
    assert waited < 10
    assert verdict == "PASSED"
    assert len(processes) >= 4  # the server, its supervisor, and a worker for each side
    assert not _left(processes)
    first, second = trail.read()
    assert (first.verdict, first.reason) == (
        None,
        "the call broke off: StoppedError: its client cancelled it, or is gone",
    )
    assert second.source_is_correct


@pytest.mark.slow
@pytest.mark.parametrize("how", ["the client leaves", "the server is killed"])
def test_no_process_is_left_behind(trail, how):
    processes: list[psutil.Process] = []

    async def main():
        async with Client(stdio_client(server(trail))) as client:
            call = await _start_a_slow_run(client, processes)
            if how == "the server is killed":
                next(p for p in processes if "mcp" in p.cmdline()).kill()
        with suppress(BaseException):
            await call

    asyncio.run(main())
    assert len(processes) >= 4
    assert not _left(processes)
