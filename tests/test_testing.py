"""kernelbench_dist.testing: the comparison is not fooled, and the oracle is right."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from kernelbench_dist import _compare as compare
from kernelbench_dist import distributed_collectives, testing
from kernelbench_dist.testing import (
    assert_matches,
    linear_oracle,
    linear_problems,
)

# assert_matches


def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def gives(values: Any) -> Callable[..., np.ndarray]:
    return lambda *args: np.array(values)


def test_a_match_is_reported() -> None:
    x = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    report = assert_matches(lambda x: x * (1 + 2**-23), gives(x.double().numpy()), x)
    assert (report.elements, report.mismatches) == (4, 0)
    assert report.max_abs_error == 8 * 2**-23
    assert report.mean_abs_error == 15 / 4 * 2**-23
    assert report.worst_ulp == 1.0
    assert report.worst_bound is not None
    assert report.worst_error / report.worst_bound == 0.25  # one eps of the default four


def test_the_worst_element_is_named() -> None:
    x = torch.zeros(2, 3)
    expected = [[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + torch.tensor(expected)
        y[0, 1] += 2**-18  # 16 ulp at 2
        y[1, 2] += 2**-16  # 4 ulp at 32: the larger error, but within its bound
        return y

    with pytest.raises(AssertionError) as caught:
        assert_matches(fn, gives(expected), x)
    assert str(caught.value) == textwrap.dedent(
        """\
        1 of 6 elements differ from the oracle by more than the bound
          worst at    [0, 1]
          result      2.0000038146972656
          expected    2.0
          error       3.81e-06 = 16 ulp, 4 times the bound
          bound       9.54e-07 = 4 * eps 1.19e-07 * scale 2
          shape (2, 3), torch.float32, cpu; max abs error 1.53e-05, mean abs error 3.18e-06"""
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_bound_is_c_eps_scale(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    x = torch.ones(3, dtype=dtype)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + 8 * eps

    for options in ({"c": 8}, {"c": 1, "scale": 8.0}, {"c": 2, "scale": np.array([4.0, 4, 5])}):
        assert_matches(fn, gives(np.ones(3)), x, **options)
    assert_matches(fn, gives(np.ones(3)), x, c=2, scale=torch.tensor([4.0]))
    assert_matches(fn, gives(np.ones(3)), x, c=2, scale=lambda x: 4 * x)
    assert_matches(fn, lambda x: (np.ones(3), np.full(3, 4.0)), x, c=2)
    for options in ({"c": 7.9}, {"c": 1, "scale": 7.9}, {"c": 2, "scale": np.array([4.0, 4, 3])}):
        with pytest.raises(AssertionError, match="more than the bound"):
            assert_matches(fn, gives(np.ones(3)), x, **options)


def test_a_zero_scale_allows_nothing() -> None:
    x = torch.zeros(1)
    assert_matches(same, gives([0.0]), x)
    with pytest.raises(AssertionError, match="1 of 1"):
        assert_matches(lambda x: x + 1e-45, gives([0.0]), x)


def test_a_rounding_below_the_normal_numbers_is_allowed() -> None:
    """1e-45 in float32: its spacing there is 1.4e-45, far more than eps * 1e-45."""
    x = torch.tensor([1e-45], dtype=torch.float64)
    assert_matches(lambda x: x.float(), lambda x: x, x, dtype=torch.float32)


nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    ("result", "expected", "agree"),
    [
        (nan, nan, True),
        (inf, inf, True),
        (-inf, -inf, True),
        (nan, 1.0, False),
        (1.0, nan, False),
        (inf, -inf, False),
        (inf, nan, False),
        (nan, inf, False),
        (inf, 1.0, False),
        (3e38, inf, False),
        (inf, 1e39, True),  # too large for float32
        (-inf, 1e39, False),
        (inf, 3e38, False),  # not too large
        (3.4028234663852886e38, 3.4028235e38, True),
    ],
)
def test_classes_of_numbers(result: float, expected: float, agree: bool) -> None:
    x = torch.tensor([1.0, result])
    if agree:
        report = assert_matches(same, gives([1.0, expected]), x)
        assert math.isfinite(report.max_abs_error)
        return
    with pytest.raises(AssertionError, match=r"1 of 2 elements(.|\n)*worst at    \[1\]"):
        assert_matches(same, gives([1.0, expected]), x)


def test_a_sum_that_overflows_half_precision() -> None:
    x = torch.tensor([128000.0], dtype=torch.float64)
    assert_matches(lambda x: x.half(), lambda x: x, x, dtype=torch.float16)
    low = torch.tensor([65000.0], dtype=torch.float64)
    with pytest.raises(AssertionError, match="inf"):
        assert_matches(lambda x: (x * 2).half(), lambda x: x, low, dtype=torch.float16)


def test_integers_must_be_equal() -> None:
    big = 2**62 + 1  # not a float64
    x = torch.tensor([big, -3])
    assert_matches(same, gives([big, -3]), x)
    with pytest.raises(AssertionError, match=r"worst at    \[0\](.|\n)*must be equal"):
        assert_matches(same, gives([big - 1, -3]), x)
    with pytest.raises(AssertionError, match="1 of 2"):
        assert_matches(same, gives([float(big), -3.0]), x)
    with pytest.raises(AssertionError, match=r"worst at    \[1\]"):
        assert_matches(same, gives([2.0**62, nan]), torch.tensor([2**62, 5]))
    with pytest.raises(AssertionError, match="1 of 2"):
        assert_matches(same, gives([True, True]), torch.tensor([True, False]))


def test_complex() -> None:
    x = torch.tensor([1 + 2j, complex(nan, 1)], dtype=torch.complex64)
    assert_matches(same, gives([1 + 2j, complex(0, nan)]), x)
    with pytest.raises(AssertionError, match=r"expected    \(1\+2.1j\)"):
        assert_matches(same, gives([1 + 2.1j, nan]), x)


def test_empty_and_scalar() -> None:
    report = assert_matches(same, gives(np.zeros((0, 3))), torch.zeros(0, 3))
    assert (report.elements, report.worst_index) == (0, None)
    assert assert_matches(same, gives(2.0), torch.tensor(2.0)).worst_index == ()
    with pytest.raises(AssertionError, match=r"worst at    \[\]"):
        assert_matches(same, gives(2.5), torch.tensor(2.0))


class Lazy(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: x[:, :1], r"shape \(2, 1\), expected \(2, 3\)"),
        (lambda x: x.T, r"shape \(3, 2\), expected \(2, 3\)"),
        (lambda x: x.double(), r"dtype torch.float64, expected torch.float32"),
        (lambda x: x[:1].half(), r"shape \(1, 3\), .*; dtype torch.float16, expected"),
        (lambda x: x.to("meta"), r"device meta, expected cpu"),
        (lambda x: x.as_subclass(Lazy), r"must be a torch.Tensor, is a .*Lazy"),
        (lambda x: torch.nn.Parameter(x), r"must be a torch.Tensor, is a .*Parameter"),
        (lambda x: x.numpy(), r"must be a torch.Tensor, is a .*ndarray"),
        (lambda x: None, r"must be a torch.Tensor, is a .*NoneType"),
        (lambda x: [x], r"a list of 1 results, but no list of expected values"),
    ],
)
def test_what_the_result_is_comes_first(fn: Callable[..., Any], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        assert_matches(fn, gives(np.zeros((2, 3))), torch.zeros(2, 3))


def test_lists_of_ranks() -> None:
    xs = [torch.ones(2), torch.ones(0), torch.ones(3)]

    def fn(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x * 2 for x in xs]

    expected = [np.full(2, 2.0), np.zeros(0), np.full(3, 2.0)]
    assert assert_matches(fn, lambda xs: expected, xs).elements == 5
    pair = xs[:2]  # two results and a pair of expected values: not (expected, scale)
    assert assert_matches(fn, lambda xs: tuple(expected[:2]), pair).elements == 2
    expected[2][1] = 3.0
    with pytest.raises(AssertionError, match=r"1 of 5 elements(.|\n)*item 2, \[1\]"):
        assert_matches(fn, lambda xs: expected, xs)
    assert_matches(fn, lambda xs: expected, xs, c=1, scale=[0.0, 0.0, 1e7])
    with pytest.raises(AssertionError, match="a list of 3 results, but 2 expected"):
        assert_matches(fn, lambda xs: expected[:2], xs)
    with pytest.raises(AssertionError, match=r"item 1: .* shape \(0,\), expected \(1,\)"):
        assert_matches(fn, lambda xs: [expected[0], np.zeros(1), expected[2]], xs)


@pytest.mark.parametrize("shape", [(1000,), (7, 11, 13), (1, 1, 300), (40, 1, 9), (3, 0, 5)])
@pytest.mark.parametrize("piece", [1, 7, 64, 10**6])
def test_pieces_cover_every_element_once(
    shape: tuple[int, ...], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = np.zeros(shape, dtype=int)
    for part in compare.pieces(shape, piece):
        counts[part] += 1
        assert counts[part].size <= piece
    assert (counts == 1).all()
    if counts.size == 0:
        return
    monkeypatch.setattr(compare, "PIECE", piece)
    x = torch.arange(float(counts.size)).view(shape)
    wrong = x.double().numpy().copy()
    where = np.unravel_index(counts.size * 2 // 3, shape)
    wrong[where] += 1
    with pytest.raises(AssertionError, match=re.escape(f"worst at    {[int(i) for i in where]}\n")):
        assert_matches(same, gives(wrong), x)


def test_a_large_result_needs_little_more_memory() -> None:
    """In its own process: the peak beyond result and expected values stays far below their size."""
    code = """
        import resource, numpy as np, torch
        from kernelbench_dist.testing import assert_matches
        n = 1 << 24
        x, y = torch.zeros(n), np.zeros(n)
        y += 0.0  # touched
        assert_matches(lambda x: x, lambda x: y[:1000], x[:1000])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert assert_matches(lambda x: x, lambda x: y, x).elements == n
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    ).stdout
    assert int(out) < 60_000  # KiB; the result has 65_536, and in float64 twice that


