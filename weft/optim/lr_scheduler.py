"""Learning rates that change from epoch to epoch. Call `step()` after each epoch, after the optimizer's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.errors import ArgumentError
from weft.optim.optimizer import Optimizer


class LRScheduler(ABC):
    """Base: a subclass gives each group's learning rate at an epoch, from the one it began with."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
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

    def step(self) -> None:
        """Go on to the next epoch."""
        self.last_epoch += 1
        for k, (group, initial) in enumerate(zip(self.optimizer.param_groups, self.base_lrs, strict=True)):
            group["lr"] = self.rate(initial, k)

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
