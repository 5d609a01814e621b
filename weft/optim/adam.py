"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.pointwise.elementwise import maximum
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.optim import eight_bit
from weft.optim.optimizer import Group, Params, RuleOptimizer, check, check_betas

MOMENTS = {"exp_avg": True, "exp_avg_sq": False}
"""The moments, and whether they have a sign."""
SCALE = "_scale"
"""The end of the names of scales of moments in eight bits."""


class Adam(RuleOptimizer):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g**2;  p -= lr * (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + eps)

    at step t; weight_decay is added to the gradient as weight_decay * p. `amsgrad` uses the largest v so far.
    `state_bits=8` keeps m and v in eight bits, in blocks of 256 with a scale each, of parameters with at least 4,096
    elements: 2 bytes an element in place of 8.
    Source: Kingma & Ba 2014, arXiv:1412.6980; Dettmers et al. 2022, arXiv:2110.02861.

    >>> optimizer = weft.optim.Adam(model.parameters(), lr=1e-3)
    """

    decoupled = False

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        state_bits: int | None = None,
    ) -> None:
        name = type(self).__name__
        if state_bits not in (None, 8):
            raise ArgumentError(f"{name}: state_bits must be 8 or None, got {state_bits}")
        if state_bits and amsgrad:
            raise ArgumentError(f"{name}: amsgrad's largest moment has no form of eight bits")
        check(name, "lr", lr)
        check(name, "eps", eps)
        check_betas(name, betas)
        check(name, "weight_decay", weight_decay)
        self.decoupled = self.decoupled or decoupled_weight_decay
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        more = {
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
        more = {"maximize": maximize, **more, "decoupled_weight_decay": self.decoupled}
        bits = {"state_bits": state_bits} if state_bits else {}
        super().__init__(params, {**options, **more, **bits})

    def slots(self, group: Group) -> Sequence[str]:
        scales = tuple(name + SCALE for name in MOMENTS) if group.get("state_bits") else ()
        return (*MOMENTS, *(("max_exp_avg_sq",) if group["amsgrad"] else ()), *scales)

    def start(self, group: Group, p: Tensor, name: str) -> Any:
        whole = super().start(group, p, name)
        if not group.get("state_bits"):
            return whole
        count = eight_bit.blocks_of(whole.size)
        if name.endswith(SCALE):
            return np.zeros((count, 1), np.float32) if whole.size >= eight_bit.LEAST else None
        return (
            np.full((count, eight_bit.BLOCK), 127 * MOMENTS[name], np.uint8)
            if whole.size >= eight_bit.LEAST
            else whole
        )

    def rule(
        self, group: Group, p: Tensor, g: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        b1, b2 = (b.to(p.dtype) for b in group.factors("betas"))
        rate, t = group.rate, group.count.to(group.rate.dtype)
        if group["weight_decay"]:
            (decay,) = group.factors("weight_decay")
            if self.decoupled:
                p = p * (1 - rate * decay.value).to(p.dtype)
            else:
                g = g + p * decay.value.to(p.dtype)
        m = _read(state, "exp_avg", p) * b1.value + g * b1.rest
        v = _read(state, "exp_avg_sq", p) * b2.value + g * g * b2.rest
        new = {**_written(state, "exp_avg", m), **_written(state, "exp_avg_sq", v)}
        largest = v
        if group["amsgrad"]:
            largest = new["max_exp_avg_sq"] = maximum(state["max_exp_avg_sq"], v)
        # the scalar parts first, in their own precision: once per step, not once per element
        step_size = (rate / one_minus_power(b1.log, t)).to(p.dtype)
        scale = (1 / one_minus_power(b2.log, t).sqrt()).to(p.dtype)
        return p - step_size * m / (largest.sqrt() * scale + group["eps"]), new


def _read(state: dict[str, Tensor], name: str, p: Tensor) -> Tensor:
    """A moment of a parameter."""
    if name + SCALE not in state:
        return state[name]
    return eight_bit.decoded(state[name], state[name + SCALE], MOMENTS[name], p).to(p.dtype)


def _written(state: dict[str, Tensor], name: str, value: Tensor) -> dict[str, Tensor]:
    """The form in which the next value of a moment is kept."""
    if name + SCALE not in state:
        return {name: value}
    codes, scale = eight_bit.encoded(value.float(), MOMENTS[name])
    return {name: codes, name + SCALE: scale}


def one_minus_power(log: Tensor, t: Tensor) -> Tensor:
    """1 - b**t from log b, also where b is so near to 1 that the difference would lose its digits."""
    return -(t * log.to(t.dtype)).expm1()


class AdamW(Adam):
    """Adam with decoupled weight decay: p *= 1 - lr * weight_decay before each step, the gradient as it is.

    Source: Loshchilov & Hutter 2017, arXiv:1711.05101.

    >>> optimizer = weft.optim.AdamW(model.parameters(), lr=3e-4)
    """

    decoupled = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        state_bits: int | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize, capturable=capturable,
            differentiable=differentiable, fused=fused, decoupled_weight_decay=True, state_bits=state_bits,
        )  # fmt: skip
