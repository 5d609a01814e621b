"""Optimizers that scale steps by what gradients were: Adagrad, Adadelta, RMSprop, Adamax, NAdam, RAdam, Rprop, ASGD.

Arguments of torch that choose between its implementations (foreach, capturable, differentiable, fused) are accepted:
every step here is one plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.pointwise.elementwise import clamp, gt, lt, maximum, sign, where
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import to_numpy
from weft.optim.adam import one_minus_power
from weft.optim.optimizer import Group, Params, RuleOptimizer, check, check_betas, check_pair

State = dict[str, Tensor]


def _decayed(group: Group, p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The parameter and gradient after weight decay: added to the gradient, or, decoupled, taken off the parameter."""
    if not group["weight_decay"]:
        return p, g
    decay = group.factors("weight_decay")[0].value
    if group.get("decoupled_weight_decay"):
        return p * (1 - group.rate * decay).to(p.dtype), g
    return p, g + p * decay.to(p.dtype)


def _scalar(x: Tensor, p: Tensor) -> Tensor:
    return x.to(p.dtype)


class Adagrad(RuleOptimizer):
    """s += g**2;  p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)

    Source: Duchi, Hazan & Singer, JMLR 12 (2011).
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        for option, value in (
            ("lr", lr),
            ("lr_decay", lr_decay),
            ("weight_decay", weight_decay),
            ("eps", eps),
        ):
            check("Adagrad", option, value)
        check("Adagrad", "initial_accumulator_value", initial_accumulator_value)
        options = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        more = {"foreach": foreach, "differentiable": differentiable, "fused": fused}
        super().__init__(params, {**options, "initial_accumulator_value": initial_accumulator_value, **more})

    def slots(self, group: Group) -> Sequence[str]:
        return ("sum",)

    def start(self, group: Group, p: Tensor, name: str) -> Any:
        return super().start(group, p, name) + to_numpy(p.dtype).type(group["initial_accumulator_value"])

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        p, g = _decayed(group, p, g)
        t = group.count.to(group.rate.dtype)
        rate = _scalar(group.rate / ((t - 1) * group["lr_decay"] + 1), p)
        s = state["sum"] + g * g
        return p - rate * g / (s.sqrt() + group["eps"]), {"sum": s}


class Adadelta(RuleOptimizer):
    """v = rho v + (1 - rho) g**2;  d = g sqrt(u + eps) / sqrt(v + eps);  u = rho u + (1 - rho) d**2;  p -= lr d

    Source: Zeiler 2012, arXiv:1212.5701.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check("Adadelta", "lr", lr)
        check("Adadelta", "rho", rho, high=1.0)
        check("Adadelta", "eps", eps)
        check("Adadelta", "weight_decay", weight_decay)
        more = {"foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        super().__init__(
            params,
            {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize, **more},
        )

    def slots(self, group: Group) -> Sequence[str]:
        return ("square_avg", "acc_delta")

    def counts(self, group: Group) -> bool:
        return False

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        p, g = _decayed(group, p, g)
        rho, eps = group.factors("rho")[0].to(p.dtype), group["eps"]
        v = state["square_avg"] * rho.value + g * g * rho.rest
        d = (state["acc_delta"] + eps).sqrt() / (v + eps).sqrt() * g
        u = state["acc_delta"] * rho.value + d * d * rho.rest
        return p - d * _scalar(group.rate, p), {"square_avg": v, "acc_delta": u}


