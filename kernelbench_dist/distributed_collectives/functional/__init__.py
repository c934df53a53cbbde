"""Differentiable collectives for a program on R ranks: torch.distributed's, with exact adjoints.

Each rank calls them with its own tensor, in one order, on any backend (gloo, nccl, virtual). Names,
ops, arguments and results are those of the stacked collectives, where row r is what rank r holds
here. `group` is a process group, by default all ranks; src, dst and pairs are ranks *in the group*.
Results are contiguous, have x's dtype, and share no memory with the input.

The loss
--------
Backward gives the gradient of one number. Two forms are offered, by name, wherever a result is one
value that all ranks hold (all_reduce, all_gather, broadcast):

- loss="sum", the default: the number is the sum of all ranks' losses. Each rank's copy of the
  result has a gradient of its own, and backward adds them up. The backward of a sum all_reduce is a
  sum all_reduce. If every rank computes the same loss, this is R times the gradient of that loss on
  one device: divide by R, average the gradients, or say loss="same".
- loss="same": every rank computes the same loss from the result, and it counts once. The gradient
  is the same on all ranks, and backward takes it as it is: the backward of a sum all_reduce is the
  identity. Where ranks compute different losses this drops the others' part.

A value that all ranks hold, a weight say, and that each uses in its own way before such a loss goes
through `replicate`, whose backward is the sum that loss="same" leaves out.

A result that is on one rank only (reduce, gather) is zeros or empty on the others.

Backward
--------
Backward communicates too. So every rank must go through it, in the same order as the others: each
result must take part in what `backward` is called on, on every rank, though it be with weight 0. If
a tensor needs a gradient on one rank, the others take part in backward as if theirs did. Double
backward (create_graph=True) works, if all ranks ask for it.

What is exchanged
-----------------
Before data moves, each call exchanges what the ranks hold and ask for, in one small all_gather
(with NCCL it waits for the GPU); backward does not. Thus sizes may differ, and ranks that disagree
all raise the same error. alike=True leaves it out: the caller vouches that all ranks' tensors have
one shape, dtype and kind of device, that all need a gradient or none does, and that all other
arguments agree.

gather, scatter, permute and shift travel as all_to_all_single, which every backend has with uneven
sizes; ops other than sum and avg, sums of bool and int16, and scan as an all_gather that is folded
here. Not for torch.compile and torch.func.

Errors
------
As in the stacked collectives: kinds of arguments, dtypes and devices are TypeErrors; shapes, sizes,
ranks, ops and dims are ValueErrors. What a rank knows alone it raises alone, before it
communicates.

>>> import torch
>>> from kernelbench_dist.distributed_collectives import functional, get_rank, run_spmd
>>> def program():
...     x = torch.tensor([get_rank() + 1.0], requires_grad=True)
...     y = functional.all_reduce(x, "max")
...     (10**get_rank() * y).sum().backward()
...     return y.item(), x.grad.item()
>>> run_spmd(program, 3)
[(3.0, 0.0), (3.0, 0.0), (3.0, 111.0)]
"""

from kernelbench_dist.distributed_collectives.functional._moves import (
    all_gather,
    all_to_all,
    broadcast,
    gather,
    permute,
    replicate,
    scatter,
    shift,
)
from kernelbench_dist.distributed_collectives.functional._sums import (
    all_reduce,
    reduce,
    reduce_scatter,
    scan,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "permute",
    "reduce",
    "reduce_scatter",
    "replicate",
    "scan",
    "scatter",
    "shift",
]
