"""The closed set of primitive operations: what each means, and the facts that tables about ops derive from.

Elementwise ops serve the graph and the kernels' scalar expressions alike: a graph node `ADD(x, y)` lowers to
the scalar call `ADD(x[i], y[i])`. Everything else weft offers is composed from these in `weft.core`.
"""
# ruff: noqa: PIE796  (infos are compared by identity: two ops with the same facts are two members)

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from weft.ir.dtypes import DType, Kind
from weft.lazy_dataclass import dataclass

FLOATS = frozenset({Kind.FLOAT})
INTEGERS = frozenset({Kind.INT, Kind.UINT})
NUMBERS = FLOATS | INTEGERS
BITS = INTEGERS | {Kind.BOOL}
ANY = NUMBERS | {Kind.BOOL}


class Category(Enum):
    """The dependence of a result's element on the operands: batching, regions and slices of an op follow from it."""

    LEAF = auto()
    ELEMENTWISE = auto()  # on the elements at the same index
    REDUCE = auto()  # on all elements along some axes
    MOVEMENT = auto()  # on the element at a function of the index
    STRUCTURE = auto()  # on data, or on several tensors: each in a way of its own


@dataclass(frozen=True, slots=True, eq=False)
class OpInfo:
    """The facts about one op.

    `kinds`: of dtypes that the operands may have (of WHERE the choices, of GATHER and SCATTER the values). `cost`: of
    one element, in additions. A `transcendental` op is a function that no finite arithmetic gives, so `weft.ir.math`
    approximates it on devices that do not. The float results of an op that `jumps` are not continuous in its operands.
    """

    category: Category
    arity: int | None  # None: any number of operands
    kinds: frozenset[Kind] = ANY
    infix: str | None = None
    cost: int = 1
    compares: bool = False
    transcendental: bool = False
    jumps: bool = False


_leaf = partial(OpInfo, Category.LEAF, 0)
_unary = partial(OpInfo, Category.ELEMENTWISE, 1)
_function = partial(_unary, FLOATS, transcendental=True)
_binary = partial(OpInfo, Category.ELEMENTWISE, 2)
_compare = partial(_binary, ANY, compares=True)
_ternary = partial(OpInfo, Category.ELEMENTWISE, 3)
_reduce = partial(OpInfo, Category.REDUCE, 1)
_movement = partial(OpInfo, Category.MOVEMENT, 1, cost=0)
_structure = partial(OpInfo, Category.STRUCTURE)


