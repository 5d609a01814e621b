"""Linear maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.args.handle import value_of
from weft.core.args.requirements import at_most_dims, needs, one_dtype, same_lead
from weft.core.composed.autocast import lowers
from weft.core.composed.composite import composite
from weft.core.functions.matmul import einsum, matmul
from weft.core.layout.movement import transpose
from weft.core.pointwise.elementwise import add
from weft.errors import ShapeError

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@composite(autocast=lowers)
@needs(one_dtype("input", "weight", "bias"), at_most_dims("bias", 2))
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias.

    Shapes: (..., in), weight (out, in), bias (out) -> (..., out).
    """
    x, w = value_of("linear", input).shape, value_of("linear", weight).shape
    if len(w) != 2 or not x or x[-1] != w[1]:
        raise ShapeError(
            f"linear: input of shape {tuple(x)} does not fit weight of shape {tuple(w)}: weight must be (out, in) with "
            f"in = {x[-1] if x else 'the size of the last input dimension'}"
        )
    out = matmul(input, transpose(weight, 0, 1))
    return out if bias is None else add(out, bias)


@composite
@needs(
    one_dtype("input1", "input2", "weight", "bias"),
    same_lead("input1", 1, "input2", 1),
    at_most_dims("bias", 1),
)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """out_o = x1' W_o x2 + bias.

    Shapes: (..., in1), (..., in2), weight (out, in1, in2), bias (out) -> (..., out).
    """
    out = einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else add(out, bias)
