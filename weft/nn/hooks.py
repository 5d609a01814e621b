"""Hooks around a module's forward and on the way of its gradients."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from weft.core.args.modes import is_grad_enabled
from weft.core.grad.differentiate import RemovableHandle
from weft.core.grad.function import BackwardHook
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError

if TYPE_CHECKING:
    from weft.nn.module import Module

Hook = Callable[..., Any]

FORWARD_PRE: dict[int, Hook] = OrderedDict()
FORWARD: dict[int, Hook] = OrderedDict()
FORWARD_WITH_KWARGS: dict[int, bool] = OrderedDict()
FORWARD_ALWAYS: dict[int, bool] = OrderedDict()
BACKWARD_PRE: dict[int, Hook] = OrderedDict()
BACKWARD: dict[int, Hook] = OrderedDict()
BUFFER_REGISTRATION: dict[int, Hook] = OrderedDict()
MODULE_REGISTRATION: dict[int, Hook] = OrderedDict()
PARAMETER_REGISTRATION: dict[int, Hook] = OrderedDict()


CALLED = (FORWARD_PRE, FORWARD, FORWARD_WITH_KWARGS, FORWARD_ALWAYS, BACKWARD_PRE, BACKWARD)
"""The hooks that are called around each module."""


class _Any:
    """A flag that each call of a module looks at: hooks of all modules are to be called."""

    __slots__ = ("called",)
    called: bool

    def __init__(self) -> None:
        self.called = False


EVERYWHERE = _Any()


class _GlobalHandle(RemovableHandle):
    """Takes a hook of all modules off again."""

    def remove(self) -> None:
        super().remove()
        EVERYWHERE.called = any((FORWARD_PRE, FORWARD, BACKWARD_PRE, BACKWARD))


def _everywhere(hooks: dict[int, Hook], hook: Hook) -> RemovableHandle:
    handle = _GlobalHandle(hooks, hook)
    EVERYWHERE.called = any((FORWARD_PRE, FORWARD, BACKWARD_PRE, BACKWARD))
    return handle


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Have hook(module, args) called before each module's forward; what it returns takes the place of args."""
    return _everywhere(FORWARD_PRE, hook)


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Have hook(module, args, output) called after each module's forward."""
    handle = _everywhere(FORWARD, hook)
    if with_kwargs:
        FORWARD_WITH_KWARGS[handle.id] = True
    if always_call:
        FORWARD_ALWAYS[handle.id] = True
    return handle


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Have hook(module, grad_output) called when the gradients of any module's outputs are known."""
    return _everywhere(BACKWARD_PRE, hook)


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Have hook(module, grad_input, grad_output) called when the gradients of any module's inputs are known."""
    return _everywhere(BACKWARD, hook)


register_module_backward_hook = register_module_full_backward_hook


def register_module_buffer_registration_hook(hook: Hook) -> RemovableHandle:
    """Have hook(module, name, buffer) called when a buffer is registered; what it returns takes its place."""
    return RemovableHandle(BUFFER_REGISTRATION, hook)


def register_module_module_registration_hook(hook: Hook) -> RemovableHandle:
    """Have hook(module, name, submodule) called when a module is registered; what it returns takes its place."""
    return RemovableHandle(MODULE_REGISTRATION, hook)


def register_module_parameter_registration_hook(hook: Hook) -> RemovableHandle:
    """Have hook(module, name, parameter) called when a parameter is registered; what it returns takes its place."""
    return RemovableHandle(PARAMETER_REGISTRATION, hook)


def registered(hooks: dict[int, Hook], module: Module, name: str, value: Any) -> Any:
    """The value that is registered, after hooks have seen it."""
    for hook in list(hooks.values()):
        found = hook(module, name, value)
        value = value if found is None else found
    return value


# -------------------------------------------------------------------------------------------------------- calls


