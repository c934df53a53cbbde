"""setup.py: what it chooses to build, what it refuses, and what it does without torch.

Toolkits are shell scripts that answer as nvcc does, so none of this needs CUDA.
"""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import pytest
import setuptools
import torch
from torch.utils.cpp_extension import is_ninja_available

import kernelbench_dist

ROOT = Path(__file__).resolve().parents[1]
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


@pytest.fixture
def script(load_file, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """setup.py as a module, with a CUDA torch and without the machine's own toolkit."""
    module = load_file(ROOT / "setup.py")
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


# Ninja


def test_ninja_is_found_though_its_environment_is_not_active(tmp_path, monkeypatch):
    write_script(tmp_path / "ninja", "#!/bin/sh\necho 1.13.0\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    monkeypatch.setenv("PATH", "/nowhere")
    assert not is_ninja_available()
    runpy.run_path(str(ROOT / "setup.py"), run_name="__main__")
    assert is_ninja_available()


# Without torch


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; "


def setup_without_torch(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = (
        f"{WITHOUT_TORCH}import runpy; sys.argv = ['setup.py', *{arguments!r}];"
        " runpy.run_path('setup.py', run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)


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
