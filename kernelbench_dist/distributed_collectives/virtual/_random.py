"""Each rank's state of Python's `random` and of `numpy.random`, which are the process's.

Functions of both may have been imported under any name, so the generators stay and their states
change. Their own functions for that, which list 624 words, take longer than to hand the baton on.
"""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

_SHARED: random.Random = random.seed.__self__  # type: ignore[attr-defined]


def _words(generator: random.Random) -> memoryview | None:
    """The memory of its state. None: this Python has it elsewhere than expected."""
    head = object.__basicsize__
    size = ctypes.sizeof(ctypes.c_int) + 624 * ctypes.sizeof(ctypes.c_uint32)
    if type(generator).__bases__[0].__basicsize__ < head + size:
        return None
    words = memoryview((ctypes.c_char * size).from_address(id(generator) + head)).cast("B")
    _, (*state, index), _ = generator.getstate()
    return words if words.cast("i")[0] == index and words.cast("I")[1:].tolist() == state else None


_shared_words = _words(_SHARED)


class PythonRandom:
    """One rank's state of `random`; it starts with what is there."""

    def __init__(self) -> None:
        self.take()

    def take(self) -> None:
        if _shared_words is None:
            self.state: Any = _SHARED.getstate()
        else:
            self.state = _shared_words.tobytes(), _SHARED.gauss_next  # type: ignore[attr-defined]

    def put(self) -> None:
        if _shared_words is None:
            _SHARED.setstate(self.state)
        else:
            _shared_words[:], _SHARED.gauss_next = self.state  # type: ignore[attr-defined]


def _numpy_random() -> Any:
    """None: it has not been imported yet, which NumPy 2 does when it is first used."""
    return sys.modules.get("numpy.random")


def _own_kind(kind: type) -> type:
    """Generators that can keep their words to themselves, so that the rest is quickly had."""

    class Own(kind):
        brief = False

        @property
        def state(self) -> Any:
            if self.brief:
                return {"bit_generator": kind.__name__, "state": None}
            return super().state

        @state.setter
        def state(self, state: Any) -> None:
            if not self.brief:
                kind.state.__set__(self, state)  # type: ignore[attr-defined]

    Own.__name__ = kind.__name__  # the name of the state, too
    return Own


class NumpyRandom:
    """The caller's state of `numpy.random`, and what ranks start with."""

    def __init__(self) -> None:
        numpy = _numpy_random()
        self.generator = numpy.get_bit_generator() if numpy is not None else None
        self.state = numpy.get_state(legacy=False) if numpy is not None else None
        self.kind = _own_kind(type(self.generator)) if numpy is not None else None

    def rank(self) -> NumpyRankRandom:
        return NumpyRankRandom(self)

    def own(self, numpy: Any) -> tuple[Any, Any]:
        """A generator for a rank. Where the caller has none: as an import in a process gives it."""
        kind = self.kind = self.kind or _own_kind(numpy.MT19937)
        generator = kind()
        if self.state is None:
            return generator, None
        generator.state = self.state
        return generator, {**self.state, "state": None}

    def put_back(self) -> None:
        numpy = _numpy_random()
        if numpy is None:
            return
        if self.generator is None:
            numpy.set_bit_generator(numpy.MT19937())
        else:
            numpy.set_bit_generator(self.generator)
            numpy.set_state(self.state)


class NumpyRankRandom:
    """One rank's generator, and the normal number that `numpy.random` itself may hold back."""

    def __init__(self, callers: NumpyRandom) -> None:
        self.callers = callers
        self.generator: Any = None
        self.state: Any = None

    def take(self) -> None:
        numpy = _numpy_random()
        if numpy is not None:
            self.generator = numpy.get_bit_generator()
            self.state = self._briefly(numpy.get_state, legacy=False)

    def put(self) -> None:
        numpy = _numpy_random()
        if numpy is None:
            return
        if self.generator is None:
            self.generator, self.state = self.callers.own(numpy)
        numpy.set_bit_generator(self.generator)  # which forgets the normal number
        if self.state is not None and self.state["has_gauss"]:
            self._briefly(numpy.set_state, self.state)

    def _briefly(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self.generator, "brief"):  # the program has set a generator of its own
            return function(*args, **kwargs)
        self.generator.brief = True
        try:
            return function(*args, **kwargs)
        finally:
            self.generator.brief = False
