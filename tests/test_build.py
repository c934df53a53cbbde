"""Building, installing and importing: setup.py's choices, the build stamp, and the program.

Toolkits are shell scripts that answer as nvcc does, so none of this needs CUDA.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelbench_dist
from kernelbench_dist import _build, cli

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(kernelbench_dist.__file__).parent
# What CUDA 13's nvcc lists, and the forms with a suffix that it takes besides.
KNOWN = ("75", "80", "86", "89", "90", "100", "103", "120")
SUFFIXED = ("90a", "100a", "100f", "103a", "120a", "120f")

NVCC = """#!/bin/sh
case "$*" in
  --version) echo "Cuda compilation tools, release {version}, V{version}.88" ;;
  --list-gpu-code) for n in {known}; do echo "sm_$n"; done; echo compute_90 ;;
  *--dryrun*)
    echo '#$ _HERE_={home}/bin' >&2
    echo '#$ TOP={home}/bin/..' >&2
    for word in "$@"; do
      case "$word" in -gencode=*)
        number=${{word##*_}}
        case " {known} {suffixed} " in *" $number "*) ;; *)
          echo "nvcc fatal   : Unsupported gpu architecture 'compute_$number'" >&2; exit 1 ;;
        esac ;;
      esac
    done ;;
  *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


def write_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def make_toolkit(home: Path, version: str = "13.0") -> Path:
    known, suffixed = " ".join(KNOWN), " ".join(SUFFIXED)
    text = NVCC.format(version=version, home=home, known=known, suffixed=suffixed)
    write_script(home / "bin" / "nvcc", text)
    return home


