"""Tensors that look at the same elements: torch's views.

    row = x[0]
    row.add_(1)         # x changes, and every other view of it

Values are immutable, and a view is a function of them, so views need no memory of their own and no strides. What is
kept is who looks at the same elements, and through which functions: each function of movement here is a `Step`, and a
tensor's `Look` is the steps from the elements as they were first made. A write to one tensor, which makes its handle
stand for another value, is carried back through its steps to the elements, and forth to all others; gradients flow
through both, since they are ordinary operations. Nothing is kept alive by its views, and reading costs nothing.
"""
# Tests: tests/core/views/test_views.py, tests/core/views/test_strides.py, tests/core/views/test_bit_views.py

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import ref

import numpy as np

from weft.autograd.context import grad_enabled
from weft.autograd.value import Value, apply
from weft.core.args import broadcast as bc
from weft.core.args.handle import Handle, own, wrap, writing
from weft.core.execute import edits, files
from weft.core.execute.changes import restored_on_error
from weft.core.layout.indexing import getitem, is_number
from weft.core.views import strides
from weft.core.views.boxes import Boxes, Spans
from weft.core.views.moves import moved
from weft.core.views.strides import copies, overlaps, picks_one
from weft.errors import ArgumentError, GradError, wraps_calls
from weft.ir import graph
from weft.ir.dtypes import DType, bool_
from weft.ir.graph import Along, Axes, Box, Node, Padding, ScatterCombine, Shape, elements
from weft.ir.index import Index
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

wraps_calls(__file__)


Ways: TypeAlias = "dict[tuple[Shape, DType, str | None], list[list[Node]]]"
"""The movement ops to each of several results of a function, by what it is given."""


@dataclass(slots=True, eq=False)
class ViewStep:
    """One function of movement, with its arguments; `part` is the number of the result among several, and `ways` what
    the steps to all of them know together."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    part: int | None = None
    ways: Ways | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Elements:
    """The elements that several tensors look at: their shape, dtype and device, and those tensors."""

    shape: Shape
    dtype: DType
    device: str | None
    members: list[ref[Tensor]]
    full: int = 8
    boxes: Boxes[ref[Tensor]] | None = None
    """The places at which each of the first of them looks, once they are many and that is asked for."""
    placed: int = 0
    """The number of them that are there."""

    def join(self, t: Tensor) -> None:
        """`t` is one of them."""
        if len(self.members) >= self.full:
            self.sweep()
            self.full = 2 * len(self.members) + 8
        self.members.append(ref(t))

    def sweep(self) -> None:
        """Forget those that are gone."""
        self.members = [r for r in self.members if _looks(r(), self)]
        self.boxes = None

    def are_only(self, t: Tensor) -> bool:
        """True where `t` is known to be the only one. False may mean that others are gone, and were not swept."""
        members = self.members
        return len(members) == 1 and members[0]() is t

    def others(self, t: Tensor) -> list[Tensor]:
        """The living ones but for `t`."""
        return [m for r in self.members if (m := r()) is not t and m is not None and _looks(m, self)]

    def touching(self, t: Tensor, look: ViewOf) -> list[Tensor]:
        """The living ones but for `t`, which looks so, that may look at the same elements: each once."""
        if len(self.members) < MANY or not look.first_box or elements(t.value.node.shape) == 0:
            if self.are_only(t):
                return []
            found = self.members
        else:
            boxes = self.boxes
            if boxes is None:
                self.placed = 0
                boxes = self.boxes = Boxes(self.shape)
            for r in self.members[self.placed :]:
                m = r()
                if m is not None and m.look is not None and m.look.shared is self:
                    boxes.add(r, m.look.first_box)
                self.placed += 1  # last: one that an interrupt lost would be missed
            found = boxes.near(look.first_box)
        near = {id(m): m for r in found if (m := r()) is not None and _looks(m, self)}
        near.pop(id(t), None)
        if not near and found is self.members:
            self.sweep()  # all others are gone
        return [m for m in near.values() if m.look is None or not _apart(look, m.look)]


MANY = 16
"""The number of tensors that look at the same elements from which on it is looked up which of them a write touches."""


def _looks(t: Tensor | None, shared: Elements) -> bool:
    return t is not None and (look := t.look) is not None and look.shared is shared


@dataclass(slots=True, eq=False)
class ViewOf:
    """A tensor's look at elements: the steps to it, and, once needed, the movement nodes they come to."""

    shared: Elements
    steps: tuple[ViewStep, ...]
    found: Sequence[Node] | None = None
    box: Spans | None = None

    @property
    def route(self) -> Sequence[Node]:
        """The movement ops of the steps, from the elements on."""
        if self.found is None:
            self.found = _route(self.shared, self.steps)
        return self.found

    @property
    def first_box(self) -> Spans:
        """The first and the last element along each axis, and None where they are not known, of the box that the first
        step cuts out; nothing where it cuts out none."""
        if self.box is None:
            self.box = _box(self.route)
        return self.box

    @property
    def detached(self) -> ViewStep | None:
        """The last step without history: gradients flow between those that share it."""
        return next((s for s in reversed(self.steps) if s.function is without_history), None)


