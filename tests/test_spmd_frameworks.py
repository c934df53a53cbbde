"""Framework programs on 4 virtual ranks: beside gloo's processes, and beside one process alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import spmd_programs_data as data
import spmd_programs_messages as messages
import spmd_programs_sharded as sharded
import torch
from gloo_pool import GlooPool
from spmd_programs import PROGRAMS, Program, Result
from torch import Tensor

from kernelbench_dist.distributed_collectives._errors import RankError
from kernelbench_dist.distributed_collectives.spmd import SpmdOptions, run_spmd

RANKS = 4
SEED = 1234
Order = Literal["rank", "gloo_ring"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # names that older torch has alone
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
with_orders = pytest.mark.parametrize("order", ["gloo_ring", "rank"])


def of(programs: list[Program]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("program", programs, ids=[p.name for p in programs])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in gloo's processes: with more threads a matrix product may add in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seeded(program: Callable[..., Result], arguments: dict[str, object]) -> Result:
    torch.manual_seed(SEED)
    return program(**arguments)


@pytest.fixture(scope="module")
def gloo(gloo_pool: GlooPool) -> Callable[..., list[Result]]:
    """Runs a program in gloo's processes, once however often it is asked."""
    kept: dict[object, list[Result]] = {}

    def run(
        program: Callable[..., Result], world_size: int = RANKS, **arguments: object
    ) -> list[Result]:
        asked = program, world_size, *arguments.items()
        if asked not in kept:
            kept[asked] = gloo_pool.values(seeded, world_size, program, arguments, limit=60)
        return kept[asked]

    return run


def virtual(
    program: Callable[..., Result],
    order: Order = "rank",
    world_size: int = RANKS,
    **arguments: object,
) -> list[Result]:
    torch.manual_seed(SEED)  # what gloo's processes start with
    return run_spmd(program, world_size, kwargs=arguments, options=SpmdOptions(order=order))


def flat(results: list[Result]) -> dict[str, Tensor]:
    return {
        f"rank {rank}: {name}": tensor
        for rank, result in enumerate(results)
        for name, tensor in (result.items() if isinstance(result, dict) else enumerate(result))
    }


def check(got: list[Result], expected: list[Result], tolerance: float = 0.0) -> None:
    found, wanted = flat(got), flat(expected)
    assert wanted
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.slow
@with_orders
@of([p for p in PROGRAMS if not p.refused])
def test_as_on_gloo(program: Program, order: Order, gloo: Callable[..., list[Result]]) -> None:
    if program.run is data.ddp_power_sgd and torch.cuda.is_available():
        pytest.skip("where there is a GPU, torch's PowerSGD takes its tensors for CUDA ones")
    tolerance = 0.0 if order == "gloo_ring" else program.tolerance
    check(virtual(program.run, order), gloo(program.run), tolerance)


@pytest.mark.slow
@of([p for p in PROGRAMS if p.refused])
def test_gloo_refuses(program: Program, gloo: Callable[..., list[Result]]) -> None:
    with pytest.raises(AssertionError, match=program.refused):
        gloo(program.run)


@of([p for p in PROGRAMS if p.refused and p.instead is None])
def test_what_torch_has_not_for_the_cpu(program: Program) -> None:
    with pytest.raises(RankError, match=program.refused):
        virtual(program.run)


@of([p for p in PROGRAMS if p.instead is not None])
def test_what_gloo_alone_refuses(program: Program) -> None:
    """In rank order: gloo's order depends on what it puts together in one call."""
    assert program.instead is not None
    check(virtual(program.run), virtual(program.instead))


ADAM = torch.optim.Adam
ALONE: list[tuple[Callable[..., Result], int, type, float]] = [
    # program, the number of ranks that have batches of their own, optimizer, learning rate
    (data.ddp, 4, torch.optim.SGD, 0.1),
    (data.ddp_small_buckets, 4, ADAM, 0.1),
    (data.ddp_static_graph, 4, torch.optim.SGD, 0.1),
    (data.ddp_python_hook, 4, torch.optim.SGD, 0.1),
    (data.zero_1, 4, ADAM, 0.05),
    (sharded.fsdp1, 4, torch.optim.SGD, 0.1),
    (sharded.fsdp2, 4, torch.optim.SGD, 0.1),
    (sharded.hsdp, 4, torch.optim.SGD, 0.1),
    (sharded.fsdp2_tensor_parallel, 2, torch.optim.SGD, 0.1),
    (sharded.hsdp_tensor_parallel, 2, torch.optim.SGD, 0.1),
    (sharded.tensor_parallel, 1, torch.optim.SGD, 0.1),
]


@pytest.mark.parametrize(
    ("program", "ranks", "optimizer", "lr"), ALONE, ids=[case[0].__name__ for case in ALONE]
)
def test_as_in_one_process(
    program: Callable[..., dict[str, Tensor]], ranks: int, optimizer: type, lr: float
) -> None:
    expected = data.one_process(ranks, optimizer, lr)
    for result in virtual(program):
        assert isinstance(result, dict)
        for name, weight in expected.items():
            found = result.get(f"whole.{name}", result[name])
            torch.testing.assert_close(found, weight, rtol=1e-5, atol=1e-5)


