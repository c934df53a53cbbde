"""The problem suite, and a loader for problem files.

A problem is a Python file that defines ``Model`` (an nn.Module: the reference), ``get_inputs()``
(the list of its inputs, drawn anew at each call) and ``get_init_inputs()`` (the list of Model's own
arguments). `load` also runs files written for the original system as they are: these import
``kernelbench.distributed_collectives`` and use a global ``popcorn_pri``.

Most of the suite's problems are there in two forms: on stacked virtual ranks, ``level1/23``, and as
a torch.distributed program, ``level1/23@4`` on 4 ranks.
"""

from __future__ import annotations

import builtins
import difflib
import importlib
import itertools
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import kernelbench_dist.distributed_collectives as _collectives
from kernelbench_dist.distributed_collectives import jitter as _jitter
from kernelbench_dist.problems import _program, _tags

__all__ = ["Problem", "ProblemError", "find", "list_problems", "load", "tags"]

_ROOT = Path(__file__).resolve().parent
_FORMS = (
    "a path, or a name such as 'level2/47', '47' or '47_virtual_all_gather_concat_linear', with "
    "'@4' after it for the form of a torch.distributed program on 4 ranks"
)
_MOST_RANKS = 64
_load_count = itertools.count()  # next() is atomic, so that threads never share a module's name


class ProblemError(ValueError):
    """The problem cannot be found by its name, or its file does not define what it must."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem file that has been run.

    ``notes`` says what was done to make the file run. It grows as ``get_inputs`` is called.
    """

    name: str
    path: Path
    Model: type[torch.nn.Module]
    get_inputs: Callable[..., list[Any]]
    get_init_inputs: Callable[..., list[Any]]
    notes: list[str] = field(repr=False)
    module: types.ModuleType = field(repr=False)

    @property
    def world_size(self) -> int:
        """How many ranks run it, as a torch.distributed program; 1 where it is none."""
        return int(getattr(self.module, "WORLD_SIZE", 1))

    @property
    def constants(self) -> dict[str, int]:
        """The sizes that may be set in the module: its integers in capitals."""
        fixed = ("WORLD_SIZE", "R") if ranks_in(self.name) else ("WORLD_SIZE",)
        found = _program.counts(vars(self.module))
        return {name: value for name, value in found.items() if name not in fixed}


def list_problems(tag: str | None = None) -> list[str]:
    """The names of the suite's problems, by level and number; `load` takes each of them.

    tag: only those that have this one among their `tags`.

    >>> "level2/47_virtual_all_gather_concat_linear" in list_problems()
    True
    """
    paths = _ROOT.glob("level*/[0-9]*_*.py")
    names = sorted((f"{path.parent.name}/{path.stem}" for path in paths), key=_sort_key)
    if tag is None:
        return names
    if tag not in _tags.COLLECTIVES:
        raise ValueError(f"tag is {tag!r}; one of {', '.join(_tags.COLLECTIVES)} is accepted")
    return [name for name in names if tag in tags(name)]


def tags(path_or_name: str | os.PathLike[str]) -> tuple[str, ...]:
    """The collectives that a problem's RankModel calls. The file is read, and not run.

    >>> tags("level1/23_virtual_all_reduce_mean")
    ('all_reduce',)
    """
    return _tags.tags_of(find(path_or_name)[1].read_text(encoding="utf-8"))


