"""The closed set of primitive operations, with their categories.

Elementwise ops serve the graph and the kernels' scalar expressions alike: a graph node `ADD(x, y)` lowers to
the scalar call `ADD(x[i], y[i])`. Everything else weft offers is composed from these in `weft.core`.
"""

from __future__ import annotations

from enum import Enum, auto


class Op(Enum):
    """A primitive operation. Integer arithmetic wraps; float arithmetic is IEEE 754, round to nearest even."""

    # leaves
    BUFFER = auto()  # realized storage; attrs: Leaf
    CONST = auto()  # one value in every element; attrs: Fill
    RANGE = auto()  # 0, 1, 2, ... along its only axis

    # unary
    NEG = auto()
    ABS = auto()
    RECIP = auto()  # 1 / x, correctly rounded
    SQRT = auto()
    EXP = auto()
    EXP2 = auto()
    LOG = auto()
    LOG2 = auto()
    SIN = auto()
    COS = auto()
    TANH = auto()
    ERF = auto()
    FLOOR = auto()
    CEIL = auto()
    TRUNC = auto()
    ROUND = auto()  # to nearest, ties to even
    NOT = auto()  # logical on bool, bitwise on integers
    CAST = (
        auto()
    )  # to the dtype; float -> int truncates and saturates, NaN -> 0; to 16-bit floats by way of f32
    BITCAST = auto()  # reinterpret the bits, same width

    # binary
    ADD = auto()
    SUB = auto()
    MUL = auto()
    DIV = auto()  # floats only, correctly rounded
    FLOORDIV = auto()  # integers only, toward -inf; division by zero gives 0
    MOD = auto()  # integers: Python's %, by zero gives 0; floats: C's fmod, with the dividend's sign
    MAX = auto()  # NaN if either is NaN; of 0.0 and -0.0 a device may give either
    MIN = auto()
    POW = auto()  # floats: IEEE pow; integers: wrapping, negative exponents give 0 unless the base is 1 or -1
    LT = auto()
    LE = auto()
    EQ = auto()
    NE = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    SHL = auto()  # a shift by >= bits, or by a negative number, gives 0
    SHR = auto()  # arithmetic on signed integers; a shift by >= bits gives 0 or -1

    # ternary
    WHERE = auto()  # condition (bool), if true, if false
    THREEFRY = auto()  # (counter, key0, key1), all u32: word 0 of Threefry-2x32-20 on block (counter, 0)
    FMA = auto()  # a * b + c rounded once; made by the `fma` pass only, never a graph node

    # reductions over axes (kept out of the result's shape)
    SUM = auto()
    PROD = auto()
    REDUCE_MAX = auto()
    REDUCE_MIN = auto()

    # movement: the result's element at an index is the input's element at a function of that index
    RESHAPE = auto()
    PERMUTE = auto()
    EXPAND = auto()  # size 1 -> size n; the rank stays
    PAD = auto()  # low, high, interior elements of one fill value per axis
    SHRINK = auto()  # start, size, step per axis
    FLIP = auto()
    SHEAR = auto()  # out[.., o, .., k, ..] = x[.., o*stride + k*dilation, .., k, ..]: sliding windows
    UNSHEAR = auto()  # out[.., i, .., k, ..] = x[.., (i - k*dilation)/stride, .., k, ..] where exact, else 0

    # data-dependent and structural
    GATHER = auto()  # out[.., j, ..] = x[.., index[.., j, ..], ..]; indices are clamped into range
    SCATTER = auto()  # x with src combined in at index along an axis; an index out of range is skipped
    CONCAT = auto()
    UPDATE = auto()  # x with a strided box replaced by src
    CONTIGUOUS = auto()  # the same values, in memory of their own: a fusion barrier
    COPY = auto()  # the same values on another device
    LOOP = auto()  # one result of a body that is repeated with carried state; attrs: Loop
    CALL = auto()  # the result of a recorded graph on its inputs; attrs: GraphTemplate; see calls.py

    # members are singletons: identity hashing is right and several times faster than Enum's own
    __hash__ = object.__hash__

    @property
    def symbol(self) -> str:
        """Lower-case name, as printed."""
        return self.name.lower()


UNARY = frozenset(
    {
        Op.NEG, Op.ABS, Op.RECIP, Op.SQRT, Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.TANH, Op.ERF,
        Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.NOT, Op.CAST, Op.BITCAST,
    }
)  # fmt: skip
COMPARE = frozenset({Op.LT, Op.LE, Op.EQ, Op.NE})
BINARY = COMPARE | frozenset(
    {
        Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.FLOORDIV, Op.MOD, Op.MAX, Op.MIN, Op.POW, Op.AND, Op.OR, Op.XOR,
        Op.SHL, Op.SHR,
    }
)  # fmt: skip
TERNARY = frozenset({Op.WHERE, Op.THREEFRY, Op.FMA})
ELEMENTWISE = UNARY | BINARY | TERNARY
REDUCE = frozenset({Op.SUM, Op.PROD, Op.REDUCE_MAX, Op.REDUCE_MIN})
MOVEMENT = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.PAD, Op.SHRINK, Op.FLIP, Op.SHEAR, Op.UNSHEAR})
LEAVES = frozenset({Op.BUFFER, Op.CONST, Op.RANGE})
FLOAT_ONLY = frozenset(
    {Op.RECIP, Op.SQRT, Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.TANH, Op.ERF, Op.DIV}
)

COMBINE: dict[Op, Op] = {Op.SUM: Op.ADD, Op.PROD: Op.MUL, Op.REDUCE_MAX: Op.MAX, Op.REDUCE_MIN: Op.MIN}
"""Reduction -> the binary op that combines two partial results."""
