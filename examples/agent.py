"""A model at work: prompt, a build that fails, the fix, wrong values, the fix, variants, submit.

    python examples/agent.py           # calls the tools in this process
    python examples/agent.py --mcp     # the same through an MCP server

The "model" is a script, `Scripted`. Put a real one in its place: a class with the method
`next(answers)`, which gets what the tools answered so far and returns the next step, or None.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from kernelbench_dist.harness import tools

PROBLEM = "level2/47"

Answer = dict[str, Any]
"""{"result": ..., "report": ...}, or {"error": ...}"""


class Step(NamedTuple):
    """A call that a model asks for; `text` and `tokens` are what it said, for the trail."""

    tool: str
    arguments: dict[str, Any]
    text: str | None = None
    tokens: dict[str, int] | None = None


class Model(Protocol):
    """What drives the tools."""

    def next(self, answers: Sequence[Answer]) -> Step | None: ...


class Scripted:
    """A model that always says the same, but for its choice of the faster variant."""

    def __init__(self, rounds: int = 20) -> None:
        cuda = torch.cuda.is_available()
        self.rounds = rounds
        self.device = "cuda" if cuda else "cpu"
        template, plain, faster = (CUDA, *CUDA_BODIES) if cuda else (CPP, *CPP_BODIES)
        self.plain = template.replace("BODY", plain)
        self.variant = template.replace("BODY", faster)
        # Sixteen columns at a time, and the rest forgotten: K = 56 leaves eight of them.
        self.tail = self.plain.replace("END", "K / 16 * 16")
        self.plain, self.variant = (
            s.replace("END", "K").replace("new_zeros", "new_empty")
            for s in (self.plain, self.variant)
        )
        self.broken = self.tail.replace("x[", "xs[", 1)

    def next(self, answers: Sequence[Answer]) -> Step | None:
        """The next step of the course."""
        if answers and "error" in answers[-1]:
            return None
        measured = {"rounds": max(8, self.rounds // 2), "trials": 2}
        steps = (
            lambda: Step("prompt", {"problem": PROBLEM}, "What is the task?"),
            lambda: self._step("compile_kernel", self.broken, "Columns by sixteen."),
            lambda: self._step("compile_kernel", self.tail, "The array is called x."),
            lambda: self._step("run_correctness", self.tail, "It builds. Is it right?"),
            lambda: self._step("run_correctness", self.plain, "Columns after the last sixteen."),
            lambda: self._step("static_check", self.plain, "Right. Would it be rejected?"),
            lambda: self._step("submit_kernel", self.plain, "How fast is it?", **measured),
            lambda: self._step("submit_kernel", self.variant, "Several sums at once.", **measured),
            lambda: self._step(
                "submit_kernel", self._faster(answers), "The faster one.", rounds=self.rounds
            ),
        )
        return steps[len(answers)]() if len(answers) < len(steps) else None

    def _step(self, tool: str, source: str, text: str, **options: Any) -> Step:
        arguments = {"source": source, "problem": PROBLEM, **options}
        if tool != "static_check":
            arguments["device"] = self.device
        return Step(tool, arguments, text)

    def _faster(self, answers: Sequence[Answer]) -> str:
        plain, variant = (_ratio(answer["result"]) for answer in answers[-2:])
        return self.variant if variant < plain else self.plain


def _ratio(result: dict[str, Any]) -> float:
    """The submission's time over the reference's; infinite where it was not timed."""
    timing = result["timing"]
    return float(timing["ratios"][0]["ratio"]) if timing else float("inf")


def run(model: Model, trail: Path) -> list[Answer]:
    """Let a model call the tools in this process until it is done."""
    answers: list[Answer] = []
    while (step := model.next(answers)) is not None:
        answer = tools.call(
            step.tool, step.arguments, trail=trail, model=step.text, tokens=step.tokens
        )
        show(step, answer)
        answers.append(answer)
    return answers


async def run_over_mcp(model: Model, trail: Path) -> list[Answer]:
    """The same through an MCP server, a process of its own."""
    from mcp import Client, StdioServerParameters, stdio_client

    from kernelbench_dist.harness.mcp import MODEL_KEY, TOKENS_KEY

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "kernelbench_dist", "mcp", "--trail", str(trail)],
        env=dict(os.environ),
    )
    answers: list[Answer] = []
    async with Client(stdio_client(server)) as client:
        while (step := model.next(answers)) is not None:
            meta: Any = {MODEL_KEY: step.text, TOKENS_KEY: step.tokens}
            reply = await client.call_tool(step.tool, step.arguments, meta=meta)
            answer: Answer = reply.structured_content
            show(step, answer)
            answers.append(answer)
    return answers


def show(step: Step, answer: Answer) -> None:
    """What the model said, and the head of the tool's report."""
    lines = answer.get("report", f"error: {answer.get('error')}").splitlines()
    print(f"> {step.text}\n  {step.tool}")
    print("\n".join(f"    {line}" for line in lines[:4]), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the course; 0 if the last submission passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mcp", action="store_true", help="call the tools through an MCP server")
    parser.add_argument("--trail", type=Path, help="where the trail goes (default: a new file)")
    parser.add_argument("--rounds", type=int, default=20, help="of the last timing, 8 or more")
    options = parser.parse_args(argv)
    path = options.trail or Path(tempfile.mkdtemp()) / "trail.jsonl"
    model = Scripted(options.rounds)
    answers = asyncio.run(run_over_mcp(model, path)) if options.mcp else run(model, path)
    print(f"\n{tools.Trail(path)}\n\nThe trail: {path}")
    return 0 if answers[-1].get("result", {}).get("verdict") == "PASSED" else 1


# What the script knows. x is (R, B, H), weight (K, R * H), bias (K,), y (B, K).

_MODULE = """

class ModelNew(nn.Module):
    def __init__(self, ranks, features, outputs):
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x):
        return extension.gather_linear(
            x.contiguous(), self.proj.weight.contiguous(), self.proj.bias.contiguous()
        )
"""

CPP = (
    '''\
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

KIND = "cpp"

# These headers alone: a build takes a quarter of the time.
CPP = r"""
#include <ATen/core/Tensor.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

at::Tensor gather_linear(at::Tensor x_, at::Tensor weight, at::Tensor bias) {
  const int64_t R = x_.size(0), B = x_.size(1), H = x_.size(2), K = weight.size(0);
  at::Tensor y_ = x_.new_zeros({B, K});
  const float* x = x_.const_data_ptr<float>();
  const float* w = weight.const_data_ptr<float>();
  const float* bias_data = bias.const_data_ptr<float>();
  float* y = y_.mutable_data_ptr<float>();
  for (int64_t i = 0; i < B; ++i) {
    for (int64_t k = 0; k < END; ++k) {
      float sum = bias_data[k];
      BODY
      y[i * K + k] = sum;
    }
  }
  return y_;
}
"""
extension = load_inline(
    name="gather_linear",
    cpp_sources=CPP,
    functions=["gather_linear"],
    extra_cflags=["-O3"],
    no_implicit_headers=True,
)
'''
    + _MODULE
)

CPP_BODIES = (
    """\
for (int64_t r = 0; r < R; ++r)
        for (int64_t h = 0; h < H; ++h)
          sum += x[(r * B + i) * H + h] * w[k * R * H + r * H + h];""",
    """\
float part[8] = {};
      for (int64_t r = 0; r < R; ++r) {
        const float* row = x + (r * B + i) * H;
        const float* column = w + k * R * H + r * H;
        int64_t h = 0;
        for (; h + 8 <= H; h += 8)
          for (int j = 0; j < 8; ++j) part[j] += row[h + j] * column[h + j];
        for (; h < H; ++h) sum += row[h] * column[h];
      }
      for (float p : part) sum += p;""",
)

CUDA = (
    '''\
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

KIND = "cuda"

CPP = r"""
#include <ATen/core/Tensor.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

at::Tensor gather_linear(at::Tensor x, at::Tensor weight, at::Tensor bias);
"""
CUDA = r"""
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

// A warp for each element of y.
__global__ void gather_linear_kernel(const float* x, const float* w, const float* bias, float* y,
                                     int R, int B, int H, int K) {
  const int lane = threadIdx.x % 32;
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (warp >= B * K) return;
  const int i = warp / K, k = warp % K;
  if (k >= END) return;
  float sum = 0;
  BODY
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (lane == 0) y[i * K + k] = sum + bias[k];
}

at::Tensor gather_linear(at::Tensor x, at::Tensor weight, at::Tensor bias) {
  const int R = x.size(0), B = x.size(1), H = x.size(2), K = weight.size(0);
  at::Tensor y = x.new_zeros({B, K});
  const int blocks = (B * K + 3) / 4;
  if (blocks == 0) return y;
  gather_linear_kernel<<<blocks, 128, 0, c10::cuda::getCurrentCUDAStream()>>>(
      x.const_data_ptr<float>(), weight.const_data_ptr<float>(), bias.const_data_ptr<float>(),
      y.mutable_data_ptr<float>(), R, B, H, K);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
extension = load_inline(
    name="gather_linear",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["gather_linear"],
    no_implicit_headers=True,
)
'''
    + _MODULE
)

CUDA_BODIES = (
    """\
if (lane == 0)
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < H; ++h) sum += x[(r * B + i) * H + h] * w[k * R * H + r * H + h];""",
    """\
for (int r = 0; r < R; ++r)
    for (int h = lane; h < H; h += 32)
      sum += x[(r * B + i) * H + h] * w[k * R * H + r * H + h];""",
)


if __name__ == "__main__":
    sys.exit(main())