def test_64_ranks_as_in_one_process() -> None:
    expected = data.one_process(64)
    for result in virtual(data.ddp, world_size=64):
        assert isinstance(result, dict)
        for name, weight in expected.items():
            torch.testing.assert_close(result[name], weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "program", [data.ddp_dropout, messages.dtensor_random_in_place], ids=lambda f: f.__name__
)
def test_ten_runs_give_the_same_bits(program: Callable[..., Result]) -> None:
    first = virtual(program)
    for _ in range(9):
        check(virtual(program), first)


@pytest.mark.slow
@of([p for p in PROGRAMS if p.instead is not None or not p.refused])
def test_ten_runs_of_each_program(program: Program) -> None:
    first = virtual(program.run)
    for _ in range(9):
        check(virtual(program.run), first)


def test_each_rank_draws_its_own_numbers() -> None:
    """What a generator with the rank's seed gives: masks of 6 x 8 and 6 x 4, 3 times, then 3."""
    for rank, result in enumerate(virtual(data.ddp_dropout)):
        assert isinstance(result, dict)
        torch.manual_seed(rank)
        for _ in range(3):
            torch.nn.functional.dropout(torch.ones(6, 8), 0.3)
            torch.nn.functional.dropout(torch.ones(6, 4), 0.1)
        assert torch.equal(result["draw"], torch.rand(3))


@pytest.mark.slow
@with_orders
def test_checkpoint_of_4_ranks_on_2(
    order: Order, tmp_path: Path, gloo: Callable[..., list[Result]]
) -> None:
    """And of virtual ranks on gloo's, and the other way round: a checkpoint is only files."""
    folders = {"virtual": tmp_path / "virtual", "gloo": tmp_path / "gloo"}
    tolerance = 0.0 if order == "gloo_ring" else 1e-5
    saved = virtual(sharded.checkpoint_save, order, folder=folders["virtual"])
    check(saved, gloo(sharded.checkpoint_save, folder=folders["gloo"]), tolerance)
    for folder in folders.values():
        loaded = virtual(sharded.checkpoint_load, order, world_size=2, folder=folder)
        check(loaded, gloo(sharded.checkpoint_load, 2, folder=folder), tolerance)
        for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
            torch.testing.assert_close(
                loaded[0][f"loaded.whole.{name}"],
                saved[0][f"whole.{name}"],
                rtol=0,
                atol=0 if folder == folders["virtual"] else 1e-5,
            )


@pytest.mark.slow
def test_ten_runs_of_a_checkpoint(tmp_path: Path) -> None:
    results = []
    for index in range(10):
        saved = virtual(sharded.checkpoint_save, folder=tmp_path / str(index))
        loaded = virtual(sharded.checkpoint_load, world_size=2, folder=tmp_path / str(index))
        results.append(saved + loaded)
        check(results[-1], results[0])


def test_checkpoint_of_virtual_ranks_on_fewer_and_more(tmp_path: Path) -> None:
    saved = virtual(sharded.checkpoint_save, folder=tmp_path)
    for world_size in (1, 2, 3, 7):
        for result in virtual(sharded.checkpoint_load, world_size=world_size, folder=tmp_path):
            for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
                assert torch.equal(result[f"loaded.whole.{name}"], saved[0][f"whole.{name}"])


@pytest.mark.gpu
@of([p for p in PROGRAMS if not p.random and p.run is not data.sync_batch_norm])
def test_on_cuda_as_on_the_cpu(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    same = {data.ddp_bf16_hook: data.ddp_own_bf16_hook}  # torch may refuse the first on the CPU
    with monkeypatch.context() as patch:
        if program.run is data.ddp_power_sgd:  # it would synchronize the CPU as a GPU
            patch.setattr(torch.cuda, "is_available", lambda: False)
        expected = flat(virtual(same.get(program.run, program.run)))
    results = flat(virtual(program.run, device=cuda()))
    assert results.keys() == expected.keys()
    for name, tensor in expected.items():
        tolerance = max(1e-4, program.tolerance)
        torch.testing.assert_close(results[name].cpu(), tensor, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@of([p for p in PROGRAMS if p.random])
def test_random_numbers_on_cuda(program: Program) -> None:
    results = []
    for _ in range(3):
        torch.cuda.manual_seed(1)
        results.append(virtual(program.run, device=cuda()))
        check(results[-1], results[0])


@pytest.mark.gpu
def test_sync_batch_norm_is_the_batch_norm_of_all() -> None:
    expected = data.one_process(RANKS, make=data.normed)
    for result in virtual(data.sync_batch_norm, device=cuda()):
        assert isinstance(result, dict)
        assert result.keys() == expected.keys()
        for name in expected.keys() - {"1.num_batches_tracked"}:
            torch.testing.assert_close(result[name].cpu(), expected[name], rtol=1e-4, atol=1e-4)


def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())