def call_hooked(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """module.forward between its hooks, those of all modules first."""
    own = module.__dict__
    done: set[int] = set()
    result: Any = None
    try:
        args, kwargs = _before(module, args, kwargs)
        pre = [*BACKWARD_PRE.values(), *own["_backward_pre_hooks"].values()]
        post = [*BACKWARD.values(), *own["_backward_hooks"].values()]
        gradients = _Gradients(module, pre, post) if pre or post else None
        if gradients is not None:
            args = gradients.on_inputs(args)
        result = module.forward(*args, **kwargs)
        for number, hook in [*FORWARD.items(), *own["_forward_hooks"].items()]:
            done.add(number)
            named = number in FORWARD_WITH_KWARGS or number in own["_forward_hooks_with_kwargs"]
            found = hook(module, args, kwargs, result) if named else hook(module, args, result)
            result = result if found is None else found
        return result if gradients is None else gradients.on_outputs(result)
    except BaseException:
        _call_the_rest(module, args, kwargs, result, done)
        raise


def _before(module: Module, args: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    own = module.__dict__
    for number, hook in [*FORWARD_PRE.items(), *own["_forward_pre_hooks"].items()]:
        if number in own["_forward_pre_hooks_with_kwargs"]:
            found = hook(module, args, kwargs)
            if found is not None:
                if not (isinstance(found, tuple) and len(cast("tuple[Any, ...]", found)) == 2):
                    raise ArgumentError(
                        f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {found}."
                    )
                args, kwargs = cast("Any", found)
        else:
            found = hook(module, args)
            args = args if found is None else _tuple(found)
    return args, kwargs


def _call_the_rest(
    module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, done: set[int]
) -> None:
    """Call the forward hooks that are to be called always and were not, after an error; theirs are only warned of."""
    own = module.__dict__
    named = own["_forward_hooks_with_kwargs"]
    for number, hook in [*FORWARD.items(), *own["_forward_hooks"].items()]:
        always = number in FORWARD_ALWAYS or number in own["_forward_hooks_always_called"]
        if not always or number in done:
            continue
        try:
            with_kwargs = number in FORWARD_WITH_KWARGS or number in named
            found = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            result = result if found is None else found
        except _USUAL as e:  # the first error is the one to raise
            warnings.warn(
                f"module forward hook with always_call=True raised an exception that was silenced as another error was "
                f"raised in forward: {e}",
                stacklevel=3,
            )


_USUAL = (
    ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


def _tuple(x: object) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", x) if isinstance(x, tuple) else (x,)


class _Gradients:
    """One call's backward hooks: the gradients of its outputs, then those of its inputs, pass through them."""

    def __init__(self, module: Module, pre: list[Hook], post: list[Hook]) -> None:
        self.module, self.pre, self.post = module, pre, post
        self.inputs = self.outputs = 0
        self.places_in: list[int] | None = None
        self.places_out: list[int] = []
        self.known: tuple[Any, ...] | None = None

    def on_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, whose gradients are watched."""
        self.inputs = len(args)
        args, self.places_in = _watched(args, self._inputs_known)
        return args

    def on_outputs(self, result: Any) -> Any:
        """The result, whose gradients are watched: a tensor, or a tuple of some."""
        if not isinstance(result, (Tensor, tuple)):
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but received "
                f"{type(result)}",
                stacklevel=4,
            )
            return result
        items = _tuple(cast("Any", result))
        self.outputs = len(items)
        watched, places = _watched(items, self._outputs_known)
        self.places_out = places or []
        if isinstance(result, tuple):
            return _like(cast("Any", result), watched)
        return watched[0]

    def _outputs_known(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        given = _packed(self.places_out, grads, self.outputs)
        for hook in self.pre:
            found = hook(self.module, given)
            if found is not None:
                given = self._checked(
                    "Backward pre hook returned an invalid number of grad_output", found, given
                )
        if self.places_in is None:  # no gradient will reach the inputs
            nothing = (None,) * self.inputs
            for hook in self.post:
                found = hook(self.module, nothing, given)
                if found is not None and any(g is not None for g in _tuple(found)):
                    raise ArgumentError(
                        "Backward hook for Modules where no input requires gradient should always return None or None "
                        "for all gradients."
                    )
        else:
            self.known = given
        return tuple([given[k] for k in self.places_out])

    def _inputs_known(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.known is None:  # the gradient came by another way than the outputs
            return grads
        places = self.places_in or []
        given = _packed(places, grads, self.inputs)
        for hook in self.post:
            found = hook(self.module, given, self.known)
            if found is not None:
                given = self._checked("Backward hook returned an invalid number of grad_input", found, given)
        self.known = None
        return tuple([given[k] for k in places])

    def _checked(self, message: str, found: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        new = _tuple(found)
        if len(new) != len(given):
            raise ArgumentError(f"{message}, got {len(new)}, but expected {len(given)}")
        return new


def _like(result: Any, items: tuple[Any, ...]) -> Any:
    """The items as a tuple of the result's class, such as a named one."""
    kind: Any = result.__class__
    return kind._make(items) if hasattr(kind, "_make") else kind(items)


def _packed(places: list[int], grads: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """The gradients in their places among all, None in the others."""
    out: list[Any] = [None] * count
    for k, g in zip(places, grads, strict=True):
        out[k] = g
    return tuple(out)


def _watched(
    items: tuple[Any, ...], hook: Callable[[tuple[Any, ...]], tuple[Any, ...]]
) -> tuple[tuple[Any, ...], list[int] | None]:
    """The items, the gradients of whose tensors pass through the hook all together, and where those tensors are; None
    where no gradient will come."""
    places = [k for k, x in enumerate(items) if isinstance(x, Tensor) and x.requires_grad]
    if not places or not is_grad_enabled():
        return items, None
    seen = BackwardHook.apply(hook, *(items[k] for k in places))
    out = list(items)
    for k, x in zip(places, seen, strict=True):
        out[k] = x
    return tuple(out), places
