"""Averages of a model's weights over training; `weft.optim.swa_utils` offers them under torch's names."""
# Tests: tests/optim/test_optimizers.py

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from weft.core.args.modes import no_grad
from weft.core.execute.changes import restored_on_error
from weft.core.execute.realization import realize
from weft.core.pointwise.elementwise import where
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import int64
from weft.nn.module import Module, filled
from weft.nn.normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d

Average = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(average so far, present value, how many are in the average) -> the new average."""


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """average = decay * average + (1 - decay) * value"""
    if not 0.0 <= decay <= 1.0:
        raise ArgumentError(f"get_ema_avg_fn: decay must be between 0 and 1, got {decay}")
    return lambda average, value, count: average * decay + value * (1 - decay)


def get_swa_avg_fn() -> Average:
    """The mean of all values. Source: Izmailov et al. 2018, arXiv:1803.05407."""
    return lambda average, value, count: average + (value - average) / (count + 1).to(average.dtype)


def get_ema_multi_avg_fn(decay: float = 0.999) -> Average:
    """As get_ema_avg_fn: all parameters are averaged in one plan anyway."""
    return get_ema_avg_fn(decay)


def get_swa_multi_avg_fn() -> Average:
    """As get_swa_avg_fn: all parameters are averaged in one plan anyway."""
    return get_swa_avg_fn()


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of the model's, the mean unless avg_fn says otherwise.

    >>> ema = weft.optim.swa_utils.AveragedModel(model, multi_avg_fn=weft.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    >>> ema.update_parameters(model)        # after each optimizer step
    """

    def __init__(
        self,
        model: Module,
        device: str | None = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Average | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("AveragedModel: give avg_fn or multi_avg_fn, not both")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.module.requires_grad_(False)
        self.register_buffer("n_averaged", filled(0, (), int64, device))
        self.average, self.use_buffers = avg_fn or multi_avg_fn or get_swa_avg_fn(), use_buffers

    n_averaged: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the model's present parameters into the average; buffers are copied unless use_buffers."""
        own, theirs = list(self.module.parameters()), list(model.parameters())
        mine, others = list(self.module.buffers()), list(model.buffers())
        changed: list[Tensor] = []
        with restored_on_error((*own, *mine, self.n_averaged)), no_grad():
            for a, p in zip(own, theirs, strict=True):
                changed.append(self._averaged(a, p.detach()))
            for a, b in zip(mine, others, strict=True):
                if self.use_buffers and a.dtype.is_float:
                    changed.append(self._averaged(a, b.detach()))
                else:
                    changed.append(a.copy_(b.detach()))
            self.n_averaged += 1
            realize(*changed, self.n_averaged)

    def _averaged(self, a: Tensor, p: Tensor) -> Tensor:
        p = p.to(dtype=a.dtype, device=a.device)
        return a.copy_(where(self.n_averaged == 0, p, self.average(a.detach(), p, self.n_averaged)))


def update_bn(loader: Iterable[Any], model: Module, device: str | None = None) -> None:
    """Set the running statistics of batch norms to the means over a loader's batches (inputs, or tuples with them)."""
    layers = [m for m in model.modules() if isinstance(m, (BatchNorm1d, BatchNorm2d, BatchNorm3d))]
    before = [(m, m.momentum) for m in layers]
    mode = model.training
    for m in layers:
        m.reset_running_stats()
        m.momentum = None
    model.train()
    try:
        with no_grad():
            for batch in loader:
                x: Any = cast("Sequence[Any]", batch)[0] if isinstance(batch, (list, tuple)) else batch
                model(x if device is None else x.to(device))
                realize(*model.buffers())
    finally:
        for m, momentum in before:
            m.momentum = momentum
        model.train(mode)
