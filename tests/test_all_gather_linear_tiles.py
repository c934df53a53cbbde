"""The kernels of all_gather_linear for Hopper's tensor cores: each way, beside float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from linear_cases import factor, random_call
from torch import Tensor

from kernelbench_dist import build_info, ops
from kernelbench_dist.testing import assert_matches, linear_oracle

if not build_info().extension:
    pytest.skip("the kernels' numbers are in the extension", allow_module_level=True)

OURS = torch.ops.kernelbench_dist
NAMES = OURS._all_gather_linear_ways()
TILES = [way for way, name in enumerate(NAMES) if name.startswith(("persistent ", "split "))]
THREE = NAMES.index("3xtf32 128x128")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]  # the last as TF32
HOPPER = (
    build_info().cuda and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
)


def on_hopper(fn):
    # A hang is what goes wrong first in a kernel of barriers, and no signal interrupts it.
    fn = pytest.mark.timeout(60, method="thread")(fn)
    fn = pytest.mark.skipif(not HOPPER, reason="this needs a Hopper GPU and the CUDA part")(fn)
    return pytest.mark.gpu(fn)


def each_way(fn):
    return pytest.mark.parametrize("way", TILES, ids=lambda way: NAMES[way])(fn)


def each_dtype(fn):
    return pytest.mark.parametrize("dtype", DTYPES, ids=str)(fn)


@pytest.fixture(autouse=True)
def tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def bound(dtype: torch.dtype, terms: int) -> float:
    """c of assert_matches: TF32 rounds each operand to 11 bits, and eps is that of float32."""
    return factor(terms) + (2.0**13 if dtype == torch.float32 else 0)


def run(way: int, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # What out will most likely be made of: nothing may be left of it.
    torch.full((*x.shape[1:-1], weight.shape[0]), math.nan, dtype=x.dtype, device=x.device)
    return OURS._all_gather_linear_by(x, weight, bias, way)


def check(way: int, *call: Tensor | None) -> None:
    x, weight = call[:2]
    c = bound(x.dtype, weight.shape[1])
    assert_matches(lambda *args: run(way, *args), linear_oracle, *call, c=c)
    torch.cuda.synchronize()


# ---- First, and alone in seconds: does any of it run?


@on_hopper
@each_way
def test_one_step_of_one_tile(way):
    """One rank, one step: x picks single columns of weight, so a wrong place shows as such."""
    x = torch.zeros(1, 64, 64, dtype=torch.bfloat16, device="cuda")
    x[0] = torch.eye(64)
    weight = torch.arange(64 * 64, device="cuda").view(64, 64).remainder(251).bfloat16()
    out = run(way, x, weight)
    torch.cuda.synchronize()
    assert torch.equal(out, weight.T)


@on_hopper
@each_dtype
@each_way
def test_one_tile_of_many_steps(way, dtype):
    check(way, *random_call(3, 40, 520, 72, dtype, "cuda"))


# ---- Sizes


@on_hopper
@each_dtype
@each_way
@pytest.mark.parametrize(
    "size",
    [
        (4, 12, 32, 56),  # H below a step
        (1, 1, 8, 1),
        (2, 3, 8, 7),
        (5, 130, 72, 257),  # H a multiple of 8 and not of a step, odd B and K
        (3, 300, 200, 1000),
        (64, 70, 64, 130),
        (65, 9, 16, 100),
        (2, 1, 4096, 300),  # long sums of one row
        (8, 513, 128, 1024),
    ],
    ids=str,
)
def test_equals_the_oracle(way, dtype, size):
    x, weight, bias = random_call(*size, dtype, "cuda")
    check(way, x, weight, bias)
    check(way, x, weight, None)


@on_hopper
@each_way
def test_more_tiles_than_the_chip_holds(way):
    """The ring and its phases go on from tile to tile, with an odd number of steps in each."""
    check(way, *random_call(3, 2100, 64, 1900, torch.bfloat16, "cuda"))
    check(way, *random_call(5, 2100, 264, 1900, torch.bfloat16, "cuda"))


@on_hopper
@each_dtype
@each_way
def test_views_are_read_in_place(way, dtype):
    x, weight, bias = random_call(4, 50, 72, 90, dtype, "cuda")
    ranks_within = x.transpose(0, 1).contiguous().transpose(0, 1)
    padded = torch.full((4, 50, 96), math.inf, dtype=dtype, device="cuda")[..., :72]
    padded.copy_(x)
    # The ranks' distance is no multiple of the rows'.
    apart = torch.zeros(4 * 3616, dtype=dtype, device="cuda").as_strided(x.shape, (3616, 72, 1))
    apart.copy_(x)
    wide = torch.full((90, 4 * 72 + 8), math.inf, dtype=dtype, device="cuda")[:, : 4 * 72]
    wide.copy_(weight)
    every_second = torch.zeros(180, dtype=dtype, device="cuda")[::2]
    every_second.copy_(bias)
    check(way, ranks_within, weight, bias)
    check(way, padded, wide, every_second)
    check(way, apart, weight, bias)
    check(way, x.view(4, 5, 10, 72), weight, bias)


# ---- NaN and Inf


@on_hopper
@each_dtype
@each_way
def test_rows_of_nan_and_inf_stay_in_their_rows(way, dtype):
    x, weight, bias = random_call(3, 70, 40, 80, dtype, "cuda")
    clean = run(way, x, weight, bias)
    x[1, 5], x[2, 66, 39] = math.nan, math.inf
    weight[7, 3] = math.inf
    out = run(way, x, weight, bias)
    assert out[5].isnan().all()
    assert not out[66].isfinite().any()
    assert not out[:, 7].isfinite().any()
    rows = [b for b in range(70) if b not in (5, 66)]
    columns = [k for k in range(80) if k != 7]
    assert torch.equal(out[rows][:, columns], clean[rows][:, columns])


@on_hopper
@each_dtype
@each_way
def test_a_ragged_rank_does_not_meet_the_next_ones_numbers(way, dtype):
    """H = 40 ends inside a step, where a flat map would go on with the next rank."""
    x, weight, bias = random_call(3, 70, 40, 80, dtype, "cuda")
    alone = [t.clone() for t in (x, weight)]
    alone[0][1:], alone[1][:, 40:] = 0, 0
    expected = run(way, *alone, bias)
    in_weight, in_x = alone[1].clone(), alone[0].clone()
    in_weight[:, 40:80] = math.inf
    in_x[1] = math.inf
    assert run(way, alone[0], in_weight, bias).isnan().all()  # 0 * Inf, within rank 1
    assert run(way, in_x, alone[1], bias).isnan().all()
    first = alone[0][:1], alone[1][:, :40]
    assert first[1].stride(0) == 120  # the next rank's weights are still beside it
    in_weight[:, 40:] = math.inf
    assert torch.equal(run(way, first[0], in_weight[:, :40], bias), expected)


# ---- The same bits; streams and graphs


@on_hopper
@each_dtype
@each_way
def test_two_runs_give_the_same_bits(way, dtype):
    call = random_call(7, 200, 200, 700, dtype, "cuda")
    first = run(way, *call)
    for _ in range(5):
        assert torch.equal(run(way, *call), first)


@on_hopper
@each_way
def test_in_a_cuda_graph_beside_another_stream(way):
    call = random_call(4, 150, 64, 200, torch.bfloat16, "cuda")
    expected = run(way, *call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = OURS._all_gather_linear_by(*call, way)
    for _ in range(3):
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)


# ---- Refusals, which need no GPU


def refusal(way: int, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str:
    return OURS._all_gather_linear_way_refusal(x, weight, bias, way)


class TestRefusals:
    X = torch.empty(4, 12, 32, dtype=torch.bfloat16, device="meta")
    W = torch.empty(56, 128, dtype=torch.bfloat16, device="meta")

    def test_nothing_is_refused_where_all_is_aligned(self):
        assert len(TILES) == 25
        assert {refusal(way, self.X, self.W) for way in range(THREE)} == {""}

    @pytest.mark.parametrize(
        ("x", "weight", "why"),
        [
            (X[..., :30], W[:, :120], "weight's rows are not on 16-byte"),
            (X[..., 1:25], W[:, :96], "x's rows are not on 16-byte"),
            (X[..., :24], W[:, 1:97], "weight's rows are not on 16-byte"),
            (X.transpose(1, 2), W[:, :48], "x's features do not lie side by side"),
            (X, W.new_empty(128, 56).mT, "weight's columns do not lie side by side"),
            (X[:, :1].expand(4, 12, 32), W, "x's rows are not on 16-byte"),  # a stride of zero
            (X[:, :0], W, "there is nothing to multiply"),
            (X.double(), W.double(), "float64"),
            (X.new_empty(1, 1, 8).expand(1, 2**31, 8), W[:, :8], "a size is beyond 32 bits"),
        ],
    )
    def test_says_why(self, x, weight, why):
        for way in TILES:
            assert why in refusal(way, x, weight)

    def test_float32_needs_tf32(self):
        x, weight = self.X.float(), self.W.float()
        assert refusal(TILES[0], x, weight) == ""
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert "TF32, which torch's flags do not allow" in refusal(TILES[0], x, weight)

    def test_strides_of_single_elements_are_not_looked_at(self):
        x = self.X.as_strided((1, 1, 32), (3, 5, 1))
        weight = self.W.as_strided((1, 32), (7, 1))
        assert refusal(TILES[0], x, weight) == ""

    def test_a_way_that_does_not_exist(self):
        with pytest.raises(RuntimeError, match=rf"way must be 0 to {len(NAMES) - 1}, got -1"):
            refusal(-1, self.X, self.W)

    @on_hopper
    def test_the_operator_names_way_and_reason(self):
        x, weight = (torch.empty(t.shape, dtype=t.dtype, device="cuda") for t in (self.X, self.W))
        message = rf"way {TILES[0]} \(persistent 64x64\) cannot compute .*16-byte"
        with pytest.raises(RuntimeError, match=message):
            run(TILES[0], x[..., 1:25], weight[:, :96])


# ---- 3xTF32: float32 in three products


@pytest.fixture
def no_tf32(tf32) -> None:
    torch.backends.cuda.matmul.fp32_precision = "none"


@pytest.mark.usefixtures("no_tf32")
class TestThreeTf32:
    @on_hopper
    @pytest.mark.parametrize(
        "size",
        [(1, 128, 32, 128), (3, 40, 520, 72), (5, 130, 72, 257), (8, 513, 128, 1024)],
        ids=str,
    )
    @pytest.mark.parametrize("uniform", [False, True])
    def test_equals_the_oracle(self, size, uniform):
        call = random_call(*size, torch.float32, "cuda")
        if uniform:  # one sign: where truncation in the tensor cores would show
            call = [torch.rand_like(t) for t in call]
        # The sum of a step is still truncated.
        c = 4 * factor(size[0] * size[2])
        assert_matches(lambda *args: run(THREE, *args), linear_oracle, *call, c=c)

    @on_hopper
    def test_the_class_is_that_of_the_product(self):
        x, weight, bias = random_call(2, 70, 40, 80, device="cuda")
        x[1, 5], x[0, 6, 3], x[0, 7, 1] = math.nan, math.inf, 1.0  # nothing is split off from 1
        x[:, 8], weight[:, 0], weight[2, 1] = 0, 1, math.inf
        x[0, 8, 0] = torch.finfo(torch.float32).max
        assert_matches(
            lambda *args: run(THREE, *args), linear_oracle, x, weight, bias, c=4 * factor(80)
        )

    @on_hopper
    def test_more_tiles_than_the_chip_holds_and_the_same_bits(self):
        call = random_call(3, 2100, 72, 1900, device="cuda")
        first = run(THREE, *call)
        assert_matches(lambda *_: first, linear_oracle, *call, c=4 * factor(216))
        assert torch.equal(run(THREE, *call), first)

    @on_hopper
    def test_it_runs_where_it_was_allowed(self):
        x, weight, _ = random_call(8, 2048, 128, 2048, device="cuda")
        with ops.allow_3xtf32():
            allowed = ops.all_gather_linear(x, weight)
        assert torch.equal(allowed, run(THREE, x, weight))

    @pytest.mark.skipif(not build_info().cuda, reason="this build has no CUDA part")
    def test_it_is_planned_only_where_it_was_allowed(self):
        x, weight = torch.empty(8, 2048, 128, device="meta"), torch.empty(2048, 1024, device="meta")

        def kernel(*call: Tensor) -> str:
            return ops.plan("all_gather_linear", *call, device="cuda").kernel

        matmul = torch.backends.cuda.matmul
        assert kernel(x, weight) == "fallback"
        with ops.allow_3xtf32():
            runs = HOPPER or not torch.cuda.is_available()
            assert kernel(x, weight) == ("3xtf32" if runs else "fallback")
            assert kernel(x.bfloat16(), weight.bfloat16()) == "fallback"
            assert kernel(x[:, :64], weight) != "3xtf32"
            for precision in ("ieee", "tf32"):
                matmul.fp32_precision = precision
                assert kernel(x, weight) == "fallback"
            matmul.fp32_precision = "none"
            with ops.allow_3xtf32(False):
                assert kernel(x, weight) == "fallback"
        assert kernel(x, weight) == "fallback"

    def test_it_is_for_float32_without_tf32(self):
        x, weight = TestRefusals.X, TestRefusals.W
        assert refusal(THREE, x, weight) == "3xTF32 is for float32"
        assert refusal(THREE, x.float(), weight.float()) == ""
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert "allow TF32" in refusal(THREE, x.float(), weight.float())


def test_none_is_chosen_before_it_has_been_measured():
    x = torch.empty(8, 4096, 512, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    assert ops.plan("all_gather_linear", x, weight, device="cuda").kernel == "fallback"
