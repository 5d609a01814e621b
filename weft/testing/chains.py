"""The number of additions in sequence into one accumulator of a program: it bounds a sum's rounding error.

for i in 0..1000:                     s: 1000 additions in sequence
  p = 0                               p: 64
  for k in 0..64: p += x[64*i + k]
  s += p
"""
# Tests: tests/scheduler/optimize/test_levels.py

from __future__ import annotations

from dataclasses import field
from math import prod

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load, ScalarCall
from weft.ir.index import Int, Var, coefficient, evaluate, high, variables
from weft.ir.loops import Accumulate, Alloc, Block, If, Loop, LoopKind, Program, Store
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

_TOGETHER = frozenset({LoopKind.VECTOR, LoopKind.ACROSS, LoopKind.MATRIX})
"""Loops whose terms are added as a tree, or by one instruction."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The longest sequence of additions into one element of `buffer`; `products`: of products of two factors that are
    not one and the same; `memory`: the buffer is a parameter, so the sum is one that the graph asks for."""

    buffer: str
    length: int
    products: bool
    memory: bool


@dataclass(slots=True)
class _Found:
    """The places where a buffer begins anew, and what is added to it, by the loops around."""

    begins: list[tuple[Loop, ...]] = field(default_factory=list[tuple[Loop, ...]])
    adds: list[tuple[tuple[Loop, ...], Int, Expr]] = field(
        default_factory=list[tuple[tuple[Loop, ...], Int, Expr]]
    )


def chains(program: Program) -> list[Chain]:
    """The longest sequence of float additions into each accumulator of lowered loops."""
    found: dict[str, _Found] = {b.name: _Found([()]) for b in program.params}
    _visit(program.body, (), found)
    params = {b.name for b in program.params}
    out: list[Chain] = []
    for name, f in found.items():
        lengths = [(_length(path, at, f.begins), _is_product(value)) for path, at, value in f.adds]
        if lengths:
            length, products = max(lengths)
            out.append(Chain(name, length, products, name in params))
    return out


def _visit(block: Block, path: tuple[Loop, ...], found: dict[str, _Found]) -> None:
    for s in block:
        match s:
            case Alloc():
                found[s.buffer.name] = _Found([path])
            case Loop():
                _visit(s.body, (*path, s), found)
            case If():
                _visit(s.body, path, found)
            case Accumulate(op=Op.ADD) if s.value.dtype.is_float:
                found[s.buffer].adds.append((path, s.offset, s.value))
            case Store() if s.value.dtype.is_float:
                added = _added(s)
                if added is not None:
                    found[s.buffer].adds.append((path, s.offset, added))
                elif not any(isinstance(e, Load) and e.source == s.buffer for e in ex.walk([s.value])):
                    found[s.buffer].begins.append(path)
            case _:
                pass


def _added(s: Store) -> Expr | None:
    """The term that a store adds to its element, which it may scale before; None where it stores something else."""
    if not isinstance(s.value, ScalarCall) or s.value.op is not Op.ADD:
        return None
    old, new = s.value.args
    while isinstance(old, ScalarCall) and old.op is Op.MUL:
        old = old.args[0]
    return new if old == Load(s.value.dtype, s.buffer, (s.offset,)) else None


def _length(path: tuple[Loop, ...], at: Int, begins: list[tuple[Loop, ...]]) -> int:
    """Iterations that add to one element before it begins anew."""
    common = max(_common(path, b) for b in begins)
    return prod(_repeats(loop, at) for loop in path[common:])


def _common(a: tuple[Loop, ...], b: tuple[Loop, ...]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] is b[n]:
        n += 1
    return n


def _repeats(loop: Loop, at: Int) -> int:
    """Iterations of a loop that name the same element."""
    extent = high(loop.extent)
    if loop.kind in _TOGETHER or extent <= 1:
        return 1
    if loop.var not in variables(at):
        return extent
    if coefficient(at, loop.var):
        return 1
    return _most_alike(loop.var, at, extent)


def _most_alike(v: Var, at: Int, extent: int) -> int:
    """The most times that an index that divides takes one value, all else being equal."""
    env = {x.name: 0 for x in variables(at)}
    counts: dict[int, int] = {}
    for i in range(min(extent, 4096)):
        try:
            x = int(evaluate(at, {**env, v.name: i}))
        except (KeyError, TypeError, ValueError, NotImplementedError):  # depends on what is in memory
            return extent
        counts[x] = counts.get(x, 0) + 1
    return max(counts.values())


def _is_product(e: Expr) -> bool:
    while isinstance(e, ScalarCall) and e.op in (Op.WHERE, Op.CAST):
        e = e.args[1 if e.op is Op.WHERE else 0]
    return isinstance(e, ScalarCall) and e.op is Op.MUL and e.args[0] != e.args[1]
