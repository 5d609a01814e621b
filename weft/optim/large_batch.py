"""Optimizers that torch lacks or has lately: LAMB, Lion, Muon, Adafactor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.pointwise.elementwise import maximum, minimum, sign, where
from weft.core.pointwise.float_format import MANTISSA
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import accumulator, to_numpy
from weft.optim.adam import one_minus_power
from weft.optim.optimizer import Group, Params, RuleOptimizer, check, check_betas, check_pair

State = dict[str, Tensor]


class LAMB(RuleOptimizer):
    """u = m^ / (sqrt(v^) + eps) + weight_decay p;  p -= lr |p| / |u| u, with Adam's m^ and v^

    The ratio of norms is 1 where one of them is 0. Source: You et al. 2019, arXiv:1904.00962.

    >>> optimizer = weft.optim.LAMB(model.parameters(), lr=1e-3, weight_decay=0.01)
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check("LAMB", "lr", lr)
        check_betas("LAMB", betas)
        check("LAMB", "weight_decay", weight_decay)
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        )

    def slots(self, group: Group) -> Sequence[str]:
        return ("exp_avg", "exp_avg_sq")

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        b1, b2 = (b.to(p.dtype) for b in group.factors("betas"))
        t = group.count.to(group.rate.dtype)
        m = state["exp_avg"] * b1.value + g * b1.rest
        v = state["exp_avg_sq"] * b2.value + g * g * b2.rest
        first, second = (1 / one_minus_power(b.log, t) for b in (b1, b2))
        u = (
            m * first.to(p.dtype) / ((v * second.to(p.dtype)).sqrt() + group["eps"])
            + p * group.factors("weight_decay")[0].to(p.dtype).value
        )
        wide = accumulator(p.dtype)
        size, step = (x.to(wide).square().sum().sqrt() for x in (p, u))
        ratio = where((size > 0) & (step > 0), size / where(step > 0, step, 1.0), 1.0)
        return p - u * (ratio * group.rate).to(p.dtype), {"exp_avg": m, "exp_avg_sq": v}


class Lion(RuleOptimizer):
    """p -= lr (sign(b1 m + (1 - b1) g) + weight_decay p);  m = b2 m + (1 - b2) g

    Source: Chen et al. 2023, arXiv:2302.06675.

    >>> optimizer = weft.optim.Lion(model.parameters(), lr=1e-4, weight_decay=0.1)
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check("Lion", "lr", lr)
        check_betas("Lion", betas)
        check("Lion", "weight_decay", weight_decay)
        super().__init__(
            params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        )

    def slots(self, group: Group) -> Sequence[str]:
        return ("exp_avg",)

    def counts(self, group: Group) -> bool:
        return False

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        b1, b2 = (b.to(p.dtype) for b in group.factors("betas"))
        m, rate = state["exp_avg"], group.rate
        if group["weight_decay"]:
            p = p * (1 - rate * group.factors("weight_decay")[0].value).to(p.dtype)
        step = sign(m * b1.value + g * b1.rest)
        return p - step * rate.to(p.dtype), {"exp_avg": m * b2.value + g * b2.rest}


class Muon(RuleOptimizer):
    """b = b + (1 - momentum) (g - b);  p -= lr adjusted * orthogonalized(b), for matrices

    The momentum's singular values are brought near 1 by Newton-Schulz steps x = a x + (b A + c A A) x, A = x x', in
    float32 (torch has them in bfloat16). weight_decay is decoupled. adjust_lr_fn: "original" scales lr by
    sqrt(max(1, rows / columns)), "match_rms_adamw" by 0.2 sqrt(max(rows, columns)).
    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/, as torch.optim.Muon has it.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        check("Muon", "lr", lr)
        check("Muon", "momentum", momentum)
        check("Muon", "weight_decay", weight_decay)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ArgumentError(
                f"Muon: adjust_lr_fn must be 'original' or 'match_rms_adamw', got {adjust_lr_fn!r}"
            )
        options = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        more = {
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, {**options, **more})
        for group in self.param_groups:
            for p in group.params:
                if p.ndim != 2:
                    raise ArgumentError(
                        f"Muon: parameters must be matrices, got shape {tuple(p.shape)}; use AdamW for the others"
                    )

    def slots(self, group: Group) -> Sequence[str]:
        return ("momentum_buffer",)

    def counts(self, group: Group) -> bool:
        return False

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        momentum = group.factors("momentum")[0].to(p.dtype)
        b = state["momentum_buffer"] * momentum.value + g * momentum.rest
        step = g * momentum.rest + b * momentum.value if group["nesterov"] else b
        rows, columns = (n for n in p.shape if isinstance(n, int))
        if group["adjust_lr_fn"] == "match_rms_adamw":
            ratio = 0.2 * max(rows, columns) ** 0.5
        else:
            ratio = max(1.0, rows / columns) ** 0.5
        step = _orthogonal(step, group["ns_coefficients"], group["ns_steps"], group["eps"])
        p = p * (1 - group.rate * group.factors("weight_decay")[0].value).to(p.dtype)
        return p - step * (group.rate * ratio).to(p.dtype), {"momentum_buffer": b}


