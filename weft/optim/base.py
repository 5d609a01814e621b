"""Optimizer as torch has it: groups of parameters, state per parameter, and a `step` that each subclass writes.

weft's own optimizers (optimizer.py) are subclasses that say a rule. A subclass written for torch defines `step` and
updates `p` and `self.state[p]` in place. What it wrote is computed when the step is over, in one plan; the numbers it
multiplies by, which may differ from step to step, are operands of that plan and not part of it.
"""
# Tests: tests/optim/test_optimizers.py, tests/optim/test_steps.py

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any, TypeAlias, TypeVar, cast

from weft.core.args.modes import is_grad_enabled, set_grad_enabled
from weft.core.compile.lifting import Lifted, lifting
from weft.core.execute import changes, tracing
from weft.core.execute.realization import realize
from weft.core.grad.differentiate import RemovableHandle
from weft.core.layout.creation import zeros_like
from weft.core.surface.foreach import group_tensors_by_device_and_dtype
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.ir.dtypes import float32

Params: TypeAlias = Iterable[Tensor] | Iterable[Mapping[str, Any]] | Iterable[tuple[str, Tensor]]
"""Parameters, named parameters, or groups {"params": ..., and options of their own}."""

ParamsT: TypeAlias = Params  # torch's name

StateDict: TypeAlias = dict[str, Any]

Hook: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])


def parameters_of(name: str, group: Mapping[str, Any]) -> Any:
    """The parameters that a group is given with; ArgumentError where there are none, DTypeError for a set."""
    if "params" not in group:
        raise ArgumentError(
            f"{name}: a group needs its parameters as 'params', got {', '.join(group) or 'nothing'}"
        )
    given: Any = group["params"]
    if isinstance(given, set):
        raise DTypeError(
            f"{name}: optimizer parameters need to be organized in ordered collections, but the ordering of "
            "tensors in sets will change between runs. Please use a list instead."
        )
    return given


