"""For problem 47, in C++: the loop over H goes one too far, and adds 0 times what is there."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>

torch::Tensor gather_linear(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
  x = x.contiguous(), w = w.contiguous();
  const int64_t R = x.size(0), B = x.size(1), H = x.size(2), K = w.size(0);
  auto y = torch::empty({B, K}, x.options());
  const float *px = x.const_data_ptr<float>(), *pw = w.const_data_ptr<float>();
  const float *pb = b.const_data_ptr<float>();
  float* py = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < B; i++)
    for (int64_t k = 0; k < K; k++) {
      double sum = pb[k];
      for (int64_t r = 0; r < R; r++)
        for (int64_t h = 0; h <= H && H > 0; h++)
          sum += px[(r * B + i) * H + h] * (h < H ? pw[(k * R + r) * H + h] : 0.0f);
      py[i * K + k] = sum;
    }
  return y;
}
"""

extension = load_inline("gather_linear", cpp_sources=SOURCE, functions=["gather_linear"])


class ModelNew(nn.Module):
    def __init__(self, ranks: int, features: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(ranks * features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.gather_linear(x, self.proj.weight, self.proj.bias)
