"""Transformations of functions of tensors, under torch.func's names.

They nest: `weft.func.vmap(weft.func.grad(f))` is the gradient for each example.
"""
# Tests: tests/autograd/test_tools.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from weft.core.grad.differentiate import grad, value_and_grad
from weft.core.grad.jacobians import hessian, jacfwd, jacrev, jvp, linearize, vjp
from weft.core.grad.vmap import vmap
from weft.nn.stateless import functional_call, stack_module_state

__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "stack_module_state", "vjp", "vmap",
]  # fmt: skip


def grad_and_value(
    func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives (the gradient of func, its value): value_and_grad in torch.func's order."""
    both = value_and_grad(func, argnums, has_aux)

    @wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return found, value

    return run
