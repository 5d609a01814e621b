"""Dropout: elements or channels set to zero at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core import random
from weft.core.elementwise import where
from weft.core.handle import value_of
from weft.errors import ArgumentError
from weft.ir.graph import Shape

if TYPE_CHECKING:
    from weft.core.tensor import Tensor


def _drop(op: str, input: Tensor, p: float, training: bool, shape: Shape) -> Tensor:
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"{op}: p must be between 0 and 1, got {p}")
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return input * 0.0
    keep = random.bernoulli_mask(shape, 1.0 - p)
    return where(keep, input * (1.0 / (1.0 - p)), 0.0)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element 0 with probability p, else x / (1 - p); the input itself unless training.

    Source: Srivastava et al., JMLR 15 (2014).
    """
    return _drop("dropout", input, p, training, value_of("dropout", input).shape)


def _channels(op: str, input: Tensor, p: float, training: bool, spatial: int) -> Tensor:
    shape = value_of(op, input).shape
    return _drop(op, input, p, training, (*shape[: len(shape) - spatial], *(1 for _ in range(spatial))))


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of (..., C, L)."""
    return _channels("dropout1d", input, p, training, 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of (..., C, H, W)."""
    return _channels("dropout2d", input, p, training, 2)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of (..., C, D, H, W)."""
    return _channels("dropout3d", input, p, training, 3)
