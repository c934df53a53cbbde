"""Every call of torch.distributed, once for all backends.

`call` makes one call on a rank of whatever group is there, and says all that can be seen of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

REDUCE_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
FACTOR = 2.0  # of premul_sum


@dataclass(frozen=True)
class Case:
    """One call.

    name: a key of CALLS. op: of REDUCE_OPS, or "" for what does not reduce. ranks: of the group
    that is made for it; None is the default group. root: a place in the group, modulo its size.
    how: "now", "work" (async_op, then wait), or "future" (the work's future is waited for).
    """

    name: str
    op: str = ""
    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] = (3,)
    ranks: tuple[int, ...] | None = None
    root: int = 0
    how: str = "now"
    seed: int = 0

    @property
    def operation(self) -> str:
        return f"{self.name} {self.op}".strip()


class Place:
    """Where a call is made: the rank, its group, and the tensors that are watched."""

    def __init__(self, case: Case, device: str) -> None:
        self.case = case
        self.device = device
        self.group = None if case.ranks is None else dist.new_group(list(case.ranks))
        self.inside = case.ranks is None or dist.get_rank() in case.ranks
        self.ranks = case.ranks or tuple(range(dist.get_world_size()))
        self.size = len(self.ranks)
        self.rank = self.ranks.index(dist.get_rank()) if self.inside else -1
        self.root = case.root % self.size
        self.is_root = self.rank == self.root
        self.watched: dict[str, tuple[Tensor, Tensor]] = {}
        self.seen: dict[str, Any] = {}

    def watch(self, name: str, tensor: Tensor) -> Tensor:
        tensor = tensor.to(self.device)
        self.watched[name] = tensor, tensor.clone()
        return tensor

    def given(self, name: str, shape: Sequence[int] | None = None, extra: int = 0) -> Tensor:
        """An input: its numbers are drawn by the rank, the name and the case's seed."""
        shape = self.case.shape if shape is None else shape
        seed = hash_of(name) + 7919 * self.rank + 104729 * self.case.seed + extra
        return self.watch(name, numbers(self.case.dtype, shape, seed))

    def empty(self, name: str, shape: Sequence[int] | None = None) -> Tensor:
        """An output; its bytes are such as no input has everywhere."""
        shape = self.case.shape if shape is None else shape
        return self.watch(
            name, torch.full(tuple(shape), 77, dtype=torch.float32).to(self.case.dtype)
        )

    def rows(self, count: int) -> tuple[int, ...]:
        """The case's shape with another number of rows; of a 0-d one, a vector."""
        return (count, *self.case.shape[1:])

    def global_rank(self, place: int) -> int:
        return self.ranks[place % self.size]

    def options(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.case.how != "now"}

    def reducing(self) -> dict[str, Any]:
        return {"op": reduce_op(self.case.op), **self.options()}

    def wait(self, work: Any) -> None:
        if self.case.how == "now":
            self.seen["returned"] = work
        elif isinstance(work, torch._C.Future):  # some of torch's calls give that
            self.seen["future"] = [t.cpu().clone() for t in tensors_in(work.wait())]
        elif self.case.how == "work":
            self.seen["waited"] = work.wait()
            self.seen["completed"] = work.is_completed()
        else:
            try:
                value = work.get_future().wait()
                self.seen["future"] = [t.cpu().clone() for t in tensors_in(value)]
            except RuntimeError as error:
                if "getFuture not implemented" not in str(error):
                    raise
                self.seen["future"] = "none"
                work.wait()

    def observed(self) -> dict[str, Any]:
        after = {name: tensor.cpu().clone() for name, (tensor, _) in self.watched.items()}
        changed = [n for n, (_, before) in self.watched.items() if not same(after[n], before.cpu())]
        return {**self.seen, **after, "changed": changed}


def hash_of(name: str) -> int:
    return sum(31**i * ord(letter) for i, letter in enumerate(name)) % 100_003


def numbers(dtype: torch.dtype, shape: Sequence[int], seed: int) -> Tensor:
    """Numbers whose sums round, and whose products stay finite with 8 ranks."""
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=g).bool()
    if not (dtype.is_floating_point or dtype.is_complex):
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min, limits.max, tuple(shape), generator=g, dtype=dtype)
    real = torch.randn(tuple(shape), dtype=torch.float64, generator=g).clamp(-3.0, 3.0)
    return (torch.complex(real, real.flip(0) / 3) if dtype.is_complex and real.dim() else real).to(
        dtype
    )


