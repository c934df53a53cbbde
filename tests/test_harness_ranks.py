"""Problems of several ranks, judged on virtual ranks and on gloo processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from submissions import problem

from kernelbench_dist.distributed_collectives import run_spmd
from kernelbench_dist.harness import (
    CorrectnessResult,
    Verdict,
    _timing,
    check_problem,
    compile_kernel,
    fuzz,
    replay,
    run_correctness,
    submit_kernel,
)
from kernelbench_dist.harness._channel import ChannelError
from kernelbench_dist.harness._judge import make_limits, make_options
from kernelbench_dist.harness._memory import filled_with_nan
from kernelbench_dist.harness._ranks import pack, unpack
from kernelbench_dist.harness._session import Session
from kernelbench_dist.harness._side import JudgedError
from kernelbench_dist.harness._submission import read_submission

DATA = Path(__file__).parent / "data" / "ranks"
MEAN = DATA / "all_reduce_data_parallel.py"
R = 4

on_both = pytest.mark.parametrize(
    "ranks", ["virtual", pytest.param("gloo", marks=pytest.mark.slow)]
)


def judge(submission: str | Path, of: Path = MEAN, **options):
    options = {"device": "cpu", "trials": 1, "timeout_s": 20, **options}
    return run_correctness(submission, of, **options)


# What each of the six computes, from all ranks' inputs and the parameters, with no ranks at all.


def _means(xs, p):
    mean = sum(x @ p["linear.weight"].T for x in xs) / R
    return [mean] * R


def _broadcast(xs, p):
    return [F.linear(xs[0], p["linear.weight"], p["linear.bias"])] * R


def _gathered(xs, p):
    columns = xs[0].shape[1] // R
    return [torch.cat([0.5 * x[:, r * columns :][:, :columns] for r, x in enumerate(xs)], 1)] * R


def _scattered(xs, p):
    return list((sum(xs) / R).reshape(R, -1, 32))


def _exchanged(xs, p):
    parts = torch.stack([x.reshape(R, -1, 64) for x in xs])
    return [1.25 * part.reshape(-1, 64) for part in parts.transpose(0, 1)]


def _two_stages(xs, p):
    hidden = F.linear(xs[0], p["first.weight"], p["first.bias"]).clamp(min=0)
    return [F.linear(hidden, p["second.weight"], p["second.bias"])] * R


FORMULAS = {
    "all_reduce_data_parallel": _means,
    "broadcast_parameter_shard": _broadcast,
    "all_gather_tensor_parallel": _gathered,
    "reduce_scatter_grad_shard": _scattered,
    "all_to_all_permutation": _exchanged,
    "pipeline_stage_p2p": _two_stages,
}


def found_by(name: str, ranks: str, seed: int = 11):
    """Inputs, parameters, and the reference's outputs in float64 and in float32, of each rank."""
    path = DATA / f"{name}.py"
    options = make_options(path, device="cpu", seed=seed, trials=1, ranks=ranks)
    with Session(path, options, make_limits(60.0, 1.0, None)) as session:
        session.open_problem()
        session.construct_reference(seed, {})
        reply, held = session._constructed[0]
        names = reply["state"]
        parameters = dict(zip(names, held[len(held) - len(names) :], strict=True))
        draw = session.draw(seed)
        inputs = [tensors[0] for tensors in draw.tensors]
        exact = [e.values[0] for e in session.expect(draw)]
        eager = [t[0] for _, t in session.reference.ask("eager", {"id": draw.id})]
        return inputs, parameters, exact, eager


@pytest.mark.parametrize("name", FORMULAS)
@on_both
def test_files_of_the_original_form_communicate(name, ranks):
    inputs, parameters, exact, eager = found_by(name, ranks)
    wide = {key: value.double() for key, value in parameters.items()}
    right = FORMULAS[name]([x.double() for x in inputs], wide)
    assert len(exact) == len(eager) == R
    assert not any(torch.equal(inputs[0], x) for x in inputs[1:])
    assert len({x.shape for x in inputs}) == 1
    for own, got, wanted in zip(exact, eager, right, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMULAS)
