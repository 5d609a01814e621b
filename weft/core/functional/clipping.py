"""Gradients kept within bounds: what is done to each of them, recorded once for each shape."""
# Tests: tests/nn/test_utils.py

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.core.composed.composite import composite
from weft.core.functions.norms import vector_norm
from weft.core.functions.reductions import amax
from weft.core.pointwise.elementwise import clamp
from weft.ir.dtypes import accumulator, float32

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@composite(rounds_once=False)
def norm_as_vector(g: Tensor, norm_type: float) -> Tensor:
    """The norm of all elements, as a vector of one float32."""
    return vector_norm(g.to(accumulator(g.dtype)).flatten(), norm_type, 0, keepdim=True).to(float32)


@composite(rounds_once=False)
def joined_norm(norms: Tensor, norm_type: float) -> Tensor:
    """The norm of several vectors taken as one, by those of each."""
    return amax(norms) if math.isinf(norm_type) else vector_norm(norms, norm_type)


@composite(rounds_once=False)
def scaled_to_norm(g: Tensor, total_norm: Tensor, max_norm: float) -> Tensor:
    """g * min(1, max_norm / (total_norm + 1e-6))."""
    scale = clamp(max_norm / (total_norm + 1e-6), max=1.0)
    return g * scale.to(g.dtype)


@composite(rounds_once=False)
def limited(g: Tensor, bound: float) -> Tensor:
    """Each element, or the nearer of -bound and bound."""
    return clamp(g, -bound, bound)
