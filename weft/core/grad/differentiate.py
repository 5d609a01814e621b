"""Gradients for users: backward() with accumulation in `.grad`, and grad as a function transformation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from weft.autograd import passed, repeated
from weft.autograd.context import grad_mode
from weft.autograd.value import HOOKS, Value
from weft.core.args import broadcast as bc
from weft.core.args.handle import Handle, describe, standing_for, value_of, wrap, wrap_untracked, writing
from weft.core.execute import edits, tracing, watched
from weft.core.execute.changes import restored_on_error
from weft.core.execute.pending import postponed
from weft.core.execute.realization import catch_up_gradients, note
from weft.errors import ArgumentError, DTypeError, GradError, ShapeError
from weft.ir.index import Int
from weft.ir.placement import is_mesh

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class RemovableHandle:
    """The handle of a registered hook: `remove()` takes the hook off, as does leaving it as a context."""

    def __init__(self, hooks: dict[int, Any], hook: Any, prepend: bool = False) -> None:
        self.id = next(_numbers)
        self._hooks = hooks
        hooks[self.id] = hook
        if prepend:
            for key in [k for k in hooks if k != self.id]:
                hooks[key] = hooks.pop(key)
        edits.modules.note()

    def remove(self) -> None:
        """The hook is called no more."""
        self._hooks.pop(self.id, None)
        edits.modules.note()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


_numbers = itertools.count()


def register_hook(input: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Have hook(gradient) called when the gradient of this tensor is known; what it returns takes its place."""
    v = value_of("register_hook", input)
    if not v.needs_grad:
        raise GradError("register_hook: this tensor does not require grad, so it has no gradient to see")

    def on_value(g: Value) -> Value | None:
        new = hook(wrap(g))
        if new is None:
            return None
        found = value_of("register_hook", new)
        if found.shape != g.shape or found.dtype is not g.dtype:
            raise ShapeError(f"register_hook: the hook must return {describe(wrap(g))}, got {describe(new)}")
        return found

    if v.is_leaf:  # of the tensor, whose value changes at each optimizer step
        hooks = input.__dict__.setdefault("_hooks", {})
        HOOKS[v] = hooks
    else:
        hooks = HOOKS.setdefault(v, {})
    return RemovableHandle(hooks, on_value)


