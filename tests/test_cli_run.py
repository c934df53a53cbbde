"""The verb `run`: a script under torchrun's options, on virtual ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelbench_dist import cli

TRAIN = Path(__file__).with_name("data") / "run" / "train.py"

HEAD = """
import json, os, sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")  # whatever its name is
rank = dist.get_rank()
"""


@pytest.fixture
def run(write, capsys):
    """Runs a script of that text after HEAD; gives the exit code, stdout and stderr."""

    def run_script(text, *options, arguments=(), ranks=2):
        path = write(HEAD + text, "script.py")
        code = cli.main(["run", "--nproc-per-node", str(ranks), *options, str(path), *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run_script


# What a script finds


def test_a_script_finds_what_torchrun_gives_it(run, tmp_path):
    text = """
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
found = [os.environ.get(name) for name in names] + [__name__, __file__, sys.path[0], os.getcwd()]
print(json.dumps([sys.argv, *found, dist.get_backend(), dist.is_torchelastic_launched()]))
"""
    code, out, _ = run(text, "--nnodes=1:2", "--master-port", "1234", arguments=["--lr", "1"])
    assert code == 0
    script = str(tmp_path / "script.py")
    assert [json.loads(line) for line in out.splitlines()] == [
        [
            [script, "--lr", "1"], str(rank), "4", "0", "1", "127.0.0.1", "1234",
            "__main__", script, str(tmp_path), os.getcwd(), "nccl", True,
        ]
        for rank in range(4)
    ]  # fmt: skip


def test_the_process_is_left_as_it_was(run):
    before = sys.argv, sys.path[:], sys.modules["__main__"], dict(os.environ), sys.stdout
    assert run("sys.argv.append('mine'); sys.path.append('mine')", "--prefix")[0] == 0
    assert (sys.argv, sys.path[:], sys.modules["__main__"], dict(os.environ), sys.stdout) == before


def test_torchruns_options_are_accepted(run):
    options = [
        "--standalone", "--rdzv-backend=c10d", "--rdzv_endpoint", "localhost:0", "--rdzv-id", "7",
        "--rdzv_conf=a=b", "--master_addr", "host", "--node-rank", "0", "--max-restarts=3",
        "--monitor-interval", "1", "--start_method=spawn", "--role", "x", "--local-addr", "here",
        "--virtual-local-rank",
    ]  # fmt: skip
    code, out, _ = run("print(os.environ['MASTER_ADDR'], os.environ['TORCHELASTIC_RUN_ID'])",
                       *options, ranks=1)  # fmt: skip
    assert (code, out) == (0, "host 7\n")


def test_each_rank_has_a_main_of_its_own(write, capsys):
    text = """
import dataclasses, pickle, threading, typing, __main__

@dataclasses.dataclass
class Point:
    x: int
    y: typing.ClassVar[int] = 5  # dataclasses looks in __main__ for what this is

Point.owner = rank
others = [None] * 2
dist.all_gather_object(others, Point(rank))
dist.barrier()

def look(places):
    places += [__main__.Point, type(pickle.loads(pickle.dumps(Point(1))))]

places = [type(point) for point in others]
look(places)
thread = threading.Thread(target=look, args=(places,))
thread.start()
thread.join()
path = f"{os.path.dirname(__file__)}/{rank}.pt"
torch.save(Point(7), path)
places.append(type(torch.load(path, weights_only=False)))
fields = [field.name for field in dataclasses.fields(Point)]
print(others, fields, [place is Point for place in places], Point.owner == rank)
"""
    path = write(f"from __future__ import annotations\n{HEAD}{text}", "script.py")
    assert cli.main(["run", "--nproc-per-node", "2", str(path)]) == 0
    expected = f"[Point(x=0), Point(x=1)] ['x'] {[True] * 7} True\n"
    assert capsys.readouterr().out == expected * 2


def test_a_module_is_run_as_python_does(write, monkeypatch, capsys, tmp_path):
    write("print('imported')", "package/__init__.py")
    write("NAME = 'helper'", "package/helper.py")
    write("from .helper import NAME\nimport sys\nprint(NAME, __name__, sys.argv, __package__)",
          "package/tool.py")  # fmt: skip
    write("import sys\nprint(__spec__.name, sys.path[0])", "package/__main__.py")
    monkeypatch.chdir(tmp_path)
    for name in ("package.tool", "package"):
        command = ["--nproc-per-node=1", "-m", name, "-x"]
        told = subprocess.run(
            [sys.executable, "-m", *command[2:]], capture_output=True, text=True, check=True
        )
        assert cli.main(["run", *command]) == 0
        assert capsys.readouterr().out == told.stdout
        for module in [module for module in sys.modules if module.startswith("package")]:
            del sys.modules[module]


# What is printed


def test_lines_are_prefixed_and_whole(run):
    text = """
