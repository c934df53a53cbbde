"""Reports as HTML, Markdown and JSON, from stored results and from one whose figures are known."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
import report_cases as cases
from report_cases import HOSTILE, STORED

from kernelbench_dist import cli
from kernelbench_dist.harness import Verdict
from kernelbench_dist.harness._results import Build, Diagnostic
from kernelbench_dist.harness._trail import Trail
from kernelbench_dist.report import Report
from kernelbench_dist.report._cards import cards
from kernelbench_dist.report._plots import error_step
from kernelbench_dist.report._svg import Axis
from kernelbench_dist.report._sweep import fast_p
from kernelbench_dist.report._trail_view import best_of

VOID = {"meta", "input", "br", "img", "link"}


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text of each; all must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        said: list[str] = []
        self.elements.append((tag, dict(attrs), said))
        if tag not in VOID:
            self._open.append((tag, said))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        name, _ = self._open.pop()
        assert name == tag

    def handle_data(self, data):
        for _, said in self._open:
            said.append(data)

    def all(self, tag, kind=None):
        """The text of each element of that tag and class, with single spaces."""
        return [
            " ".join("".join(said).split())
            for name, attributes, said in self.elements
            if name == tag and (kind is None or kind in (attributes.get("class") or "").split())
        ]

    def marks(self, tag, *kinds):
        return [
            attributes
            for name, attributes, _ in self.elements
            if name == tag and set(kinds) <= set((attributes.get("class") or "").split())
        ]


@pytest.fixture(scope="module")
def full():
    return Page(cases.full().to_html())


def test_the_verdict_comes_first(full):
    assert full.all("p", "verdict") == ["PASSED"]
    assert full.all("h1") == ["mine.py for level2/47"]
    tags = [tag for tag, attributes, _ in full.elements if attributes.get("class") or tag == "h1"]
    assert tags.index("h1") < tags.index("article")


def test_each_card_has_its_number_and_its_source(full):
    found = [" ".join(said.split()[:4]) for said in full.all("article")]
    assert [card.split()[0] for card in found] == [
        *("Time", "Precision", "Memory", "Launches", "Speed", "Stalls"),
    ]
    time = cases.bench()["submission"].warm.median_us
    assert full.all("p", "number") == [
        f"{time:.2f} us",
        "0.500 of the bound",
        "2.62 KiB",
        "1 kernel a call",
        "0.214 % of the roofline",
        "41.0 %",
    ]
    assert len([source for source in full.all("p", "from") if source]) == 6
    assert "not measured" not in " ".join(full.all("article"))


def test_stalls_add_up_and_all_but_the_top_five_are_one(full):
    shares = [float(said.split()[0]) for said in full.all("span", "share")]
    assert shares == [41.0, 22.0, 14.0, 9.0, 8.0, 6.0]
    assert sum(shares) == 100.0
    assert full.all("span", "what")[-1] == "all others"


def test_a_profile_has_its_class_its_kernels_and_hints_with_their_numbers(full):
    assert "launch-bound: 1.3 us, under three empty kernels (by timer)." in " ".join(
        full.all("p", "note")
    )
    rows = full.all("tr")
    assert "kernel gather_linear<float, 4> 1.30 1 12 x 7 x 1 128 x 1 x 1 yes" in rows
    assert "fill fill 0.900 1 4.00 KiB" in rows
    assert any(row.startswith("gather_linear<float, 4> 3.40 12.0 20.0 18.5 43.0") for row in rows)
    assert (
        "bank conflicts in shared memory gather_linear<float, 4> 87.5 % 10.0 % pad the rows" in rows
    )
    assert "busiest unit, of its own peak 20.0 % (counters)" in " ".join(full.all("article"))


def test_parts_may_be_results():
    held = cases.submit()  # any result will do
    report = Report.of(profile=held, specs=cases.specs())
    assert report.profile == held.to_dict()
    assert report.title == "Report"


def test_a_profile_without_counters_says_why():
    profile = {
        "tool": "profile_kernel",
        "counters_absent": "the driver gives counters to root alone",
        "kernels": [],
    }
    report = Report(title="t", result=cases.submit(), profile=profile)
    stalls = cards(report.result, report.profile)[-1]
    assert (stalls.figure, stalls.missing) == ("", "the driver gives counters to root alone")
    page = Page(report.to_html())
    assert "Counters: not measured: the driver gives counters to root alone" in page.all("p")
    # Without measured rates the roofline has those of the datasheet alone, and names it.
    assert len(page.marks("path", "ceiling")) == 1
    (caption,) = [said for said in page.all("figcaption") if "Ceilings" in said]
    assert "solid: datasheet of the H200, 4.80 TB/s and 67.0 TFLOP/s" in caption


def test_plots_have_their_marks(full):
    # Three kinds of time, each with twenty samples of two sides and of the floor; none is beyond
    # the edge but those above the 95th percentile.
    for who in ("mine", "theirs", "floor"):
        assert 55 <= len(full.marks("circle", "dot", who)) <= 60
        assert len(full.marks("line", "median", who)) == 3
    assert len(full.marks("path", "ceiling")) == 2
    assert len(full.marks("path", "ceiling", "measured")) == 1
    assert len(full.marks("circle", "point", "theirs")) == 1
    tiles = full.marks("rect", "tile")
    assert len(tiles) == 12 + 8  # and the legend
    assert len(full.marks("rect", "tile", "worst")) == 1
    # The trail: five timed, one of them the best, and three calls beside them.
    assert len(full.marks("line", "whisker")) == 5
    assert len(full.marks("circle", "ring", "best")) == 1
    assert [m["class"] for m in full.marks("path", "call")] == ["call dim", "call good", "call bad"]


def test_the_roofline_lies_where_its_numbers_say(full):
    """5 FLOP a byte; at 3.9 us and 200 kFLOP, 51.3 GFLOP/s; the roof there is 24 TFLOP/s."""
    (mine,) = [m for m in full.marks("circle", "point", "mine") if m["r"] == "5.50"]
    (theirs,) = full.marks("circle", "point", "theirs")
    assert mine["cx"] == theirs["cx"]
    ratio = cases.bench()["reference"].cold.median_us / 3.9
    axis = Axis(1.0, ratio, 0.0, float(theirs["cy"]) - float(mine["cy"]), log=True)
    # As far apart as the logarithms of their rates: the gap to the roof is so many times longer.
    (gap,) = full.marks("line", "gap")
    roof = float(theirs["cy"]) - float(gap["y1"])
    assert roof == pytest.approx(axis(24e12 / 51.28e9 * ratio), abs=0.1)


def test_the_trail_says_changed_only_beyond_the_noise(full):
    rows = [[said for said in re.split(r"\s{2,}", row) if said] for row in full.all("tr")]
    told = " ".join(" ".join(row) for row in rows)
    assert "changed -31.6 % changed -31.6 %" in told
    assert "unchanged (+0.8 %) unchanged (+0.8 %)" in told
    assert told.count("6 ★ submit_kernel dddddddd PASSED yes 1.30 us 0.371 [0.364, 0.379]") == 1


def test_sources_stand_beside_each_other_in_colour(full):
    mine, theirs = full.all("div", "source")
    assert "def scale(x, by: float = 2.0) -> torch.Tensor:" in mine
    assert "class Model: ..." in theirs
    assert "def" in full.all("span", "tk")
    assert "# twice" in full.all("span", "tc")
    assert len(full.all("span", "l")) == len(cases.SOURCE.splitlines()) + 1


def test_a_very_long_source_is_cut_and_says_so():
    text = "x = 1\n" * 5000 + "y" * 2000
    page = Page(Report(title="t", source=text).to_html())
    lines = page.all("span", "l")
    assert lines[-2:] == ["x = 1", "... 1001 more lines"]
    page = Page(Report(title="t", source="y" * 2000).to_html())
    assert page.all("span", "l") == ["y" * 1000 + " ..."]


def test_the_page_needs_nothing_beside_it():
    text = cases.full().to_html()
    page = Page(text)
    (policy,) = [a["content"] for tag, a, _ in page.elements if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'; ")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert not re.search(r"""(src|href)=["'](?!#)|url\(|@import|https?://(?!www\.w3\.org)""", text)


