"""The CUDA kernels of all_gather_linear: each one, the streams, graphs and launches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from linear_cases import FLOATS, factor, random_call, reference

from kernelbench_dist import build_info, ops
from kernelbench_dist.testing import assert_matches, linear_oracle, linear_problems

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not build_info().cuda, reason="this build has no CUDA part"),
]

WAYS = torch.ops.kernelbench_dist._all_gather_linear_ways() if build_info().extension else []
DOTS = [way for way, name in enumerate(WAYS) if name.startswith("dot ")]


@pytest.mark.parametrize("way", DOTS, ids=lambda way: WAYS[way])
@given(data=st.data())
def test_each_kernel_equals_the_oracle(way, data):
    p = data.draw(
        linear_problems(device="cuda", requires_grad=False, max_side=70, max_batch_dims=1)
    )
    if min(p.x.numel(), p.weight.shape[0]) == 0:
        return

    def run(x, weight, bias):
        return torch.ops.kernelbench_dist._all_gather_linear_by(x, weight, bias, way)

    assert_matches(run, linear_oracle, *p.args, c=factor(p.weight.shape[1]))


def test_a_way_that_does_not_exist():
    x, weight, _ = random_call(2, 3, 4, 5, device="cuda")
    count = len(WAYS)
    with pytest.raises(RuntimeError, match=rf"way must be 0 to {count - 1}, got {count}"):
        torch.ops.kernelbench_dist._all_gather_linear_by(x, weight, None, count)


def test_offsets_beyond_32_bits_fall_back_and_are_right():
    # Two ranks whose storage lies 2^31 elements apart (4 GiB).
    storage = torch.empty(2**31 + 12 * 32, dtype=torch.float16, device="cuda")
    x = storage.as_strided((2, 12, 32), (2**31, 32, 1))
    x.copy_(torch.randn(2, 12, 32))
    weight = torch.randn(56, 64, dtype=torch.float16, device="cuda")
    assert ops.plan("all_gather_linear", x, weight).reason.startswith("an offset is beyond")
    assert_matches(ops.all_gather_linear, linear_oracle, x, weight, c=factor(64))


def test_the_current_stream_is_used():
    x, weight, bias = random_call(4, 12, 32, 56, device="cuda")
    expected = ops.all_gather_linear(x + 1, weight, bias)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # ten milliseconds, before x is changed on this stream
        x.add_(1)
        out = ops.all_gather_linear(x, weight, bias)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_in_a_cuda_graph():
    x, weight, bias = random_call(4, 12, 32, 56, device="cuda")
    graph = torch.cuda.CUDAGraph()
    ops.all_gather_linear(x, weight, bias)
    with torch.cuda.graph(graph):
        out = ops.all_gather_linear(x, weight, bias)
    fresh = random_call(4, 12, 32, 56, device="cuda", seed=5)
    x.copy_(fresh[0])
    graph.replay()
    assert torch.equal(out, ops.all_gather_linear(fresh[0], weight, bias))


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_launch_forward_and_one_backward(dtype):
    call = [t.requires_grad_() for t in random_call(4, 12, 32, 56, dtype, "cuda")]
    upstream = torch.ones(12, 56, dtype=dtype, device="cuda")

    def kernels(fn):
        fn()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
            fn()
            torch.cuda.synchronize()
        device = torch.autograd.DeviceType.CUDA
        return [e.name for e in p.events() if e.device_type == device]

    forward = kernels(lambda: ops.all_gather_linear(*call))
    assert len(forward) == 1
    assert "dot" in forward[0]
    both = kernels(lambda: torch.autograd.grad(ops.all_gather_linear(*call), call, upstream))
    assert len(both) == 2
    assert "backward" in both[1]


def test_tf32_is_used_only_when_torch_allows_it():
    # 1024 x 1024 outputs: large enough that torch's product runs.
    x = torch.full((2, 1024, 64), 1 + 2**-11, device="cuda")
    weight = torch.cat([torch.eye(128), torch.zeros(896, 128)]).cuda()
    assert ops.plan("all_gather_linear", x, weight).kernel == "fallback"
    assert (ops.all_gather_linear(x, weight)[:, :128] == 1 + 2**-11).all()
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        allowed = ops.all_gather_linear(x, weight)
        assert torch.equal(allowed, reference(x, weight))
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