for part in ("one", " line"):
    print(part, end="", flush=True)
    dist.barrier()
print(" of", rank)
sys.stderr.write(f"error {rank}\\nand the rest")
"""
    code, out, err = run(text, "--prefix", ranks=3)
    assert code == 0
    assert sorted(out.splitlines()) == [f"[rank {r}] one line of {r}" for r in range(3)]
    assert sorted(err.splitlines()) == sorted(
        f"[rank {r}] {text}" for r in range(3) for text in (f"error {r}", "and the rest")
    )
    _, plain, _ = run("print(rank)", ranks=3)
    assert sorted(plain) == sorted("0\n1\n2\n")


def test_the_table_and_the_trace(run, tmp_path):
    text = "dist.all_reduce(torch.ones(3)); assert 'fail' not in sys.argv"
    for arguments, expected in (((), 0), (("fail",), 1)):
        trace = tmp_path / f"{expected}.json"
        code, out, _ = run(text, "--table", "--log", str(trace), arguments=arguments)
        assert code == expected
        assert out == "ranks  operation   calls  bytes\n0-1    all_reduce      1     12\n"
        events = json.loads(trace.read_text())["traceEvents"]
        assert [(e["pid"], e["name"]) for e in events if e["ph"] == "X"] == [
            (0, "all_reduce"), (1, "all_reduce")
        ]  # fmt: skip


def test_order_and_mode_reach_the_ranks(run):
    # (1 + 1e8) - 1e8 from rank 0 up; gloo's first chunk goes down: (-1e8 + 1e8) + 1.
    text = """
x = torch.tensor([[1.0, 1e8, -1e8][rank]])
dist.all_reduce(x)
if rank == 0: print(x.item())
"""
    assert run(text, ranks=3)[1] == "0.0\n"
    assert run(text, "--order", "gloo_ring", ranks=3)[1] == "1.0\n"
    stacked = "dist.all_gather_into_tensor(torch.empty(2, 3), torch.ones(3))"
    assert run(stacked)[0] == 0
    code, _, err = run(stacked, "--mode", "portable")
    assert code == 1
    assert "(6,) is accepted" in err


def test_a_seed_draws_the_order_of_the_ranks(run):
    text = "dist.barrier(); print(rank); dist.barrier(); print(rank)"
    orders = [run(text, "--seed", str(seed), ranks=4)[1] for seed in range(6)]
    assert orders == [run(text, "--seed", str(seed), ranks=4)[1] for seed in range(6)]
    assert len(set(orders)) > 1
    assert {"".join(sorted(order)) for order in orders} == {"".join(sorted("0\n1\n2\n3\n" * 2))}


# How it ends


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0 if rank else None)", 0, ""),
        ("if rank: sys.exit(7)", 7, "kernelbench-dist: rank 1 of 2 exits with code 7\n"),
        ("if rank: sys.exit('no data')", 1,
         "no data\nkernelbench-dist: rank 1 of 2 exits with code 1\n"),
    ],
)  # fmt: skip
def test_the_scripts_exit_code_goes_through(run, text, expected, said):
    assert run(text) == (expected, "", said)


def test_a_rank_that_fails_is_named_with_its_own_frames(run, tmp_path):
    text = """
def deep(x):
    try:
        {}[x]
    except KeyError as error:
        raise ValueError("nothing there") from error