def register_post_accumulate_grad_hook(input: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Have hook(tensor) called each time backward() has added to the `.grad` of this leaf."""
    v = value_of("register_post_accumulate_grad_hook", input)
    if not (v.needs_grad and v.is_leaf):
        raise GradError(
            "register_post_accumulate_grad_hook: only leaves that require grad accumulate gradients"
        )
    return RemovableHandle(input.__dict__.setdefault("_post_hooks", {}), hook)


def _walk(
    outputs: Sequence[Value],
    seeds: Sequence[Value],
    inputs: Sequence[Value] | None,
    create: bool,
    order: Sequence[Value] | None = None,
) -> dict[Value, Value]:
    from weft.autograd.reverse import gradients

    trace = tracing.current()
    if trace is None:
        return gradients(outputs, seeds, inputs, create, order=order)
    trace.walks += 1
    try:
        return gradients(outputs, seeds, inputs, create, order=order)
    finally:
        trace.walks -= 1
        if trace.left and not trace.walks:  # by a hook that looked at a gradient
            trace.settle()


def _seed(op: str, v: Value, gradient: Tensor | None) -> Value:
    if not v.needs_grad:
        raise GradError(
            f"{op}: this tensor of shape {tuple(v.shape)} does not depend on one that requires grad; "
            "set requires_grad=True on the inputs, and compute outside no_grad"
        )
    if gradient is None:
        count: Int = 1
        for n in v.shape:
            count = count * n
        if count != 1:
            raise GradError(
                f"{op}: only a tensor of one element has an implicit gradient, this one has shape {tuple(v.shape)}; "
                "reduce it, as in .sum(), or pass gradient="
            )
        return bc.scalar(1, v.dtype, v.shape)
    g = value_of(op, gradient)
    if g.shape != v.shape:
        raise ShapeError(f"{op}: the gradient has shape {tuple(g.shape)}, the tensor {tuple(v.shape)}")
    return bc.cast(g, v.dtype)


def backward(
    input: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | None = None,
) -> None:
    """Add the gradient of this tensor to `.grad` of every leaf it depends on, or of `inputs` only.

    Without `retain_graph` or `create_graph`, the history of this tensor is given up when a leaf that
    it depends on is written over, as by an optimizer's step; until then the pass may be made again. Inside
    `weft.compile`, a result that has been differentiated is returned without its history.
    """
    v = value_of("backward", input)
    seed = _seed("backward", v, gradient)
    trace = tracing.current()
    if trace is not None:
        trace.went_back(_tape(v), keep=_is_kept(retain_graph, create_graph))
    if inputs is None:
        from weft.autograd.reverse import tape

        order = tape([v])
        targets = _watched_of(order)
    else:
        order = None
        targets = [value_of("backward", t) for t in inputs]
        for t in inputs:
            watched.watch(t)
    # before the walk, in which a hook may leave a trace
    owners = [(value, owner()) for value in targets if (owner := watched.tensors.get(value)) is not None]
    catch_up_gradients(v.node, [t for _, t in owners if t is not None])
    note(input)
    with restored_on_error((), [t for _, t in owners if t is not None]), postponed():
        if order is None or create_graph:
            found = _walk([v], [seed], targets, create_graph, order)
        else:
            found = repeated.gradients(
                v, seed, targets, order, lambda: _walk([v], [seed], targets, False, order)
            )
        with grad_mode(create_graph):
            for value, t in owners:
                g = found.get(value)
                if g is not None and t is not None:
                    if is_mesh(value.node.device):
                        from weft.core.sharding.tensors import gradient_of

                        g = gradient_of(value.node, g)
                    with writing:
                        t.grad = wrap_untracked(g) if t.grad is None else t.grad + wrap(g)
                    for hook in list(t.__dict__.get("_post_hooks", {}).values()):
                        hook(t)
    if trace is None and not _is_kept(retain_graph, create_graph):
        passed.note(v, targets)


def _is_kept(retain_graph: bool | None, create_graph: bool) -> bool:
    """True where a history may be gone through again, whatever happens to its leaves."""
    return create_graph or bool(retain_graph)


def _watched_of(order: Sequence[Value]) -> list[Value]:
    """The watched values among those of a tape."""
    watching = _watched.data
    return [v for v in order if ref(v) in watching]


_watched: Any = watched.tensors
"""Asked for its `data`, since a weak mapping looks up each value in a call of Python."""


def _tape(output: Value) -> list[Value]:
    """`output` and every value it was computed from that needs a gradient, each once."""
    seen = {output}
    stack = [output]
    order: list[Value] = []
    while stack:
        v = stack.pop()
        order.append(v)
        for x in v.inputs:
            if x.needs_grad and x not in seen:
                seen.add(x)
                stack.append(x)
    return order


def gradients(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the outputs with respect to the inputs (torch.autograd.grad); `.grad` is not touched.

    GradError for an input that no output depends on, unless allow_unused: then its gradient is None, or, with
    materialize_grads, zeros. With is_grads_batched, grad_outputs have a first dimension of gradients, as the results
    do. Histories are given up as after `Tensor.backward`.
    """
    outs = [outputs] if isinstance(outputs, Handle) else list(outputs)
    ins = [inputs] if isinstance(inputs, Handle) else list(inputs)
    given = [grad_outputs] if grad_outputs is None or isinstance(grad_outputs, Handle) else list(grad_outputs)
    if materialize_grads and allow_unused is False:
        raise ArgumentError("grad: materialize_grads needs allow_unused, or leave that out")
    if len(given) == 1 and given[0] is None:
        given = [None] * len(outs)
    if len(given) != len(outs):
        raise ArgumentError(f"grad: {len(given)} grad_outputs for {len(outs)} outputs")
    if is_grads_batched:
        from weft.core.grad.vmap import vmap

        def once(*seeds: Tensor) -> tuple[Tensor, ...]:
            found = gradients(
                outs, ins, seeds, create_graph=create_graph, allow_unused=True, materialize_grads=True
            )
            return tuple(g for g in found if g is not None)

        return vmap(once)(*given)
    values = [value_of("grad", t) for t in outs]
    seeds = [_seed("grad", v, g) for v, g in zip(values, given, strict=True)]
    targets = [value_of("grad", t) for t in ins]
    for i, t in enumerate(targets):
        if not t.needs_grad:
            raise GradError(
                f"grad: input {i} of shape {tuple(t.shape)} does not require grad; set requires_grad on it before it "
                "is used"
            )
    found = _walk(values, seeds, targets, create_graph)
    if tracing.current() is None and not _is_kept(retain_graph, create_graph):
        for v in values:
            passed.note(v, targets)
    for i, v in enumerate(targets):
        if v not in found and not (allow_unused or materialize_grads):
            raise GradError(
                f"grad: no output depends on input {i} of shape {tuple(v.shape)}, or it does not require grad; "
                "pass allow_unused=True to get None for it"
            )
    out: list[Tensor | None] = [wrap(found[v]) if v in found else None for v in targets]
    if materialize_grads:
        out = [
            wrap(bc.scalar(0, v.dtype, v.shape)) if g is None else g
            for g, v in zip(out, targets, strict=True)
        ]
    return tuple(out)


def backward_all(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradients of the sum of several tensors to `.grad` (torch.autograd.backward); see Tensor.backward."""
    outs = [tensors] if isinstance(tensors, Handle) else list(tensors)
    given = [grad_tensors] if grad_tensors is None or isinstance(grad_tensors, Handle) else list(grad_tensors)
    if len(given) == 1 and given[0] is None:
        given = [None] * len(outs)
    if len(given) != len(outs):
        raise ArgumentError(f"backward: {len(given)} grad_tensors for {len(outs)} tensors")
    targets = [inputs] if isinstance(inputs, Handle) else inputs
    for t, g in zip(outs, given, strict=True):
        backward(t, g, retain_graph, create_graph, targets)


def value_and_grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """A function that gives (fn(...), its gradient with respect to the arguments `argnums`).

    fn returns a tensor of one element, or with has_aux a pair of it and anything else. An argument may be a Tensor or a
    list, tuple or dict of them; its gradient has the same form, zeros where fn does not depend on it. May be nested.
    """
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        for n in numbers:
            if not -len(args) <= n < len(args):
                raise ArgumentError(f"grad: argnums {n} is out of range for {len(args)} positional arguments")
        with grad_mode(True):
            leaves: list[Tensor] = []
            fresh: set[Value] = set()
            given = list(args)
            for n in numbers:
                given[n] = map_tensors(lambda t: tracked(t, leaves, fresh), args[n])
            result = fn(*given, **kwargs)
        out = result[0] if has_aux else result
        if not isinstance(out, Handle):
            raise DTypeError(f"grad: the function must return a Tensor, got {describe(out)}")
        v = out.value
        targets = [t.value for t in leaves]
        nested = depends_on_others(v, fresh)
        found = _walk([v], [_seed("grad", v, None)], targets, nested) if v.needs_grad else {}
        if (
            not nested
        ):  # nobody else differentiates: results must not keep the tape of every call so far alive
            out = wrap(Value(v.node))
            result = (out, *result[1:]) if has_aux else out
        flat = iter([wrap(found[t]) if t in found else wrap(bc.scalar(0, t.dtype, t.shape)) for t in targets])
        grads = [map_tensors(lambda _: next(flat), args[n]) for n in numbers]
        return result, grads[0] if isinstance(argnums, int) else tuple(grads)

    return run


def grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the gradient of fn with respect to the arguments `argnums`; see value_and_grad."""
    if not callable(fn):
        raise DTypeError(f"grad: expected a function, got {describe(fn)}; weft.gradients takes tensors")
    both = value_and_grad(fn, argnums, has_aux)

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        result, found = both(*args, **kwargs)
        return (found, result[1]) if has_aux else found

    return run


def tracked(t: Tensor, leaves: list[Tensor], fresh: set[Value]) -> Tensor:
    """`t` as something to differentiate by: itself if it is on the tape already, so that transformations nest."""
    if not t.value.dtype.is_float:
        raise GradError(f"grad: only float tensors have gradients, got {t.value.dtype.name}")
    out = t
    if not t.value.needs_grad:
        out = standing_for(Value(t.value.node, True))
        fresh.add(out.value)
    leaves.append(out)
    return out


def leaves_below(outputs: Sequence[Value], stop: Sequence[Value]) -> list[Value]:
    """The leaves that need gradients among what the outputs were computed from, not looking past `stop`."""
    seen = set(stop)
    found: list[Value] = []
    stack = list(outputs)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.is_leaf and v.needs_grad:
            found.append(v)
        stack.extend(x for x in v.inputs if x.needs_grad)
    return found


def depends_on_others(output: Value, fresh: set[Value]) -> bool:
    """True if the tape under `output` leads to a leaf that is not one of `fresh`."""
    return any(v.is_leaf and v.needs_grad and v not in fresh for v in _tape(output))


def map_tensors(f: Callable[[Tensor], Any], tree: Any) -> Any:
    """`f` on every Tensor of nested lists, tuples and dicts."""
    if isinstance(tree, Handle):
        return f(standing_for(tree.value))
    if isinstance(tree, dict):
        return {k: map_tensors(f, v) for k, v in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, (list, tuple)):
        items = [map_tensors(f, v) for v in cast("Sequence[Any]", tree)]
        return items if isinstance(tree, list) else tuple(items)
    raise DTypeError(f"grad: expected a Tensor or a list, tuple or dict of them, got {describe(tree)}")