def without_history(x: Tensor) -> Tensor:
    """The same values as a constant to differentiation."""
    return wrap(Value(x.value.node))


# ---------------------------------------------------------------------------------------------- becoming a view


def viewing(function: Callable[..., Any], may_copy: bool = False) -> Callable[..., Any]:
    """A function of movement whose results look at the elements of its input; with `may_copy` where strides allow."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with writing:
            if args:
                source, rest = args[0], args[1:]
                out = moved(function, source, rest, kwargs)
            else:
                out = function(**kwargs)
                source, rest = kwargs.pop("input"), ()
            for a in (*rest, *kwargs.values()) if kwargs else rest:
                if isinstance(a, Handle):
                    rest, kwargs = _frozen(function, rest, kwargs)
                    break
            if type(out) is tuple:
                value = source.value
                out = tuple([own(value) if t.value is value else t for t in cast("tuple[Tensor, ...]", out)])
                ways: Ways = {}
                for k, part in enumerate(out):
                    make_view(source, part, ViewStep(function, rest, kwargs, k, ways))
                return cast("Any", out)
            if out is source or out.value is source.value:
                if function.__name__ in _ITSELF:
                    return source
                out = own(source.value)
            make_view(source, out, ViewStep(function, rest, kwargs), may_copy)
            return cast("Any", out)

    call.__name__, call.__qualname__ = function.__name__, function.__qualname__
    call.__module__, call.__doc__ = function.__module__, function.__doc__
    call.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess]  (what inspect.signature follows)
    return call


def make_view(source: Tensor, out: Tensor, step: ViewStep, may_copy: bool = False) -> None:
    """`out`, which is `step` of the source, looks at the source's elements from here on."""
    look = source.look
    if look is None:
        v = source.value
        look = ViewOf(Elements(v.node.shape, v.node.dtype, v.node.device, [ref(source)]), ())
        edits.share(source, look)
    elif may_copy and look.steps and _is_copied(look, source.value.node.shape, step, out.value.node.shape):
        return
    out.look = ViewOf(look.shared, (*look.steps, step))
    look.shared.join(out)


def _is_copied(look: ViewOf, given: Shape, step: ViewStep, shape: Shape) -> bool:
    """True where torch copies for `step`, which makes `shape` of a view of shape `given`: its strides do not allow
    another view. Parts of a tensor that have one shape have the same strides, so which one the view is itself, as its
    last step says, does not matter."""
    dense = step.function.__name__ in ("contiguous", "ravel")
    *before, last = look.steps
    calls = (*[(*_call(s), s.part) for s in before], _call(last))
    if any(isinstance(a, Handle) for s in look.steps for a in (*s.args, *s.kwargs.values())):
        return copies(
            look.shared.shape, look.route, shape, dense
        )  # a tensor's memory must not be kept by a table
    key = (look.shared.shape, look.shared.dtype, calls, given, shape, dense)
    try:
        found = _copied.get(key)
    except TypeError:  # arguments that cannot be told apart, such as slices
        return copies(look.shared.shape, look.route, shape, dense)
    if found is None:
        if len(_copied) >= COPIES_KEPT:
            _copied.clear()
        found = _copied[key] = copies(look.shared.shape, look.route, shape, dense)
    return found


def _call(step: ViewStep) -> tuple[Any, ...]:
    return step.function, step.args, tuple(step.kwargs.items()) if step.kwargs else ()


COPIES_KEPT = 4096
"""Reshapes of views of which it is known whether torch copies for them; then all are forgotten."""

_copied: dict[tuple[Any, ...], bool] = {}


