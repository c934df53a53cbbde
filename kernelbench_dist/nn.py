"""Modules over the fused operators, in place of the dense layers they compute."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernelbench_dist import ops

__all__ = ["AllGatherLinear"]


class AllGatherLinear(nn.Linear):
    """A Linear over the last dim of R ranks gathered, as one operator: `ops.all_gather_linear`.

    It computes `nn.Linear(R*H, K)(torch.cat(x.unbind(0), -1))` and is an `nn.Linear(R*H, K)` in
    its parameters, so state dicts go either way.

    Args:
        world_size: R, the number of ranks.
        in_features_per_rank: H, the features that each rank holds.
        out_features: K.
        bias: whether there is a bias (K,).
        device, dtype: of the parameters, as for nn.Linear.

    Takes x (R, *b, H) and returns (*b, K).

    Raises:
        ValueError: sizes that are not positive integers; or an input whose R or H is another. The
            same product with another split, such as (2R, *b, H/2), is refused too.

    >>> layer = AllGatherLinear(world_size=4, in_features_per_rank=32, out_features=56)
    >>> layer(torch.randn(4, 12, 32)).shape
    torch.Size([12, 56])
    >>> dense = nn.Linear(128, 56)
    >>> dense.load_state_dict(layer.state_dict())
    <All keys matched successfully>
    """

    def __init__(
        self,
        world_size: int,
        in_features_per_rank: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {
            "world_size": world_size,
            "in_features_per_rank": in_features_per_rank,
            "out_features": out_features,
        }
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(
                    f"AllGatherLinear: {name} must be an int of 1 or more, got {size!r}"
                )
        super().__init__(world_size * in_features_per_rank, out_features, bias, device, dtype)
        self.world_size = world_size
        self.in_features_per_rank = in_features_per_rank

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(
                f"AllGatherLinear: x must be a tensor (R, *b, H), got {type(x).__name__}"
            )
        if x.dim() < 2 or x.shape[0] != self.world_size or x.shape[-1] != self.in_features_per_rank:
            raise ValueError(
                f"AllGatherLinear: x must be (R, *b, H) with R={self.world_size} and"
                f" H={self.in_features_per_rank}, got shape {tuple(x.shape)}"
            )
        return ops.all_gather_linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"world_size={self.world_size}, in_features_per_rank={self.in_features_per_rank},"
            f" out_features={self.out_features}, bias={self.bias is not None}"
        )
