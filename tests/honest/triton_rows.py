"""A Triton kernel: one program an output, the sum in blocks of the features."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def row_dot(x, w, bias, y, R, B, H, K, BLOCK: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for r in range(R):
        for start in range(0, H, BLOCK):
            h = start + tl.arange(0, BLOCK)
            mask = h < H
            xs = tl.load(x + (r * B + b) * H + h, mask=mask, other=0.0)
            ws = tl.load(w + (k * R + r) * H + h, mask=mask, other=0.0)
            total += xs * ws
    tl.store(y + b * K + k, tl.sum(total, axis=0) + tl.load(bias + k))


class ModelNew(nn.Module):
    def __init__(self, ranks: int = 4, features: int = 32, outputs: int = 56) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        weight, bias = self.proj.weight.contiguous(), self.proj.bias
        R, B, H = x.shape
        K = weight.shape[0]
        y = torch.empty((B, K), device=x.device, dtype=x.dtype)
        if y.numel():
            row_dot[(B, K)](x, weight, bias, y, R, B, H, K, BLOCK=128)
        return y
