"""What a reduction over ranks gives, in one of two orders.

"rank" folds from rank 0 up, as the stacked collectives do: see _reductions.

"gloo_ring" gives the bits of torch's gloo backend, and folds in the tensors' own type, fp16 and
bf16 too. gloo's ring (gloo/allreduce.cc, gloo/reduce.cc) cuts the flat buffer into R chunks; chunk
c starts at rank c - 1 and goes down the ranks: c - 1, c - 2, ..., 0, R - 1, ..., c. The bytes of a
chunk depend on the number of bytes alone, not on the operator. A complex tensor is a buffer of
real numbers, so a chunk may end between a real and an imaginary part; but an average that gets here
as a complex tensor is a complex division, which may round otherwise.

Which buffer goes around the ring:

| collective | buffer |
| --- | --- |
| all_reduce, reduce | the tensor |
| all_reduce_coalesced | all tensors of the call, joined |
| reduce_scatter_tensor, coalesced too | each input as it is, all R parts of it |
| reduce_scatter of a list | each tensor of the list |

reduce alone cuts a buffer of more than 2 R MiB elsewhere: to_root.

Two things differ from gloo on purpose. A NaN in a minimum or maximum stays in either order; gloo
loses it unless it comes last in the fold. A sum of bools is "or"; gloo adds their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernelbench_dist import _build
from kernelbench_dist.distributed_collectives._reductions import fold

# gloo's largest segment, the unit in which a chunk is sent.
_SEGMENT_BYTES = 1 << 20


def reduce_ranks(xs: Sequence[Tensor], op: str, order: str, *, to_root: bool = False) -> Tensor:
    """The reduction of one tensor a rank, all of one shape and dtype, in "rank" or "gloo_ring".

    to_root: in gloo_ring, as reduce has it, not all_reduce. With one rank the result may be that
    rank's own tensor. Nothing waits for the device.
    """
    if order == "rank":
        return fold(xs, op)
    if xs[0].is_contiguous():
        return _ring(xs, op, to_root)
    # gloo cuts the memory as it lies, and that of a channels_last tensor lies in another order.
    dims = sorted(range(xs[0].dim()), key=xs[0].stride, reverse=True)
    back = sorted(range(len(dims)), key=dims.__getitem__)
    return _ring([t.permute(dims) for t in xs], op, to_root).permute(back)


def fold_into(outputs: Sequence[Tensor], xs: Sequence[Tensor], op: str) -> None:
    """Write the reduction in "rank" order to each output, which may be one of xs.

    On a GPU one kernel reads all ranks and writes all, for what it takes: see
    csrc/cuda/fold_ranks.cu.
    """
    fused = _build.EXTENSION and xs[0].is_cuda
    if not fused or not torch.ops.kernelbench_dist._fold_ranks(xs, outputs, op):
        torch._foreach_copy_(list(outputs), [fold(xs, op)] * len(outputs))


def _ring(xs: Sequence[Tensor], op: str, to_root: bool) -> Tensor:
    x = xs[0]
    if x.is_complex() and op in ("sum", "avg"):
        total = _ring([torch.view_as_real(t) for t in xs], "sum", to_root)
        return _divided(torch.view_as_complex(total), op, len(xs))
    if not (x.is_floating_point() or x.is_complex()):
        return fold(xs, op)  # Integers have the same bits in any order.
    size, count = len(xs), x.numel()
    if size == 1 or count == 0:
        return x
    length = _chunk_length(count, x.element_size(), size, to_root)
    chunks = -(-count // length)
    # steps[j, c] is chunk c of rank (c + j) % R, and the fold goes down in j. The ranks stand there
    # twice, so that c + j needs no modulus. The last chunk may reach into the row below, and there
    # is one, as c + j <= 2R - 2; what it reads there is cut off at the end.
    rows = torch.stack([*xs, *xs]).contiguous()
    steps = rows.as_strided((size, chunks, length), (count, count + length, 1))
    whole = _extreme(steps, op) if op in ("min", "max") else _fold_down(steps, op)
    return _divided(whole.reshape(-1)[:count].view(x.shape), op, size)


def _fold_down(steps: Tensor, op: str) -> Tensor:
    last, *others = reversed(steps.unbind())
    acc = last.clone()
    for step in others:
        acc = acc.mul_(step) if op == "prod" else acc.add_(step)
    return acc


def _divided(total: Tensor, op: str, size: int) -> Tensor:
    if op != "avg":
        return total
    # By a tensor: on a GPU, torch multiplies with the reciprocal of a number.
    return total / torch.full((), size, dtype=total.dtype, device=total.device)


def _extreme(steps: Tensor, op: str) -> Tensor:
    """The minimum or maximum over the first dimension; of two equal ones, the first.

    Those are zeros with two signs. That rule is associative, so that neighbours may be paired,
    which takes far fewer calls than a fold.
    """
    compare = torch.lt if op == "min" else torch.gt
    while len(steps) > 1:
        even = len(steps) // 2 * 2
        first, second = steps[:even:2], steps[1:even:2]
        pairs = torch.where(compare(second, first) | second.isnan(), second, first)
        steps = torch.cat([pairs, steps[even:]]) if even < len(steps) else pairs
    return steps[0]


def _chunk_length(count: int, item: int, size: int, to_root: bool) -> int:
    """The elements of a chunk, of which the last ones may be shorter or empty."""
    total = count * item
    least = 2 * size  # segments: one is sent while another is summed
    if to_root:
        segment = _round_up(min(-(-total // least), _SEGMENT_BYTES), item)
        segments = _round_up(max(-(-total // segment), least), size)
    else:
        segments = _round_up(max(-(-total // _SEGMENT_BYTES), least), size)
        segment = _round_up(-(-total // segments), item)
    return segments // size * (segment // item)


def _round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
