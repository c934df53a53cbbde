"""The verb that tells which kernel a call of an operator would run, and how fast that may be."""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import Any

import torch

from kernelbench_dist import ops
from kernelbench_dist._peaks import GPUS, Peaks, peaks, peaks_of
from kernelbench_dist.cli._verbs import (
    Outcome,
    add_device,
    add_json,
    new_verb,
    of_value,
    one_or_more,
)

_DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_SIZES = {
    "R": "the ranks",
    "B": "the rows of each rank",
    "H": "the features of each rank",
    "K": "the outputs of the Linear",
}


def add_to(verbs: Any) -> None:
    """Add the verb."""
    verb = new_verb(
        verbs,
        "plan",
        "which kernel ops.all_gather_linear would run at a size, why, and the least time that "
        "the GPU's peaks allow",
        "8 4096 512 4096 --dtype bf16 --gpu H200",
        _plan,
    )
    for name, meaning in _SIZES.items():
        verb.add_argument(name, type=one_or_more, help=meaning)
    verb.add_argument(
        "--dtype",
        type=_dtype,
        default="float32",
        metavar="NAME",
        help=f"{', '.join(_DTYPES)}, or short: {', '.join(_SHORT)}; tf32 is float32 where torch "
        "may round to TF32 (default: %(default)s)",
    )
    verb.add_argument("--no-bias", dest="bias", action="store_false", help="a Linear without bias")
    add_device(verb)
    verb.add_argument(
        "--gpu",
        choices=GPUS,
        help="whose peaks make the bound (default: those of the device)",
    )
    add_json(verb)


def _plan(arguments: argparse.Namespace) -> Outcome:
    ranks, rows, features, outputs = (getattr(arguments, name) for name in _SIZES)
    on_gpu = arguments.gpu or torch.cuda.is_available()
    device = arguments.device or ("cuda" if on_gpu else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device is {device!r}; cpu, cuda or cuda:N is accepted")
    dtype = _DTYPES[arguments.dtype]
    try:
        x = torch.empty(ranks, rows, features, dtype=dtype, device="meta")
        weight = torch.empty(outputs, ranks * features, dtype=dtype, device="meta")
        bias = torch.empty(outputs, dtype=dtype, device="meta") if arguments.bias else None
        plan = _planned(x, weight, bias, device, tf32=arguments.dtype == "tf32")
    except RuntimeError as error:  # sizes beyond all memory, a GPU that is not there
        raise ValueError(str(error).splitlines()[0]) from error
    nbytes = sum(t.nbytes for t in (x, weight, bias) if t is not None)
    nbytes += rows * outputs * dtype.itemsize
    flops = 2 * rows * outputs * ranks * features
    bound = _bound(nbytes, flops, _peaks(arguments, device))
    value = {
        "operator": "all_gather_linear",
        **{name: getattr(arguments, name) for name in _SIZES},
        "dtype": arguments.dtype,
        "bias": arguments.bias,
        "device": device,
        "plan": dataclasses.asdict(plan),
        "bound": bound,
    }
    return of_value(value, _text(value, plan), arguments)


def _planned(x: Any, weight: Any, bias: Any, device: str, *, tf32: bool) -> ops.Plan:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if tf32 else before
    try:
        return ops.plan("all_gather_linear", x, weight, bias, device=device)
    finally:
        matmul.fp32_precision = before


def _peaks(arguments: argparse.Namespace, device: str) -> Peaks | None:
    if arguments.gpu:
        return peaks_of(arguments.gpu, arguments.dtype)
    here = device.startswith("cuda") and torch.cuda.is_available()
    return peaks(device, arguments.dtype) if here else None


def _bound(nbytes: int, flops: int, of: Peaks | None) -> dict[str, Any] | None:
    """The least time in which the operands are read, the result is written, and it is computed."""
    if of is None:
        return None
    memory_us, compute_us = of.least_us(nbytes, flops)
    return {
        "us": max(memory_us, compute_us),
        "by": "compute" if compute_us > memory_us else "memory",
        "memory_us": memory_us,
        "compute_us": compute_us if of.flops_per_s else None,
        "bytes": nbytes,
        "flops": flops,
        "bytes_per_s": of.bytes_per_s,
        "flops_per_s": of.flops_per_s,
        "source": of.source,
    }


def _text(value: dict[str, Any], plan: ops.Plan) -> str:
    sizes = " ".join(f"{name}={value[name]}" for name in _SIZES)
    bias = "" if value["bias"] else ", no bias"
    launches = "torch's own operations" if plan.launches is None else f"launches {plan.launches}"
    rows = {"kernel": f"{plan.kernel} ({launches})"}
    if plan.tiles is not None:
        rows["tiles"] = f"{' x '.join(map(str, plan.tiles))} elements of out, split {plan.split}"
    rows["because"] = plan.reason
    bound = value["bound"]
    if bound is None:
        rows["bound"] = f"not known for {value['device']}: --gpu {GPUS[0]} tells it for that"
    else:
        rows["bound"] = f"{bound['us']:.3g} us, by {bound['by']} ({bound['source']})"
        moved = f"{bound['bytes'] / 1e6:.3g} MB at {bound['bytes_per_s'] / 1e12:.3g} TB/s"
        rows["memory"] = f"{bound['memory_us']:.3g} us: {moved}"
        if bound["compute_us"] is not None:
            work = f"{bound['flops'] / 1e9:.3g} GFLOP at {bound['flops_per_s'] / 1e12:.3g} TFLOP/s"
            rows["compute"] = f"{bound['compute_us']:.3g} us: {work}"
    lines = [f"all_gather_linear {sizes}, {value['dtype']}{bias}, on {value['device']}"]
    return "\n".join(lines + [f"{name:<8} {text}" for name, text in rows.items()])


def _dtype(text: str) -> str:
    name = _SHORT.get(text, text)
    if name not in _DTYPES:
        accepted = ", ".join((*_DTYPES, *_SHORT))
        raise argparse.ArgumentTypeError(f"{text!r}; one of {accepted} is accepted")
    return name
