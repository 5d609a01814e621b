"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.pointwise.elementwise import where
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.optim.optimizer import Group, Params, RuleOptimizer, check


class SGD(RuleOptimizer):
    """g += weight_decay * p;  b = momentum * b + (1 - dampening) * g (g itself at first);  p -= lr * b

    With nesterov, p -= lr * (g + momentum * b). `maximize` goes up instead of down.
    Source: Sutskever et al., ICML 2013, as torch.optim.SGD has it.

    >>> optimizer = weft.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check("SGD", "lr", lr)
        check("SGD", "momentum", momentum)
        check("SGD", "weight_decay", weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentError("SGD: nesterov needs a momentum and no dampening")
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        more = {"foreach": foreach, "differentiable": differentiable, "fused": fused}
        super().__init__(params, {**options, "nesterov": nesterov, "maximize": maximize, **more})

    def slots(self, group: Group) -> Sequence[str]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def counts(self, group: Group) -> bool:
        return bool(group["dampening"])

    def rule(
        self, group: Group, p: Tensor, g: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        dampening, rate = group["dampening"], group.rate.to(p.dtype)
        if group["weight_decay"]:
            g = g + p * group.factors("weight_decay")[0].to(p.dtype).value
        if not group["momentum"]:
            return p - g * rate, {}
        momentum = group.factors("momentum")[0].to(p.dtype).value
        b = state["momentum_buffer"] * momentum + g * (1 - dampening)
        if dampening:
            b = where(group.count == 1, g, b)
        step = g + b * momentum if group["nesterov"] else b
        return p - step * rate, {"momentum_buffer": b}