class Op(Enum):
    """A primitive operation. Integer arithmetic wraps; float arithmetic is IEEE 754, round to nearest even."""

    info: OpInfo
    symbol: str

    # leaves
    BUFFER = _leaf()  # realized storage; attrs: Leaf
    CONST = _leaf()  # one value in every element; attrs: Fill
    RANGE = _leaf()  # 0, 1, 2, ... along its only axis

    # unary
    NEG = _unary(NUMBERS)
    ABS = _unary(NUMBERS)
    RECIP = _unary(FLOATS, cost=4)  # 1 / x, correctly rounded
    SQRT = _unary(FLOATS, cost=4)
    EXP = _function(cost=16)
    EXP2 = _function(cost=16)
    EXPM1 = _function(cost=20)  # exp(x) - 1, exact also near 0
    LOG = _function(cost=20)
    LOG2 = _function(cost=20)
    SIN = _function(cost=24)
    COS = _function(cost=24)
    TANH = _function(cost=24)
    ERF = _function(cost=24)
    FLOOR = _unary(NUMBERS, jumps=True)
    CEIL = _unary(NUMBERS, jumps=True)
    TRUNC = _unary(NUMBERS, jumps=True)
    ROUND = _unary(NUMBERS, jumps=True)  # to nearest, ties to even
    NOT = _unary(BITS)  # logical on bool, bitwise on integers
    # to the dtype; float -> int truncates and saturates, NaN -> 0; to 16-bit floats by way of f32
    CAST = _unary(ANY)
    BITCAST = _unary(ANY)  # reinterpret the bits, same width

    # binary
    ADD = _binary(NUMBERS, "+")
    SUB = _binary(NUMBERS, "-")
    MUL = _binary(NUMBERS, "*")
    DIV = _binary(FLOATS, "/", cost=4)  # correctly rounded
    FLOORDIV = _binary(INTEGERS, "//", cost=16)  # toward -inf; division by zero gives 0
    # integers: Python's %, by zero gives 0; floats: C's fmod, with the dividend's sign
    MOD = _binary(NUMBERS, "%", cost=16, jumps=True)
    MAX = _binary(ANY)  # NaN if either is NaN; of 0.0 and -0.0 a device may give either
    MIN = _binary(ANY)
    # floats: IEEE pow; integers: wrapping, negative exponents give 0 unless the base is 1 or -1
    POW = _binary(NUMBERS, cost=48, transcendental=True)
    LT = _compare("<")
    LE = _compare("<=")
    EQ = _compare("==")
    NE = _compare("!=")
    AND = _binary(BITS, "&")
    OR = _binary(BITS, "|")
    XOR = _binary(BITS, "^")
    SHL = _binary(INTEGERS, "<<")  # a shift by >= bits, or by a negative number, gives 0
    SHR = _binary(INTEGERS, ">>")  # arithmetic on signed integers; a shift by >= bits gives 0 or -1

    # ternary
    WHERE = _ternary(ANY)  # condition (bool), if true, if false
    # (counter, key0, key1), all u32: word 0 of Threefry-2x32-20 on block (counter, 0)
    THREEFRY = _ternary(INTEGERS, cost=100)
    FMA = _ternary(FLOATS)  # a * b + c rounded once; made by the `fma` pass only, never a graph node

    # reductions over axes (kept out of the result's shape)
    SUM = _reduce(NUMBERS)
    PROD = _reduce(NUMBERS)
    REDUCE_MAX = _reduce(ANY)
    REDUCE_MIN = _reduce(ANY)

    # movement: the result's element at an index is the input's element at a function of that index
    RESHAPE = _movement()
    PERMUTE = _movement()
    EXPAND = _movement()  # size 1 -> size n; the rank stays
    PAD = _movement()  # low, high, interior elements of one fill value per axis
    SHRINK = _movement()  # start, size, step per axis
    FLIP = _movement()
    SHEAR = _movement()  # out[.., o, .., k, ..] = x[.., o*stride + k*dilation, .., k, ..]: sliding windows
    # out[.., i, .., k, ..] = x[.., (i - k*dilation)/stride, .., k, ..] where exact, else 0
    UNSHEAR = _movement()

    # data-dependent and structural
    GATHER = _structure(2)  # out[.., j, ..] = x[.., index[.., j, ..], ..]; indices are clamped into range
    SCATTER = _structure(3)  # x with src combined in at index along an axis; an index out of range is skipped
    CONCAT = _structure(None)
    UPDATE = _structure(2)  # x with a strided box replaced by src
    CONTIGUOUS = _structure(1)  # the same values, in memory of their own: a fusion barrier
    COPY = _structure(1)  # the same values on another device
    LOOP = _structure(None)  # one result of a body that is repeated with carried state; attrs: Loop
    CALL = _structure(None)  # one result of a recorded graph on its inputs; attrs: GraphTemplate

    def __init__(self, info: OpInfo) -> None:
        self.info = info
        self.symbol = self.name.lower()

    # members are singletons: identity hashing is right and several times faster than Enum's own
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return str(self)


_NEEDS = {FLOATS: "a float", INTEGERS: "an integer", BITS: "a bool or integer"}


def kind_error(op: Op, dtype: DType) -> str | None:
    """The reason why `op` has no operands of a dtype; None if it may have them."""
    if dtype.kind in op.info.kinds:
        return None
    if op.info.kinds == NUMBERS:
        return "is not defined on bool"
    return f"needs {_NEEDS[op.info.kinds]} dtype, got {dtype.name}"


def _ops(is_one: Callable[[OpInfo], bool]) -> frozenset[Op]:
    return frozenset(op for op in Op if is_one(op.info))


def _elementwise(arity: int) -> frozenset[Op]:
    return _ops(lambda i: i.category is Category.ELEMENTWISE and i.arity == arity)


UNARY, BINARY, TERNARY = _elementwise(1), _elementwise(2), _elementwise(3)
ELEMENTWISE = UNARY | BINARY | TERNARY
COMPARE = _ops(lambda i: i.compares)
TRANSCENDENTAL = _ops(lambda i: i.transcendental)
EXPANDED = TRANSCENDENTAL | {Op.THREEFRY}
"""Elementwise ops of many instructions, which `weft.ir.math` writes out for devices that do not have them."""
SLOW = _ops(lambda i: i.category is Category.ELEMENTWISE and i.cost >= 4)
"""Elementwise ops that take as long as several others: divisions, roots, and what is expanded."""
CONVERSIONS = frozenset({Op.CAST, Op.BITCAST})
"""Ops whose result has a dtype that is given, not one that follows from the operands."""
REDUCE = _ops(lambda i: i.category is Category.REDUCE)
MOVEMENT = _ops(lambda i: i.category is Category.MOVEMENT)
LEAVES = _ops(lambda i: i.category is Category.LEAF)
STRUCTURE = _ops(lambda i: i.category is Category.STRUCTURE)

COMBINE: dict[Op, Op] = {Op.SUM: Op.ADD, Op.PROD: Op.MUL, Op.REDUCE_MAX: Op.MAX, Op.REDUCE_MIN: Op.MIN}
"""Reduction -> the binary op that combines two partial results."""