def load(path: Path) -> types.ModuleType:
    """A Python file that is no part of the package, as a module."""
    spec = importlib.util.spec_from_file_location(f"kernelbench_dist_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """setup.py as a module, with a CUDA torch and without the machine's own toolkit."""
    module = load(ROOT / "setup.py")
    for name in ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST", "KERNELBENCH_DIST_CUDA"):
        monkeypatch.delenv(name, raising=False)
    which = shutil.which
    # /usr/local/cuda, where find_toolkit looks last, may be there or not.
    monkeypatch.setattr(
        module.shutil,
        "which",
        lambda name, path: which(name, path=path.replace(":/usr/local/cuda/bin", "")),
    )
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(module.cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(ROOT)
    return module


def refusal(call: Any, *args: Any) -> str:
    """The one sentence that `call` stops with."""
    with pytest.raises(SystemExit) as stopped:
        call(*args)
    sentence = str(stopped.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


# The toolkit


def test_nvcc_on_path(script, tmp_path, monkeypatch):
    home = make_toolkit(tmp_path / "cuda-13.0")
    monkeypatch.setenv("PATH", f"{home}/bin")
    assert script.find_toolkit() == (home, "")


def test_nvcc_that_is_a_wrapper_leads_to_the_toolkit(script, tmp_path, monkeypatch):
    home = make_toolkit(tmp_path / "opt" / "cuda-13.0")
    wrapper = f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n'
    write_script(tmp_path / "local" / "bin" / "nvcc", wrapper)
    monkeypatch.setenv("PATH", str(tmp_path / "local" / "bin"))
    assert script.find_toolkit() == (home, "")
    # Nor is a CUDA_HOME that was guessed from the wrapper's place taken at its word.
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "local"))
    assert script.find_toolkit() == (home, "")


def test_nvcc_that_is_a_link_leads_to_the_toolkit(script, tmp_path, monkeypatch):
    home = make_toolkit(tmp_path / "cuda-13.0")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").symlink_to(home / "bin" / "nvcc")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert script.find_toolkit() == (home, "")


def test_cuda_home_goes_before_path(script, tmp_path, monkeypatch):
    on_path, named = make_toolkit(tmp_path / "a"), make_toolkit(tmp_path / "b")
    monkeypatch.setenv("PATH", f"{on_path}/bin")
    monkeypatch.setenv("CUDA_HOME", str(named))
    assert script.find_toolkit() == (named, "")


def test_nvcc_without_a_toolkit(script, tmp_path, monkeypatch):
    write_script(tmp_path / "bin" / "nvcc", "#!/bin/sh\nexit 0\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    home, why = script.find_toolkit()
    assert home is None
    assert why == f"{tmp_path}/bin/nvcc does not lead to a CUDA toolkit: set CUDA_HOME to one"


@pytest.mark.parametrize("named", [None, "/nowhere/cuda"])
def test_no_toolkit(script, monkeypatch, capsys, named):
    if named:
        monkeypatch.setenv("CUDA_HOME", named)
    extension, stamp = script.extension_and_stamp()
    assert not any(source.endswith(".cu") for source in extension.sources)
    assert "there is no nvcc" in stamp["no_cuda_because"]
    assert "set CUDA_HOME" in stamp["no_cuda_because"]
    assert (named or "PATH") in stamp["no_cuda_because"]
    assert stamp["no_cuda_because"] in capsys.readouterr().err

    monkeypatch.setenv("KERNELBENCH_DIST_CUDA", "1")
    sentence = refusal(script.extension_and_stamp)
    assert "KERNELBENCH_DIST_CUDA=1" in sentence
    assert "set CUDA_HOME" in sentence


def test_torch_without_cuda_although_nvcc_is_on_path(script, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{make_toolkit(tmp_path)}/bin")
    monkeypatch.setattr(torch.version, "cuda", None)
    extension, stamp = script.extension_and_stamp()
    assert stamp["cuda"] is None
    assert "is not a CUDA build" in stamp["no_cuda_because"]
    assert "-DKERNELBENCH_DIST_CUDA" not in extension.extra_compile_args["cxx"]
    monkeypatch.setenv("KERNELBENCH_DIST_CUDA", "1")
    assert "is not a CUDA build: install one that is." in refusal(script.extension_and_stamp)


@pytest.mark.parametrize(("toolkit", "built_for"), [("13.0", "12.8"), ("12.8", "13.0")])
def test_toolkit_of_another_major_version(script, tmp_path, monkeypatch, toolkit, built_for):
    home = make_toolkit(tmp_path, toolkit)
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setattr(torch.version, "cuda", built_for)
    for wanted in ("auto", "1"):
        monkeypatch.setenv("KERNELBENCH_DIST_CUDA", wanted)
        sentence = refusal(script.extension_and_stamp)
        assert f"the toolkit at {home} is CUDA {toolkit}" in sentence
        assert f"built for CUDA {built_for}" in sentence
        assert "set CUDA_HOME" in sentence
        assert "KERNELBENCH_DIST_CUDA=0" in sentence
    monkeypatch.setenv("KERNELBENCH_DIST_CUDA", "0")
    assert script.extension_and_stamp()[1]["cuda"] is None


def test_toolkit_of_another_minor_version_builds(script, tmp_path, monkeypatch):
    home = make_toolkit(tmp_path, "13.2")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("KERNELBENCH_DIST_CUDA", "1")
    extension, stamp = script.extension_and_stamp()
    assert stamp == {
        "torch": torch.__version__,
        "cuda": "13.0",
        "architectures": ["8.0", "9.0a", "9.0+PTX"],
    }
    assert "-DKERNELBENCH_DIST_CUDA" in extension.extra_compile_args["cxx"]
    assert any(source.endswith(".cu") for source in extension.sources)
    assert str(home) == script.cpp_extension.CUDA_HOME


@pytest.mark.parametrize("value", ["yes", "2", "AUTO", " "])
def test_unknown_switch(script, monkeypatch, value):
    monkeypatch.setenv("KERNELBENCH_DIST_CUDA", value)
    sentence = refusal(script.extension_and_stamp)
    assert repr(value) in sentence
    assert "auto, 0 or 1" in sentence


# Architectures


def gencodes(script: types.ModuleType) -> list[str]:
    nvcc_flags = script.extension_and_stamp()[0].extra_compile_args["nvcc"]
    return [flag.removeprefix("-gencode=") for flag in nvcc_flags if "gencode" in flag]


def test_default_architectures(script, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path)))
    assert gencodes(script) == [
        "arch=compute_80,code=sm_80",
        "arch=compute_90a,code=sm_90a",
        "arch=compute_90,code=sm_90",
        "arch=compute_90,code=compute_90",
    ]
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "")  # as torch: empty is unset
    assert len(gencodes(script)) == 4


