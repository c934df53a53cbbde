"""Statistics of timing samples: a summary of one function, and the ratio of two.

Everything is a function of plain arrays, so that it can be checked by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

Verdict = Literal["faster", "slower", "same"]

CONFIDENCE = 0.99
"""Of every interval given. At 95 % a function would differ from itself in one run of 20."""

PRACTICAL_THRESHOLD = 0.02
"""Ratios within a factor of 1.02 of 1, either way, are not worth a claim."""

MIN_ROUNDS = 8
"""With fewer samples no order statistics bracket the median with 99 % confidence."""

_RESAMPLES = 2000


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 99 % interval on the median, from order statistics.

    The number of samples below the true median is Binomial(n, 1/2) whatever their distribution,
    so the k-th smallest and the k-th largest sample bracket the median with a confidence known
    exactly; the largest k that keeps it at 99 % or more is taken. With fewer than 8 samples no k
    does, and the interval is the whole range.
    """
    ordered = sorted(samples)
    n = len(ordered)
    tail, k = 0.0, 0
    for i in range((n - 1) // 2):
        tail += math.comb(n, i) / 2**n
        if 2 * tail > 1 - CONFIDENCE:
            break
        k = i
    return ordered[k], ordered[n - 1 - k]


def ratio_interval(
    times: Sequence[float], baseline: Sequence[float], seed: int
) -> tuple[float, float, float]:
    """The ratio of two medians and its 99 % bootstrap interval: (ratio, low, high).

    The i-th samples of both come from the same round, and whole rounds are resampled: a drift of
    the clock or a noisy neighbour that both felt then cancels in the ratio, instead of widening
    the interval.
    """
    a, b = np.asarray(times), np.asarray(baseline)
    if a.shape != b.shape:
        raise ValueError(f"samples are paired by round, but there are {a.size} and {b.size}")
    rounds = np.random.default_rng(seed).integers(0, a.size, size=(_RESAMPLES, a.size))
    ratios = np.median(a[rounds], axis=1) / np.median(b[rounds], axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(np.median(a) / np.median(b)), float(low), float(high)


def verdict(low: float, high: float) -> Verdict:
    """What an interval on a ratio of times allows to be said.

    "faster" or "slower" when the whole interval lies beyond the practical threshold, else "same".
    The two limits are 1 / 1.02 and 1.02, so that exchanging the two functions exchanges the words.

    >>> verdict(0.90, 0.95), verdict(0.90, 0.99), verdict(1.03, 1.10)
    ('faster', 'same', 'slower')
    """
    if high < 1 / (1 + PRACTICAL_THRESHOLD):
        return "faster"
    if low > 1 + PRACTICAL_THRESHOLD:
        return "slower"
    return "same"
