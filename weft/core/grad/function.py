"""Functions whose derivative the user writes (torch.autograd.Function)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from weft.autograd.context import grad_enabled, grad_mode
from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.args.handle import Handle, describe, rule_of_examples, standing_for, wrap
from weft.core.execute import tracing
from weft.errors import ArgumentError, DTypeError, GradError, ShapeError
from weft.ir import graph
from weft.ir.dtypes import DType, promote
from weft.ir.graph import Box, Padding, Shape, elements
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class FunctionCtx:
    """The context from forward to backward: tensors by `save_for_backward`, anything else as attributes."""

    needs_input_grad: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self._saved: tuple[Value | None, ...] = ()
        self._held: tuple[Tensor | None, ...] = ()
        """Tensors that stand for what is saved: it is stored when it is computed, as all that somebody holds."""
        self._results: dict[int, tuple[Value, ref[Value]]] = {}
        self._flat: set[int] = set()
        self._dirty: tuple[Tensor, ...] = ()
        self._zeros = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep inputs or results (or None) for backward, where `saved_tensors` gives them."""
        items: tuple[Any, ...] = tensors
        for t in items:
            if t is not None and not isinstance(t, Handle):
                raise DTypeError(f"save_for_backward: expected Tensors or None, got {describe(t)}")
        self._saved = tuple(None if t is None else t.value for t in tensors)
        if tracing.current() is None:  # there they would outlive the trace
            self._held = tuple(None if v is None else standing_for(v) for v in self._saved)

    save_for_forward = save_for_backward

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that save_for_backward kept, with the history that makes second derivatives right."""
        out: list[Tensor | None] = []
        for v in self._saved:
            entry = None if v is None else self._results.get(id(v))
            recorded = entry[1]() if entry is not None else None
            kept = None if v is None else standing_for(v)
            out.append(kept if recorded is None else wrap(recorded))
        return tuple(out)

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """No gradient flows through these results."""
        self._flat = {id(t) for t in tensors}

    def mark_dirty(self, *tensors: Tensor) -> None:
        """These inputs were changed in place; they are results too."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """False: backward gets None, not zeros, for results that nothing depends on."""
        self._zeros = value

    # --- for Function

    def result_of(self, raw: Value, recorded: Value) -> None:
        """A saved result is, in backward, the recorded value (held weakly: it holds this context)."""
        self._results[id(raw)] = (raw, ref(recorded))

    def is_flat(self, t: Tensor) -> bool:
        """Marked as not differentiable."""
        return id(t) in self._flat

    @property
    def dirty(self) -> tuple[Tensor, ...]:
        """The inputs marked as changed."""
        return self._dirty

    @property
    def materializes(self) -> bool:
        """True where missing gradients are zeros."""
        return self._zeros


class Function:
    """Base of functions with a derivative of one's own: define forward and backward as static methods, call `apply`.

    forward(ctx, *args) returns a Tensor or a tuple with some; or forward(*args) with setup_context(ctx, inputs,
    output). backward(ctx, *grads) gets the gradient of each result and returns that of each argument, None where there
    is none. What backward builds is differentiable again, and batched by vmap.

    >>> class Cube(weft.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3 * x * x
    >>> y = Cube.apply(x)
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    vjp: Callable[..., Any]
    setup_context: Callable[..., Any] | None = None

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run forward, and record backward as its derivative."""
        name = cls.__name__
        if not hasattr(cls, "forward"):
            raise ArgumentError(f"{name}: define forward as a static method")
        ctx = FunctionCtx()
        before = [x.value if isinstance(x, Handle) else None for x in args]
        ctx.needs_input_grad = tuple(v is not None and v.needs_grad for v in before)
        with grad_mode(False):
            if cls.setup_context is not None:
                result = cls.forward(*args)
                cls.setup_context(ctx, args, result)
            else:
                result = cls.forward(ctx, *args)
        if not grad_enabled() or not any(ctx.needs_input_grad):
            return result
        several = isinstance(result, (tuple, list))
        outputs: list[Any] = list(cast("Sequence[Any]", result)) if several else [result]
        backward = getattr(cls, "backward", None) or getattr(cls, "vjp", None)
        trace = tracing.current()
        then = None if trace is None else trace.as_it_is()

        def rule(grads: list[Value | None]) -> list[Value | None]:
            if backward is None:
                raise GradError(f"{name}: define backward as a static method to differentiate through it")
            with (
                tracing.as_then(then),
                rule_of_examples(tracing.check_rule),
            ):  # what the context has as attributes
                given = [None if g is None else wrap(g) for g in grads]
                return _checked(name, backward(ctx, *given), args, before)

        smooth = [
            isinstance(t, Handle) and t.value.dtype.is_float and not ctx.is_flat(cast("Any", t))
            for t in outputs
        ]
        inputs = tuple(v for v in before if v is not None)
        recorded = several_results([t.value if s else None for t, s in zip(outputs, smooth, strict=True)], inputs,
                                   _for_tensors(rule, before), ctx.materializes)  # fmt: skip
        final: list[Any] = []
        for t, v in zip(outputs, recorded, strict=True):
            if v is None:
                final.append(t)
                continue
            ctx.result_of(t.value, v)
            if any(t is d for d in ctx.dirty):
                t.rebind(v)
                final.append(t)
            else:
                final.append(wrap(v))
        return (tuple(final) if isinstance(result, tuple) else final) if several else final[0]


def _for_tensors(
    rule: Callable[[list[Value | None]], list[Value | None]], before: Sequence[Value | None]
) -> Callable[[list[Value | None]], tuple[Value | None, ...]]:
    """The rule with gradients for the tensors among the arguments only."""

    def run(grads: list[Value | None]) -> tuple[Value | None, ...]:
        return tuple(g for g, v in zip(rule(grads), before, strict=True) if v is not None)

    return run


def _checked(
    name: str, found: Any, args: Sequence[Any], before: Sequence[Value | None]
) -> list[Value | None]:
    """The gradients that backward returned: one for each argument, each of its argument's shape and dtype."""
    parts: list[Any] = list(cast("Sequence[Any]", found)) if isinstance(found, (tuple, list)) else [found]
    if len(parts) > len(args) and all(p is None for p in parts[len(args) :]):
        parts = parts[: len(args)]
    if len(parts) != len(args):
        raise GradError(
            f"{name}: backward returned {len(parts)} gradients for {len(args)} arguments of forward"
        )
    out: list[Value | None] = []
    for k, (part, v) in enumerate(zip(parts, before, strict=True)):
        if part is None or v is None:
            if part is not None:
                raise GradError(f"{name}: backward returned a gradient for argument {k}, which is no Tensor")
            out.append(None)
            continue
        if not isinstance(part, Handle):
            raise DTypeError(
                f"{name}: backward must return Tensors or None, got {describe(part)} for argument {k}"
            )
        g = part.value
        if g.shape != v.shape:
            if len(g.shape) > len(v.shape) or any(
                n not in (1, m) for n, m in zip(g.shape[::-1], v.shape[::-1], strict=False)
            ):
                raise ShapeError(
                    f"{name}: backward returned a gradient of shape {tuple(g.shape)} for argument {k} of shape "
                    f"{tuple(v.shape)}"
                )
            g = bc.expand(g, v.shape)
        out.append(bc.cast(g, v.dtype))
    return out


def several_results(
    outputs: Sequence[Value | None],
    inputs: tuple[Value, ...],
    rule: Callable[[list[Value | None]], tuple[Value | None, ...]],
    zeros: bool = True,
) -> list[Value | None]:
    """Values of the nodes of `outputs` whose gradients are taken together by `rule`; None stays None.

    The tape's values have one result each. Several share a parent that stands for all of them in one row; its gradient
    is theirs side by side.
    """
    some = [v for v in outputs if v is not None]
    if not some:
        return list(outputs)
    if len(outputs) == 1:
        v = some[0]

        def alone(g: Value, _out: Value, *_xs: Value) -> tuple[Value | None, ...]:
            return rule([g])

        return [composed(v.node, inputs, alone)]
    dtype: DType = some[0].dtype
    for v in some[1:]:
        dtype = promote(dtype, v.dtype)
    places: list[tuple[Int, Shape, DType] | None] = []
    total: Int = 0
    for v in outputs:
        places.append(None if v is None else (total, v.shape, v.dtype))
        total = total if v is None else total + elements(v.shape)
    reached: set[int] = set()

    def joint(g: Value, _out: Value, *_xs: Value) -> tuple[Value | None, ...]:
        parts: list[Value | None] = []
        for k, place in enumerate(places):
            if place is None or (k not in reached and not zeros):
                parts.append(None)
                continue
            at, shape, kind = place
            part = apply(Op.SHRINK, (g,), Box((at,), (1,)), (elements(shape),))
            parts.append(bc.cast(bc.reshape(part, shape), kind))
        return rule(parts)

    parent = composed(graph.const(0, dtype, (total,)), inputs, joint)

    def embed(k: int) -> Callable[..., tuple[Value]]:
        def part(g: Value, _out: Value, _parent: Value) -> tuple[Value]:
            place = places[k]
            assert place is not None
            reached.add(k)
            flat = bc.cast(bc.reshape(g, (elements(place[1]),)), dtype)
            return (
                apply(Op.PAD, (flat,), Padding((place[0],), (total - place[0] - elements(place[1]),), (0,))),
            )

        return part

    return [None if v is None else composed(v.node, (parent,), embed(k)) for k, v in enumerate(outputs)]


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a backward whose own derivative would be wrong: its results are constants to differentiation."""

    @wraps(fn)
    def run(*args: Any) -> Any:
        with grad_mode(False):
            return fn(*args)

    return run


class BackwardHook(Function):
    """Tensors as they are; their gradients pass through a function of all of them."""

    @staticmethod
    def forward(ctx: FunctionCtx, hook: Callable[[tuple[Any, ...]], Any], *tensors: Tensor) -> Any:
        ctx.hook = hook  # pyright: ignore[reportAttributeAccessIssue]  (contexts take any attribute)
        return tuple(standing_for(t.value) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        found = ctx.hook(grads)
        return (None, *(grads if found is None else found))