def load(path_or_name: str | os.PathLike[str]) -> Problem:
    """Run a problem file and return what it defines.

    A name is looked up in the suite: ``level2/47``, ``47``, ``47_virtual_all_gather_concat_linear``
    or the two joined, with or without ``.py``. A string that names an existing file is a path. With
    ``@4`` after a name or a path, what is loaded is the problem's form as a torch.distributed
    program on 4 ranks: ``Model`` is the file's RankModel, and ``get_inputs`` gives one rank's part.

    While the file runs, and in the functions that it defines whenever they are called,
    ``import kernelbench.distributed_collectives`` gives this package's module of that name, unless
    a real one can be imported. The file's own ``__import__`` does this: nothing is put into
    ``sys.modules`` under that name, and no other code or thread sees it. The global ``popcorn_pri``
    offers the jitter helpers; where ``jitter_int``'s range holds no multiple of ``align`` it takes
    the nearest one, and where ``trial_int``'s ends are swapped it swaps them back. Both are noted.

    The file's module stays in ``sys.modules`` under a name of its own, so that torch.compile,
    pickle, dataclasses and inspect find it.

    Raises:
        ProblemError: an unknown name (with close matches), a number found in several levels, a
            file that lacks Model, get_inputs or get_init_inputs, or ``@4`` where there is no such
            form.
        FileNotFoundError: a path where there is no file.
        Exception: whatever the file raises; its traceback shows the file's own path and lines.

    >>> problem = load("level2/47")
    >>> problem.name
    'level2/47_virtual_all_gather_concat_linear'
    >>> model = problem.Model(*problem.get_init_inputs())
    >>> [tuple(x.shape) for x in problem.get_inputs(jitter=False)]
    [(4, 12, 32)]
    """
    name, path = find(path_or_name)
    notes: list[str] = []
    module = types.ModuleType(f"kernelbench_dist_problem_{next(_load_count)}_{path.stem}")
    module.__file__ = str(path)
    module.__dict__["popcorn_pri"] = _PopcornPri(notes)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _Importer(notes)}
    # Bytes, so that compile() honours an encoding line; the path is what tracebacks show.
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    sys.modules[module.__name__] = module
    try:
        exec(code, module.__dict__)
        parts = _parts(path, vars(module))
        if world_size := ranks_in(name):
            if fault := _program.fault(vars(module)):
                raise ProblemError(f"{name}: {path} has no form for ranks: {fault}")
            _program.make_program(module, world_size)
            parts = _parts(path, vars(module))
    except BaseException:
        sys.modules.pop(module.__name__, None)
        raise
    return Problem(name, path, *parts, notes, module)


