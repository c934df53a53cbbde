"""The problem loader and the problems of the suite."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import pickle
import re
import sys
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelbench_dist import problems
from kernelbench_dist.problems import ProblemError, list_problems, load

MINIMAL = (Path(__file__).parent / "data" / "minimal_problem.py").read_text()
GATHER_LINEAR = "level2/47_virtual_all_gather_concat_linear"


# Names and paths


@pytest.mark.parametrize(
    "name",
    [
        "47",
        "level2/47",
        "47_virtual_all_gather_concat_linear",
        "47_virtual_all_gather_concat_linear.py",
        GATHER_LINEAR,
        GATHER_LINEAR + ".py",
    ],
)
def test_names(name: str) -> None:
    problem = load(name)
    assert problem.name == GATHER_LINEAR
    assert problem.path.name == "47_virtual_all_gather_concat_linear.py"
    assert problem.path.is_absolute()
    assert problem.notes == []


def test_a_path_may_be_a_string_or_a_path(write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(MINIMAL, "mine.py")
    monkeypatch.chdir(path.parent)
    for given in (path, str(path), Path("mine.py"), "mine.py"):
        problem = load(given)
        assert (problem.name, problem.path) == ("mine", path.resolve())
    assert load(load("47").path).name == GATHER_LINEAR


def test_list_problems_is_in_order_and_each_loads() -> None:
    names = list_problems()
    numbers = [tuple(map(int, re.fullmatch(r"level(\d+)/(\d+)_\w+", n).groups())) for n in names]
    assert GATHER_LINEAR in names
    assert numbers == sorted(set(numbers))
    for name in names:
        assert load(name).name == name


@pytest.fixture
def small_suite(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("level1/2_sum.py", "level2/2_all_reduce.py", "level2/10_scan.py"):
        write(MINIMAL, name)
    monkeypatch.setattr(problems, "_ROOT", tmp_path)


@pytest.mark.usefixtures("small_suite")
def test_an_ambiguous_number_lists_its_levels() -> None:
    assert list_problems() == ["level1/2_sum", "level2/2_all_reduce", "level2/10_scan"]
    with pytest.raises(ProblemError, match=r"level1/2_sum, level2/2_all_reduce\. Give the level"):
        load("2")
    assert load("level2/2").name == "level2/2_all_reduce"
    assert load("10").name == "level2/10_scan"


@pytest.mark.usefixtures("small_suite")
def test_an_unknown_name_lists_close_ones() -> None:
    with pytest.raises(ProblemError, match=r"'2_al_reduce'.*did you mean level2/2_all_reduce"):
        load("2_al_reduce")
    with pytest.raises(ProblemError, match=r"'xyzzy'.*list_problems\(\)"):
        load("xyzzy")
    with pytest.raises(ProblemError, match="did you mean"):
        load("level2/3_all_reduce.py")


def test_a_path_to_nothing(tmp_path: Path) -> None:
    for missing in (tmp_path / "none.py", str(tmp_path / "none.py"), Path("47")):
        with pytest.raises(FileNotFoundError, match=re.escape(str(missing))):
            load(missing)
    with pytest.raises(TypeError, match="expected a path, or a name"):
        load(47)


# Files that are not what they must be


def test_missing_parts_are_named(write) -> None:
    with pytest.raises(ProblemError, match="does not define get_inputs and get_init_inputs;"):
        load(write("import torch\nclass Model(torch.nn.Module): pass\n"))
    with pytest.raises(ProblemError, match="does not define Model, get_inputs and get_init_inputs"):
        load(write(""))


def test_parts_of_the_wrong_kind(write) -> None:
    with pytest.raises(ProblemError, match=r"Model must be a subclass of torch\.nn\.Module"):
        load(write(MINIMAL + "\nModel = Model()\n"))
    with pytest.raises(ProblemError, match=r"get_inputs must be a function, not \[1\]"):
        load(write(MINIMAL + "\nget_inputs = [1]\n"))


@pytest.mark.parametrize("name", ["VARIES", "SHARED", "INERT", "RIGHT_TRIVIAL_ANSWERS"])
def test_one_name_is_no_tuple_of_names(write, name) -> None:
    with pytest.raises(ProblemError, match=rf"{name} is 'BH'; write a tuple, \('BH',\)"):
        load(write(f"{MINIMAL}\n{name} = ('BH')\n"))
    load(write(f"{MINIMAL}\n{name} = ('BH',)\n", "right.py"))


def test_a_syntax_error_keeps_its_place(write) -> None:
    path = write("x = 1\ny = (\n\n", "bad_syntax.py")
    with pytest.raises(SyntaxError) as caught:
        load(path)
    assert (caught.value.filename, caught.value.lineno) == (str(path), 2)


def test_an_error_in_the_file_shows_its_line(write) -> None:
    path = write("import torch\n\nx = 1 / 0\n")
    before = dict(sys.modules)
    with pytest.raises(ZeroDivisionError) as caught:
        load(path)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno, frame.line) == (str(path), 3, "x = 1 / 0")
    assert sys.modules == before


def test_an_encoding_line_is_honoured(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\nNAME = '\xe9'\n" + MINIMAL.encode())
    assert load(path).module.NAME == "\u00e9"


# A loaded module is an ordinary module


def test_two_loads_are_apart(write) -> None:
    path = write("SIZE = 1\n" + MINIMAL)
    first = load(path)
    path.write_text("SIZE = 2\n" + MINIMAL)
    second = load(path)
    assert (first.module.SIZE, second.module.SIZE) == (1, 2)
    assert first.Model is not second.Model


def test_pickle_dataclasses_and_inspect(write) -> None:
    extra = "from dataclasses import dataclass\n@dataclass\nclass Sizes:\n    rows: int = 3\n"
    problem = load(write(f"from __future__ import annotations\n{extra}{MINIMAL}"))
    assert pickle.loads(pickle.dumps(problem.module.Sizes())) == problem.module.Sizes(3)
    assert type(pickle.loads(pickle.dumps(problem.Model()))) is problem.Model
    assert "return x + 1" in inspect.getsource(problem.Model)
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.name = "other"


def test_future_statements_of_the_loader_are_not_inherited(write) -> None:
    problem = load(write("def f(x: int): pass\n" + MINIMAL))
    assert problem.module.f.__annotations__ == {"x": int}  # not the string "int"


def test_threads_do_not_disturb_each_other(write) -> None:
    paths = [
        write(f"import kernelbench.distributed_collectives\nME = {i}\n{MINIMAL}", f"p{i}.py")
        for i in range(4)
    ]
    wrong: list[object] = []

    def work(i: int) -> None:
        try:
            for _ in range(20):
                assert i == load(paths[i]).module.ME
                assert "kernelbench" not in sys.modules
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_doctests() -> None:
    result = doctest.testmod(problems)
    assert result.failed == 0
    assert result.attempted >= 4


# Level 2, problem 47


def test_gather_linear_against_float64() -> None:
    problem = load("47")
    torch.manual_seed(0)
    model = problem.Model(*problem.get_init_inputs())
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == {
        "proj.weight": (56, 128),
        "proj.bias": (56,),
    }
    (x,) = problem.get_inputs(torch.Generator().manual_seed(9), jitter=False)
    x = x.cpu()
    assert (x.shape, x.dtype) == ((4, 12, 32), torch.float32)
    assert torch.equal(x, torch.randn(4, 12, 32, generator=torch.Generator().manual_seed(9)))
    weight = model.proj.weight.detach().double().numpy().reshape(56, 4, 32)
    expected = np.einsum("rbh,krh->bk", x.double().numpy(), weight)
    expected = expected + model.proj.bias.detach().double().numpy()
    np.testing.assert_allclose(model(x).detach().numpy(), expected, atol=1e-5)


def test_gather_linear_varies_in_rows_only() -> None:
    problem = load("47")
    torch.manual_seed(0)
    shapes = [tuple(problem.get_inputs()[0].shape) for _ in range(60)]
    assert {shape[1] for shape in shapes} == {10, 11, 12, 13, 14}
    assert {(shape[0], shape[2]) for shape in shapes} == {(4, 32)}
    generator = torch.Generator().manual_seed(2)
    one, two = problem.get_inputs(generator)[0], problem.get_inputs(generator)[0]
    assert one.shape != two.shape or not torch.equal(one, two)


@pytest.mark.parametrize("shape", [(2, 12, 64), (4, 32), (4, 12, 33)])
def test_gather_linear_refuses_another_split(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(f"(4, B, 32), got {shape}")):
        load("47").Model(4, 32, 56)(torch.zeros(shape))
