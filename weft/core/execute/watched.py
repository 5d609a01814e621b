"""The leaves that accumulate gradients, and other values whose gradients are kept: by which tensor."""
# Tests: tests/autograd/test_tools.py

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from weft.autograd.value import HOOKS, Value

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


tensors: WeakKeyDictionary[Value, ref[Tensor]] = WeakKeyDictionary()
"""The tensors whose `.grad` is filled: under the leaf value of each, and under values marked by retain_grad."""


def watch(t: Tensor) -> None:
    """From now on backward() accumulates in `t.grad` what reaches the value that t stands for now."""
    tensors[t.value] = ref(t)
    hooks = t.__dict__.get("_hooks")
    if hooks:
        HOOKS[t.value] = hooks


def hooks_of(t: Tensor) -> tuple[int, ...]:
    """The numbers of the hooks on the gradients of a leaf; no two hooks have the same."""
    own = t.__dict__
    if "_hooks" not in own and "_post_hooks" not in own:
        return ()
    return (*own.get("_hooks", ()), *own.get("_post_hooks", ()))


def living() -> list[Tensor]:
    """The tensors whose `.grad` backward() fills."""
    found = [entry() for entry in list(tensors.values())]
    return [t for t in found if t is not None]


def watcher(v: Value) -> Tensor | None:
    """The tensor whose `.grad` is filled with what reaches a value."""
    found = tensors.get(v)
    return None if found is None else found()


def passed_on(t: Tensor, placeholder: Value, before: Value) -> None:
    """Have what watched `placeholder`, a past trace's stand-in for `t`, watch what `t` stood for before."""
    if tensors.pop(placeholder, None) is not None:
        tensors[before] = ref(t)
    hooks = HOOKS.get(placeholder)
    if hooks and HOOKS.setdefault(before, hooks) is not hooks:
        HOOKS[before].update(hooks)