def test_ids_are_unique_and_links_lead_somewhere(full):
    ids = [a["id"] for _, a, _ in full.elements if a.get("id")]
    assert len(set(ids)) == len(ids)
    links = [a["href"] for tag, a, _ in full.elements if tag == "a"]
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)


def hostile() -> Report:
    """Everything that a submission has a say in is HTML that would run."""
    report = cases.full()
    result = report.result
    source = result.submission.model_copy(update={"name": HOSTILE})
    output = cases.output(name=HOSTILE)
    trial = result.trials[0].model_copy(
        update={"verdict": Verdict.INCORRECT_VALUES, "reason": HOSTILE, "outputs": (output,)}
    )
    build = Build(
        name=HOSTILE,
        key="k",
        from_cache=False,
        seconds=1.0,
        succeeded=False,
        diagnostics=(
            Diagnostic(file=HOSTILE, line=1, column=1, severity="error", message=HOSTILE),
        ),
        kernels=(result.builds[0].kernels[0].model_copy(update={"name": HOSTILE}),),
        log=HOSTILE,
    )
    finding = result.static.findings[0].model_copy(update={"message": HOSTILE, "code": HOSTILE})
    changed = result.model_copy(
        update={
            "verdict": Verdict.INCORRECT_VALUES,
            "reason": HOSTILE,
            "detail": HOSTILE,
            "replay": HOSTILE,
            "submission": source,
            "problem": HOSTILE,
            "trials": (trial,),
            "builds": (build,),
            "static": result.static.model_copy(update={"findings": (finding,)}),
            "launches": result.launches.model_copy(update={"names": (HOSTILE,)}),
            "notes": (HOSTILE,),
        }
    )
    changed = type(result).from_dict(changed.to_dict())
    profile = cases.profile()
    stalls = [{"reason": HOSTILE, "percent": 100.0}]
    profile["kernels"][0]["counters"] |= {"name": HOSTILE, "stalls": stalls}
    profile["activity"][0]["name"] = profile["hints"][0]["kernel"] = HOSTILE
    profile["notes"] = [HOSTILE]
    trail = tuple(
        e.model_copy(update={"tool": HOSTILE, "reason": HOSTILE, "problem": HOSTILE})
        for e in report.trail
    )
    rows = tuple(
        r.model_copy(update={"problem": HOSTILE, "submission": HOSTILE, "reason": HOSTILE})
        for r in cases.rows()
    )
    return Report(
        title=HOSTILE,
        result=changed,
        profile=profile,
        trail=trail,
        sweep=rows,
        source=f'x = 1  # {HOSTILE}\ny = """{HOSTILE}\n"""\n{HOSTILE}\n',
        reference=HOSTILE,
    )


