"""Facts about index expressions at some place of a program, and what follows from them.

A fact is an index expression that is known to be >= 0. The guards of enclosing Ifs and the extents of enclosing loops
give facts; a guard's condition follows from a fact that is nowhere larger.
"""

from __future__ import annotations

from typing import TypeAlias

from weft.ir.index import NEVER, Guard, Index, InRange, Int, Min, Sum, both, choices, high, in_range, low
from weft.ir.loops import Loop

Facts: TypeAlias = tuple[Index, ...]


def at_least_zero(x: Int) -> list[Int]:
    """Expressions that are all >= 0 exactly where `x` is: min(a, b) >= 0 where both are."""
    if isinstance(x, Min):
        return [*at_least_zero(x.a), *at_least_zero(x.b)]
    if isinstance(x, Sum):
        for of, a, b in choices(x):
            if of is min:
                return [*at_least_zero(a), *at_least_zero(b)]
    return [x]


def condition_facts(c: InRange) -> list[Int]:
    """The expressions that are all >= 0 exactly where the condition holds."""
    out: list[Int] = []
    if c.lo is not None:
        out += at_least_zero(c.value - c.lo)
    if c.hi is not None:
        out += at_least_zero(c.hi - c.value - 1)
    return out


def with_guard(facts: Facts, g: Guard) -> Facts:
    """The facts where the guard holds too."""
    new = (f for c in g for f in condition_facts(c) if isinstance(f, Index))
    return tuple(dict.fromkeys((*facts, *new)))


def with_loop(facts: Facts, s: Loop) -> Facts:
    """The facts inside a loop: what its variable's own range does not say already."""
    if isinstance(s.extent, int):
        return facts
    return with_guard(facts, (InRange(s.var, None, s.extent),))


def implied(facts: Facts, x: Int) -> bool:
    """True where x >= 0 is certain."""
    return all(low(part) >= 0 or any(_follows(f, part) for f in facts) for part in at_least_zero(x))


def excluded(facts: Facts, x: Int) -> bool:
    """True where x >= 0 is impossible."""
    return any(high(part) < 0 or any(high(part + f) < 0 for f in facts) for part in at_least_zero(x))


def _follows(fact: Index, x: Int) -> bool:
    """x >= 0 where fact >= 0: x - k * fact is never negative, k chosen so that their first terms cancel."""
    if low(x - fact) >= 0:
        return True
    if isinstance(fact, Sum) and isinstance(x, Sum):
        (atom, c), scale = fact.terms[0], dict(x.terms)
        k, rest = divmod(scale.get(atom, 0), c)
        return rest == 0 and k > 1 and low(x - fact * k) >= 0
    return False


def reduce_guard(facts: Facts, g: Guard) -> Guard:
    """The conditions of a guard that remain to be checked; NEVER when it cannot hold."""
    out: Guard = ()
    for c in g:
        lo, hi = c.lo, c.hi
        if lo is not None:
            gap = c.value - lo
            if excluded(facts, gap):
                return NEVER
            lo = None if implied(facts, gap) else lo
        if hi is not None:
            gap = hi - c.value - 1
            if excluded(facts, gap):
                return NEVER
            hi = None if implied(facts, gap) else hi
        if lo is c.lo and hi is c.hi:
            out = both(out, (c,))
        elif lo is not None or hi is not None:
            out = both(out, in_range(c.value, lo, hi))
    return out