if rank == 1:
    deep("key")
dist.barrier()
"""
    code, out, err = run(text)
    assert (code, out) == (1, "")
    lines = err.splitlines()
    assert lines[0] == "kernelbench-dist: rank 1 of 2 failed:"
    assert lines[-1] == "ValueError: nothing there"
    files = re.findall(r'File "(.*)", line (\d+), in (\S+)', err)
    first = HEAD.count("\n") + 1
    assert files == [
        (str(tmp_path / "script.py"), str(first + line), name)
        for line, name in ((3, "deep"), (8, "<module>"), (5, "deep"))
    ]


def test_ranks_that_do_not_agree_are_shown_where(run, tmp_path):
    code, _, err = run("dist.all_reduce(torch.ones(1 + rank))")
    assert code == 1
    assert err.startswith("kernelbench-dist: rank 1 of 2 failed:\nTraceback")
    assert "they differ in shape: (1,) and (2,)" in err
    assert os.path.dirname(cli.__file__) not in err
    code, _, err = run("if rank: dist.barrier()")
    assert code == 1
    assert re.match(r"kernelbench-dist: \S+DeadlockError: no rank can go on:\n  rank 0", err)
    assert "Traceback" not in err


def test_a_script_that_is_not_python_fails_in_a_rank(run):
    code, _, err = run("x = = 2")
    assert code == 1
    assert "SyntaxError" in err
    assert "rank 0 of 2 failed" in err


@pytest.mark.parametrize(
    ("arguments", "expected", "said"),
    [
        (["nothing.py"], 2, "no file 'nothing.py'"),
        (["-m", "nothing_of_that_name"], 2, "no module 'nothing_of_that_name'"),
        (["--device", "abacus", "x.py"], 2, "'abacus'; cpu, cuda or cuda:N"),
        (["--device", "cuda:99", "x.py"], 3, "'cuda:99'; torch sees"),
        (["--log", "no/where/t.json", "x.py"], 2, "no/where/t.json"),
    ],
)
def test_wrong_use_and_what_the_machine_lacks(capsys, write, monkeypatch, tmp_path, arguments,
                                              expected, said):  # fmt: skip
    write("", "x.py")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", *arguments]) == expected
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--nproc-per-node", "0"],
        ["--nproc-per-node", "many"],
        ["--nnodes", "1:"],
        ["--order", "random"],
        ["--mode", "lax"],
        [],
    ],
)
def test_options_that_do_not_fit(capsys, options):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", *options, *(["x.py"] if options else [])])
    assert stopped.value.code == 2
    assert "usage: kernelbench-dist run" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_ranks_for_each_gpu_need_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "--nproc-per-node", "gpu", "x.py"])
    assert "torch sees no GPU" in capsys.readouterr().err


# As programs

_ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_ctrl_c_ends_it(write):
    path = write(HEAD + "print('ready', flush=True)\nwhile True: sum(range(1000))")
    program = subprocess.Popen(
        [sys.executable, "-m", "kernelbench_dist", "run", "--nproc-per-node", "2", path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_ONE_THREAD,
    )  # fmt: skip
    try:
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode == 130
    assert err == "kernelbench-dist: interrupted\n"


@pytest.mark.slow
def test_a_training_script_gives_torchruns_losses():
    options = ["--nproc-per-node", "4", "--standalone"]
    script = [str(TRAIN), "--epochs", "4", "--width", "128"]

    def losses(*command):
        told = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, env=_ONE_THREAD,
            timeout=240, check=True,
        )  # fmt: skip
        return told.stdout.splitlines()

    expected = losses("torch.distributed.run", *options, *script)
    assert len(expected) == 4 * 3  # 96 samples, on 4 ranks of batches of 8
    assert all(re.fullmatch(r"epoch \d step \d loss 0?\d+\.\d+", line) for line in expected)
    virtual = ["kernelbench_dist", "run", *options]
    assert losses(*virtual, "--order", "gloo_ring", *script) == expected
    assert losses(*virtual, *script) != expected  # the order of summation is seen in these digits
