"""The process group: torch.distributed's calls, checked, and handed on to the meetings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernelbench_dist.distributed_collectives._current import current_rank
from kernelbench_dist.distributed_collectives._reductions import check_op
from kernelbench_dist.distributed_collectives.virtual import _checks, _memory
from kernelbench_dist.distributed_collectives.virtual._baton import Rank
from kernelbench_dist.distributed_collectives.virtual._calls import Call, Meetings
from kernelbench_dist.distributed_collectives.virtual._member import Member
from kernelbench_dist.distributed_collectives.virtual._work import VirtualWork

_OPS = {
    getattr(dist.ReduceOp, name.upper()): "prod" if name == "product" else name
    for name in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
}


_ProcessGroup: Any = dist.ProcessGroup  # its stubs know fewer ways to call it than torch uses


class VirtualGroup(_ProcessGroup):
    """One rank's view of a group of virtual ranks."""

    # As a Backend, which torch asks for in places.
    supports_coalescing = False
    supports_splitting = False
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(self, rank: Rank, place: int, meetings: Meetings) -> None:
        super().__init__(place, len(meetings.ranks))
        self.me = rank
        self.place = place
        self.meetings = meetings
        self.member = Member(rank, place, meetings)
        self.own_name = self.description = "undefined"  # until torch says

    def size(self) -> int:
        return len(self.meetings.ranks)

    def rank(self) -> int:
        return self.place

    def _set_group_name(self, name: str) -> None:
        self.own_name = name

    @property
    def group_name(self) -> str:
        return self.own_name

    def _set_group_desc(self, description: str) -> None:
        self.description = description

    @property
    def group_desc(self) -> str:
        return self.description

    def name(self) -> str:
        return "virtual"

    getBackendName = _get_backend_name = name  # noqa: N815 (torch's name)

    def __repr__(self) -> str:
        return f"<virtual group of ranks {self.meetings.ranks}, rank {self.place}>"

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = dict.fromkeys(("cpu", self.me.run.device.type))
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: Any) -> Any:
        return self

    def shutdown(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def set_timeout(self, timeout: Any) -> None:
        pass  # what cannot end is found without one

    _set_default_timeout = set_timeout

    # Collectives

    def broadcast(self, tensors: Any, opts: Any = None, *rest: Any) -> VirtualWork:
        tensors, root = _list(tensors), _root(opts)
        _checks.dense(self, "broadcast", tensors)
        agree = (*_alike(tensors), ("source", self._global(root)))
        return self.member.collective(Call("broadcast", tensors, tensors, agree=agree, root=root))

    def allreduce(self, tensors: Any, opts: Any = None, *rest: Any) -> VirtualWork:
        tensors = _list(tensors)
        op, factor = self._op("all_reduce", opts, tensors)
        _checks.dense(self, "all_reduce", tensors)
        agree = (*_alike(tensors), ("op", op))
        return self.member.collective(
            Call("all_reduce", tensors, tensors, agree=agree, op=op, sizes=factor)
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None, *rest: Any) -> VirtualWork:
        tensors, root = _list(tensors), _root(opts)
        op, factor = self._op("reduce", opts, tensors)
        _checks.dense(self, "reduce", tensors)
        agree = (*_alike(tensors), ("op", op), ("destination", self._global(root)))
        outputs = tensors if root == self.place else ()
        return self.member.collective(
            Call("reduce", tensors, outputs, agree=agree, op=op, root=root, sizes=factor)
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        inputs = _list(inputs)
        rows = [outputs] if outputs and isinstance(outputs[0], Tensor) else list(outputs)
        for row in rows:
            _checks.count(self, "all_gather", "output", row)
        flat = [t for row in rows for t in row]
        _checks.contiguous(self, "all_gather", [*inputs, *flat])
        # Their shapes may differ: each is compared with what the rank gives.
        agree = (("dtype", [t.dtype for t in inputs]), ("device", _device(inputs)))
        return self.member.collective(Call("all_gather", inputs, flat, agree=agree))

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        # Its lists go by rank, each of one output for every input.
        inputs = _list(inputs)
        _checks.count(self, "all_gather_coalesced", "lists of output", outputs)
        for row in outputs:
            if len(row) != len(inputs):
                raise ValueError(
                    f"all_gather_coalesced: a list of {len(row)} outputs for {len(inputs)} inputs; "
                    "as many are accepted"
                )
        flat = [t for row in outputs for t in row]
        _checks.contiguous(self, "all_gather_coalesced", [*inputs, *flat])
        agree = (("dtype", [t.dtype for t in inputs]), ("device", _device(inputs)))
        return self.member.collective(Call("all_gather_coalesced", inputs, flat, agree=agree))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> VirtualWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> VirtualWork:
        _checks.contiguous(self, "all_gather_into_tensor", [*inputs, *outputs])
        for output, tensor in zip(outputs, inputs, strict=True):
            _checks.joined(self, "all_gather_into_tensor", tensor, output, "input", "output")
        own = _memory.own_parts(self, outputs)
        _memory.check_in_place(self, "all_gather_into_tensor", inputs, outputs, own)
        return self.member.collective(
            Call("all_gather_single", inputs, outputs, agree=tuple(_alike(inputs)))
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> VirtualWork:
        root, row = _root(opts), _row(outputs)
        if root == self.place:
            _checks.count(self, "gather", "output", row)
        elif row:
            raise ValueError(f"gather: rank {self.me.index} is no destination, and gives outputs")
        _checks.contiguous(self, "gather", [*inputs, *row])
        agree = (*_alike(inputs), ("destination", self._global(root)))
        return self.member.collective(Call("gather", inputs, row, agree=agree, root=root))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> VirtualWork:
        root, row = _root(opts), _row(inputs)
        if root == self.place:
            _checks.count(self, "scatter", "input", row)
        elif row:
            raise ValueError(f"scatter: rank {self.me.index} is no source, and gives inputs")
        outputs = _list(outputs)
        _checks.contiguous(self, "scatter", [*outputs, *row])
        own = _memory.spans(row[self.place : self.place + 1])
        _memory.check_in_place(self, "scatter", row, outputs, own)
        agree = (*_alike(outputs), ("source", self._global(root)))
        return self.member.collective(Call("scatter", row, outputs, agree=agree, root=root))

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any
    ) -> VirtualWork:
        outputs = _list(outputs)
        rows = [inputs] if inputs and isinstance(inputs[0], Tensor) else list(inputs)
        for row in rows:
            _checks.count(self, "reduce_scatter", "input", row)
        flat = [t for row in rows for t in row]
        op, factor = self._op("reduce_scatter", opts, flat)
        _checks.contiguous(self, "reduce_scatter", [*outputs, *flat])
        for output, row in zip(outputs, rows, strict=True):
            _checks.same_shape(self, "reduce_scatter", output, row[self.place])
        own = _memory.spans([row[self.place] for row in rows])
        _memory.check_in_place(self, "reduce_scatter", flat, outputs, own)
        agree = (*_alike(flat), ("op", op))
        return self.member.collective(
            Call("reduce_scatter", flat, outputs, agree=agree, op=op, sizes=factor)
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> VirtualWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> VirtualWork:
        op, factor = self._op("reduce_scatter_tensor", opts, inputs)
        _checks.contiguous(self, "reduce_scatter_tensor", [*inputs, *outputs])
        for output, tensor in zip(outputs, inputs, strict=True):
            _checks.joined(self, "reduce_scatter_tensor", output, tensor, "output", "input")
        own = _memory.own_parts(self, inputs)
        _memory.check_in_place(self, "reduce_scatter_tensor", inputs, outputs, own)
        agree = (*_alike(inputs), ("op", op))
        return self.member.collective(
            Call("reduce_scatter_single", inputs, outputs, agree=agree, op=op, sizes=factor)
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> VirtualWork:
        _checks.contiguous(self, "all_to_all_single", [input, output])
        _memory.check_in_place(self, "all_to_all_single", [input], [output])
        sizes = (
            _checks.splits(self, "input", input, input_splits),
            _checks.splits(self, "output", output, output_splits),
        )
        agree = (
            ("shape of a row", input.shape[1:]),
            ("dtype", input.dtype),
            ("device", input.device.type),
        )
        _checks.same_rows(self, output, input)
        return self.member.collective(
            Call("all_to_all_single", [input], [output], agree=agree, sizes=sizes)
        )

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> VirtualWork:
        _checks.count(self, "all_to_all", "output", outputs)
        _checks.count(self, "all_to_all", "input", inputs)
        _checks.contiguous(self, "all_to_all", [*inputs, *outputs])
        _memory.check_in_place(self, "all_to_all", inputs, outputs)
        agree = (("dtype", inputs[0].dtype), ("device", _device(inputs)))
        return self.member.collective(Call("all_to_all", inputs, outputs, agree=agree))

    def barrier(self, opts: Any = None, *rest: Any) -> VirtualWork:
        return self.member.collective(Call("barrier"))

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self.member.collective(Call("monitored_barrier")).wait()

    # Between two ranks

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> VirtualWork:  # noqa: N803
        _checks.contiguous(self, "send", tensors)
        name = f"send to rank {self._global(dstRank)}"
        call = Call(name, tensors, agree=tuple(_alike(tensors)), root=self.place)
        call.tag = tag
        self.member.begin(call)
        receive = self.meetings.meet_receive(self.place, dstRank, tag, call)
        if receive is not None:
            self.member.move(call, receive)
        return self.member.work(call)

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> VirtualWork:  # noqa: N803
        return self._receive(tensors, srcRank, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> VirtualWork:
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: list[Tensor], source: int | None, tag: int) -> VirtualWork:
        _checks.contiguous(self, "recv", tensors)
        name = f"recv from {'any rank' if source is None else self._name_of(source)}"
        call = Call(name, outputs=tensors, agree=tuple(_alike(tensors)), root=source)
        call.tag = tag
        self.member.begin(call)
        send = self.meetings.meet_send(source, self.place, tag, call)
        if send is not None:
            self.member.move(send, call)
        return self.member.work(call)

    # Coalescing regions

    def _start_coalescing(self, device: Any = None) -> None:
        self.member.region = []

    def _end_coalescing(self, device: Any = None) -> VirtualWork:
        calls, self.member.region = self.member.region or [], None
        return VirtualWork(self.me, calls)

    def _op(self, fn: str, opts: Any, tensors: Sequence[Tensor]) -> tuple[str, Any]:
        asked: Any = getattr(opts, "reduceOp", opts if opts is not None else dist.ReduceOp.SUM)
        name = _OPS.get(getattr(asked, "op", asked))
        factor = None
        if name == "premul_sum":
            factor = asked.factor if hasattr(asked, "factor") else asked.__getstate__()[1]
        elif name is None:
            raise ValueError(f"{fn}: op {asked!r} is not one of {', '.join(_OPS.values())}")
        for tensor in tensors[:1]:
            check_op(fn, "sum" if name == "premul_sum" else name, tensor.dtype)
            if factor is not None and not (tensor.is_floating_point() or tensor.is_complex()):
                # The product with a float would be one, and lose large integers' last bits.
                raise TypeError(f"{fn}: op 'premul_sum' has {tensor.dtype}; it takes floats")
        return name, factor

    def _global(self, place: int) -> int:
        if not 0 <= place < self.size():
            raise ValueError(f"rank {place} is not in this group of {self.size()} ranks")
        return self.meetings.ranks[place]

    def _name_of(self, place: int) -> str:
        return f"rank {self._global(place)}"


def create(options: Any, _: Any = None) -> VirtualGroup:
    """What torch.distributed calls for each rank to make a group."""
    rank = current_rank()
    if rank is None:
        raise RuntimeError(
            "the backend 'virtual' has ranks only within run_spmd: call it with the function that "
            "each rank is to run"
        )
    ranks = tuple(options.global_ranks_in_group) or tuple(range(rank.run.size))
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"new_group: ranks {list(ranks)} name one twice; each once is accepted")
    return VirtualGroup(
        rank, options.group_rank, rank.run.meetings_of(rank, options.group_id, ranks)
    )


def _list(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _row(lists: Any) -> list[Tensor]:
    return list(lists[0]) if lists and not isinstance(lists[0], Tensor) else list(lists)


def _root(opts: Any) -> int:
    return int(getattr(opts, "rootRank", opts if opts is not None else 0))


def _device(tensors: Sequence[Tensor]) -> str:
    return tensors[0].device.type if tensors else ""


def _alike(tensors: Sequence[Tensor]) -> list[tuple[str, Any]]:
    if len(tensors) == 1:
        t = tensors[0]
        alike = [("shape", t.shape), ("dtype", t.dtype), ("device", t.device.type)]
        if not t.is_contiguous():
            alike.append(("strides", t.stride()))
        return alike
    return [
        ("shapes", [tuple(t.shape) for t in tensors]),
        ("dtypes", [t.dtype for t in tensors]),
        ("device", _device(tensors)),
    ]
