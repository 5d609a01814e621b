"""Lowered loops: the whole language that backends compile, on one page.

A `Program` is one kernel: parameters in global memory, runtime integer variables, and a block of statements. Every
buffer is flat; an access names a buffer and one offset expression. Index variables are 64-bit signed integers.
Execution is sequential but for what a loop's kind allows; the `dummy` backend's interpreter defines the meaning.
"""
# Tests: tests/ir/test_loops_verify.py, tests/ir/test_loops_names.py, tests/ir/passes/test_golden.py

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from typing import Any, TypeAlias

from weft.ir.dtypes import DType
from weft.ir.expr import Expr
from weft.ir.index import Guard, Int, Var
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


class Scope(Enum):
    """The memory that a buffer lives in."""

    GLOBAL = "global"  # a parameter, or a buffer that all tasks of the kernel share
    LOCAL = "local"  # one per thread block (CPU: one per running task), addressable
    REGISTER = "register"  # one per thread and vector lane group; offsets constant once loops are unrolled


class LoopKind(Enum):
    """The way a loop's iterations run."""

    SERIAL = "for"
    UNROLL = "unroll"  # constant extent; written out
    MATRIX = (
        "matrix"  # constant extent; the terms that one instruction of a matrix unit sums, see `ir.matrix`
    )
    VECTOR = "vector"  # constant extent; iterations are SIMD lanes, statement by statement
    ACROSS = "across"  # as VECTOR; the lanes are neighbouring threads, where `passes.grid` can have it so
    PARALLEL = "parallel"  # independent tasks, any order, on any core
    BLOCK = "block"  # independent thread blocks of a GPU grid
    THREAD = "thread"  # threads of one block; barriers order their LOCAL accesses


LANE_KINDS = frozenset({LoopKind.VECTOR, LoopKind.ACROSS})
"""Loops whose iterations run statement by statement."""

INDEPENDENT_KINDS = frozenset({LoopKind.PARALLEL, LoopKind.BLOCK, LoopKind.THREAD})
"""Loops whose iterations run beside each other."""

FORBIDDEN_INSIDE: dict[LoopKind, frozenset[LoopKind]] = {
    LoopKind.VECTOR: INDEPENDENT_KINDS | LANE_KINDS,
    LoopKind.ACROSS: INDEPENDENT_KINDS | LANE_KINDS,
    LoopKind.THREAD: frozenset({LoopKind.PARALLEL, LoopKind.BLOCK}),
    LoopKind.BLOCK: frozenset({LoopKind.PARALLEL}),
    LoopKind.PARALLEL: frozenset({LoopKind.BLOCK}),
}
"""Kind of a loop -> kinds of loops that may not stand inside it."""


def misplaced(kinds: Sequence[LoopKind]) -> tuple[LoopKind, LoopKind] | None:
    """The first kind of a nest's loops, outermost first, that may not stand inside one before, after that one."""
    for d, inner in enumerate(kinds):
        for outer in kinds[:d]:
            if inner in FORBIDDEN_INSIDE.get(outer, ()):
                return outer, inner
    return None


@dataclass(frozen=True, slots=True)
class Buffer:
    """A flat array: `size` elements (a constant but for GLOBAL parameters)."""

    name: str
    dtype: DType
    size: Int
    scope: Scope


class Stmt:
    """A statement."""

    __slots__ = ()


Block: TypeAlias = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Loop(Stmt):
    """for `var` in 0..`extent`: `body`, run as `kind` says. var.lo is 0; var.hi is high(extent) - 1."""

    var: Var
    extent: Int
    body: Block
    kind: LoopKind = LoopKind.SERIAL
    inside: Any = field(default=None, init=False, repr=False, compare=False)
    """The result of `loops_names.inside` for the body, once it was asked."""

    def around(self, body: Block) -> Loop:
        """The loop with another body; itself where that is its own."""
        return self if body is self.body else Loop(self.var, self.extent, body, self.kind)


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    """`buffer` exists, uninitialized, until the end of the enclosing block."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    """`name` stands for `value` (as `expr.Temp`) until the end of the enclosing block; bound once."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """buffer[offset] = value where the guard holds. `stream` hints that it is not read again soon."""

    buffer: str
    offset: Int
    value: Expr
    guard: Guard = ()
    stream: bool = False

    def over(self, offset: Int, value: Expr, guard: Guard) -> Store:
        """The store with other operands; itself where they are its own."""
        if value is self.value and offset is self.offset and guard is self.guard:
            return self
        return Store(self.buffer, offset, value, guard, self.stream)


@dataclass(frozen=True, slots=True)
class Accumulate(Stmt):
    """buffer[offset] = op(buffer[offset], value) where the guard holds; op is ADD, MUL, MAX or MIN.

    Inside a VECTOR loop with an offset that all lanes share, the lanes are combined as a tree first: the first half
    with the second half, until one is left. The order is free where their number is no power of two.
    """

    buffer: str
    offset: Int
    op: Op
    value: Expr
    guard: Guard = ()

    def over(self, offset: Int, value: Expr, guard: Guard) -> Accumulate:
        """The accumulation with other operands; itself where they are its own."""
        if value is self.value and offset is self.offset and guard is self.guard:
            return self
        return Accumulate(self.buffer, offset, self.op, value, guard)


@dataclass(frozen=True, slots=True)
class If(Stmt):
    """`body` where the guard holds."""

    guard: Guard
    body: Block
    inside: Any = field(default=None, init=False, repr=False, compare=False)
    """The result of `loops_names.inside` for the body, once it was asked."""

    def around(self, body: Block) -> If:
        """The If with another body; itself where that is its own."""
        return self if body is self.body else If(self.guard, body)


LINE = 64
"""Bytes of a cache line, for hints."""


@dataclass(frozen=True, slots=True)
class Prefetch(Stmt):
    """A hint that buffer[offset] will be read soon. The offset may lie outside; nothing happens then."""

    buffer: str
    offset: Int


@dataclass(frozen=True, slots=True)
class Barrier(Stmt):
    """All THREADs of the block have reached this point, and see each other's LOCAL stores."""


@dataclass(frozen=True, slots=True)
class Combine(Stmt):
    """The element buffer[offset], which each THREAD of the block has in a REGISTER buffer of its own, becomes what the
    elements of `group` neighbouring threads combine to, in all of them: threads k*group to k*group + group - 1.

    As a tree: the first half with the second half, until one is left. op is ADD, MUL, MAX or MIN, `group` a power of
    two. All threads of the block come here; their number is a multiple of `group`.
    """

    buffer: str
    offset: Int
    op: Op
    group: int


@dataclass(frozen=True, slots=True)
class Program:
    """One kernel, lowered.

    `params` are the GLOBAL buffers in the order they are passed; `writes` names those that are written.
    `variables` are runtime integers, passed after them.
    """

    name: str
    params: tuple[Buffer, ...]
    writes: frozenset[str]
    variables: tuple[Var, ...]
    body: Block