def _parts(path: Path, names: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Model, get_inputs and get_init_inputs, each checked for what it is."""
    wanted: dict[str, Callable[[Any], bool]] = {
        "Model": lambda it: isinstance(it, type) and issubclass(it, torch.nn.Module),
        "get_inputs": callable,
        "get_init_inputs": callable,
    }
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ProblemError(
            f"{path} does not define {_listed(missing)}; a problem file defines {_listed(wanted)}"
        )
    for name, is_right in wanted.items():
        if not is_right(names[name]):
            kind = "a subclass of torch.nn.Module" if name == "Model" else "a function"
            raise ProblemError(f"{path}: {name} must be {kind}, not {names[name]!r}")
    for name in ("VARIES", "SHARED", "INERT", "RIGHT_TRIVIAL_ANSWERS"):
        if isinstance(given := names.get(name), str):  # its letters would be taken for names
            raise ProblemError(f"{path}: {name} is {given!r}; write a tuple, ({given!r},)")
    return names["Model"], names["get_inputs"], names["get_init_inputs"]


def find(path_or_name: str | os.PathLike[str]) -> tuple[str, Path]:
    """The full name and the file of a problem, which is not run. Takes and raises as `load`.

    >>> find("47")[0]
    'level2/47_virtual_all_gather_concat_linear'
    """
    if not isinstance(path_or_name, (str, os.PathLike)):
        raise TypeError(f"expected {_FORMS}; got {path_or_name!r}")
    path = Path(path_or_name)
    text = os.fspath(path_or_name)
    if not path.is_file() and (at := re.fullmatch(r"(.+)@([^@/]*)", text, re.DOTALL)):
        if not re.fullmatch(r"[0-9]{1,3}", at[2]) or not 2 <= int(at[2]) <= _MOST_RANKS:
            raise ProblemError(
                f"{text!r} asks for {at[2]!r} ranks; 2 to {_MOST_RANKS} is accepted after the '@'"
            )
        name, path = find(at[1])
        if ranks_in(name):
            raise ProblemError(f"{text!r} asks for ranks twice; one '@' is accepted")
        return f"{name}@{int(at[2])}", path
    if not isinstance(path_or_name, str) or path.is_file():
        if not path.is_file():
            raise FileNotFoundError(f"no problem file at {path}")
        path = path.resolve()
        inside = path.is_relative_to(_ROOT)
        name = path.relative_to(_ROOT).with_suffix("").as_posix() if inside else path.stem
        return (path.name if ranks_in(name) else name), path

    wanted = path_or_name.removesuffix(".py")
    every = list_problems()
    found = [name for name in every if wanted in _spellings(name)]
    if len(found) == 1:
        return found[0], _ROOT / f"{found[0]}.py"
    if found:
        raise ProblemError(
            f"{path_or_name!r} is in several levels: {', '.join(found)}. Give the level too"
        )
    if path_or_name.endswith(".py") and not re.match(r"(level\d+/)?[^/]*$", path_or_name):
        raise FileNotFoundError(f"no problem file at {path}")
    spellings = {spelling: name for name in every for spelling in _spellings(name)}
    close = difflib.get_close_matches(wanted, spellings, n=6, cutoff=0.5)
    names = list(dict.fromkeys(spellings[spelling] for spelling in close))[:3]
    hint = f"did you mean {' or '.join(names)}?" if names else "list_problems() names them all"
    raise ProblemError(f"no problem {path_or_name!r}: expected {_FORMS}; {hint}")


def ranks_in(name: str) -> int:
    """The number of ranks after a name's "@"; 0 where the problem is not in that form.

    >>> ranks_in("level1/23_virtual_all_reduce_mean@4"), ranks_in("level1/23")
    (4, 0)
    """
    return int(name.rpartition("@")[2]) if re.search(r"@\d+$", name) else 0


def address(name: str, path: Path) -> str:
    """What loads the same problem, in the same form, where its name is not known."""
    ranks = ranks_in(name)
    return f"{path}@{ranks}" if ranks else str(path)


def _spellings(name: str) -> tuple[str, str, str, str]:
    level, stem = name.split("/")
    number = stem.split("_")[0]
    return name, stem, f"{level}/{number}", number


def _sort_key(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"level(\d+)/(\d+)", name)[0]]


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    *head, last = names
    return f"{', '.join(head)} and {last}" if head else last


class _PopcornPri:
    """The helper object that original problem files use as a global.

    It draws from torch's global CPU generator, so that torch.manual_seed governs the inputs.
    """

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def trial_int(self, low: int, high: int) -> int:
        if low > high:
            self._note(f"popcorn_pri.trial_int({low}, {high}): the ends were swapped")
            low, high = high, low
        return _jitter.trial_int(low, high)

    def jitter_int(self, default: int, **options: Any) -> int:
        return self._nearest("jitter_int", default, **options)

    def sample_input_mode(self) -> str:
        return _jitter.sample_input_mode()

    def trial_dim(self, center: int, name: str = "", **options: Any) -> int:
        return self._nearest("trial_dim", center, name, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols such as copy and pickle probe for these
            raise AttributeError(name)
        helpers = sorted(helper for helper in vars(_PopcornPri) if not helper.startswith("_"))
        raise AttributeError(f"popcorn_pri has no helper {name!r}; it has {_listed(helpers)}")

    def _nearest(self, function: str, *args: Any, **options: Any) -> int:
        try:
            drawn: int = getattr(_jitter, function)(*args, **options)
        except _jitter.NoMultipleError as error:
            self._note(f"popcorn_pri.{function}: {error}; took the nearest, {error.nearest}")
            return error.nearest
        return drawn

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)


class _Importer:
    """``__import__`` for one problem file, which knows kernelbench.distributed_collectives.

    Import statements look ``__import__`` up in the builtins of the function that they stand in, so
    that statements inside the file's functions come here too, also long after the file has run.
    """

    _PACKAGE = "kernelbench"
    _MODULE = "kernelbench.distributed_collectives"

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        attribute = self._MODULE.rpartition(".")[2]
        is_ours = name == self._MODULE or (
            name == self._PACKAGE and (not fromlist or attribute in fromlist)
        )
        if level or not is_ours or self._real_one_imports():
            # Looked up at each call, as an import statement elsewhere would.
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        return _collectives if name == self._MODULE and fromlist else self._stand_in(attribute)

    def _real_one_imports(self) -> bool:
        try:
            importlib.import_module(self._MODULE)
        except Exception as error:  # whatever stops it: it cannot be imported
            if getattr(error, "name", None) not in (self._PACKAGE, self._MODULE):
                note = f"the installed {self._MODULE} does not import ({error}); ours stands in"
                if note not in self._notes:
                    self._notes.append(note)
            return False
        return True

    def _stand_in(self, attribute: str) -> types.ModuleType:
        """The top package; what else the file asks of it comes from a real one, if there is any."""
        package = types.ModuleType(self._PACKAGE)
        try:
            package.__dict__.update(vars(importlib.import_module(self._PACKAGE)))
        except Exception:
            package.__path__ = []
        setattr(package, attribute, _collectives)
        return package