_SHAPED_AS = frozenset({"view_as", "reshape_as", "expand_as"})
"""Functions whose other tensor says only a shape; that of others says positions, which they compute."""


def _frozen(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with what tensors among them say now: they may stand for something else when a step is repeated."""
    shaped = function.__name__ in _SHAPED_AS

    def fixed(a: Any) -> Any:
        if not isinstance(a, Handle):
            return a
        return wrap(Value(a.value.node)) if shaped else wrap(a.value).tolist()

    return tuple(map(fixed, args)), {k: fixed(a) for k, a in kwargs.items()}


def seen_from(t: Tensor, look: ViewOf) -> Iterator[tuple[Tensor, tuple[ViewStep, ...]]]:
    """The others of whom `t` is a view, and the steps from each to it."""
    for m in look.shared.others(t):
        if m.look is not None and _begins(look.steps, m.look.steps):
            yield m, look.steps[len(m.look.steps) :]


def compose_views(source: Tensor, out: Tensor, steps: Sequence[ViewStep]) -> None:
    """`out` looks at the source's elements through several steps."""
    with writing:
        for s in steps:
            make_view(source if out.look is None else out, out, s)


def _begins(steps: Sequence[ViewStep], start: Sequence[ViewStep]) -> bool:
    return len(steps) >= len(start) and all(a is b for a, b in zip(start, steps, strict=False))


def move(t: Tensor, step: ViewStep, before: Value) -> None:
    """`t`, which stood for `before`, looks at the same elements through one more step: its shape changed in place."""
    look = t.look
    if look is None:
        look = ViewOf(Elements(before.node.shape, before.node.dtype, before.node.device, [ref(t)]), ())
    edits.share(t, ViewOf(look.shared, (*look.steps, step)))


def is_self_assignment(t: Tensor, key: Any, value: Any) -> bool:
    """True where `value` is the view t[key] itself, as at the end of `t[key] += 1`: it is there already."""
    if not isinstance(value, Handle):
        return False
    own, look = t.look, value.look
    if own is None or look is None or look.shared is not own.shared:
        return False
    if len(look.steps) != len(own.steps) + 1 or not _begins(look.steps, own.steps):
        return False
    last = look.steps[-1]
    if last.function is picked_at:
        return isinstance(made := _basic(key), list) and all(
            map(_alike, cast("list[Any]", made), last.args[0])
        )
    return last.function.__name__ == "getitem" and len(last.args) == 1 and last.args[0] is key


def _alike(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, Handle) and isinstance(b, Handle) and a.value.node is b.value.node)


_NAMES = """
    view view_as unflatten squeeze unsqueeze expand expand_as broadcast_to permute transpose swapaxes swapdims t movedim
    moveaxis narrow shrink select split chunk unbind diagonal unfold adjoint as_strided tensor_split hsplit vsplit
    dsplit split_with_sizes unsafe_chunk unsafe_split unsafe_split_with_sizes
"""
_COPIED_BY_STRIDES = "reshape reshape_as flatten ravel contiguous"
_ITSELF = frozenset({"contiguous", "flatten"})
"""The functions for which torch gives the input itself, where nothing changes."""
NAMES = frozenset(_NAMES.split()) | frozenset(_COPIED_BY_STRIDES.split())
"""torch's functions and methods whose results are views, or may be."""


def offered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of that name, with results that look at the elements of the input if that is what torch says, and
    that are others than the input if not."""
    if name in NAMES:
        return viewing(function, name in _COPIED_BY_STRIDES.split())
    made = name in _ALWAYS_MADE or name.startswith("__") or function.__module__ in _ALWAYS_MAKE
    return function if made and not name.endswith("_copy") else copying(function)


_ALWAYS_MAKE = frozenset(
    f"weft.core.{m}"
    for m in (
        "layout.creation",
        "pointwise.elementwise",
        "functional.activations",
        "functions.matmul",
        "functions.random",
    )
)
_ALWAYS_MADE = frozenset(
    {
        "sum",
        "mean",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "broadcast_tensors",
        "cartesian_prod",
        "sum_to_size",
    }
)
"""Modules and functions whose results are others than the input as they are, or that give it as torch does: no call
around them is needed."""


def copying(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose results are never its input itself, not even where there is nothing to do."""

    def call(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        source = args[0] if args else kwargs.get("input")
        if not isinstance(source, Handle):
            return out
        value = source.value
        if isinstance(out, Handle):
            return own(value) if out.value is value and _is_input(out, source) else out
        if isinstance(out, tuple):
            parts = cast("tuple[Any, ...]", out)
            if any(_is_input(t, source) for t in parts):
                make = cast("Callable[[list[Any]], Any]", getattr(cast("Any", out), "_make", tuple))
                return make([own(value) if _is_input(t, source) else t for t in parts])
        return cast("Any", out)

    call.__name__, call.__qualname__ = function.__name__, function.__qualname__
    call.__module__, call.__doc__ = function.__module__, function.__doc__
    call.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess]  (what inspect.signature follows)
    return call


