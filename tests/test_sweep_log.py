"""The log of a sweep: nothing in it is lost, torn or doubled."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import lines, verdict

from kernelbench_dist.harness import Verdict
from kernelbench_dist.harness.sweep import (
    LogError,
    results,
)
from kernelbench_dist.harness.sweep._log import Log


def test_a_log_says_what_it_is_and_holds_whole_results(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path) as log:
        log.add_verdict("a", "a.py", "p", verdict("a", Verdict.TIMEOUT))
        log.add_attempt("b", "b.py", "p", verdict("b", Verdict.ENVIRONMENT_ERROR))
    head, run, first, second = lines(path)
    assert head["schema"] == "kernelbench_dist.sweep/1"
    assert head["version"]
    assert (run["line"], run["pid"]) == ("run", os.getpid())
    assert (first["line"], first["key"], first["result"]["verdict"]) == ("verdict", "a", "TIMEOUT")
    assert (second["line"], second["key"]) == ("attempt", "b")
    with Log(path) as log:
        assert list(log.finished) == ["a"]
    ((entry, result),) = results(path)
    assert (entry.submission, entry.verdict, entry.seconds) == ("a.py", Verdict.TIMEOUT, 1.5)
    assert result.to_dict() == first["result"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    with Log(path) as log:
        for key in "abc":
            log.add_verdict(key, f"{key}.py", "p", verdict(key))
    return path.read_bytes()


@given(data=st.data())
def test_a_torn_line_is_cut_off_and_no_other_is_lost(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.mktemp("torn") / "log.jsonl"
    path.write_bytes(whole[:size])
    # A verdict counts once its JSON is whole, whether or not the newline made it.
    starts = [whole.index(b'{"line": "verdict", "key": "%s"' % key) for key in (b"a", b"b", b"c")]
    ends = [whole.index(b"\n", start) for start in starts]
    kept = [key for key, end in zip("abc", ends, strict=True) if end <= size]
    assert [entry.key for entry, _ in results(path)] in (kept, kept[:-1])
    with Log(path) as log:
        assert list(log.finished) == kept
        log.add_verdict("d", "d.py", "p", verdict("d"))
    assert lines(path)[0]["schema"]
    assert [one["key"] for one in lines(path) if one.get("line") == "verdict"] == [*kept, "d"]
    with Log(path) as log:
        assert list(log.finished) == [*kept, "d"]


def test_a_writer_killed_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path, told = tmp_path / "log.jsonl", set()
    random_ = random.Random(1)
    for _ in range(15):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException), Log(path) as log:
                for i in range(len(log.finished), 1 << 30):
                    log.add_verdict(str(i), "x" * 3000, "p", verdict())
                    os.write(write_end, f"{i}\n".encode())  # it counts from here on
            os._exit(1)
        os.close(write_end)
        time.sleep(random_.uniform(0.01, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with open(read_end) as pipe:
            told |= {line.strip() for line in pipe}
    with Log(path) as log:
        finished = list(log.finished)
    assert len(finished) > 15
    assert finished == [str(i) for i in range(len(finished))]
    assert told <= set(finished)


def test_a_doubled_key_is_refused_and_found(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path) as log:
        log.add_verdict("a", "a.py", "p", verdict())
        with pytest.raises(LogError, match=r"holds a verdict for a\.py already"):
            log.add_verdict("a", "a.py", "p", verdict())
    with open(path, "a") as file:
        file.write(json.dumps(lines(path)[-1]) + "\n")
    with pytest.raises(LogError, match="two verdicts with the key a"):
        Log(path)


@pytest.mark.parametrize("text", ["# Notes", "# Notes\nof mine", '{"schema": "other/1"}\n', "{}\n"])
def test_a_file_that_is_no_log_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.md"
    path.write_text(text)
    with pytest.raises(LogError, match="no l"):
        Log(path)
    assert path.read_text() == text


def test_a_broken_line_in_the_middle_is_named(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(whole.replace(b'{"line": "verdict"', b'"line": "verdict"', 1))
    with pytest.raises(LogError, match=r"log\.jsonl:3 is no line"):
        Log(path)


def test_two_sweeps_cannot_share_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path), pytest.raises(LogError, match=rf"{path} .*process {os.getpid()} on "):
        Log(path)
    with Log(path):  # and it is free again
        pass


def test_a_full_disk_tears_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path) as log:
        log.add_verdict("a", "a.py", "p", verdict())
        before = path.read_bytes()
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        with pytest.raises(OSError, match=r"No space left.*log\.jsonl"):
            log.add_verdict("b", "b.py", "p", verdict())
        assert path.read_bytes() == before
        assert list(log.finished) == ["a"]