def test_arguments_are_checked() -> None:
    x = torch.ones(2)
    with pytest.raises(ValueError, match="scale must be finite and 0 or more"):
        assert_matches(same, gives([1.0, 1.0]), x, scale=np.array([1.0, nan]))
    with pytest.raises(ValueError, match="scale must be finite and 0 or more"):
        assert_matches(same, gives([1.0, 1.0]), x, scale=-1.0)
    with pytest.raises(ValueError, match="give dtype= and device="):
        assert_matches(lambda: x, gives([1.0, 1.0]))
    assert_matches(lambda: x, gives([1.0, 1.0]), dtype=torch.float32, device="cpu")


def test_inputs_that_require_grad() -> None:
    x = torch.ones(2, requires_grad=True)
    assert_matches(lambda x: x * 2, lambda x: x.double() * 2, x)


# linear_oracle


def test_linear_oracle_by_hand() -> None:
    x = torch.arange(12.0).view(2, 2, 3)
    weight = torch.arange(24.0).view(4, 6) - 10
    bias = torch.tensor([1.0, 2, 3, 4])
    expected, scale = linear_oracle(x, weight, bias)
    assert expected.tolist() == [[-148, -3, 142, 287], [-283, -30, 223, 476]]
    # Row 0 holds 0, 1, 2, 6, 7, 8; weight row 1 is -4, -3, -2, -1, 0, 1.
    assert scale[0, 1] == 0 * 4 + 1 * 3 + 2 * 2 + 6 * 1 + 7 * 0 + 8 * 1 + 2
    assert (expected.dtype, scale.dtype) == (np.float64, np.float64)
    assert linear_oracle(x, weight)[0].tolist() == (expected - bias.numpy()).tolist()


