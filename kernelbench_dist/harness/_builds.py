"""Extensions that the judge builds for a worker which asked for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelbench_dist.harness._results import Build
from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness._verdicts import Verdict
from kernelbench_dist.harness.build import BuildRequest, build


def build_for(
    message: dict[str, Any],
    builds: list[Build],
    timeout_s: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """The answer to a worker that asks for a build: where the library is, or why there is none.

    message: a BuildRequest as plain values, from an untrusted process. builds: what was built
    before for the same submission; this one is added.

    Raises JudgedError where the build takes too long, or this machine cannot do it.
    """
    try:
        request = BuildRequest.model_validate(message)
    except ValueError as error:
        return {"failed": f"the request to build is malformed: {error}"}
    progress(f"building {request.name}")
    outcome = build(request, timeout_s=timeout_s)
    if outcome.build.key not in [b.key for b in builds]:
        builds.append(outcome.build)
    if outcome.environment_error is not None:
        raise JudgedError(Verdict.ENVIRONMENT_ERROR, outcome.environment_error)
    if outcome.timed_out:
        raise JudgedError(
            Verdict.TIMEOUT, f"building {request.name} did not finish within {timeout_s:g} s"
        )
    if outcome.library is None:
        errors = [d for d in outcome.build.diagnostics if d.severity == "error"]
        said = f"{errors[0].file}:{errors[0].line}: {errors[0].message}" if errors else "failed"
        hint = f" ({errors[0].hint})" if errors and errors[0].hint else ""
        return {"failed": f"{request.name}: {said}{hint}\n{outcome.build.log}"}
    return {"library": str(outcome.library), "module": outcome.module_name}