@pytest.mark.parametrize(
    ("present", "added"),
    [((8, 0), []), ((9, 0), []), ((8, 6), ["8.6"]), ((12, 0), ["12.0"]), ((7, 0), [])],
)
def test_the_gpu_that_is_present_is_added(script, tmp_path, monkeypatch, present, added):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: present)
    home = make_toolkit(tmp_path)
    assert script.architectures(home) == ["8.0", "9.0a", "9.0+PTX", *added]
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    assert script.architectures(home) == ["8.0"]


@pytest.mark.parametrize(
    ("listed", "codes"),
    [
        ("12.0", ["sm_120"]),
        ("9.0a", ["sm_90a"]),
        ("10.0f 10.3a+PTX", ["sm_100f", "sm_103a", "compute_103a"]),
        (" 8.0, 9.0 ", ["sm_80", "sm_90"]),
        ("8.6;8.6+PTX", ["sm_86", "compute_86"]),
    ],
)
def test_architectures_that_build(script, tmp_path, monkeypatch, listed, codes):
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path)))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    assert [flag.split("code=")[1] for flag in gencodes(script)] == codes


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        ("10.1", "10.1"),
        ("99.0", "99.0"),
        ("sm_90", "sm_90"),
        (" ", ""),
        ("7.0", "7.0"),
        ("8.0;7.0+PTX", "7.0+PTX"),
        ("8.0a", "8.0a"),
        ("9", "9"),
        ("Hopper", "Hopper"),
        ("8.0 -o/tmp/x", "-o/tmp/x"),
    ],
)
def test_architectures_that_are_refused(script, tmp_path, monkeypatch, listed, named):
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path)))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    sentence = refusal(script.extension_and_stamp)
    assert f"TORCH_CUDA_ARCH_LIST={listed!r} holds {named!r}" in sentence
    assert "7.5, 8.0, 8.6, 8.9, 9.0, 10.0, 10.3, 12.0" in sentence
    assert "'8.0;9.0a;9.0+PTX'" in sentence


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, and there is none on PATH")
def test_the_stand_in_answers_as_nvcc_does():
    """What setup.py asks of nvcc, asked of a real one."""

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["nvcc", *arguments], capture_output=True, text=True)

    top = re.search(r"^#\$ TOP=(.+)$", ask("--dryrun", "-x", "cu", "/dev/null").stderr, re.M)
    assert top is not None
    assert (Path(top[1].strip()) / "bin" / "nvcc").is_file()
    assert re.search(r"release \d+\.\d+", ask("--version").stdout)
    assert "sm_90" in ask("--list-gpu-code").stdout.split()
    for number, rc in (("90a", 0), ("120", 0), ("99", 1), ("80a", 1)):
        flag = f"-gencode=arch=compute_{number},code=sm_{number}"
        assert bool(ask("--dryrun", flag, "-x", "cu", "/dev/null").returncode) == bool(rc)


# The check of what was compiled


PTXAS = """
ptxas info    : Compiling entry function '_Z4goodv' for 'sm_80'
ptxas info    : Function properties for _Z4goodv
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
ptxas info    : Compiling entry function '_Z3badv' for 'sm_90a'
ptxas info    : Function properties for _Z3badv
    24 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
"""
WHOLE = {"elf": ("sm_80", "sm_90", "sm_90a"), "ptx": ("sm_90",)}