class RequiredParameter:
    """Stands for an option that a group must give."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = RequiredParameter()

global_optimizer_pre_hooks: dict[int, Hook] = OrderedDict()
global_optimizer_post_hooks: dict[int, Hook] = OrderedDict()


def register_optimizer_step_pre_hook(hook: Hook) -> RemovableHandle:
    """Have hook(optimizer, args, kwargs) called before each step of every optimizer."""
    return RemovableHandle(global_optimizer_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Hook) -> RemovableHandle:
    """Have hook(optimizer, args, kwargs) called after each step of every optimizer."""
    return RemovableHandle(global_optimizer_post_hooks, hook)


class Hooked:
    """Hooks around steps, saving and loading, by torch's names."""

    def _hooks(self, kind: str) -> dict[int, Hook]:
        return self.__dict__.setdefault(f"_optimizer_{kind}_hooks", OrderedDict())

    def register_step_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Have hook(optimizer, args, kwargs) called before each step; it may return new (args, kwargs)."""
        return RemovableHandle(self._hooks("step_pre"), hook)

    def register_step_post_hook(self, hook: Hook) -> RemovableHandle:
        """Have hook(optimizer, args, kwargs) called after each step."""
        return RemovableHandle(self._hooks("step_post"), hook)

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Have hook(optimizer) called before state_dict."""
        return RemovableHandle(self._hooks("state_dict_pre"), hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Have hook(optimizer, state_dict) called after state_dict; what it returns takes the dict's place."""
        return RemovableHandle(self._hooks("state_dict_post"), hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Have hook(optimizer, state_dict) called before loading; what it returns takes the dict's place."""
        return RemovableHandle(self._hooks("load_state_dict_pre"), hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Have hook(optimizer) called after loading."""
        return RemovableHandle(self._hooks("load_state_dict_post"), hook, prepend)

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Call what is called before a step; the arguments that it leaves."""
        for hook in [*global_optimizer_pre_hooks.values(), *self._hooks("step_pre").values()]:
            found = hook(self, args, kwargs)
            if found is not None:
                if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != 2:
                    raise ArgumentError(
                        f"{type(self).__name__}: a step pre hook must return None or a tuple of (args, kwargs), "
                        f"but got {found}"
                    )
                args, kwargs = cast("tuple[Any, dict[str, Any]]", found)
        return args, kwargs

    def after_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call what is called after a step."""
        for hook in [*self._hooks("step_post").values(), *global_optimizer_post_hooks.values()]:
            hook(self, args, kwargs)

    def saved(self, state_dict: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The state dict between what is called around it."""
        for hook in list(self._hooks("state_dict_pre").values()):
            hook(self)
        out = state_dict()
        for hook in list(self._hooks("state_dict_post").values()):
            found = hook(self, out)
            out = out if found is None else found
        return out

    def loaded(self, state_dict: Mapping[str, Any], load: Callable[[Mapping[str, Any]], None]) -> None:
        """Load a shallow copy of the state dict between what is called around it."""
        given: Mapping[str, Any] = dict(state_dict)
        for hook in list(self._hooks("load_state_dict_pre").values()):
            found = hook(self, given)
            given = given if found is None else found
        load(given)
        for hook in list(self._hooks("load_state_dict_post").values()):
            hook(self)


def tensors_in(x: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors in nested dicts, lists and tuples."""
    if isinstance(x, Tensor):
        yield x
    elif depth and isinstance(x, Mapping):
        for item in cast("Mapping[Any, Any]", x).values():
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(x, (list, tuple)):
        for item in cast("list[Any]", x):
            yield from tensors_in(item, depth - 1)


class Optimizer(Hooked):
    """Base of optimizers, to subclass as torch.optim.Optimizer: define `step`, update `p` and `self.state[p]` there.

    >>> class Descent(weft.optim.Optimizer):
    ...     def __init__(self, params, lr=0.1):
    ...         super().__init__(params, {"lr": lr})
    ...     @weft.no_grad()
    ...     def step(self, closure=None):
    ...         for group in self.param_groups:
    ...             for p in group["params"]:
    ...                 if p.grad is not None:
    ...                     p.add_(p.grad, alpha=-group["lr"])
    """

    param_groups: list[Any]
    state: defaultdict[Any, Any]
    defaults: dict[str, Any]
    _lifted: Lifted
    _warned_capturable_if_run_uncaptured = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        step = cls.__dict__.get("step")
        if callable(step) and not getattr(step, "hooked", False):
            cls.step = Optimizer.profile_hook_step(step)

    def __init__(self, params: Params, defaults: Mapping[str, Any]) -> None:
        self.defaults = dict(defaults) if type(defaults) is not dict else defaults
        self.state, self.param_groups = defaultdict(dict), []
        if isinstance(params, Tensor):
            raise DTypeError(
                f"{self._name}: params argument given to the optimizer should be an iterable of Tensors or dicts, but "
                "got one Tensor; write [tensor]"
            )
        items: list[Any] = list(params)
        if not items:
            raise ArgumentError(
                f"{self._name}: optimizer got an empty parameter list; an iterator gives its parameters only once"
            )
        if not isinstance(items[0], Mapping):
            items = [{"params": items}]
        for group in items:
            self.add_param_group(group)

    @property
    def _name(self) -> str:
        return type(self).__name__

    # --- the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; a `closure` computes the loss and the gradients first."""
        raise NotImplementedError(f"{self._name} has no step; define step(self, closure=None) in its class")

    @staticmethod
    def profile_hook_step(func: F) -> F:
        """A subclass's step between its hooks, after which what it wrote is computed."""

        @functools.wraps(func)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.__dict__.get("_stepping"):  # super().step() of a step
                return func(self, *args, **kwargs)
            given, kwargs = self.before_step((self, *args), kwargs)
            args = tuple(given[1:])
            self.__dict__["_stepping"] = True
            try:
                with lifting(self.__dict__.setdefault("_lifted", Lifted())):
                    out = func(self, *args, **kwargs)
            finally:
                del self.__dict__["_stepping"]
            self.compute()
            self._optimizer_step_code()
            self.after_step((self, *args), kwargs)
            return out

        step.hooked = True  # pyright: ignore[reportAttributeAccessIssue]  (a function takes any attribute)
        return cast("F", step)

    def compute(self) -> None:
        """Compute, in one plan, what a step wrote: parameters, state, and tensors among the options."""
        if tracing.current() is not None:
            return
        seen: dict[int, Tensor] = {}
        for t in tensors_in(
            [self.__dict__.get("param_groups", ()), *self.__dict__.get("state", {}).values()]
        ):
            if t.value.node.storage is None:
                seen[id(t)] = t
        if seen:
            realize(*seen.values())

    def _optimizer_step_code(self) -> None:
        """Called after each step; torch's profiler looks for it."""

    def _accelerator_graph_capture_health_check(self) -> None:
        """Called by torch's own steps: plans need no checks."""

    _cuda_graph_capture_health_check = _accelerator_graph_capture_health_check

    def _patch_step_function(self) -> None:
        """torch hooks steps here; weft does when the class is made."""

    @staticmethod
    def _group_tensors_by_device_and_dtype(
        tensorlistlist: list[list[Tensor]], with_indices: bool = False
    ) -> dict[tuple[Any, Any], tuple[list[list[Tensor]], list[int]]]:
        """The rows of several lists of tensors by the device and dtype of the first list's."""
        return group_tensors_by_device_and_dtype(tensorlistlist, with_indices)

    # --- groups

    def add_param_group(self, param_group: Any) -> None:
        """Optimize more parameters, with options that differ from the optimizer's."""
        if not isinstance(param_group, dict):
            raise DTypeError(f"{self._name}: param_group must be a dict, but got {type(param_group)}")
        group = cast("dict[str, Any]", param_group)
        given = parameters_of(self._name, group)
        items: list[Any] = [given] if isinstance(given, Tensor) else list(given)
        named: list[tuple[str, Any]] = [x for x in items if isinstance(x, tuple)]
        if named and len(named) != len(items):
            raise ArgumentError(f"{self._name}: all optimizer params should be with/without names")
        params: list[Any] = [x[1] for x in named] if named else items
        group["params"] = params
        if named:
            group["param_names"] = [x[0] for x in named]
        self._check_params(params)
        for name, default in self.defaults.items():
            if default is required and name not in group:
                raise ArgumentError(
                    f"{self._name}: parameter group didn't specify a value of required optimization parameter {name}"
                )
            group.setdefault(name, default)
        realize(*(p for p in params if p.value.node.storage is None))
        self.param_groups.append(group)

    def _check_params(self, params: list[Any]) -> None:
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for k, p in enumerate(params):
            if not isinstance(p, Tensor):
                raise DTypeError(
                    f"{self._name}: optimizer can only optimize Tensors, but one of the params is {type(p)}"
                )
            if not (self.defaults.get("differentiable") or p.is_leaf or p.__dict__.get("_retains_grad")):
                raise ArgumentError(f"{self._name}: can't optimize a non-leaf Tensor (parameter {k})")
            if id(p) in known:
                raise ArgumentError(f"{self._name}: some parameters appear in more than one parameter group")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or set them to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None if set_to_none or p.grad is None else zeros_like(p.grad)
        changes.let_go()

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """Options and state, with parameters numbered in order; the tensors are the optimizer's own."""
        return self.saved(self._packed)

    def _packed(self) -> dict[str, Any]:
        number: dict[int, int] = {}
        for p in chain.from_iterable(group["params"] for group in self.param_groups):
            number.setdefault(id(p), len(number))
        groups = [
            {
                **{k: v for k, v in group.items() if k != "params"},
                "params": [number[id(p)] for p in group["params"]],
            }
            for group in self.param_groups
        ]
        state = {number[id(k)] if isinstance(k, Tensor) else k: v for k, v in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave. ArgumentError if groups or their sizes do not match.

        Tensors become what their parameter is, in dtype and device, but for those called "step".
        """
        self.loaded(state_dict, self._unpack)

    def _unpack(self, state_dict: Mapping[str, Any]) -> None:
        saved: list[dict[str, Any]] = deepcopy(state_dict["param_groups"])
        if len(saved) != len(self.param_groups):
            raise ArgumentError(
                f"{self._name}: loaded state dict has a different number of parameter groups: {len(saved)}, the "
                f"optimizer {len(self.param_groups)}"
            )
        owners: dict[Any, tuple[Tensor, bool]] = {}
        for group, new in zip(self.param_groups, saved, strict=True):
            if len(new["params"]) != len(group["params"]):
                raise ArgumentError(
                    f"{self._name}: loaded state dict contains a parameter group that doesn't match the size of "
                    f"optimizer's group: {len(new['params'])}, not {len(group['params'])}"
                )
            moves = bool(new.get("capturable") or new.get("fused"))
            owners.update({k: (p, moves) for k, p in zip(new["params"], group["params"], strict=True)})
            new["params"] = group["params"]
            if "param_names" in group:
                new.setdefault("param_names", group["param_names"])
        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, value in state_dict["state"].items():
            if key in owners:
                state[owners[key][0]] = _suited(value, *owners[key])
            else:
                state[key] = value
        self.__setstate__({"state": state, "param_groups": saved})

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__.setdefault("defaults", {}).setdefault("differentiable", False)

    def __repr__(self) -> str:
        lines = [f"{self._name} ("]
        for k, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {k}")
            lines += [f"    {name}: {value}" for name, value in sorted(group.items()) if name != "params"]
        return "\n".join([*lines, ")"])


def _suited(value: Any, p: Tensor, moves: bool, key: Any = None) -> Any:
    """State in the parameter's dtype, if that is a float, and on its device; a "step" only where it `moves`."""
    if isinstance(value, Tensor):
        if key == "step":
            return value.to(dtype=float32, device=p.device) if moves else value
        return value.to(dtype=p.dtype, device=p.device) if p.dtype.is_float else value.to(device=p.device)
    if isinstance(value, dict):
        return {k: _suited(v, p, moves, k) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple, set)):
        made = cast("Callable[[list[Any]], Any]", type(cast("Any", value)))
        return made([_suited(v, p, moves) for v in cast("list[Any]", value)])
    return value


# ------------------------------------------------------------------------- what torch's own optimizers use, and others


def use_grad_for_differentiable(func: F) -> F:
    """A step that records gradients only if the optimizer is told to be differentiable."""

    @functools.wraps(func)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with set_grad_enabled(is_grad_enabled() and bool(self.defaults.get("differentiable", False))):
            return func(self, *args, **kwargs)

    return cast("F", step)


def get_value(x: Any) -> Any:
    """The number in a tensor of one element; anything else as it is."""
    return x.item() if isinstance(x, Tensor) else x


def stack_if_compiling(x: Any) -> Any:
    """The argument as it is."""
    return x


def dispatch_sqrt(x: Any) -> Any:
    """The square root of a number or a tensor."""
    return x.sqrt() if isinstance(x, Tensor) else x**0.5


def get_scalar_dtype(is_fused: bool | None = None) -> Any:
    """The dtype that steps are counted in."""
    return float32


def default_to_fused_or_foreach(
    params: list[Tensor], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """(False, False): one graph holds all updates either way."""
    return False, False


def view_as_real(params: list[Tensor], *state_and_grads: list[Tensor]) -> None:
    """Nothing: there are no complex parameters."""


def disable_dynamo_if_unsupported(single_tensor_fn: Any = None) -> Callable[[F], F]:
    """A decorator that leaves a function as it is."""
    return lambda func: func


params_doc = """params (iterable): parameters or named parameters to optimize, or dicts that define groups."""
foreach_doc = """foreach (bool, optional): accepted; one plan computes a step either way."""
fused_doc = """fused (bool, optional): accepted; one plan computes a step either way."""
capturable_doc = """capturable (bool, optional): accepted; steps can always be compiled."""
differentiable_doc = (
    """differentiable (bool, optional): whether gradients flow through the step (default: False)"""
)
maximize_doc = (
    """maximize (bool, optional): maximize the objective with respect to the params (default: False)"""
)