def test_what_a_submission_says_is_no_markup():
    text = hostile().to_html()
    page = Page(text)  # every element is closed where it should be
    assert text.count("<script>") == text.count("</script>") == 1
    assert text.count("<style>") == text.count("</style>") == 1
    assert page.all("img") == []
    assert not any(name.startswith("on") for _, a, _ in page.elements for name in a)
    assert "\x1b" not in text
    assert "<script>alert('x')</script>" in page.all("h1")[0]
    assert text.count("onerror=alert(1)&gt;") >= 20


def test_what_a_submission_says_is_no_markup_in_markdown_either():
    text = hostile().to_markdown()
    outside = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"(?<!\\)[<|]", re.sub(r"^\|.*\|$", lambda m: cells(m[0]), outside,
                                                flags=re.MULTILINE))  # fmt: skip
    assert "\x1b" not in text


def cells(row: str) -> str:
    """A row of a table without the bars between its cells."""
    return re.sub(r"(?<!\\)\|", "", row)


def test_an_old_judgement_a_trail_and_a_sweep_can_still_be_read():
    """Stored before there were error maps and seconds of the model."""
    old = Report.read(STORED / "old_submit.json", STORED / "old_trail.jsonl")
    assert "the stored result holds no error map" in old.to_html()
    assert "s in the model: not measured" in old.to_markdown()
    assert [e.tool for e in old.trail] == ["prompt", "submit_kernel"]
    sweep = Report.read(STORED / "old_sweep.jsonl")
    assert [row.verdict for row in sweep.sweep] == ["PASSED", "INCORRECT_VALUES"]


def stored() -> Report:
    return Report.read(
        STORED / "steps.json",
        STORED / "compare.json",
        STORED / "trail.jsonl",
        source=STORED / "submissions/steps.py",
        reference=STORED / "softmax.py",
    )