@pytest.fixture
def check_cuda_build(tmp_path, monkeypatch, capsys):
    """Runs the check on a log and on what cuobjdump lists; returns its exit code and its errors."""
    module = load(ROOT / ".ci" / "check_cuda_build.py")
    for name in ("csrc/cuda/a.cu", "csrc/cuda/b.cu", "kernelbench_dist/_C.x.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def check(log: str, listed: dict[str, Any]) -> tuple[int, str]:
        cases = [
            f"--list-{kind}) for n in {' '.join(names)}; do for f in 1 2; do"
            f" echo {kind.upper()} file $f: _C.$f.$n.{'cubin' if kind == 'elf' else 'ptx'};"
            " done; done ;;"
            for kind, names in listed.items()
        ]
        script = "\n".join(["#!/bin/sh", 'case "$1" in', *cases, "esac", ""])
        write_script(tmp_path / "bin" / "cuobjdump", script)
        (tmp_path / "log").write_text(log)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
        monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "log"), str(tmp_path)])
        return module.main(), capsys.readouterr().err

    return check


def test_a_whole_build_passes(check_cuda_build):
    assert check_cuda_build(PTXAS.format(stores=0, loads=0), WHOLE) == (0, "")


@pytest.mark.parametrize(("stores", "loads"), [(0, 8), (4, 0), (120, 96)])
def test_a_spill_fails(check_cuda_build, stores, loads):
    rc, errors = check_cuda_build(PTXAS.format(stores=stores, loads=loads), WHOLE)
    assert rc == 1
    assert errors == (
        f"error: _Z3badv for sm_90a spills registers: {stores} bytes stored, {loads} bytes loaded\n"
    )


def test_a_log_without_reports_fails(check_cuda_build):
    rc, errors = check_cuda_build("ninja: no work to do.", WHOLE)
    assert rc == 1
    assert "holds no report of ptxas" in errors


@pytest.mark.parametrize(
    ("listed", "error"),
    [
        ({**WHOLE, "elf": ("sm_80", "sm_90")}, "has machine code for sm_90a from 0 of 2"),
        ({**WHOLE, "elf": ("sm_90", "sm_90a")}, "has machine code for sm_80 from 0 of 2"),
        ({**WHOLE, "ptx": ("sm_80",)}, "has PTX for sm_90 from 0 of 2"),
    ],
)
def test_a_missing_architecture_fails(check_cuda_build, listed, error):
    rc, errors = check_cuda_build(PTXAS.format(stores=0, loads=0), listed)
    assert rc == 1
    assert error in errors
    assert errors.count("error:") == 1


# Without torch


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; "


