"""What a submission asks to be built, checked, and as plain values that travel as JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import model_validator

from kernelbench_dist.harness._results import Frozen
from kernelbench_dist.harness.build._flags import FlagKind, check_flags

MAX_SOURCE_BYTES = 8_000_000
_IGNORED = {"verbose", "build_directory", "keep_intermediates", "use_pch"}
_CXX_ENDINGS = (".cpp", ".cc", ".cxx", ".c++")
_FLAG_KINDS: tuple[FlagKind, ...] = ("extra_cflags", "extra_cuda_cflags", "extra_ldflags")


class BuildRequest(Frozen):
    """The arguments of torch's load_inline or load, without those that only say where or how loud.

    Whoever makes one, from JSON too, gets ValueError where a flag, a name or the size of the
    sources is not accepted: what is in a request is safe to hand to a compiler.
    """

    name: str
    cpp_sources: tuple[str, ...]
    cuda_sources: tuple[str, ...] = ()
    functions: dict[str, str] | None = None
    """the exported functions, each with its docstring; None where the sources export theirs"""
    extra_cflags: tuple[str, ...] = ()
    extra_cuda_cflags: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    extra_include_paths: tuple[str, ...] = ()
    with_cuda: bool | None = None
    no_implicit_headers: bool = False
    is_python_module: bool = True
    with_pytorch_error_handling: bool = True
    cpp_names: tuple[str, ...] = ()
    """the files' names, where the sources are files, each to be compiled by itself"""
    cuda_names: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> BuildRequest:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", self.name):
            raise ValueError(f"name is {self.name!r}, and an identifier is accepted")
        if self.uses_files and (len(self.cpp_names), len(self.cuda_names)) != (
            len(self.cpp_sources),
            len(self.cuda_sources),
        ):
            raise ValueError("cpp_names and cuda_names do not fit the sources")
        texts = [*self.cpp_sources, *self.cuda_sources]
        for name, docstring in (self.functions or {}).items():
            texts += [name, docstring]
        size = sum(len(text.encode()) for text in texts)
        if size > MAX_SOURCE_BYTES:
            raise ValueError(f"the sources have {size} bytes, and {MAX_SOURCE_BYTES} are accepted")
        for kind in _FLAG_KINDS:
            check_flags(kind, getattr(self, kind))
        for path in self.extra_include_paths:
            # They pass a shell too, and a relative one would mean another folder there.
            if not re.fullmatch(r"/[\w./+,:=-]*", path, re.ASCII):
                raise ValueError(
                    f"extra_include_paths: {path!r} is not accepted; accepted are absolute paths of"
                    " letters, digits and _./+,:=-"
                )
        return self

    @property
    def uses_files(self) -> bool:
        """Whether it came from `load`, with files that are compiled one by one."""
        return bool(self.cpp_names or self.cuda_names)

    @property
    def needs_cuda(self) -> bool:
        return bool(self.cuda_sources) if self.with_cuda is None else self.with_cuda

    @classmethod
    def from_load_inline(
        cls,
        name: str,
        cpp_sources: str | Iterable[str],
        cuda_sources: str | Iterable[str] | None = None,
        sycl_sources: str | Iterable[str] | None = None,
        functions: str | Iterable[str] | Mapping[str, str] | None = None,
        extra_cflags: Iterable[str] | None = None,
        extra_cuda_cflags: Iterable[str] | None = None,
        extra_sycl_cflags: Iterable[str] | None = None,
        extra_ldflags: Iterable[str] | None = None,
        extra_include_paths: str | Iterable[str] | None = None,
        build_directory: Any = None,
        verbose: Any = False,
        with_cuda: bool | None = None,
        with_sycl: bool | None = None,
        is_python_module: bool = True,
        with_pytorch_error_handling: bool = True,
        keep_intermediates: Any = True,
        use_pch: Any = False,
        no_implicit_headers: bool = False,
    ) -> BuildRequest:
        """From the arguments of torch.utils.cpp_extension.load_inline, in its order.

        Raises:
            FlagError: a flag is not among those accepted.
            TypeError: an argument is unknown or of another type.
            ValueError: SYCL is asked for, or the name or the sources' size is not accepted.
        """
        _refuse_sycl(sycl_sources, extra_sycl_cflags, with_sycl)
        if isinstance(functions, str):
            functions = [functions]
        if functions is not None and not isinstance(functions, Mapping):
            functions = {name: name for name in functions}
        return cls(
            name=name,
            cpp_sources=_texts("cpp_sources", cpp_sources),
            cuda_sources=_texts("cuda_sources", cuda_sources),
            functions=None if functions is None else dict(functions),
            **_flags(extra_cflags, extra_cuda_cflags, extra_ldflags),
            extra_include_paths=_folders(extra_include_paths),
            with_cuda=with_cuda,
            no_implicit_headers=bool(no_implicit_headers),
            is_python_module=bool(is_python_module),
            with_pytorch_error_handling=bool(with_pytorch_error_handling),
        )

    @classmethod
    def from_load(
        cls,
        name: str,
        sources: str | Iterable[str | os.PathLike[str]],
        extra_cflags: Iterable[str] | None = None,
        extra_cuda_cflags: Iterable[str] | None = None,
        extra_sycl_cflags: Iterable[str] | None = None,
        extra_ldflags: Iterable[str] | None = None,
        extra_include_paths: str | Iterable[str] | None = None,
        build_directory: Any = None,
        verbose: Any = False,
        with_cuda: bool | None = None,
        with_sycl: bool | None = None,
        is_python_module: bool = True,
        is_standalone: bool = False,
        keep_intermediates: Any = True,
    ) -> BuildRequest:
        """From the arguments of torch.utils.cpp_extension.load; the files are read here.

        Raises as `from_load_inline`, and OSError where a file cannot be read.
        """
        _refuse_sycl(None, extra_sycl_cflags, with_sycl)
        if is_standalone:
            raise ValueError("is_standalone is set, and only libraries are built here")
        paths = [Path(sources)] if isinstance(sources, str) else [Path(path) for path in sources]
        found: dict[str, list[tuple[str, str]]] = {"cpp": [], "cuda": []}
        folders = list(_folders(extra_include_paths))
        for path in paths:
            if path.suffix not in (".cu", *_CXX_ENDINGS):
                accepted = ", ".join((".cu", *_CXX_ENDINGS))
                raise ValueError(f"sources: {str(path)!r} ends in none of {accepted}")
            with path.open("rb") as file:
                text = file.read(MAX_SOURCE_BYTES + 1).decode()
            found["cuda" if path.suffix == ".cu" else "cpp"].append((path.name, text))
            # The text is compiled elsewhere: the headers beside the file must still be found.
            if '#include "' in text and (folder := str(path.resolve().parent)) not in folders:
                folders.append(folder)
        return cls(
            name=name,
            cpp_sources=tuple(text for _, text in found["cpp"]),
            cuda_sources=tuple(text for _, text in found["cuda"]),
            cpp_names=tuple(name for name, _ in found["cpp"]),
            cuda_names=tuple(name for name, _ in found["cuda"]),
            **_flags(extra_cflags, extra_cuda_cflags, extra_ldflags),
            extra_include_paths=tuple(folders),
            with_cuda=with_cuda,
            is_python_module=bool(is_python_module),
        )


def _refuse_sycl(*values: Any) -> None:
    if any(values):
        raise ValueError("SYCL is asked for, and only C++ and CUDA are built here")


def _texts(argument: str, value: str | Iterable[str] | None) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value or ())
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{argument} holds {text!r}, and only texts are accepted")
    return texts


def _flags(cxx: Any, cuda: Any, link: Any) -> dict[str, Any]:
    return {
        kind: check_flags(kind, flags or ())
        for kind, flags in zip(_FLAG_KINDS, (cxx, cuda, link), strict=True)
    }


def _folders(paths: str | Iterable[str] | None) -> tuple[str, ...]:
    return tuple(os.path.abspath(path) for path in _texts("extra_include_paths", paths))
