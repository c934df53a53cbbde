"""What holds of every stacked collective: no aliasing, same bits on every run, and torch's
transformations (autograd twice, torch.compile, meta tensors, torch.func).

Expected values come from another route to the same number: finite differences, a loop in place of
vmap, eager in place of compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist

from kernelbench_dist import distributed_collectives as dc

Result: TypeAlias = torch.Tensor | list[torch.Tensor]


def last_to_first(x: Any) -> list[tuple[int, int]]:
    return [(len(x) - 1, 0)]


# Each takes a stacked tensor of shape (R, R, 2), or the list of its ranks.
COLLECTIVES: dict[str, Callable[[Any], Result]] = {
    "all_gather": lambda x: dc.all_gather(x, 1),
    "all_gather stacked": lambda x: dc.all_gather(x, 0, stacked=True),
    "all_reduce sum": lambda x: dc.all_reduce(x),
    "all_reduce stacked": lambda x: dc.all_reduce(x, stacked=True),
    "all_reduce avg": lambda x: dc.all_reduce(x, dist.ReduceOp.AVG),
    "all_reduce prod": lambda x: dc.all_reduce(x, "prod"),
    "all_reduce min": lambda x: dc.all_reduce(x, "min"),
    "all_reduce max": lambda x: dc.all_reduce(x, "max"),
    "reduce_scatter": lambda x: dc.reduce_scatter(x),
    "reduce_scatter sizes": lambda x: dc.reduce_scatter(x, sizes=[len(x)] + [0] * (len(x) - 1)),
    "all_to_all": lambda x: dc.all_to_all(x, 0, 1),
    "all_to_all splits": lambda x: dc.all_to_all(x, splits=[[1] * len(x)] * len(x)),
    "broadcast": lambda x: dc.broadcast(x, len(x) - 1),
    "broadcast stacked": lambda x: dc.broadcast(x, stacked=True),
    "scatter": lambda x: dc.scatter(x, len(x) - 1),
    "scatter sizes": lambda x: dc.scatter(x, 0, sizes=[len(x)] + [0] * (len(x) - 1)),
    "gather": lambda x: dc.gather(x),
    "reduce": lambda x: dc.reduce(x, 0, "prod"),
    "permute": lambda x: dc.permute(x, last_to_first(x)),
    "shift": lambda x: dc.shift(x),
    "shift without wrap": lambda x: dc.shift(x, -1, wrap=False),
    "scan sum": lambda x: dc.scan(x),
    "scan prod": lambda x: dc.scan(x, "prod"),
    "scan max": lambda x: dc.scan(x, "max"),
    "scan exclusive": lambda x: dc.scan(x, "prod", exclusive=True),
    "join": lambda x: dc.join(list(x)),
    "split": lambda x: dc.split(x if isinstance(x, torch.Tensor) else torch.stack(x)),
    "replicate": lambda x: dc.replicate(x[0], 2),
}

every = pytest.mark.parametrize("name", list(COLLECTIVES))
world_sizes = pytest.mark.parametrize("R", [1, 3])


def stacked(R: int, *batch: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(R)
    return torch.randn(*batch, R, R, 2, dtype=dtype, generator=generator)


def tensors(result: Result) -> list[torch.Tensor]:
    return result if isinstance(result, list) else [result]


def flat(result: Result) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tensors(result)])


def loss(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A scalar function of x whose gradient depends on every element of the result."""

    def weighted(x: torch.Tensor) -> torch.Tensor:
        y = flat(COLLECTIVES[name](x))
        return (torch.arange(1, len(y) + 1, dtype=y.dtype) * y * y).sum()

    return weighted


def gradient(name: str, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(name)(x), x)[0]


# ---- memory and bits ---------------------------------------------------------------------------


@every
@world_sizes
@pytest.mark.parametrize("as_list", [False, True])
def test_results_alias_nothing(name: str, R: int, as_list: bool) -> None:
    x = stacked(R)
    given = list(x.clone().unbind(0)) if as_list else x.clone()
    results = tensors(COLLECTIVES[name](given))
    for i, result in enumerate(results):
        before = [r.clone() for r in results]
        result.fill_(1e6)
        before[i].fill_(1e6)
        assert all(torch.equal(r, b) for r, b in zip(results, before, strict=True))
        assert torch.equal(torch.stack(list(given)), x)


@every
@world_sizes
def test_results_are_contiguous_and_own_their_storage(name: str, R: int) -> None:
    strided = stacked(R).transpose(-1, -2).contiguous().transpose(-1, -2)
    for result in tensors(COLLECTIVES[name](strided)):
        assert result.is_contiguous()
        assert result.untyped_storage().nbytes() == result.numel() * result.itemsize


@every
def test_same_bits_on_every_run(name: str) -> None:
    x = stacked(3, dtype=torch.float32)
    results = [(flat(COLLECTIVES[name](x)), gradient(name, x)) for _ in range(5)]
    for y, g in results[1:]:
        assert torch.equal(y.view(torch.int32), results[0][0].view(torch.int32))
        assert torch.equal(g.view(torch.int32), results[0][1].view(torch.int32))


@every
def test_list_and_stacked_tensor_give_the_same(name: str) -> None:
    x = stacked(3)
    assert torch.equal(flat(COLLECTIVES[name](list(x.unbind(0)))), flat(COLLECTIVES[name](x)))


# ---- autograd ----------------------------------------------------------------------------------