@given(linear_problems(dtype=torch.float64, max_ranks=6, max_side=7))
def test_linear_oracle_against_cat_and_linear(p: testing.LinearProblem) -> None:
    def reference(x, weight, bias):
        return torch.nn.functional.linear(torch.cat(x.unbind(0), -1), weight, bias)

    assert_matches(reference, linear_oracle, *p.args)


@given(linear_problems(max_ranks=4, max_side=6, nonfinite=True, dtype=torch.float64))
def test_linear_oracle_with_nan_and_infinities(p: testing.LinearProblem) -> None:
    """By a sum over single products in Python's floats, where inf - inf is NaN as well."""
    expected, scale = linear_oracle(*p.args)
    rows = math.prod(p.x.shape[1:-1])
    gathered = torch.cat(p.x.detach().unbind(0), -1).reshape(rows, p.weight.shape[1]).tolist()
    bias = [0.0] * p.weight.shape[0] if p.bias is None else p.bias.tolist()
    want = np.zeros((rows, p.weight.shape[0]))
    for i, row in enumerate(gathered):
        for k, w in enumerate(p.weight.tolist()):
            want[i, k] = sum((a * b for a, b in zip(row, w, strict=True)), 0.0) + bias[k]
    want = want.reshape(expected.shape)
    np.testing.assert_allclose(expected, want, rtol=1e-12, atol=1e-12)
    assert np.isfinite(scale[np.isfinite(want)]).all()


