"""The expressions that may be computed anywhere, even where the program would not have computed them."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.expr import Expr, Load
from weft.ir.loops import Alloc, Buffer, Program
from weft.ir.loops_names import every
from weft.ir.passes.facts import implied, with_guard


class Safety:
    """A load is safe when it reads a parameter, in range by its guard and the ranges alone.

    Nothing else can go wrong in an expression: no arithmetic traps.
    """

    def __init__(self, p: Program) -> None:
        self.params: dict[str, Buffer] = {b.name: b for b in p.params}
        self.allocated: dict[str, Buffer] = {
            s.buffer.name: s.buffer for s in every(p.body) if isinstance(s, Alloc)
        }
        self.known: dict[Expr, frozenset[Load]] = {}

    def __call__(self, e: Expr) -> bool:
        """True where `e` may be computed anywhere."""
        return not self.unsafe(e)

    def where_allocated(self, e: Expr) -> bool:
        """True where `e` may be computed wherever the buffers that it loads from are there."""
        return all(self._in_range(x, self.allocated) for x in self.unsafe(e))

    def unsafe(self, e: Expr) -> frozenset[Load]:
        """The loads in `e` that may only happen where the program has them."""
        known = self.known.get(e)
        if known is not None:
            return known
        stack = [e]
        while stack:
            x = stack[-1]
            if x in self.known:
                stack.pop()
                continue
            parts = x.parts
            missing = [b for b in parts if b not in self.known]
            if missing:
                stack.extend(missing)
                continue
            inside = [self.known[b] for b in parts if self.known[b]]
            if isinstance(x, Load) and not self._in_range(x, self.params):
                inside.append(frozenset((x,)))
            self.known[x] = _NONE.union(*inside) if inside else _NONE
            stack.pop()
        return self.known[e]

    def _in_range(self, x: Load, buffers: Mapping[str, Buffer]) -> bool:
        b = buffers.get(x.source)
        if b is None:
            return False
        facts = with_guard((), x.guard)
        return all(implied(facts, i) and implied(facts, b.size - 1 - i) for i in x.index)


_NONE: frozenset[Load] = frozenset()