@every
@world_sizes
def test_gradcheck(name: str, R: int) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t for t in tensors(COLLECTIVES[name](x)) if t.numel())

    x = stacked(R).requires_grad_()
    assert all(t.requires_grad for t in function(x))
    assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, x)


@every
def test_results_without_grad(name: str) -> None:
    assert not any(t.requires_grad for t in tensors(COLLECTIVES[name](stacked(3))))


# ---- torch.compile and meta tensors ------------------------------------------------------------


@every
@pytest.mark.parametrize("as_list", [False, True])
def test_compile(name: str, as_list: bool) -> None:
    def function(x: torch.Tensor) -> Result:
        return COLLECTIVES[name](list(x.unbind(0)) if as_list else x)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x = stacked(3).requires_grad_()
    expected, actual = flat(function(x)), flat(compiled(x))
    assert torch.equal(actual, expected)
    (g,) = torch.autograd.grad((actual * actual).sum(), x)
    (e,) = torch.autograd.grad((expected * expected).sum(), x)
    torch.testing.assert_close(g, e)


def test_compile_with_dynamic_shapes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = dc.reduce_scatter(dc.all_to_all(x, 0, 1), 1)
        return dc.all_gather(dc.scan(y), -1) + dc.all_reduce(y).sum()

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter, dynamic=True)
    for b in (4, 6, 10):
        x = torch.arange(2.0 * b * 5).view(2, b, 5)
        assert torch.equal(compiled(x), function(x))
    assert counter.frame_count == 1


@pytest.mark.slow
def test_compile_with_inductor() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [flat(collective(x)) for collective in COLLECTIVES.values()]

    torch._dynamo.reset()
    x = stacked(3)
    for a, e in zip(torch.compile(function, fullgraph=True)(x), function(x), strict=True):
        torch.testing.assert_close(a, e)


@every
def test_compiled_results_alias_nothing_on_one_rank(name: str) -> None:
    torch._dynamo.reset()
    x = stacked(1)
    given = x.clone()
    for result in tensors(
        torch.compile(COLLECTIVES[name], fullgraph=True, backend="aot_eager")(given)
    ):
        result.fill_(1e6)
    assert torch.equal(given, x)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_meta_tensors(name: str, dtype: torch.dtype) -> None:
    x = stacked(3, dtype=torch.float32).to(dtype)
    expected = tensors(COLLECTIVES[name](x))
    for a, e in zip(tensors(COLLECTIVES[name](x.to("meta"))), expected, strict=True):
        assert a.is_meta
        assert (a.shape, a.dtype, a.stride()) == (e.shape, e.dtype, e.stride())


# ---- torch.func --------------------------------------------------------------------------------


@every
@world_sizes
def test_func_grad(name: str, R: int) -> None:
    x = stacked(R)
    torch.testing.assert_close(torch.func.grad(loss(name))(x), gradient(name, x))


@every
@world_sizes
def test_func_jvp(name: str, R: int) -> None:
    x, v = stacked(R), stacked(R).flip(0, 1, 2)
    function = loss(name)
    value, derivative = torch.func.jvp(function, (x,), (v,))
    h = 1e-6
    difference = (function(x + h * v) - function(x - h * v)) / (2 * h)
    torch.testing.assert_close(value, function(x))
    torch.testing.assert_close(derivative, difference, rtol=1e-6, atol=1e-6)


@every
@world_sizes
def test_func_vmap(name: str, R: int) -> None:
    xs = stacked(R, 4)
    actual = torch.func.vmap(lambda x: flat(COLLECTIVES[name](x)))(xs)
    assert torch.equal(actual, torch.stack([flat(COLLECTIVES[name](x)) for x in xs]))


@every
@world_sizes
def test_func_vmap_of_grad(name: str, R: int) -> None:
    xs = stacked(R, 4)
    actual = torch.func.vmap(torch.func.grad(loss(name)))(xs)
    torch.testing.assert_close(actual, torch.stack([gradient(name, x) for x in xs]))


@every
def test_func_vmap_over_another_dim(name: str) -> None:
    xs = stacked(3, 4)
    function = torch.func.vmap(lambda x: flat(COLLECTIVES[name](x)), in_dims=-1, out_dims=1)
    expected = torch.stack([flat(COLLECTIVES[name](x)) for x in xs], 1)
    assert torch.equal(function(xs.movedim(0, -1)), expected)


@pytest.mark.parametrize("op", ["sum", "prod", "max"])
def test_func_vmap_over_some_ranks_of_a_list(op: str) -> None:
    # A scalar that is not batched beside one that is: types must not be promoted by dims.
    a = torch.tensor(1.0, dtype=torch.bfloat16)
    bs = torch.tensor([2.0, 3.0], dtype=torch.bfloat16)
    for first, in_dims in ((True, (None, 0)), (False, (0, None))):
        args = (a, bs) if first else (bs, a)
        actual = torch.func.vmap(lambda p, q: dc.all_reduce([p, q], op), in_dims)(*args)
        expected = {"sum": [3.0, 4.0], "prod": [2.0, 3.0], "max": [2.0, 3.0]}[op]
        assert actual.dtype == torch.bfloat16
        assert actual.tolist() == expected


# ---- autocast ----------------------------------------------------------------------------------


@every
def test_autocast_changes_nothing(name: str) -> None:
    x = stacked(3, dtype=torch.float32)
    expected = flat(COLLECTIVES[name](x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = flat(COLLECTIVES[name](x))
    assert actual.dtype == torch.float32
    assert torch.equal(actual, expected)