def test_a_report_of_stored_files():
    report = stored()
    page = Page(report.to_html())
    assert report.title == "steps.py for softmax"
    absent = [card for card in cards(report.result, None) if card.missing]
    assert [card.title for card in absent] == ["Memory", "Launches", "Speed of light", "Stalls"]
    assert len(page.all("p", "missing")) == len(absent) + 1  # and the roofline
    for said in page.all("p", "missing"):
        assert said.startswith(("not measured: ", "not drawn: "))
    samples = len(report.result.timing["submission"].call.samples_us)
    assert samples == 20
    assert len(page.marks("rect", "tile")) == 32 * 32 + 8


def test_the_map_of_a_wrong_output_shows_where():
    """wrong.py multiplies [40:, 70:] of 64 x 96 by 1.01; tiles are 2 x 3, so 69 is in one too."""
    report = Report.read(STORED / "wrong.json")
    (output,) = report.result.trials[-1].outputs
    wrong = {
        (i, j)
        for i, row in enumerate(output.error_map.worst)
        for j, share in enumerate(row)
        if share > 1
    }
    assert wrong == {(i, j) for i in range(20, 32) for j in range(23, 32)}
    page = Page(report.to_html())
    red = [m for step in (5, 6, 7) for m in page.marks("rect", "tile", f"e{step}")]
    assert len(red) == len(wrong) + 3  # and those of the legend
    assert page.all("p", "verdict") == ["INCORRECT_VALUES"]
    assert any("run-correctness" in said for said in page.all("div", "quote"))


def test_error_steps_part_at_the_bound():
    assert error_step(1.0) == 4
    assert error_step(1.01) == 5


def test_a_comparison_ranks_and_compares_every_two():
    report = Report.read(STORED / "compare.json")
    page = Page(report.to_html())
    ranking = report.comparison.ranking
    assert sorted(ranking) == ["quick.py", "rows.py", "steps.py"]
    assert len(page.marks("line", "whisker", "mine")) == 2
    assert len(page.marks("circle", "point", "best")) == 1
    told = page.all("tr")
    assert [row.split()[1] for row in told[1:5]] == [*ranking, "wrong.py"]
    assert "INCORRECT_VALUES" in told[4]


def test_the_index_of_a_sweep():
    page = Page(cases.index().to_html())
    assert page.all("p", "verdict") == ["7 of 10 passed"]
    (curve,) = page.marks("path", "curve")
    assert curve["d"].count("L") == 2 * 6 + 1
    assert len(page.marks("circle", "dot")) == 6
    assert sum("kernel_" in row for row in page.all("tr")) == 6


def test_fast_p_by_hand():
    rows = cases.rows()  # speedups 4, 2, 1.5, 1, 0.8, 0.5, one untimed, three failed
    found = [fast_p(rows, p) for p in (0.0, 0.1, 0.5, 0.9, 1.0, 3.0, 4.0)]
    assert found == [0.7, 0.6, 0.5, 0.4, 0.3, 0.1, 0.0]


def test_a_sweep_stored_on_disk():
    report = Report.read(STORED / "sweep.jsonl")
    assert {(row.submission.split("/")[-1], str(row.verdict)) for row in report.sweep} == {
        ("quick.py", "PASSED"),
        ("rows.py", "PASSED"),
        ("steps.py", "PASSED"),
        ("wrong.py", "INCORRECT_VALUES"),
    }
    assert all((row.speedup is None) == (row.verdict != "PASSED") for row in report.sweep)


def test_a_sweep_as_a_folder_has_a_page_for_each_verdict(tmp_path, capsys):
    folder = tmp_path / "pages"
    assert cli.main(["report", str(STORED / "sweep.jsonl"), "--out", f"{folder}/"]) == 0
    assert capsys.readouterr().out == f"4 verdicts written, with {folder}/index.html\n"
    index = Page((folder / "index.html").read_text())
    links = [a["href"] for tag, a, _ in index.elements if tag == "a" and a["href"][0] != "#"]
    assert len(set(links)) == 4
    titles = {Page((folder / link).read_text()).all("h1")[0] for link in links}
    names = ("quick", "rows", "steps", "wrong")
    assert titles == {f"{name}.py for softmax" for name in names}


