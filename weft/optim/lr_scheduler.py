"""Learning rates that change from epoch to epoch. Call `step()` after each epoch, after the optimizer's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core.changes import restored_on_error
from weft.errors import ArgumentError, DTypeError
from weft.optim.optimizer import Group, Optimizer


def _optimizer(scheduler: str, given: object) -> Optimizer:
    """What was given, or a DTypeError."""
    if not isinstance(given, Optimizer):
        raise DTypeError(f"{scheduler}: expected an optimizer, got {given!r}")
    return given


class _Whole:
    """A step of a scheduler changes all that it does, or, where it is interrupted, nothing: itself, those that it is
    made of, and the optimizer's options."""

    def __init__(self, scheduler: Any) -> None:
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []
        todo: list[Any] = [scheduler]
        while todo:
            one: Any = todo.pop()
            fields: dict[str, Any] = one.__dict__
            self._before.append((fields, dict(fields)))
            parts: list[Any] = fields.get("schedulers") or []
            todo += parts
        groups = scheduler.optimizer.param_groups
        self._options = [(g, dict(g)) for g in groups]
        self._tensors = restored_on_error(t for g in groups for t in (g.rate, *g.all_factors()))

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            for fields, before in self._before:
                fields.update(before)
            for group, before in self._options:
                group.restored(before)
        self._tensors.__exit__(kind, *error)


class LRScheduler(ABC):
    """Base: a subclass gives each group's learning rate at an epoch, from the one it began with."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = _optimizer(type(self).__name__, optimizer)
        if last_epoch == -1:
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])
        elif any("initial_lr" not in group for group in optimizer.param_groups):
            raise ArgumentError(
                f"{type(self).__name__}: to go on from epoch {last_epoch}, groups need an initial_lr"
            )
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self.step()

    @abstractmethod
    def rate(self, initial: float, group: int) -> float:
        """The learning rate of a group at epoch `last_epoch`."""

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch, or to the one given."""
        with _Whole(self):
            self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
            for k, (group, initial) in enumerate(
                zip(self.optimizer.param_groups, self.base_lrs, strict=True)
            ):
                group["lr"] = self.rate(initial, k)
                self.also(group, k)

    def also(self, group: Group, number: int) -> None:
        """Set what else of a group changes with the epoch."""
        return

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The epoch and the learning rates begun with."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave; learning rates themselves are the optimizer's state."""
        self.last_epoch, self.base_lrs = state_dict["last_epoch"], list(state_dict["base_lrs"])


