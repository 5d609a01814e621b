"""Base of optimizers: groups of parameters with options, state per parameter, a step as one computation."""
# Tests: tests/optim/test_subclasses.py, tests/optim/test_steps.py

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import ge, le, lt
from typing import Any, SupportsFloat, cast
from weakref import WeakKeyDictionary

import numpy as np

from weft.core.args.handle import describe
from weft.core.args.modes import enable_grad, no_grad
from weft.core.composed.recorded import RecordedCalls, Recordings, take_over
from weft.core.execute.changes import restored_on_error
from weft.core.execute.pending import postponed
from weft.core.execute.realization import realize, spent_by_step
from weft.core.execute.replaced import Replaced, let_go
from weft.core.layout.creation import as_tensor, tensor
from weft.core.sharding.tensors import follow, tensor_like
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, GradError
from weft.ir.dtypes import DType, float32, float64, int64, to_numpy
from weft.ir.graph import Node
from weft.ir.placement import is_mesh
from weft.lazy_dataclass import dataclass
from weft.optim.base import (
    Optimizer,
    Params,
    ParamsT,
    StateDict,
    parameters_of,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
    required,
)
from weft.optim.base import RequiredParameter as _RequiredParameter
from weft.optim.base import capturable_doc as _capturable_doc
from weft.optim.base import default_to_fused_or_foreach as _default_to_fused_or_foreach
from weft.optim.base import differentiable_doc as _differentiable_doc
from weft.optim.base import disable_dynamo_if_unsupported as _disable_dynamo_if_unsupported
from weft.optim.base import dispatch_sqrt as _dispatch_sqrt
from weft.optim.base import foreach_doc as _foreach_doc
from weft.optim.base import fused_doc as _fused_doc
from weft.optim.base import get_scalar_dtype as _get_scalar_dtype
from weft.optim.base import get_value as _get_value
from weft.optim.base import global_optimizer_post_hooks as _global_optimizer_post_hooks
from weft.optim.base import global_optimizer_pre_hooks as _global_optimizer_pre_hooks
from weft.optim.base import maximize_doc as _maximize_doc
from weft.optim.base import params_doc as _params_doc
from weft.optim.base import stack_if_compiling as _stack_if_compiling
from weft.optim.base import use_grad_for_differentiable as _use_grad_for_differentiable
from weft.optim.base import view_as_real as _view_as_real

