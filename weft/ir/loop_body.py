"""The body of a LOOP: a graph over placeholders, and how its results go on from step to step.

carry = inits
for t in 0 .. length - 1 (backwards if `reverse`):
    carry, outs[t] = body(carry, slices[t + offset], fixed)

Each result of a loop is a node of its own (one op has one result); those with equal bodies and inputs are one loop to
the scheduler, which runs it once and computes only what somebody asks for.
"""
# Tests: tests/core/grad/test_scan.py

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from enum import Enum

from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.errors import IRError
from weft.ir.graph import Box, Node, Shape, toposort
from weft.ir.index import Int
from weft.ir.ops import LEAVES, Op
from weft.ir.rewrite import over, rebuilt, rewritten
from weft.ir.template import GraphTemplate
from weft.lazy_dataclass import dataclass
from weft.naming import own_name


class Part(Enum):
    """A result of a loop. FINAL: a carry after the last step. HISTORY: a carry after every step, and before the
    first one: length + 1 rows, in the order of t. STACK: a row of an `out` for every step."""

    FINAL = "final"
    HISTORY = "history"
    STACK = "stack"


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """One step of a loop, as a graph over placeholders (BUFFERs without a value).

    `carries`, `slices` and `fixed` are placeholders: for what goes from step to step, for a row of each sliced input
    (row t + `offsets[j]`), and for what is the same in all steps. `nexts` are the carries after the step, `outs` what
    is stacked. `length` may depend on runtime variables. `normal` makes bodies that the scheduler can take.
    """

    carries: tuple[Node, ...]
    slices: tuple[Node, ...]
    offsets: tuple[int, ...]
    fixed: tuple[Node, ...]
    nexts: tuple[Node, ...]
    outs: tuple[Node, ...]
    length: Int
    reverse: bool
    template: GraphTemplate = field(init=False, repr=False)
    """The step on its placeholders, by number: bodies with equal ones are equal."""

    def __post_init__(self) -> None:
        step = GraphTemplate.of((*self.carries, *self.slices, *self.fixed), (*self.nexts, *self.outs))
        if isinstance(step, str):
            raise IRError(f"a loop's body is a graph over its placeholders: {step}")
        object.__setattr__(self, "template", step)

    @property
    def step_key(self) -> tuple[GraphTemplate, int, int, tuple[int, ...], bool]:
        """The key of bodies that are equal but for the number of steps."""
        return (self.template, len(self.carries), len(self.slices), self.offsets, self.reverse)

    def of_length(self, length: Int) -> Body:
        """The same body for another number of steps."""
        if length == self.length:
            return self
        made = object.__new__(Body)
        for f in fields(self):
            object.__setattr__(made, f.name, getattr(self, f.name))
        object.__setattr__(made, "length", length)  # which the template does not depend on
        return made

    @property
    def key(self) -> tuple[GraphTemplate, int, int, tuple[int, ...], Int, bool]:
        """The key that equal bodies have in common."""
        counts = (len(self.carries), len(self.slices), self.offsets)
        return (self.template, *counts, self.length, self.reverse)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @own_name()
    def __repr__(self) -> str:
        """The same in every process, and another one for every other body."""
        from hashlib import sha256

        way = " backwards" if self.reverse else ""
        text = repr((self.template.digest, *self.key[1:4]))
        return f"{self.length} steps{way} of {sha256(text.encode()).hexdigest()[:16]}"

    @property
    def before(self) -> int:
        """The row of a HISTORY, counted from t, that step t starts from."""
        return int(self.reverse)

    @property
    def after(self) -> int:
        """The row of a HISTORY, counted from t, that step t makes."""
        return 1 - self.before

    @property
    def first(self) -> Int:
        """The row of a HISTORY that holds what the loop starts from."""
        return self.length if self.reverse else 0

    @property
    def last(self) -> Int:
        """The row of a HISTORY that the last step makes."""
        return 0 if self.reverse else self.length

    @property
    def height(self) -> int:
        """1, or one more than that of the loops inside."""
        inside = [
            n.attrs.body.height for n in toposort((*self.nexts, *self.outs)) if isinstance(n.attrs, LoopNode)
        ]
        return 1 + max(inside, default=0)

    def result(self, part: Part, number: int) -> tuple[Shape, DType]:
        """The shape and dtype of a result."""
        if part is Part.STACK:
            out = self.outs[number]
            return (self.length, *out.shape), out.dtype
        carry = self.carries[number]
        return carry.shape if part is Part.FINAL else (self.length + 1, *carry.shape), carry.dtype


@dataclass(frozen=True, slots=True)
class LoopNode:
    """LOOP: the body, and which of its results. The inputs are what the carries start from, the sliced inputs, and the
    fixed ones."""

    body: Body
    part: Part
    number: int