class StepLR(LRScheduler):
    """lr = initial * gamma ** (epoch // step_size)"""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        if step_size < 1:
            raise ArgumentError(f"StepLR: step_size must be at least 1, got {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return initial * self.gamma ** (self.last_epoch // self.step_size)


class CosineAnnealingLR(LRScheduler):
    """lr = eta_min + (initial - eta_min) * (1 + cos(pi * epoch / T_max)) / 2

    Source: Loshchilov & Hutter 2016, arXiv:1608.03983, without restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max < 1:
            raise ArgumentError(f"CosineAnnealingLR: T_max must be at least 1, got {T_max}")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return (
            self.eta_min
            + (initial - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        )


class LambdaLR(LRScheduler):
    """lr = initial * lr_lambda(epoch); one function, or one for each group"""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ArgumentError(f"LambdaLR: {len(self.lr_lambdas)} functions for {groups} groups")
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return initial * self.lr_lambdas[group](self.last_epoch)


class MultiplicativeLR(LRScheduler):
    """lr = initial * lr_lambda(1) * ... * lr_lambda(epoch); one function, or one for each group"""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ArgumentError(f"MultiplicativeLR: {len(self.lr_lambdas)} functions for {groups} groups")
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return initial * math.prod(self.lr_lambdas[group](e) for e in range(1, self.last_epoch + 1))


class MultiStepLR(LRScheduler):
    """lr = initial * gamma ** (how many milestones the epoch has reached)"""

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return initial * self.gamma ** bisect_right(self.milestones, self.last_epoch)


class ConstantLR(LRScheduler):
    """lr = initial * factor for the first total_iters epochs, then initial"""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise ArgumentError(f"ConstantLR: factor must be between 0 and 1, got {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return initial * (self.factor if self.last_epoch < self.total_iters else 1.0)


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

    def rate(self, initial: float, group: int) -> float:
        part = min(self.last_epoch, self.total_iters) / self.total_iters
        return initial * (self.start_factor + (self.end_factor - self.start_factor) * part)


class ExponentialLR(LRScheduler):
    """lr = initial * gamma ** epoch"""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return initial * self.gamma**self.last_epoch


class PolynomialLR(LRScheduler):
    """lr = initial * (1 - epoch / total_iters) ** power, 0 from total_iters on"""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return initial * (1.0 - min(self.last_epoch, self.total_iters) / self.total_iters) ** self.power


class CosineAnnealingWarmRestarts(LRScheduler):
    """CosineAnnealingLR that starts again after T_0 epochs, then after T_mult times as many, and so on.

    Source: Loshchilov & Hutter 2016, arXiv:1608.03983.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if T_0 < 1 or T_mult < 1:
            raise ArgumentError(
                f"CosineAnnealingWarmRestarts: T_0 and T_mult must be at least 1, got {T_0}, {T_mult}"
            )
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        at, length = self.last_epoch, self.T_0
        while at >= length:
            at, length = at - length, length * self.T_mult
        return self.eta_min + (initial - self.eta_min) * (1 + math.cos(math.pi * at / length)) / 2


def _set_momentum(group: Group, value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


def _check_momentum(name: str, optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if "betas" not in group and "momentum" not in group:
            raise ArgumentError(f"{name}: cycle_momentum needs an optimizer with momentum or betas")


def _each(name: str, optimizer: Optimizer, value: float | Sequence[float]) -> list[float]:
    """One number for each group."""
    out: list[float] = (
        list(value) if isinstance(value, Sequence) else [float(value)] * len(optimizer.param_groups)
    )
    if len(out) != len(optimizer.param_groups):
        raise ArgumentError(f"{name}: {len(out)} numbers for {len(optimizer.param_groups)} groups")
    return out


class CyclicLR(LRScheduler):
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
        scales: dict[str, tuple[Callable[[float], float], str]] = {
            "triangular": (lambda x: 1.0, "cycle"),
            "triangular2": (lambda x: 1 / (2.0 ** (x - 1)), "cycle"),
            "exp_range": (lambda x: gamma**x, "iterations"),
        }
        if mode not in scales and scale_fn is None:
            raise ArgumentError(f"CyclicLR: mode must be one of {', '.join(scales)}, got {mode!r}")
        self.scale, self.scale_mode = (scale_fn, scale_mode) if scale_fn is not None else scales[mode]
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size, self.step_ratio = float(step_size_up + down), step_size_up / (step_size_up + down)
        self.low, self.max_lrs = _each("CyclicLR", optimizer, base_lr), _each("CyclicLR", optimizer, max_lr)
        self.cycle_momentum = cycle_momentum
        self.base_momentums = _each("CyclicLR", optimizer, base_momentum)
        self.max_momentums = _each("CyclicLR", optimizer, max_momentum)
        if cycle_momentum:
            _check_momentum("CyclicLR", optimizer)
        super().__init__(optimizer, last_epoch)

    def _height(self) -> float:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        part = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        return part * self.scale(cycle if self.scale_mode == "cycle" else self.last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return self.low[group] + (self.max_lrs[group] - self.low[group]) * self._height()

    def also(self, group: Group, number: int) -> None:
        if self.cycle_momentum:
            low, high = self.base_momentums[number], self.max_momentums[number]
            _set_momentum(group, high - (high - low) * self._height())


class OneCycleLR(LRScheduler):
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
        if cycle_momentum:
            _check_momentum("OneCycleLR", optimizer)
        self.total_steps, self.linear, self.cycle_momentum = (
            total_steps,
            anneal_strategy == "linear",
            cycle_momentum,
        )
        self.max_lrs = _each("OneCycleLR", optimizer, max_lr)
        self.momenta = list(
            zip(
                _each("OneCycleLR", optimizer, max_momentum),
                _each("OneCycleLR", optimizer, base_momentum),
                strict=True,
            )
        )
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        top = pct_start * total_steps - 1
        # (last step, from, to): 0 the first rate, 1 the highest, 2 the last
        self.phases = [(top, 0, 1), (2 * top, 1, 0), (total_steps - 1, 0, 2)] if three_phase else [
            (top, 0, 1), (total_steps - 1, 1, 2)
        ]  # fmt: skip
        super().__init__(optimizer, last_epoch)

    def _between(self, values: Sequence[float]) -> float:
        if self.last_epoch > self.total_steps:
            raise ArgumentError(
                f"OneCycleLR: step {self.last_epoch} is past the {self.total_steps} steps in all"
            )
        start = 0.0
        for k, (end, a, b) in enumerate(self.phases):
            if self.last_epoch <= end or k == len(self.phases) - 1:
                part = (self.last_epoch - start) / (end - start)
                if self.linear:
                    return (values[b] - values[a]) * part + values[a]
                return values[b] + (values[a] - values[b]) / 2.0 * (1 + math.cos(math.pi * part))
            start = end
        raise AssertionError("the last phase covers every step")

    def rate(self, initial: float, group: int) -> float:
        top = self.max_lrs[group]
        first = top / self.div_factor
        return self._between((first, top, first / self.final_div_factor))

    def also(self, group: Group, number: int) -> None:
        if self.cycle_momentum:
            high, low = self.momenta[number]
            _set_momentum(group, self._between((high, low, high)))


class SequentialLR(LRScheduler):
    """One scheduler up to the first milestone, then the next one from its beginning, and so on."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1 or any(s.optimizer is not optimizer for s in schedulers):
            raise ArgumentError(
                f"SequentialLR: {len(schedulers)} schedulers of this optimizer need {len(schedulers) - 1} milestones, "
                f"got {len(milestones)}"
            )
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch."""
        with _Whole(self):
            self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
            k = bisect_right(self.milestones, self.last_epoch)
            self.schedulers[k].step(self.last_epoch - (self.milestones[k - 1] if k else 0))

    def rate(self, initial: float, group: int) -> float:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and the states of the schedulers."""
        return {**super().state_dict(), "schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        super().load_state_dict(state_dict)
        for s, saved in zip(self.schedulers, state_dict["schedulers"], strict=True):
            s.load_state_dict(saved)


class ChainedScheduler(LRScheduler):
    """Several schedulers at once: lr = initial times the factor of each"""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers or any(s.optimizer is not schedulers[0].optimizer for s in schedulers):
            raise ArgumentError("ChainedScheduler: needs schedulers, all of one optimizer")
        self.schedulers = list(schedulers)
        super().__init__(schedulers[0].optimizer)

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch."""
        with _Whole(self):
            self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
            for s in self.schedulers:
                s.last_epoch = self.last_epoch
            super().step(self.last_epoch)

    def rate(self, initial: float, group: int) -> float:
        return (
            initial * math.prod(s.rate(initial, group) / initial for s in self.schedulers) if initial else 0.0
        )

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and the states of the schedulers."""
        return {**super().state_dict(), "schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        super().load_state_dict(state_dict)
        for s, saved in zip(self.schedulers, state_dict["schedulers"], strict=True):
            s.load_state_dict(saved)


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
        self.swa_lrs, self.anneal_epochs = _each("SWALR", optimizer, swa_lr), anneal_epochs
        self.linear = anneal_strategy == "linear"
        self.first = [float(group["lr"]) for group in optimizer.param_groups]
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: float, group: int) -> float:
        part = min(1.0, self.last_epoch / max(1, self.anneal_epochs)) if self.anneal_epochs else 1.0
        share = part if self.linear else (1 - math.cos(math.pi * part)) / 2
        return self.swa_lrs[group] * share + self.first[group] * (1 - share)


class ReduceLROnPlateau:
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
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ArgumentError(f"ReduceLROnPlateau: factor must be below 1, got {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ArgumentError(
                f"ReduceLROnPlateau: mode must be 'min' or 'max', threshold_mode 'rel' or 'abs', got {mode!r} and "
                f"{threshold_mode!r}"
            )
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown = threshold, threshold_mode, cooldown
        self.min_lrs, self.eps = _each("ReduceLROnPlateau", optimizer, min_lr), eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def _improves(self, value: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        if self.threshold_mode == "abs":
            return sign * value < sign * self.best - self.threshold
        if math.isinf(self.best):
            return sign * value < sign * self.best
        return sign * value < sign * (self.best * (1 - sign * self.threshold))

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Note the metric of an epoch, a number or a tensor of one element."""
        value = float(metrics)
        with _Whole(self):
            self._take(value, epoch)

    def _take(self, value: float, epoch: int | None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._improves(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                lr = max(group["lr"] * self.factor, least)
                if group["lr"] - lr > self.eps:
                    group["lr"] = lr
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What was seen so far."""
        names = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave; learning rates themselves are the optimizer's state."""
        for name, value in state_dict.items():
            setattr(self, name, value)


_LRScheduler = LRScheduler  # torch's older name
