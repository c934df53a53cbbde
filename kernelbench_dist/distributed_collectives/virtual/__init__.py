"""The torch.distributed backend "virtual": ranks that are threads of one process.

`run_spmd` of `distributed_collectives` starts them. Importing this module registers the backend.
"""

import torch.distributed as dist

from kernelbench_dist.distributed_collectives.virtual._group import create
from kernelbench_dist.distributed_collectives.virtual._schedule import Faults, InjectedError
from kernelbench_dist.distributed_collectives.virtual._torch import NAME

__all__ = ["Faults", "InjectedError"]

dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
