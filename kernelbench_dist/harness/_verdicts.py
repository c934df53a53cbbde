"""The judge's verdicts, each with one plain sentence and what to do about it."""

from __future__ import annotations

from enum import Enum


class Verdict(str, Enum):
    """How a submission was judged; `PASSED` is the only good one.

    `PROBLEM_ERROR` and `ENVIRONMENT_ERROR` say nothing about the submission.

    >>> Verdict.TIMEOUT.sentence
    'It did not finish within its time limit.'
    >>> Verdict("PASSED").exit_code, Verdict.TIMEOUT.exit_code
    (0, 1)
    """

    PASSED = "PASSED"
    COMPILE_ERROR = "COMPILE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    INCORRECT_VALUES = "INCORRECT_VALUES"
    NOT_FINITE = "NOT_FINITE"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    INPUT_MUTATED = "INPUT_MUTATED"
    PARAMETERS_DIFFER = "PARAMETERS_DIFFER"
    CHEATING = "CHEATING"
    PROBLEM_ERROR = "PROBLEM_ERROR"
    ENVIRONMENT_ERROR = "ENVIRONMENT_ERROR"

    def __str__(self) -> str:
        return self.value

    @property
    def sentence(self) -> str:
        """What the verdict means, for every submission that gets it."""
        return _TEXT[self][0]

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _TEXT[self][1]

    @property
    def exit_code(self) -> int:
        """Of the program: 0 passed, 1 judged and failed, 2 wrong use, 3 environment."""
        special = {
            Verdict.PASSED: 0,
            Verdict.PROBLEM_ERROR: 2,
            Verdict.ENVIRONMENT_ERROR: 3,
        }
        return special.get(self, 1)


_TEXT = {
    Verdict.PASSED: (
        "It does what the reference does.",
        "Nothing to mend.",
    ),
    Verdict.COMPILE_ERROR: (
        "It does not compile, or its Python file does not parse.",
        "Mend the first error that is listed; those after it are often its consequences.",
    ),
    Verdict.RUNTIME_ERROR: (
        "It raised an exception, or its process died.",
        "Read the message: it names the step, and the exception or the signal.",
    ),
    Verdict.TIMEOUT: (
        "It did not finish within its time limit.",
        "Look for an endless loop, a deadlock among threads or blocks, or far too much work.",
    ),
    Verdict.OUT_OF_MEMORY: (
        "It needed more memory than it was allowed or than there is.",
        "Allocate less: reuse buffers, and do not keep what a call has made.",
    ),
    Verdict.INCORRECT_SHAPE: (
        "An output has another shape, type or layout than the reference's, or is missing.",
        "Return plain tensors, as many as the reference and of the same shapes.",
    ),
    Verdict.INCORRECT_DTYPE: (
        "An output has another dtype or device than the reference's.",
        "Return the reference's dtype; compute in a wider one if need be and convert at the end.",
    ),
    Verdict.INCORRECT_VALUES: (
        "Values differ from the float64 reference by more than rounding explains.",
        "Look at the worst element: its index tells which rank, row or tail goes wrong.",
    ),
    Verdict.NOT_FINITE: (
        "NaN or infinity stands where the reference has a finite value.",
        "Look for memory that is read before it is written, 0 * inf, and overflow.",
    ),
    Verdict.NONDETERMINISTIC: (
        "Two runs on the same inputs differ by more than is allowed.",
        "Look for races, for reads past the end, and for atomics in no fixed order.",
    ),
    Verdict.INPUT_MUTATED: (
        "It changed its inputs, or the memory beside them.",
        "Write to memory of its own, and check the last index that is written.",
    ),
    Verdict.PARAMETERS_DIFFER: (
        "Its parameters are not those of the reference, so that they cannot be copied.",
        "Give ModelNew the parameters of Model, with the same names and shapes.",
    ),
    Verdict.CHEATING: (
        "It obtains its result or its time by other means than computing.",
        "Do the work in forward, in kernels of the kind that is declared, on the current stream.",
    ),
    Verdict.PROBLEM_ERROR: (
        "The problem itself is broken: the submission was not judged.",
        "Mend the problem file; the message names what is wrong with it.",
    ),
    Verdict.ENVIRONMENT_ERROR: (
        "This machine could not judge it: the submission was not judged.",
        "Mend what the message names, and judge it again.",
    ),
}
