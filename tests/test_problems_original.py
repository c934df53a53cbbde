"""Problem files written for the original system run as they are."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelbench_dist import distributed_collectives as collectives
from kernelbench_dist.problems import load

DATA = Path(__file__).parent / "data"
ORIGINAL = DATA / "original_form_problem.py"
MINIMAL = (DATA / "minimal_problem.py").read_text()


def test_the_original_form() -> None:
    before = dict(sys.modules)
    problem = load(ORIGINAL)
    after = dict(sys.modules)
    assert after.pop(problem.module.__name__) is problem.module
    assert after == before  # and so no kernelbench

    torch.manual_seed(1)
    (x,) = problem.get_inputs()  # imports kernelbench again, inside the function
    torch.manual_seed(1)
    (again,) = problem.get_inputs()
    assert torch.equal(x, again)
    ranks, rows, width = x.shape
    assert ranks == 4
    assert rows in range(13, 20)  # 16 * 0.85 = 13.6, 16 * 1.15 = 18.4
    assert width in (40, 48, 56)
    assert problem.notes == []
    assert dict(sys.modules) == {**before, problem.module.__name__: problem.module}

    model = problem.Model(*problem.get_init_inputs())
    expected = 2 * (x.double().cpu().numpy() ** 2).sum(0)
    np.testing.assert_allclose(model(x).cpu().numpy(), expected, rtol=1e-5)
    with pytest.raises(ModuleNotFoundError, match="kernelbench"):
        importlib.import_module("kernelbench.distributed_collectives")


def test_compile_through_a_wrapper() -> None:
    problem = load(ORIGINAL)
    model = problem.Model(3.0)
    compiled = torch.compile(lambda x: model(x) + 1, fullgraph=True, backend="eager")
    x = torch.arange(6.0).view(2, 1, 3)
    assert compiled(x).tolist() == [[28.0, 52.0, 88.0]]  # 3 * (0 + 9, 1 + 16, 4 + 25) + 1


def test_an_undefined_name_in_get_inputs_shows_its_line(write) -> None:
    text = ORIGINAL.read_text().replace("\nD = 48\n", "\n")
    path = write(text, "undefined.py")
    problem = load(path)  # nothing has used it yet
    with pytest.raises(NameError, match="'D' is not defined") as caught:
        problem.get_inputs()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    line = next(i for i, code in enumerate(text.splitlines(), 1) if "jitter_int(D" in code)
    assert (frame.filename, frame.lineno, frame.name) == (str(path), line, "get_inputs")


FORMS = {
    "import a.b": "import kernelbench.distributed_collectives\n"
    "got = kernelbench.distributed_collectives",
    "import a.b as c": "import kernelbench.distributed_collectives as got",
    "from a import b": "from kernelbench import distributed_collectives as got",
    "import a": "import kernelbench\ngot = kernelbench.distributed_collectives",
    "from a.b import name": "from kernelbench.distributed_collectives import default_device\n"
    "got = default_device",
    "star": "from kernelbench.distributed_collectives import *\ngot = default_device",
}


@pytest.mark.parametrize("form", FORMS)
def test_import_forms(write, form: str) -> None:
    got = load(write(f"{FORMS[form]}\n{MINIMAL}")).module.got
    assert got in (collectives, collectives.default_device)


def test_imports_inside_any_function(write) -> None:
    lazily = (
        "from kernelbench.distributed_collectives import get_rank\n        return x + get_rank()"
    )
    problem = load(write(MINIMAL.replace("return x + 1", lazily)))
    assert problem.Model()(torch.ones(2)).tolist() == [1.0, 1.0]
    assert "kernelbench" not in sys.modules


def test_what_is_missing_from_the_module_is_an_ordinary_import_error(write) -> None:
    with pytest.raises(ImportError, match="cannot import name 'no_such_helper'"):
        load(write("from kernelbench.distributed_collectives import no_such_helper"))
    with pytest.raises(ModuleNotFoundError, match="kernelbench"):
        load(write("import kernelbench.timing"))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load(write("import no_such_module"))


@pytest.fixture
def real_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a kernelbench package of the given files for one test."""

    def install(**files: str) -> None:
        folder = tmp_path / "site" / "kernelbench"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(folder.parent))

    yield install
    for name in [n for n in sys.modules if n.split(".")[0] == "kernelbench"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_a_real_package_is_not_shadowed(write, real_package) -> None:
    real_package(__init__="", distributed_collectives="default_device = 'the real one'")
    for form in ("import a.b", "import a.b as c", "from a import b", "from a.b import name"):
        got = load(write(f"{FORMS[form]}\n{MINIMAL}")).module.got
        assert getattr(got, "default_device", got) == "the real one"


def test_a_real_package_without_the_module_keeps_its_other_names(write, real_package) -> None:
    real_package(__init__="VERSION = 7", other="x = 8")
    problem = load(
        write(
            "import kernelbench, kernelbench.other\n"
            "import kernelbench.distributed_collectives as ours\n"
            "from kernelbench import distributed_collectives as also, VERSION\n"
            f"other = kernelbench.other.x\n{MINIMAL}"
        )
    )
    module = problem.module
    assert (module.VERSION, module.other) == (7, 8)
    assert module.ours is module.also is collectives
    real = sys.modules["kernelbench"]
    assert not hasattr(real, "distributed_collectives")  # the real package is left as it was
    assert problem.notes == []


def test_a_real_module_that_does_not_import_is_noted(write, real_package) -> None:
    real_package(__init__="", distributed_collectives="import no_such_dependency")
    problem = load(write(f"{FORMS['import a.b as c']}\n{MINIMAL}"))
    assert problem.module.got is collectives
    assert len(problem.notes) == 1
    assert "no_such_dependency" in problem.notes[0]


# popcorn_pri


def test_popcorn_pri_takes_the_nearest_multiple_and_notes_it(write) -> None:
    sizes = "return [p.jitter_int(4, align=8), p.trial_dim(6, 'H', mode='wide', align=32),"
    sizes += " p.trial_dim(21, mode='large_band', align=16), p.trial_int(9, 9), p.trial_int(3, 2)]"
    text = MINIMAL.replace("return [torch.zeros(2)]", f"p = popcorn_pri\n    {sizes}")
    problem = load(write(text))
    assert problem.notes == []
    first = problem.get_inputs()
    assert first[:4] == [8, 32, 16, 9]  # 0 is no size; 16 is nearer to 21 than 32
    assert first[4] in (2, 3)
    problem.get_inputs()
    notes = " | ".join(problem.notes)
    assert len(problem.notes) == 4  # one a place, not one a call
    assert "no multiple of align=8 lies in [3, 5]" in notes
    assert "took the nearest, 8" in notes
    assert "dimension 'H': no multiple of align=32" in notes
    assert "trial_int(3, 2): the ends were swapped" in notes


def test_popcorn_pri_draws_what_the_helpers_draw(write) -> None:
    text = MINIMAL.replace(
        "return [torch.zeros(2)]",
        "p = popcorn_pri\n    m = p.sample_input_mode()\n"
        "    return [p.jitter_int(1000), p.trial_dim(1000, mode=m), p.trial_int(0, 1000)]",
    )
    torch.manual_seed(3)
    drawn = load(write(text)).get_inputs()
    torch.manual_seed(3)
    mode = collectives.sample_input_mode()
    expected = [collectives.jitter_int(1000), collectives.trial_dim(1000, mode=mode)]
    assert drawn == [*expected, collectives.trial_int(0, 1000)]


def test_popcorn_pri_refuses_what_it_does_not_have(write) -> None:
    text = MINIMAL.replace("torch.zeros(2)", "popcorn_pri.make_graph(3)")
    says = "no helper 'make_graph'; it has jitter_int, sample_input_mode, trial_dim and trial_int"
    with pytest.raises(AttributeError, match=says):
        load(write(text)).get_inputs()
    with pytest.raises(ValueError, match="align=0 must be 1 or more"):
        load(
            write(MINIMAL.replace("torch.zeros(2)", "popcorn_pri.jitter_int(3, align=0)"))
        ).get_inputs()
