"""A value: a graph node, and how it was made, where a gradient may flow through it.

The graph merges equal nodes, so it cannot say that one of two equal tensors is a parameter, or that one was detached.
That is the tape's business: each `Value` records the op and the values it was applied to when one of them needs a
gradient. Vector-Jacobian products are written on values, so gradients can be differentiated again.
"""
# Tests: tests/autograd/test_reverse.py

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from weft.autograd.context import context, device_of_files
from weft.errors import DTypeError
from weft.ir import dtypes, graph
from weft.ir.dtypes import DType
from weft.ir.graph import Attrs, Node, ScatterCombine, Shape
from weft.ir.ops import MOVEMENT, Op

VjpRule: TypeAlias = "Callable[..., tuple[Value | None, ...]]"
"""(gradient of the result, the result, *inputs) -> the gradient of each input, None where there is none."""


class Value:
    """A node and its tape entry. Immutable; two values of one node may have different histories."""

    __slots__ = ("__weakref__", "attrs", "inputs", "needs_grad", "node", "op", "rule")

    def __init__(
        self,
        node: Node,
        needs_grad: bool = False,
        op: Op | None = None,
        attrs: Attrs = None,
        inputs: tuple[Value, ...] = (),
        rule: VjpRule | None = None,
    ) -> None:
        self.node = node
        self.needs_grad = needs_grad
        self.op = op  # None: a leaf of the tape (the node may still have inputs of its own)
        self.attrs = attrs
        self.inputs = inputs
        self.rule = rule  # the vector-Jacobian product where it is not the op's

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def is_leaf(self) -> bool:
        return self.op is None and self.rule is None

    def __repr__(self) -> str:
        return f"Value({self.node!r}{', needs_grad' if self.needs_grad else ''})"


Hook: TypeAlias = Callable[[Value], "Value | None"]
"""A function that sees the gradient of a value in backward, and may give another in its place."""

HOOKS: WeakKeyDictionary[Value, dict[int, Hook]] = WeakKeyDictionary()
"""The hooks of each value, in the order in which they were registered."""


def apply(
    op: Op,
    inputs: tuple[Value, ...],
    attrs: Attrs = None,
    shape: Shape | None = None,
    dtype: DType | None = None,
) -> Value:
    """`op` on values: the node, and the record if a gradient may be asked for.

    The 8-bit floats only store numbers: DTypeError for arithmetic on them that torch does not have either.
    """
    if inputs and (small := inputs[-1].node.dtype).bits == 8 and small.is_float8:
        if op not in FLOAT8_OPS or (isinstance(attrs, ScatterCombine) and attrs.op is not None):
            raise no_arithmetic(op.symbol, small)
    nodes = (inputs[0].node,) if len(inputs) == 1 else tuple([v.node for v in inputs])
    return record(graph.apply(op, nodes, attrs, shape, dtype, device_of_files), op, attrs, inputs)


def apply_fitting(op: Op, x: Value, y: Value) -> Value:
    """As `apply`, for arithmetic of two values: where both are floats of one shape and dtype that depend on data, as
    gradients mostly are, nothing else is looked at."""
    a, b = x.node, y.node
    dtype, device = a.dtype, a.device or b.device
    if device is None or dtype is not b.dtype or dtype not in PLAIN_FLOATS or a.shape != b.shape:
        return apply(op, (x, y))
    node = graph.intern(op, (a, b), None, a.shape, dtype, device)
    if (x.needs_grad or y.needs_grad) and context().grad:
        return Value(node, True, op, None, (x, y))
    return Value(node)


PLAIN_FLOATS = frozenset({dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64})
"""The floats that all arithmetic is defined on."""

FLOAT8_OPS = MOVEMENT | frozenset(
    {
        Op.CAST, Op.BITCAST, Op.WHERE, Op.EQ, Op.NE, Op.ABS, Op.MUL, Op.GATHER, Op.SCATTER, Op.CONCAT, Op.UPDATE,
        Op.CONTIGUOUS, Op.COPY,
    }
)  # fmt: skip
"""The ops that are defined on 8-bit floats."""


def no_arithmetic(op: str, dtype: DType) -> DTypeError:
    """The error of an op that is not defined on an 8-bit float."""
    return DTypeError(
        f"{op}: not defined on {dtype.name}, which only stores numbers; compute in another dtype, as with .float(), "
        f"and store the result with .to(weft.{dtype.name})"
    )


def record(node: Node, op: Op, attrs: Attrs, inputs: tuple[Value, ...]) -> Value:
    """The value of `node`, which is `op` on the inputs, with its record if a gradient may be asked for."""
    for v in inputs:
        if v.needs_grad:
            if context().grad and node.dtype.is_float:
                return Value(node, True, op, attrs, inputs)
            break
    return Value(node)


def composed(node: Node, inputs: tuple[Value, ...], rule: VjpRule) -> Value:
    """A value computed from `inputs` in several steps, whose gradient has a formula of its own."""
    if context().grad and any(v.needs_grad for v in inputs):
        return Value(node, True, None, None, inputs, rule)
    return Value(node)


def zero_gradient(result: Value, *inputs: Value) -> Value:
    """`result`, which depends on `inputs` in steps only, or not at all: its gradient with respect to them is zero.

    It requires grad where one of them does, as in torch: whoever differentiates gets zeros, and no error.
    """
    steps = tuple([x for x in inputs if x.needs_grad])
    if not steps or not context().grad or not result.dtype.is_float:
        return result
    return Value(result.node, True, None, None, (result, *steps), _only_first)


def _only_first(g: Value, out: Value, result: Value, *steps: Value) -> tuple[Value | None, ...]:
    return (g if result.needs_grad else None, *(constant(0, x) for x in steps))


def constant(value: Any, like: Value) -> Value:
    """A constant of the shape and dtype of `like`."""
    node = like.node
    return Value(number_node(value, node.dtype, node.shape))


NUMBERS_KEPT = 2048
"""Constants of which the nodes are kept; then all are forgotten."""

_numbers: dict[tuple[Any, ...], Node] = {}


def number_node(x: bool | int | float, dtype: DType, shape: Shape) -> Node:
    """The constant `x` in every element; those most used are kept."""
    key = (x or repr(x), dtype, shape, x.__class__)  # 0.0 and -0.0 are equal
    found = _numbers.get(key)
    if found is None:
        if len(_numbers) >= NUMBERS_KEPT:
            _numbers.clear()
        found = graph.const(x, dtype, shape)
        if x == x:  # a NaN is no key
            _numbers[key] = found
    return found
