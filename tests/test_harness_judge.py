"""run_correctness and check_problem: verdicts on submissions and problems, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from submissions import answer, gather_linear, problem

from kernelbench_dist.harness import CorrectnessResult, Verdict, check_problem, run_correctness
from kernelbench_dist.problems import ProblemError

DATA = Path(__file__).parent / "data" / "judge"


def judge(source: str, of: str | Path = "47", **options):
    options = {"device": "cpu", "trials": 2, "timeout_s": 20, **options}
    return run_correctness(source, of, **options)


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "a_problem.py"
        path.write_text(text)
        return path

    return write


# Submissions


def test_a_right_one_passes_and_its_result_survives_json():
    result = judge(gather_linear(), trials=3, seed=5)
    assert result.verdict is Verdict.PASSED
    assert result.passed
    assert [t.verdict for t in result.trials] == [Verdict.PASSED] * 3
    assert result.trials[0].seed == 5
    assert len({t.seed for t in result.trials}) == 3
    output = result.trials[0].outputs[0]
    assert (output.name, output.dtype, output.mismatches) == ("output", "float32", 0)
    assert output.shape[1] == 56
    assert all(t.bitwise_equal for t in result.trials)
    assert result.replay is None
    again = CorrectnessResult.from_dict(json.loads(result.to_json()))
    assert again == result


WRONG = {
    "uninitialised": ("return torch.empty(x.shape[1], 56)", "NOT_FINITE"),
    "zeroed inputs": ("x.zero_()\nreturn torch.zeros(x.shape[1], 56)", "INPUT_MUTATED"),
    "changed inputs": ("y = self.right(x)\nx.relu_()\nreturn y", "INPUT_MUTATED"),
    "a write beside the inputs": (
        "x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(1)\nreturn self.right(x)",
        "INPUT_MUTATED",
    ),
    "a read past the end": (
        "y = self.right(x)\ny[-1] += 0 * x.as_strided((1,), (1,), x.storage_offset() + x.numel())\n"
        "return y",
        "NOT_FINITE",
    ),
    "noise": ("return self.right(x) + 0.005 * torch.randn(x.shape[1], 56)", "NONDETERMINISTIC"),
    "NaN": ("return self.right(x) * float('nan')", "NOT_FINITE"),
    "transposed": ("return self.right(x).T", "INCORRECT_SHAPE"),
    "another output": ("return self.right(x), 1", "INCORRECT_SHAPE"),
    "a float": ("return 1.0", "INCORRECT_SHAPE"),
    "None": ("return None", "INCORRECT_SHAPE"),
    "float64": ("return self.right(x).double()", "INCORRECT_DTYPE"),
    "a meta tensor": ("return self.right(x).to('meta')", "INCORRECT_DTYPE"),
    "rounded to bfloat16": ("return self.right(x).bfloat16().float()", "INCORRECT_VALUES"),
    "rounded to TF32": (
        "i = torch.cat(x.unbind(0), -1).view(torch.int32)\n"
        "return self.proj(((i + 4096) & ~8191).view(torch.float32))",
        "INCORRECT_VALUES",
    ),
    "rank 0's part": ("z = torch.zeros_like(x)\nz[0] = x[0]\nreturn self.right(z)",
                      "INCORRECT_VALUES"),
    "ranks reversed": ("return self.right(x.flip(0))", "INCORRECT_VALUES"),
    "the last row left out": ("y = self.right(x)\ny[-1] = 0\nreturn y", "INCORRECT_VALUES"),
    "the first answer kept": (
        "if not hasattr(self, 'y'):\n    self.y = self.right(x)\nreturn self.y", "INCORRECT_VALUES"
    ),
    "an exception": ("raise ValueError('no')", "RUNTIME_ERROR"),
    "too much memory": ("return torch.empty(1 << 45)", "OUT_OF_MEMORY"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_gets_its_verdict(name):
    body, verdict = WRONG[name]
    result = judge(gather_linear(body), trials=1)
    assert result.verdict == verdict
    assert not result.passed
    assert result.reason
    assert result.advice


def test_parameters_that_differ_are_named():
    result = judge(gather_linear().replace("self.proj = ", "self.lin = "))
    assert result.verdict is Verdict.PARAMETERS_DIFFER
    assert "lacks proj.weight (56, 128)" in result.reason
    assert "has lin.weight (56, 128)" in result.reason
    result = judge(gather_linear().replace("ranks * features, outputs", "7, outputs"))
    assert "proj.weight is (56, 7), and (56, 128) there" in result.reason


def test_weights_are_copied_so_that_the_order_of_draws_does_not_matter():
    source = gather_linear().replace(
        "        self.proj =",
        "        torch.manual_seed(3)\n        torch.randn(7)\n        self.proj =",
    )
    assert judge(source).passed


def test_a_failed_trial_is_replayed_by_its_seed_and_sizes():
    source = gather_linear("return self.right(x) + (x.shape[1] > 12)")
    result = judge(source, sizes=["B=12", "B=13"], trials=1)
    assert [t.verdict.value for t in result.trials] == ["PASSED", "INCORRECT_VALUES"]
    failed = result.trials[-1]
    assert failed.sizes == {"B": 13}
    assert f"--seed {failed.seed} --trials 1" in result.replay
    assert "--sizes B=13" in result.replay
    again = judge(source, sizes=failed.sizes, trials=1, seed=failed.seed)
    assert again.trials == (failed,)


def test_temporary_files_have_a_place_where_it_may_write():
    """Triton, among others, compiles by way of them."""
    body = """
        import tempfile
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
        return self.right(x)
    """
    result = judge(gather_linear(body))
    assert result.passed, result.reason


def test_where_it_raised_is_told_by_file_and_line():
    result = judge(gather_linear("y = 1\nraise KeyError('this')"))
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert result.reason.startswith("forward() raised KeyError: 'this' (")
    assert result.reason.endswith(":17, in forward)")
    result = judge("x = (\n")
    assert result.verdict is Verdict.COMPILE_ERROR
    assert result.reason.startswith("<source>:1: ")
    result = judge("x = 1\ny = 2\n")
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert "ModelNew" in result.reason


def test_gradients_are_judged_as_outputs_are():
    detached = "w = self.proj.weight.detach()\nreturn nn.functional.linear(\n"
    detached += "    torch.cat(x.unbind(0), -1), w, self.proj.bias)"
    assert judge(gather_linear(detached)).passed
    result = judge(gather_linear(detached), backward=True)
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert "grad of proj.weight" in result.reason
    result = judge(gather_linear(), backward=True)
    assert result.passed
    names = [o.name for o in result.trials[0].outputs]
    assert names == ["output", "grad of input 0", "grad of proj.weight", "grad of proj.bias"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype):
    assert judge(gather_linear(), dtype=dtype).passed
    # Every part in the output's own 16 bits, summed up there, is not what is asked for.
    result = judge(
        gather_linear(
            "y = self.proj.bias\n"
            "for part, w in zip(torch.cat(x.unbind(0), -1).split(1, -1), self.proj.weight.T):\n"
            "    y = y + part * w\n"
            "return y"
        ),
        dtype=dtype,
    )
    assert result.passed == (dtype == "float64")


def test_one_that_takes_no_sizes_is_judged_at_its_own():
    source = gather_linear().replace(", ranks, features, outputs", "")
    source = source.replace("ranks * features, outputs", "128, 56")
    result = judge(source, sizes="tiny")
    assert result.passed
    assert any("takes no arguments" in note for note in result.notes)
    assert judge(source, sizes="K=57").verdict is Verdict.PARAMETERS_DIFFER


def test_every_rank_of_a_distributed_program_is_judged():
    right = """