def _is_input(out: Any, source: Handle) -> bool:
    """True where a result is the input, or a tensor with its values that is no view of it."""
    return out is source or (isinstance(out, Handle) and out.value is source.value and out.look is None)


def picking(function: Callable[..., Any]) -> Callable[..., Any]:
    """x[key]: a view where the key is made of numbers, slices and tensors of one integer."""

    def call(input: Tensor, key: Any) -> Tensor:
        made = _basic(key)
        if made is None:
            out = function(input, key)
            return own(input.value) if out.value is input.value else out
        with writing:
            out = moved(function, input, (key,))
            if out.value is input.value:
                out = own(input.value)
            make_view(
                input, out, ViewStep(picked_at if type(made) is list else getitem, (cast("Any", made),))
            )
            return out

    call.__name__ = call.__qualname__ = function.__name__
    call.__module__, call.__doc__ = function.__module__, function.__doc__
    return call


_PLAIN_BOUNDS = frozenset({int, type(None)})

_BASIC = frozenset({int, slice, type(None), type(Ellipsis), np.int64, np.int32})


def _basic(key: Any) -> Any:
    """The key if it picks a view, else None; as a list where tensors are part of it, by their present values."""
    if type(key) is slice:
        if _PLAIN_BOUNDS.issuperset((key.start.__class__, key.stop.__class__, key.step.__class__)):
            return key
    keys: tuple[Any, ...] = cast("Any", key) if type(key) is tuple else (key,)
    tensors = key is None  # which would say that it picks none
    for k in keys:
        kind = cast("type[Any]", type(k))
        if kind is slice:
            tensors = tensors or any(isinstance(b, Handle) for b in (k.start, k.stop, k.step))
        elif kind not in _BASIC and not isinstance(k, Index):
            if is_number(k):
                tensors = True
            elif not _is_whole_number(k):
                return None
    return [_held(k) for k in keys] if tensors else cast("Any", key)


def is_basic(key: Any) -> bool:
    """True where x[key] is a view."""
    return _basic(key) is not None


def _is_whole_number(k: Any) -> bool:
    return isinstance(k, np.integer) or (
        isinstance(k, np.ndarray) and not cast("Any", k).shape and cast("Any", k).dtype.kind in "iu"
    )


def _held(k: Any) -> Any:
    if isinstance(k, Handle):
        return wrap(Value(k.value.node))
    if isinstance(k, slice):
        bounds = (cast("Any", k).start, cast("Any", k).stop, cast("Any", k).step)
        return slice(*(int(wrap(b.value)) if isinstance(b, Handle) else b for b in bounds))
    return k


def picked_at(x: Tensor, key: list[Any]) -> Tensor:
    """x[tuple(key)], where some of the key are tensors of one integer."""
    return getitem(x, tuple(key))


def with_tensors(step: ViewStep, change: Callable[[Any], Any], kind: type) -> ViewStep:
    """The step with its tensors, or what stands for them, which are of `kind`, changed."""
    if step.function is not picked_at:
        return step
    return ViewStep(picked_at, ([change(k) if isinstance(k, kind) else k for k in step.args[0]],))


# ---------------------------------------------------------------------------------------------- writing


def check(op: str, t: Tensor, look: ViewOf, once: bool = False) -> None:
    """Errors of a write to `t`: to elements of a leaf, of a file, or that lie in one place, unless written `once`."""
    for m in look.shared.touching(t, look):
        v, other = m.value, m.look
        if files.on_disk(v.node):
            files.refuse_writing(op, v.node)
        if (
            v.needs_grad
            and v.is_leaf
            and grad_enabled()
            and other is not None
            and other.detached is look.detached
        ):
            raise GradError(
                f"{op}: this is a view of a leaf that requires grad, whose gradients would be lost; do it under "
                "weft.no_grad(), or on a .clone()"
            )
    if any(n.op not in _CARRIED for n in look.route):
        raise ArgumentError(
            f"{op}: this view shows its elements as another dtype of another width, and is only for reading; "
            "write to a .clone()"
        )
    if not once and overlapping(look):
        raise ArgumentError(
            f"{op}: several elements of this view are one element of the tensor that it looks at; "
            "write to a .clone()"
        )


