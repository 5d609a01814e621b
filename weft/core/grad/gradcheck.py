"""Gradients compared with differences of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.args.handle import Handle, wrap
from weft.core.execute.realization import realize
from weft.core.functions.random import randn
from weft.core.grad.differentiate import gradients
from weft.core.grad.jacobians import jacrev, tensors_of
from weft.core.layout.creation import tensor
from weft.errors import DTypeError, GradError
from weft.ir.dtypes import float64

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    **unused: Any,
) -> bool:
    """True if the gradients of func agree with (f(x + eps) - f(x - eps)) / 2 eps at every element of the inputs.

    Inputs that require grad are checked; they should be float64, in which differences are precise enough. Otherwise
    GradError with the first disagreement, or False unless raise_exception.
    """
    args: list[Any] = [inputs] if isinstance(inputs, Handle) else list(inputs)
    numbers = [k for k, x in enumerate(args) if isinstance(x, Handle) and x.value.needs_grad]
    if not numbers:
        raise GradError("gradcheck: at least one input must require grad")
    for k in numbers:
        if args[k].value.dtype is not float64:
            raise DTypeError(
                f"gradcheck: input {k} is {args[k].value.dtype.name}; make it float64, with .double()"
            )
    plain = [wrap(x.value).detach() if isinstance(x, Handle) else x for x in args]

    def outputs(*given: Any) -> tuple[Tensor, ...]:
        return tuple(t for t in tensors_of(func(*given)) if t.value.dtype.is_float)

    exact = jacrev(outputs, tuple(numbers))(*plain)
    realize(*(block for row in exact for block in row))
    for i, k in enumerate(numbers):
        for j, numeric in enumerate(_differences(outputs, plain, k, eps)):
            found = exact[j][i].numpy().reshape(numeric.shape)
            if not np.allclose(found, numeric, rtol=rtol, atol=atol, equal_nan=True):
                if not raise_exception:
                    return False
                raise GradError(
                    f"gradcheck: the gradient of output {j} by input {k} is wrong.\nby differences:\n{numeric}\n"
                    f"by backward:\n{found}"
                )
    return True


def _differences(
    outputs: Callable[..., tuple[Tensor, ...]], args: Sequence[Any], k: int, eps: float
) -> list[np.ndarray[Any, Any]]:
    """The Jacobian of each output by argument k, (elements of the output, elements of the argument)."""
    base = args[k].numpy()
    pairs: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    for at in range(base.size):
        both: list[tuple[Tensor, ...]] = []
        for sign in (1, -1):
            moved = base.copy().reshape(-1)
            moved[at] += sign * eps
            both.append(outputs(*args[:k], tensor(moved.reshape(base.shape)), *args[k + 1 :]))
        pairs.append((both[0], both[1]))
    count = len(outputs(*args))
    columns = [
        [(up[j].detach().numpy() - down[j].detach().numpy()).reshape(-1) / (2 * eps) for up, down in pairs]
        for j in range(count)
    ]
    return [np.stack(c, 1) if c else np.zeros((0, 0)) for c in columns]


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    **unused: Any,
) -> bool:
    """gradcheck of the gradients of func, by the inputs and by grad_outputs (random ones unless given)."""
    args: list[Any] = [inputs] if isinstance(inputs, Handle) else list(inputs)
    numbers = [k for k, x in enumerate(args) if isinstance(x, Handle) and x.value.needs_grad]
    results = [t for t in tensors_of(func(*args)) if t.value.needs_grad]
    if grad_outputs is None:
        seeds = [randn(t.value.shape, dtype=t.value.dtype).realize().requires_grad_() for t in results]
    else:
        seeds = [grad_outputs] if isinstance(grad_outputs, Handle) else list(grad_outputs)
    count = len(args)

    def slopes(*given: Any) -> tuple[Tensor, ...]:
        inner: list[Any] = [
            x
            if not isinstance(x, Handle) or x.value.needs_grad or k not in numbers
            else wrap(x.value).requires_grad_()
            for k, x in enumerate(given[:count])
        ]
        outs = [t for t in tensors_of(func(*inner)) if t.value.needs_grad]
        found = gradients(
            outs, [inner[k] for k in numbers], list(given[count:]), create_graph=True, allow_unused=True
        )
        return tuple(g for g in found if g is not None)

    return gradcheck(slopes, [*args, *seeds], eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception)
