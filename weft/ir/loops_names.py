"""The names that the parts of a program use: index variables, temporaries and buffers share one namespace."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.expr import Expr, Load, names_of, opaque_values, walk
from weft.ir.index import Guard, Int, Var, variable_names
from weft.ir.loops import Accumulate, Alloc, Barrier, Block, Combine, If, Let, Loop, Prefetch, Stmt, Store
from weft.lazy_dataclass import dataclass

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


@dataclass(frozen=True, slots=True)
class Inside:
    """The statements of a block, nested ones included: the buffers that they store to, the names that they bind (loop
    variables, temporaries and allocations), whether a barrier is among them, and how many there are."""

    written: frozenset[str]
    bound: frozenset[str]
    barrier: bool
    count: int


def inside(body: Block) -> Inside:
    """Look into a block. Remembered in its loops and Ifs, which passes ask about again and again."""
    stores, binds = set[str](), set[str]()
    barrier, count = False, len(body)
    for s in body:
        match s:
            case Loop() | If():
                if isinstance(s, Loop):
                    binds.add(s.var.name)
                found = body_of(s)
                stores |= found.written
                binds |= found.bound
                barrier = barrier or found.barrier
                count += found.count
            case Store() | Accumulate() | Combine():
                stores.add(s.buffer)
            case Let():
                binds.add(s.name)
            case Alloc():
                binds.add(s.buffer.name)
            case Barrier():
                barrier = True
            case _:
                pass
    return Inside(frozenset(stores), frozenset(binds), barrier, count)


def body_of(s: Loop | If) -> Inside:
    """The inside of a loop's or an If's body, remembered in it."""
    found: Inside | None = s.inside
    if found is None:
        found = inside(s.body)
        object.__setattr__(s, "inside", found)
    return found


def written(body: Block) -> frozenset[str]:
    """The buffers that a block stores to."""
    return inside(body).written


def bound(body: Block) -> frozenset[str]:
    """The names that a block binds: loop variables, temporaries and allocations."""
    return inside(body).bound


def every(body: Block) -> Iterator[Stmt]:
    """Each statement of a block, those in nested blocks included, in order."""
    stack = list(reversed(body))
    while stack:
        s = stack.pop()
        yield s
        if isinstance(s, Loop | If):
            stack += reversed(s.body)


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
