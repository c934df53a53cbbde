"""A failure as a program that needs torch and the two files, and nothing of the judge."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from kernelbench_dist import problems
from kernelbench_dist.harness import _draws, _memory, _reference
from kernelbench_dist.harness._fuzz_cases import FuzzCase
from kernelbench_dist.harness._problem import derived
from kernelbench_dist.harness._session import Session

_ORIGINAL = re.compile(r"popcorn_pri|\bkernelbench\.")
_HEAD = """\
# {title}
#
# This program shows both answers. It runs the submission as it is, with all your rights.{launch}

import importlib.util
import inspect
import os
import random
{numpy}
import torch
from torch.utils import _pytree as tree{loader}

PROBLEM = {problem!r}
SUBMISSION = {submission!r}
SIZES = {sizes!r}
SEED, INPUT_SEEDS = {seed!r}, {input_seeds!r}  # of the parameters; of the inputs on each rank
SIZES_SEED = {sizes_seed!r}
VALUES, LAYOUT = {values!r}, {layout!r}
DEVICE, DTYPE = torch.device({device!r}), {dtype}
RANK = int(os.environ.get("RANK", 0))
"""

_BODY = '''\
def load(path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seeded(seed):
    torch.manual_seed(seed)
    random.seed(seed){seed_numpy}


def cast(t, dtype):
    return t if dtype is None or not t.is_floating_point() else t.to(dtype)


def copies(value, change):
    return tree.tree_map_only(torch.Tensor, change, value)


def answers(module, inputs):
    """Outputs, and gradients of inputs and parameters if they are asked for, by name."""
    if not BACKWARD:
        with torch.no_grad():
            outputs = tree.tree_leaves(module(*inputs))
        return {{f"output {{i}}": t for i, t in enumerate(outputs)}}
    leaves = copies(inputs, lambda t: t.detach().requires_grad_(t.is_floating_point()))
    outputs = tree.tree_leaves(module(*leaves))
    wanted = {{
        f"grad of input {{i}}": t
        for i, t in enumerate(tree.tree_leaves(leaves))
        if isinstance(t, torch.Tensor) and t.requires_grad
    }}
    wanted |= {{f"grad of {{n}}": p for n, p in module.named_parameters() if p.requires_grad}}
    rounded = [t for t in outputs if t.is_floating_point()]
    generator = torch.Generator().manual_seed(INPUT_SEEDS[RANK] ^ 0x5EED)
    cotangents = [torch.randn(t.shape, generator=generator).to(t.device, t.dtype) for t in rounded]
    grads = torch.autograd.grad(rounded, list(wanted.values()), cotangents, allow_unused=True)
    found = {{f"output {{i}}": t.detach() for i, t in enumerate(outputs)}}
    for (name, leaf), grad in zip(wanted.items(), grads):
        found[name] = torch.zeros_like(leaf) if grad is None else grad
    return found


{load}, load(SUBMISSION)
if len(INPUT_SEEDS) > 1:
    torch.distributed.init_process_group("gloo")
vars(problem).update(SIZES)
arguments = problem.get_init_inputs()
seeded(SEED)
model = problem.Model(*arguments).to(DEVICE, DTYPE)
generator = torch.Generator().manual_seed(SEED)
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(stir(parameter, generator))
exact = problem.Model(*arguments).to(DEVICE, torch.float64)
exact.load_state_dict(model.state_dict())
try:
    inspect.signature(submission.ModelNew).bind(*arguments)
except TypeError:
    arguments = []  # ModelNew holds its sizes itself
candidate = submission.ModelNew(*arguments).to(DEVICE, DTYPE)
own = candidate.state_dict(keep_vars=True)
with torch.no_grad():
    for name, value in model.state_dict().items():
        if name in own:
            own[name].copy_(value)

options = {{
    "generator": torch.Generator().manual_seed(INPUT_SEEDS[RANK]),
    "jitter": False,
    "rank": RANK,
    "world_size": len(INPUT_SEEDS),
    "sizes_generator": torch.Generator().manual_seed(SIZES_SEED),
}}
takes = inspect.signature(problem.get_inputs).parameters{alike}
seeded(INPUT_SEEDS[RANK])
inputs = problem.get_inputs(**{{k: v for k, v in options.items() if k in takes}})
generator = torch.Generator().manual_seed(INPUT_SEEDS[RANK])
inputs = copies(list(inputs), lambda t: fill(cast(t.detach(), DTYPE), VALUES, generator))
expected = answers(exact, copies(inputs, lambda t: cast(t.to(DEVICE), torch.float64)))
for name, right in expected.items():
    print(f"{{name}}: the reference in float64, {{tuple(right.shape)}}\\n{{right}}", flush=True)
torch.set_deterministic_debug_mode("warn")  # uninitialised memory holds NaN
got = answers(candidate, copies(inputs, lambda t: lay_out(t, DEVICE, LAYOUT)[1]))
for name, mine in got.items():
    print(f"{{name}}: the submission, {{tuple(mine.shape)}}\\n{{mine}}")
    right = expected.get(name)
    if right is not None and mine.shape == right.shape and right.numel():
        mine = mine.to(torch.complex128 if right.is_complex() else torch.float64)
        same = (mine == right) | (mine.isnan() & right.isnan())
        worst = int(torch.where(same, 0, (mine - right).abs().nan_to_num(1e300)).argmax())
        print(f"worst at flat index {{worst}}: {{mine.flatten()[worst].item()}}, ", end="")
        print(f"expected {{right.flatten()[worst].item()}}")
'''

_ALIKE = """
problem.popcorn_pri = AlikeOnAllRanks(problem.popcorn_pri, SIZES_SEED)"""


def snippet(title: str, case: FuzzCase, session: Session, submission: Path) -> str:
    """A program that runs a case and prints the reference's answers and the submission's."""
    ranks = session.info.world_size
    text = session.info.path.read_text(encoding="utf-8", errors="replace")
    uses_numpy = "numpy" in text
    seed_numpy = "\n    numpy.random.seed(seed % 2**32)" if uses_numpy else ""
    # Files of the original system run with names that the package's loader gives them.
    is_original = _ORIGINAL.search(text) is not None
    # And so does what a file offers in its form for ranks.
    by_loader = is_original or problems.ranks_in(session.name)
    load = "problems.load(PROBLEM).module" if by_loader else "load(PROBLEM)"
    guards = f"{_memory.LEAST_GUARD_BYTES}, {_memory.MOST_GUARD_BYTES}"
    alike = is_original and ranks > 1
    launch = f"\n# Its {ranks} ranks: torchrun --nproc-per-node {ranks} FILE" if ranks > 1 else ""
    launch += (
        "\n# or, on virtual ranks, kernelbench-dist run in place of torchrun." if launch else ""
    )
    dtype = session.options.dtype
    parts = [
        _HEAD.format(
            title=re.sub(r"[^\x20-\x7e]", "?", title),
            launch=launch,
            loader="\n\nfrom kernelbench_dist import problems" if by_loader else "",
            numpy="\nimport numpy" if uses_numpy else "",
            problem=session.address,
            submission=str(submission),
            sizes=case.sizes,
            seed=case.seed,
            input_seeds=[derived(case.seed, f"rank {r}") for r in range(ranks)],
            sizes_seed=derived(case.seed, "sizes"),
            values=case.values,
            layout=case.layout,
            device=session.options.device,
            dtype=f"torch.{dtype}" if dtype else None,
        )
        + f"BACKWARD = {session.options.backward}\n"
        + f"POISON = {_memory.POISON}\n"
        + f"LEAST_GUARD_BYTES, MOST_GUARD_BYTES = {guards}\n",
        inspect.getsource(_draws.fill),
        inspect.getsource(_draws.stir),
        inspect.getsource(_memory.lay_out),
        "from typing import Any\n\n\n" + inspect.getsource(_reference.AlikeOnAllRanks)
        if alike
        else "",
        _BODY.format(
            load=f"problem, submission = {load}",
            seed_numpy=seed_numpy,
            alike=_ALIKE if alike else "",
        ),
    ]
    return "\n\n".join(part.strip("\n") + "\n" for part in parts if part)
