"""Broadcasting and promotion: from operands as the user gives them to the strict operands of graph nodes."""
# Tests: tests/core/tensor/test_tensor.py, tests/core/test_dtypes.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from weft.autograd.context import context, default_device
from weft.autograd.value import Value, apply, number_node, record
from weft.core.args.defaults import get_default_dtype
from weft.core.args.handle import Handle, Number, describe, wrap
from weft.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from weft.ir import graph
from weft.ir.dtypes import DType, Kind, bool_, int8, int16, int32, int64, promote, uint8, uint16, uint32
from weft.ir.graph import Axes, Shape, Target
from weft.ir.index import Int
from weft.ir.ops import Op
from weft.ir.placement import is_mesh
from weft.ir.shape_rules import equally_many, expands

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

Operand: TypeAlias = Value | Number
_NUMBERS = (bool, int, float)


def operand(op: str, x: object) -> Operand:
    """A Tensor's value, a number, or the value of a NumPy array."""
    if isinstance(x, Handle):
        return x.value
    if isinstance(x, _NUMBERS):
        return x
    module = type(x).__module__
    if module == "numpy" or module == "ml_dtypes":
        return _from_numpy(op, x)
    raise DTypeError(f"{op}: cannot combine a Tensor with {describe(x)}; convert it with weft.tensor(...)")


def _from_numpy(op: str, x: Any) -> Operand:
    if is_array(x):
        return _read_array(x)
    item = x.item() if hasattr(x, "item") else x
    if isinstance(item, _NUMBERS):
        return item
    raise DTypeError(f"{op}: cannot combine a Tensor with {describe(x)}; convert it with weft.tensor(...)")


_read_array: Callable[[np.ndarray[Any, Any]], Value]


def set_array_reader(read: Callable[[np.ndarray[Any, Any]], Value]) -> None:
    """Called once, where tensors are made of arrays, which takes operands."""
    global _read_array
    _read_array = read


def number_dtype(x: Number) -> DType:
    """The dtype a Python number has by itself."""
    return bool_ if isinstance(x, bool) else int64 if isinstance(x, int) else get_default_dtype()


def result_dtype(operands: Sequence[Operand]) -> DType:
    """The dtype that operands combine in: torch's rule, by rank of kind.

    Tensors with dimensions decide; tensors without, and after them Python numbers, count only when their kind
    (bool, integer, float) is higher.
    """
    found: list[DType | None] = [None, None, None]
    for x in operands:
        if isinstance(x, Value):
            level, dtype = (0 if x.node.shape else 1), x.node.dtype
        else:
            level, dtype = 2, number_dtype(x)
        before = found[level]
        found[level] = dtype if before is None else promote(before, dtype)
    return _combine(found[0], _combine(found[1], found[2]) or bool_) or bool_


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.kind is Kind.FLOAT:
        return higher
    if higher.kind is Kind.BOOL or lower.kind is Kind.FLOAT:
        return promote(higher, lower)
    return higher


def result_type(input: Tensor | Number, other: Tensor | Number) -> DType:
    """The dtype of an arithmetic operation on the two, as torch.result_type."""
    return result_dtype([operand("result_type", input), operand("result_type", other)])


_RANKS = {Kind.BOOL: 0, Kind.UINT: 1, Kind.INT: 1, Kind.FLOAT: 2}


def can_cast(from_: DType, to: DType) -> bool:
    """True where a result of dtype `from_` may be stored in a tensor of dtype `to`: the kind must not sink."""
    return from_ is to or _RANKS[from_.kind] <= _RANKS[to.kind]


def check_fits(op: str, x: Number, dtype: DType) -> None:
    """ArgumentError for a number out of the range of an integer dtype; -1 fits unsigned ones, as in torch.."""
    high = int(dtype.max)
    low = -high if isinstance(x, int) and dtype.kind is Kind.UINT and dtype.bits < 64 else int(dtype.min)
    if not low <= x <= high:  # also for NaN
        raise ArgumentError(f"{op}: {x} does not fit in {dtype.name}, which holds {int(dtype.min)} to {high}")


def fitting(op: str, x: Number, dtype: DType) -> Number:
    """A number that is to fill a tensor; ArgumentError where it is out of the dtype's range."""
    if dtype.is_int:
        check_fits(op, x, dtype)
    return x


def broadcast_shape(op: str, shapes: Sequence[Shape]) -> Shape:
    """The common shape: aligned at the right, sizes of 1 stretch. ShapeError where sizes differ."""
    first = shapes[0]
    for s in shapes:
        if s != first:
            break
    else:
        return first
    common = _common_shape(tuple(shapes))
    if isinstance(common, str):
        raise ShapeError(f"{op}: {common}")
    return common


@lru_cache(2048)
def _common_shape(shapes: tuple[Shape, ...]) -> Shape | str:
    """The shape that others broadcast to, or why there is none."""
    rank = max(len(s) for s in shapes)
    out: list[Any] = [1] * rank
    for shape in shapes:
        for k, n in enumerate(shape, rank - len(shape)):
            if n == 1 or out[k] == n:
                continue
            if out[k] != 1:
                listed = " and ".join(str(tuple(s)) for s in shapes)
                return (
                    f"shapes {listed} do not broadcast: dimension {k - rank} is {out[k]} in one and {n} in "
                    f"another; they must be equal or 1"
                )
            out[k] = n
    return tuple(out)


def broadcast_shapes(*shapes: Shape | int) -> Shape:
    """The shape that tensors of these shapes broadcast to."""
    whole = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    for s in whole:
        if any(isinstance(n, (str, float, bool)) for n in s):
            raise DTypeError(f"broadcast_shapes: a shape must be a tuple of ints, got {s}")
        if any(isinstance(n, int) and n < 0 for n in s):
            raise ShapeError(f"broadcast_shapes: sizes must not be negative, got {s}")
    return broadcast_shape("broadcast_shapes", whole) if whole else ()


