"""Error maps of outputs, against a loop over their elements."""

from __future__ import annotations

import math

import pytest
import torch

from kernelbench_dist.harness import run_correctness
from kernelbench_dist.harness._oracle import NO_BOUND
from kernelbench_dist.harness._results import Output
from kernelbench_dist.harness._values import error_map
from kernelbench_dist.report._cards import worst_output

SHAPES = [
    (),
    (1,),
    (5,),
    (100,),
    (40, 1),
    (1, 40),
    (64, 96),
    (70, 33),
    (33, 70),
    (2, 3, 37),
    (3, 0),
]


def by_hand(got, exact, bound) -> dict[tuple[int, int], float]:
    """The share of each element, by its row and column."""
    columns = got.shape[-1] if got.ndim else 1
    shares = {}
    for i, (g, e, b) in enumerate(
        zip(*(t.flatten().tolist() for t in (got, exact, bound)), strict=True)
    ):
        same = g == e or (g != g and e != e) or b >= NO_BOUND
        error = abs(g - e)
        share = 0.0 if same else math.inf if b == 0 or error != error else error / b
        shares[divmod(i, columns)] = share
    return shares


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str
)
def test_each_tile_holds_its_worst_element(shape, dtype):
    generator = torch.Generator().manual_seed(3)
    exact = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    exact = exact.to(torch.complex128 if dtype.is_complex else torch.float64)
    exact = exact.to(dtype) if not dtype.is_floating_point and not dtype.is_complex else exact
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    got = (exact.to(torch.complex128 if dtype.is_complex else torch.float64) + noise).to(dtype)
    is_rounded = dtype.is_floating_point or dtype.is_complex
    bound = torch.rand(shape, generator=generator, dtype=torch.float64) * is_rounded
    found = error_map(got, exact, bound)
    if not got.numel():
        assert found is None
        return
    shares = by_hand(got, exact, bound)
    assert (found.rows - 1, found.columns - 1) == max(shares)
    assert max(len(found.worst), len(found.worst[0])) <= 32
    for i, row in enumerate(found.worst):
        for j, share in enumerate(row):
            rows = range(i * found.tile_rows, (i + 1) * found.tile_rows)
            columns = range(j * found.tile_columns, (j + 1) * found.tile_columns)
            within = [shares[r, c] for r in rows for c in columns if (r, c) in shares]
            assert share == pytest.approx(max(within), rel=0.01)


def test_what_is_not_finite_and_what_is_free():
    nan, inf = math.nan, math.inf
    got = torch.tensor([[nan, nan, inf, inf, -inf, 7.0]])
    exact = torch.tensor([[nan, 1.0, inf, 1.0, inf, 1.0]], dtype=torch.float64)
    bound = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, NO_BOUND]], dtype=torch.float64)
    assert error_map(got, exact, bound).worst == ((0.0, inf, 0.0, inf, inf, 0.0),)


def test_what_is_wrong_by_a_hair_stays_wrong():
    one = torch.ones(2, dtype=torch.float64)
    (row,) = error_map(torch.tensor([1 + 1.0001e-3, 1 + 0.9999e-3]).double(), one, one * 1e-3).worst
    assert row == (1.01, 1.0)


def test_a_map_comes_back_from_json():
    worst = error_map(torch.tensor([math.inf, 1.0]), torch.ones(2).double(), torch.ones(2).double())
    output = Output(name="o", rank=0, shape=(2,), dtype="float32", elements=2, error_map=worst)
    assert Output.model_validate_json(output.model_dump_json()) == output


@pytest.mark.parametrize(
    ("error", "bound", "share"),
    [(0.5, 2.0, 0.25), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf), ("inf", 1.0, math.inf),
     ("nan", 1.0, math.inf), (None, 1.0, None), (1.0, None, None)],
)  # fmt: skip
def test_the_share_of_the_bound(error, bound, share):
    output = Output(name="o", rank=0, shape=(), dtype="float32", elements=1)
    output = output.model_copy(update={"worst_error": error, "worst_bound": bound})
    assert output.share_of_bound == share


def test_a_judgement_keeps_the_map_of_its_last_trial(write):
    problem = write(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.sin(x), torch.cos(x)\n\n\ndef get_inputs():\n"
        "    return [torch.randn(8, 8)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    source = (
        "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
        "        y = torch.cos(x)\n        y[3, 5] += 1\n        return torch.sin(x), y\n"
    )
    right = run_correctness(source.replace("+= 1", "+= 0"), problem, trials=2, device="cpu")
    kept = [[o.error_map is not None for o in trial.outputs] for trial in right.trials]
    assert kept[0] == [False, False]
    assert sorted(kept[1]) == [False, True]
    wrong = run_correctness(source, problem, trials=2, device="cpu")
    _, output = worst_output(wrong.trials)
    assert output.name == "output[1]"
    shares = output.error_map.worst
    assert [(i, j) for i in range(8) for j in range(8) if shares[i][j] > 1] == [(3, 5)]