_CARRIED = frozenset({
    Op.RESHAPE, Op.EXPAND, Op.PERMUTE, Op.FLIP, Op.BITCAST, Op.SHRINK, Op.PAD, Op.SHEAR, Op.GATHER, Op.CONTIGUOUS
})  # fmt: skip
"""Ops that a write can be carried back through."""


def overlapping(look: ViewOf) -> bool:
    """True where several elements of the view are one of those that it looks at."""
    return any(map(_repeats, look.route)) and overlaps(look.shared.shape, look.route)


def written_once(look: ViewOf, old: Value, new: Value, hit: Value) -> Value:
    """A view of repeated elements after `new` was written to it where `hit`: the last write of each."""
    shared = look.shared
    before = _put_at_positions(look, bc.scalar(0, shared.dtype, shared.shape), old, None)
    count = elements(new.shape)
    order = bc.reshape(Value(graph.arange(count)), new.shape)
    never = bc.scalar(-1, order.dtype, shared.shape)
    when = apply(Op.WHERE, (hit, order, bc.scalar(-1, order.dtype, new.shape)))
    last = _put_at_positions(look, never, when, when.dtype, Op.MAX)
    flat = bc.reshape(last, (elements(shared.shape),))
    at = apply(Op.MAX, (flat, bc.scalar(0, flat.dtype, flat.shape)))
    taken = apply(Op.GATHER, (bc.reshape(new, (count,)), at), Along(0))
    if taken.dtype is not shared.dtype:
        taken = apply(Op.BITCAST, (taken,), None, None, shared.dtype)
    some = apply(Op.LE, (bc.scalar(0, last.dtype, last.shape), last))
    return _forth(apply(Op.WHERE, (some, bc.reshape(taken, shared.shape), before)), look.route)


def _repeats(node: Node) -> bool:
    """True where the op alone may show an element several times."""
    if node.op is Op.EXPAND:
        return elements(node.shape) != elements(node.inputs[0].shape)
    return node.op is Op.SHEAR or (node.op is Op.GATHER and not picks_one(node))


def write(t: Tensor, value: Value) -> None:
    """`t` stands for `value`, and the others that look at its elements see it: all of them, or none."""
    look = t.look
    others = None if look is None else look.shared.touching(t, look)
    if not others:
        t.rebind(value)
        return
    with restored_on_error((t, *others)):
        t.rebind(value)
        written(t)


def written(t: Tensor, skip: frozenset[int] | set[int] = frozenset()) -> None:
    """`t` stands for a new value: so do the others that look at its elements, but for `skip`, given by identity."""
    look = t.look
    if look is None:
        return
    others = [m for m in look.shared.touching(t, look) if id(m) not in skip]
    if not others or elements(t.value.shape) == 0:
        return
    now, by = _elements_after(t, look, others)
    seen: dict[tuple[int, int], Any] = {}
    for m in others:
        view = m.look
        if view is None or elements(m.value.shape) == 0:
            continue
        alike = view.detached is look.detached
        if now is not None and (by is look.detached or not alike):
            value = _follow(now, view.steps, seen)
        else:
            value = _patched(t.value, look, m.value, view)
        _stand_for(m, value, alike)


def _elements_after(
    t: Tensor, look: ViewOf, others: Sequence[Tensor]
) -> tuple[Value | None, ViewStep | None]:
    """All elements after the write to `t`, and the last step without history of those whose gradients they have: what
    `t` does not look at is a constant where nobody has it but without its history. None where nobody has it."""
    if _is_whole(look):
        return _carry_back(look, None, t.value), look.detached
    views = [(m.value, v) for m in others if (v := m.look) is not None]
    views.sort(key=lambda known: known[1].detached is not look.detached)
    for v, view in views:
        if _is_whole(view):
            old = _carry_back(view, None, v if view.detached is look.detached else Value(v.node))
            return _carry_back(look, old, t.value), view.detached
    return None, look.detached


