"""A report as sections, from which the HTML page and the Markdown text are both written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kernelbench_dist.harness._results import (
    CompileResult,
    CorrectnessResult,
    Options,
    Result,
    StaticResult,
    SubmitResult,
)
from kernelbench_dist.report import _comparison_view, _profile_view, _sweep_view, _trail_view
from kernelbench_dist.report._cards import why_not, worst_output
from kernelbench_dist.report._figures import (
    KINDS,
    NOT_MEASURED,
    amount,
    counted,
    figure,
    one_line,
    printable_lines,
    shape,
    sizes,
)
from kernelbench_dist.report._parts import Cell, Code, Note, Part, Quote, Section, table
from kernelbench_dist.report._plots import Picture, distribution, error_map, roofline
from kernelbench_dist.report._profile_view import ceilings
from kernelbench_dist.timing import BenchResult

if TYPE_CHECKING:
    from kernelbench_dist.report._document import Report

_MOST_ROWS = 200
_MOST_LOG = 20_000


def sections(report: Report) -> list[Section]:
    """In the order in which they are read; those of which nothing is known are left out."""
    found: list[Section] = []
    result = report.result
    if result is not None:
        found += _to_do(result)
        found += _pictures(result, report.specs)
    if report.comparison is not None:
        found.append(_comparison_view.section(report.comparison))
    if report.profile is not None:
        found.append(_profile_view.section(report.profile))
    if report.trail:
        found.append(_trail_view.section(report.trail))
    if report.sweep:
        found += _sweep_view.sections(report.sweep)
    if result is not None:
        found += _trials(result)
        found += _builds(result)
        found += _findings(result)
    found += _sources(report)
    found += _provenance(report)
    return found


def _to_do(result: Result) -> Iterator[Section]:
    if result.passed:
        return
    parts: list[Part] = [Note(f"{result.verdict.sentence} {result.advice}")]
    if result.detail:
        parts.append(Quote("What it said", printable_lines(result.detail[-_MOST_LOG:])))
    if replay := getattr(result, "replay", None):
        parts.append(Quote("The failed trial again", one_line(replay, 4000)))
    yield Section("to-do", "What to do", tuple(parts))


def _pictures(result: Result, specs: Mapping[str, Any] | None) -> Iterator[Section]:
    if not isinstance(result, (SubmitResult, CorrectnessResult)):
        return
    worst = worst_output(result.trials)
    maps = [
        (i, output)
        for i, trial in enumerate(result.trials, 1)
        for output in trial.outputs
        if output.error_map is not None
    ]
    no_map = "no answer was compared" if worst is None else "the stored result holds no error map"
    i, output = maps[-1] if maps else (0, None)
    parts: list[Picture] = []
    if isinstance(result, SubmitResult):
        if result.timing is None:
            missing = why_not(result, "time", "there is call time alone")
            parts.append(Picture("Distribution of times", missing=missing))
        else:
            measured = [k for k in KINDS if result.timing.empty.timing(k) is not None]
            parts += [distribution(result.timing, k, result.timing_of) for k in measured]
        missing = why_not(result, "the roofline", "no peaks are known")
        measured_rates = ceilings(specs, worst[1].dtype) if worst else None
        parts.append(roofline(result.speed_of_light, result.timing, measured_rates, missing))
    parts.append(error_map(output, i, no_map))
    drawn_first = sorted(parts, key=lambda p: p.svg is None)
    yield Section("pictures", "In pictures", tuple(drawn_first), side_by_side=True)


def _trials(result: Result) -> Iterator[Section]:
    trials = getattr(result, "trials", ())
    if not trials:
        return
    rows: list[tuple[Cell | str, ...]] = []
    for i, trial in enumerate(trials[:_MOST_ROWS], 1):
        shares = [s for o in trial.outputs if (s := o.share_of_bound) is not None]
        bits = {True: "same", False: "differ", None: NOT_MEASURED}[trial.bitwise_equal]
        rows.append(
            (
                Cell(str(i), i),
                Cell(str(trial.verdict), tone="good" if trial.passed else "bad"),
                sizes(trial.sizes),
                one_line(" ".join(shape(s) for s in trial.shapes), 120),
                bits,
                Cell(figure(max(shares)) if shares else NOT_MEASURED, max(shares, default=None)),
                str(trial.seed),
            )
        )
    columns = ("#", "verdict", "sizes", "inputs", "bits of two runs", "error / bound", "seed")
    yield Section("trials", "Trials", (table("", columns, rows, figures=(0, 5, 6), sorts=True),))


def _builds(result: Result) -> Iterator[Section]:
    if not isinstance(result, (SubmitResult, CorrectnessResult, CompileResult)):
        return
    parts: list[Part] = []
    kernels = [k for build in result.builds for k in build.kernels]
    if kernels:
        rows: list[tuple[Cell | str, ...]] = [
            (
                one_line(k.name, 160),
                k.architecture,
                Cell(str(k.registers), k.registers),
                Cell(amount(k.shared_bytes), k.shared_bytes),
                Cell(amount(k.stack_bytes), k.stack_bytes),
                Cell(
                    f"{amount(k.spill_store_bytes)}, {amount(k.spill_load_bytes)}",
                    k.spill_store_bytes + k.spill_load_bytes,
                    "bad" if k.spill_store_bytes or k.spill_load_bytes else "",
                ),
            )
            for k in kernels[:_MOST_ROWS]
        ]
        columns = ("kernel", "arch", "registers", "shared", "stack", "spill stores, loads")
        parts.append(table("What the assembler says", columns, rows, figures=(2, 3, 4, 5)))
    for build in result.builds:
        how = "from the cache" if build.from_cache else f"built in {figure(build.seconds, 's')}"
        how = how if build.succeeded else "does not build"
        parts.append(Note(f"Extension {one_line(build.name, 80)}: {how}."))
        said = [
            f"{d.file}:{d.line}: {d.severity}: {d.message}"
            + (f"\n    hint: {d.hint}" if d.hint else "")
            for d in build.diagnostics[:40]
        ]
        if not build.succeeded and not said:
            said = [build.log[-_MOST_LOG:]]
        if said:
            parts.append(Quote("The compiler's messages", printable_lines("\n".join(said))))
    if parts:
        yield Section("builds", "Builds", tuple(parts))


def _findings(result: Result) -> Iterator[Section]:
    static = result if isinstance(result, StaticResult) else getattr(result, "static", None)
    if static is None or not static.findings:
        return
    rows: list[tuple[Cell | str, ...]] = [
        (
            Cell(str(f.line or ""), f.line),
            Cell(f.severity, tone="bad" if f.severity == "error" else ""),
            f.rule,
            one_line(f.message, 300),
            one_line(f.code, 160),
        )
        for f in static.findings[:_MOST_ROWS]
    ]
    columns = ("line", "severity", "rule", "what", "source")
    yield Section("static", "Static check", (table("", columns, rows, figures=(0,), sorts=True),))


def _sources(report: Report) -> Iterator[Section]:
    if report.result is None and report.source is None and report.reference is None:
        return
    name = "Submission"
    if report.result is not None and report.result.submission is not None:
        name = f"Submission: {one_line(report.result.submission.name, 120)}"
    gone = "its file is not there any more, or has changed since it was judged (--source names it)"
    not_ours = "the problem is none of the suite's (--reference names its file)"
    parts = (Code(name, report.source, gone), Code("Reference", report.reference, not_ours))
    yield Section("source", "Source", parts, side_by_side=True)


def _provenance(report: Report) -> Iterator[Section]:
    rows: list[tuple[Cell | str, ...]] = []
    result: Result | None = report.result or report.comparison
    timing: BenchResult | None = getattr(result, "timing", None)
    if result is not None:
        rows += _judged(result)
    if timing is not None:
        e = timing.environment
        rows += [
            ("device", f"{e.device_name} ({e.device})"),
            ("torch, Python", f"{e.torch}, {e.python}"),
            ("CUDA, driver", f"{e.cuda or NOT_MEASURED}, {e.driver or NOT_MEASURED}"),
            ("SM clock", NOT_MEASURED if e.clock_mhz is None else f"{e.clock_mhz} MHz"),
            ("L2", amount(e.l2_bytes)),
            ("device time by", timing.method + (f": {timing.reason}" if timing.reason else "")),
            ("rounds, seed of the timing", f"{timing.rounds}, {timing.seed}"),
        ]
    parts: list[Part] = [table("", ("", ""), [(k, one_line(str(v), 300)) for k, v in rows])]
    if result is not None:
        parts += [Note(one_line(note)) for note in result.notes[:20]]
    if rows:
        yield Section("provenance", "How it was measured", tuple(parts))


def _judged(result: Result) -> Iterator[tuple[str, str]]:
    yield "tool", result.tool
    if result.problem:
        yield "problem", result.problem
    if source := result.submission:
        declared = "declared" if source.kind_is_declared else "not declared"
        yield "kind", f"{source.kind} ({declared})"
        yield "sha256", source.sha256
    options = getattr(result, "options", None)
    if isinstance(options, Options):
        yield "dtype", options.dtype or "as the problem makes its inputs"
        yield "sizes", " and ".join(sizes(s) for s in options.sizes[:6]) or sizes(None)
        yield "trials, seed", f"{counted(options.trials, 'trial')} at each, {options.seed}"
        yield "passes", "forward and backward" if options.backward else "forward"
        if options.world_size > 1:
            yield "ranks", f"{options.world_size}, {options.ranks}"
    yield "judged", f"{result.started_at}, in {figure(result.seconds, 's')}"