def reduce_op(name: str) -> Any:
    if name == "premul_sum":
        return dist._make_nccl_premul_sum(FACTOR)
    return getattr(dist.ReduceOp, name.upper())


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors_in(v)]
    return []


def same(a: Any, b: Any) -> bool:
    """The same in dtype, shape and bits."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return torch.equal(*bits)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


# Each is a function of the place it is called in.


def broadcast(p: Place) -> None:
    p.wait(dist.broadcast(p.given("x"), group_src=p.root, **p.options()))


def all_reduce(p: Place) -> None:
    p.wait(dist.all_reduce(p.given("x"), **p.reducing()))


def all_reduce_coalesced(p: Place) -> None:
    xs = [p.given("x"), p.given("y", p.rows(2))]
    p.wait(dist.all_reduce_coalesced(xs, **p.reducing()))


def all_reduce_managed(p: Place) -> None:
    xs = [p.given("x"), p.given("y", p.rows(2))]
    with managed(p):
        for x in xs:
            dist.all_reduce(x, reduce_op(p.case.op), group=p.group)


def reduce(p: Place) -> None:
    x = p.given("x" if p.is_root else "x off the root")
    p.wait(dist.reduce(x, dst=p.global_rank(p.root), **p.reducing()))


def all_gather(p: Place) -> None:
    outputs = [p.empty(f"output {r}") for r in range(p.size)]
    p.wait(dist.all_gather(outputs, p.given("x"), **p.options()))


def all_gather_uneven(p: Place) -> None:
    outputs = [p.empty(f"output {r}", p.rows(r + 1)) for r in range(p.size)]
    p.wait(dist.all_gather(outputs, p.given("x", p.rows(p.rank + 1)), **p.options()))


def all_gather_coalesced(p: Place) -> None:
    shapes = [p.case.shape, p.rows(2)]
    outputs = [[p.empty(f"output {r} {i}", s) for i, s in enumerate(shapes)] for r in range(p.size)]
    inputs = [p.given(f"x {i}", s) for i, s in enumerate(shapes)]
    p.wait(dist.all_gather_coalesced(outputs, inputs, **p.options()))


def all_gather_into_tensor(p: Place) -> None:
    x = p.given("x", p.case.shape or (1,))
    p.wait(dist.all_gather_into_tensor(p.empty("output", joined(p, x)), x, **p.options()))


def all_gather_into_tensor_stacked(p: Place) -> None:
    x = p.given("x")
    p.wait(dist.all_gather_into_tensor(p.empty("output", (p.size, *x.shape)), x, **p.options()))


def all_gather_into_tensor_managed(p: Place) -> None:
    inputs = [p.given("x", p.rows(1)), p.given("y", p.rows(2))]
    outputs = [p.empty(f"output {i}", joined(p, x)) for i, x in enumerate(inputs)]
    with managed(p):
        for output, x in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, x, group=p.group)


def gather(p: Place) -> None:
    outputs = [p.empty(f"output {r}") for r in range(p.size)] if p.is_root else None
    p.wait(dist.gather(p.given("x"), outputs, dst=p.global_rank(p.root), **p.options()))


def scatter(p: Place) -> None:
    inputs = [p.given(f"x {r}") for r in range(p.size)] if p.is_root else None
    p.wait(dist.scatter(p.empty("output"), inputs, group_src=p.root, **p.options()))


def reduce_scatter(p: Place) -> None:
    inputs = [p.given(f"x {r}") for r in range(p.size)]
    p.wait(dist.reduce_scatter(p.empty("output"), inputs, **p.reducing()))


def reduce_scatter_uneven(p: Place) -> None:
    inputs = [p.given(f"x {r}", p.rows(r + 1)) for r in range(p.size)]
    p.wait(dist.reduce_scatter(p.empty("output", p.rows(p.rank + 1)), inputs, **p.reducing()))


def reduce_scatter_tensor(p: Place) -> None:
    output = p.empty("output", p.case.shape or (1,))
    p.wait(dist.reduce_scatter_tensor(output, p.given("x", joined(p, output)), **p.reducing()))


def reduce_scatter_tensor_stacked(p: Place) -> None:
    output = p.empty("output")
    x = p.given("x", (p.size, *output.shape))
    p.wait(dist.reduce_scatter_tensor(output, x, **p.reducing()))


def reduce_scatter_tensor_managed(p: Place) -> None:
    outputs = [p.empty("output 0", p.rows(1)), p.empty("output 1", p.rows(2))]
    inputs = [p.given(f"x {i}", joined(p, output)) for i, output in enumerate(outputs)]
    with managed(p):
        for output, x in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, x, reduce_op(p.case.op), group=p.group)


def all_to_all_single(p: Place) -> None:
    shape = p.rows(2 * p.size)
    p.wait(dist.all_to_all_single(p.empty("output", shape), p.given("x", shape), **p.options()))


def all_to_all_single_splits(p: Place) -> None:
    sent, received = splits(p)
    output, x = p.empty("output", p.rows(sum(received))), p.given("x", p.rows(sum(sent)))
    p.wait(dist.all_to_all_single(output, x, received, sent, **p.options()))


def all_to_all(p: Place) -> None:
    outputs = [p.empty(f"output {r}") for r in range(p.size)]
    inputs = [p.given(f"x {r}") for r in range(p.size)]
    p.wait(dist.all_to_all(outputs, inputs, **p.options()))


def all_to_all_uneven(p: Place) -> None:
    sent, received = splits(p)
    outputs = [p.empty(f"output {r}", p.rows(n)) for r, n in enumerate(received)]
    inputs = [p.given(f"x {r}", p.rows(n)) for r, n in enumerate(sent)]
    p.wait(dist.all_to_all(outputs, inputs, **p.options()))


def send_recv(p: Place) -> None:
    """From the root to the rank after it."""
    after = (p.root + 1) % p.size
    if p.size > 1 and p.is_root:
        dist.send(p.given("x"), dst=p.global_rank(after), group=p.group, tag=3)
    elif p.rank == after != p.root:
        p.seen["source"] = dist.recv(
            p.empty("output"), src=p.global_rank(p.root), group=p.group, tag=3
        )


def recv_any_source(p: Place) -> None:
    """From the root to the rank after it, which does not say whom it hears."""
    after = (p.root + 1) % p.size
    if p.size > 1 and p.is_root:
        dist.send(p.given("x"), group_dst=after, group=p.group)
    elif p.rank == after != p.root:
        p.seen["source"] = dist.recv(p.empty("output"), group=p.group)
    # Else one of gloo's processes may die where a monitored_barrier follows.
    dist.barrier(p.group)


def isend_irecv(p: Place) -> None:
    """Around the ring, two messages that are told apart by their tags."""
    if p.size == 1:
        return
    to, of = p.global_rank(p.rank + 1), p.global_rank(p.rank - 1)
    works = [dist.isend(p.given(f"x {t}"), to, group=p.group, tag=t) for t in (1, 2)]
    works += [dist.irecv(p.empty(f"output {t}"), of, group=p.group, tag=t) for t in (2, 1)]
    for work in works:
        assert work is not None
        work.wait()


def batch_isend_irecv(p: Place) -> None:
    if p.size == 1:
        return
    send = dist.P2POp(dist.isend, p.given("x"), p.global_rank(p.rank + 1), p.group)
    receive = dist.P2POp(dist.irecv, p.empty("output"), p.global_rank(p.rank - 1), p.group)
    works = dist.batch_isend_irecv([send, receive])
    for work in works:
        work.wait()


def barrier(p: Place) -> None:
    p.wait(dist.barrier(**p.options()))


def monitored_barrier(p: Place) -> None:
    p.seen["returned"] = dist.monitored_barrier(p.group)


def broadcast_object_list(p: Place) -> None:
    objects = [p.given("x").cpu(), "text", {"rank": p.rank}] if p.is_root else [None] * 3
    dist.broadcast_object_list(objects, src=p.global_rank(p.root), group=p.group)
    p.seen["objects"] = objects


def all_gather_object(p: Place) -> None:
    objects: list[Any] = [None] * p.size
    dist.all_gather_object(objects, {"x": p.given("x").cpu(), "rank": p.rank}, group=p.group)
    p.seen["objects"] = objects


def gather_object(p: Place) -> None:
    objects: list[Any] | None = [None] * p.size if p.is_root else None
    dist.gather_object((p.given("x").cpu(), p.rank), objects, p.global_rank(p.root), p.group)
    p.seen["objects"] = objects


def scatter_object_list(p: Place) -> None:
    objects = [(p.given(f"x {r}").cpu(), r) for r in range(p.size)] if p.is_root else None
    output: list[Any] = [None]
    dist.scatter_object_list(output, objects, p.global_rank(p.root), p.group)
    p.seen["objects"] = output


def send_recv_object_list(p: Place) -> None:
    after = (p.root + 1) % p.size
    if p.size > 1 and p.is_root:
        dist.send_object_list([p.given("x").cpu(), "text"], p.global_rank(after), p.group)
    elif p.rank == after != p.root:
        objects: list[Any] = [None, None]
        p.seen["source"] = dist.recv_object_list(objects, p.global_rank(p.root), p.group)
        p.seen["objects"] = objects


def joined(p: Place, part: Tensor) -> tuple[int, ...]:
    return (p.size * part.shape[0], *part.shape[1:])


def splits(p: Place) -> tuple[list[int], list[int]]:
    """The rows for each rank, and from each; some are 0."""
    count = [[(2 * r + 3 * s + p.case.seed) % 4 for s in range(p.size)] for r in range(p.size)]
    return count[p.rank], [row[p.rank] for row in count]


class managed:  # noqa: N801 (it is called as a function is)
    """The coalescing manager, and the wait for what it gives."""

    def __init__(self, p: Place) -> None:
        self.later = p.case.how != "now"
        self.manager = dist._coalescing_manager(p.group, async_ops=self.later)

    def __enter__(self) -> None:
        self.yielded = self.manager.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.manager.__exit__(*error)
        if self.later and error[0] is None:
            self.yielded.wait()


_MOVING = (
    broadcast, all_gather, all_gather_uneven, all_gather_coalesced, all_gather_into_tensor,
    all_gather_into_tensor_stacked, all_gather_into_tensor_managed, gather, scatter,
    all_to_all_single, all_to_all_single_splits, all_to_all, all_to_all_uneven, send_recv,
    recv_any_source, isend_irecv, batch_isend_irecv, barrier, monitored_barrier,
    broadcast_object_list, all_gather_object, gather_object, scatter_object_list,
    send_recv_object_list,
)  # fmt: skip
_REDUCING = (
    all_reduce, all_reduce_coalesced, all_reduce_managed, reduce, reduce_scatter,
    reduce_scatter_uneven, reduce_scatter_tensor, reduce_scatter_tensor_stacked,
    reduce_scatter_tensor_managed,
)  # fmt: skip
CALLS: dict[str, Callable[[Place], None]] = {f.__name__: f for f in (*_REDUCING, *_MOVING)}
REDUCING = tuple(f.__name__ for f in _REDUCING)
MOVING = tuple(f.__name__ for f in _MOVING)


def call(case: Case, device: str = "cpu") -> dict[str, Any]:
    """Make the call on this rank, and say all that is seen of it; nothing outside its group."""
    place = Place(case, device)
    if not place.inside:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some of torch's calls are deprecated
            CALLS[case.name](place)
    except Exception as error:
        return {"raised": type(error).__name__, "message": str(error)}
    return place.observed()


def calls(cases: Sequence[Case], device: str = "cpu") -> list[dict[str, Any]]:
    return [call(case, device) for case in cases]
