"""Ranks on one device: collectives on stacked tensors, rank helpers, and sizes that vary."""

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

__all__ = [
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
    "sample_input_mode",
    "scan",
    "scatter",
    "shift",
    "split",
    "trial_dim",
    "trial_int",
]
