"""Dropout: elements or channels set to zero, or to a constant, at random."""
# Tests: tests/nn/test_functional.py, tests/core/tensor/test_tensor.py, tests/core/execute/test_devices.py

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsFloat

from weft.core.args.handle import describe, value_of
from weft.core.composed.composite import composite
from weft.core.functional.activations import into
from weft.core.functions import random
from weft.core.pointwise.elementwise import where
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.graph import Shape

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def _drop(op: str, input: Tensor, p: float, training: bool, shape: Shape, inplace: bool) -> Tensor:
    check_probability(op, "p", p)
    if not training or p == 0.0:
        return input
    _floats(op, input)
    if p == 1.0:
        return into(input, input * 0.0, inplace)
    keep = random.bernoulli_mask(shape, 1.0 - p, None, input.value)
    return into(input, _dropped(input, keep, p), inplace)


@composite
def _dropped(input: Tensor, keep: Tensor, p: float) -> Tensor:
    """The elements that are kept, scaled up."""
    return where(keep, input * (1.0 / (1.0 - p)), 0.0)


def check_probability(op: str, name: str, p: object) -> None:
    """ArgumentError unless p is a number from 0 to 1."""
    if not isinstance(p, (float, SupportsFloat)) or not 0 <= float(p) <= 1:  # to ask the protocol takes 3 us
        raise ArgumentError(f"{op}: {name} must be between 0 and 1, got {describe(p)}")


def _floats(op: str, input: Tensor) -> None:
    v = value_of(op, input)
    if not v.dtype.is_float:
        raise DTypeError(f"{op}: needs a float tensor, got {v.dtype.name}; convert it with .float()")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element 0 with probability p, else x / (1 - p); the input itself unless training.

    Source: Srivastava et al., JMLR 15 (2014).
    """
    return _drop("dropout", input, p, training, value_of("dropout", input).shape, inplace)


def _channels(op: str, input: Tensor, p: float, training: bool, spatial: int, inplace: bool) -> Tensor:
    shape = value_of(op, input).shape
    if len(shape) < 2:
        raise ShapeError(f"{op}: needs input (n, channels, ...), got shape {tuple(shape)}")
    kept = len(shape) - spatial
    return _drop(op, input, p, training, (*shape[:kept], *(1 for _ in shape[kept:])), inplace)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of (n, c, L) or (c, L)."""
    return _channels("dropout1d", input, p, training, 1, inplace)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of (n, c, H, W). Three dimensions are taken for (n, c, L), as torch takes them."""
    rank = len(value_of("dropout2d", input).shape)
    return _channels("dropout2d", input, p, training, 1 if rank == 3 else 2, inplace)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of (n, c, D, H, W) or (c, D, H, W)."""
    return _channels("dropout3d", input, p, training, 3, inplace)


_FLOOR = -1.7580993408473766
"""The limit of selu at minus infinity."""


def _alpha(op: str, input: Tensor, p: float, training: bool, shape: Shape, inplace: bool) -> Tensor:
    check_probability(op, "p", p)
    if not training or p == 0.0:
        return input
    _floats(op, input)
    if p == 1.0:
        return into(input, input * 0.0, inplace)
    return into(
        input, _alpha_dropped(input, random.bernoulli_mask(shape, 1.0 - p, None, input.value), p), inplace
    )


@composite
def _alpha_dropped(input: Tensor, keep: Tensor, p: float) -> Tensor:
    """The input, at the floor where it is not kept, scaled and moved to mean 0 and variance 1."""
    scale = ((1 - p) * (1 + p * _FLOOR**2)) ** -0.5
    return where(keep, input, _FLOOR) * scale - scale * p * _FLOOR


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout to selu's lower limit, then a x + b, so that mean 0 and variance 1 stay.

    Source: Klambauer et al. 2017, arXiv:1706.02515.
    """
    return _alpha("alpha_dropout", input, p, training, value_of("alpha_dropout", input).shape, inplace)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """alpha_dropout of whole channels of (n, c, ...)."""
    shape = value_of("feature_alpha_dropout", input).shape
    if len(shape) < 2 and training:
        raise ShapeError(f"feature_alpha_dropout: needs input (n, channels, ...), got shape {tuple(shape)}")
    return _alpha("feature_alpha_dropout", input, p, training, (*shape[:2], *(1 for _ in shape[2:])), inplace)


def dropout_(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """In place: see dropout."""
    return dropout(input, p, training, True)


def alpha_dropout_(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """In place: see alpha_dropout."""
    return alpha_dropout(input, p, training, True)


def feature_alpha_dropout_(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """In place: see feature_alpha_dropout."""
    return feature_alpha_dropout(input, p, training, True)
