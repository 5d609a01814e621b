"""Learning rates that change from epoch to epoch. Call `step()` after each epoch, after the optimizer's.

As in torch a scheduler's `get_lr` goes on from the rate that each group has now, so several may act on one optimizer;
`_get_closed_form_lr` gives the rate at an epoch at once.
"""
# Tests: tests/optim/test_lr_scheduler.py, tests/optim/test_optimizers.py

from __future__ import annotations

import math
import types
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from weft.core.args.axes import is_int
from weft.core.execute.changes import restored_on_error
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, WeftError
from weft.optim.base import Optimizer
from weft.optim.optimizer import Group

Rates = list[Any]
"""A learning rate for each group: numbers, or tensors where the group has one."""

Lambdas = Callable[[int], float] | Sequence[Callable[[int], float]]


class MissingOptionError(WeftError, KeyError):
    """A group lacks an option that is needed to go on."""

    __str__ = BaseException.__str__  # a KeyError prints the repr of its message


def _optimizer(scheduler: str, given: object) -> Optimizer:
    """The optimizer that was given, or a DTypeError."""
    if not isinstance(given, Optimizer):
        raise DTypeError(
            f"{scheduler}: expected an optimizer, got {given!r}; {type(given).__name__} is not an Optimizer"
        )
    return given


class _Whole:
    """A step of a scheduler changes all that it does, or, where it is interrupted, nothing: itself, those that it is
    made of, and the optimizer's options."""

    def __init__(self, scheduler: Any) -> None:
        every: list[dict[str, Any]] = [vars(s) for s in _with_parts(scheduler)]
        self._before = [(fields, dict(fields)) for fields in every]
        groups: list[dict[str, Any]] = scheduler.optimizer.param_groups
        self._options = [(g, dict(g)) for g in groups]
        self._tensors = restored_on_error(t for g in groups for t in _tensors_of(g))

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            for fields, before in self._before:
                fields.update(before)
            for group, before in self._options:
                dict[str, Any].update(group, before)  # whose tensors are restored below
        self._tensors.__exit__(kind, *error)


def _with_parts(scheduler: Any) -> list[Any]:
    """A scheduler, and those that it is made of."""
    parts: Sequence[Any] = getattr(scheduler, "_schedulers", ())
    return [scheduler, *(p for part in parts for p in _with_parts(part))]


def _tensors_of(group: dict[str, Any]) -> list[Tensor]:
    """The tensors that a scheduler may write to."""
    if isinstance(group, Group):
        return [group.rate, *group.all_factors()]
    return [t for key, t in group.items() if key != "params" and isinstance(t, Tensor)]


def _read(group: Mapping[str, Any], key: str = "lr") -> Any:
    """An option of a group; a tensor's value as it is now."""
    value = group[key]
    return value.detach().clone() if isinstance(value, Tensor) else value


def _write(group: dict[str, Any], key: str, value: Any) -> None:
    """Set an option of a group; a tensor stays the same one."""
    now = group[key]
    if isinstance(now, Tensor):
        now.detach().fill_(value)
    else:
        group[key] = value


