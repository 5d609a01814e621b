"""Mixed precision training, as torch.amp has it: `autocast`, and `GradScaler` for float16, whose gradients get small.

    scaler = weft.amp.GradScaler("cuda")
    with weft.amp.autocast("cuda", dtype=weft.float16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

bfloat16 has the range of float32 and needs no scaler.
"""
# Tests: tests/optim/test_steps.py, tests/core/composed/test_autocast.py

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from weft.core.args.handle import Handle, describe
from weft.core.args.modes import no_grad
from weft.core.composed.autocast import autocast, get_autocast_dtype, is_autocast_enabled
from weft.core.execute.changes import restored_on_error
from weft.core.functions.reductions import all as all_of
from weft.errors import ArgumentError, DTypeError
from weft.ir.dtypes import float64

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor
    from weft.optim.optimizer import Optimizer

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_autocast_dtype", "is_autocast_enabled"]


class GradScaler:
    """Multiplies a loss by a scale, so that small gradients stay within float16, and divides them by it again.

    A step whose gradients are not all finite is left out, and the scale then goes down by `backoff_factor`; after
    `growth_interval` steps without one it goes up by `growth_factor`. Asking whether all are finite computes them, so
    `step` belongs outside of compiled functions; `scale` does not. With enabled=False it does nothing.

    Source: Micikevicius et al. 2018, arXiv:1710.03740; torch.amp.GradScaler.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and growth_factor <= 1:
            raise ArgumentError(f"GradScaler: growth_factor must be above 1, got {growth_factor}")
        if enabled and not 0 < backoff_factor < 1:
            raise ArgumentError(f"GradScaler: backoff_factor must be between 0 and 1, got {backoff_factor}")
        self._enabled = enabled
        self._state = (float(init_scale), 0)
        self._growth, self._backoff, self._interval = growth_factor, backoff_factor, growth_interval
        self._finite: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()
        """The optimizers whose gradients have been divided since the last update, and whether all are finite."""
        self._stepped: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()

    @property
    def _scale(self) -> float:
        return self._state[0]

    @property
    def _good_steps(self) -> int:
        return self._state[1]

    def scale(self, outputs: Any) -> Any:
        """A loss, or each in a list or tuple, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Handle):
            return cast("Tensor", outputs) * self._scale
        if isinstance(outputs, Iterable):
            scaled = [self.scale(x) for x in cast("Iterable[Any]", outputs)]
            return tuple(scaled) if isinstance(outputs, tuple) else scaled
        raise DTypeError(f"GradScaler.scale: expected a Tensor or several, got {describe(outputs)}")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, as before clipping. Computes them."""
        if not self._enabled:
            return
        if optimizer in self._finite:
            raise ArgumentError(
                "GradScaler.unscale_: already called on this optimizer since the last update()"
            )
        if optimizer in self._stepped:
            raise ArgumentError("GradScaler.unscale_: must come before step() and after update()")
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        if not grads:
            raise ArgumentError("GradScaler.unscale_: none of the optimizer's parameters has a gradient")
        finite = True
        with restored_on_error(grads), no_grad():
            for grad in grads:
                grad.mul_(1.0 / self._scale)
            checks = [all_of(grad.isfinite()) for grad in grads]
            for grad in grads:
                grad.realize()
            for check in checks:
                finite = bool(check.item()) and finite
        self._finite[optimizer] = finite

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """optimizer.step(...), unless a gradient is infinite or NaN. Divides them first if that is not done."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if optimizer in self._stepped:
            raise ArgumentError("GradScaler.step: already called on this optimizer since the last update()")
        if optimizer not in self._finite:
            self.unscale_(optimizer)
        result = optimizer.step(*args, **kwargs) if self._finite[optimizer] else None
        self._stepped[optimizer] = True  # a step that fails may be tried again
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapt the scale, once after the steps of all optimizers; or set it."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._state = (float(new_scale), self._good_steps)
        elif not self._finite:
            raise ArgumentError("GradScaler.update: no step() or unscale_() since the last update()")
        elif all(self._finite.values()):
            grows = self._good_steps + 1 == self._interval
            self._state = (self._scale * self._growth, 0) if grows else (self._scale, self._good_steps + 1)
        else:
            self._state = (self._scale * self._backoff, 0)
        self._finite.clear()
        self._stepped.clear()

    def get_scale(self) -> float:
        """The scale; 1 when not enabled."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """True where it does anything."""
        return self._enabled

    def get_growth_factor(self) -> float:
        """By what the scale goes up."""
        return self._growth

    def get_backoff_factor(self) -> float:
        """By what the scale goes down."""
        return self._backoff

    def get_growth_interval(self) -> int:
        """After how many steps without infinities the scale goes up."""
        return self._interval

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors and count of steps, under torch's names; empty when not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale, "growth_factor": self._growth, "backoff_factor": self._backoff,
            "growth_interval": self._interval, "_growth_tracker": self._good_steps,
        }  # fmt: skip

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        if not self._enabled:
            return
        if not state_dict:
            raise ArgumentError(
                "GradScaler.load_state_dict: the state is empty: it was saved with enabled=False"
            )
        self._growth = float(state_dict["growth_factor"])
        self._backoff, self._interval = (
            float(state_dict["backoff_factor"]),
            int(state_dict["growth_interval"]),
        )
        self._state = (float(state_dict["scale"]), int(state_dict["_growth_tracker"]))


def custom_fwd(fwd: Any = None, *, device_type: str = "cuda", cast_inputs: Any = None) -> Any:
    """A decorator for the forward of an autograd.Function: within autocast, with cast_inputs, float tensors (but for
    float64) are cast to that dtype, and nothing within is cast; otherwise forward runs as it is called."""
    if fwd is None:
        return partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @wraps(fwd)
    def run(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        enabled = is_autocast_enabled(device_type)
        ctx.autocast_dtype, ctx.forward_casts = (
            get_autocast_dtype(device_type),
            enabled and cast_inputs is None,
        )
        if not enabled or cast_inputs is None:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(ctx, *_cast(args, cast_inputs), **_cast(kwargs, cast_inputs))

    return run


def custom_bwd(bwd: Any = None, *, device_type: str = "cuda") -> Any:
    """A decorator for the backward of an autograd.Function whose forward has custom_fwd: it casts as that did."""
    if bwd is None:
        return partial(custom_bwd, device_type=device_type)
    backward: Callable[..., Any] = bwd

    @wraps(backward)
    def run(ctx: Any, *args: Any) -> Any:
        with autocast(device_type, enabled=ctx.forward_casts, dtype=ctx.autocast_dtype):
            return backward(ctx, *args)

    return run


def _cast(x: Any, dtype: Any) -> Any:
    """The float tensors in nested lists, tuples and dicts in another dtype, but for float64."""
    if isinstance(x, Handle):
        t = cast("Tensor", x)
        return t.to(dtype) if t.dtype.is_float and t.dtype is not float64 else t
    if isinstance(x, dict):
        return {k: _cast(v, dtype) for k, v in cast("dict[Any, Any]", x).items()}
    if isinstance(x, (list, tuple)):
        items = [_cast(v, dtype) for v in cast("list[Any]", x)]
        return items if isinstance(x, list) else tuple(items)
    return x
