"""Judge many submissions, several at once, with a log that a killed sweep goes on from.

>>> from kernelbench_dist.harness.sweep import sweep
>>> result = sweep("problems/", "submissions/", log="sweep.jsonl")  # doctest: +SKIP
>>> print(result)  # doctest: +SKIP
"""

from kernelbench_dist.harness.sweep._log import LogError, results
from kernelbench_dist.harness.sweep._result import NotJudged, SweepEntry, SweepResult
from kernelbench_dist.harness.sweep._run import sweep

__all__ = ["LogError", "NotJudged", "SweepEntry", "SweepResult", "results", "sweep"]
