"""The stacked collectives on a GPU give the CPU's bits: one order of summation for both."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelbench_dist import distributed_collectives as dc
from kernelbench_dist.testing import dtypes, rank_lists, stacked_tensors

pytestmark = pytest.mark.gpu

# Each moves whole rows of (R, R, 3), or reduces them.
COLLECTIVES = {
    "all_gather": lambda x: dc.all_gather(x, 1),
    "all_gather stacked": lambda x: dc.all_gather(x, stacked=True),
    "reduce_scatter": dc.reduce_scatter,
    "all_to_all": dc.all_to_all,
    "broadcast": lambda x: dc.broadcast(x, src=len(x) - 1, stacked=True),
    "scatter": dc.scatter,
    "gather": lambda x: dc.gather(x, dst=0),
    "reduce max": lambda x: dc.reduce(x, op="max"),
    "permute": lambda x: dc.permute(x, [(0, len(x) - 1)]),
    "shift": lambda x: dc.shift(x, -1, wrap=False),
    "scan": dc.scan,
    "scan exclusive prod": lambda x: dc.scan(x, "prod", exclusive=True),
    **{f"all_reduce {op}": lambda x, op=op: dc.all_reduce(x, op) for op in ("sum", "prod", "min")},
}


@pytest.mark.parametrize("name", COLLECTIVES)
@given(data=st.data())
def test_value_and_gradient_are_those_of_the_cpu(name, data):
    R = data.draw(st.sampled_from([1, 2, 3, 4, 8]))
    x = data.draw(stacked_tensors(min_ranks=R, max_ranks=R, shape=(R, 3), dtype=dtypes("floating")))
    here = x.clone().requires_grad_()
    there = x.cuda().requires_grad_()
    on_cpu, on_gpu = COLLECTIVES[name](here), COLLECTIVES[name](there)
    assert on_gpu.is_cuda
    assert torch.equal(on_cpu, on_gpu.cpu())
    on_cpu.sum().backward()
    on_gpu.sum().backward()
    torch.testing.assert_close(here.grad, there.grad.cpu())


@given(xs=rank_lists(shape=(0, 3), dtype=torch.float32))
def test_ranks_of_different_sizes(xs):
    gathered = dc.all_gather([x.cuda() for x in xs])
    assert torch.equal(gathered.cpu(), torch.cat(xs))


def test_the_same_bits_on_every_run():
    x = torch.randn(7, 1000, device="cuda", dtype=torch.bfloat16)
    runs = [dc.all_reduce(x, op) for _ in range(20) for op in ("sum", "avg", "prod")]
    for i, run in enumerate(runs):
        assert torch.equal(run, runs[i % 3])


def test_ranks_on_two_devices():
    with pytest.raises(TypeError, match=r"rank 1.*cpu"):
        dc.all_reduce([torch.ones(2, device="cuda"), torch.ones(2)])