@pytest.mark.gpu
@given(linear_problems(dtype=torch.float64, max_ranks=6, max_side=7, device="cuda"))
def test_problems_and_comparison_on_a_gpu(p: testing.LinearProblem) -> None:
    assert {t.device.type for t in p.args if t is not None} == {"cuda"}

    def reference(x, weight, bias):
        return torch.nn.functional.linear(torch.cat(x.unbind(0), -1), weight, bias)

    assert_matches(reference, linear_oracle, *p.args)


# The package


def test_names_and_oracles_are_exported() -> None:
    assert set(testing.oracles.__all__) <= set(distributed_collectives.__all__)
    for name in testing.__all__:
        assert hasattr(testing, name)
    assert len(set(testing.__all__)) == len(testing.__all__)


def run_python(code: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_package_itself_needs_no_hypothesis() -> None:
    code = "import kernelbench_dist, sys; print('hypothesis' in sys.modules)"
    assert run_python(code) == "False\n"


def test_without_hypothesis_it_says_what_to_install() -> None:
    out = run_python(
        """
        import sys
        sys.modules["hypothesis"] = None
        try:
            import kernelbench_dist.testing
        except ImportError as error:
            print(error)
        """
    )
    assert "pip install kernelbench-dist[test]" in out


def test_a_function_that_changes_its_inputs_is_found() -> None:
    def zeroes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        x.zero_()
        return torch.zeros(x.shape[1], weight.shape[0])

    with pytest.raises(AssertionError, match="fn changed its inputs: tensor 0 of args"):
        assert_matches(zeroes, linear_oracle, torch.randn(2, 3, 4), torch.randn(5, 8))
    with pytest.raises(AssertionError, match="fn changed its inputs"):
        assert_matches(torch.Tensor.sqrt_, lambda x: np.sqrt(x.numpy()), torch.ones(3) * 4)
    nan = torch.tensor([math.nan, 1.0])
    assert assert_matches(torch.clone, lambda x: x.double().numpy(), nan).mismatches == 0


@pytest.mark.parametrize("c", [math.nan, math.inf, -1, "4", True, None])
def test_a_factor_that_is_no_finite_number(c: Any) -> None:
    with pytest.raises(ValueError, match=r"c is .*; a finite number of 0 or more is accepted"):
        assert_matches(torch.sqrt, torch.sqrt, torch.ones(3), c=c)
