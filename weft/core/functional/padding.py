"""Padding in all modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.core.args.handle import Number, value_of, wrap
from weft.core.layout.creation import tensor
from weft.core.layout.gather import rows
from weft.core.layout.movement import constant_pad
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import bool_

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Number | None = None) -> Tensor:
    """Elements added around: (before, after) of the last dimension, then of the one before it, and so on.

    mode "constant" adds `value` (0), and negative numbers cut; "reflect", "replicate" and "circular" repeat the input.
    """
    if mode == "constant":
        return constant_pad(input, pad, 0 if value is None else value)
    v = value_of("pad", input)
    device = v.node.device
    if mode not in ("reflect", "replicate", "circular"):
        raise ArgumentError(f"pad: mode must be constant, reflect, replicate or circular, got {mode!r}")
    dims, ends = len(v.shape), len(pad) // 2
    if v.dtype is bool_ and mode != "circular":
        raise DTypeError(f"pad: mode {mode!r} is not defined on bool; convert with .to(...)")
    if len(pad) % 2 == 0 and not (1 <= ends <= 3 and dims - ends in (1, 2)):
        raise ShapeError(
            f"pad: mode {mode!r} pads the last 1, 2 or 3 dimensions of (n, c, sizes...) or (c, sizes...), got "
            f"{tuple(pad)} for shape {tuple(v.shape)}"
        )
    if 0 in v.shape[dims - ends - 1 :]:
        raise ShapeError(f"pad: mode {mode!r} has no elements to repeat in shape {tuple(v.shape)}")
    if len(pad) % 2 or len(pad) > 2 * len(v.shape):
        raise ArgumentError(
            f"pad: needs pairs for at most {len(v.shape)} dimensions of shape {tuple(v.shape)}, got {tuple(pad)}"
        )
    for i in range(len(pad) // 2):
        k = len(v.shape) - 1 - i
        n, before, after = v.shape[k], pad[2 * i], pad[2 * i + 1]
        if not isinstance(n, int):
            raise ShapeError(f"pad: mode {mode!r} needs known sizes")
        most = {"reflect": n - 1, "circular": n, "replicate": before if n else -1}[mode]
        if before < -n or after < -n or n + before + after < 0:
            raise ShapeError(f"pad: {before} and {after} cut more than a dimension of size {n} has")
        if before > most or (after > most and mode != "replicate"):
            raise ShapeError(f"pad: mode {mode!r} cannot add {before} and {after} to a dimension of size {n}")
        if before or after:
            at = np.arange(-before, n + after)
            if mode == "reflect":
                at = np.abs(at)
                at = np.where(at >= n, 2 * (n - 1) - at, at)
            at = np.clip(at, 0, n - 1) if mode == "replicate" else at % n
            if mode == "circular" and min(before, after) < 0:  # what is left after cutting goes round
                kept = np.arange(max(-before, 0), n + min(after, 0))
                at = np.concatenate([kept[len(kept) - max(before, 0) :], kept, kept[: max(after, 0)]])
            v = rows(v, k, tensor(at, device=device).value)
    return wrap(v)
