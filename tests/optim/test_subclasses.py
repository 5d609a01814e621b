"""Optimizers written for torch: the same class on both libraries takes the same steps; groups, hooks, saving."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
import warnings
from abc import ABC
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")


def optimizer_module(lib: Any) -> Any:
    """torch.optim.optimizer, which torch hides as an attribute."""
    return importlib.import_module(f"{lib.__name__}.optim.optimizer")


def problem(lib: Any) -> tuple[list[Any], Callable[[], Any]]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 3)), rng.standard_normal(3), np.ones(2)]
    params = [lib.nn.Parameter(lib.tensor(a.astype(np.float32))) for a in arrays]
    x, y = (lib.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((5, 4), (5, 3)))
    return params, lambda: ((x @ params[0] + params[1]).sin() - y).square().sum()


def adam_by_hand(lib: Any) -> Any:
    class ByHand(ABC, lib.optim.Optimizer):  # type: ignore[misc, name-defined]
        """In place on data, with a Python number of steps."""

        def __init__(
            self, params: Any, lr: Any = optimizer_module(lib).required, betas: Any = (0.9, 0.99)
        ) -> None:
            super().__init__(params, {"lr": lr, "betas": betas, "eps": 1e-8, "weight_decay": 0.01})

        def __setstate__(self, state: Any) -> None:
            super().__setstate__(state)
            for group in self.param_groups:
                group.setdefault("later", True)

        def step(self, closure: Any = None) -> Any:
            loss = None
            if closure is not None:
                with lib.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                b1, b2 = group["betas"]
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    grad, state = p.grad.data, self.state[p]
                    if len(state) == 0:
                        state["step"] = 0
                        state["m"] = lib.zeros_like(p.data, memory_format=lib.preserve_format)
                        state["v"] = lib.zeros_like(p.data)
                    state["step"] += 1
                    m, v = state["m"], state["v"]
                    p.data.mul_(1 - group["lr"] * group["weight_decay"])
                    m.mul_(b1).add_(grad, alpha=1 - b1)
                    v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
                    bias = 1 - b1 ** state["step"]
                    denominator = (v.sqrt() / math.sqrt(1 - b2 ** state["step"])).add_(group["eps"])
                    p.data.addcdiv_(m, denominator, value=-group["lr"] / bias)
            return loss

    return ByHand


def foreach(lib: Any) -> Any:
    class Foreach(lib.optim.Optimizer):  # type: ignore[misc, name-defined]
        """Lists, a tensor of steps, a decorated step."""

        def __init__(self, params: Any, lr: float = 0.05) -> None:
            super().__init__(params, {"lr": lr, "differentiable": False})

        @optimizer_module(lib)._use_grad_for_differentiable
        def step(self, closure: Any = None) -> Any:
            self._cuda_graph_capture_health_check()
            for group in self.param_groups:
                params = [p for p in group["params"] if p.grad is not None]
                grads = [p.grad for p in params]
                for p in params:
                    if "step" not in self.state[p]:
                        self.state[p]["step"] = lib.tensor(0.0)
                        self.state[p]["m"] = [lib.zeros_like(p), lib.ones_like(p)]
                steps, first, second = (
                    [self.state[p]["step"] for p in params], *([self.state[p]["m"][k] for p in params] for k in (0, 1))
                )  # fmt: skip
                lib._foreach_add_(steps, 1)
                lib._foreach_mul_(first, 0.9)
                lib._foreach_add_(first, grads, alpha=0.1)
                lib._foreach_lerp_(second, lib._foreach_abs(grads), 0.2)
                scale = [group["lr"] / (1 - 0.9 ** s.item()) for s in steps]
                updates = lib._foreach_div(first, second)
                lib._foreach_mul_(updates, scale)
                lib._foreach_sub_(params, updates)

    return Foreach


def of_adam(lib: Any) -> Any:
    class OfAdam(lib.optim.Adam):  # type: ignore[misc]
        """A subclass of a built-in one with a step of its own."""

        @lib.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["step"], state["exp_avg"] = 0, lib.zeros_like(p)
                    state["step"] += 1
                    state["exp_avg"].lerp_(p.grad, 1 - group["betas"][0])
                    p.add_(state["exp_avg"].sign(), alpha=-group["lr"] / state["step"] ** 0.5)

    return OfAdam


def lookahead(lib: Any) -> Any:
    class Lookahead(lib.optim.SGD):  # type: ignore[misc]
        """super().step(), then more."""

        @lib.no_grad()
        def step(self, closure: Any = None) -> Any:
            before = [p.clone() for g in self.param_groups for p in g["params"]]
            out = super().step(closure)
            for p, q in zip((p for g in self.param_groups for p in g["params"]), before, strict=True):
                p.copy_(q + 0.5 * (p - q))
            return out

    return Lookahead


MAKERS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "by hand": (adam_by_hand, {"lr": 0.05}),
    "foreach": (foreach, {}),
    "of adam": (of_adam, {"lr": 0.05}),
    "lookahead": (lookahead, {"lr": 0.05, "momentum": 0.9}),
}


def run(optimizer: Any, loss: Callable[[], Any], steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


@pytest.mark.parametrize("name", MAKERS)
def test_steps_saving_and_schedules(name: str) -> None:
    """Five steps; the state goes into a new optimizer; a schedule changes the rate; five more."""
    results: list[list[Any]] = []
    for lib in (weft, torch):
        make, options = MAKERS[name]
        kind = make(lib)
        params, loss = problem(lib)
        groups = [{"params": params[:1], "lr": 0.02}, {"params": params[1:]}]
        first = kind(groups, **options)
        run(first, loss, 5)
        saved = copy.deepcopy(first.state_dict())
        second = kind([{"params": params[:1], "lr": 1.0}, {"params": params[1:]}], **options)
        second.load_state_dict(saved)
        schedule = lib.optim.lr_scheduler.ExponentialLR(second, 0.5)
        run(second, loss, 2)
        schedule.step()
        run(second, loss, 2)
        results.append([p.detach().numpy() for p in params])
        results[-1].append([g["lr"] for g in second.param_groups])
        assert list(saved["state"]) == [0, 1] or name == "lookahead"
        assert isinstance(second.state, dict) and second.state[lib.ones(1)] == {}
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_a_step_is_computed_at_once_and_its_plan_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs do not pile up, and numbers that change from step to step ask for no new program."""
    from weft.scheduler import realize as planner

    params, loss = problem(weft)
    optimizer = adam_by_hand(weft)(params, lr=0.05)
    run(optimizer, loss, 4)
    assert all(p.value.node.storage is not None for p in params)
    for state in list(optimizer.state.values()):
        assert all(state[k].value.node.storage is not None for k in ("m", "v"))
    made: list[Any] = []
    original = planner._from_disk_or_built
    monkeypatch.setattr(
        planner, "_from_disk_or_built", lambda *a, **k: (made.append(1), original(*a, **k))[1]
    )
    run(optimizer, loss, 3)
    assert not made


