"""Limited-memory BFGS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.args.modes import enable_grad, no_grad
from weft.core.execute.changes import restored_on_error
from weft.core.execute.realization import realize
from weft.core.layout.creation import tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.optim.optimizer import Group, Params, RuleOptimizer, check

Array = np.ndarray[Any, Any]


class LBFGS(RuleOptimizer):
    """p += t d, d = -H g with H the inverse Hessian that the last `history_size` steps suggest

    A step calls the closure, which computes loss and gradients, up to max_eval times in max_iter iterations, and each
    value is looked at, so it cannot be compiled as a whole. The history is kept on the host. line_search_fn
    "strong_wolfe" chooses t; otherwise t is lr. Source: Nocedal & Wright, Numerical Optimization (2006), 7.2 and 3.5.

    >>> optimizer = weft.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    >>> optimizer.step(closure)
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check("LBFGS", "lr", lr)
        if line_search_fn not in (None, "strong_wolfe"):
            raise ArgumentError(
                f"LBFGS: line_search_fn must be 'strong_wolfe' or None, got {line_search_fn!r}"
            )
        options = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
        }
        more = {
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
        }
        super().__init__(params, {**options, **more, "line_search_fn": line_search_fn})
        if len(self.param_groups) != 1:
            raise ArgumentError("LBFGS: takes one group of parameters")
        self.memory: dict[str, Any] = {"steps": [], "changes": [], "iterations": 0}

    def slots(self, group: Group) -> Sequence[str]:
        return ()

    def rule(
        self, group: Group, p: Tensor, g: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError

    def _gather(self) -> Array:
        """All gradients as one vector."""
        grads = [p.grad for p in self.param_groups[0].params]
        realize(*(g for g in grads if g is not None))
        parts = [
            (np.zeros(int(p.numel())) if g is None else g.detach().numpy().astype(np.float64)).reshape(-1)  # pyright: ignore[reportArgumentType]  (a known size)
            for p, g in zip(self.param_groups[0].params, grads, strict=True)
        ]
        return np.concatenate(parts)

    def _values(self) -> Array:
        return np.concatenate(
            [p.detach().numpy().astype(np.float64).reshape(-1) for p in self.param_groups[0].params]
        )

    def _set(self, x: Array) -> None:
        at = 0
        with no_grad():
            for p in self.param_groups[0].params:
                n = int(np.prod([k for k in p.shape if isinstance(k, int)], dtype=int))
                part = x[at : at + n].reshape([k for k in p.shape if isinstance(k, int)])
                p.copy_(tensor(part, dtype=p.dtype, device=p.device))
                at += n

    def _direction(self, g: Array, memory: Mapping[str, Any]) -> Array:
        """-H g by the two-loop recursion."""
        steps, changes = memory["steps"], memory["changes"]
        q = -g
        alphas: list[float] = []
        for s, y in zip(reversed(steps), reversed(changes), strict=True):
            alphas.append(float(s @ q) / float(y @ s))
            q = q - alphas[-1] * y
        q = q * memory["scale"]
        for s, y, alpha in zip(steps, changes, reversed(alphas), strict=True):
            q = q + s * (alpha - float(y @ q) / float(y @ s))
        return q

    def _step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Minimize for up to max_iter iterations; the loss at the start."""
        if closure is None:
            raise ArgumentError("LBFGS: step needs a closure that computes the loss and the gradients")
        memory = dict(self.memory)
        with restored_on_error(self.param_groups[0].params):
            first = self._minimize(closure, memory)
            self.memory = memory
        return first

    def _minimize(self, closure: Callable[[], Tensor], memory: dict[str, Any]) -> Tensor:
        """The step, with a history that it changes."""
        group = self.param_groups[0]
        evaluations = 0

        def evaluate(x: Array | None = None) -> tuple[float, Array, Tensor]:
            nonlocal evaluations
            evaluations += 1
            if x is not None:
                self._set(x)
            with enable_grad():
                loss = closure()
            return float(loss.item()), self._gather(), loss

        value, g, first = evaluate()
        iterations = 0
        if abs(g).max(initial=0.0) > group["tolerance_grad"]:
            while iterations < group["max_iter"]:
                iterations += 1
                memory["iterations"] += 1
                if memory["iterations"] == 1:
                    d, memory["scale"] = -g, 1.0
                else:
                    y, s = g - memory["g"], memory["d"] * memory["t"]
                    if (ys := float(y @ s)) > 1e-10:
                        for name, x in (("steps", s), ("changes", y)):
                            memory[name] = [*memory[name], x][-group["history_size"] :]
                        memory["scale"] = ys / float(y @ y)
                    d = self._direction(g, memory)
                memory["g"], before = g, value
                t = min(1.0, 1.0 / abs(g).sum()) * group["lr"] if memory["iterations"] == 1 else group["lr"]
                slope = float(g @ d)
                memory["d"], memory["t"] = d, t
                if slope > -group["tolerance_change"]:
                    break
                start = self._values()
                if group["line_search_fn"] is None:
                    self._set(start + t * d)
                    if iterations != group["max_iter"]:
                        value, g, _ = evaluate()
                else:
                    t, value, g = _strong_wolfe(
                        lambda t, start=start, d=d: evaluate(start + t * d)[:2], t, d, value, g, slope,
                        group["tolerance_change"],
                    )  # fmt: skip
                    self._set(start + t * d)
                memory["t"] = t
                if iterations == group["max_iter"] or evaluations >= group["max_eval"]:
                    break
                if abs(g).max(initial=0.0) <= group["tolerance_grad"]:
                    break
                if abs(d * t).max(initial=0.0) <= group["tolerance_change"]:
                    break
                if abs(value - before) < group["tolerance_change"]:
                    break
        return first

    def _packed(self) -> dict[str, Any]:
        return {**super()._packed(), "memory": dict(self.memory)}

    def _unpack(self, state_dict: Mapping[str, Any]) -> None:
        super()._unpack(state_dict)
        self.memory = dict(state_dict["memory"])


def _cubic(
    x1: float, f1: float, g1: float, x2: float, f2: float, g2: float, low: float, high: float
) -> float:
    """The minimum of the cubic through two points and slopes, within bounds."""
    d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2)
    square = d1**2 - g1 * g2
    if square < 0:
        return (low + high) / 2
    d2 = square**0.5
    if x1 <= x2:
        at = x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2))
    else:
        at = x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2 * d2))
    return min(max(at, low), high)


def _strong_wolfe(
    evaluate: Callable[[float], tuple[float, Array]], t: float, d: Array, f: float, g: Array, slope: float,
    tolerance: float, c1: float = 1e-4, c2: float = 0.9, most: int = 25,
) -> tuple[float, float, Array]:  # fmt: skip
    """A step length that satisfies the strong Wolfe conditions, with the value and gradient there."""
    size = abs(d).max()
    points: list[tuple[float, float, Array, float]] = []
    before = (0.0, f, g, slope)
    new = (t, *(found := evaluate(t)), float(found[1] @ d))
    tries, done = 1, False
    while tries < most:
        if new[1] > f + c1 * t * slope or (tries > 1 and new[1] >= before[1]):
            points = [before, new]
            break
        if abs(new[3]) <= -c2 * slope:
            points, done = [new], True
            break
        if new[3] >= 0:
            points = [before, new]
            break
        low, high = t + 0.01 * (t - before[0]), t * 10
        after = _cubic(before[0], before[1], before[3], t, new[1], new[3], low, high)
        before, t = new, after
        new = (t, *(found := evaluate(t)), float(found[1] @ d))
        tries += 1
    if not points:
        points = [(0.0, f, g, slope), new]
    stuck = False
    k_low, k_high = (0, 1) if points[0][1] <= points[-1][1] else (1, 0)
    while not done and tries < most:
        a, b = points
        if abs(b[0] - a[0]) * size < tolerance:
            break
        left, right = min(a[0], b[0]), max(a[0], b[0])
        t = _cubic(a[0], a[1], a[3], b[0], b[1], b[3], left, right)
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:
            if stuck or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        new = (t, *(found := evaluate(t)), float(found[1] @ d))
        tries += 1
        if new[1] > f + c1 * t * slope or new[1] >= points[k_low][1]:
            points[k_high] = new
            k_low, k_high = (0, 1) if points[0][1] <= points[1][1] else (1, 0)
        else:
            if abs(new[3]) <= -c2 * slope:
                done = True
            elif new[3] * (points[k_high][0] - points[k_low][0]) >= 0:
                points[k_high] = points[k_low]
            points[k_low] = new
    best = points[k_low] if len(points) > 1 else points[0]
    return best[0], best[1], best[2]
