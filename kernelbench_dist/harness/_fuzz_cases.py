"""Cases for fuzzing: what may vary, which case is simpler than another, and how they are drawn."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelbench_dist.harness._draws import VALUES
from kernelbench_dist.harness._memory import LAYOUTS
from kernelbench_dist.harness._results import Build, Frozen, Options, Result, Trial

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_PRIMES_AND_POWERS = (11, 13, 15, 16, 17, 19, 23, 31, 32, 33, 37, 41, 53, 61, 63, 64, 65, 67)
_LARGE = (96, 127, 128, 129, 255, 256, 257, 300)
# In order, so that a smaller index is a smaller size; what is there more often is drawn more often.
_SIZES = sorted(
    [*[0] * 12, *[1] * 8, *[*range(2, 10)] * 4, *range(10, 71), *_PRIMES_AND_POWERS * 2, *_LARGE]
)
_MOST_PRODUCT = 1 << 22
_SEEDS = 1 << 10


class FuzzCase(Frozen):
    """One case: all of the problem's sizes, what values and layout the inputs have, the seed."""

    sizes: dict[str, int]
    values: str
    layout: str
    seed: int

    def words(self, names: tuple[str, ...]) -> str:
        """In one line; `names` are the sizes that are told."""
        sizes = " ".join(f"{name}={self.sizes[name]}" for name in names) or "the problem's sizes"
        return f"{sizes} ({self.values} values, {self.layout})"


class FuzzResult(Result):
    """`case` is the smallest that was found to be wrong, `trial` what it gave.

    Of a submission that passed, or could not be judged at any case, both are None.
    """

    tool = "fuzz"
    options: Options | None = None
    builds: tuple[Build, ...] = ()
    varied: tuple[str, ...] = ()
    """the sizes that were drawn; the others were as the problem has them"""
    case: FuzzCase | None = None
    trial: Trial | None = None
    cases: int = 0
    """that were judged, those of shrinking among them"""
    skipped: int = 0
    """that the reference does not take, or at which it is itself no better than the submission"""
    shrunk: bool | None = None
    """whether all simpler cases were tried that differ in one thing; False: the time was up"""
    reproduced: bool | None = None
    """whether the case fails in a fresh process too"""
    snippet: str | None = None
    """a program that runs the case with torch alone and prints both answers"""
    stored: str | None = None
    """the file of the failure, which `replay` takes"""
    replay: str | None = None
    """the command that runs the case again"""


class ReplayResult(FuzzResult):
    """A stored case, run once more."""

    tool = "replay"


@dataclass(frozen=True)
class Plan:
    """What may vary.

    constants: all sizes of the problem as it has them; names: those that vary, in order; values,
    layouts: the kinds that are tried, the simplest first; least_size: of those that vary.
    """

    constants: Mapping[str, int]
    names: tuple[str, ...]
    values: tuple[str, ...] = VALUES
    layouts: tuple[str, ...] = LAYOUTS
    least_size: int = 0

    def first(self) -> FuzzCase:
        """The problem's own sizes, as plain as can be."""
        return FuzzCase(
            sizes=dict(self.constants), values=self.values[0], layout=self.layouts[0], seed=0
        )

    def order(self, case: FuzzCase) -> tuple[int, ...]:
        """The simplest case has the least: sizes count first, the seed last."""
        sizes = [case.sizes[name] for name in self.names]
        kinds = self.values.index(case.values), self.layouts.index(case.layout)
        return (sum(sizes), *sizes, *kinds, case.seed)

    def simpler(self, case: FuzzCase) -> Iterator[FuzzCase]:
        """All simpler cases that differ in one thing, but for the seed, of which only 0 counts.

        Whether a few values tie or overflow is chance, so smaller sizes get more seeds there.
        """
        more_seeds = () if case.values == "normal" else range(4)
        for values in self.values[: self.values.index(case.values)]:
            yield case.model_copy(update={"values": values})
        for layout in self.layouts[: self.layouts.index(case.layout)]:
            yield case.model_copy(update={"layout": layout})
        for name in self.names:
            for size in range(self.least_size, case.sizes[name]):
                for seed in (case.seed, *more_seeds):
                    sizes = {**case.sizes, name: size}
                    yield case.model_copy(update={"sizes": sizes, "seed": seed})
        if case.seed:
            yield case.model_copy(update={"seed": 0})

    def strategy(self) -> SearchStrategy[FuzzCase]:
        """Draws cases, and shrinks them as `order` says.

        The product of the sizes is limited by construction, so that no case takes long.
        """
        from hypothesis import strategies as st

        table = [size for size in _SIZES if size >= self.least_size]

        @st.composite
        def cases(draw: st.DrawFn) -> FuzzCase:
            sizes = dict(self.constants)
            for name in self.names:
                drawn = self.names[: self.names.index(name)]
                others = math.prod(max(sizes[n], 1) for n in drawn)
                end = bisect.bisect_right(table, _MOST_PRODUCT // others)
                sizes[name] = draw(st.sampled_from(table[: max(end, 1)]))
            # Half of the cases are plain, so that sizes alone are tried enough.
            values = draw(st.sampled_from([*self.values[:1] * len(self.values), *self.values]))
            layout = draw(st.sampled_from([*self.layouts[:1] * len(self.layouts), *self.layouts]))
            seed = draw(st.sampled_from(range(_SEEDS)))
            return FuzzCase(sizes=sizes, values=values, layout=layout, seed=seed)

        return cases()