def scalar(x: Number, dtype: DType, shape: Shape, device: str | None = None) -> Value:
    """`x` in every element of a tensor; the nodes most used are kept. `device` is where it meets another operand.

    The value is a new one each time: whoever computes it, rebinds it to its memory.
    """
    lifted = context().lifted
    if lifted is not None and device is not None:
        node = lifted(x, dtype, device)
        if node is not None:
            return expand(Value(node), shape)
    return Value(number_node(x, dtype, shape))


def expand(v: Value, shape: Shape) -> Value:
    """`v` broadcast to `shape`, which must fit."""
    have = v.node.shape
    if have == shape:
        return v
    if len(have) < len(shape):
        v = reshape(v, (1,) * (len(shape) - len(have)) + have)
        have = v.node.shape
        if have == shape:
            return v
    return _moved(v, _EXPAND, shape) if expands(have, shape) else apply(_EXPAND, (v,), None, shape)


def reshape(v: Value, shape: Shape) -> Value:
    """`v` with its elements, in row-major order, in another shape."""
    have = v.node.shape
    if have == shape:
        return v
    return _moved(v, _RESHAPE, shape) if equally_many(have, shape) else apply(_RESHAPE, (v,), None, shape)


_EXPAND, _RESHAPE = Op.EXPAND, Op.RESHAPE


def _moved(v: Value, op: Op, shape: Shape) -> Value:
    """`op` on a value, to a shape that fits. What depends on data is not simplified, but for reshapes of reshapes."""
    node = v.node
    if node.device is None or node.op is op is _RESHAPE:
        return apply(op, (v,), None, shape)
    return record(graph.intern(op, (node,), None, shape, node.dtype, node.device), op, None, (v,))


_BY_WAY_OF = {int8: int32, int16: int32, uint8: int32, uint16: int32, uint32: int64}


def cast(v: Value, dtype: DType) -> Value:
    """`v` converted to `dtype`. Floats that narrow integers have not wrap, as on every CPU torch and NumPy run on."""
    have = v.node.dtype
    if have is dtype:
        return v
    if have.is_float and dtype in _BY_WAY_OF:
        v = apply(Op.CAST, (v,), None, None, _BY_WAY_OF[dtype])
    return apply(Op.CAST, (v,), None, None, dtype)


def same_device(op: str, values: Sequence[Value]) -> None:
    """DeviceError unless all values can meet: on one device, or constants, which are at home anywhere."""
    home: str | None = None
    for v in values:
        device = v.node.device
        if device is None or device is home:
            continue
        if home is not None and device != home:
            raise DeviceError(f"{op}: tensors are on {home} and {device}; {_remedy(home, device)}")
        home = device


def _remedy(home: str, device: str) -> str:
    """The remedy where tensors are on two devices."""
    mesh = home if is_mesh(home) else device
    if not is_mesh(mesh):
        return f"move one with .to({home!r})"
    other = device if mesh == home else home
    return (
        f"lay the one on {other} out on the mesh with weft.distributed.tensor.distribute_tensor(t, mesh, placements), "
        f"or take the whole of the one on {mesh} with .full_tensor()"
    )


_CPU, _META = "cpu:0", "meta:0"


def on_one_device(op: str, operands: Sequence[Operand]) -> Sequence[Operand]:
    """The operands, tensors without axes copied from the default device, or the CPU, to where the others are, as in
    torch. DeviceError where that does not bring them together."""
    values = [x for x in operands if isinstance(x, Value) and x.node.device is not None]
    if len({v.node.device for v in values}) < 2:
        return operands
    movable = (_CPU, default_device())
    fixed = [v.node.device for v in values if v.node.shape or v.node.device not in movable]
    home = fixed[0] if fixed else next(v.node.device for v in values if v.node.device != _CPU)
    assert home is not None
    out: list[Operand] = []
    for x in operands:
        if (
            isinstance(x, Value)
            and x.node.device not in (None, home)
            and x.node.device in movable
            and not x.node.shape
        ):
            node = graph.buffer((), x.node.dtype, home, None) if home == _META else None
            x = Value(node) if node is not None else apply(Op.COPY, (x,), Target(home))
        out.append(x)
    same_device(op, [x for x in out if isinstance(x, Value)])
    return out


def values_on_one_device(op: str, values: Sequence[Value]) -> Sequence[Value]:
    """As `on_one_device`."""
    return [x for x in on_one_device(op, values) if isinstance(x, Value)]


def broadcast(op: str, operands: Sequence[Operand], dtype: DType) -> list[Value]:
    """The operands in one dtype and one shape. At least one must be a value."""
    values = [x for x in operands if isinstance(x, Value)]
    if not values:
        raise DTypeError(f"{op}: needs at least one Tensor, got {', '.join(map(repr, operands))}")
    if len(values) > 1:
        operands = on_one_device(op, operands)
        values = [x for x in operands if isinstance(x, Value)]
    shape = broadcast_shape(op, [v.node.shape for v in values])
    return [
        expand(cast(x, dtype), shape)
        if isinstance(x, Value)
        else scalar(x, dtype, shape, values[0].node.device)
        for x in operands
    ]


def size_tensor(n: Int, dtype: DType) -> Tensor | int:
    """A size as an operand: a number, or, when only known at run time, the sum of that many ones."""
    return n if isinstance(n, int) else wrap(apply(Op.SUM, (Value(scalar(1, dtype, (n,)).node),), Axes((0,))))


def is_array(x: Any) -> TypeGuard[np.ndarray[Any, Any]]:
    """True for a NumPy array."""
    return isinstance(x, np.ndarray)
