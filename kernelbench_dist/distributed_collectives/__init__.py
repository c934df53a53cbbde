"""Ranks on one device: programs, collectives on stacked tensors, rank helpers, sizes that vary.

`run_spmd` runs one function on R ranks, as a torch.distributed program. The stacked collectives
need no ranks that run:

Row r of a stacked tensor x (R, ...) is what rank r holds. One rule decides every result's shape:
what is the same on every rank comes back once, without the rank dimension; what differs comes back
stacked. A list of R tensors is taken too; only so can ranks differ in size.

Each collective is differentiable. Backward computes the exact gradient of one loss of everything
that was computed, as if the ranks' losses were added up: a result that comes back once gets the sum
of the gradients of its uses, and if every rank computes the same loss from it, that is R times the
gradient of one of them. The docstring of each function says what its backward does; that of
`distributed_collectives.stacked` has the whole contract, the errors too.
"""

import torch.distributed as _dist

from kernelbench_dist.distributed_collectives._errors import (
    DeadlockError,
    MismatchError,
    RankError,
)
from kernelbench_dist.distributed_collectives.device import (
    default_device,
    get_rank,
    get_world_size,
    is_distributed_run,
    maybe_init_process_group,
)
from kernelbench_dist.distributed_collectives.jitter import (
    jitter_int,
    sample_input_mode,
    trial_dim,
    trial_int,
)
from kernelbench_dist.distributed_collectives.stacked import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    join,
    permute,
    reduce,
    reduce_scatter,
    replicate,
    scan,
    scatter,
    shift,
    split,
)

if _dist.is_available():  # torch may be built without it
    from kernelbench_dist.distributed_collectives.communication_log import (
        CommunicationEntry,
        CommunicationLog,
    )
    from kernelbench_dist.distributed_collectives.spmd import SpmdOptions, run_spmd
    from kernelbench_dist.distributed_collectives.virtual import Faults, InjectedError

__all__ = [
    "CommunicationEntry",
    "CommunicationLog",
    "DeadlockError",
    "Faults",
    "InjectedError",
    "MismatchError",
    "RankError",
    "SpmdOptions",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "default_device",
    "gather",
    "get_rank",
    "get_world_size",
    "is_distributed_run",
    "jitter_int",
    "join",
    "maybe_init_process_group",
    "permute",
    "reduce",
    "reduce_scatter",
    "replicate",
    "run_spmd",
    "sample_input_mode",
    "scan",
    "scatter",
    "shift",
    "split",
    "trial_dim",
    "trial_int",
]
