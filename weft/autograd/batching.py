"""The batching transform: what a computation on one example becomes on a stack of them.

A function is run once on placeholders for one example; `batched` then rewrites what it built, op by op, with a batch
axis in front. What does not depend on a placeholder stays as it is, and is computed once for all examples. Values that
carry a tape keep it: the result can be differentiated, and gradients can be batched.
"""
# Tests: tests/autograd/test_tools.py, tests/fuzz/test_batching.py

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from weft.autograd.context import device_of_files, grad_mode, switched
from weft.autograd.ops import expand, reshape, sum_
from weft.autograd.value import Value, apply, composed
from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import (
    Along,
    Attrs,
    Axes,
    Box,
    Node,
    Padding,
    ScatterCombine,
    Shape,
    Target,
    Window,
    toposort,
)
from weft.ir.index import Int
from weft.ir.loop_body import LoopNode, Part, normal
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
from weft.ir.placement import Shard
from weft.ir.rewrite import rebuilt
from weft.ir.template import GraphTemplate, Row
from weft.lazy_dataclass import dataclass

_T = TypeVar("_T")


BatchRule: TypeAlias = Callable[[Row, Int, list[Value]], Value]
"""rule(row, size, inputs): the op on inputs that all have the batch axis, of that size, in front."""


def placeholder(shape: Shape, dtype: DType, device: str | None, needs_grad: bool) -> Value:
    """The placeholder of one example: a leaf of this shape without a value."""
    return Value(graph.buffer(shape, dtype, device or "cpu:0", None), needs_grad)


def _attrs(row: Row, kind: type[_T]) -> _T:
    assert isinstance(row.attrs, kind), row
    return row.attrs


def _elementwise(row: Row, size: Int, xs: list[Value]) -> Value:
    return apply(row.op, tuple(xs), row.attrs, None, row.dtype if row.op in (Op.CAST, Op.BITCAST) else None)


def _over_axes(row: Row, size: Int, xs: list[Value]) -> Value:
    attrs = _attrs(row, Axes)
    return apply(row.op, tuple(xs), replace(attrs, axes=tuple(a + 1 for a in attrs.axes)))


def _permute(row: Row, size: Int, xs: list[Value]) -> Value:
    return apply(row.op, tuple(xs), Axes((0, *(a + 1 for a in _attrs(row, Axes).axes))))


def _to_shape(row: Row, size: Int, xs: list[Value]) -> Value:
    return apply(row.op, tuple(xs), None, (size, *row.shape))


def _pad(row: Row, size: Int, xs: list[Value]) -> Value:
    p = _attrs(row, Padding)
    return apply(row.op, tuple(xs), Padding((0, *p.low), (0, *p.high), (0, *p.interior), p.fill))


def _box(row: Row, size: Int, xs: list[Value]) -> Value:
    b = _attrs(row, Box)
    shape = (size, *row.shape) if row.op is Op.SHRINK else None
    return apply(row.op, tuple(xs), replace(b, start=(0, *b.start), step=(1, *b.step)), shape)


def _window(row: Row, size: Int, xs: list[Value]) -> Value:
    w = _attrs(row, Window)
    shifted = Window(w.axis + 1, w.window + 1, w.stride, w.dilation)
    return apply(row.op, tuple(xs), shifted, (size, *row.shape))


def _along(row: Row, size: Int, xs: list[Value]) -> Value:
    return apply(row.op, tuple(xs), Along(_attrs(row, Along).axis + 1))


def _scatter(row: Row, size: Int, xs: list[Value]) -> Value:
    c = _attrs(row, ScatterCombine)
    return apply(row.op, tuple(xs), ScatterCombine(c.axis + 1, c.op))


def _same(row: Row, size: Int, xs: list[Value]) -> Value:
    return apply(row.op, tuple(xs), row.attrs)


def _copy(row: Row, size: Int, xs: list[Value]) -> Value:
    target = row.attrs
    assert isinstance(target, Target)
    if target.layout is not None:
        layout = tuple([Shard(p.dim + 1, p.bounds) if isinstance(p, Shard) else p for p in target.layout])
        target = Target(target.device, layout)
    return apply(row.op, tuple(xs), target)


BATCH: dict[Op, BatchRule | None] = {
    Op.BUFFER: None,
    Op.CONST: None,
    Op.RANGE: None,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCE, _over_axes),
    Op.RESHAPE: _to_shape,
    Op.PERMUTE: _permute,
    Op.EXPAND: _to_shape,
    Op.PAD: _pad,
    Op.SHRINK: _box,
    Op.FLIP: _over_axes,
    Op.SHEAR: _window,
    Op.UNSHEAR: _window,
    Op.GATHER: _along,
    Op.SCATTER: _scatter,
    Op.CONCAT: _along,
    Op.UPDATE: _box,
    Op.CONTIGUOUS: _same,
    Op.COPY: _copy,
    Op.LOOP: None,  # see `_Batch._loop`: what is the same for all examples stays so in it
    Op.CALL: None,  # see `_Batch._call`: what it stands for is batched
}
"""Every op; None for leaves, which never have a batch axis of their own, for loops, and for calls."""


