"""Checkpoints: activations computed again in the backward pass instead of kept."""
# Tests: tests/autograd/test_tools.py, tests/autograd/test_checkpoint_memory.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

from weft.autograd.context import context, default_device, grad_enabled, switched
from weft.autograd.reverse import gradients as walk
from weft.autograd.value import Value, apply
from weft.core.args import broadcast as bc
from weft.core.args.defaults import get_default_dtype
from weft.core.args.handle import Handle, standing_for, wrap
from weft.core.execute import tracing
from weft.core.execute.random_draws import again as drawn_again
from weft.core.execute.random_draws import written as draws_written
from weft.core.grad.differentiate import leaves_below
from weft.core.grad.function import several_results
from weft.ir.graph import Along, Box, elements
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """function(*args), whose intermediate results are not kept for backward() but computed again there.

    The function must do the same when it is called again; autocast and the default dtype and device are then what they
    were at first. Random numbers are the same, of every generator and whatever other threads draw, unless
    preserve_rng_state is false: ArgumentError in backward() where it draws others. use_reentrant is accepted: there is
    one way. Source: Chen et al. 2016, arXiv:1604.06174.
    """
    if not grad_enabled():
        return function(*args, **kwargs)
    casts, dtype, device = context().casts, get_default_dtype(), default_device()
    trace = tracing.current()
    with draws_written(trace) as drawn:
        result = function(*args, **kwargs)
    then = None if trace is None else trace.as_it_is()
    several = isinstance(result, (tuple, list))
    outputs: list[Any] = list(cast("Sequence[Any]", result)) if several else [result]
    recorded = [t.value if isinstance(t, Handle) and t.value.needs_grad else None for t in outputs]
    if not any(v is not None for v in recorded):
        return result
    before = [x.value if isinstance(x, Handle) else None for x in args]
    given = [v for v in before if v is not None and v.needs_grad]
    captured = [v for v in leaves_below([v for v in recorded if v is not None], given) if v not in given]
    inputs = (*given, *captured)

    def rule(grads: list[Value | None]) -> tuple[Value | None, ...]:
        own = [None if v is None else _own(v, next(g for g in grads if g is not None)) for v in before]
        with (
            tracing.as_then(then),
            switched(grad=True, casts=casts, dtype=dtype, device=device, devices=()),
            drawn_again(drawn, tracing.current()) if preserve_rng_state else nullcontext(),
        ):
            again = [x if v is None else standing_for(v) for x, v in zip(args, own, strict=True)]
            found = function(*again, **kwargs)
            results: list[Any] = list(cast("Sequence[Any]", found)) if several else [found]
            values = [t.value if isinstance(t, Handle) else None for t in results]
        pairs = [(v, g) for v, g in zip(values, grads, strict=True) if v is not None and g is not None]
        fresh = [v for v in own if v is not None and v.needs_grad]
        # it may hold what it is given, or what was made of that, besides
        wanted = [*fresh, *given, *captured]
        parts = walk([v for v, _ in pairs], [g for _, g in pairs], wanted, grad_enabled(), past=False)
        return (
            *(_sum(parts.get(v), parts.pop(x, None)) for v, x in zip(fresh, given, strict=True)),
            *map(parts.get, captured),
        )

    done = several_results(recorded, inputs, rule)
    final: list[Any] = [t if v is None else wrap(v) for t, v in zip(outputs, done, strict=True)]
    return (tuple(final) if isinstance(result, tuple) else final) if several else final[0]


def _sum(a: Value | None, b: Value | None) -> Value | None:
    return a if b is None else b if a is None else apply(Op.ADD, (a, b))


def _own(v: Value, g: Value) -> Value:
    """An argument of the second run, whose gradient is that of the first one's."""
    node = _after(Value(v.node), g).node
    return Value(node, True, Op.RESHAPE, None, (v,)) if v.needs_grad else Value(node)


def _after(v: Value, g: Value) -> Value:
    """The value in memory of its own, written once the gradient is known: both in one row, of which g's end is cut off.

    Without memory of its own the second run would be the first one; and what does not wait for the gradient would be
    computed again long before it is used, and be kept as if there were no checkpoint.
    """
    n = elements(v.shape)
    if not v.dtype.is_float or n == 0 or elements(g.shape) == 0:
        return apply(Op.CONTIGUOUS, (v,))
    last = apply(Op.SHRINK, (bc.reshape(Value(g.node), (elements(g.shape),)),), Box((0,), (1,)), (1,))
    row = apply(Op.CONCAT, (bc.reshape(v, (n,)), bc.cast(last, v.dtype)), Along(0))
    own = apply(Op.SHRINK, (apply(Op.CONTIGUOUS, (row,)),), Box((0,), (1,)), (n,))
    return bc.reshape(own, v.shape)


def checkpoint_sequential(
    functions: Sequence[Callable[[Any], Any]], segments: int, input: Tensor, **kwargs: Any
) -> Tensor:
    """Functions applied one after the other, in `segments` parts of which all but the last are checkpoints."""
    fns = list(functions)
    size = max(1, len(fns) // segments)

    def part(first: int, last: int) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            for fn in fns[first:last]:
                x = fn(x)
            return x

        return run

    at = 0
    for _ in range(segments - 1):
        input = checkpoint(part(at, at + size), input, **kwargs)
        at += size
    return part(at, len(fns))(input)


__all__ = ["checkpoint", "checkpoint_sequential"]