def test_virtual_ranks_give_gloos_values(name):
    inputs, _, exact, eager = found_by(name, "virtual")
    gloos_inputs, _, gloos_exact, gloos_eager = found_by(name, "gloo")
    for a, b in zip(inputs, gloos_inputs, strict=True):
        assert torch.equal(a, b)
    # Where there is a sum, gloo's order of its terms is another.
    for a, b in zip(exact, gloos_exact, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
    for a, b in zip(eager, gloos_eager, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_sizes_vary_from_draw_to_draw_and_not_from_rank_to_rank():
    rows = set()
    for seed in range(6):
        inputs, *_ = found_by("reduce_scatter_grad_shard", "virtual", seed)
        assert len({x.shape for x in inputs}) == 1
        rows.add(inputs[0].shape[0] // R)
    assert rows <= {3, 4, 5}
    assert len(rows) > 1


@on_both
@pytest.mark.parametrize("name", ["reduce_scatter_grad_shard", "pipeline_stage_p2p"])
def test_the_problems_are_in_order(name, ranks):
    result = check_problem(DATA / f"{name}.py", device="cpu", ranks=ranks)
    assert result.passed, result.reason
    assert (result.options.world_size, result.options.ranks) == (R, ranks)
    assert not any(result.trivial_answers.values())


# Submissions


@on_both
def test_an_honest_one_passes(ranks):
    result = judge(DATA / "honest.py", trials=2, ranks=ranks)
    assert result.passed, result.reason
    assert [o.rank for o in result.trials[0].outputs] == list(range(R))
    assert all(o.mismatches == 0 for t in result.trials for o in t.outputs)
    assert (result.options.world_size, result.options.ranks) == (R, ranks)
    assert CorrectnessResult.from_dict(result.to_dict()) == result
    report = str(result)
    assert {"virtual": "4 virtual ranks", "gloo": "4 ranks on gloo"}[ranks] in report


@on_both
@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("no_communication", "elements are wrong"),
        ("rank_0_only", "on rank 1: "),
        ("last_rank_wrong", "on rank 3: 1 of "),
    ],
)
def test_wrong_values_on_any_rank_are_found(name, where, ranks):
    result = judge(DATA / f"{name}.py", ranks=ranks)
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert where in result.reason
    assert ("--ranks gloo" in result.replay) == (ranks == "gloo")


ENDED = {
    "deadlock": (
        "no rank can go on",
        ["rank 0: all_reduce(shape (", "deadlock_", ":15; not called yet by rank 2", "rank 2: has"],
    ),
    "mismatch": (
        "rank 3 does not fit rank 0 in call 1",
        ["they differ in op: sum and max", "rank 3: all_reduce(", "mismatch_"],
    ),
    "raises": ("forward() raised ValueError: no rows for rank 1", ["in forward", "on rank 1"]),
    "exits": ("forward() raised SystemExit: 0", ["on rank 1"]),
    "unmatched": ("nobody met these calls", ["rank 0: send to rank 1("]),
}


@pytest.mark.parametrize("name", ENDED)
def test_ranks_that_cannot_go_on_are_found_at_once(name):
    # Were it found by the limit of time, it would be a TIMEOUT.
    result = judge(DATA / f"{name}.py")
    assert result.verdict is Verdict.RUNTIME_ERROR
    said, parts = ENDED[name]
    assert said in result.reason
    assert "/tmp" not in result.reason
    assert all(part in result.reason for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deadlock", "raises"])
def test_on_gloo_they_run_into_the_limit_of_time(name):
    assert judge(DATA / f"{name}.py", ranks="gloo", timeout_s=3).verdict is Verdict.TIMEOUT


def test_ranks_are_told_apart_within_one_process():
    """Each has its own module, random state and environment."""
    submission = """
import os
import torch, torch.distributed as dist
from torch import nn

calls = []

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)

    def forward(self, x):
        rank = dist.get_rank()
        calls.append(rank)
        assert set(calls) == {rank} and int(os.environ["RANK"]) == rank
        torch.manual_seed(rank)
        first = torch.rand(1)
        y = self.linear(x)
        dist.all_reduce(y)
        again = torch.rand(1)
        torch.manual_seed(rank)
        assert torch.equal(torch.rand(2), torch.cat([first, again]))
        return y / dist.get_world_size()
"""
    result = judge(submission)
    assert result.passed, result.reason


def test_uninitialised_memory_holds_nan_until_the_last_rank_has_returned():
    def program():
        with filled_with_nan():
            dist.barrier()
            filled = bool(torch.empty(1 << 12).isnan().all())
        return filled

    was = torch.get_deterministic_debug_mode()
    assert run_spmd(program, R, device="cpu") == [True] * R
    assert torch.get_deterministic_debug_mode() == was


BROKEN = """
import torch, torch.distributed as dist
from torch import nn

WORLD_SIZE = 3

class Model(nn.Module):
    def forward(self, x):
        if dist.get_rank() {condition}:
            dist.all_reduce(x.clone())
        return x * 2

def get_inputs():
    return [torch.randn(4)]

def get_init_inputs():
    return []
"""


def test_a_reference_that_deadlocks_is_a_broken_problem(write):
    path = write(BROKEN.format(condition="!= 1"))
    result = check_problem(path, device="cpu")
    assert result.verdict is Verdict.PROBLEM_ERROR
    assert result.reason.startswith("in the problem, forward(): no rank can go on")
    assert "rank 1: has returned" in result.detail
    result = judge(DATA / "honest.py", path)
    assert result.verdict is Verdict.PROBLEM_ERROR


@pytest.mark.slow
def test_gradients_of_every_rank_are_judged(write):
    reference = """
import torch
from torch import nn
from torch.distributed.nn.functional import all_reduce

WORLD_SIZE = 2
BACKWARD = True

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return all_reduce(x * self.scale)

def get_inputs():
    return [torch.randn(3, 5)]

def get_init_inputs():
    return []
"""
    path = write(reference)
    right = reference.replace("class Model(", "class ModelNew(")
    result = judge(right, path)
    assert result.passed, result.reason
    names = [(o.rank, o.name) for o in result.trials[0].outputs]
    each = ["output", "grad of input 0", "grad of scale"]
    assert names == [(rank, name) for rank in range(2) for name in each]
    # The sum's gradient is the sum of the ranks' gradients, and not each one's own.
    wrong = right.replace(
        "return all_reduce(x * self.scale)",
        "y = x * self.scale\n        return y + (all_reduce(y.detach()) - y.detach())",
    )
    result = judge(wrong, path)
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert "grad of" in result.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMULAS)
def test_each_reference_passes_as_a_submission(name):
    path = DATA / f"{name}.py"
    text = path.read_text().replace("class Model(", "class ModelNew(")
    result = judge(text.replace("from kernelbench.", "from kernelbench_dist."), path)
    assert result.passed, result.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "whose"),
    [
        ("virtual", "all 4 virtual ranks together, on one CPU"),
        ("gloo", "the slowest of 4 processes on gloo, which share this machine"),
    ],
)
def test_the_time_is_named_for_what_it_is(ranks, whose):
    result = submit_kernel(DATA / "honest.py", MEAN, device="cpu", trials=1, rounds=8, ranks=ranks)
    assert result.passed, result.reason
    assert result.timing_of == result.to_dict()["timing_of"] == whose
    assert whose in result.reason
    assert whose in " ".join(str(result).split("\ntime ")[1].split())
    assert result.timing is not None
    assert result.timing["submission"].call.median_us > 0


