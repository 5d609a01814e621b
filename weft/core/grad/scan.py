"""scan: a function applied step by step along a sequence, with state; traced once, whatever the length."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from weft.autograd.context import grad_mode
from weft.autograd.value import Value
from weft.core.args.handle import Handle, body, describe, wrap
from weft.core.args.structure import builder
from weft.core.execute.random_draws import draws
from weft.core.grad import loops
from weft.core.grad.named_steps import Step
from weft.core.layout.creation import tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir import graph
from weft.ir.index import Int

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """The last carry and the stacked results of carry, y = f(carry, x), from `init` on, for each row x of `xs` in turn.

    Carries, xs and results are Tensors or containers of them (tuples, lists, dicts); xs may be None with a length, f
    may return None for y. With reverse, the rows are taken from the last to the first; ys are in the order of xs.

    f is called once, and its steps become one loop: what the first result costs does not depend on the length, as it
    does for a loop in Python. So f cannot ask for values (item, bool) of what it is given, the carry keeps its shape
    and dtype, and random numbers are drawn outside and passed in xs. Tensors that f uses besides are the same in all
    steps. Gradients flow to init, xs and those; they and vmap may be nested with scan.

    >>> total, sums = weft.scan(lambda s, x: (s + x, s + x), weft.tensor(0.0), weft.arange(4.0))
    >>> sums
    tensor([0., 1., 3., 6.])

    Source: jax.lax.scan.
    """
    if not callable(f):
        raise DTypeError(f"scan: expected a function, got {describe(f)}")
    return _scanned(lambda carry, row, _uses: f(carry, row), None, (), init, xs, length, reverse)


def named_scan(
    f: Callable[[Any, Any, Sequence[Tensor]], tuple[Any, Any]],
    name: Hashable,
    uses: Sequence[Tensor],
    init: Any,
    xs: Any,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """As `scan`, for a function of weft's own that follows from its name: f(carry, x, uses) -> (carry, y), where y is a
    tensor, and `uses` is all that it reads besides. It is not called where it is known what it does."""
    return _scanned(f, name, uses, init, xs, None, reverse)


def _scanned(
    f: Callable[[Any, Any, Sequence[Tensor]], tuple[Any, Any]],
    name: Hashable,
    uses: Sequence[Tensor],
    init: Any,
    xs: Any,
    length: int | None,
    reverse: bool,
) -> tuple[Any, Any]:
    """`scan`, by name if there is one."""
    carries: list[Tensor] = []
    carry_of = builder(_as_tensors(init, "init"), lambda t: _add(t, carries))
    sliced: list[Tensor] = []
    row_of = builder(xs, lambda t: _add(t, sliced))
    count = _length(sliced, length)
    out_of: list[Callable[[list[Any]], Any]] = [_first]  # as in a named step, which may not be traced

    def step(c: list[Value], x: list[Value], used: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        with body(_changed):
            result: Any = f(
                carry_of([wrap(v) for v in c]), row_of([wrap(v) for v in x]), [wrap(v) for v in used]
            )
        if result.__class__ is not tuple or len(result) != 2:
            raise ArgumentError(
                f"scan: the function must return a tuple (carry, y), got {describe(result)}; y may be None"
            )
        nexts: list[Tensor] = []
        builder(_as_tensors(result[0], "the carry"), lambda t: _add(t, nexts))
        _check(carries, nexts)
        outs: list[Tensor] = []
        out_of[:] = [builder(result[1], lambda t: _add(t, outs))]
        return [t.value for t in nexts], [t.value for t in outs]

    before = draws()
    init_values, rows = [t.value for t in carries], [t.value for t in sliced]
    by = Step(name, step, tuple([t.value for t in uses]))
    if count == 0:
        finals, stacks = init_values, _nothing(by.on_values, init_values, rows)
    else:
        finals, stacks = loops.loop_by(by, init_values, rows, count, reverse)
    if draws() != before:
        raise ArgumentError(
            "scan: the function draws random numbers, which would be the same in every step; draw them outside, "
            "for all steps, and pass them in xs"
        )
    return carry_of([wrap(v) for v in finals]), out_of[0]([wrap(v) for v in stacks])


def _first(given: list[Any]) -> Any:
    return given[0]


def _add(t: Tensor, found: list[Tensor]) -> int:
    found.append(t)
    return len(found) - 1


def _as_tensors(tree: Any, what: str) -> Any:
    """`tree` with numbers made tensors."""
    if isinstance(tree, (bool, int, float)):
        return tensor(tree)
    if tree is None or isinstance(tree, Handle):
        return tree
    if isinstance(tree, dict):
        return {k: _as_tensors(x, what) for k, x in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, (tuple, list)):
        items = [_as_tensors(x, what) for x in cast("Sequence[Any]", tree)]
        kind: Any = cast("Any", tree).__class__
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    raise DTypeError(f"scan: {what} must be Tensors or containers of them, got {describe(tree)}")


def _length(sliced: list[Tensor], length: int | None) -> int:
    """The number of steps."""
    for t in sliced:
        if not t.shape:
            raise ShapeError("scan: xs are taken row by row, but one of them has no dimension")
    counts: set[Int] = {t.shape[0] for t in sliced}
    if length is not None:
        counts.add(length)
    if not counts:
        raise ArgumentError("scan: without xs, the number of steps must be given as length")
    if len(counts) > 1:
        raise ShapeError(f"scan: xs, and length where given, must agree, got {sorted(map(str, counts))} rows")
    (count,) = counts
    if not isinstance(count, int):
        raise ShapeError(f"scan: the number of steps must be known, got {count}")
    if count < 0:
        raise ArgumentError(f"scan: length must be at least 0, got {count}")
    return count


def _changed(_: Value) -> NoReturn:
    raise ArgumentError(
        "scan: the function changes a tensor from outside in place, or adds to its .grad: it is run once, for all "
        "steps; have what changes in the carry, and take gradients with weft.autograd.grad"
    )


def _check(before: list[Tensor], after: list[Tensor]) -> None:
    if len(before) != len(after):
        raise ArgumentError(f"scan: init has {len(before)} tensors, the carry after a step {len(after)}")
    for k, (a, b) in enumerate(zip(before, after, strict=True)):
        if a.shape != b.shape:
            raise ShapeError(
                f"scan: tensor {k} of the carry starts with shape {tuple(a.shape)} and has shape {tuple(b.shape)} "
                "after a step; it must keep it"
            )
        if a.dtype is not b.dtype:
            raise DTypeError(
                f"scan: tensor {k} of the carry starts as {a.dtype.name} and is {b.dtype.name} after a step; it must "
                f"stay what it is: convert it with .to(weft.{a.dtype.name}), or start with another dtype"
            )


def _nothing(
    step: Callable[[list[Value], list[Value]], tuple[list[Value], list[Value]]],
    init: list[Value],
    rows: list[Value],
) -> list[Value]:
    """The results of no steps: empty tensors, of the shapes that a step would give."""
    with grad_mode(False):
        one = [Value(graph.const(0, v.dtype, v.shape[1:])) for v in rows]
        _, outs = step(init, one)
    return [Value(graph.const(0, v.dtype, (0, *v.shape))) for v in outs]
