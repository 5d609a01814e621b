"""Graphs over placeholders, by number: recorded once, built on any inputs of the same shapes and dtypes.

    inputs x: f32[4, 3]            0                     built on y:   y
    m = reduce_max(x, axes=(1,))   1 = reduce_max 0                    reduce_max(y)
    d = sub(x, expand(m))          ...                                 ...

What remembers a graph remembers one of these: a call of a composed function (calls.py), the body of a LOOP
(loop_body.py), and a computation that is repeated on other operands (core/composed/templates.py). Equal templates are
one object, but for those made of others at new sizes (`LateTemplate`), which mostly nobody looks into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import Attrs, Node, Shape, Target, toposort
from weft.ir.interning import Interned
from weft.ir.ops import Op
from weft.naming import own_name


class Row(NamedTuple):
    """A node by number. Its inputs: the placeholders come first, then the rows."""

    op: Op
    inputs: tuple[int, ...]
    attrs: Attrs
    shape: Shape
    dtype: DType


class GraphTemplate(metaclass=Interned):
    """A graph over `placeholders` (their shapes and dtypes): its rows, inputs before users, and the numbers of its
    results. Where a row is computed follows from its inputs, as for nodes."""

    __slots__ = ("__weakref__", "_digest", "_homes", "placeholders", "results", "rows")
    _digest: str
    _homes: tuple[bool, ...] | None
    """For each row, whether it follows from a placeholder, once that was asked for; empty where a row is simplified."""

    def __init__(
        self, placeholders: tuple[tuple[Shape, DType], ...], rows: tuple[Row, ...], results: tuple[int, ...]
    ) -> None:
        self.placeholders, self.rows, self.results, self._homes = placeholders, rows, results, None

    @property
    @own_name()
    def digest(self) -> str:
        """A hash that is the same in every process, made once."""
        try:
            return self._digest
        except AttributeError:
            from hashlib import sha256

            rows = [(r.op.name, r.inputs, r.attrs, r.shape, r.dtype) for r in self.rows]
            text = repr((self.placeholders, rows, self.results))
            self._digest = sha256(text.encode()).hexdigest()
            return self._digest

    def __repr__(self) -> str:
        """The same in every process, and another one for every other template."""
        return f"{len(self.rows)} nodes, {self.digest[:16]}"

    @property
    def root(self) -> tuple[Shape, DType]:
        """The shape and dtype of the last row."""
        last = self.rows[-1]
        return last.shape, last.dtype

    @property
    def whole(self) -> GraphTemplate:
        """The template itself, as one object for equal ones."""
        return self

    @staticmethod
    def of(
        inputs: Sequence[Node], results: Sequence[Node], order: Sequence[Node] | None = None
    ) -> GraphTemplate | str:
        """The template of the results, with `inputs` for placeholders; or why there is none. `order`: the nodes from
        these to the results, where they are known."""
        number = {n: k for k, n in enumerate(inputs)}
        rows: list[Row] = []
        for n in toposort(results, known=inputs) if order is None else order:
            if n.op is Op.BUFFER or n.storage is not None:
                return f"it reads {n!r}, which is none of its inputs"
            rows.append(Row(n.op, tuple([number[i] for i in n.inputs]), n.attrs, n.shape, n.dtype))
            number[n] = len(number)
        return GraphTemplate(
            tuple([(n.shape, n.dtype) for n in inputs]), tuple(rows), tuple([number[n] for n in results])
        )

    def nodes(self, inputs: Sequence[Node], home: Callable[[], str | None] | None = None) -> list[Node]:
        """The inputs, and the nodes of the rows after them, by the rules by which `graph.apply` makes nodes."""
        made = list(inputs)
        device = _common_device(inputs)
        if device is None or not (homes := self._rows_on_placeholders()):
            for row in self.rows:
                over = tuple([made[k] for k in row.inputs])
                made.append(graph.made(row.op, over, row.attrs, row.shape, row.dtype, home))
            return made
        for row, here in zip(self.rows, homes, strict=True):  # which rules leave as they are
            over = tuple([made[k] for k in row.inputs])
            made.append(graph.intern(row.op, over, row.attrs, row.shape, row.dtype, device if here else None))
        return made

    def _rows_on_placeholders(self) -> tuple[bool, ...]:
        """See `_homes`."""
        if self._homes is None:
            made = [graph.buffer(shape, dtype, "here", None) for shape, dtype in self.placeholders]
            homes: list[bool] = []
            for row in self.rows:
                over = tuple([made[k] for k in row.inputs])
                n = graph.made(row.op, over, row.attrs, row.shape, row.dtype)
                if isinstance(row.attrs, Target) or (n.op, n.inputs, n.attrs) != (row.op, over, row.attrs):
                    homes.clear()
                    break
                made.append(n)
                homes.append(n.device is not None)
            self._homes = tuple(homes)
        return self._homes

    def build(self, inputs: Sequence[Node], home: Callable[[], str | None] | None = None) -> list[Node]:
        """The results on these inputs, which have the shapes and dtypes of the placeholders."""
        nodes = self.nodes(inputs, home)
        return [nodes[k] for k in self.results]


class Maker(Protocol):
    """Makes templates that differ in some numbers."""

    def parts(
        self, values: tuple[int, ...]
    ) -> tuple[tuple[tuple[Shape, DType], ...], tuple[Row, ...], tuple[int, ...]]:
        """The placeholders, rows and results for these numbers."""
        ...

    def root(self, values: tuple[int, ...]) -> tuple[Shape, DType]:
        """The shape and dtype of the last row."""
        ...

    def outline(self, values: tuple[int, ...]) -> Any:
        """The rows without sizes and numbers, and these, as plans for all sizes have them."""
        ...


class LateTemplate(GraphTemplate):
    """A template whose rows are made when somebody looks at them. Those of one maker for the same numbers are one
    object, but not the one that is made of equal rows: that is its `whole`."""

    __slots__ = ("_root", "maker", "values")

    def __init__(self, maker: Maker, values: tuple[int, ...]) -> None:
        self.maker, self.values, self._root, self._homes = maker, values, maker.root(values), None

    def __getattr__(self, name: str) -> Any:
        """Make what is not there yet."""
        if name not in _PARTS:
            raise AttributeError(name)
        self.placeholders, self.rows, self.results = self.maker.parts(self.values)
        return object.__getattribute__(self, name)

    @property
    def root(self) -> tuple[Shape, DType]:
        return self._root

    @property
    def outline(self) -> Any:
        """The outline of the rows (see `scheduler.outline`), which takes no look at them."""
        return self.maker.outline(self.values)

    @property
    def whole(self) -> GraphTemplate:
        return GraphTemplate(self.placeholders, self.rows, self.results)


_PARTS = frozenset({"placeholders", "rows", "results"})


_LOOKED_AT = frozenset({Op.CONST, Op.RANGE, Op.RESHAPE})
"""Ops of inputs by which rules simplify: see `shape_rules.simplify`."""


def _common_device(inputs: Sequence[Node]) -> str | None:
    """The device of all inputs; None where there are several, or one is in a file, or rules may look at its op."""
    device = inputs[0].device if inputs else None
    for i in inputs:
        if i.op in _LOOKED_AT or i.device != device:
            return None
    return device
