"""Loops that may run statement by statement for many iterations at once, with their meaning unchanged.

PARALLEL, BLOCK, THREAD, VECTOR and ACROSS loops may by their meaning. An ordered loop may where no iteration uses what
another one writes: for each buffer from outside that its body writes,

- every access is an Accumulate by the same op (the terms are then combined in the order of the iterations), or
- in all of them the loop's variable is the same digit of the offset: what inner loops add is less than its step, or a
  multiple of its step times its extent.
"""
# Tests: tests/backends/dummy/test_vectorized.py

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.expr import Load, walk
from weft.ir.index import Index, Int, Opaque, Sum, Var, coefficient, variables
from weft.ir.loops import Accumulate, Alloc, Block, If, Loop, LoopKind, Store
from weft.ir.loops_names import every, roots
from weft.ir.ops import Op

_FREE = frozenset({LoopKind.PARALLEL, LoopKind.BLOCK, LoopKind.THREAD, LoopKind.VECTOR, LoopKind.ACROSS})


def at_once(loop: Loop, memory: Mapping[str, str] | None) -> bool:
    """True where many iterations may run at once.

    `memory`: parameter -> the parameter that is the same memory. None: parameters overlap in other ways, so that
    offsets say nothing.
    """
    return loop.kind in _FREE or (memory is not None and _independent(loop, memory))


def _independent(loop: Loop, memory: Mapping[str, str]) -> bool:
    inside = list(every(loop.body))
    own = {s.buffer.name for s in inside if isinstance(s, Alloc)}
    offsets: dict[str, list[Int]] = {}
    changes: dict[str, set[Op | None]] = {}  # None: stores
    for s in inside:
        if isinstance(s, Store | Accumulate) and s.buffer not in own:
            name = memory.get(s.buffer, s.buffer)
            changes.setdefault(name, set()).add(s.op if isinstance(s, Accumulate) else None)
            offsets.setdefault(name, []).append(s.offset)
    read: set[str] = set()
    for e in walk(r for s in inside for r in roots(s)):
        if isinstance(e, Load):
            name = memory.get(e.source, e.source)
            if name in changes:
                read.add(name)
                offsets[name].append(e.index[0])
    inner = frozenset(s.var for s in inside if isinstance(s, Loop))
    for name, ops in changes.items():
        if name not in read and len(ops) == 1 and None not in ops:
            continue
        if not _apart(offsets[name], loop.var, inner):
            return False
    return True


def _apart(offsets: list[Int], v: Var, inner: frozenset[Var]) -> bool:
    """True where iterations of `v` certainly use different elements.

    `v` is a digit of each offset: with its coefficient `step` and n iterations, (offset - origin) mod (n * step) is
    step * v plus less than one step.
    """
    sign = coefficient(offsets[0], v)
    if not sign:
        return False
    step = abs(sign)
    period = step * (v.hi + 1)
    origins: set[Int] = set()
    low: list[int] = []
    high: list[int] = []
    for x in offsets:
        if coefficient(x, v) != sign:
            return False
        terms, least = _terms(x - v * sign)
        most = least
        origin: Int = 0
        for atom, c in terms:
            if c % period == 0:
                continue
            if variables(atom) <= inner or isinstance(atom, Opaque):
                ends = (c * atom.lo, c * atom.hi)
                least, most = least + min(ends), most + max(ends)
            else:
                origin = origin + atom * c
        origins.add(origin)
        low.append(least)
        high.append(most)
    return len(origins) == 1 and max(high) - min(low) < step


def _terms(x: Int) -> tuple[tuple[tuple[Index, int], ...], int]:
    """`x` as (terms, constant)."""
    match x:
        case int():
            return (), x
        case Sum():
            return x.terms, x.const
        case _:
            return ((x, 1),), 0


def lanes_inside(body: Block, known: Mapping[int, bool]) -> int:
    """The most lanes, or elements of their own buffers, that one run of a block has.

    `known`: loop, by identity -> whether its iterations run at once.
    """
    most = 1
    for s in body:
        match s:
            case Loop():
                inner = lanes_inside(s.body, known)
                most = max(most, inner * max(1, s.var.hi + 1) if known[id(s)] else inner)
            case Alloc(b) if isinstance(b.size, int):
                most = max(most, b.size)
            case If():
                most = max(most, lanes_inside(s.body, known))
            case _:
                pass
    return most
