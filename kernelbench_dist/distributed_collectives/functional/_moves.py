"""What moves the ranks' tensors and computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from kernelbench_dist.distributed_collectives import _arguments as arguments
from kernelbench_dist.distributed_collectives.functional import _maps as maps
from kernelbench_dist.distributed_collectives.functional._checks import (
    Loss,
    check_counts,
    check_loss,
    check_own_dim,
    own_sizes,
)
from kernelbench_dist.distributed_collectives.functional._meet import meet, ranks_of

__all__ = [
    "all_gather",
    "all_to_all",
    "broadcast",
    "gather",
    "permute",
    "replicate",
    "scatter",
    "shift",
]


def all_gather(
    x: Tensor,
    dim: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    loss: Loss = "sum",
    alike: bool = False,
) -> Tensor:
    """Join the ranks' tensors along dim, for all.

    The ranks' tensors may differ along dim (zero is a size too). To gather without joining, give
    each a dim for it: ``all_gather(x.unsqueeze(0))`` has shape (R, *s).

    Backward sums the ranks' gradients, and gives rank r the part that it gave. With loss="same"
    rank r takes that part of its own gradient, without communication.

    Raises:
        ValueError: if the ranks hold scalars, or differ outside dim or in an argument.

    >>> from kernelbench_dist.distributed_collectives import get_rank, run_spmd
    >>> def program(loss):
    ...     x = torch.ones(get_rank(), requires_grad=True)  # nothing on rank 0
    ...     all_gather(x, loss=loss).sum().backward()
    ...     return x.grad.tolist()
    >>> run_spmd(program, 3, ("sum",)), run_spmd(program, 3, ("same",))
    ([[], [3.0], [3.0, 3.0]], [[], [1.0], [1.0, 1.0]])
    """
    fn = "all_gather"
    arguments.check_tensor(fn, x)
    once = check_loss(fn, loss)
    ranks = ranks_of(fn, group)
    dim = check_own_dim(fn, "dim", dim, x)
    met = meet(fn, ranks, x, alike, dim=dim, loss=loss)
    held = met.tensors
    arguments.check_same_outside(fn, held, dim)
    joined = maps.Join(ranks, tuple(t.numel() for t in held), once)
    rows = met.tied(x).movedim(dim, 0)
    return _unflat(maps.apply(joined, rows), rows, dim, sum(t.size(dim) for t in held))


def gather(
    x: Tensor,
    dst: int = 0,
    dim: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    alike: bool = False,
) -> Tensor:
    """Join the ranks' tensors along dim, on rank dst of the group.

    The ranks' tensors may differ along dim. The result of the others is empty, x's shape with dim
    0; they take part in backward through it, ``result.sum()`` for one.

    Backward splits dst's gradient: rank r gets the part that it gave.

    Raises:
        ValueError: if dst is not a rank of the group, if the ranks hold scalars, or differ outside
            dim or in an argument.

    >>> from kernelbench_dist.distributed_collectives import get_rank, run_spmd
    >>> run_spmd(lambda: gather(torch.tensor([get_rank()]), dst=1).tolist(), 3)
    [[], [0, 1, 2], []]
    """
    fn = "gather"
    arguments.check_tensor(fn, x)
    ranks = ranks_of(fn, group)
    arguments.check_rank(fn, "dst", dst, ranks.size)
    dim = check_own_dim(fn, "dim", dim, x)
    met = meet(fn, ranks, x, alike, dst=dst, dim=dim)
    held = met.tensors
    arguments.check_same_outside(fn, held, dim)
    gathered = maps.gather_to(dst, tuple(t.numel() for t in held), ranks)
    rows = met.tied(x).movedim(dim, 0)
    size = sum(t.size(dim) for t in held) if ranks.rank == dst else 0
    return _unflat(maps.apply(gathered, rows), rows, dim, size)


def scatter(
    x: Tensor | None,
    src: int = 0,
    dim: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    sizes: Sequence[int] | None = None,
    alike: bool = False,
) -> Tensor:
    """Give rank r part r, along dim, of what rank src of the group holds.

    Only src's tensor is read; the others give None, or a tensor of its dtype that does not matter.
    The result is src's shape with dim / R. With sizes (on src), R ints that sum to dim, rank r gets
    sizes[r] of dim. With alike=True all ranks give a tensor of src's shape, and its sizes.

    Backward gathers the ranks' gradients to src, and gives zeros to tensors of the others.

    Raises:
        TypeError: if src gives no tensor.
        ValueError: if src is not a rank of the group, if dim is not a multiple of R and no sizes
            are given, if sizes do not sum to it, or if the ranks differ in src or dim.

    >>> from kernelbench_dist.distributed_collectives import get_rank, run_spmd
    >>> run_spmd(lambda: scatter(torch.arange(4) if get_rank() == 1 else None, src=1).tolist(), 2)
    [[0, 1], [2, 3]]
    """
    fn = "scatter"
    ranks = ranks_of(fn, group)
    arguments.check_rank(fn, "src", src, ranks.size)
    arguments.check_int(fn, "dim", dim)
    rows: list[int] | None = None
    if x is not None or ranks.rank == src or alike:
        arguments.check_tensor(fn, x)
    if ranks.rank == src or alike:
        assert x is not None
        rows = own_sizes(fn, "sizes", sizes, x, check_own_dim(fn, "dim", dim, x), ranks)
    met = meet(fn, ranks, x, alike, own=rows, src=src, dim=dim)
    given, rows = met.held[src], met.own[src]
    assert given is not None
    assert rows is not None
    # In the shape that Exchange sends it in: src's parts one after the other, or nothing.
    if x is None:
        x = torch.empty(0, dtype=given.dtype, device=met.device)
    x = met.tied(x)
    flat = x.movedim(dim, 0).reshape(-1) if ranks.rank == src else x.reshape(-1)[:0]

    like = given.movedim(dim, 0)
    counts = tuple(n * like.shape[1:].numel() for n in rows)
    part = maps.apply(maps.scatter_from(src, counts, ranks), flat)
    return _unflat(part, like, dim, rows[ranks.rank])


def broadcast(
    x: Tensor,
    src: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    loss: Loss = "sum",
    alike: bool = False,
) -> Tensor:
    """Give every rank what rank src of the group holds.

    The other ranks hold a tensor of src's shape and dtype, whose values do not matter.

    Backward gives src the sum of the ranks' gradients, and the others zeros. With loss="same" src
    gets its own gradient, without communication.

    Raises:
        ValueError: if src is not a rank of the group, or the ranks differ in shape, src or loss.

    >>> from kernelbench_dist.distributed_collectives import get_rank, run_spmd
    >>> run_spmd(lambda: broadcast(torch.tensor(get_rank()), src=2).item(), 3)
    [2, 2, 2]
    """
    fn = "broadcast"
    arguments.check_tensor(fn, x)
    once = check_loss(fn, loss)
    ranks = ranks_of(fn, group)
    arguments.check_rank(fn, "src", src, ranks.size)
    met = meet(fn, ranks, x, alike, src=src, loss=loss)
    arguments.check_same_shape(fn, met.tensors)
    return maps.apply(maps.FromRank(ranks, src, once), met.tied(x)).view(x.shape)


def replicate(x: Tensor, group: dist.ProcessGroup | None = None, *, alike: bool = False) -> Tensor:
    """Let each rank use in its own way a value that all ranks hold alike.

    Forward is a copy, without communication of the value. Backward sums the ranks' gradients, so
    that all hold the whole gradient of the value: for a replicated weight before a loss="same".

    Raises:
        ValueError: if the ranks differ in shape.

    >>> from kernelbench_dist.distributed_collectives import get_rank, run_spmd
    >>> def program():
    ...     weight = torch.ones((), requires_grad=True)
    ...     part = get_rank() * replicate(weight)
    ...     all_reduce(part, loss="same").backward()
    ...     return weight.grad.item()
    >>> from kernelbench_dist.distributed_collectives.functional import all_reduce
    >>> run_spmd(program, 3)  # 0 + 1 + 2
    [3.0, 3.0, 3.0]
    """
    fn = "replicate"
    arguments.check_tensor(fn, x)
    ranks = ranks_of(fn, group)
    met = meet(fn, ranks, x, alike)
    arguments.check_same_shape(fn, met.tensors)
    return maps.apply(maps.Copy(ranks), met.tied(x)).view(x.shape)


def all_to_all(
    x: Tensor,
    split_dim: int = 0,
    concat_dim: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    input_splits: Sequence[int] | None = None,
    output_splits: Sequence[int] | None = None,
    alike: bool = False,
) -> Tensor:
    """Cut x in R parts along split_dim, send part r to rank r, and join along concat_dim.

    The result joins the parts that come, in the order of the ranks they come from. With
    input_splits, R ints that sum to split_dim, part r has input_splits[r] of it. output_splits[q]
    is what rank q's input_splits say for this rank; it is learned from the ranks, and checked if
    given. With alike=True it is needed where input_splits is given, and the ranks' tensors differ
    in split_dim at most. The ranks' tensors may differ as long as the parts that one rank gets
    differ along concat_dim only.

    Backward is the inverse all_to_all: each part's gradient goes back to where it came from.

    Raises:
        ValueError: if split_dim is not a multiple of R and no input_splits are given, if they do
            not sum to it, if output_splits are not what comes, or if the parts of a rank cannot be
            joined.

    >>> from kernelbench_dist.distributed_collectives import get_rank, run_spmd
    >>> def program():
    ...     splits = [[1, 2], [3, 0]][get_rank()]
    ...     return all_to_all(torch.arange(3) + 10 * get_rank(), input_splits=splits).tolist()
    >>> run_spmd(program, 2)
    [[0, 10, 11, 12], [1, 2]]
    """
    fn = "all_to_all"
    arguments.check_tensor(fn, x)
    ranks = ranks_of(fn, group)
    split_dim = check_own_dim(fn, "split_dim", split_dim, x)
    concat_dim = check_own_dim(fn, "concat_dim", concat_dim, x)
    sent = own_sizes(fn, "input_splits", input_splits, x, split_dim, ranks)
    got = None
    if output_splits is not None:
        got = check_counts(fn, "output_splits", output_splits, ranks)
    elif alike and input_splits is not None:
        raise ValueError(
            f"{fn}: output_splits is None; with alike=True and input_splits it takes "
            f"{ranks.size} ints"
        )
    met = meet(fn, ranks, x, alike, own=sent, split_dim=split_dim, concat_dim=concat_dim)
    held = met.tensors
    if not alike:
        arguments.check_splits(fn, met.own, held, split_dim, concat_dim)
        come = [row[ranks.rank] for row in met.own]
        if got not in (None, come):
            raise ValueError(f"{fn}: output_splits={got}, but the ranks' input_splits give {come}")
        got = come
    elif got is None:
        got = sent

    # Parts travel with split_dim first, where they lie one after the other.
    rows = met.tied(x).movedim(split_dim, 0)
    shapes = [
        torch.Size((n, *t.movedim(split_dim, 0).shape[1:])) for n, t in zip(got, held, strict=True)
    ]
    per_row = rows.shape[1:].numel()
    exchange = maps.Exchange(
        ranks, tuple(n * per_row for n in sent), tuple(shape.numel() for shape in shapes)
    )
    came = maps.apply(exchange, rows).split(exchange.got)
    parts = [t.view(s).movedim(0, split_dim) for t, s in zip(came, shapes, strict=True)]
    return torch.cat(parts, concat_dim).contiguous()


def permute(
    x: Tensor,
    pairs: Sequence[tuple[int, int]],
    group: dist.ProcessGroup | None = None,
    *,
    alike: bool = False,
) -> Tensor:
    """Send whole tensors from rank to rank of the group.

    Pairs are (source, destination), each rank at most once as either, and the same on all ranks,
    which all call this. A tensor arrives in the shape it was sent with; a rank to which no pair
    sends gets zeros of the shape it holds.

    Backward permutes the gradients with the reversed pairs.

    Raises:
        ValueError: if a pair names what is no rank, if a rank sends or receives twice, or if the
            ranks differ in pairs.

    >>> from kernelbench_dist.distributed_collectives import get_rank, run_spmd
    >>> run_spmd(lambda: permute(torch.tensor(get_rank() + 1), [(0, 2), (2, 0)]).item(), 3)
    [3, 0, 1]
    """
    fn = "permute"
    arguments.check_tensor(fn, x)
    ranks = ranks_of(fn, group)
    source_of = arguments.check_pairs(fn, pairs, ranks.size)
    met = meet(fn, ranks, x, alike, pairs=[list(pair) for pair in pairs])
    return _move(met.tied(x), source_of, met.tensors, ranks)


def shift(
    x: Tensor,
    by: int = 1,
    wrap: bool = True,
    group: dist.ProcessGroup | None = None,
    *,
    alike: bool = False,
) -> Tensor:
    """Send every rank's tensor by ranks onwards, backwards if by is negative.

    The tensor of rank r goes to rank (r + by) mod R, in the shape it has. With wrap=False what goes
    past the last rank, or before rank 0, is dropped, and a rank to which nothing comes gets zeros
    of the shape it holds.

    Backward shifts the gradients back by as much.

    Raises:
        TypeError: if by is not an int, or wrap not a bool.
        ValueError: if the ranks differ in them.

    >>> from kernelbench_dist.distributed_collectives import get_rank, run_spmd
    >>> run_spmd(lambda: shift(torch.tensor(get_rank() + 1)).item(), 3)
    [3, 1, 2]
    """
    fn = "shift"
    arguments.check_tensor(fn, x)
    ranks = ranks_of(fn, group)
    arguments.check_int(fn, "by", by)
    arguments.check_bool(fn, "wrap", wrap)
    met = meet(fn, ranks, x, alike, by=by, wrap=wrap)
    size = ranks.size
    source_of = {(r + by) % size: r for r in range(size) if wrap or 0 <= r + by < size}
    return _move(met.tied(x), source_of, met.tensors, ranks)


def _move(
    x: Tensor, source_of: dict[int, int], held: Sequence[Tensor], ranks: maps.Ranks
) -> Tensor:
    source = source_of.get(ranks.rank)
    sent = [x.numel() if source_of.get(r) == ranks.rank else 0 for r in range(ranks.size)]
    got = [held[r].numel() if r == source else 0 for r in range(ranks.size)]
    # Each element goes once, or not at all.
    flat = x.reshape(-1)[: sum(sent)]
    moved = maps.apply(maps.Exchange(ranks, tuple(sent), tuple(got)), flat)
    if source is not None:
        return moved.view(held[source].shape)
    return torch.cat((moved, moved.new_zeros(x.numel()))).view(x.shape)  # backward goes through it


def _unflat(flat: Tensor, rows: Tensor, dim: int, size: int) -> Tensor:
    """Flat rows of the given number, with their dim back in its place."""
    return flat.view(size, *rows.shape[1:]).movedim(0, dim).contiguous()