class RMSprop(RuleOptimizer):
    """v = alpha v + (1 - alpha) g**2;  p -= lr g / (sqrt(v) + eps)

    `centered` subtracts the square of the mean gradient from v; `momentum` accumulates the steps.
    Source: Hinton, lecture 6 of "Neural networks for machine learning" (2012).
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        for option, value in (
            ("lr", lr), ("alpha", alpha), ("eps", eps), ("weight_decay", weight_decay), ("momentum", momentum),
        ):  # fmt: skip
            check("RMSprop", option, value)
        options = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        more = {"capturable": capturable, "foreach": foreach, "differentiable": differentiable}
        super().__init__(params, {**options, "centered": centered, "maximize": maximize, **more})

    def slots(self, group: Group) -> Sequence[str]:
        more = (("momentum_buffer",) if group["momentum"] else ()) + (
            ("grad_avg",) if group["centered"] else ()
        )
        return ("square_avg", *more)

    def counts(self, group: Group) -> bool:
        return False

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        p, g = _decayed(group, p, g)
        alpha = group.factors("alpha")[0].to(p.dtype)
        v = state["square_avg"] * alpha.value + g * g * alpha.rest
        new = {"square_avg": v}
        spread = v
        if group["centered"]:
            mean = new["grad_avg"] = state["grad_avg"] * alpha.value + g * alpha.rest
            spread = v - mean * mean
        step = g / (spread.sqrt() + group["eps"])
        if group["momentum"]:
            momentum = group.factors("momentum")[0].to(p.dtype).value
            step = new["momentum_buffer"] = state["momentum_buffer"] * momentum + step
        return p - step * _scalar(group.rate, p), new


class Adamax(RuleOptimizer):
    """m = b1 m + (1 - b1) g;  u = max(b2 u, |g| + eps);  p -= lr / (1 - b1**t) * m / u

    Source: Kingma & Ba 2014, arXiv:1412.6980, section 7.1.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        _check_adam("Adamax", lr, betas, eps, weight_decay)
        more = {"foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximize,
                **more,
            },
        )

    def slots(self, group: Group) -> Sequence[str]:
        return ("exp_avg", "exp_inf")

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        p, g = _decayed(group, p, g)
        b1, b2 = (b.to(p.dtype) for b in group.factors("betas"))
        t = group.count.to(group.rate.dtype)
        m = state["exp_avg"] * b1.value + g * b1.rest
        u = maximum(state["exp_inf"] * b2.value, g.abs() + group["eps"])
        return p - _scalar(group.rate / one_minus_power(b1.log, t), p) * m / u, {"exp_avg": m, "exp_inf": u}