def _stand_for(t: Tensor, value: Value, alike: bool) -> None:
    old = t.value
    if value.node is old.node:
        return
    if old.is_leaf:
        if old.needs_grad or not alike:
            value = Value(value.node, old.needs_grad)
    elif not alike or not grad_enabled():
        # only the numbers change: gradients go where they went
        value = Value(value.node, True, Op.RESHAPE, None, (old,))
    t.rebind(value)


def _patched(new: Value, look: ViewOf, old: Value, view: ViewOf) -> Value:
    """`old`, seen through `view`, with the elements that `look` shows as `new`."""
    shared = look.shared
    nothing = bc.scalar(0, shared.dtype, shared.shape)
    hit = _carry_back(look, bc.scalar(False, bool_, shared.shape), bc.scalar(True, bool_, new.shape), bool_)
    values = _follow(_carry_back(look, nothing, new), view.steps, {})
    mask = _forth(hit, view.route)
    return apply(Op.WHERE, (mask, values, old))


def layout(t: Tensor) -> tuple[Elements, int, list[int], list[int]] | None:
    """The elements that `t` shares with others, and the offset, sizes and strides by which it shows them;
    None where it shares nothing, or shows them in another way."""
    look = t.look
    if look is None or any(n.dtype is not look.shared.dtype for n in look.route):
        return None
    found = strides.layout(look.shared.shape, look.route)
    return None if found is None else (look.shared, *found)


def all_elements(shared: Elements, members: Sequence[Tensor]) -> Value:
    """The elements that these tensors look at, as a constant to differentiation; zeros where nobody sees them."""
    for m in [x for r in shared.members if (x := r()) is not None and _looks(x, shared)]:
        if m.look is not None and _is_whole(m.look):
            return _carry_back(m.look, None, Value(m.value.node))
    out = bc.scalar(0, shared.dtype, shared.shape)
    for m in members:
        assert m.look is not None
        out = _carry_back(m.look, out, Value(m.value.node))
    return out


# ---------------------------------------------------------------------------------------------- back and forth


def _follow(value: Value, steps: Sequence[ViewStep], seen: dict[tuple[int, int], Any]) -> Value:
    """The result of the steps on `value`. `seen` keeps what functions of several results made."""
    for s in steps:
        key = (id(value), id(s.args))
        made = seen.get(key) if s.part is not None else None
        if made is None or made[0] is not value:
            made = (value, s.function(wrap(value), *s.args, **s.kwargs))
            if s.part is not None:
                seen[key] = made
        out = made[1] if s.part is None else made[1][s.part]
        value = out.value
    return value


def _route(shared: Elements, steps: Sequence[ViewStep]) -> tuple[Node, ...]:
    found: list[Node] = []
    shape, dtype = shared.shape, shared.dtype
    for s in steps:
        if s.part is None or s.ways is None:
            start = graph.buffer(shape, dtype, shared.device, None)
            way = _way(start, _follow(Value(start), (s,), {}).node)
        else:
            way = _ways(s, s.ways, (shape, dtype, shared.device))[s.part]
        found += way
        if way:
            shape, dtype = way[-1].shape, way[-1].dtype
    return tuple(found)


def _way(start: Node, node: Node) -> list[Node]:
    """The movement ops from one node to another."""
    way: list[Node] = []
    while node is not start:
        way.append(node)
        node = node.inputs[0]
    return way[::-1]


def _ways(step: ViewStep, known: Ways, given: tuple[Shape, DType, str | None]) -> list[list[Node]]:
    """The same to each of the results that a step is one of, found for all at once."""
    found = known.get(given)
    if found is None:
        shape, dtype, device = given
        start = graph.buffer(shape, dtype, device, None)
        made: Sequence[Tensor] = step.function(wrap(Value(start)), *step.args, **step.kwargs)
        found = known[given] = [_way(start, t.value.node) for t in made]
    return found


def _forth(v: Value, route: Sequence[Node]) -> Value:
    """`v`, of any dtype, through movement ops."""
    for node in route:
        v = _moved(v, node)
    return v


def _moved(v: Value, node: Node) -> Value:
    if node.op is Op.BITCAST:
        return v if v.dtype is bool_ else apply(Op.BITCAST, (v,), None, None, node.dtype)
    if node.op is Op.PAD and v.dtype is bool_:
        pad = node.attrs
        assert isinstance(pad, Padding)
        return apply(Op.PAD, (v,), Padding(pad.low, pad.high, pad.interior, False))
    if node.op is Op.PAD and isinstance(node.attrs, Padding) and v.dtype is not node.dtype:
        return apply(Op.PAD, (v,), Padding(node.attrs.low, node.attrs.high, node.attrs.interior, 0))
    if node.op is Op.GATHER:
        return apply(Op.GATHER, (v, Value(node.inputs[1])), node.attrs)
    return apply(node.op, (v,), node.attrs, node.shape)


