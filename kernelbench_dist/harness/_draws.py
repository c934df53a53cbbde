"""Values of inputs other than those that a problem draws, for fuzzing."""

from __future__ import annotations

import torch

FLOAT_VALUES = ("normal", "zeros", "ties", "large", "tiny", "inf", "nan")
INT_VALUES = ("normal", "ties", "limits")
VALUES = (*FLOAT_VALUES, "limits")
"""Kinds of values, the simplest first.

- normal: as the problem draws them.
- zeros: floats are 0.
- ties: many equal ones: floats are the integers from -2 to 2, integers a few of the problem's own.
- large: floats near the top of their range, yet so far below it that no sum of up to 4096 of them
  leaves it in any order (float16: of up to 4, because its sums are wider).
- tiny: floats below the smallest normal number.
- inf, nan: about one float in sixteen, and at least one.
- limits: integers are the least and the greatest of their type, 0 and 1.

What a kind does not speak of stays as the problem draws it, as bools always do.
"""


def fill(values: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """A tensor of the same shape and dtype with values of another kind.

    The source of this function is part of the snippets that repeat a failure.
    """
    if kind == "normal" or values.dtype == torch.bool or values.numel() == 0:
        return values
    if values.is_complex():
        parts = fill(torch.view_as_real(values.resolve_conj()).clone(), kind, generator)
        return torch.view_as_complex(parts)
    shape, dtype, device = values.shape, values.dtype, values.device
    if not dtype.is_floating_point:
        if kind == "limits":
            info = torch.iinfo(dtype)
            few = torch.tensor([info.min, info.max, 0, 1], dtype=dtype, device=device)
        elif kind == "ties":
            few = values.reshape(-1)[:3]
        else:
            return values
        return few[torch.randint(len(few), shape, generator=generator).to(device)]
    limits = torch.finfo(dtype)
    if kind == "ties":
        drawn = torch.randint(-2, 3, shape, generator=generator).to(torch.float64)
    elif kind == "zeros":
        drawn = torch.zeros(shape, dtype=torch.float64)
    elif kind in ("large", "tiny"):
        top = limits.max / (4 if limits.max < 1e6 else 4096)
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
        drawn *= top if kind == "large" else limits.smallest_normal
    elif kind in ("inf", "nan"):
        drawn = values.to("cpu", torch.float64)
        pick = torch.randint(16, shape, generator=generator) == 0
        pick.view(-1)[torch.randint(values.numel(), (1,), generator=generator)] = True
        signs = torch.randint(2, shape, generator=generator) * 2 - 1
        drawn = torch.where(pick, signs * float(kind), drawn)
    else:
        return values
    return drawn.to(device, dtype)


def stir(parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Moved upwards by 0.25 to 0.75 where all elements are equal, else the parameter itself.

    Parameters that start as 0 or 1, as biases and scales do, hide that they are not used.
    """
    flat = parameter.detach().reshape(-1)
    if not parameter.is_floating_point() or len(flat) == 0 or bool((flat != flat[0]).any()):
        return parameter
    moved = 0.25 + 0.5 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    return parameter.detach() + moved.to(parameter.device, parameter.dtype)