def _check_adam(name: str, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    check(name, "lr", lr)
    check(name, "eps", eps)
    check_betas(name, betas)
    check(name, "weight_decay", weight_decay)


class NAdam(RuleOptimizer):
    """Adam with Nesterov's momentum, whose weight mu_t = b1 (1 - 0.96**(t momentum_decay) / 2) grows.

    Source: Dozat, ICLR workshop 2016, as torch.optim.NAdam has it.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        _check_adam("NAdam", lr, betas, eps, weight_decay)
        check("NAdam", "momentum_decay", momentum_decay)
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        more = {"foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        super().__init__(
            params,
            {
                **options,
                "momentum_decay": momentum_decay,
                "decoupled_weight_decay": decoupled_weight_decay,
                **more,
            },
        )

    def slots(self, group: Group) -> Sequence[str]:
        return ("exp_avg", "exp_avg_sq", "mu_product")

    def start(self, group: Group, p: Tensor, name: str) -> Any:
        return np.ones((), np.float64) if name == "mu_product" else super().start(group, p, name)

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        p, g = _decayed(group, p, g)
        b1, b2 = (b.to(p.dtype) for b in group.factors("betas"))
        t = group.count.double()
        decay = math.log(0.96) * group["momentum_decay"]
        beta = group.factors("betas")[0].value.double()
        mu, after = ((1 - (n * decay).exp() * 0.5) * beta for n in (t, t + 1))
        product = state["mu_product"] * mu
        m = state["exp_avg"] * b1.value + g * b1.rest
        v = state["exp_avg_sq"] * b2.value + g * g * b2.rest
        rate = group.rate.double()
        scale = _scalar(1 / one_minus_power(b2.log, t), p)
        root = (v * scale).sqrt() + group["eps"]
        now = _scalar(rate * (1 - mu) / (1 - product), p)
        later = _scalar(rate * after / (1 - product * after), p)
        return p - now * g / root - later * m / root, {"exp_avg": m, "exp_avg_sq": v, "mu_product": product}


class RAdam(RuleOptimizer):
    """Adam whose adaptive part starts when the variance of its scale is tractable: rho_t > 5.

    Source: Liu et al. 2019, arXiv:1908.03265.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        _check_adam("RAdam", lr, betas, eps, weight_decay)
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        more = {"foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        super().__init__(params, {**options, "decoupled_weight_decay": decoupled_weight_decay, **more})

    def slots(self, group: Group) -> Sequence[str]:
        return ("exp_avg", "exp_avg_sq")

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        p, g = _decayed(group, p, g)
        b1, b2 = (b.to(p.dtype) for b in group.factors("betas"))
        t = group.count.double()
        m = state["exp_avg"] * b1.value + g * b1.rest
        v = state["exp_avg_sq"] * b2.value + g * g * b2.rest
        left = one_minus_power(b2.log, t)
        longest = 2 / group.factors("betas")[1].rest.double() - 1
        rho = longest - t * 2 * (1 - left) / left
        safe = maximum(rho, 5.1)
        shape = ((safe - 4) * (safe - 2) * longest / ((longest - 4) * (longest - 2) * safe)).sqrt()
        rate = group.rate.double() / one_minus_power(b1.log, t)
        adaptive = _scalar(rate * shape * left.sqrt(), p) / (v.sqrt() + group["eps"])
        step = where(gt(rho, 5.0), adaptive, _scalar(rate, p))
        return p - m * step, {"exp_avg": m, "exp_avg_sq": v}


class Rprop(RuleOptimizer):
    """Each element has a step size, which grows while its gradient keeps its sign and shrinks when that changes.

    Source: Riedmiller & Braun, ICNN 1993.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check("Rprop", "lr", lr)
        check_pair("Rprop", "etas", etas)
        check("Rprop", "etas[0]", etas[0], below=1.0)
        check("Rprop", "etas[1]", etas[1], low=1.0)
        if etas[0] == 0 or etas[1] == 1:
            raise ArgumentError(f"Rprop: etas must be a number between 0 and 1, and one above 1, got {etas}")
        more = {"foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        super().__init__(
            params, {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize, **more}
        )

    def slots(self, group: Group) -> Sequence[str]:
        return ("prev", "step_size")

    def start(self, group: Group, p: Tensor, name: str) -> Any:
        zeros = super().start(group, p, name)
        return zeros + to_numpy(p.dtype).type(group["lr"]) if name == "step_size" else zeros

    def counts(self, group: Group) -> bool:
        return False

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        shrinks, grows = group["etas"]
        least, most = group["step_sizes"]
        turned = g * state["prev"]
        size = state["step_size"]
        size = where(gt(turned, 0), size * grows, where(lt(turned, 0), size * shrinks, size))
        size = clamp(size, least, most)
        g = where(lt(turned, 0), 0.0, g)
        return p - sign(g) * size, {"prev": g, "step_size": size}


class ASGD(RuleOptimizer):
    """p = p (1 - lambd eta_t) - eta_t g, eta_t = lr / (1 + lambd lr t)**alpha; `ax` is the mean of p from step t0 on.

    Source: Polyak & Juditsky, SIAM J. Control Optim. 30 (1992).
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check("ASGD", "lr", lr)
        check("ASGD", "weight_decay", weight_decay)
        options = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        more = {"foreach": foreach, "differentiable": differentiable, "capturable": capturable}
        super().__init__(params, {**options, "maximize": maximize, **more})

    def slots(self, group: Group) -> Sequence[str]:
        return ("ax",)

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        p, g = _decayed(group, p, g)
        t, rate, lambd = group.count.double(), group.rate.double(), group["lambd"]
        before = t - 1  # the rate of this step was set at the end of the one before
        eta = rate / ((before * rate * lambd + 1).log() * group.factors("alpha")[0].value.double()).exp()
        new = p * _scalar(1 - eta * lambd, p) - g * _scalar(eta, p)
        mu = _scalar(1 / maximum(before - group["t0"], 1.0), p)
        return new, {"ax": state["ax"] + (new - state["ax"]) * mu}