import torch, torch.distributed as dist
from torch import nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(5))

    def forward(self, x):
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x.contiguous())
        return (parts[0] + parts[1]) * self.scale
"""
    result = judge(right, DATA / "two_ranks.py", trials=1)
    assert result.passed, result.reason
    assert result.options.world_size == 2
    assert [o.rank for o in result.trials[0].outputs] == [0, 1]
    assert len(result.trials[0].shapes) == 2
    # Right on rank 0, which is all that some judges look at.
    wrong = right.replace("* self.scale", "* self.scale + dist.get_rank()")
    result = judge(wrong, DATA / "two_ranks.py", trials=1)
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert "on rank 1" in result.reason
    # No communication at all.
    result = judge(right.replace("parts[0] + parts[1]", "x"), DATA / "two_ranks.py", trials=1)
    assert result.verdict is Verdict.INCORRECT_VALUES


FORGED = {
    "bytes": "b'x' * 1000",
    "a pickle": "struct.pack('<Q', 20) + pickle.dumps(forge)[:20]",
    "no outputs": "forge({'ok': True, 'tensors': []})",
    "outputs of nothing": (
        "forge({'ok': True, 'outputs': [{'name': 'output'}], 'shapes': [5], 'new_threads': 0,"
        " 'tensors': []})"
    ),
    "right shapes, no values": (
        "forge({'ok': True, 'outputs': [{'name': 'output', 'device': 'cpu', 'is_real': True}],"
        " 'shapes': [['float32', [x.shape[1], 56]]], 'new_threads': 0, 'tensors': []})"
    ),
    "a build": "forge({'build': {'name': '../../x', 'cpp_sources': [1]}, 'tensors': []})",
    "many messages": "forge({'ok': True, 'tensors': []}) * 5",
    "a deep one": "struct.pack('<Q', 200000) + b'[' * 200000",
}


@pytest.mark.parametrize("what", FORGED)
def test_messages_that_it_forges_are_no_verdict(what):
    body = f"""
        import json, pickle, struct
        def forge(message):
            data = json.dumps(message).encode()
            return struct.pack('<Q', len(data)) + data
        os.write(3, {FORGED[what]})
        return self.right(x)
    """
    result = judge(gather_linear(body, before="import os\n"), trials=1)
    assert result.verdict in (Verdict.RUNTIME_ERROR, Verdict.INCORRECT_SHAPE), result.reason
    assert judge(gather_linear(), trials=1).passed


@pytest.mark.slow
def test_many_slow_steps_end_together():
    source = gather_linear("import time\ntime.sleep(0.9)\nreturn self.right(x)")
    result = judge(source, trials=10, timeout_s=1.0)
    assert result.verdict is Verdict.TIMEOUT
    assert "all steps together took over 30 s" in result.reason


# Problems


def test_an_undefined_name_in_a_problem_is_the_problem_s_fault():
    result = judge(answer("x + 1"), DATA / "undefined_name.py")
    assert result.verdict is Verdict.PROBLEM_ERROR
    assert "name 'D' is not defined" in result.reason
    assert "undefined_name.py:13" in result.reason
    assert result.verdict.exit_code == 2


BROKEN = {
    "shapes contradict the weights": (
        problem("nn.functional.linear(x, torch.ones(2, 5))"),
        "forward() raised RuntimeError",
    ),
    "crashes on some draws": (
        problem("x + 1 if x.shape[0] else 1 / 0",
                "torch.randn(int(torch.randint(0, 2, ())), 3)"),
        "ZeroDivisionError",
    ),
    "answers hardly depend on the input": (problem("x * 0 + 1"), "'a constant'"),
    "all zeros": (problem("(x > 100).float()"), "'zeros'"),
    "the identity": (problem("x * 1"), "'the input itself'"),
    "no tensor": (problem("1.0"), "output is a float; a torch.Tensor is accepted"),
    "changes its inputs": (problem("x.add_(1)"), "changes its inputs"),
    "random": (problem("x + torch.rand(1)"), "another answer when it runs again"),
    "ranks that hold the same": (
        problem("x.sum(0)", "torch.randn(1, 5).expand(3, 5).clone()"),
        "'ranks reversed'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_problem_is_never_a_failed_kernel(name, write):
    text, said = BROKEN[name]
    path = write(text)
    results = [check_problem(path, device="cpu", seed=seed) for seed in range(4)]
    broken = [r for r in results if r.verdict is Verdict.PROBLEM_ERROR]
    assert broken
    assert said in broken[0].reason
    if name != "crashes on some draws":
        assert judge(answer("x"), path).verdict is Verdict.PROBLEM_ERROR


def test_trivial_answers_fail_on_problem_47_as_it_declares():
    result = check_problem("47", device="cpu")
    assert result.passed
    assert result.trivial_answers == {
        "zeros": False,
        "a constant": False,
        "a remembered answer": False,
        "rank 0's part only": False,
        "ranks reversed": False,
        "the mean over ranks": False,
        "no communication": False,
    }


def test_trivial_answers_that_are_right_must_be_declared(write):
    declared = 'RIGHT_TRIVIAL_ANSWERS = ("ranks reversed", "the mean over ranks")'
    result = check_problem(write(problem("x.sum(0)", more=declared)), device="cpu")
    assert result.passed, result.reason
    assert result.trivial_answers["ranks reversed"]
    too_much = 'RIGHT_TRIVIAL_ANSWERS = ("ranks reversed", "the mean over ranks", "zeros")'
    result = check_problem(write(problem("x.sum(0)", more=too_much)), device="cpu")
    assert "declares 'zeros', which fails" in result.reason
    unknown = 'RIGHT_TRIVIAL_ANSWERS = ("none",)'
    result = check_problem(write(problem("x.sum(0)", more=unknown)), device="cpu")
    assert "'none'" in result.reason


def test_a_problem_may_ask_for_the_same_bits(write):
    noisy = answer("x.sum(0) * (1 + 4e-7 * torch.rand(300))")
    right = 'RIGHT_TRIVIAL_ANSWERS = ("ranks reversed", "the mean over ranks")'
    result = judge(noisy, write(problem("x.sum(0)", "torch.rand(4, 300) + 1", right)))
    assert result.passed
    assert result.trials[0].bitwise_equal is False
    right += "\nDETERMINISTIC = True"
    result = judge(noisy, write(problem("x.sum(0)", "torch.rand(4, 300) + 1", right)))
    assert result.verdict is Verdict.NONDETERMINISTIC


def test_integers_are_judged_exactly(write):
    path = write(problem("x.cumsum(0)", "torch.randint(-9, 9, (5, 7)) + 2**55"))
    assert judge(answer("x.cumsum(0)"), path).passed
    result = judge(answer("x.double().cumsum(0).long()"), path)
    assert result.verdict is Verdict.INCORRECT_VALUES
    assert "must be equal" in result.reason


# Wrong use


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"trials": 0}, "trials is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"sizes": "huge"}, "sizes 'huge'; accepted: names (tiny, small, large, awkward"),
        ({"sizes": "Q=3"}, "size 'Q'; the problem has R, B, H, K"),
        ({"sizes": {"B": -3}}, "size B=-3; 0 or more"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"memory_limit_bytes": 5}, "memory_limit_bytes is 5"),
    ],
)
def test_a_bad_option_is_named_with_what_is_accepted(options, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        judge(gather_linear(), **options)


def test_unknown_problems_and_files():
    with pytest.raises(ProblemError, match="no problem '4711'"):
        judge(gather_linear(), "4711")
    with pytest.raises(FileNotFoundError):
        judge(Path("nowhere.py"))


def test_a_gpu_that_is_not_there_is_the_machine_s_fault():
    missing = f"cuda:{torch.cuda.device_count()}"
    result = run_correctness(gather_linear(), "47", device=missing)
    assert result.verdict is Verdict.ENVIRONMENT_ERROR
    assert result.verdict.exit_code == 3


def test_random_states_and_grad_mode_of_the_caller_stay():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    judge(gather_linear(), trials=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()
