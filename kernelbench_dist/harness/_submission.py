"""Submissions: a Python file that defines ModelNew, read and not run."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import tokenize
from dataclasses import dataclass
from pathlib import Path

from kernelbench_dist.harness._results import Kind, Source
from kernelbench_dist.harness.static._code import Code
from kernelbench_dist.harness.static._kind import declared_kind, find_kind

MOST_BYTES = 4_000_000


@dataclass(frozen=True)
class Submission:
    """A submission's text and what is known of it without running it.

    `name` is the path as it was given, or "<source>". `sha256` is that of the text in UTF-8.
    Where the text does not parse, `tree` is None and `syntax_error` says why.
    """

    name: str
    text: str
    sha256: str
    kind: Kind
    kind_is_declared: bool
    tree: ast.Module | None
    syntax_error: SyntaxError | None

    def source(self) -> Source:
        """What results hold of it."""
        return Source(
            name=self.name,
            sha256=self.sha256,
            kind=self.kind,
            kind_is_declared=self.kind_is_declared,
        )


def read_submission(source: str | os.PathLike[str]) -> Submission:
    """Read a submission from a path or from its text.

    A PathLike is a path. A str without a newline is a path if such a file exists, or if it ends in
    ".py" or holds a path separator and no parenthesis or quote; any other str is source text.

    The kind is what a top-level `KIND = "cuda"` says ("cuda", "cpp", "triton", "cute" or "torch"),
    else what the file's own calls and imports show.

    Raises:
        TypeError: source is neither a str nor a PathLike of str.
        FileNotFoundError: there is no file at the path.
        ValueError: a folder, empty text, more than 4 MB, a NUL, bytes that are not of the file's
            encoding (UTF-8 where it names none), or a KIND that there is not.

    >>> submission = read_submission("KIND = 'cpp'\\nclass ModelNew: pass\\n")
    >>> submission.name, submission.kind, submission.kind_is_declared
    ('<source>', 'cpp', True)
    """
    if isinstance(source, str) and not _is_path(source):
        name, text = "<source>", source
        _check_size(name, len(text.encode("utf-8", "surrogatepass")))
    elif isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        if not isinstance(name, str):
            raise TypeError(f"source is the path {name!r} of bytes; a path of str is accepted")
        text = _read(name)
    else:
        raise TypeError(
            f"source is a {type(source).__name__}; source text (str) or a path is accepted"
        )
    if not text.strip():
        raise ValueError(f"{name} is empty; a Python file that defines ModelNew is accepted")
    if "\0" in text:
        raise ValueError(f"{name} holds a NUL at offset {text.index(chr(0))}; text is accepted")
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} holds a lone surrogate at offset {error.start}; text is accepted"
        ) from None
    tree, syntax_error = _parse(text, name)
    kind, declared = _kind(tree)
    sha256 = hashlib.sha256(encoded).hexdigest()
    return Submission(name, text, sha256, kind, declared, tree, syntax_error)


def _is_path(text: str) -> bool:
    if "\n" in text or "\0" in text:
        return False
    if os.path.exists(text) if text else False:
        return True
    looks = text.endswith(".py") or "/" in text or os.sep in text
    return looks and not any(c in text for c in "()'\"=")


def _read(name: str) -> str:
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"{name} is a folder; a Python file is accepted")
    if not path.exists():
        raise FileNotFoundError(f"no file {name}")
    if not path.is_file():
        raise ValueError(f"{name} is no regular file; a Python file is accepted")
    _check_size(name, path.stat().st_size)
    data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not {error.encoding} at offset {error.start}; a text file in UTF-8, or in"
            " the encoding that its first lines name, is accepted"
        ) from None
    except SyntaxError:
        # What detect_encoding says leaves out where.
        offset = _first_wrong_byte(data)
        where = (
            "names an unknown encoding" if offset is None else f"is not utf-8 at offset {offset}"
        )
        raise ValueError(f"{name} {where}; a text file in UTF-8 is accepted") from None
    return io.StringIO(text, newline=None).read()


def _first_wrong_byte(data: bytes) -> int | None:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return None


def _check_size(name: str, size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"{name} has {size} bytes; at most {MOST_BYTES} are accepted")


def _parse(text: str, name: str) -> tuple[ast.Module | None, SyntaxError | None]:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a plain string is the submission's own affair
            return ast.parse(text, name), None
    except SyntaxError as error:
        return None, error
    except (RecursionError, MemoryError):
        return None, SyntaxError("nested too deeply for Python's parser", (name, 1, 1, None))
    except ValueError as error:  # an integer of too many digits
        return None, SyntaxError(str(error), (name, 1, 1, None))


def _kind(tree: ast.Module | None) -> tuple[Kind, bool]:
    if tree is None:
        return "torch", False
    declared = declared_kind(tree)
    if declared is not None:
        return declared, True
    try:
        return find_kind(Code(tree, "torch")), False
    except RecursionError:
        return "torch", False
