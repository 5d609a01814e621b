"""Index expressions as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.ir.index import FloorDiv, Guard, Int, Max, Min, Mod, Opaque, Product, Sum, Var, low

FLOORDIV, MOD, MIN, MAX = "weft_floordiv", "weft_mod", "weft_min", "weft_max"
"""Helper functions of the text; division rounds toward minus infinity, by positive divisors."""


class IndexText:
    """Renders indices: `names` gives each variable's text, `opaque` that of a computed integer, as an index."""

    __slots__ = ("names", "opaque", "used")

    def __init__(self, names: Mapping[str, str], opaque: Callable[[Any], str], used: set[str]) -> None:
        self.names, self.opaque, self.used = names, opaque, used

    def __call__(self, i: Int) -> str:
        """`i`, as an atom."""
        match i:
            case int():
                return str(i) if i >= 0 else f"({i})"
            case Var():
                return self.names[i.name]
            case Opaque():
                return self.opaque(i.value)
            case _:
                return f"({self.bare(i)})"

    def bare(self, i: Int) -> str:
        """`i`, without parentheses around all of it."""
        match i:
            case Sum():
                parts = [
                    self(a) if c == 1 else f"{self(a)} * {c if c >= 0 else f'({c})'}" for a, c in i.terms
                ]
                return " + ".join([*parts, str(i.const)] if i.const > 0 else parts) + (
                    f" - {-i.const}" if i.const < 0 else ""
                )
            case Product():
                return " * ".join(self(f) for f in i.factors)
            case FloorDiv():
                return (
                    f"{self(i.num)} / {self(i.den)}" if low(i.num) >= 0 else self.call(FLOORDIV, i.num, i.den)
                )
            case Mod():
                return f"{self(i.num)} % {self(i.den)}" if low(i.num) >= 0 else self.call(MOD, i.num, i.den)
            case Min():
                return self.call(MIN, i.a, i.b)
            case Max():
                return self.call(MAX, i.a, i.b)
            case _:
                return self(i)

    def call(self, name: str, *args: Int) -> str:
        """A call of a helper function."""
        self.used.add(name)
        return f"{name}({', '.join(map(self.bare, args))})"

    def holds(self, guard: Guard) -> str:
        """A guard that every lane has in common, as a scalar condition."""
        parts: list[str] = []
        for c in guard:
            if c.lo is not None:
                parts.append(f"{self(c.lo)} <= {self(c.value)}")
            if c.hi is not None:
                parts.append(f"{self(c.value)} < {self(c.hi)}")
        return f"({' && '.join(parts)})" if parts else "true"
