"""Collectives on a stacked tensor: the R ranks of a distributed program on one device.

x has shape (R, *s), and row r is what rank r holds. One rule gives the shape of every result:
what is the same on every rank comes back once, without the rank dimension; what differs comes back
stacked. So all_reduce gives (*s), and reduce_scatter gives (R, ...). stacked=True asks for one copy
a rank where the result would come once. A dim counts in *s, the shape on one rank, and may be
negative.

A list with the tensor of each rank is taken wherever a stacked tensor is; only so can ranks differ
in size. If a list, sizes or splits are given, stacked results are lists of R tensors.

Results are contiguous, have x's dtype, and share no memory with an input or another result.

Gradients
---------
Each function is a composition of torch operations. Autograd (twice too), torch.func, torch.compile
and meta tensors work as on any other torch code, and backward is the adjoint of the forward, no
more and no less. For a result that comes back once this needs a word, because people disagree on
what the backward of a differentiable all_reduce is. Take a sum, y = x_0 + ... + x_{R-1}:

- A result that comes once is one tensor, and its gradient g counts once: every rank gets g. If
  each rank r of the real program uses the result in a loss of its own, add these losses up, and
  g is the sum over r of the gradient that rank r's use of it gives.
- stacked=True gives rank r a copy of its own, with gradient g_r. Every rank gets
  g_0 + ... + g_{R-1}: the backward of a sum all_reduce is a sum all_reduce. If every rank computes
  the same loss from its copy, this is R times the gradient of that loss taken once.

Nothing is divided by R, but for op="avg". The same holds for all_gather and broadcast.

A tensor of a list that a function does not read, as the ranks other than src in a broadcast, gets
no gradient (None to autograd); in a stacked tensor its row gets zeros.

Errors
------
A wrong kind of argument, a dtype that the op does not have, and ranks of a list that disagree in
dtype or device are TypeErrors. Shapes, sizes, ranks, ops and dims are ValueErrors. All are raised
before anything is computed. What is particular to a function stands in its docstring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from kernelbench_dist.distributed_collectives import _arguments as arguments
from kernelbench_dist.distributed_collectives import _reductions as reductions
from kernelbench_dist.distributed_collectives._arguments import Stacked
from kernelbench_dist.distributed_collectives._reductions import Op

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "join",
    "permute",
    "reduce",
    "reduce_scatter",
    "replicate",
    "scan",
    "scatter",
    "shift",
    "split",
]


@overload
def all_gather(x: Tensor, dim: int = 0, *, stacked: bool = False) -> Tensor: ...
@overload
def all_gather(x: Sequence[Tensor], dim: int = 0, *, stacked: Literal[False] = False) -> Tensor: ...
@overload
def all_gather(x: Sequence[Tensor], dim: int = 0, *, stacked: Literal[True]) -> list[Tensor]: ...
def all_gather(x: Stacked, dim: int = 0, *, stacked: bool = False) -> Tensor | list[Tensor]:
    """Join the ranks' tensors along dim.

    x is (R, *s), or a list of R tensors that may differ along dim. The result is *s with dim times
    R (for a list, the sum of the ranks' dims). To gather without joining, into (R, *s), give each
    rank a dim for it: ``all_gather(x.unsqueeze(1), dim=0)``.

    Backward splits the gradient: rank r gets the part that it gave. With stacked=True the
    gradients of the R copies are summed first.

    Raises:
        ValueError: if the ranks hold scalars, or differ outside dim.

    >>> all_gather(torch.tensor([[[1, 2]], [[3, 4]]]), dim=-1)
    tensor([[1, 2, 3, 4]])
    >>> all_gather([torch.ones(2, 3), 2 * torch.ones(1, 3), torch.ones(0, 3)])
    tensor([[1., 1., 1.],
            [1., 1., 1.],
            [2., 2., 2.]])
    """
    xs = arguments.as_ranks("all_gather", x)
    arguments.check_bool("all_gather", "stacked", stacked)
    joined = _join_along("all_gather", xs, dim)
    return _copies(joined, x, len(xs)) if stacked else joined


@overload
def all_reduce(x: Tensor, op: Op = "sum", *, stacked: bool = False) -> Tensor: ...
@overload
def all_reduce(
    x: Sequence[Tensor], op: Op = "sum", *, stacked: Literal[False] = False
) -> Tensor: ...
@overload
def all_reduce(x: Sequence[Tensor], op: Op = "sum", *, stacked: Literal[True]) -> list[Tensor]: ...
def all_reduce(x: Stacked, op: Op = "sum", *, stacked: bool = False) -> Tensor | list[Tensor]:
    """Reduce over the ranks, elementwise.

    x is (R, *s), or a list of R tensors of shape s. The result is *s. op is "sum", "avg", "prod",
    "min", "max", "band", "bor" or "bxor", or the torch.distributed.ReduceOp member of that name.

    The fold goes in rank order from rank 0, in float32 for fp16 and bf16, and is rounded once.
    Integers wrap in their own dtype; the sum of bools is or, their product and. min and max pass
    NaN on.

    Backward, for the gradient g of the result: sum gives every rank g, and avg g / R; prod gives
    rank r g times the product of the others, zeros or not; min and max give g to the rank whose
    value was taken, the smallest one of a tie, and zeros to the others. The bit operations are not
    differentiable. With stacked=True g is the sum over the R copies' gradients; the module's
    docstring says what that means.

    Raises:
        ValueError: if the ranks differ in shape.
        TypeError: if the dtype does not have the op (avg of integers or bools, min and max of
            complex numbers, bit operations of floats).

    >>> x = torch.tensor([[1.0, 5.0], [2.0, 3.0]], requires_grad=True)
    >>> all_reduce(x).tolist()
    [3.0, 8.0]
    >>> all_reduce(x, stacked=True).sum().backward()
    >>> x.grad
    tensor([[2., 2.],
            [2., 2.]])
    """
    xs = arguments.as_ranks("all_reduce", x)
    arguments.check_bool("all_reduce", "stacked", stacked)
    reduced = _reduce("all_reduce", xs, op)
    return _copies(reduced, x, len(xs)) if stacked else reduced


@overload
def reduce_scatter(x: Tensor, dim: int = 0, op: Op = "sum", *, sizes: None = None) -> Tensor: ...
@overload
def reduce_scatter(
    x: Sequence[Tensor], dim: int = 0, op: Op = "sum", *, sizes: Sequence[int] | None = None
) -> list[Tensor]: ...
@overload
def reduce_scatter(
    x: Tensor, dim: int = 0, op: Op = "sum", *, sizes: Sequence[int]
) -> list[Tensor]: ...
def reduce_scatter(
    x: Stacked, dim: int = 0, op: Op = "sum", *, sizes: Sequence[int] | None = None
) -> Tensor | list[Tensor]:
    """Reduce over the ranks, then give rank r part r of dim.

    x is (R, *s), or a list of R tensors of shape s. The result is (R, *s with dim / R). With sizes,
    R ints that sum to dim, rank r gets sizes[r] of dim. op is as in all_reduce.

    Backward joins the R gradients along dim, and continues as all_reduce's.

    Raises:
        ValueError: if dim is not a multiple of R and no sizes are given, if sizes do not sum to it,
            or if the ranks differ in shape.
        TypeError: if the dtype does not have the op.

    >>> reduce_scatter(torch.tensor([[1, 2, 3, 4], [10, 20, 30, 40]]))
    tensor([[11, 22],
            [33, 44]])
    >>> reduce_scatter(torch.tensor([[1, 2, 3], [10, 20, 30]]), sizes=[1, 2])
    [tensor([11]), tensor([22, 33])]
    """
    fn = "reduce_scatter"
    xs = arguments.as_ranks(fn, x)
    op = reductions.check_op(fn, op, xs[0].dtype)
    arguments.check_same_shape(fn, xs)
    dim = arguments.check_dim(fn, "dim", dim, xs[0])
    part_sizes = arguments.part_sizes(fn, "sizes", sizes, xs, 0, dim)
    parts = reductions.fold(xs, op).split(part_sizes, dim)
    return _per_rank(parts, as_list=sizes is not None or not isinstance(x, Tensor))


@overload
def all_to_all(
    x: Tensor, split_dim: int = 0, concat_dim: int = 0, *, splits: None = None
) -> Tensor: ...
@overload
def all_to_all(
    x: Sequence[Tensor],
    split_dim: int = 0,
    concat_dim: int = 0,
    *,
    splits: Sequence[Sequence[int]] | None = None,
) -> list[Tensor]: ...
@overload
def all_to_all(
    x: Tensor, split_dim: int = 0, concat_dim: int = 0, *, splits: Sequence[Sequence[int]]
) -> list[Tensor]: ...
def all_to_all(
    x: Stacked,
    split_dim: int = 0,
    concat_dim: int = 0,
    *,
    splits: Sequence[Sequence[int]] | None = None,
) -> Tensor | list[Tensor]:
    """Cut every rank's tensor in R parts along split_dim, and send part r to rank r.

    Rank r joins what it gets along concat_dim, in the order of the ranks it came from. x is
    (R, *s); the result is (R, *s with split_dim / R and concat_dim * R). With splits, R rows of R
    ints, rank q sends splits[q][r] of its split_dim to rank r. The tensors of a list may differ as
    long as the parts that one rank gets differ along concat_dim only.

    Backward is the inverse all_to_all: each part's gradient goes back to where it came from.

    Raises:
        ValueError: if split_dim is not a multiple of R and no splits are given, if a row of splits
            does not sum to it, or if the parts of a rank cannot be joined.

    >>> all_to_all(torch.tensor([[0, 1], [10, 11]]))
    tensor([[ 0, 10],
            [ 1, 11]])
    >>> all_to_all(torch.tensor([[0, 1, 2], [10, 11, 12]]), splits=[[1, 2], [3, 0]])
    [tensor([ 0, 10, 11, 12]), tensor([1, 2])]
    """
    fn = "all_to_all"
    xs = arguments.as_ranks(fn, x)
    split_dim = arguments.check_dim(fn, "split_dim", split_dim, xs[0])
    concat_dim = arguments.check_dim(fn, "concat_dim", concat_dim, xs[0])
    rows = arguments.check_splits(fn, splits, xs, split_dim, concat_dim)

    if isinstance(x, Tensor) and splits is None:
        # What is below does the same in R * R views and two copies; this does it in one copy.
        parts = x.unflatten(1 + split_dim, (len(xs), rows[0][0]))
        by_receiver = parts.movedim(1 + split_dim, 0).movedim(1, 1 + concat_dim)
        return _fresh(by_receiver).flatten(1 + concat_dim, 2 + concat_dim)
    sent = [t.split(row, split_dim) for t, row in zip(xs, rows, strict=True)]
    return [torch.cat(got, concat_dim).contiguous() for got in zip(*sent, strict=True)]


@overload
def broadcast(x: Tensor, src: int = 0, *, stacked: bool = False) -> Tensor: ...
@overload
def broadcast(x: Sequence[Tensor], src: int = 0, *, stacked: Literal[False] = False) -> Tensor: ...
@overload
def broadcast(x: Sequence[Tensor], src: int = 0, *, stacked: Literal[True]) -> list[Tensor]: ...
def broadcast(x: Stacked, src: int = 0, *, stacked: bool = False) -> Tensor | list[Tensor]:
    """Give every rank what rank src holds.

    x is (R, *s), or a list of R tensors of shape s. The result is *s. As in torch.distributed, the
    other ranks must hold a tensor of src's shape; their values do not matter.

    Backward gives the gradient to src, and zeros to the others. With stacked=True the gradients of
    the R copies are summed first.

    Raises:
        ValueError: if src is not a rank, or the ranks differ in shape.

    >>> broadcast(torch.tensor([[1, 2], [3, 4]]), src=1, stacked=True)
    tensor([[3, 4],
            [3, 4]])
    """
    xs = arguments.as_ranks("broadcast", x)
    arguments.check_bool("broadcast", "stacked", stacked)
    arguments.check_rank("broadcast", "src", src, len(xs))
    arguments.check_same_shape("broadcast", xs)
    return _copies(xs[src], x, len(xs)) if stacked else _fresh(xs[src])


@overload
def scatter(x: Tensor, src: int = 0, dim: int = 0, *, sizes: None = None) -> Tensor: ...
@overload
def scatter(
    x: Sequence[Tensor], src: int = 0, dim: int = 0, *, sizes: Sequence[int] | None = None
) -> list[Tensor]: ...
@overload
def scatter(x: Tensor, src: int = 0, dim: int = 0, *, sizes: Sequence[int]) -> list[Tensor]: ...
def scatter(
    x: Stacked, src: int = 0, dim: int = 0, *, sizes: Sequence[int] | None = None
) -> Tensor | list[Tensor]:
    """Give rank r part r, along dim, of what rank src holds.

    x is (R, *s). The result is (R, *s with dim / R). With sizes, R ints that sum to dim, rank r
    gets sizes[r] of dim. Only src's tensor is read: the others of a list may have any shape, as in
    torch.distributed ranks other than src give none.

    Backward gathers the R gradients to src, and gives zeros to the others.

    Raises:
        ValueError: if src is not a rank, if dim is not a multiple of R and no sizes are given, or
            if sizes do not sum to it.

    >>> scatter(torch.tensor([[1, 2], [3, 4]]), src=1)
    tensor([[3],
            [4]])
    >>> scatter([torch.arange(3), torch.arange(0)], sizes=[3, 0])
    [tensor([0, 1, 2]), tensor([], dtype=torch.int64)]
    """
    xs = arguments.as_ranks("scatter", x)
    arguments.check_rank("scatter", "src", src, len(xs))
    dim = arguments.check_dim("scatter", "dim", dim, xs[src])
    part_sizes = arguments.part_sizes("scatter", "sizes", sizes, xs, src, dim)
    parts = xs[src].split(part_sizes, dim)
    return _per_rank(parts, as_list=sizes is not None or not isinstance(x, Tensor))


def gather(x: Stacked, dst: int = 0, dim: int = 0) -> Tensor:
    """Join the ranks' tensors along dim, on rank dst.

    x is (R, *s), or a list of R tensors that may differ along dim. The result is what rank dst
    receives, *s with dim times R; the other ranks receive nothing. Its value is all_gather's, so
    dst tells the reader, and is checked to be a rank.

    Backward splits dst's gradient: rank r gets the part that it gave.

    Raises:
        ValueError: if dst is not a rank, if the ranks hold scalars, or differ outside dim.

    >>> gather(torch.tensor([[1, 2], [3, 4]]), dst=1)
    tensor([1, 2, 3, 4])
    """
    xs = arguments.as_ranks("gather", x)
    arguments.check_rank("gather", "dst", dst, len(xs))
    return _join_along("gather", xs, dim)


def reduce(x: Stacked, dst: int = 0, op: Op = "sum") -> Tensor:
    """Reduce over the ranks, elementwise, on rank dst.

    x is (R, *s), or a list of R tensors of shape s. The result is what rank dst receives, *s; the
    other ranks receive nothing. op, the order of the fold and the derivatives are all_reduce's, so
    dst tells the reader, and is checked to be a rank.

    Backward gives every rank dst's gradient, through the op.

    Raises:
        ValueError: if dst is not a rank, or the ranks differ in shape.
        TypeError: if the dtype does not have the op.

    >>> reduce(torch.tensor([[1, 2], [3, 4]]), dst=1, op="max")
    tensor([3, 4])
    """
    xs = arguments.as_ranks("reduce", x)
    arguments.check_rank("reduce", "dst", dst, len(xs))
    return _reduce("reduce", xs, op)


@overload
def permute(x: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor: ...
@overload
def permute(x: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> list[Tensor]: ...
def permute(x: Stacked, pairs: Sequence[tuple[int, int]]) -> Tensor | list[Tensor]:
    """Send whole ranks' tensors from rank to rank.

    Pairs are (source, destination), each rank at most once as either. x is (R, *s), and so is the
    result; a rank to which no pair sends gets zeros of the shape it holds. In a list shapes may
    differ, and a tensor arrives in the shape it was sent with.

    Backward permutes the gradients with the reversed pairs.

    Raises:
        ValueError: if a pair names what is no rank, or a rank sends or receives twice.

    >>> permute(torch.tensor([[1, 1], [2, 2], [3, 3]]), [(0, 2), (2, 0)])
    tensor([[3, 3],
            [0, 0],
            [1, 1]])
    """
    xs = arguments.as_ranks("permute", x)
    source_of = arguments.check_pairs("permute", pairs, len(xs))
    return _move(xs, source_of, as_list=not isinstance(x, Tensor))


@overload
def shift(x: Tensor, by: int = 1, wrap: bool = True) -> Tensor: ...
@overload
def shift(x: Sequence[Tensor], by: int = 1, wrap: bool = True) -> list[Tensor]: ...
def shift(x: Stacked, by: int = 1, wrap: bool = True) -> Tensor | list[Tensor]:
    """Send every rank's tensor by ranks onwards, backwards if by is negative.

    x is (R, *s), and so is the result: the tensor of rank r goes to rank (r + by) mod R. With
    wrap=False what goes past the last rank, or before rank 0, is dropped, and a rank to which
    nothing comes gets zeros of the shape it holds. In a list shapes may differ, as in permute.

    Backward shifts the gradients back by as much.

    Raises:
        TypeError: if by is not an int, or wrap not a bool.

    >>> x = torch.tensor([[1], [2], [3]])
    >>> shift(x).flatten().tolist(), shift(x, by=-1, wrap=False).flatten().tolist()
    ([3, 1, 2], [2, 3, 0])
    """
    xs = arguments.as_ranks("shift", x)
    arguments.check_int("shift", "by", by)
    arguments.check_bool("shift", "wrap", wrap)
    world_size = len(xs)
    source_of = {
        (r + by) % world_size: r for r in range(world_size) if wrap or 0 <= r + by < world_size
    }
    return _move(xs, source_of, as_list=not isinstance(x, Tensor))


@overload
def scan(x: Tensor, op: Op = "sum", exclusive: bool = False) -> Tensor: ...
@overload
def scan(x: Sequence[Tensor], op: Op = "sum", exclusive: bool = False) -> list[Tensor]: ...
def scan(x: Stacked, op: Op = "sum", exclusive: bool = False) -> Tensor | list[Tensor]:
    """Give rank r the reduction over ranks 0 to r.

    x is (R, *s), or a list of R tensors of shape s, and the result is of x's shape. With
    exclusive=True rank r gets the reduction over ranks 0 to r - 1, and rank 0 the identity: 0 for
    sum, bor and bxor; 1 for prod; all bits for band; the largest value, or infinity, for min; the
    smallest, or minus infinity, for max. op is as in all_reduce, but for avg; order and rounding
    are too.

    Backward is the scan from the last rank back: for a sum, rank r gets the gradients of ranks r
    to R - 1, or of r + 1 to R - 1 if exclusive.

    Raises:
        ValueError: if op is avg, or the ranks differ in shape.
        TypeError: if the dtype does not have the op.

    >>> x = torch.tensor([[1], [2], [3]])
    >>> scan(x).flatten().tolist(), scan(x, "prod", exclusive=True).flatten().tolist()
    ([1, 3, 6], [1, 1, 2])
    """
    xs = arguments.as_ranks("scan", x)
    accepted = [name for name in reductions.OPS if name != "avg"]
    op = reductions.check_op("scan", op, xs[0].dtype, accepted)
    arguments.check_bool("scan", "exclusive", exclusive)
    arguments.check_same_shape("scan", xs)
    scanned = reductions.prefixes(xs, op)
    if exclusive:
        scanned = [reductions.identity(xs[0], op), *scanned[:-1]]
    return _per_rank(scanned, as_list=not isinstance(x, Tensor))


def join(xs: Sequence[Tensor]) -> Tensor:
    """Stack a list of R tensors of one shape s into (R, *s).

    Backward splits.

    Raises:
        ValueError: if the list is empty, or the ranks differ in shape.

    >>> join([torch.tensor(123), torch.tensor(456)])
    tensor([123, 456])
    """
    arguments.check_list("join", xs, "xs must be a list of R tensors")
    arguments.check_same_shape("join", xs)
    return _per_rank(xs, as_list=False)


def split(x: Tensor) -> list[Tensor]:
    """The list of R tensors of shape s of a stacked tensor (R, *s).

    Backward joins.

    Raises:
        TypeError: if x is not a tensor.
        ValueError: if it has no ranks.

    >>> split(torch.tensor([[1, 2], [3, 4]]))
    [tensor([1, 2]), tensor([3, 4])]
    """
    return _per_rank(arguments.as_ranks("split", arguments.check_tensor("split", x)), as_list=True)


def replicate(x: Tensor, R: int) -> Tensor:  # noqa: N803
    """Give R ranks a copy each of one tensor: *s to (R, *s).

    Backward sums the gradients of the copies.

    Raises:
        ValueError: if R is less than 1.

    >>> replicate(torch.tensor([1, 2]), 3)
    tensor([[1, 2],
            [1, 2],
            [1, 2]])
    """
    arguments.check_tensor("replicate", x)
    arguments.check_world_size("replicate", R)
    return _fresh(x.expand(R, *x.shape))


def _join_along(fn: str, xs: Sequence[Tensor], dim: int) -> Tensor:
    dim = arguments.check_dim(fn, "dim", dim, xs[0])
    arguments.check_same_outside(fn, xs, dim)
    # cat copies a single tensor too, and keeps the memory format of channels-last tensors.
    return torch.cat(tuple(xs), dim).contiguous()


def _reduce(fn: str, xs: Sequence[Tensor], op: Op) -> Tensor:
    op = reductions.check_op(fn, op, xs[0].dtype)
    arguments.check_same_shape(fn, xs)
    reduced = reductions.fold(xs, op)
    # The fold over one rank is that rank's own tensor.
    return _fresh(reduced) if len(xs) == 1 else reduced.contiguous()


def _move(xs: Sequence[Tensor], source_of: dict[int, int], as_list: bool) -> Tensor | list[Tensor]:
    moved = [
        xs[source_of[r]] if r in source_of else reductions.constant(t, 0) for r, t in enumerate(xs)
    ]
    return _per_rank(moved, as_list)


@overload
def _per_rank(parts: Sequence[Tensor], as_list: Literal[True]) -> list[Tensor]: ...
@overload
def _per_rank(parts: Sequence[Tensor], as_list: Literal[False]) -> Tensor: ...
@overload
def _per_rank(parts: Sequence[Tensor], as_list: bool) -> Tensor | list[Tensor]: ...
def _per_rank(parts: Sequence[Tensor], as_list: bool) -> Tensor | list[Tensor]:
    """The parts, which may be views of the input, as a result that differs from rank to rank."""
    if as_list:
        return [_fresh(part) for part in parts]
    return torch.stack(tuple(parts)).contiguous()


def _copies(t: Tensor, x: Stacked, world_size: int) -> Tensor | list[Tensor]:
    """One copy of t a rank, stacked if x is. Backward adds the R gradients up in one sum."""
    copies = t.expand(world_size, *t.shape)
    return _fresh(copies) if isinstance(x, Tensor) else [_fresh(copy) for copy in copies.unbind(0)]


def _fresh(t: Tensor) -> Tensor:
    """A contiguous copy. contiguous() alone would return t itself where it is contiguous."""
    return t.clone(memory_format=torch.contiguous_format)