def _orthogonal(g: Tensor, coefficients: Sequence[float], steps: int, eps: float) -> Tensor:
    """The nearest matrix with singular values about 1."""
    a, b, c = coefficients
    x = g.to(accumulator(g.dtype))
    rows, columns = (n for n in x.shape if isinstance(n, int))
    x = x.T if rows > columns else x
    x = x / maximum(x.square().sum().sqrt(), eps)
    for _ in range(steps):
        gram = (x @ x.T).contiguous()
        x = (x * a + (gram * b + (gram @ gram) * c) @ x).contiguous()
    return (x.T if rows > columns else x).to(g.dtype)


class Adafactor(RuleOptimizer):
    """Adam without first moments, whose second moments are kept as row and column means for matrices.

    Source: Shazeer & Stern 2018, arXiv:1804.04235, as torch.optim.Adafactor has it.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        check("Adafactor", "lr", lr)
        check("Adafactor", "beta2_decay", beta2_decay, low=None, high=0.0)
        check_pair("Adafactor", "eps", eps)
        check("Adafactor", "eps[0]", 0.0 if eps[0] is None else eps[0])
        check("Adafactor", "eps[1]", eps[1])
        check("Adafactor", "d", d, low=1.0)
        check("Adafactor", "weight_decay", weight_decay)
        options = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, {**options, "foreach": foreach, "maximize": maximize})

    def slots(self, group: Group) -> Sequence[str]:
        return ("row_var", "col_var", "variance")

    def start(self, group: Group, p: Tensor, name: str) -> Any:
        sizes = [n for n in p.shape if isinstance(n, int)]
        shapes = {"row_var": [*sizes[:-1], 1], "col_var": [*sizes[:-2], 1, *sizes[-1:]], "variance": sizes}
        kept = ("row_var", "col_var") if len(sizes) > 1 else ("variance",)
        return np.zeros(shapes[name] if name in kept else [0], to_numpy(p.dtype))

    def next(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        eps1, eps2 = group["eps"]
        if eps1 is None:  # as in torch the parameter's dtype decides, not what computes
            group = group.with_tensors([group.rate, group.count, *group.all_factors()])
            group["eps"] = (2.0 ** -MANTISSA[p.dtype.name], eps2)
        return super().next(group, p, g, state)

    def rule(self, group: Group, p: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        least, eps2 = group["eps"]
        t = group.count.to(group.rate.dtype)
        keep = (t.log() * group["beta2_decay"]).exp().to(p.dtype)
        rate = minimum(group.rate, 1 / t.sqrt())
        size: Callable[[Tensor], Tensor] = lambda x: x.square().mean().sqrt()  # noqa: E731
        alpha = maximum(size(p), eps2) * rate.to(p.dtype)
        if group["weight_decay"]:
            p = p * (1 - group.rate * group.factors("weight_decay")[0].value).to(p.dtype)
        if p.ndim > 1:
            row = state["row_var"] + (g.square().mean(-1, keepdim=True) - state["row_var"]) * keep
            col = state["col_var"] + (g.square().mean(-2, keepdim=True) - state["col_var"]) * keep
            v = row * col / maximum(row.mean(-2, keepdim=True), least)
            new = {"row_var": row, "col_var": col}
        else:
            v = state["variance"] + (g.square() - state["variance"]) * keep
            new = {"variance": v}
        step = g / maximum(v, least * least).sqrt()
        scale = alpha / maximum(size(step) / group["d"], 1.0)
        return p - step * scale, new