def test_text_of_every_optimizer() -> None:
    """repr, which programs log and parse: the options of torch's, with their defaults."""
    names = (
        "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "RMSprop", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD",
        "Adafactor", "LBFGS", "Muon",
    )  # fmt: skip
    for name in names:
        texts = [
            repr(getattr(lib.optim, name)([lib.ones(2, 2, requires_grad=True)])) for lib in (weft, torch)
        ]
        assert texts[0] == texts[1]
    p = weft.ones(1, requires_grad=True)
    assert "foreach: True" in repr(weft.optim.Adam([p], foreach=True, amsgrad=True))


def test_hooks() -> None:
    logs: list[list[Any]] = []
    for lib in (weft, torch):
        log: list[Any] = []
        for kind in (adam_by_hand(lib), lib.optim.SGD):
            params, loss = problem(lib)
            o = kind(params, lr=0.1)
            everywhere = optimizer_module(lib)
            handles = [
                everywhere.register_optimizer_step_pre_hook(
                    lambda o, a, k: log.append(("all before", len(a), len(k)))
                ),
                everywhere.register_optimizer_step_post_hook(lambda o, a, k: log.append("all after")),
                o.register_step_pre_hook(lambda o, a, k: log.append("before")),
                o.register_step_post_hook(lambda o, a, k: log.append("after")),
                o.register_state_dict_pre_hook(lambda o: log.append("saving")),
                o.register_state_dict_post_hook(lambda o, d: {**d, "extra": 1}),
                o.register_state_dict_post_hook(lambda o, d: log.append(sorted(d)), prepend=True),
                o.register_load_state_dict_pre_hook(lambda o, d: d.pop("extra") and None),
                o.register_load_state_dict_post_hook(lambda o: log.append("loaded")),
            ]
            run(o, loss, 1)
            state = o.state_dict()
            o.load_state_dict(state)
            log.append(sorted(state))
            for h in handles:
                h.remove()
            run(o, loss, 1)
        logs.append(log)
    assert logs[0] == logs[1]


