"""The names that the parts of a program use: index variables, temporaries and buffers share one namespace."""
# Tests: tests/ir/passes/test_grid.py

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.expr import Expr, Load, names_of, opaque_values, walk
from weft.ir.index import Guard, Int, Var, variable_names
from weft.ir.loops import Accumulate, Alloc, Block, Combine, If, Let, Loop, Prefetch, Stmt, Store

_NONE: frozenset[str] = frozenset()


def guard_indices(g: Guard) -> list[Int]:
    """The index expressions in a guard."""
    return [x for c in g for x in (c.value, c.lo, c.hi) if x is not None]


def stmt_indices(s: Stmt) -> list[Int]:
    """The index expressions that a statement itself holds; those in its values and its body not included."""
    match s:
        case Loop():
            return [s.extent]
        case Store() | Accumulate():
            return [s.offset, *guard_indices(s.guard)]
        case If():
            return guard_indices(s.guard)
        case Prefetch() | Combine():
            return [s.offset]
        case _:
            return []


def roots(s: Stmt) -> list[Expr]:
    """The scalar expressions that a statement evaluates itself, those inside its indices included."""
    out = [v for i in stmt_indices(s) if not isinstance(i, int | Var) for v in opaque_values(i)]
    if isinstance(s, Let | Store | Accumulate):
        out.append(s.value)
    return out


def buffers_read(body: Block) -> set[str]:
    """The buffers that are read, or accumulated in."""
    out: set[str] = set()
    for s in every(body):
        out |= {e.source for e in walk(roots(s)) if isinstance(e, Load)}
        if isinstance(s, Accumulate):
            out.add(s.buffer)
    return out


def written(body: Block) -> set[str]:
    """The buffers that a block stores to."""
    return {s.buffer for s in every(body) if isinstance(s, Store | Accumulate | Combine)}


def bound(body: Block) -> set[str]:
    """The names that a block binds: loop variables, temporaries and allocations."""
    names: set[str] = set()
    for s in every(body):
        match s:
            case Loop():
                names.add(s.var.name)
            case Let():
                names.add(s.name)
            case Alloc():
                names.add(s.buffer.name)
            case _:
                pass
    return names


def every(body: Block) -> Iterator[Stmt]:
    """Each statement of a block, those in nested blocks included, in order."""
    for s in body:
        yield s
        if isinstance(s, Loop | If):
            yield from every(s.body)


def names_of_index(i: Int) -> frozenset[str]:
    """Every name that an index expression depends on."""
    if isinstance(i, int) or not i.computed:
        return variable_names(i)
    return variable_names(i).union(*(names_of(v) for v in opaque_values(i)))


def names_of_guard(g: Guard) -> frozenset[str]:
    """Every name that a guard depends on."""
    return _NONE.union(*(names_of_index(i) for i in guard_indices(g))) if g else _NONE


def read_names(s: Stmt) -> frozenset[str]:
    """Every name that a statement itself reads, its body not included."""
    names = _NONE.union(*(names_of_index(i) for i in stmt_indices(s)))
    if isinstance(s, Prefetch):
        return names | {s.buffer}
    return names | names_of(s.value) if isinstance(s, Let | Store | Accumulate) else names


def names_of_stmt(s: Stmt) -> frozenset[str]:
    """Every name that a statement itself reads or writes, its body not included."""
    names = read_names(s)
    return names | {s.buffer} if isinstance(s, Store | Accumulate | Combine) else names


class Names:
    """The functions above as methods."""

    of = staticmethod(names_of)
    of_index = staticmethod(names_of_index)
    of_guard = staticmethod(names_of_guard)
    of_stmt = staticmethod(names_of_stmt)
