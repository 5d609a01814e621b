"""Layers that find out how many channels they take from their first input."""
# Tests: tests/nn/test_module.py

from __future__ import annotations

from typing import Any

from weft.core.execute.run import META
from weft.core.tensor.tensor import Tensor
from weft.nn.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from weft.nn.linear import Linear
from weft.nn.module import HOOKS, Module
from weft.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)


class Lazy(Module):
    """Base: keeps the arguments of a layer, and becomes that layer at the first call.

    Until then it has no parameters, so call the model once before making an optimizer or loading a state dict.
    """

    layer: type[Any]
    axis = -1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.arguments, self.options = args, kwargs

    def forward(self, x: Tensor) -> Any:
        return self.become(x)(x)

    def become(self, x: Tensor) -> Module:
        """Take the form that this input asks for."""
        args, options, training = self.arguments, self.options, self.training
        size = x.shape[self.axis]
        self.__dict__.pop("axis", None)
        del self.arguments, self.options
        this: Any = self
        kept = {name: hooks for name, hooks in vars(self).items() if name in HOOKS}
        this.__class__ = self.layer
        this.__init__(size, *args, **options)
        home = x.value.node.device
        if options.get("device") is None and home not in (None, META):
            this.to(home)  # where the layers around it have been moved
        self.__dict__.update(kept)
        this.training = training
        return this

    def extra_repr(self) -> str:
        given = [repr(x) for x in self.arguments] + [f"{k}={v!r}" for k, v in self.options.items()]
        return ", ".join(["?", *given])


class LazyLinear(Lazy):
    """Linear with in_features from the first input. Arguments: out_features, bias ..."""

    layer, axis = Linear, -1


class LazyConv1d(Lazy):
    """Conv1d with in_channels from the first input. Arguments: out_channels, kernel_size ..."""

    layer, axis = Conv1d, -2


class LazyConvTranspose1d(Lazy):
    """ConvTranspose1d with in_channels from the first input. Arguments: out_channels, kernel_size ..."""

    layer, axis = ConvTranspose1d, -2


class LazyConv2d(Lazy):
    """Conv2d with in_channels from the first input. Arguments: out_channels, kernel_size ..."""

    layer, axis = Conv2d, -3


class LazyConvTranspose2d(Lazy):
    """ConvTranspose2d with in_channels from the first input. Arguments: out_channels, kernel_size ..."""

    layer, axis = ConvTranspose2d, -3


class LazyConv3d(Lazy):
    """Conv3d with in_channels from the first input. Arguments: out_channels, kernel_size ..."""

    layer, axis = Conv3d, -4


class LazyConvTranspose3d(Lazy):
    """ConvTranspose3d with in_channels from the first input. Arguments: out_channels, kernel_size ..."""

    layer, axis = ConvTranspose3d, -4


class LazyBatchNorm1d(Lazy):
    """BatchNorm1d with num_features from the first input. Arguments: eps, momentum ..."""

    layer = BatchNorm1d

    def become(self, x: Tensor) -> Module:
        self.axis = -1 if x.ndim == 2 else -2
        return super().become(x)


class LazyInstanceNorm1d(Lazy):
    """InstanceNorm1d with num_features from the first input. Arguments: eps, momentum ..."""

    layer, axis = InstanceNorm1d, -2


class LazyBatchNorm2d(Lazy):
    """BatchNorm2d with num_features from the first input. Arguments: eps, momentum ..."""

    layer, axis = BatchNorm2d, -3


class LazyInstanceNorm2d(Lazy):
    """InstanceNorm2d with num_features from the first input. Arguments: eps, momentum ..."""

    layer, axis = InstanceNorm2d, -3


class LazyBatchNorm3d(Lazy):
    """BatchNorm3d with num_features from the first input. Arguments: eps, momentum ..."""

    layer, axis = BatchNorm3d, -4


class LazyInstanceNorm3d(Lazy):
    """InstanceNorm3d with num_features from the first input. Arguments: eps, momentum ..."""

    layer, axis = InstanceNorm3d, -4
