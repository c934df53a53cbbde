"""all_gather_linear: the Python face of the operator, its fake kernels, and its plan."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelbench_dist import _build
from kernelbench_dist.ops._plan import Plan

_SCHEMA = "all_gather_linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor"


_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """The compiled operator's checks, where it does not run: on fake tensors, or not built."""

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise RuntimeError(f"all_gather_linear: {message}")

    def require_like_x(name: str, t: Tensor) -> None:
        require(
            t.dtype == x.dtype,
            f"{name} is {t.dtype} and x is {x.dtype}; they must have the same dtype",
        )
        require(
            t.device == x.device,
            f"{name} is on {t.device} and x is on {x.device}; they must be on the same device",
        )

    require(
        x.dim() >= 2 and x.shape[0] > 0,
        f"x must be (R, *b, H) with at least one rank, got shape {list(x.shape)}",
    )
    inner = x.shape[0] * x.shape[-1]
    require(
        weight.dim() == 2 and weight.shape[1] == inner,
        f"weight must be (K, R*H) = (K, {inner}) for x of shape {list(x.shape)}, got shape"
        f" {list(weight.shape)}",
    )
    require(x.dtype in _DTYPES, f"x must be float32, float64, float16 or bfloat16, got {x.dtype}")
    require_like_x("weight", weight)
    if bias is None:
        return
    require(
        bias.dim() == 1 and bias.shape[0] == weight.shape[0],
        f"bias must be (K,) = ({weight.shape[0]},) for weight of shape {list(weight.shape)}, got"
        f" shape {list(bias.shape)}",
    )
    require_like_x("bias", bias)


def _composite(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    _check(x, weight, bias)
    return F.linear(torch.cat(x.unbind(0), -1), weight, bias)


if _build.EXTENSION:

    @torch.library.register_fake("kernelbench_dist::all_gather_linear")
    def _(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        _check(x, weight, bias)
        return x.new_empty((*x.shape[1:-1], weight.shape[0]))

    @torch.library.register_fake("kernelbench_dist::_all_gather_linear_backward")
    def _(
        grad: Tensor, x: Tensor | None, weight: Tensor | None, ranks: int, with_bias: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs = grad.shape[-1]
        nothing: tuple[int, ...] = (0,)
        return (
            grad.new_empty(
                nothing if weight is None else (ranks, *grad.shape[:-1], weight.shape[1] // ranks)
            ),
            grad.new_empty(nothing if x is None else (outputs, ranks * x.shape[-1])),
            grad.new_empty((outputs,) if with_bias else nothing),
        )

else:
    _library = torch.library.Library("kernelbench_dist", "DEF")
    _library.define(_SCHEMA)
    _library.impl("all_gather_linear", _composite, "CompositeImplicitAutograd")

_op = torch.ops.kernelbench_dist.all_gather_linear.default


def all_gather_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gather R ranks on their last dim, then a Linear: one launch, where a kernel of ours runs.

    `F.linear(torch.cat(x.unbind(0), -1), weight, bias)`, the forward of a column-gathered layer
    (Megatron-LM, arXiv:1909.08053, section 3).

    Args:
        x: (R, *b, H): rank r holds `x[r]`. Any strides.
        weight: (K, R*H): columns r*H to (r+1)*H meet rank r's features. Any strides.
        bias: (K,), or None.

    Returns:
        (*b, K), contiguous, in x's dtype: float32, float64, float16 or bfloat16. Our kernels
        accumulate the 16-bit types in float32, round once, and multiply float32 in float32, or as
        TF32 only where torch's flags allow that. Where `plan` says "fallback" the ranks are
        gathered for the length of the call, and torch's own product runs with torch's own flags for
        precision.

    Differentiable in every argument, twice too. The same inputs give the same bits on every run;
    a row's bits may depend on how many rows go with it, as F.linear's do.

    Raises:
        RuntimeError: shapes, dtypes, devices or layouts that do not fit; the message names the
            argument and what is accepted.

    >>> x = torch.arange(12.0).view(2, 2, 3)
    >>> weight = torch.arange(24.0).view(4, 6) - 10
    >>> all_gather_linear(x, weight, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([[-148.,   -3.,  142.,  287.],
            [-283.,  -30.,  223.,  476.]])
    """
    return _op(x, weight, bias)


class allow_3xtf32:  # noqa: N801 - used like torch.set_grad_enabled
    """Let large float32 products run as three TF32 products each, on a Hopper GPU.

    Off unless it is called, and from then on for the whole process; as a context manager, until the
    block ends. Each operand is split into a TF32 head and tail, and each 32 features of the
    products are added up in float32. That is nearly as exact as float32; how exact and how fast has
    not been measured yet. It is never used where torch's precision for products is set to full
    float32 by name (`fp32_precision = "ieee"`, "highest"), nor where TF32 itself is allowed.

    Raises:
        RuntimeError: the extension is not loaded.

    >>> with allow_3xtf32():  # doctest: +SKIP
    ...     all_gather_linear(x, weight)
    """

    def __init__(self, allow: bool = True) -> None:
        if not _build.EXTENSION:
            raise RuntimeError("allow_3xtf32: the extension, which has the kernel, is not loaded")
        self._before: bool = torch.ops.kernelbench_dist._allow_3xtf32(allow)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        torch.ops.kernelbench_dist._allow_3xtf32(self._before)


def plan_all_gather_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, device: torch.device
) -> Plan:
    """What `all_gather_linear` would run for these tensors on this device."""
    if not _build.EXTENSION:
        _check(x, weight, bias)
        return Plan("fallback", "the extension is not loaded", None, None, 1)
    kernel, reason, launches, tiles, split = torch.ops.kernelbench_dist._all_gather_linear_plan(
        x, weight, bias, device
    )
    return Plan(kernel, reason, launches or None, tuple(tiles) or None, split)
