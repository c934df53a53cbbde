"""benchmarks/fit_tiles.py: from measured times to the costs by which a tile is chosen."""

from __future__ import annotations

import importlib
import json
import math
import re
from pathlib import Path

import pytest
import torch

from kernelbench_dist import build_info

if not build_info().extension:
    pytest.skip("the ways are in the extension", allow_module_level=True)

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
NAMES = torch.ops.kernelbench_dist._all_gather_linear_ways()[:-1]  # without 3xTF32
FIRST = next(way for way, name in enumerate(NAMES) if not name.startswith("dot "))


@pytest.fixture
def fit_tiles(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fit_tiles")


@pytest.fixture
def run(monkeypatch):
    """A run whose times follow the model, by hand: way n costs 1000 + n, 10 + n, and 3 + n / 8."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sizes = importlib.import_module("all_gather_linear_ways").random_sizes(30, 3, large=True)
    rows = []
    for R, B, H, K in sizes:
        us = {"reference": 0.0, "chosen": 1.0, NAMES[0]: 1.0}
        for n, name in enumerate(NAMES[FIRST:]):
            kind, tile, *rest = name.split(" ")
            height, width = map(int, tile.split("x"))
            tiles = math.ceil(B / height) * math.ceil(K / width)
            steps = R * math.ceil(2 * H / 128)
            rounds = math.ceil(tiles / 132)
            if kind == "split":
                blocks = int(rest[-1])
                rounds, steps = math.ceil(tiles * blocks / 264), math.ceil(steps / blocks)
            us[name] = (1000 + n + rounds * (10 + n + steps * (3 + n / 8))) / 1e3
        us["reference"] = 2 + R * B * H * 2 * 1e-6 + 0.9 * min(us[name] for name in NAMES[FIRST:])
        rows.append({"size": (R, B, H, K), "us": us})
    return {"device": "a GPU", "torch": "2.13", "date": "2026-12-04", "bfloat16": rows}


def test_the_costs_are_found_again(fit_tiles, run):
    costs = fit_tiles.fit(run["bfloat16"], "bfloat16")
    assert list(costs.ways) == list(range(FIRST, len(NAMES)))
    for n, found in enumerate(costs.ways.values()):
        assert found == pytest.approx((1000 + n, 10 + n, 3 + n / 8), rel=1e-4)
    reference = costs.gather_launch, costs.gather_byte, costs.library
    assert reference == pytest.approx((2000, 1e-3, 0.9), rel=1e-3)


def test_no_cost_is_negative(fit_tiles):
    assert fit_tiles.least_squares([(1, 1), (1, 2), (1, 3)], [3, 2, 1])[1] == 0


def test_what_it_writes_and_says(fit_tiles, run, tmp_path, monkeypatch, capsys):
    header, path = tmp_path / "tile_costs.h", tmp_path / "run.json"
    monkeypatch.setattr(fit_tiles, "HEADER", header)
    # One way was refused everywhere, and one size takes no tile at all.
    for row in run["bfloat16"]:
        del row["us"][NAMES[-1]]
    run["bfloat16"].append({"size": (1, 4, 5, 6), "us": {"reference": 1.0, "chosen": 1.0}})
    path.write_text(json.dumps(run))
    assert fit_tiles.main([str(path)]) == 0
    text = header.read_text()
    assert "// a GPU, torch 2.13, 2026-12-04: run.json." in text
    assert "kFloat16Costs;" in text
    assert "kTf32Costs;" in text
    rows = re.findall(r"^    \{(.+)\},$", text, re.MULTILINE)
    assert len(rows) == len(NAMES) - FIRST
    assert [float(v.strip("f ")) for v in rows[0].split(",")] == pytest.approx([1000, 10, 3])
    assert rows[-1].startswith("1.000000e+30f, 0")
    said = capsys.readouterr().out
    assert "bfloat16: the model is off by 1.00 (worst 1.00); tiles chosen at" in said
    assert " of 30 sizes" in said


def test_bad_input(fit_tiles, tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_text('{"float64": []}')
    for argument, message in ((path, "holds none of float16"), (tmp_path / "no.json", "No such")):
        with pytest.raises(SystemExit):
            fit_tiles.main([str(argument)])
        assert message in capsys.readouterr().err