@pytest.mark.gpu
@pytest.mark.slow
def test_virtual_ranks_on_a_gpu():
    result = submit_kernel(DATA / "honest.py", MEAN, device="cuda", trials=1, rounds=8)
    assert result.passed, result.reason
    assert "all 4 virtual ranks together, on one " in (result.timing_of or "")
    assert result.timing is not None
    assert result.timing["submission"].warm is not None
    result = judge(DATA / "last_rank_wrong.py", device="cuda", timeout_s=60)
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert "on rank 3: 1 of " in result.reason
    result = judge(DATA / "deadlock.py", device="cuda", timeout_s=60)
    assert "no rank can go on" in result.reason


@pytest.mark.slow
def test_wrong_only_while_timed_is_found_on_every_rank():
    text = (DATA / "honest.py").read_text()
    count = "        self.calls = getattr(self, 'calls', 0) + 1\n"
    late = text.replace("        y = self.linear", count + "        y = self.linear").replace(
        "return y.t().contiguous()",
        "return y.t().contiguous() + (self.calls > 12 and dist.get_rank() == 3)",
    )
    result = submit_kernel(late, MEAN, device="cpu", trials=1, rounds=8)
    assert result.verdict is Verdict.CHEATING
    assert "while timed: output on rank 3" in result.reason


