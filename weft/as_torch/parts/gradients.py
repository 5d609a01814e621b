"""torch.nn.grad: gradients of convolutions with regard to their input and weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import weft
from weft.core.tensor.tensor import Tensor
from weft.nn import functional


def _input(conv: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    def call(input_size: Any, weight: Tensor, grad_output: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        x = weft.zeros(tuple(input_size), dtype=weight.dtype, device=weight.device).requires_grad_()
        out = conv(x, weight.detach(), None, *args, **kwargs)
        return cast("Tensor", weft.autograd.grad(out, x, grad_output)[0])

    call.__name__ = f"{name}_input"
    return call


def _weight(conv: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    def call(input: Tensor, weight_size: Any, grad_output: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        w = weft.zeros(tuple(weight_size), dtype=input.dtype, device=input.device).requires_grad_()
        out = conv(input.detach(), w, None, *args, **kwargs)
        return cast("Tensor", weft.autograd.grad(out, w, grad_output)[0])

    call.__name__ = f"{name}_weight"
    return call


conv1d_input, conv1d_weight = _input(functional.conv1d, "conv1d"), _weight(functional.conv1d, "conv1d")
conv2d_input, conv2d_weight = _input(functional.conv2d, "conv2d"), _weight(functional.conv2d, "conv2d")
conv3d_input, conv3d_weight = _input(functional.conv3d, "conv3d"), _weight(functional.conv3d, "conv3d")