def _carry_back(look: ViewOf, old: Value | None, new: Value, dtype: DType | None = None) -> Value:
    """The elements with those that `look` shows replaced by `new`; `old` is not needed where it shows all."""
    route = look.route
    if any(n.op is Op.SHEAR or (n.op is Op.EXPAND and _repeats(n)) for n in route):
        assert old is not None
        return _put_at_positions(look, old, new, dtype)
    before: list[Value | None] = [old]
    for node in route:
        v = before[-1]
        before.append(None if v is None else _moved(v, node))
    for node, v in zip(reversed(route), reversed(before[:-1]), strict=True):
        new = _replaced(node, v, new, dtype)
    return new


def _put_at_positions(
    look: ViewOf, old: Value, new: Value, dtype: DType | None, combine: Op | None = None
) -> Value:
    """As `_carry_back`, where each element is one of those shown, though not each op for itself shows each once."""
    shared = look.shared
    at = bc.reshape(Value(graph.arange(elements(shared.shape))), shared.shape)
    for node in look.route:
        if node.op is not Op.BITCAST:
            at = _moved(at, node)
    if new.dtype is not old.dtype and dtype is None:
        new = apply(Op.BITCAST, (new,), None, None, shared.dtype)
    flat = [bc.reshape(v, (elements(v.shape),)) for v in (old, at, new)]
    return bc.reshape(apply(Op.SCATTER, tuple(flat), ScatterCombine(0, combine)), shared.shape)


def _replaced(node: Node, old: Value | None, new: Value, dtype: DType | None) -> Value:
    """The input of `node` with which it gives `new`; from `old` what it does not show."""
    shape = node.inputs[0].shape
    match node.op, node.attrs:
        case Op.RESHAPE, _:
            return bc.reshape(new, shape)
        case Op.EXPAND, _:  # of no more elements: `check` saw to that
            return bc.reshape(new, shape)
        case Op.PERMUTE, Axes(order):
            back = [0] * len(order)
            for i, k in enumerate(order):
                back[k] = i
            return apply(Op.PERMUTE, (new,), Axes(tuple(back)))
        case Op.FLIP, Axes():
            return apply(Op.FLIP, (new,), node.attrs)
        case Op.BITCAST, _:
            return new if dtype is not None else apply(Op.BITCAST, (new,), None, None, node.inputs[0].dtype)
        case Op.SHRINK, Box() as box:
            assert old is not None
            return old if elements(new.shape) == 0 else apply(Op.UPDATE, (old, new), box)
        case Op.GATHER, Along(axis):
            assert old is not None
            return apply(Op.SCATTER, (old, Value(node.inputs[1]), new), ScatterCombine(axis, None))
        case Op.PAD, Padding(low):
            return apply(Op.SHRINK, (new,), Box(low, (1,) * len(low)), shape)
        case _:
            return new


_WHOLE = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP, Op.BITCAST, Op.CONTIGUOUS})
"""The ops that show all elements, each once."""


def _is_whole(look: ViewOf) -> bool:
    return all(
        n.op in _WHOLE or (n.op is Op.EXPAND and elements(n.shape) == elements(n.inputs[0].shape))
        for n in look.route
    )


def _apart(a: ViewOf, b: ViewOf) -> bool:
    """True where the first thing that both do is to cut out boxes that share no element."""
    for p, q in zip(a.first_box, b.first_box, strict=False):
        if p is not None and q is not None and (p[1] < q[0] or q[1] < p[0]):
            return True
    return False


def _box(route: Sequence[Node]) -> Spans:
    """See `ViewOf.first_box`."""
    node = route[0] if route else None
    if node is None or node.op is not Op.SHRINK or not isinstance(node.attrs, Box):
        return ()
    found: list[tuple[int, int] | None] = []
    for start, step, n in zip(node.attrs.start, node.attrs.step, node.shape, strict=True):
        if isinstance(start, int) and isinstance(n, int):
            found.append((start, start + step * (n - 1)))
        else:
            found.append(None)
    return tuple(found)
