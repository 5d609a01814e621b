"""torch.nn.utils.fusion: a normalization that is done by the weights of the layer before it."""

from __future__ import annotations

import copy
from typing import Any

import weft
from weft.core.tensor.tensor import Tensor


def fuse_conv_bn_weights(
    conv_w: Any,
    conv_b: Any,
    bn_rm: Any,
    bn_rv: Any,
    bn_eps: float,
    bn_w: Any,
    bn_b: Any,
    transpose: bool = False,
) -> tuple[Any, Any]:
    """Weight and bias of the convolution that also normalizes."""
    bias = weft.zeros_like(bn_rm) if conv_b is None else conv_b
    weight = weft.ones_like(bn_rm) if bn_w is None else bn_w
    shift = weft.zeros_like(bn_rm) if bn_b is None else bn_b
    scale = weight * (bn_rv + bn_eps).rsqrt()
    shape = [1, -1] if transpose else [-1, 1]
    fused = conv_w * scale.reshape(shape + [1] * (conv_w.ndim - 2))
    return _parameter(fused, conv_w), _parameter((bias - bn_rm) * scale + shift, conv_w)


def fuse_linear_bn_weights(
    linear_w: Any, linear_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any
) -> tuple[Any, Any]:
    """Weight and bias of the linear layer that also normalizes."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A copy of the convolution that also normalizes, as in eval."""
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


fuse_linear_bn_eval = fuse_conv_bn_eval


def _parameter(x: Tensor, like: Tensor) -> Any:
    return weft.nn.Parameter(x.detach().to(like.dtype), like.requires_grad)


def same_module(module: Any, memory_format: Any = None) -> Any:
    """The module: weft chooses the order of elements in memory."""
    return module
