"""The table of framework programs: each runs on any backend of torch.distributed.

A program takes a device and returns the rank's weights, losses or outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import spmd_programs_compiled as compiled
import spmd_programs_data as data
import spmd_programs_messages as messages
import spmd_programs_sharded as sharded
import torch
from torch import Tensor

Result = dict[str, Tensor] | list[Tensor]


@dataclass(frozen=True)
class Program:
    run: Callable[..., Result]
    # The message, as a pattern, with which torch refuses it on the CPU with gloo.
    refused: str = ""
    # If so, what has the same results and is not refused; None: no backend runs it on the CPU.
    instead: Callable[..., Result] | None = None
    tolerance: float = 1e-5  # where sums go in another order
    random: bool = False  # draws numbers, which are others on another kind of device

    @property
    def name(self) -> str:
        return self.run.__name__


# torch asks how it was built, not where the model is.
NO_NCCL = "" if torch.version.cuda else "BF16 all reduce communication hook required CUDA"

PROGRAMS = (
    Program(data.ddp),
    Program(data.ddp_small_buckets),
    Program(data.ddp_broadcasts_buffers),
    Program(data.ddp_find_unused),
    Program(data.ddp_static_graph),
    Program(data.ddp_join),
    Program(data.ddp_bf16_hook, refused=NO_NCCL, tolerance=1e-3),  # gloo adds in bf16
    Program(data.ddp_own_bf16_hook, tolerance=1e-3),  # gloo adds in bf16
    Program(data.ddp_python_hook),
    Program(data.ddp_power_sgd),
    Program(data.ddp_no_sync),
    Program(data.ddp_sampler),
    Program(data.ddp_dropout, random=True),
    Program(data.zero_1),
    Program(data.sync_batch_norm, refused="SyncBatchNorm layers only work with GPU modules"),
    Program(sharded.fsdp1),
    Program(sharded.fsdp2),
    Program(sharded.fsdp2_uneven),
    Program(sharded.fsdp2_clip),
    Program(sharded.fsdp2_accumulate),
    Program(sharded.hsdp),
    Program(sharded.fsdp2_tensor_parallel),
    Program(sharded.hsdp_tensor_parallel),
    Program(sharded.tensor_parallel),
    Program(sharded.sequence_parallel),
    Program(sharded.pipeline_gpipe),
    Program(sharded.pipeline_1f1b),
    Program(sharded.pipeline_1f1b_inferred),
    Program(messages.dtensor_redistribute),
    Program(messages.dtensor_mesh),
    Program(messages.dtensor_random, refused="AssertionError", random=True),
    Program(messages.dtensor_random_in_place, random=True),
    Program(messages.by_hand),
    Program(messages.functional),
    Program(compiled.compile_eager),
    Program(compiled.compile_aot_eager),
    Program(compiled.compile_inductor),
    Program(compiled.compile_backward),
    Program(compiled.compile_rank),
    Program(compiled.compile_uneven),
    Program(messages.fused_fallbacks),
    Program(messages.objects),
    Program(messages.subgroups),
    Program(
        messages.coalescing,
        refused="does not implement startCoalescing",
        instead=messages.separately,
    ),
    Program(messages.separately),
    Program(messages.ring),
    Program(messages.point_to_point),
    Program(messages.two_groups),
    Program(messages.two_groups_posted_crosswise),
    Program(messages.futures),
    Program(messages.polling),
    Program(messages.monitored_barrier),
    Program(messages.uneven_all_to_all),
    Program(
        messages.uneven_all_gather,
        refused="invalid tensor size",
        instead=messages.padded_all_gather,
    ),
    Program(messages.padded_all_gather),
    Program(messages.many_calls),
)