def test_mistakes() -> None:
    attempts: dict[str, Callable[[Any, Any], Any]] = {
        "iterable of Tensors or dicts": lambda lib, kind: kind(lib.ones(1, requires_grad=True), lr=1),
        "empty parameter list": lambda lib, kind: kind([], lr=1),
        "required optimization parameter lr": lambda lib, kind: kind([lib.ones(1, requires_grad=True)]),
        "can't optimize a non-leaf Tensor": lambda lib, kind: kind(
            [lib.ones(1, requires_grad=True) * 2], lr=1
        ),
        "can only optimize Tensors": lambda lib, kind: kind([3], lr=1),
        "ordered collections": lambda lib, kind: kind([{"params": {lib.ones(1)}}], lr=1),
        "different number of parameter groups": lambda lib, kind: kind([lib.ones(1)], lr=1).load_state_dict(
            {"state": {}, "param_groups": []}
        ),
        "match the size of optimizer's group": lambda lib, kind: kind([lib.ones(1)], lr=1).load_state_dict(
            {"state": {}, "param_groups": [{"params": [0, 1]}]}
        ),
        "more than one parameter group": lambda lib, kind: (
            lambda p: kind([{"params": [p]}, {"params": [p]}], lr=1)
        )(lib.ones(1)),
    }
    for words, act in attempts.items():
        kinds: list[type[BaseException]] = []
        for lib in (weft, torch):
            with (
                warnings.catch_warnings(),
                pytest.raises((ValueError, TypeError, RuntimeError), match=words) as caught,
            ):
                warnings.simplefilter("ignore")
                act(lib, adam_by_hand(lib))
            kinds.append(caught.type)
        assert issubclass(kinds[0], kinds[1]), words
    with pytest.raises(NotImplementedError, match="define step"):
        type("Empty", (weft.optim.Optimizer,), {})([weft.ones(1)], {}).step()


def test_names_are_kept_with_parameters() -> None:
    found = []
    for lib in (weft, torch):
        layer = lib.nn.Linear(2, 1)
        o = adam_by_hand(lib)(layer.named_parameters(), lr=0.1)
        found.append((o.param_groups[0]["param_names"], o.state_dict()["param_groups"][0]["param_names"]))
        assert o.param_groups[0]["params"][0] is layer.weight
    assert found[0] == found[1]


class Pickled(weft.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.5})

    @weft.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("n", weft.zeros(1)).add_(1)
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])


def test_copies_and_pickles() -> None:
    p = weft.ones(2, requires_grad=True)
    o = Pickled([p])
    (p * p).sum().backward()
    o.step()
    other = pickle.loads(pickle.dumps(o))
    q = other.param_groups[0]["params"][0]
    assert q.tolist() == [0.0, 0.0] and other.state[q]["n"].tolist() == [1.0] and other.defaults["lr"] == 0.5
    q.grad = weft.ones(2)
    other.step()
    assert q.tolist() == [-0.5, -0.5] and p.tolist() == [0.0, 0.0]


def test_older_orders_of_arguments() -> None:
    def found(lib: Any) -> list[Any]:
        a, b, c = (lib.tensor([x, 2.0]) for x in (1.0, 3.0, 5.0))
        out = [lib.add(a, 2, b), a.sub(0.5, b), lib.addcmul(a, 3, b, c), a.addcdiv(2, b, c)]
        a.add_(-1, b)
        a.addcmul_(0.5, b, c)
        return [t.tolist() for t in [*out, a]]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(found(weft), found(torch), rtol=1e-6)
    with pytest.raises(TypeError):
        weft.add(weft.ones(1), weft.ones(1), weft.ones(1))