def _each(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """One number for each group."""
    groups = len(optimizer.param_groups)
    out: list[Any] = list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else [value] * groups
    if len(out) != groups:
        raise ArgumentError(f"{name}: {len(out)} numbers for {groups} groups")
    return out


class LRScheduler:
    """Base: a subclass gives each group's next learning rate in `get_lr`."""

    _get_lr_called_within_step = False
    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = _optimizer(type(self).__name__, optimizer)
        for k, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _read(group))
            elif "initial_lr" not in group:
                raise MissingOptionError(
                    f"{type(self).__name__}: param 'initial_lr' is not specified in param_groups[{k}] when resuming "
                    f"scheduler with last_epoch >= 0; load the optimizer's state first"
                )
        self.base_lrs: Rates = [_read(group, "initial_lr") for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        """The step to the first epoch, which leaves the rates of most schedulers as they are."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> Rates:
        """The learning rate of each group at epoch `last_epoch`, from those at the one before."""
        raise NotImplementedError(f"{type(self).__name__}: define get_lr in its class")

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch, or to the one given."""
        with _Whole(self):
            self._step_count += 1
            self._update_lr(epoch)

    @contextmanager
    def _stepping(self) -> Generator[None]:
        self._get_lr_called_within_step = True
        try:
            yield
        finally:
            self._get_lr_called_within_step = False

    def _warn_outside_step(self) -> None:
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use `get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    def _update_lr(self, epoch: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed: Callable[[], Rates] | None = getattr(self, "_get_closed_form_lr", None)
        with self._stepping():
            self._set(closed() if epoch is not None and closed is not None else self.get_lr())

    def _set(self, rates: Rates) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            _write(group, "lr", rate)
        self._last_lr = self._now()

    def _now(self) -> Rates:
        return [_read(group) for group in self.optimizer.param_groups]

    def _times(self, factor: float) -> Rates:
        """Each group's rate times a factor."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]

    def get_last_lr(self) -> Rates:
        """The learning rate of each group after the last step."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave; learning rates themselves are the optimizer's state."""
        self.__dict__.update(state_dict)


_LRScheduler = LRScheduler  # torch's older name


class _WithLambdas(LRScheduler):
    """Base of those with a function for each group. Of functions that are objects the attributes are saved."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Lambdas, last_epoch: int = -1) -> None:
        groups = len(_optimizer(type(self).__name__, optimizer).param_groups)
        self.lr_lambdas: list[Any] = (
            list(cast("list[Any]", lr_lambda))
            if isinstance(lr_lambda, (list, tuple))
            else [lr_lambda] * groups
        )
        if len(self.lr_lambdas) != groups:
            raise ArgumentError(
                f"{type(self).__name__}: Expected {groups} lr_lambdas, but got {len(self.lr_lambdas)}"
            )
        for function in self.lr_lambdas:
            if not callable(function):
                raise DTypeError(
                    f"{type(self).__name__}: lr_lambda should be a function, but got {function!r}"
                )
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer; of functions only what objects that are called keep."""
        state = {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}
        state["lr_lambdas"] = [
            None if isinstance(f, types.FunctionType) else f.__dict__.copy() for f in self.lr_lambdas
        ]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.__dict__.update({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for function, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                function.__dict__.update(saved)


class LambdaLR(_WithLambdas):
    """lr = initial * lr_lambda(epoch); one function, or one for each group"""

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        return [b * f(self.last_epoch) for f, b in zip(self.lr_lambdas, self.base_lrs, strict=True)]


class MultiplicativeLR(_WithLambdas):
    """lr = initial * lr_lambda(1) * ... * lr_lambda(epoch); one function, or one for each group"""

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        if self._is_initial:
            return self._now()
        groups = self.optimizer.param_groups
        return [g["lr"] * f(self.last_epoch) for f, g in zip(self.lr_lambdas, groups, strict=True)]


class StepLR(LRScheduler):
    """lr = initial * gamma ** (epoch // step_size)"""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        if step_size < 1:
            raise ArgumentError(f"StepLR: step_size must be at least 1, got {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self._now()
        return self._times(self.gamma)

    def _get_closed_form_lr(self) -> Rates:
        return [b * self.gamma ** (self.last_epoch // self.step_size) for b in self.base_lrs]


class MultiStepLR(LRScheduler):
    """lr = initial * gamma ** (how many milestones the epoch has reached)"""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        reached = self.milestones.get(self.last_epoch, 0)
        return self._times(self.gamma**reached) if reached else self._now()

    def _get_closed_form_lr(self) -> Rates:
        reached = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [b * self.gamma**reached for b in self.base_lrs]


class ConstantLR(LRScheduler):
    """lr = initial * factor for the first total_iters epochs, then initial"""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise ArgumentError(
                f"ConstantLR: Constant multiplicative factor expected to be between 0 and 1, got {factor}"
            )
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        if self.last_epoch == 0:
            return self._times(self.factor)
        if self.last_epoch != self.total_iters:
            return self._now()
        return self._times(1.0 / self.factor)

    def _get_closed_form_lr(self) -> Rates:
        over = self.last_epoch >= self.total_iters
        return [b * (self.factor + over * (1 - self.factor)) for b in self.base_lrs]


class LinearLR(LRScheduler):
    """lr = initial * a factor that goes from start_factor to end_factor within total_iters epochs"""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ArgumentError(
                f"LinearLR: factors must be between 0 and 1, got {start_factor} and {end_factor}"
            )
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        if self.last_epoch == 0:
            return self._times(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._now()
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return self._times(1.0 + rise / before)

    def _get_closed_form_lr(self) -> Rates:
        part = min(self.total_iters, self.last_epoch) / self.total_iters
        return [b * (self.start_factor + (self.end_factor - self.start_factor) * part) for b in self.base_lrs]


class ExponentialLR(LRScheduler):
    """lr = initial * gamma ** epoch"""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        return self._now() if self._is_initial else self._times(self.gamma)

    def _get_closed_form_lr(self) -> Rates:
        return [b * self.gamma**self.last_epoch for b in self.base_lrs]


class PolynomialLR(LRScheduler):
    """lr = initial * (1 - epoch / total_iters) ** power, 0 from total_iters on"""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._now()
        left, before = (1.0 - e / self.total_iters for e in (self.last_epoch, self.last_epoch - 1))
        return self._times((left / before) ** self.power)

    def _get_closed_form_lr(self) -> Rates:
        part = min(self.total_iters, self.last_epoch) / self.total_iters
        return [b * (1.0 - part) ** self.power for b in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """lr = eta_min + (initial - eta_min) * (1 + cos(pi * epoch / T_max)) / 2

    Source: Loshchilov & Hutter 2016, arXiv:1608.03983, without restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max < 1:
            raise ArgumentError(f"CosineAnnealingLR: T_max must be at least 1, got {T_max}")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        if self._is_initial:
            return self._now()
        if self._step_count == 1 and self.last_epoch > 0:
            return self._get_closed_form_lr()
        groups = self.optimizer.param_groups
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # the rate before was the lowest
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [g["lr"] + (b - self.eta_min) * rise for b, g in zip(self.base_lrs, groups, strict=True)]
        now, before = (1 + math.cos(math.pi * e / self.T_max) for e in (self.last_epoch, self.last_epoch - 1))
        return [now / before * (g["lr"] - self.eta_min) + self.eta_min for g in groups]

    def _get_closed_form_lr(self) -> Rates:
        height = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (b - self.eta_min) * height for b in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """CosineAnnealingLR that starts again after T_0 epochs, then after T_mult times as many, and so on.

    Source: Loshchilov & Hutter 2016, arXiv:1608.03983.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if any(not is_int(n) or n < 1 for n in (T_0, T_mult)):
            raise ArgumentError(
                f"CosineAnnealingWarmRestarts: T_0 and T_mult must be ints, at least 1, got {T_0}, {T_mult}"
            )
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        height = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (b - self.eta_min) * height for b in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go on to the next epoch, or to the one given, which may be a part of one."""
        if epoch is None and self.last_epoch >= 0:
            at: float = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        else:
            at = 0 if epoch is None else epoch
            if at < 0:
                raise ArgumentError(
                    f"CosineAnnealingWarmRestarts: Expected non-negative epoch, but got {epoch}"
                )
            self.T_cur, self.T_i = self._place(at)
        self.last_epoch = math.floor(at)
        with self._stepping():
            self._set(self.get_lr())

    def _place(self, epoch: float) -> tuple[float, int]:
        """The position of an epoch in its period, and the period's length."""
        if epoch < self.T_0:
            return epoch, self.T_0
        if self.T_mult == 1:
            return epoch % self.T_0, self.T_i
        n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
        begun = self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
        return epoch - begun, self.T_0 * self.T_mult**n


class _WithMomentum(LRScheduler):
    """Base of those that change the momentum, or the first of the betas, against the rate."""

    cycle_momentum: bool
    use_beta1: bool

    def _cycle(
        self, optimizer: Optimizer, cycle_momentum: bool, low: Any, high: Any, first: bool
    ) -> tuple[list[Any], list[Any]]:
        """The lowest and highest momentum of each group, which begins with the highest."""
        name = type(self).__name__
        self.cycle_momentum = cycle_momentum
        if not cycle_momentum:
            return [], []
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ArgumentError(
                f"{name}: optimizer must support momentum or beta1 with `cycle_momentum` option enabled, that is "
                "cycle_momentum needs an optimizer with momentum or betas"
            )
        self.use_beta1 = "betas" in optimizer.defaults
        lows, highs = _each(name, optimizer, low), _each(name, optimizer, high)
        if first:
            for group, b, m in zip(optimizer.param_groups, lows, highs, strict=True):
                self._set_momentum(group, m)
                group["max_momentum"], group["base_momentum"] = m, b
        return lows, highs

    def _set_momentum(self, group: dict[str, Any], value: float) -> None:
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


class CyclicLR(_WithMomentum):
    """lr up from base_lr to max_lr and down again. mode "triangular2" halves the height each cycle, "exp_range" scales
    it by gamma ** step. With cycle_momentum, momentum goes the other way.

    Source: Smith 2015, arXiv:1506.01186.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = _optimizer("CyclicLR", optimizer)
        if mode not in _SCALES and scale_fn is None:
            raise ArgumentError(f"CyclicLR: mode must be one of {', '.join(_SCALES)}, got {mode!r}")
        lows = _each("CyclicLR", optimizer, base_lr)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, lows, strict=True):
                _write(group, "lr", lr)
        self.max_lrs = _each("CyclicLR", optimizer, max_lr)
        up = float(step_size_up)
        down = up if step_size_down is None else float(step_size_down)
        self.total_size, self.step_ratio = up + down, up / (up + down)
        self.mode, self.gamma, self._scale_fn_custom = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else _SCALES[mode][1]
        self.base_momentums, self.max_momentums = self._cycle(
            optimizer, cycle_momentum, base_momentum, max_momentum, last_epoch == -1
        )
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lows

    def scale_fn(self, x: float) -> float:
        """The height of a cycle, or of a step, as a share of the first one's."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        return _SCALES[self.mode][0](x, self.gamma)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        part = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(
                self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True
            ):
                self._set_momentum(group, high - (high - low) * part * scale)
        return [
            low + (high - low) * part * scale for low, high in zip(self.base_lrs, self.max_lrs, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer; of a scale_fn only what an object that is called keeps."""
        state = super().state_dict()
        custom = state.pop("_scale_fn_custom")
        saved = None if custom is None or isinstance(custom, types.FunctionType) else custom.__dict__.copy()
        return {**state, "_scale_fn_custom": saved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn_custom"})
        saved = state_dict["_scale_fn_custom"]
        if saved is not None and self._scale_fn_custom is not None:
            self._scale_fn_custom.__dict__.update(saved)


_SCALES: dict[str, tuple[Callable[[float, float], float], str]] = {
    "triangular": (lambda x, gamma: 1.0, "cycle"),
    "triangular2": (lambda x, gamma: 1 / (2.0 ** (x - 1)), "cycle"),
    "exp_range": (lambda x, gamma: gamma**x, "iterations"),
}
"""The height of cycles in each mode, and what it is a function of."""


class OneCycleLR(_WithMomentum):
    """lr from max_lr / div_factor up to max_lr in pct_start of the steps, then down to that / final_div_factor.

    With three_phase it first goes down symmetrically. With cycle_momentum, momentum goes the other way.

    Source: Smith & Topin 2017, arXiv:1708.07120.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = _optimizer("OneCycleLR", optimizer)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ArgumentError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if total_steps < 1 or not 0 <= pct_start <= 1:
            raise ArgumentError(
                f"OneCycleLR: needs steps and pct_start between 0 and 1, got {total_steps}, {pct_start}"
            )
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(
                f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}"
            )
        self.total_steps, self._anneal_func_type = total_steps, anneal_strategy
        top = float(pct_start * total_steps) - 1
        names = ("end_step", "start_lr", "end_lr", "start_momentum", "end_momentum")
        up = (top, "initial_lr", "max_lr", "max_momentum", "base_momentum")
        down = (total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum")
        back = (
            float(2 * pct_start * total_steps) - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum",
        )  # fmt: skip
        last = (total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum")
        rows = (up, back, last) if three_phase else (up, down)
        self._schedule_phases: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
        if last_epoch == -1:
            for group, high in zip(
                optimizer.param_groups, _each("OneCycleLR", optimizer, max_lr), strict=True
            ):
                group["initial_lr"], group["max_lr"] = high / div_factor, high
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self._cycle(optimizer, cycle_momentum, base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, part: float) -> float:
        if self._anneal_func_type == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        if self.last_epoch > self.total_steps:
            raise ArgumentError(
                f"OneCycleLR: step {self.last_epoch} is past the {self.total_steps} steps in all"
            )
        start, phase = 0.0, self._schedule_phases[-1]
        for found in self._schedule_phases:
            if self.last_epoch <= found["end_step"]:
                phase = found
                break
            if found is not phase:
                start = found["end_step"]
        part = (self.last_epoch - start) / (phase["end_step"] - start)
        rates: Rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group[phase["start_lr"]], group[phase["end_lr"]], part))
            if self.cycle_momentum:
                first, last = group[phase["start_momentum"]], group[phase["end_momentum"]]
                self._set_momentum(group, self._between(first, last, part))
        return rates


class _Several(LRScheduler):
    """Base of those made of others, which must be of one optimizer."""

    _schedulers: list[Any]

    def _check(self, schedulers: Sequence[Any], optimizer: Optimizer | None) -> Optimizer:
        name = type(self).__name__
        if not schedulers:
            raise ArgumentError(
                f"{name}: expects at least one scheduler, but got no scheduler; it needs schedulers"
            )
        found = schedulers[0].optimizer if optimizer is None else optimizer
        for k, s in enumerate(schedulers):
            if isinstance(s, ReduceLROnPlateau):
                raise ArgumentError(
                    f"{name}: does not support ReduceLROnPlateau, whose step takes a metric; it is at index {k}"
                )
            if s.optimizer is not found:
                raise ArgumentError(
                    f"{name}: expects all schedulers to belong to the same optimizer; number {k} does not"
                )
        return found

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer, and the states of the schedulers."""
        state = {k: v for k, v in super().state_dict().items() if k != "_schedulers"}
        return {**state, "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.__dict__.update({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for s, saved in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            s.load_state_dict(saved)


class SequentialLR(_Several):
    """One scheduler up to the first milestone, then the next one from its beginning, and so on."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = self._check(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ArgumentError(
                f"SequentialLR: {len(schedulers)} schedulers of this optimizer need {len(schedulers) - 1} milestones, "
                f"got {len(milestones)}"
            )
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            _write(group, "lr", group["initial_lr"])
        _step_back(self)
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch."""
        with _Whole(self):
            self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
            k = bisect_right(self._milestones, self.last_epoch)
            scheduler = self._schedulers[k]
            if k and self._milestones[k - 1] == self.last_epoch:
                scheduler._update_lr(0)
            else:
                scheduler.step()
            self._last_lr = scheduler.get_last_lr()


def _step_back(scheduler: Any) -> None:
    """Undo the first step of the schedulers that one is made of."""
    if hasattr(scheduler, "_schedulers"):
        for s in scheduler._schedulers:
            _step_back(s)
    elif hasattr(scheduler, "last_epoch"):
        scheduler.last_epoch -= 1


class ChainedScheduler(_Several):
    """Several schedulers at once: each goes on from the rate that the one before it leaves"""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self.optimizer = self._check(schedulers, optimizer)
        self._schedulers = list(schedulers)
        self._last_lr = self._now()

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch."""
        with _Whole(self):
            for s in self._schedulers:
                s.step() if epoch is None else s.step(epoch)
            self._last_lr = self._now()


class SWALR(LRScheduler):
    """lr from the one at the start to swa_lr within anneal_epochs, then constant: for averaging weights."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(f"SWALR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        if anneal_epochs < 0:
            raise ArgumentError(f"SWALR: anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        _optimizer("SWALR", optimizer)
        for group, rate in zip(optimizer.param_groups, _each("SWALR", optimizer, swa_lr), strict=True):
            group["swa_lr"] = rate
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def anneal_func(self, t: float) -> float:
        """The share of swa_lr when the part t of the epochs is over."""
        return t if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def get_lr(self) -> Rates:
        self._warn_outside_step()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = (
            self.anneal_func(max(0, min(1, s / max(1, self.anneal_epochs)))) for s in (step - 1, step)
        )
        rates: Rates = []
        for group in self.optimizer.param_groups:
            last = group["swa_lr"]
            first = last if before == 1 else (group["lr"] - before * last) / (1 - before)
            rates.append(last * now + first * (1 - now))
        return rates


class ReduceLROnPlateau(LRScheduler):
    """lr *= factor when a metric has not improved for more than `patience` epochs; step(metric) after each epoch."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ArgumentError(
                f"ReduceLROnPlateau: factor must be below 1, got {factor}; Factor should be < 1.0."
            )
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ArgumentError(
                f"ReduceLROnPlateau: mode must be 'min' or 'max', threshold_mode 'rel' or 'abs', got {mode!r} and "
                f"{threshold_mode!r}"
            )
        self.optimizer = _optimizer("ReduceLROnPlateau", optimizer)
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown = threshold, threshold_mode, cooldown
        self.default_min_lr: Any = None if isinstance(min_lr, (list, tuple)) else min_lr
        self.min_lrs, self.eps = _each("ReduceLROnPlateau", optimizer, min_lr), eps
        self.last_epoch = 0
        self._last_lr = self._now()
        self._reset()

    def _reset(self) -> None:
        """Forget what was seen."""
        self.best = self.mode_worse = math.inf if self.mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0

    @property
    def in_cooldown(self) -> bool:
        """True where epochs without improvement do not count yet."""
        return self.cooldown_counter > 0

    def _is_better(self, a: float, best: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        bound = (
            best * (1.0 - sign * self.threshold)
            if self.threshold_mode == "rel"
            else best - sign * self.threshold
        )
        return a < bound if self.mode == "min" else a > bound

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Note the metric of an epoch, a number or a tensor of one element."""
        value = float(metrics)
        with _Whole(self):
            self._take(value, epoch)

    def _take(self, value: float, epoch: int | None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr(self.last_epoch)
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._now()

    def _reduce_lr(self, epoch: int) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise ArgumentError(
                    f"ReduceLROnPlateau: the optimizer has {len(groups)} groups now and there are {len(self.min_lrs)} "
                    "min_lrs; set the field `min_lrs` anew after adding a group"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, least in zip(groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, least)
            if old - new > self.eps:
                _write(group, "lr", new)


__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
    "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR",
    "PolynomialLR", "ReduceLROnPlateau", "SWALR", "SequentialLR", "StepLR",
]  # fmt: skip
