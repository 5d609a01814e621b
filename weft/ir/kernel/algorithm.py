"""A kernel's algorithm: a small DAG of values, each with its own index space. No value is tied to memory or order.

    attention = scores (i, j), row maximum (i), sum of weights (i), output (i, d)

An expression reads a parameter or another value with `expr.Load(dtype, name, index, guard)`, one index per axis.
Every value comes before its readers.
"""
# Tests: tests/ir/kernel/test_verify.py, tests/ir/kernel/test_transforms.py

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from weft.ir import expr as ex
from weft.ir.dtypes import DType
from weft.ir.expr import Expr, Load
from weft.ir.index import Guard, Int, Var, high
from weft.ir.numerics import Tree
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


def place(axis: int, size: Int) -> Var:
    """Stands for where an element lies along a tensor's axis, in what is said of its elements."""
    return Var(f"${axis}", 0, max(high(size) - 1, 0))


@dataclass(frozen=True, slots=True)
class KnownFill:
    """Elements of a tensor whose `place` lies outside of the condition have this value: 0, or -inf."""

    outside: Guard
    value: float


@dataclass(frozen=True, slots=True)
class Param:
    """A tensor in global memory, contiguous in row-major order. Read, written, or both (updated in place).

    `fill` is what is known of its elements before the kernel runs; schedules may leave out the terms that it makes the
    identity of their reduction. `far`: its plan reads so much between two runs that no cache of a core has it still."""

    name: str
    dtype: DType
    shape: tuple[Int, ...]
    written: bool = False
    fill: KnownFill | None = None
    far: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An index variable running over 0 .. extent - 1. Variables are unique in their kernel."""

    var: Var
    extent: Int


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction of a value's expression over `axes`: op is ADD, MUL, MAX or MIN. `tree`: the order of its terms."""

    op: Op
    axes: tuple[Axis, ...]
    tree: Tree = Tree.FREE


@dataclass(frozen=True, slots=True)
class ItemValue:
    """name(axes) = expr, or the reduction of expr over further axes."""

    name: str
    axes: tuple[Axis, ...]
    expr: Expr
    reduce: Reduce | None = None

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        """The value's own axes, then those it reduces over."""
        return self.axes + (self.reduce.axes if self.reduce else ())

    def exprs(self) -> tuple[Expr, ...]:
        """The expressions that computing this item evaluates."""
        return (self.expr,)


@dataclass(frozen=True, slots=True)
class StoreTo:
    """param[index] = expr where the guard holds; with `combine`, param[index] = combine(param[index], expr)."""

    param: str
    index: tuple[Int, ...]
    expr: Expr
    guard: Guard = ()
    combine: Op | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the kernel: for every point of `axes`, the stores. Only the last item may be computed by
    nobody.

    `carries` are reads that compute nothing: they tie another Output's axes to this one's, so that it can be computed
    inside this one's loops (a row's mean beside the normalized row). Its `Load` names the other output.
    """

    name: str
    axes: tuple[Axis, ...]
    stores: tuple[StoreTo, ...]
    carries: tuple[Load, ...] = ()

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        return self.axes

    def exprs(self) -> tuple[Expr, ...]:
        """The expressions that computing this item evaluates, those inside indices included."""
        inner = [v for s in self.stores for i in s.index for v in ex.opaque_values(i)]
        return (*(s.expr for s in self.stores), *inner, *(ex.test(s.guard) for s in self.stores if s.guard))


Item: TypeAlias = ItemValue | Output


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The whole: parameters, runtime integer variables, and the items in an order of computation. `pinned`: what is
    rounded, and when, may depend on no schedule; see `ir/numerics.py`."""

    name: str
    params: tuple[Param, ...]
    variables: tuple[Var, ...]
    items: tuple[Item, ...]
    pinned: bool = False

    def item(self, name: str) -> Item:
        """The item called `name`; KeyError when there is none."""
        for i in self.items:
            if i.name == name:
                return i
        raise KeyError(name)

    def param(self, name: str) -> Param | None:
        """The parameter called `name`, if there is one."""
        for p in self.params:
            if p.name == name:
                return p
        return None


def rate_dtype(algorithm: Algorithm) -> str:
    """The name of the dtype whose operations a kernel counts: the narrowest float that it reads, whose rate is the
    highest; int8 where it reads no floats but bytes, else float32."""
    given = [p.dtype for p in algorithm.params if not p.written]
    floats = [d for d in given if d.is_float and d.bits >= 16]
    if floats:
        return min(floats, key=lambda d: d.bits).name
    return "int8" if any(d.is_int and d.bits == 8 for d in given) else "float32"


def reads(item: Item) -> Iterator[Load]:
    """Every distinct load that computing the item does (of parameters and values), and what an Output carries."""
    for e in ex.walk(item.exprs()):
        if isinstance(e, Load):
            yield e
    if isinstance(item, Output):
        yield from item.carries


def readers(algorithm: Algorithm, name: str) -> list[Item]:
    """The items that read value `name`."""
    return [i for i in algorithm.items if any(r.source == name for r in reads(i))]