def spread(x: Value, size: Int) -> Value:
    """x repeated along a new first axis."""
    return expand(reshape(x, (1, *x.shape)), (size, *x.shape))


@dataclass(slots=True)
class _Batch:
    """One run of the transform. A node or value that is not among these does not depend on the examples."""

    size: Int
    nodes: MutableMapping[Node, Value]
    values: MutableMapping[Value, Value]
    streams: bool

    def node(self, node: Node) -> None:
        """Batch a node whose inputs are done, without history."""
        if node in self.nodes:
            return
        if self.streams and node.op is Op.THREEFRY and not any(i in self.nodes for i in node.inputs):
            self.nodes[node] = self._streams(node)
        elif isinstance(node.attrs, LoopNode) and any(i in self.nodes for i in node.inputs):
            self.nodes[node] = self._loop(node, node.attrs)
        elif isinstance(node.attrs, GraphTemplate):
            if self.streams or any(i in self.nodes for i in node.inputs):
                self._call(node, node.attrs)
        elif any(i in self.nodes for i in node.inputs):
            xs = [self.nodes[i] if i in self.nodes else spread(Value(i), self.size) for i in node.inputs]
            self.nodes[node] = self._apply(node.op, node.attrs, node, xs)

    def _apply(self, op: Op, attrs: Attrs, node: Node, xs: list[Value]) -> Value:
        rule = BATCH[op]
        assert rule is not None, op
        return rule(Row(op, (), attrs, node.shape, node.dtype), self.size, xs)

    def _call(self, node: Node, template: GraphTemplate) -> None:
        """Batch the nodes that the call stands for."""
        nodes = template.nodes(node.inputs)
        for n in nodes:
            self.node(n)
        (root,) = [nodes[k] for k in template.results]
        if root in self.nodes:
            self.nodes[node] = self.nodes[root]

    def _loop(self, node: Node, loop: LoopNode) -> Value:
        """A loop of the batched body. All carries and slices have the batch axis; fixed inputs where they had it."""
        b = loop.body
        first = len(b.carries) + len(b.slices)
        inputs: list[Node] = []
        for k, i in enumerate(node.inputs):
            x = self.nodes.get(i)
            if x is None and k < first:
                x = spread(Value(i), self.size)
            if x is not None and len(b.carries) <= k < first:  # the rows that steps read stay in front
                x = apply(Op.PERMUTE, (x,), Axes((1, 0, *range(2, len(x.shape)))))
            inputs.append(i if x is None else x.node)
        given: dict[Value, Value] = {}
        old = (*b.carries, *b.slices, *b.fixed)
        for k, p in enumerate(old):
            if k < first or node.inputs[k] in self.nodes:
                one = Value(graph.buffer((self.size, *p.shape), p.dtype, p.device, None))
                given[Value(p)] = one
        new = {p.node: x.node for p, x in given.items()}
        roots = [
            (x if has else spread(x, self.size)).node
            for x, has in batched([Value(n) for n in (*b.nexts, *b.outs)], given, self.size, self.streams)
        ]
        ends, outs = roots[: len(b.nexts)], roots[len(b.nexts) :]
        slices = [new[p] for p in b.slices]
        # rows from the first one on: an offset is a part of the rows
        sources = inputs[: len(b.carries)]
        for x, at in zip(inputs[len(b.carries) : first], b.offsets, strict=True):
            box = Box((at, *(0 for _ in x.shape[1:])), (1,) * len(x.shape))
            sources.append(graph.apply(Op.SHRINK, (x,), box, (b.length, *x.shape[1:]), home=device_of_files))
        again = dict(zip(b.fixed, inputs[first:], strict=True))
        fixed = {new.get(p, p): x for p, x in again.items()}
        roots = rebuilt([*ends, *outs], fixed)
        body, every = normal(
            [new[p] for p in b.carries],
            slices,
            roots[: len(ends)],
            roots[len(ends) :],
            sources,
            b.length,
            b.reverse,
        )
        out = Value(graph.apply(Op.LOOP, every, LoopNode(body, loop.part, loop.number), home=device_of_files))
        return (
            out
            if loop.part is Part.FINAL
            else apply(Op.PERMUTE, (out,), Axes((1, 0, *range(2, len(out.shape)))))
        )

    def _streams(self, node: Node) -> Value:
        """Random bits of a stream for each example: the number of the example changes the key."""
        counter, key0, key1 = (spread(Value(i), self.size) for i in node.inputs)
        lanes = reshape(Value(graph.arange(self.size, node.dtype)), (self.size, *(1 for _ in node.shape)))
        lanes = expand(lanes, key1.shape)
        mixed = apply(Op.MUL, (apply(Op.ADD, (lanes, Value(graph.const(1, node.dtype, lanes.shape)))),
                               Value(graph.const(0x9E3779B9, node.dtype, lanes.shape))))  # fmt: skip
        return apply(Op.THREEFRY, (counter, key0, apply(Op.XOR, (key1, mixed))))

    def value(self, v: Value) -> None:
        """Batch a value whose inputs are done, with its history."""
        if v in self.values:
            return
        node = self.nodes.get(v.node)
        if not any(x in self.values for x in v.inputs):
            if node is not None:
                self.values[v] = node
            return
        plain = spread(Value(v.node), self.size) if node is None else node
        xs = [self.values.get(x, x) for x in v.inputs]
        if v.op is not None:
            wide = [
                x if y in self.values else spread(x, self.size) for x, y in zip(xs, v.inputs, strict=True)
            ]
            b = self._apply(v.op, v.attrs, v.node, wide)
            self.values[v] = Value(plain.node, b.needs_grad, b.op, b.attrs, b.inputs, b.rule)
        else:
            self.values[v] = composed(plain.node, tuple(xs), self._batched_rule(v))

    def _batched_rule(self, v: Value) -> Callable[..., tuple[Value | None, ...]]:
        """The derivative of a value with a rule of its own: that rule, run on one example and batched.

        A rule may hold values besides those that it is given, as what a Function saved for its backward: it is run on
        the example that was batched, whose values are known. Only where it is asked for other values it gets
        placeholders for them.
        """
        rule = v.rule
        assert rule is not None
        has_batch = [x in self.values for x in v.inputs]
        flags = (True, True, *has_batch)
        shapes = [(x.shape, x.dtype) for x in (v, v, *v.inputs)]

        def run(g: Value, out: Value, *inputs: Value) -> tuple[Value | None, ...]:
            known = self.values.get(v) is out and all(
                self.values.get(x, x) is y for x, y in zip(v.inputs, inputs, strict=True)
            )
            args = [
                placeholder(shape, dtype, x.node.device, x.needs_grad) if has else x
                for x, (shape, dtype), has in zip((g, out, *inputs), shapes, flags, strict=True)
            ]
            if known:
                args[1:] = (v, *v.inputs)
            with switched(stand_ins=True):
                parts = rule(*args)
            given = {args[0]: g} if known else {
                one: x for one, x, has in zip(args, (g, out, *inputs), flags, strict=True) if has
            }  # fmt: skip
            nodes = {p.node: Value(x.node) for p, x in given.items()}
            batch = (
                _Batch(self.size, ChainMap(nodes, self.nodes), ChainMap(given, self.values), self.streams)
                if known
                else _Batch(self.size, nodes, given, self.streams)
            )
            found = iter(batch.outputs([p for p in parts if p is not None]))
            return tuple([
                None if p is None else self._of_examples(*next(found), has)
                for p, has in zip(parts, has_batch, strict=True)
            ])  # fmt: skip

        return run

    def _of_examples(self, gradient: Value, is_batched: bool, has_batch: bool) -> Value:
        """A gradient as its input is: with the batch axis, or the sum over it."""
        wide = gradient if is_batched else spread(gradient, self.size)
        return wide if has_batch else sum_(wide, (0,))

    def outputs(self, outputs: Sequence[Value]) -> list[tuple[Value, bool]]:
        """Each output with a batch axis in front where it depends on the examples, and whether it does."""
        tape = self._order(outputs)
        with grad_mode(False):
            for node in toposort([v.node for v in (*tape, *outputs)]):
                self.node(node)
        for v in tape:
            self.value(v)
        return [(self.values[v], True) if v in self.values else (v, False) for v in outputs]

    def _order(self, outputs: Sequence[Value]) -> list[Value]:
        """All values on the tape of the outputs, and these, inputs before users; those that are known end it."""
        order: list[Value] = []
        seen: set[Value] = set()
        for output in outputs:
            stack: list[tuple[Value, bool]] = [(output, False)]
            while stack:
                value, inputs_done = stack.pop()
                if inputs_done:
                    order.append(value)
                elif value not in seen:
                    seen.add(value)
                    stack.append((value, True))
                    if value not in self.values:
                        stack.extend((x, False) for x in value.inputs if x not in seen)
        return order


def batched(
    outputs: Sequence[Value], given: Mapping[Value, Value], size: Int, streams: bool = False
) -> list[tuple[Value, bool]]:
    """Each output with a batch axis in front where it depends on the examples, and whether it does.

    `given` maps placeholders to stacks of examples, (size, *shape of one). With `streams`, random numbers differ from
    example to example.
    """
    nodes = {p.node: Value(x.node) for p, x in given.items()}
    return _Batch(size, nodes, dict(given), streams).outputs(outputs)
