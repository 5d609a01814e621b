"""A batch norm in evaluation as part of the layer before it."""
# Tests: tests/nn/test_module_internals.py

from __future__ import annotations

import copy
from typing import Any

from weft.core.args.modes import no_grad
from weft.core.layout.creation import ones_like, zeros_like
from weft.core.pointwise.elementwise import rsqrt
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.nn.module import Module, Parameter

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A copy of a convolution that gives what the batch norm after it gives in evaluation."""
    _check("fuse_conv_bn_eval", conv, bn)
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """A copy of a linear layer that gives what the batch norm after it gives in evaluation."""
    _check("fuse_linear_bn_eval", linear, bn)
    if bn.num_features not in (1, linear.out_features):
        raise ArgumentError(
            f"fuse_linear_bn_eval: To fuse, linear.out_features == bn.num_features or bn.num_features == 1, got "
            f"{linear.out_features} and {bn.num_features}"
        )
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(
        fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    return fused


def _check(op: str, layer: Module, bn: Any) -> None:
    if layer.training or bn.training:
        raise ArgumentError(f"{op}: Fusion only for eval! Call .eval() on both modules first")
    if bn.running_mean is None or bn.running_var is None:
        raise ArgumentError(f"{op}: the batch norm must have running statistics")


def _fused(
    w: Tensor, b: Tensor | None, mean: Tensor, var: Tensor, eps: float, bn_w: Tensor | None,
    bn_b: Tensor | None, axis: int,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """w * s and (b - mean) * s + bn_b, s = bn_w / sqrt(var + eps), for the channels along an axis of w."""
    learned = b is None or b.requires_grad
    with no_grad():
        offset = zeros_like(mean) if b is None else b
        scale = rsqrt(var + eps) * (ones_like(mean) if bn_w is None else bn_w)
        shape = [1] * w.ndim
        shape[axis] = -1
        new_w = (w * scale.reshape(shape)).to(w.dtype)
        new_b = ((offset - mean) * scale + (0.0 if bn_b is None else bn_b)).to(
            w.dtype if b is None else b.dtype
        )
    return Parameter(new_w, w.requires_grad), Parameter(new_b, learned and b is not None)


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
    bn_b: Tensor | None, transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of a convolution (transposed if told so) with a batch norm after it."""
    return _fused(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 1 if transpose else 0)


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
    bn_w: Tensor | None, bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of a linear layer with a batch norm after it."""
    return _fused(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 0)