def test_the_best_try_is_of_the_last_conditions():
    tries = cases.tries()
    assert best_of(tries) == 5
    elsewhere = tries[5].model_copy(update={"device_name": "another GPU"})
    assert best_of((*tries[:5], elsewhere, *tries[6:])) == 6
    assert best_of(tries[:2]) is None
    # The text of the sixth turns out to be wrong.
    found = tries[3].model_copy(update={"sha256": "d" * 64, "source_is_correct": False})
    assert best_of((*tries, found)) == 6
    assert best_of((*tries, found.model_copy(update={"dtype": "float16"}))) == 5


def test_what_is_not_known_of_a_trail_is_no_zero():
    tries = tuple(
        e.model_copy(update={"seconds": None, "tokens": None, "model_seconds": i or None})
        for i, e in enumerate(cases.tries()[:3])
    )
    (note,) = Page(Report.of(trail=tries).to_html()).all("p", "note")
    assert note == (
        "s in tools: not measured; 3 s in the model (of 2 calls); prompt tokens: not measured; "
        "completion tokens: not measured."
    )


@pytest.mark.parametrize("make", [cases.full, cases.index, stored], ids=["full", "index", "stored"])
def test_json_there_and_back(make):
    report = make()
    again = Report.from_dict(json.loads(report.to_json()))
    assert again == report
    assert again.to_html() == report.to_html()


def test_markdown_has_the_same_figures():
    text = cases.full().to_markdown()
    assert text.startswith("# PASSED: mine.py for level2/47\n")
    assert "| Precision | 0.500 of the bound | 1 of 1 trial passed |" in text
    assert "| Stalls | 41.0 % | long scoreboard; long scoreboard 41.0 %, barrier 22.0 %" in text
    assert "```python\n" + cases.SOURCE in text
    assert "unchanged (+0.8 %)" in text


def test_read_says_what_it_cannot_take(tmp_path):
    with pytest.raises(ValueError, match="one or more stored results"):
        Report.read()
    with pytest.raises(FileNotFoundError, match=r"no file .*absent"):
        Report.read(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"list\.json is nothing that a report is made of"):
        Report.read(tmp_path / "list.json")
    with pytest.raises(ValueError, match=r"steps\.json is a second result"):
        Report.read(STORED / "wrong.json", STORED / "steps.json")
    with pytest.raises(ValueError, match="a folder"):
        Report.read(tmp_path)
    with pytest.raises(ValueError, match=r"'.*\.pdf' ends in '\.pdf'"):
        cases.full().write(tmp_path / "report.pdf")
    with pytest.raises(ValueError, match="schema is None"):
        Report.from_dict({})


def test_a_file_that_changed_since_is_not_shown_as_what_was_judged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "submissions").mkdir()
    copy = tmp_path / "submissions/steps.py"
    copy.write_text((STORED / "submissions/steps.py").read_text())
    assert Report.read(STORED / "steps.json").source == copy.read_text()
    copy.write_text("# another\n")
    report = Report.read(STORED / "steps.json")
    assert report.source is None
    assert "not kept: its file is not there any more, or has changed" in report.to_html()


def test_the_verb_writes_and_prints(tmp_path, capsys):
    stored_at = str(STORED / "steps.json")
    out = str(tmp_path / "report.html")
    assert cli.main(["report", stored_at, "-o", out, "--title", "mine & yours"]) == 0
    assert capsys.readouterr().out == f"written to {out}\n"
    assert "<h1>mine &amp; yours</h1>" in (tmp_path / "report.html").read_text()
    assert cli.main(["report", stored_at]) == 0
    assert capsys.readouterr().out.startswith("# PASSED: steps.py for softmax\n")
    assert cli.main(["report", stored_at, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kernelbench_dist.report/1"
    assert document["result"] == json.loads((STORED / "steps.json").read_text())
    assert cli.main(["report", str(tmp_path / "absent.json")]) == 2
    assert "no file" in capsys.readouterr().err
    assert cli.main(["report", stored_at, "-o", "report.pdf"]) == 2
    assert ".html, .md, .json" in capsys.readouterr().err
    assert cli.main(["report", stored_at, "-o", f"{tmp_path}/"]) == 2
    assert "is no log of a sweep" in capsys.readouterr().err


def test_a_trail_alone():
    report = Report.read(STORED / "trail.jsonl")
    assert len(report.trail) == len(Trail(STORED / "trail.jsonl").read())
    page = Page(report.to_html())
    assert page.all("p", "verdict")[0].startswith("best: ")
    assert "s in the model (of 9 calls)" in " ".join(page.all("p", "note"))