def test_both_sides_start_again_as_they_were():
    """As where a call of all ranks cannot be captured as a graph."""
    submission = read_submission(DATA / "honest.py")
    options = make_options(MEAN, device="cpu", seed=1, trials=1)
    with Session(MEAN, options, make_limits(20.0, 1.0, None), submission) as session:
        session.open_problem()
        session.construct_reference(5, {"B": 3})
        session.open_submission()
        before = session._constructed[0][1][0]
        _timing._start_again(session, {"submission": (submission, session.candidate)})
        assert torch.equal(session._constructed[0][1][0], before)
        draw = session.draw(5)
        assert {x.shape[0] for (x,) in draw.tensors} <= {2, 3, 4}
        assert session.judge_draw(draw, {"B": 3}).passed


def test_a_submission_compiles_and_builds_on_virtual_ranks():
    assert compile_kernel(DATA / "honest.py", MEAN, device="cpu").passed


@pytest.mark.slow
def test_a_failure_of_fuzz_is_replayed_on_the_same_ranks(tmp_path):
    options = {"device": "cpu", "examples": 3, "time_limit_s": 20, "store": tmp_path}
    result = fuzz(DATA / "deadlock.py", MEAN, **options)
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert "no rank can go on" in result.reason
    again = replay(result.stored)
    assert (again.verdict, again.options.ranks) == (Verdict.RUNTIME_ERROR, "virtual")
    assert again.options.world_size == R


def test_a_wrong_kind_of_ranks_is_refused():
    with pytest.raises(ValueError, match="ranks is 'nccl'; 'virtual' or 'gloo' is accepted"):
        judge(DATA / "honest.py", ranks="nccl")


def test_a_problem_of_one_rank_has_no_ranks_to_name(write):
    path = write(problem("x + 1"))
    result = check_problem(path, device="cpu", ranks="gloo")
    assert result.passed, result.reason
    assert "on gloo" not in str(result)
    assert result.options.world_size == 1


# Messages


def test_all_ranks_parts_go_in_one_message():
    a, b = torch.arange(3), torch.ones(2)
    message, tensors = pack([({"x": 1}, [a, b]), ({}, []), ({"x": 3}, [b])])
    parts = unpack(message, tensors, 3)
    assert [own for own, _ in parts] == [{"x": 1}, {}, {"x": 3}]
    assert [len(given) for _, given in parts] == [2, 0, 1]
    assert parts[0][1][0] is a
    assert parts[2][1][0] is b


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"ranks": [{}], "counts": [1]},
        {"ranks": [{}, {}], "counts": [1, 1]},
        {"ranks": [{}, {}], "counts": [2, -1]},
        {"ranks": [{}, {}], "counts": [True, 0]},
        {"ranks": [{}, 1], "counts": [1, 0]},
        {"ranks": {}, "counts": [1, 0]},
        {"ranks": [{}, {}], "counts": math.nan},
    ],
)
def test_a_forged_message_is_none(message):
    with pytest.raises(ChannelError, match="no answers of 2 ranks"):
        unpack(message, [torch.ones(1)], 2)


def test_a_worker_whose_ranks_have_ended_is_gone():
    options = make_options(MEAN, device="cpu", seed=1, trials=1)
    with Session(MEAN, options, make_limits(20.0, 1.0, None)) as session:
        session.open_problem()
        with pytest.raises(JudgedError, match="in the problem, expect raised KeyError: 7") as first:
            session.reference.ask("expect", {"id": 7})
        assert first.value.verdict is Verdict.PROBLEM_ERROR
        with pytest.raises(JudgedError, match="exit code 0"):
            session.reference.ask("drop", {"id": 7})
