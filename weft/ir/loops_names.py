"""Which names the parts of a program use: index variables, temporaries and buffers share one namespace."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.expr import Expr, FromIndex, Load, Temp, Test, below, indices, opaque_values
from weft.ir.index import Guard, Int, Opaque, Var, atoms
from weft.ir.loops import Accumulate, Alloc, Block, If, Let, Loop, Stmt, Store

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
        case _:
            return []


def roots(s: Stmt) -> list[Expr]:
    """The scalar expressions that a statement evaluates itself, those inside its indices included."""
    out = [v for i in stmt_indices(s) if not isinstance(i, int | Var) for v in opaque_values(i)]
    if isinstance(s, Let | Store | Accumulate):
        out.append(s.value)
    return out


def written(body: Block) -> set[str]:
    """The buffers that a block stores to."""
    return {s.buffer for s in every(body) if isinstance(s, Store | Accumulate)}


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


class Names:
    """The names that expressions use, remembered: ask one instance about a whole program."""

    def __init__(self) -> None:
        self._exprs: dict[Expr, frozenset[str]] = {}
        self._indices: dict[Int, tuple[frozenset[str], list[Expr]]] = {}

    def of(self, e: Expr) -> frozenset[str]:
        """Every variable, temporary and buffer that `e` depends on."""
        known = self._exprs
        found = known.get(e)
        if found is not None:
            return found
        stack = [e]
        while stack:
            x = stack[-1]
            if x in known:
                stack.pop()
                continue
            parts = below(x)
            missing = [b for b in parts if b not in known]
            if missing:
                stack.extend(missing)
                continue
            own = _NONE
            for b in parts:
                names = known[b]
                own = names if own <= names else own if names <= own else own | names
            match x:
                case Temp():
                    own = frozenset((x.name,))
                case Load():
                    own = own.union((x.source,), *(self._index(i)[0] for i in indices(x)))
                case FromIndex() | Test():
                    own = own.union(*(self._index(i)[0] for i in indices(x)))
                case _:
                    pass
            known[x] = own
            stack.pop()
        return known[e]

    def of_index(self, i: Int) -> frozenset[str]:
        """Every name that an index expression depends on."""
        names, values = self._index(i)
        return names.union(*(self.of(v) for v in values)) if values else names

    def of_guard(self, g: Guard) -> frozenset[str]:
        """Every name that a guard depends on."""
        return _NONE.union(*(self.of_index(i) for i in guard_indices(g))) if g else _NONE

    def of_stmt(self, s: Stmt) -> frozenset[str]:
        """Every name that a statement itself reads or writes, its body not included."""
        names = _NONE.union(*(self.of_index(i) for i in stmt_indices(s)))
        if isinstance(s, Let | Store | Accumulate):
            names |= self.of(s.value)
        if isinstance(s, Store | Accumulate):
            names |= {s.buffer}
        return names

    def _index(self, i: Int) -> tuple[frozenset[str], list[Expr]]:
        if isinstance(i, int):
            return _NONE, []
        found = self._indices.get(i)
        if found is None:
            inside = list(atoms(i))
            names = frozenset(a.name for a in inside if isinstance(a, Var))
            found = self._indices[i] = (names, [a.value for a in inside if isinstance(a, Opaque)])
        return found