def setup_without_torch(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = (
        f"{WITHOUT_TORCH}import runpy; sys.argv = ['setup.py', *{arguments!r}];"
        " runpy.run_path('setup.py', run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, with nothing that was built."""
    if not (ROOT / "README.md").is_file():
        pytest.skip("README.md is not here, and the metadata need it")
    target = tmp_path / "tree"
    ignore = shutil.ignore_patterns(
        ".*", "build", "dist", "*.egg-info", "*.so", "_build_stamp.json", "__pycache__"
    )
    shutil.copytree(ROOT, target, ignore=ignore)
    return target


def test_metadata_and_sdist_need_no_torch(tree):
    done = setup_without_torch("--quiet", "sdist", "egg_info", cwd=tree)
    assert done.returncode == 0, done.stderr
    metadata = next(tree.glob("*.egg-info/PKG-INFO")).read_text()
    assert f"\nVersion: {kernelbench_dist.__version__}\n" in metadata
    assert "\nRequires-Dist: torch>=2.11\n" in metadata

    listing = subprocess.run(
        ["tar", "-tzf", str(next(tree.glob("dist/*.tar.gz")))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    inside = {name.split("/", 1)[1] for name in listing.split() if not name.endswith("/")}
    wanted = {
        str(path.relative_to(tree))
        for folder in (
            "csrc",
            "problems",
            "tests",
            "examples",
            "benchmarks",
            "docs",
            "kernelbench_dist",
        )
        for path in (tree / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    wanted |= {"setup.py", "pyproject.toml", "Makefile", "LICENSE", "THIRD_PARTY_NOTICES"}
    assert wanted <= inside, sorted(wanted - inside)


def test_a_build_without_torch_says_what_to_do(tree):
    done = setup_without_torch("--quiet", "build_ext", cwd=tree)
    assert done.returncode == 1
    sentence = done.stderr.splitlines()[-1]
    assert "there is none here" in sentence
    assert "install torch, then `pip install --no-build-isolation .`" in sentence
    assert "Traceback" not in done.stderr


# The stamp


@pytest.mark.parametrize(
    ("architecture", "runs_on"),
    [
        ("8.0", {(8, 0), (8, 6), (8, 9)}),
        ("8.6", {(8, 6), (8, 9)}),
        ("9.0a", {(9, 0)}),
        ("9.0+PTX", {(9, 0), (10, 0), (10, 3), (12, 0)}),
        ("10.0f", {(10, 0), (10, 3)}),
        ("8.0+PTX", {(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)}),
        ("?", set()),
    ],
)
def test_which_code_runs_where(architecture, runs_on):
    devices = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)]
    assert {at for at in devices if _build._runs_on(architecture, *at)} == runs_on


def stamp(**changes: Any) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "cuda": None,
        "architectures": [],
        "no_cuda_because": "the test says so",
        **changes,
    }


@pytest.mark.parametrize("version", ["2.10.0", "2.1.3+cu118", "3.13.0"])
def test_stamp_of_another_torch(version):
    why = _build._unfit(stamp(torch=version))
    assert why is not None
    assert f"built for torch {version} and this is torch {torch.__version__}" in why
    assert "pip install --no-build-isolation" in why


def test_a_patch_release_or_build_of_torch_fits():
    minor = ".".join(torch.__version__.split(".")[:2])
    assert _build._unfit(stamp(torch=f"{minor}.9+cu999")) is None


@pytest.mark.parametrize("here", [None, "12.8"])
def test_stamp_of_another_cuda(monkeypatch, here):
    monkeypatch.setattr(torch.version, "cuda", here)
    why = _build._unfit(stamp(cuda="13.0"))
    assert why is not None
    assert f"built for CUDA 13.0 and this torch is built for CUDA {here or 'none'}" in why
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert _build._unfit(stamp(cuda="13.0")) is None


def test_a_gpu_that_no_code_is_built_for(monkeypatch):
    monkeypatch.setattr(_build, "EXTENSION", True)
    monkeypatch.setattr(_build, "_not_loaded", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(_build, "_stamp", stamp(cuda="13.0", architectures=["8.0", "8.6"]))
    (sentence,) = _build.build_info().missing
    assert "built for 8.0, 8.6, and a GPU (compute capability 9.0) runs none" in sentence
    assert "TORCH_CUDA_ARCH_LIST=9.0" in sentence
    monkeypatch.setattr(_build, "_stamp", stamp(cuda="13.0", architectures=["8.0+PTX"]))
    assert _build.build_info().missing == ()


# In a fresh interpreter


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package, and nothing that was built."""
    ignore = shutil.ignore_patterns("*.so", "_build_stamp.json", "__pycache__", "problems")
    shutil.copytree(PACKAGE, tmp_path / "kernelbench_dist", ignore=ignore)
    return tmp_path


def python(code: str, cwd: Path) -> str:
    """What a fresh interpreter prints, with `cwd` before all else on its path."""
    environment = {**os.environ, "PYTHONPATH": str(cwd)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WORKS_WITHOUT_EXTENSION = """
import json, torch
import kernelbench_dist as k
x = torch.arange(12.0).view(2, 2, 3).requires_grad_()
w = torch.arange(24.0).view(4, 6) - 10
y = k.ops.all_gather_linear(x, w, torch.tensor([1.0, 2.0, 3.0, 4.0]))
assert y.tolist() == [[-148, -3, 142, 287], [-283, -30, 223, 476]], y
y.sum().backward()
assert x.grad.tolist() == [[[-4, 0, 4]] * 2, [[8, 12, 16]] * 2], x.grad
assert k.nn.AllGatherLinear(2, 3, 4)(x).shape == (2, 4)
assert k.ops.plan("all_gather_linear", x, w).kernel == "fallback"
assert torch.compile(k.ops.all_gather_linear, fullgraph=True, backend="eager")(x, w).shape == (2, 4)
info = k.build_info()
print(json.dumps([info.extension, info.cuda, *info.missing]))
"""


@pytest.mark.parametrize(
    ("built", "reason"),
    [
        (None, "there is no compiled extension"),
        ({}, "nothing says which torch the extension was built for"),
        ("not JSON", "nothing says which torch the extension was built for"),
        (stamp(torch="2.10.0"), "was built for torch 2.10.0 and this is torch"),
        (stamp(cuda="9.9"), "was built for CUDA 9.9 and this torch is built for CUDA"),
        (stamp(), "the extension does not load"),
    ],
)
def test_without_its_extension_the_package_works_and_says_why(copy, built, reason):
    if built is not None:
        # No library at all: only one whose stamp fits is ever opened.
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        (copy / "kernelbench_dist" / f"_C{suffix}").write_bytes(b"not a library")
        text = built if isinstance(built, str) else json.dumps(built)
        (copy / "kernelbench_dist" / "_build_stamp.json").write_text(text)
    extension, cuda, *missing = json.loads(python(WORKS_WITHOUT_EXTENSION, copy))
    assert not extension
    assert not cuda
    (sentence,) = missing
    assert reason in sentence
    assert "pip install --no-build-isolation" in sentence


def test_an_extension_of_another_python(copy):
    (copy / "kernelbench_dist" / "_C.cpython-27-x86_64-linux-gnu.so").write_bytes(b"")
    code = "import kernelbench_dist as k; print(*k.build_info().missing)"
    assert "_C.cpython-27-x86_64-linux-gnu.so was not built for this Python" in python(code, copy)


needs_extension = pytest.mark.skipif(not _build.EXTENSION, reason="needs the compiled extension")


@needs_extension
@pytest.mark.parametrize("name", ["kernelbench_dist", "kernelbench_dist._C"])
def test_import_alone_loads_torch_first(tmp_path, name):
    code = f"import {name}; print(kernelbench_dist.build_info().extension)"
    assert python(code, tmp_path).strip() == "True"


@pytest.mark.parametrize("cwd", ["elsewhere", "root"])
def test_problems_are_part_of_the_package(tmp_path, cwd):
    code = "import kernelbench_dist.problems as p; print(p.list_problems())"
    assert "level2/47" in python(code, ROOT if cwd == "root" else tmp_path)


def test_importing_takes_no_optional_package_and_compiles_nothing(tmp_path):
    code = """
import sys
for name in ("matplotlib", "hypothesis", "pytest", "ninja", "triton"):
    sys.modules[name] = None
import kernelbench_dist
print("torch.utils.cpp_extension" in sys.modules)
"""
    assert python(code, tmp_path).strip() == "False"


# The program


def test_info_for_people(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^kernelbench_dist +{re.escape(kernelbench_dist.__version__)}$", out, re.M)
    assert f"torch             {torch.__version__}" in out
    for sentence in kernelbench_dist.build_info().missing:
        assert sentence in out


def test_info_as_json(capsys):
    assert cli.main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["version"] == kernelbench_dist.__version__
    assert info["torch"] == torch.__version__
    assert info["extension"] is _build.EXTENSION
    assert isinstance(info["missing"], list)


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"kernelbench_dist {kernelbench_dist.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["judge-me"], ["info", "--yaml"]])
def test_wrong_use_is_exit_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: kernelbench-dist" in capsys.readouterr().err


def test_the_program_and_the_module_are_the_same(tmp_path):
    program = Path(sys.executable).with_name("kernelbench-dist")
    if not program.is_file():
        pytest.skip("the package is not installed in this environment")
    run = {"capture_output": True, "text": True, "cwd": tmp_path, "check": True}
    by_name = subprocess.run([program, "info", "--json"], **run)
    by_module = subprocess.run([sys.executable, "-m", "kernelbench_dist", "info", "--json"], **run)
    assert by_name.stdout == by_module.stdout


# Whole installations


def run(*command: str | Path, cwd: Path, rc: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == rc, done.stdout[-5000:]
    return done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A fresh virtual environment that sees this one's packages; returns its Python."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    program = venv / "bin" / "python"
    here = Path(torch.__file__).parents[1]
    site = run(program, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path)
    # A .pth that names the folder, but does not run the .pth files in it: an editable install of
    # this package there stays out of the way.
    Path(site.strip(), "beside.pth").write_text(f"{here}\n")
    return program


# Ignoring what this environment has, which the fresh one sees.
INSTALL = ("install", "--no-deps", "--ignore-installed")
CHECK_INSTALLED = """
import kernelbench_dist as k, kernelbench_dist.problems as p, torch, pathlib
assert k.build_info().extension, k.build_info()
x, w = torch.ones(2, 5, 3), torch.ones(4, 6)
assert torch.ops.kernelbench_dist.all_gather_linear(x, w).tolist() == [[6.0] * 4] * 5
assert len(p.list_problems()) and p.load("level2/47").Model
assert pathlib.Path(k.__file__).with_name("py.typed").is_file()
print(k.__file__, p.__file__)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_from_the_sdist(tree, environment, tmp_path):
    """An sdist, a wheel from it without isolation, and that wheel in a fresh environment."""
    cpu = {"KERNELBENCH_DIST_CUDA": "0"}
    run(sys.executable, "setup.py", "--quiet", "sdist", cwd=tree)
    sdist = next(tree.glob("dist/*.tar.gz"))
    pip = (sys.executable, "-m", "pip")
    wheel_command = ("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path, sdist)
    run(*pip, *wheel_command, cwd=tmp_path, **cpu)
    wheel = next(tmp_path.glob("*.whl"))
    assert "none-any" not in wheel.name
    run(
        *pip,
        "--python",
        environment,
        "install",
        "--no-deps",
        "--ignore-installed",
        wheel,
        cwd=tmp_path,
    )
    out = run(environment, "-c", CHECK_INSTALLED, cwd=tmp_path)
    assert out.count(str(environment.parents[1])) == 2
    assert "0.1.0" in run(environment.with_name("kernelbench-dist"), "--version", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("editable", [False, True], ids=["plain", "editable"])
def test_install_without_isolation(tree, environment, tmp_path, editable):
    pip = (sys.executable, "-m", "pip", "--python", environment)
    command = [
        *pip,
        "install",
        "--no-deps",
        "--ignore-installed",
        "--no-build-isolation",
        *["-e"] * editable,
        ".",
    ]
    cpu = {"KERNELBENCH_DIST_CUDA": "0"}
    run(*command, cwd=tree, **cpu)
    out = run(environment, "-c", CHECK_INSTALLED, cwd=tmp_path)
    assert out.count(str(tree if editable else environment.parents[1])) == 2
    if editable:  # also where the package lies in the current folder, and its problems do not
        run(environment, "-c", CHECK_INSTALLED, cwd=tree)
    # Nothing has changed: nothing is compiled.
    assert "ninja: no work to do" in run(*command, "-v", cwd=tree, **cpu)


@pytest.mark.slow
def test_pip_install_without_torch_says_what_to_do(tree, tmp_path):
    """Isolated, as `pip install .` is by default: the build environment holds no torch."""
    run(sys.executable, "-m", "venv", tmp_path / "bare", cwd=tmp_path)
    out = run(
        tmp_path / "bare/bin/python", "-m", "pip", "install", "--no-deps", ".", cwd=tree, rc=1
    )
    assert "there is none here (No module named 'torch'): install torch, then" in out
    assert "`pip install --no-build-isolation .`" in out
    assert "Traceback" not in out
