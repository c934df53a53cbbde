"""The judge's tools for an MCP client, over stdin and stdout.

A client gives submissions as text and problems by their names in the suite: it cannot have this
machine's files read for it. What a submission's own code can reach is the judge's business; see
docs/harness.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Any

from kernelbench_dist import __version__, problems
from kernelbench_dist.harness import tools
from kernelbench_dist.harness._process import end_workers
from kernelbench_dist.harness._session import Progress
from kernelbench_dist.harness._trail import Trail

__all__ = ["MODEL_KEY", "MODEL_SECONDS_KEY", "TOKENS_KEY", "serve"]

# In a request's _meta: what the trail is to hold of the model that asked for the call.
MODEL_KEY = "kernelbench_dist/model"
MODEL_SECONDS_KEY = "kernelbench_dist/model_seconds"
TOKENS_KEY = "kernelbench_dist/tokens"

_END_S = 10.0
_INSTRUCTIONS = """\
These tools judge kernels. Ask `prompt` for the task, write one Python file that defines ModelNew,
then: compile_kernel, run_correctness, fuzz, submit_kernel. `source` is the text of the whole file,
not a path. Tools run one at a time; each returns a report, and the same as a typed result."""


def serve(trail: str | None = None, problem: str | None = None) -> None:
    """Serve until the client closes stdin. Nothing but the protocol goes to stdout.

    Pings are answered while a tool runs. A call that is cancelled, or whose client is gone, ends,
    and so do its workers.

    Args:
        trail: the file of the trail; None: none is kept.
        problem: what calls are about that name none; a name or a file.

    Raises:
        ModuleNotFoundError: the MCP SDK is not installed.
        FileNotFoundError, ProblemError: no such problem.
        ValueError: `trail` is a folder.
    """
    try:
        import mcp.server.stdio
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "mcp":
            raise
        raise ModuleNotFoundError(
            "serving over MCP needs its SDK: pip install 'kernelbench-dist[mcp]'", name="mcp"
        ) from None
    if problem is not None:
        problems.find(problem)
    server = _server(Trail(trail) if trail is not None else None, problem)
    # Ctrl-C ends the process at once, as SIGTERM does; a thread that waits for stdin would not let
    # it end otherwise. The supervisor kills the workers as soon as this process is gone.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    async def main() -> None:
        async with mcp.server.stdio.stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    asyncio.run(main())


def _server(trail: Trail | None, problem: str | None) -> Any:
    from mcp import types
    from mcp.server.lowlevel import Server

    one_at_a_time = asyncio.Lock()

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool(**tool) for tool in tools.definitions(optional_problem=bool(problem))]
        )

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        meta = context.meta or {}

        def work(progress: Progress) -> dict[str, Any]:
            return tools.call(
                params.name,
                params.arguments or {},
                trail=trail,
                model=meta.get(MODEL_KEY),
                model_seconds=meta.get(MODEL_SECONDS_KEY),
                tokens=meta.get(TOKENS_KEY),
                progress=progress,
                local=False,
                served_problem=problem,
            )

        try:
            async with one_at_a_time:
                answer = await _in_thread(work, context.session.report_progress)
        except Exception as error:  # the judge's own failure must not end the server
            answer = {"error": f"the judge itself failed: {type(error).__name__}: {error}"}
        text = answer["error"] if "error" in answer else answer["report"]
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=answer,
            is_error="error" in answer,
        )

    return Server(
        "kernelbench_dist",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


class StoppedError(BaseException):
    """Nobody waits for the call any more. No Exception, so that nothing on its way takes it."""

    def __str__(self) -> str:
        return "its client cancelled it, or is gone"


async def _in_thread(work: Callable[[Progress], dict[str, Any]], report: Any) -> dict[str, Any]:
    """Run `work` beside the event loop, and hand on its progress; a cancellation ends it."""
    loop, said = asyncio.get_running_loop(), asyncio.Queue[Any]()
    stopped = threading.Event()

    def tell(message: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(said.put_nowait, message)

    def progress(doing: str) -> None:
        if stopped.is_set():
            raise StoppedError
        tell(doing)

    def main() -> None:
        try:
            tell((work(progress), None))
        except BaseException as error:
            tell((None, error))

    # A daemon, so that the process can end whatever it waits for.
    thread = threading.Thread(target=main, name="tool", daemon=True)
    thread.start()
    steps = 0
    try:
        while isinstance(message := await said.get(), str):
            steps += 1
            await report(steps, message=message)
    except asyncio.CancelledError:
        stopped.set()
        # In this very thread, for the second that it takes: an await would be cancelled again.
        _end(thread)
        raise
    answer, error = message
    if error is not None:
        raise error
    return dict(answer)


def _end(thread: threading.Thread) -> None:
    """Kill the workers of a run that has been told to stop, until it has stopped."""
    for _ in range(int(_END_S / 0.1)):
        end_workers()
        thread.join(0.1)
        if not thread.is_alive():
            return