def normal(
    carries: Sequence[Node],
    slices: Sequence[Node],
    nexts: Sequence[Node],
    outs: Sequence[Node],
    sources: Sequence[Node],
    length: Int,
    reverse: bool,
) -> tuple[Body, tuple[Node, ...]]:
    """A body, and the inputs beside `sources` (of carries, then of slices) with which it makes a loop.

    What no placeholder has a say in becomes a fixed input, so that it is computed once; movement of it stays in the
    body, where it costs nothing. Results can be stored into rows: one that is a placeholder, or is updated in place,
    is copied. Inputs are in memory; a part of the rows of one is the whole one,
    with an offset.
    """
    own = {*carries, *slices}
    roots = [*nexts, *outs]
    order = graph.toposort(roots)
    varies: set[Node] = set()
    for n in order:
        if n in own or any(i in varies for i in n.inputs):
            varies.add(n)
    fixed: dict[Node, Node] = {}
    stack = [i for n in order if n in varies for i in n.inputs if i not in varies]
    stack += [r for r in roots if r not in varies]
    while stack:
        n = stack.pop()
        if n in fixed or n.op is Op.CONST or (n.op is Op.RANGE):
            continue
        if n.op in MOVES and n.storage is None:
            stack.append(n.inputs[0])
            continue
        empty = graph.elements(n.shape) == 0
        fixed[n] = (
            graph.const(0, n.dtype, n.shape) if empty else graph.buffer(n.shape, n.dtype, n.device, None)
        )
    roots = rebuilt(roots, fixed)
    fixed = {n: p for n, p in fixed.items() if p.op is Op.BUFFER}
    placeholders = own | set(fixed.values())
    read: set[Node] = set()
    if any(n.op in _WHOLE for n in order):
        roots = _for_loops_inside(roots, own, set(slices))
        read = {i for n in graph.toposort(roots) for i in whole_inputs(n)}
    for k, r in enumerate(roots):
        if r in placeholders or r in read or r.op in _NO_ROWS or r.op in LEAVES:
            while r is roots[k] or r in read:
                r = graph.intern(Op.CONTIGUOUS, (r,), None, r.shape, r.dtype, r.device)
            roots[k] = r
    offsets: list[int] = []
    inputs: list[Node] = []
    for k, n in enumerate(sources):
        base, offset = rows_of(n) if k >= len(carries) else (n, 0)
        if k >= len(carries):
            offsets.append(offset)
        inputs.append(in_memory(base))
    inputs += [in_memory(n) for n in fixed]
    body = Body(
        tuple(carries), tuple(slices), tuple(offsets), tuple(fixed.values()), tuple(roots[: len(nexts)]),
        tuple(roots[len(nexts) :]), length, reverse,
    )  # fmt: skip
    return body, tuple(inputs)


MOVES = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SHRINK, Op.FLIP, Op.PAD, Op.SHEAR, Op.UNSHEAR})
_NO_ROWS = frozenset({Op.UPDATE, Op.SCATTER, Op.LOOP, Op.COPY})
"""Ops not stored into a row of a larger tensor: they start as a copy of another, or want memory of their own."""


_WHOLE = frozenset({Op.LOOP, Op.UPDATE, Op.SCATTER})


def whole_inputs(n: Node) -> tuple[Node, ...]:
    """The inputs that a node wants in memory of their own: rows of other tensors will not do."""
    if n.op is Op.LOOP:
        return n.inputs
    return n.inputs[:1] if n.op in (Op.UPDATE, Op.SCATTER) else ()


def _for_loops_inside(roots: Sequence[Node], rows: set[Node], slices: set[Node]) -> list[Node]:
    """The graph with rows copied for those that want them in memory of their own."""

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node:
        rowed, wanted = rows if n.op is Op.LOOP else slices, len(whole_inputs(n))
        copied = [
            graph.intern(Op.CONTIGUOUS, (i,), None, i.shape, i.dtype, i.device) if i in rowed else i
            for i in inputs[:wanted]
        ]
        return over(n, (*copied, *inputs[wanted:]))

    return rewritten(roots, rule)


def rows_of(n: Node) -> tuple[Node, int]:
    """The tensor of which `n` is some rows, one after the other, and the number of the first."""
    if n.op is Op.SHRINK and n.storage is None and isinstance(n.attrs, Box):
        (x,), start = n.inputs, n.attrs.start[0]
        if x.shape[1:] == n.shape[1:] and n.attrs.step[0] == 1 and isinstance(start, int):
            base, more = rows_of(x)
            return base, start + more
    return n, 0


def in_memory(n: Node) -> Node:
    """The value in memory, as a loop wants what it reads."""
    return graph.apply(Op.CONTIGUOUS, (n,)) if n.op in (Op.CONST, Op.RANGE) else n
