"""Integer index expressions with known ranges, and their simplifier.

An index is an `int`, or an `Index` that is never constant (constants fold to `int` at once), so `int` sizes cost
nothing. Every `Index` knows inclusive bounds; simplification happens in the operators, by rules that hold for all
values inside the bounds. Division rounds toward minus infinity and `%` takes the divisor's sign, as in Python.

>>> i, j = Var("i", 0, 3), Var("j", 0, 7)
>>> (i * 8 + j) // 8, (i * 8 + j) % 8, (i * 8 + j) % 16
(i, j, 8*(i%2) + j)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from math import gcd
from typing import Any, TypeAlias, overload

from weft.ir.interning import Interned
from weft.lazy_dataclass import dataclass


class Index(metaclass=Interned):
    """A non-constant integer expression; `lo` and `hi` are inclusive bounds of its value.

    Equal expressions are one object: they are compared and hashed by identity.
    """

    __slots__ = ("__weakref__", "computed", "extrema", "hi", "lo", "names", "text", "variables")
    lo: int
    hi: int
    text: str
    computed: bool
    """True where an Opaque is inside."""
    extrema: int
    """The minima and maxima inside, at whatever depth."""
    names: frozenset[str] | None
    """The result of `variable_names`, once it was asked for."""
    variables: frozenset[Var] | None
    """The result of `variables`, once it was asked for."""

    def _init(self, lo: int, hi: int, text: str) -> None:
        self.lo, self.hi, self.text, self.names, self.variables = lo, hi, text, None, None
        inside = [o for o in self.operands() if not isinstance(o, int)]
        self.computed = any(o.computed for o in inside)
        self.extrema = sum([o.extrema for o in inside]) + isinstance(self, Min | Max)

    def fields(self) -> tuple[Any, ...]:
        """Everything that makes this expression what it is."""
        raise AssertionError

    def operands(self) -> tuple[Int, ...]:
        """The index expressions directly inside this one."""
        return ()

    def rebuild(self, operands: Sequence[Int]) -> Int:
        """The same expression over other operands, simplified again."""
        return self

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.fields())

    def __add__(self, other: Int) -> Int:
        return _add(((self, 1), (other, 1)))

    __radd__ = __add__

    def __sub__(self, other: Int) -> Int:
        return _add(((self, 1), (other, -1)))

    def __rsub__(self, other: Int) -> Int:
        return _add(((other, 1), (self, -1)))

    def __neg__(self) -> Int:
        return _add(((self, -1),))

    def __mul__(self, other: Int) -> Int:
        if isinstance(other, int):
            return _add(((self, other),))
        return _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Int) -> Int:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Int) -> Int:
        return floordiv(other, self)

    def __mod__(self, other: Int) -> Int:
        return mod(self, other)

    def __rmod__(self, other: Int) -> Int:
        return mod(other, self)


Int: TypeAlias = int | Index
"""A size, an offset or an index: known now, or an expression."""


class Var(Index):
    """A loop variable or a runtime variable, between `lo` and `hi` inclusive."""

    __slots__ = ("name",)

    def __init__(self, name: str, lo: int, hi: int) -> None:
        self.name = name
        self._init(lo, hi, name)

    def fields(self) -> tuple[Any, ...]:
        return (self.name, self.lo, self.hi)


class Opaque(Index):
    """An integer that a kernel computes or loads (a gathered index), between `lo` and `hi` inclusive.

    `value` is a scalar expression (`weft.ir.expr.Expr`); whoever makes the Opaque guarantees the bounds.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any, lo: int, hi: int) -> None:
        self.value = value
        self._init(lo, hi, f"[{value.brief()}]")
        self.computed = True

    def fields(self) -> tuple[Any, ...]:
        return (self.value, self.lo, self.hi)


