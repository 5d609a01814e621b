"""Places of boxes that runtime variables say: within the tensor for all values, for none, or for some.

x: (10,), t from 0 to 20
x[t]          asked when t is known: 12 is refused, by the line that has x[t]
x[t + 10]     refused at once
x[t // 4]     within, whatever t is

A kernel guards what it reads, and takes zeros for what is beyond: to ask is for who knows the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from weft.errors import CallSite, user_call
from weft.errors import IndexError as PlaceError
from weft.ir.graph import Box, Node, Shape, toposort
from weft.ir.index import Int, at_least, evaluate, high, low, variable_names
from weft.ir.loop_body import LoopNode
from weft.ir.ops import Op
from weft.ir.template import GraphTemplate


class Place(NamedTuple):
    """`length` elements along an axis of `size`, `step` apart, from `first` on."""

    axis: int
    first: Int
    length: Int
    step: int
    size: Int

    @property
    def is_within(self) -> bool:
        """True where it is within the axis for all values of the variables."""
        if at_least(self.first) < 0 or at_least(self.length) < 0:
            return False
        return high(self.length) == 0 or at_least(self._left()) >= 0

    @property
    def is_outside(self) -> bool:
        """True where no values of the variables bring it within the axis."""
        if high(self.first) < 0 or high(self.length) < 0:
            return True
        return low(self.length) > 0 and high(self._left()) < 0

    def _left(self) -> Int:
        """The number of elements of the axis behind the last one."""
        return self.size - 1 - self.first - (self.length - 1) * self.step

    def at(self, env: Mapping[str, int]) -> Place:
        """The same place for these values of the variables."""
        first, count, size = (int(evaluate(x, env)) for x in (self.first, self.length, self.size))
        return Place(self.axis, first, count, self.step, size)

    def refusal(self, said: CallSite | None, env: Mapping[str, int] | None = None) -> PlaceError:
        """The error for a place outside its axis; `env`: the values of the variables, once they are known."""

        def shown(x: Int) -> str:
            return str(x) if env is None or isinstance(x, int) else f"{x} = {evaluate(x, env)}"

        site = said or user_call()
        axis = f"dimension {self.axis} of size {shown(self.size)}"
        if self.length == 1:
            text = f"index {shown(self.first)} is out of range for {axis}"
        else:
            text = (
                f"{shown(self.length)} elements from {shown(self.first)} on do not fit {axis}; a part with runtime "
                "bounds is not cut off"
            )
        return PlaceError(f"{_op(site)}: {text}", site.location)


class Asked(NamedTuple):
    """A place that some values of the variables bring within its axis, and the call that asked for it."""

    place: Place
    said: CallSite | None


def placed(whole: Shape, start: Sequence[Int], step: Sequence[int], size: Sequence[Int]) -> Box:
    """A box of a tensor of shape `whole`. IndexError where runtime variables bring it within for no values, or where
    an index may be negative, which would count from the end, or a size, which tensors do not have."""
    said: CallSite | None = None
    for p in _places(whole, start, step, size):
        said = said or user_call()
        for what, x in (("index", p.first), ("size", p.length)):
            if at_least(x) < 0:
                raise PlaceError(
                    f"{_op(said)}: the {what} {x} in dimension {p.axis} may be negative, {low(x)} to {high(x)}; "
                    "declare bounds of the Variable that keep it from 0 on"
                )
        if p.is_outside:
            raise p.refusal(said)
    return Box(tuple(start), tuple(step), said)


def _op(site: CallSite) -> str:
    """The name of an operation in a message."""
    name = site.function
    return name if name.isidentifier() and not name.startswith("_") and name != "getitem" else "indexing"


def _places(
    whole: Sequence[Int], start: Sequence[Int], step: Sequence[int], size: Sequence[Int]
) -> Iterator[Place]:
    """The places of a box that are not known to be within the tensor, for numbers that are not known."""
    for k, (n, first, by, count) in enumerate(zip(whole, start, step, size, strict=True)):
        if n.__class__ is int and first.__class__ is int and count.__class__ is int:
            continue
        p = Place(k, first, count, by, n)
        if not p.is_within:
            yield p


def asked(nodes: Iterable[Node]) -> list[Asked]:
    """The places that runtime variables decide in a graph, those of functions that it calls included."""
    found: list[Asked] = []
    for n in toposort(nodes):
        if n.storage is not None:
            continue
        if isinstance(n.attrs, Box):
            found += _asked(n.op, n.attrs, [i.shape for i in n.inputs], n.shape)
        elif isinstance(n.attrs, GraphTemplate):
            found += _within(n.attrs)
        elif isinstance(n.attrs, LoopNode):
            found += _within(n.attrs.body.template)
    return found


def _within(template: GraphTemplate) -> Iterator[Asked]:
    """The places in a template, and in those that it has in turn."""
    todo = [template]
    while todo:
        t = todo.pop()
        shapes = [shape for shape, _ in t.placeholders] + [row.shape for row in t.rows]
        for row in t.rows:
            attrs: Any = row.attrs
            if isinstance(attrs, Box):
                yield from _asked(row.op, attrs, [shapes[k] for k in row.inputs], row.shape)
            elif isinstance(attrs, GraphTemplate):
                todo.append(attrs)
            elif isinstance(attrs, LoopNode):
                todo.append(attrs.body.template)


def _asked(op: Op, box: Box, inputs: Sequence[Shape], shape: Shape) -> Iterator[Asked]:
    """The places of one node."""
    for p in _places(inputs[0], box.start, box.step, shape if op is Op.SHRINK else inputs[1]):
        yield Asked(p, box.said)


def check(env: Mapping[str, int], places: Iterable[Asked]) -> None:
    """IndexError where one of the places is outside its axis for these values of the variables. Places by what is not
    among them, as the steps of a loop are, were made by whoever counts the steps."""
    for place, said in places:
        names = {v for x in (place.first, place.length, place.size) for v in variable_names(x)}
        if names <= env.keys() and not place.at(env).is_within:
            raise place.refusal(said, env)