__all__ = [
    "Factor", "Group", "Optimizer", "Params", "ParamsT", "RuleOptimizer", "StateDict", "_RequiredParameter",
    "_capturable_doc",
    "_default_to_fused_or_foreach", "_differentiable_doc", "_disable_dynamo_if_unsupported", "_dispatch_sqrt",
    "_foreach_doc", "_fused_doc", "_get_scalar_dtype", "_get_value", "_global_optimizer_post_hooks",
    "_global_optimizer_pre_hooks", "_maximize_doc", "_params_doc", "_stack_if_compiling",
    "_use_grad_for_differentiable", "_view_as_real", "check", "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook", "required",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Factor:
    """A number b that rules multiply by, as tensors: b, 1 - b and log b, each rounded once from the exact one."""

    value: Tensor
    rest: Tensor
    log: Tensor

    def to(self, dtype: DType) -> Factor:
        """b and 1 - b in a parameter's dtype; the logarithm, which counts steps, as it is."""
        return Factor(self.value.to(dtype), self.rest.to(dtype), self.log)

    def become(self, number: float) -> None:
        """Have the tensors stand for another number."""
        for old, new in zip((self.value, self.rest, self.log), _forms(number), strict=True):
            old.copy_(tensor(new, dtype=old.dtype, device=old.device))


def _forms(b: float) -> tuple[float, float, float]:
    return b, 1 - b, math.log(b) if b > 0 else -math.inf


FACTORS = ("alpha", "betas", "momentum", "rho", "weight_decay")
"""Options that a schedule may change from step to step, as it may the learning rate."""


class Group(dict[str, Any]):
    """Parameters and their options. `rate` is the learning rate as a tensor, which setting "lr" changes; `factors`
    gives such tensors of other options.

    A number would be part of the computation, so that each new value would need a program of its own, and a compiled
    step would not see it.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        params: list[Tensor] = self["params"]
        kind = float64 if any(p.dtype is float64 for p in params) else float32
        if isinstance(self["lr"], Tensor):
            super().__setitem__("lr", float(self["lr"].item()))
        # what has no axes meets parameters anywhere, if it is the CPU's
        home = params[0].device if len({p.device for p in params}) == 1 else "cpu"
        self.rate = tensor(float(self["lr"]), dtype=kind, device=home)
        self.count = tensor(0, dtype=int64, device=home)
        self.tensors = {
            key: [
                Factor(*(tensor(x, dtype=kind, device=home) for x in _forms(b))) for b in _numbers(self[key])
            ]
            for key in FACTORS
            if key in self
        }

    def factors(self, key: str) -> list[Factor]:
        """The numbers of an option, one or several, as tensors."""
        return self.tensors[key]

    def all_factors(self) -> list[Tensor]:
        """The tensors of all options."""
        return [t for factors in self.tensors.values() for f in factors for t in (f.value, f.rest, f.log)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Group:
        """The options with other tensors for the rate, the count and the options', and no parameters."""
        out = Group.__new__(Group)
        for k, v in self.items():
            if k not in ("params", "lr"):
                dict[str, Any].__setitem__(out, k, v)
        out.rate, out.count, *rest = tensors
        each = iter(rest)
        out.tensors = {
            key: [Factor(next(each), next(each), next(each)) for _ in factors]
            for key, factors in self.tensors.items()
        }
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return _regrouped, (dict(self), dict(self.__dict__))

    @property
    def params(self) -> list[Tensor]:
        """The parameters."""
        return self["params"]

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            value = float(value.item()) if isinstance(value, Tensor) else value
            with restored_on_error((self.rate,)):
                self.rate.copy_(tensor(float(value), dtype=self.rate.dtype, device=self.rate.device))
                super().__setitem__(key, value)
        elif key in self.tensors:
            with restored_on_error(self.all_factors()):
                for factor, number in zip(self.tensors[key], _numbers(value), strict=True):
                    factor.become(number)
                super().__setitem__(key, value)
        else:
            super().__setitem__(key, value)


def _regrouped(options: dict[str, Any], tensors: dict[str, Any]) -> Group:
    """A group that was pickled, with the tensors of its options as they were."""
    out = Group.__new__(Group)
    out.update(options)
    out.__dict__.update(tensors)
    return out


def _numbers(option: float | Sequence[float]) -> list[float]:
    return [float(b) for b in option] if isinstance(option, Sequence) else [float(option)]


class RuleOptimizer(Optimizer):
    """Base of weft's optimizers: a subclass says what state a parameter needs, and its next value.

    `step()` rebinds every parameter and its state to expressions of the old ones, then computes them all in one plan.
    The number of steps is counted in a tensor per group, so a compiled step needs no new program for the next one.
    A step that is refused for want of memory, fails or is interrupted has changed nothing: see core/execute/changes.py.
    """

    param_groups: list[Group]

    @property
    def _steps_itself(self) -> bool:
        """True for a subclass with a step of its own, which keeps the state it likes, as torch's would."""
        return type(self).step is not RuleOptimizer.step and not type(self).__module__.startswith(
            "weft.optim."
        )

    # --- for subclasses

    @abstractmethod
    def slots(self, group: Group) -> Sequence[str]:
        """The names of the tensors, shaped like a parameter and zero at first, that the rule keeps for it."""

    def start(self, group: Group, p: Tensor, name: str) -> Any:
        """The state `name` of a parameter before the first step, as an array; None where the parameter needs none."""
        return np.zeros([n for n in p.shape if isinstance(n, int)], to_numpy(p.dtype))

    def counts(self, group: Group) -> bool:
        """True where the rule reads the number of the step, `group.count`."""
        return True

    @abstractmethod
    def rule(
        self, group: Group, p: Tensor, g: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The next value of a parameter and of its state, from the parameter, its gradient and its state."""

    # --- for users

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Optimize more parameters, with options that differ from the optimizer's."""
        if not isinstance(param_group, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(f"{self._name}: param_group must be a dict, but got {type(param_group)}")
        given = parameters_of(self._name, param_group)
        items: list[Any] = [given] if isinstance(given, Tensor) else list(given)
        params: list[Tensor] = [x[1] if isinstance(x, tuple) else x for x in items]
        known = {id(p) for group in self.param_groups for p in group.params}
        for k, p in enumerate(params):
            self._check(p, known)
            known.add(id(p))
            if not p.is_leaf:
                raise GradError(f"{self._name}: parameter {k} is the result of an operation, not a leaf")
        if not params:
            raise ArgumentError(f"{self._name}: a group has no parameters")
        realize(*params)
        group = Group({**self.defaults, **param_group, "params": params})
        self.param_groups.append(group)
        if not self._steps_itself:
            for p in params:
                self.state[p] = {}
            self._complete(group)

    def _complete(self, group: Group) -> None:
        """Give each parameter the state that its options need: they may have changed, as from no momentum to some."""
        names = self.slots(group)
        for p in group.params:
            state = self.state[p]
            for name in names:
                if name not in state and (start := self.start(group, p, name)) is not None:
                    state[name] = tensor_like(start, p)

    def _check(self, p: object, known: set[int]) -> None:
        if not isinstance(p, Tensor):
            raise DTypeError(f"{self._name}: parameters must be Tensors, got {type(p).__name__}")
        if not p.dtype.is_float:
            raise DTypeError(f"{self._name}: parameters must be floats, got {p.dtype.name}")
        if id(p) in known:
            raise ArgumentError(f"{self._name}: a parameter of shape {tuple(p.shape)} is given twice")

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update every parameter that has a gradient; a `closure` computes the loss and the gradients first."""
        if self.__dict__.get("_stepping"):  # super().step() of a subclass's, which has called them
            return self._step(closure)
        args, kwargs = self.before_step((self, closure) if closure is not None else (self,), {})
        loss = self._step(*args[1:], **kwargs)
        self.after_step(args, kwargs)
        return loss

    step.hooked = True  # pyright: ignore[reportFunctionMemberAccess]  (it calls the hooks itself)

    def _step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        rebound = self._rebound()
        own = type(self).__module__.startswith("weft.optim.")  # whose rules keep nothing of the old values
        spent = spent_by_step(rebound) if own else None
        are_kept = self._replaced.are_kept(rebound)
        with restored_on_error(rebound, spent=spent):
            with postponed():
                changed = self.advance()
            if spent is not None:
                spent.by = [t.value.node for t in changed]
            realize(*changed, spent=spent)
        if are_kept:
            let_go()
        return loss

    @cached_property
    def _replaced(self) -> Replaced:
        return Replaced()

    def _rebound(self) -> list[Tensor]:
        """The tensors that a step changes: parameters with gradients, their state, and counts of steps."""
        out: list[Tensor] = []
        for group in self.param_groups:
            out.append(group.count)
            for p in group.params:
                if p.grad is not None:
                    out.append(p)
                    out += self.state[p].values()
        return out

    def advance(self) -> list[Tensor]:
        """Rebind parameters and state to their next values without computing them; all that was rebound."""
        changed: list[Tensor] = []
        if self._steps_itself:  # super().step() of a subclass's
            self._follow_rule()
        with no_grad():
            for group in self.param_groups:
                learned = [p for p in group.params if p.grad is not None]
                if not learned:
                    continue
                if self.counts(group):
                    group.count += 1
                    changed.append(group.count)
                self._complete(group)
                rule = (
                    _RecordedRule.of(self, group) if type(self).__module__.startswith("weft.optim.") else None
                )
                for p in learned:
                    changed += self._update(group, p, rule)
        return changed

    def _follow_rule(self) -> None:
        """Take the count of steps from the state, where loading put it."""
        self.__dict__["_follows_rule"] = True
        for group in self.param_groups:
            for p in group.params:
                step = self.state[p].pop("step", None)
                if step is not None:
                    group.count.copy_(as_tensor(step))

    def _update(self, group: Group, p: Tensor, rule: _RecordedRule | None) -> list[Tensor]:
        grad, state = p.grad, self.state[p]
        assert grad is not None
        if is_mesh(p.value.node.device):
            for t in state.values():
                follow(t, p)
        found = None if rule is None else rule.next(p, grad, state)
        if found is not None:
            changed = [state[name] if name else p for name in found]
            take_over("step", changed, found.values())
            return changed
        value, new = self.next(group, p.detach(), grad.detach(), state)
        p.copy_(value)
        for name, tensor_ in new.items():
            state[name].copy_(tensor_)
        return [p, *(state[name] for name in new)]

    def next(
        self, group: Group, p: Tensor, g: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Apply the rule to the gradient or its negative; of 16-bit floats in float32, each rounded once."""
        g = -g if group.get("maximize") else g
        if not p.dtype.is_narrow:
            return self.rule(group, p, g, state)
        value, new = self.rule(group, _wide(p), _wide(g), {name: _wide(t) for name, t in state.items()})
        return value.to(p.dtype), {name: t.to(state[name].dtype) for name, t in new.items()}

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """Options, step counts and state, with parameters numbered in order. As in torch the tensors share their
        elements with the optimizer's: `copy.deepcopy` the dict to keep what they are now."""
        return self.saved(self._packed)

    def _packed(self) -> dict[str, Any]:
        if self._steps_itself and not self.__dict__.get("_follows_rule"):
            return super()._packed()
        number = {id(p): k for k, p in enumerate(p for group in self.param_groups for p in group.params)}
        return {
            "state": {
                number[id(p)]: {
                    "step": group.count.detach(),
                    **{k: v.detach() for k, v in self.state[p].items()},
                }
                for group in self.param_groups
                for p in group.params
            },
            "param_groups": [
                {**group, "params": [number[id(p)] for p in group.params]} for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave. ArgumentError if groups, parameters or shapes do not match."""
        self.loaded(state_dict, self._unpack)

    def _unpack(self, state_dict: Mapping[str, Any]) -> None:
        if self._steps_itself:
            super()._unpack(state_dict)
            self.param_groups = [Group(group) for group in self.param_groups]
            return
        groups: Sequence[Mapping[str, Any]] = state_dict["param_groups"]
        sizes, have = [len(g["params"]) for g in groups], [len(g.params) for g in self.param_groups]
        if sizes != have:
            raise ArgumentError(
                f"load_state_dict: the state has groups of {sizes} parameters, the optimizer of {have}"
            )
        for group, saved in zip(self.param_groups, groups, strict=True):
            for p, number in zip(group.params, saved["params"], strict=True):
                self._load(group, p, state_dict["state"].get(number, {}))
            for key, value in saved.items():
                if key != "params":
                    group[key] = value

    def _load(self, group: Group, p: Tensor, saved: Mapping[str, Any]) -> None:
        for name, own in {**self.state[p], "step": group.count}.items():
            if name not in saved:
                continue
            value = as_tensor(saved[name])
            if value.shape != own.shape:
                raise ArgumentError(
                    f"load_state_dict: {name} of a parameter of shape {tuple(p.shape)} has shape {tuple(value.shape)}"
                )
            own.copy_(value.detach())


def _wide(t: Tensor) -> Tensor:
    """A 16-bit float as float32; others as they are."""
    return t.to(float32) if t.dtype.is_narrow else t


_PARAMETER = ""
"""The name of the parameter among those of its state, which have some."""


@dataclass(slots=True)
class _RecordedRule:
    """The rule for parameters of one group, recorded once for each shape."""

    optimizer: RuleOptimizer
    group: Group
    calls: RecordedCalls

    @classmethod
    def of(cls, optimizer: RuleOptimizer, group: Group) -> _RecordedRule | None:
        """None where nothing is recorded: within a trace, or with options that are no plain values."""
        options = [(k, repr(v)) for k, v in group.items() if k not in ("params", "lr")]
        shared = (group.rate, group.count, *group.all_factors())
        calls = _recorded.setdefault(optimizer, Recordings()).given((id(group), *options), shared)
        return None if calls is None else cls(optimizer, group, calls)

    def next(self, p: Tensor, grad: Tensor, state: dict[str, Tensor]) -> dict[str, Node] | None:
        """The next values of the parameter, and of its state by name, as the rule gives them."""
        names = tuple(state)

        def build(tensors: list[Tensor]) -> dict[str, Tensor]:
            p, g, *rest = tensors
            state, shared = rest[: len(names)], rest[len(names) :]
            value, new = self.optimizer.next(
                self.group.with_tensors(shared), p, g, dict(zip(names, state, strict=True))
            )
            return {_PARAMETER: value, **new}

        return self.calls.call(names, [p, grad, *state.values()], build)


_recorded: WeakKeyDictionary[RuleOptimizer, Recordings] = WeakKeyDictionary()
"""The recordings of each optimizer's rule."""


def check(
    name: str,
    option: str,
    value: object,
    low: float | None = 0.0,
    below: float | None = None,
    high: float | None = None,
) -> None:
    """ArgumentError unless value is a number, at least `low`, less than `below`, at most `high`."""
    number = float(value) if isinstance(value, SupportsFloat) else math.nan
    limits = [("at least", low, ge), ("below", below, lt), ("at most", high, le)]
    asked = [(words, limit, holds) for words, limit, holds in limits if limit is not None]
    if not all(holds(number, limit) for _, limit, holds in asked):
        must = " and ".join(f"{words} {limit:g}" for words, limit, _ in asked)
        given = value if isinstance(value, SupportsFloat) else describe(value)
        raise ArgumentError(f"{name}: {option} must be {must}, got {given}")


def check_betas(name: str, betas: tuple[float, float]) -> None:
    """ArgumentError unless betas are two numbers from 0 to below 1."""
    check_pair(name, "betas", betas)
    check(name, "betas[0]", betas[0], below=1.0)
    check(name, "betas[1]", betas[1], below=1.0)


def check_pair(name: str, option: str, values: object) -> None:
    """ArgumentError unless there are two values."""
    if not isinstance(values, Sequence) or isinstance(values, str) or len(cast("Sequence[Any]", values)) != 2:
        raise ArgumentError(f"{name}: {option} must be two numbers, got {values!r}")