class Sum(Index):
    """constant + sum of coefficient * atom; atoms are distinct, sorted by text, and no Sum."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: tuple[tuple[Index, int], ...], const: int) -> None:
        self.terms, self.const = terms, const
        lo = hi = const
        for atom, c in terms:
            lo += c * (atom.lo if c > 0 else atom.hi)
            hi += c * (atom.hi if c > 0 else atom.lo)
        for of, a, b in _few_choices(self, _COMPARED):
            lo, hi = max(lo, of(low(a), low(b))), min(hi, of(high(a), high(b)))
        parts = [(a.text if c == 1 else f"-{a.text}" if c == -1 else f"{c}*{_paren(a)}") for a, c in terms]
        if const:
            parts.append(str(const))
        self._init(lo, hi, " + ".join(parts).replace("+ -", "- "))

    def fields(self) -> tuple[Any, ...]:
        return (self.terms, self.const)

    def operands(self) -> tuple[Int, ...]:
        return tuple(a for a, _ in self.terms)

    def rebuild(self, operands: Sequence[Int]) -> Int:
        return _add((*zip(operands, (c for _, c in self.terms), strict=True), (self.const, 1)))


class Product(Index):
    """A product of two or more non-constant factors (runtime strides)."""

    __slots__ = ("factors",)

    def __init__(self, factors: tuple[Index, ...]) -> None:
        self.factors = factors
        lo, hi = factors[0].lo, factors[0].hi
        for f in factors[1:]:
            ends = (lo * f.lo, lo * f.hi, hi * f.lo, hi * f.hi)
            lo, hi = min(ends), max(ends)
        self._init(lo, hi, "*".join(_paren(f) for f in factors))

    def fields(self) -> tuple[Any, ...]:
        return (self.factors,)

    def operands(self) -> tuple[Int, ...]:
        return self.factors

    def rebuild(self, operands: Sequence[Int]) -> Int:
        out: Int = 1
        for f in operands:
            out = out * f
        return out


class FloorDiv(Index):
    """num // den, den > 0."""

    __slots__ = ("den", "num")

    def __init__(self, num: Int, den: Int) -> None:
        self.num, self.den = num, den
        (nl, nh), (dl, dh) = bounds(num), bounds(den)
        ends = (nl // dl, nl // dh, nh // dl, nh // dh)
        self._init(min(ends), max(ends), f"{_paren(num)}//{_paren(den)}")

    def fields(self) -> tuple[Any, ...]:
        return (self.num, self.den)

    def operands(self) -> tuple[Int, ...]:
        return (self.num, self.den)

    def rebuild(self, operands: Sequence[Int]) -> Int:
        return floordiv(operands[0], operands[1])


class Mod(Index):
    """num % den, den > 0."""

    __slots__ = ("den", "num")

    def __init__(self, num: Int, den: Int) -> None:
        self.num, self.den = num, den
        (nl, nh), (_, dh) = bounds(num), bounds(den)
        hi = dh - 1 if nl < 0 else min(dh - 1, nh)
        self._init(0, hi, f"({_paren(num)}%{_paren(den)})")

    def fields(self) -> tuple[Any, ...]:
        return (self.num, self.den)

    def operands(self) -> tuple[Int, ...]:
        return (self.num, self.den)

    def rebuild(self, operands: Sequence[Int]) -> Int:
        return mod(operands[0], operands[1])


class Min(Index):
    """The smaller of two."""

    __slots__ = ("a", "b")

    def __init__(self, a: Int, b: Int) -> None:
        self.a, self.b = a, b
        (al, ah), (bl, bh) = bounds(a), bounds(b)
        self._init(min(al, bl), min(ah, bh), f"min({a!r}, {b!r})")

    def fields(self) -> tuple[Any, ...]:
        return (self.a, self.b)

    def operands(self) -> tuple[Int, ...]:
        return (self.a, self.b)

    def rebuild(self, operands: Sequence[Int]) -> Int:
        return minimum(operands[0], operands[1])


class Max(Index):
    """The larger of two."""

    __slots__ = ("a", "b")

    def __init__(self, a: Int, b: Int) -> None:
        self.a, self.b = a, b
        (al, ah), (bl, bh) = bounds(a), bounds(b)
        self._init(max(al, bl), max(ah, bh), f"max({a!r}, {b!r})")

    def fields(self) -> tuple[Any, ...]:
        return (self.a, self.b)

    def operands(self) -> tuple[Int, ...]:
        return (self.a, self.b)

    def rebuild(self, operands: Sequence[Int]) -> Int:
        return maximum(operands[0], operands[1])


_COMPARED = 4
"""Minima and maxima in a sum, at whatever depth, whose operands are compared with its other terms: with each more it
takes three times as long."""

_ASKED = 10
"""The same where a lower bound is asked for."""


def choices(x: Sum) -> Iterator[tuple[Callable[[int, int], int], Int, Int]]:
    """Ways to write a sum as the smaller or larger of two (`min` or `max`): n - min(k, n) is max(n - k, 0)."""
    for atom, c in x.terms:
        if isinstance(atom, Min | Max):
            rest = [*((a, k) for a, k in x.terms if a is not atom), (x.const, 1)]
            of = min if isinstance(atom, Min) == (c > 0) else max
            yield of, _add([*rest, (atom.a, c)]), _add([*rest, (atom.b, c)])


def _few_choices(x: Sum, most: int) -> Iterable[tuple[Callable[[int, int], int], Int, Int]]:
    """The same, where there are few, and so in each of the two."""
    return choices(x) if 0 < sum([a.extrema for a, _ in x.terms]) <= most else ()


def _paren(x: Int) -> str:
    return f"({x!r})" if isinstance(x, Sum | Product | FloorDiv) else repr(x)


def bounds(x: Int) -> tuple[int, int]:
    """Inclusive bounds of the value."""
    return (x, x) if isinstance(x, int) else (x.lo, x.hi)


def low(x: Int) -> int:
    """The smallest value `x` can have."""
    return x if isinstance(x, int) else x.lo


def high(x: Int) -> int:
    """The largest value `x` can have."""
    return x if isinstance(x, int) else x.hi


def _terms(x: Int) -> tuple[tuple[tuple[Index, int], ...], int]:
    """`x` as (terms, constant)."""
    if isinstance(x, int):
        return (), x
    if isinstance(x, Sum):
        return x.terms, x.const
    return ((x, 1),), 0


def _make_sum(coefs: dict[Index, int], const: int) -> Int:
    terms = [(a, c) for a, c in coefs.items() if c]
    if not terms:
        return const
    if len(terms) == 1 and terms[0][1] == 1 and const == 0:
        return terms[0][0]
    terms.sort(key=_term_order)
    return Sum(tuple(terms), const)


def _term_order(term: tuple[Index, int]) -> tuple[int, str]:
    return (-abs(term[1]), term[0].text)


_REMEMBERED = 8192
"""Results kept of each of the functions below: kernels of repeated layers ask for the same ones."""


def _add(parts: Iterable[tuple[Int, int]]) -> Int:
    """The sum of expressions, each times a factor."""
    return _sum(tuple(parts))


@lru_cache(_REMEMBERED)
def _sum(parts: tuple[tuple[Int, int], ...]) -> Int:
    coefs: dict[Index, int] = {}
    const = 0
    mods = False
    for x, k in parts:
        terms, c = _terms(x)
        const += k * c
        for atom, coef in terms:
            coefs[atom] = coefs.get(atom, 0) + k * coef
            mods = mods or isinstance(atom, Mod)
    if mods and len(coefs) > 1:
        return _recombine(coefs, const)
    return _make_sum(coefs, const)


def _recombine(coefs: dict[Index, int], const: int) -> Int:
    """c*(x//c) + x%c -> x, and a*((x//a)%b) + x%a -> x%(a*b) for numbers a and b, each times a factor."""
    for atom in list(coefs):
        k = coefs.get(atom, 0)
        if not k or not isinstance(atom, Mod):
            continue
        whole = floordiv(atom.num, atom.den)
        if not isinstance(atom.den, int):
            terms, c = _terms(whole * atom.den)
            if terms and all(coefs.get(t, 0) == k * tc for t, tc in terms):
                rest = {a: v for a, v in coefs.items() if a != atom and a not in dict(terms)}
                return _add((*rest.items(), (atom.num, k), (const - k * c, 1)))
            continue
        # x may be a sum whose quotient is one too: all of its terms must be there, scaled
        terms, c = _terms(whole)
        want = k * atom.den
        if terms and all(coefs.get(t, 0) == want * tc for t, tc in terms):
            rest = {a: v for a, v in coefs.items() if a != atom and a not in dict(terms)}
            return _add((*rest.items(), (atom.num, k), (const - want * c, 1)))
        for other, v in coefs.items():
            if isinstance(other, Mod) and v == want and isinstance(other.den, int) and other.num == whole:
                rest = {a: u for a, u in coefs.items() if a != atom and a != other}
                return _add((*rest.items(), (mod(atom.num, atom.den * other.den), k), (const, 1)))
    return _make_sum(coefs, const)


def _product(a: Index, b: Index) -> Int:
    if isinstance(a, Sum):
        return _add((*((t * b, c) for t, c in a.terms), (b, a.const)))
    if isinstance(b, Sum):
        return _product(b, a)
    factors = (
        *(a.factors if isinstance(a, Product) else (a,)),
        *(b.factors if isinstance(b, Product) else (b,)),
    )
    return Product(tuple(sorted(factors, key=lambda f: f.text)))


def floordiv(x: Int, d: Int) -> Int:
    """x // d for d > 0, simplified."""
    if isinstance(d, int):
        if d <= 0:
            raise ValueError(f"index division by {d}")
        if isinstance(x, int):
            return x // d
        if d == 1:
            return x
        return _floordiv_const(x, d)
    if x == d:
        return 1
    if low(x) >= 0 and high(x) < low(d):
        return 0
    if (
        isinstance(d, Sum) and len(d.terms) == 1 and not d.const
    ):  # a number times something that x may be made of
        of, times = d.terms[0]
        whole, rest = _multiples(x, of)
        if rest == 0 and times > 0:
            return floordiv(whole, times)
    whole, rest = _multiples(x, d)
    if low(rest) >= 0 and high(rest) < low(d):
        return whole
    return whole + FloorDiv(rest, d)


def _multiples(x: Int, d: Index) -> tuple[Int, Int]:
    """x = d * quotient + rest, with the terms in the quotient that have `d` as a factor."""
    terms, const = _terms(x)
    whole = [(q, c) for a, c in terms if (q := _exact(a, d)) is not None]
    if not whole:
        return 0, x
    return _add(whole), _add([*((a, c) for a, c in terms if _exact(a, d) is None), (const, 1)])


def _exact(x: Index, d: Index) -> Int | None:
    """x / d when d is a factor of x."""
    if x == d:
        return 1
    if not isinstance(x, Product):
        return None
    rest = list(x.factors)
    for f in d.factors if isinstance(d, Product) else (d,):
        if f not in rest:
            return None
        rest.remove(f)
    if not rest:
        return 1
    return rest[0] if len(rest) == 1 else Product(tuple(rest))


def _split(x: Index, d: int) -> tuple[Int, Int]:
    """x = d * quotient + rest, moving into the quotient all that leaves the rest simple."""
    terms, const = _terms(x)
    quotient: list[tuple[Int, int]] = [(const // d, 1)]
    rest: list[tuple[Int, int]] = [(const % d, 1)]
    for atom, c in terms:
        q = c // d if (c % d == 0 or c > d) else 0
        if q:
            quotient.append((atom, q))
        if c - q * d:
            rest.append((atom, c - q * d))
    return _add(quotient), _add(rest)


def _common(x: Index, d: int) -> Iterator[tuple[int, Int, Int]]:
    """Ways to write x = g * a + r with g | d, g > 1 and 0 <= r < g: (g, a, r)."""
    terms, const = _terms(x)
    for g in sorted({gcd(c, d) for _, c in terms}, reverse=True):
        if g > 1:
            a = _add([*((t, c // g) for t, c in terms if c % g == 0), (const // g, 1)])
            r = _add([*((t, c) for t, c in terms if c % g), (const % g, 1)])
            if low(r) >= 0 and high(r) < g:
                yield g, a, r


@lru_cache(_REMEMBERED)
def _floordiv_const(x: Index, d: int) -> Int:
    q, r = _split(x, d)
    if isinstance(r, int) or (r.lo >= 0 and r.hi < d):
        return q
    if r.lo // d == r.hi // d:
        return q + r.lo // d
    inner = _only_quotient(r)
    if inner is not None:  # (x // m + rest) // d = (x + m * rest) // (m * d)
        m, term = inner
        return q + floordiv(term.num + (r - term) * m, m * d)
    for g, a, _ in _common(r, d):
        return q + floordiv(a, d // g)
    if isinstance(r, Mod) and isinstance(r.den, int) and r.den % d == 0:
        return q + mod(floordiv(r.num, d), r.den // d)
    return q + FloorDiv(r, d)


def _only_quotient(x: Index) -> tuple[int, FloorDiv] | None:
    """The one quotient by a constant, itself without a factor, among the terms of `x`: (its divisor, it)."""
    found = [(a, c) for a, c in _terms(x)[0] if isinstance(a, FloorDiv)]
    if len(found) == 1 and found[0][1] == 1:
        term = found[0][0]
        if isinstance(term.den, int):
            return term.den, term
    return None


def mod(x: Int, d: Int) -> Int:
    """x % d for d > 0, simplified."""
    if isinstance(d, int):
        if d <= 0:
            raise ValueError(f"index modulo {d}")
        if isinstance(x, int):
            return x % d
        if d == 1:
            return 0
        return _mod_const(x, d)
    if x == d:
        return 0
    if low(x) >= 0 and high(x) < low(d):
        return x
    _, rest = _multiples(x, d)
    if isinstance(rest, int) and rest == 0:
        return 0
    if low(rest) >= 0 and high(rest) < low(d):
        return rest
    return Mod(rest, d)


@lru_cache(_REMEMBERED)
def _mod_const(x: Index, d: int) -> Int:
    _, r = _split(x, d)
    if isinstance(r, int):
        return r
    if r.lo // d == r.hi // d:
        return r - (r.lo // d) * d
    if isinstance(r, Mod) and isinstance(r.den, int) and r.den % d == 0:
        return mod(r.num, d)
    for g, a, rest in _common(r, d):
        return mod(a, d // g) * g + rest
    return Mod(r, d)


def minimum(a: Int, b: Int) -> Int:
    """min(a, b), simplified."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if _at_most(a, b):
        return a
    return b if _at_most(b, a) else Min(a, b)


def _at_most(a: Int, b: Int) -> bool:
    """True where a <= b is certain."""
    if high(a) <= low(b):
        return True
    if isinstance(a, FloorDiv) and isinstance(b, FloorDiv) and a.den == b.den:
        return high(a.num - b.num) <= 0
    gap = a - b
    if high(gap) <= 0 or _is_rounding(gap):
        return True
    # whoever takes one of the two for the smaller or the larger keeps bounds as tight
    return high(a) <= high(b) and low(a) <= low(b) and high(_undivided(gap)) <= 0


def _is_rounding(x: Int) -> bool:
    """True for a quotient less another by the same divisor that is never smaller: n//d - (n + d - 1)//d."""
    if not isinstance(x, Sum) or x.const > 0 or len(x.terms) != 2:
        return False
    (a, c), (b, d) = x.terms
    if not (isinstance(a, FloorDiv) and isinstance(b, FloorDiv)) or a.den != b.den or c != -d:
        return False
    return high(a.num - b.num if c > 0 else b.num - a.num) <= 0


def _undivided(x: Int) -> Int:
    """An upper bound of `x` without quotients whose factor makes up for the division: d*(n//d) is at most n."""
    terms, const = _terms(x)
    parts: list[tuple[Int, int]] = [(const, 1)]
    for atom, c in terms:
        if isinstance(atom, FloorDiv) and isinstance(atom.den, int) and c % atom.den == 0:
            rest = atom.num if c > 0 else atom.num - (atom.den - 1)
            parts.append((rest, c // atom.den))
        else:
            parts.append((atom, c))
    return _add(parts)


def at_least(x: Int) -> int:
    """A lower bound of `x` that knows how much a quotient is rounded down: 32*((n + 31)//32) - n is at least 0. So is
    n - 2*min(k, n//2)."""
    bound, scale = low(x), 1
    if isinstance(x, Sum):
        for of, a, b in _few_choices(x, _ASKED):
            bound = max(bound, of(at_least(a), at_least(b)))
    while True:
        terms, const = _terms(x)
        quotients = [(a, a.den) for a, _ in terms if isinstance(a, FloorDiv) and isinstance(a.den, int)]
        if not quotients:
            return bound
        coarsest, den = max(quotients, key=lambda q: q[1])  # what is inside may be a term, too
        inner: Int = coarsest.num
        by = den
        for finer, d in quotients:  # (x + 16)//32 is (x//16 + 1)//2
            more = coarsest.num - finer.num
            if d < den and den % d == 0 and den // d < by and isinstance(more, int) and more % d == 0:
                inner, by = finer + more // d, den // d
        c = dict(terms)[coarsest]
        rest = [(a, k * by) for a, k in terms if a is not coarsest]
        x = _add([*rest, (inner - (by - 1) if c > 0 else inner, c), (const, by)])
        scale *= by
        bound = max(bound, -(-low(x) // scale))


def maximum(a: Int, b: Int) -> Int:
    """max(a, b), simplified."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if _at_most(b, a):
        return a
    return b if _at_most(a, b) else Max(a, b)


@overload
def ceildiv(x: int, d: int) -> int: ...
@overload
def ceildiv(x: Int, d: int) -> Int: ...
def ceildiv(x: Int, d: int) -> Int:
    """The smallest integer not below x / d."""
    return floordiv(x + (d - 1), d)


def rewrite(x: Int, leaf: Callable[[Index], Int | None]) -> Int:
    """`x` with each subexpression for which `leaf` gives a value replaced by it, simplified again."""
    if isinstance(x, int):
        return x
    new = leaf(x)
    if new is not None:
        return new
    if isinstance(x, Var):
        return x
    old = x.operands()
    ops = [o if isinstance(o, int) else rewrite(o, leaf) for o in old]
    for a, b in zip(ops, old, strict=True):
        if a is not b:
            return x.rebuild(ops)
    return x


def substitute(x: Int, mapping: Mapping[Var, Int]) -> Int:
    """`x` with variables replaced. Variables inside an Opaque's scalar value are not reached: see `expr.substitute`."""
    if not mapping or isinstance(x, int) or variables(x).isdisjoint(mapping):
        return x
    return rewrite(x, lambda e: mapping.get(e) if isinstance(e, Var) else None)


def evaluate(x: Int, env: Mapping[str, Any], opaque: Callable[[Any], Any] | None = None) -> Any:
    """The value of `x` where `env` gives each variable by name (ints, or NumPy arrays of them).

    `opaque` evaluates the scalar value of an `Opaque`.
    """
    match x:
        case int():
            return x
        case Var():
            return env[x.name]
        case Sum():
            total: Any = x.const
            for a, c in x.terms:  # mostly variables, once: others would be most calls and products
                value = env[a.name] if isinstance(a, Var) else evaluate(a, env, opaque)
                total = total + (value if c == 1 else value * c)
            return total
        case Product():
            total = 1
            for f in x.factors:
                total = total * evaluate(f, env, opaque)
            return total
        case FloorDiv():
            return evaluate(x.num, env, opaque) // evaluate(x.den, env, opaque)
        case Mod():
            return evaluate(x.num, env, opaque) % evaluate(x.den, env, opaque)
        case Min() | Max():
            a, b = evaluate(x.a, env, opaque), evaluate(x.b, env, opaque)
            if isinstance(a, int) and isinstance(b, int):
                return min(a, b) if isinstance(x, Min) else max(a, b)
            import numpy as np

            return np.minimum(a, b) if isinstance(x, Min) else np.maximum(a, b)
        case Opaque():
            if opaque is None:
                raise ValueError(f"no evaluator given for {x!r}")
            return opaque(x.value)
        case _:
            raise TypeError(f"not an index: {x!r}")


def atoms(x: Int) -> Iterator[Index]:
    """Every subexpression of `x`, itself included, outermost first."""
    if isinstance(x, Index):
        yield x
        for o in x.operands():
            yield from atoms(o)


_NO_VARIABLES: frozenset[Var] = frozenset()


def variables(x: Int) -> frozenset[Var]:
    """The variables in `x`, those inside Opaque values not included. Remembered in `x`."""
    if isinstance(x, int):
        return _NO_VARIABLES
    found = x.variables
    if found is None:
        if isinstance(x, Var):
            return frozenset((x,))  # not remembered: it would hold itself
        found = x.variables = _NO_VARIABLES.union(*[variables(o) for o in x.operands()])
    return found


_NO_NAMES: frozenset[str] = frozenset()


def variable_names(x: Int) -> frozenset[str]:
    """The names of `variables(x)`. Remembered in `x`."""
    if isinstance(x, int):
        return _NO_NAMES
    if x.names is None:
        own = {x.name} if isinstance(x, Var) else ()
        x.names = _NO_NAMES.union(own, *(variable_names(o) for o in x.operands()))
    return x.names


def coefficient(x: Int, v: Var) -> int | None:
    """The constant step of `x` per step of `v`; 0 when `v` does not occur, None when the step is not constant."""
    terms, _ = _terms(x)
    step = 0
    for atom, c in terms:
        if atom is v:
            step = c
        elif not isinstance(atom, Var) and (atom.computed or v in variables(atom)):
            return None
    return step


def span(x: Int, inner: Set[Var]) -> tuple[Int, int] | None:
    """(first, extent): while `inner` variables run over their ranges, `x` stays in first .. first + extent - 1.

    `first` is free of the inner variables. None when they cannot be taken apart from the others.
    """
    terms, const = _terms(x)
    first: list[tuple[Int, int]] = [(const, 1)]
    lo = hi = 0
    for atom, c in terms:
        used = variables(atom)
        if not isinstance(atom, Opaque) and used.isdisjoint(inner):
            first.append((atom, c))
        elif not atom.computed and used <= inner:
            lo += c * (atom.lo if c > 0 else atom.hi)
            hi += c * (atom.hi if c > 0 else atom.lo)
        else:
            return None
    return _add([*first, (lo, 1)]), hi - lo + 1


@dataclass(frozen=True, slots=True)
class InRange:
    """The condition lo <= value < hi; a missing bound is None."""

    value: Int
    lo: Int | None
    hi: Int | None

    def __repr__(self) -> str:
        left = f"{self.lo!r} <= " if self.lo is not None else ""
        right = f" < {self.hi!r}" if self.hi is not None else ""
        return f"{left}{self.value!r}{right}"


Guard: TypeAlias = tuple[InRange, ...]
"""A conjunction of conditions; () is always true."""

NEVER: Guard = (InRange(0, 1, 1),)
"""The guard that is false."""


def in_range(value: Int, lo: Int | None, hi: Int | None) -> Guard:
    """lo <= value < hi, less what the known ranges already prove; NEVER when they disprove it."""
    if lo is not None:
        gap = value - lo
        if high(gap) < 0:
            return NEVER
        if low(gap) >= 0:
            lo = None
    if hi is not None:
        gap = hi - value
        if high(gap) <= 0:
            return NEVER
        if low(gap) > 0:
            hi = None
    return () if lo is None and hi is None else (InRange(value, lo, hi),)


def both(a: Guard, b: Guard) -> Guard:
    """The conjunction of two guards."""
    if a == NEVER or b == NEVER:
        return NEVER
    return a if not b else (*a, *(c for c in b if c not in a))


def map_guard(g: Guard, f: Callable[[Int], Int]) -> Guard:
    """`g` with every index mapped by `f`, each once and in order; the same object where nothing changed."""
    out: Guard = ()
    changed = False
    for c in g:
        value = f(c.value)
        lo = None if c.lo is None else f(c.lo)
        hi = None if c.hi is None else f(c.hi)
        if value is c.value and lo is c.lo and hi is c.hi:
            out = both(out, (c,))
        else:
            changed = True
            out = both(out, in_range(value, lo, hi))
    return out if changed else g


def rewrite_guard(g: Guard, f: Callable[[Int], Int]) -> Guard:
    """`g` with every index mapped by `f`, simplified again."""
    out: Guard = ()
    for c in g:
        lo = None if c.lo is None else f(c.lo)
        hi = None if c.hi is None else f(c.hi)
        out = both(out, in_range(f(c.value), lo, hi))
    return out


def flatten(indices: Sequence[Int], shape: Sequence[Int]) -> Int:
    """Row-major offset of `indices` in `shape`."""
    sizes = [n for n in shape if isinstance(n, int)]
    if len(sizes) == len(shape):  # one sum, not one per axis
        parts: list[tuple[Int, int]] = []
        step = 1
        for i, n in zip(reversed(indices), reversed(sizes), strict=True):
            parts.append((i, step))
            step *= n
        return _add(parts)
    out: Int = 0
    for i, n in zip(indices, shape, strict=True):
        out = out * n + i
    return out


def unflatten(offset: Int, shape: Sequence[Int]) -> tuple[Int, ...]:
    """The indices whose row-major offset in `shape` is `offset`."""
    out: list[Int] = []
    for n in reversed(shape[1:]):
        out.append(mod(offset, n))
        offset = floordiv(offset, n)
    if shape:
        out.append(offset)
    return tuple(reversed(out))
