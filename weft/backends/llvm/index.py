"""Index expressions -> i64 instructions, and the shape of their change from lane to lane.

An index becomes `const + sum of factor * term + (a part that differs between lanes)`. The shared part is computed
outside of all loops that it does not depend on, once per distinct sum; constants stay apart, so that unrolled accesses
share one address and differ in the displacement.
"""

from __future__ import annotations

from functools import lru_cache
from operator import add
from typing import NamedTuple

from weft.backends.llvm.convert import splat
from weft.backends.llvm.frame import Condition, Frame, Lanes, Term
from weft.backends.llvm.types import constant_mask, constant_vector, register_type, vector
from weft.ir.dtypes import Kind
from weft.ir.index import (
    FloorDiv,
    Guard,
    Index,
    Int,
    Max,
    Min,
    Mod,
    Opaque,
    Product,
    Sum,
    Var,
    atoms,
    bounds,
    evaluate,
    rewrite_guard,
    substitute,
    variables,
)


class Affine(NamedTuple):
    """const + sum of factor * term, plus in lane l: steps[l] + sum of factor * varying[l]. steps[0] is 0; there are no
    steps when they are alike in all lanes.
    """

    const: int
    terms: tuple[tuple[Term, int], ...] = ()
    steps: tuple[int, ...] = ()
    varying: tuple[tuple[Lanes, int], ...] = ()

    @property
    def uniform(self) -> bool:
        """True where all lanes share the value."""
        return not self.steps and not self.varying

    @property
    def stride(self) -> int | None:
        """The step from each lane to the next; None when it is not constant."""
        return None if self.varying else _stride(self.steps)


class Mask(NamedTuple):
    """Lanes for which a condition holds, and the number of the innermost scope that it is known in."""

    name: str
    level: int


def _stride(steps: tuple[int, ...]) -> int | None:
    if not steps:
        return 0
    step = steps[1] if len(steps) > 1 else 1
    return step if steps == _ramp(step, len(steps)) else None


@lru_cache(1024)
def _ramp(step: int, lanes: int) -> tuple[int, ...]:
    """The offsets of the lanes: a step for each, from 0."""
    return tuple([step * k for k in range(lanes)])


def affine(frame: Frame, x: Int) -> Affine:
    """`x` taken apart; the instructions that its terms need are appended."""
    if isinstance(x, int):
        return Affine(x)
    parts, const = (x.terms, x.const) if isinstance(x, Sum) else (((x, 1),), 0)
    if frame.consts:
        for atom, _ in parts:
            if not isinstance(atom, Var) and not variables(atom).isdisjoint(frame.consts):
                return affine(frame, substitute(x, frame.consts))
    terms: list[tuple[Term, int]] = []
    steps: tuple[int, ...] = ()
    varying: list[tuple[Lanes, int]] = []
    lane, bindings = frame.lane, frame.bindings
    for atom, c in parts:
        if atom is lane:
            const += c * frame.now.start
            own = _ramp(c, frame.now.lanes)
            steps = tuple(map(add, steps, own)) if steps else own
            continue
        if isinstance(atom, Var):
            got = bindings.get(atom.name)
            if got is None:
                got = frame.binding(atom.name)
        else:
            got = _atom(frame, atom)
        if isinstance(got, int):
            const += c * got
        elif isinstance(got, Term):
            terms.append((got, c))
        elif isinstance(got, Lanes):
            varying.append((got, c))
        else:
            const += c * got[0]
            own = tuple([c * (s - got[0]) for s in got]) if got[0] or c != 1 else got
            steps = tuple(map(add, steps, own)) if steps else own
    if len(terms) > 1:
        sums: dict[Term, int] = {}
        for t, c in terms:
            sums[t] = sums.get(t, 0) + c
        terms = sorted(((t, c) for t, c in sums.items() if c), key=_level)
    if len(steps) > 1 and not any(steps):
        steps = ()
    return Affine(const, tuple(terms), steps, tuple(varying))


def _level(term: tuple[Term, int]) -> int:
    return term[0].level


def _atom(frame: Frame, x: Index) -> int | Term | Lanes | tuple[int, ...]:
    """The value of a part that is no plain variable: a constant, shared, a vector, or a constant per lane."""
    if isinstance(x, Opaque):
        return _opaque(frame, x)
    return _in_lanes(frame, x) if _varies(frame, x) else _compound(frame, x)


def _varies(frame: Frame, x: Index) -> bool:
    if frame.lane is None:
        return False
    return any(a == frame.lane or (isinstance(a, Opaque) and frame.now.memo[a.value].lanes) for a in atoms(x))


def _opaque(frame: Frame, x: Opaque) -> int | Term | Lanes:
    ref, lanes = frame.now.memo[x.value]
    dtype = x.value.dtype
    signed = dtype.kind is Kind.INT
    if not ref.startswith("%"):
        return int(ref) if ref not in ("true", "false") else int(ref == "true")
    src = register_type(dtype, lanes)
    if lanes:
        bits = 64 if x.hi >= 1 << 31 or x.lo < -(1 << 31) else 32
        return Lanes(_resize(frame, src, ref, dtype.bits, bits, lanes, signed), bits, x.lo, x.hi, frame.level)
    return Term(_resize(frame, src, ref, dtype.bits, 64, 0, signed), frame.level)


def _resize(frame: Frame, src: str, ref: str, have: int, want: int, lanes: int, signed: bool) -> str:
    if have == want:
        return ref
    how = "trunc" if have > want else "sext" if signed else "zext"
    return frame.f.emit(f"{how} {src} {ref} to {vector(f'i{want}', lanes)}")


def shared(frame: Frame, a: Affine, const: bool = True) -> Term | int:
    """The part of `a` that lanes share, as one i64; without its constant if asked."""
    if not a.terms:
        return a.const if const else 0
    total = frame.shared.get(a.terms)
    if total is None:
        for term, c in a.terms:
            part = frame.multiple(term, c)
            if total is None:
                total = part
            else:
                total = frame.derived(f"add nsw i64 {total.name}, {part.name}", total, part)
        assert total is not None
        frame.remember(frame.shared, a.terms, total, total.level)
    if const and a.const:
        total = frame.share(total.level, f"add nsw i64 {total.name}, {a.const}")
    return total


def ref(x: Term | int) -> str:
    """A value as an operand."""
    return str(x) if isinstance(x, int) else x.name


def uniform(frame: Frame, x: Int) -> Term | int:
    """`x`, which all lanes must share. Raises ValueError when they do not."""
    a = affine(frame, x)
    if not a.uniform:
        raise ValueError(f"{x!r} differs between lanes")
    return shared(frame, a)


def _compound(frame: Frame, x: Index) -> Term | int:
    """A part that is no plain variable, shared by all lanes."""
    values = [uniform(frame, o) for o in x.operands()]
    if all(isinstance(v, int) for v in values):
        known = [v for v in values if isinstance(v, int)]
        new = x.rebuild(known)
        assert isinstance(new, int)
        return new
    first, *others = values

    def do(how: str, *operands: Term | int) -> Term:
        return frame.derived(f"{how} {', '.join(map(ref, operands))}", *operands)

    match x:
        case Product():
            total = do("mul nsw i64", first, others[0])
            for other in others[1:]:
                total = do("mul nsw i64", total, other)
            return total
        case FloorDiv() | Mod():
            whole = isinstance(x, FloorDiv)
            n, d = first, others[0]
            if bounds(x.num)[0] >= 0:
                return do(f"{'udiv' if whole else 'urem'} i64", n, d)
            rest = do("srem i64", n, d)
            negative = do("icmp slt i64", rest, 0)
            if whole:
                down = frame.derived(f"sext i1 {negative.name} to i64", negative)
                return do("add i64", do("sdiv i64", n, d), down)
            more = frame.derived(f"select i1 {negative.name}, i64 {ref(d)}, i64 0", negative, d)
            return do("add i64", rest, more)
        case Min() | Max():
            less = do(f"icmp {'slt' if isinstance(x, Min) else 'sgt'} i64", first, others[0])
            chosen = f"select i1 {less.name}, i64 {ref(first)}, i64 {ref(others[0])}"
            return frame.derived(chosen, less, first, others[0])
        case _:
            raise TypeError(f"not an index: {x!r}")


def _in_lanes(frame: Frame, x: Index) -> Lanes | tuple[int, ...]:
    """A part that is no plain variable, and differs between lanes."""
    lane = frame.lane
    assert lane is not None
    inside = list(atoms(x))
    if all(a == lane for a in inside if isinstance(a, Var)) and not any(
        isinstance(a, Opaque) for a in inside
    ):
        start = frame.now.start
        return tuple([int(evaluate(x, {lane.name: k})) for k in range(start, start + frame.now.lanes)])
    spans = [bounds(o) for o in (x, *x.operands())]
    bits = 32 if all(lo >= -(1 << 31) and hi < 1 << 31 for lo, hi in spans) else 64
    operands = [materialize(frame, affine(frame, o), bits) for o in x.operands()]
    t = vector(f"i{bits}", frame.now.lanes)

    def do(how: str, a: Term, b: Term) -> Term:
        return frame.derived(f"{how} {t} {a.name}, {b.name}", a, b)

    match x:
        case Product():
            total = operands[0]
            for other in operands[1:]:
                total = do("mul", total, other)
        case FloorDiv() | Mod():
            n, d = operands
            if bounds(x.num)[0] >= 0:
                total = do("udiv" if isinstance(x, FloorDiv) else "urem", n, d)
            else:
                rest = do("srem", n, d)
                mask = vector("i1", frame.now.lanes)
                negative = frame.derived(f"icmp slt {t} {rest.name}, zeroinitializer", rest)
                if isinstance(x, FloorDiv):
                    one = frame.derived(f"sext {mask} {negative.name} to {t}", negative)
                    total = do("add", do("sdiv", n, d), one)
                else:
                    chosen = f"select {mask} {negative.name}, {t} {d.name}, {t} zeroinitializer"
                    total = do("add", rest, frame.derived(chosen, negative, d))
        case Min() | Max():
            name = f"llvm.{'smin' if isinstance(x, Min) else 'smax'}.v{frame.now.lanes}i{bits}"
            frame.f.module.declare(name, t, f"{t}, {t}")
            a, b = operands
            total = frame.derived(f"call {t} @{name}({t} {a.name}, {t} {b.name})", a, b)
        case _:
            raise TypeError(f"not an index: {x!r}")
    return Lanes(total.name, bits, x.lo, x.hi, total.level)


def lane_part(frame: Frame, a: Affine, bits: int) -> Term | None:
    """The amounts that `a` adds per lane, as a vector; None when nothing."""
    t = vector(f"i{bits}", frame.now.lanes)
    total = Term(constant_vector(f"i{bits}", list(a.steps)), 0) if a.steps else None
    for v, c in a.varying:
        part = Term(v.name, v.level)
        if v.bits != bits:
            source = vector(f"i{v.bits}", frame.now.lanes)
            part = frame.share(v.level, f"{'trunc' if v.bits > bits else 'sext'} {source} {part.name} to {t}")
        if c != 1:
            factor = splat(f"i{bits}", _wrap(c, bits), frame.now.lanes)
            part = frame.share(part.level, f"mul {t} {part.name}, {factor}")
        total = part if total is None else _added(frame, t, total, part)
    return total


def _added(frame: Frame, t: str, a: Term, b: Term) -> Term:
    return frame.derived(f"add {t} {a.name}, {b.name}", a, b)


def lane_bounds(a: Affine) -> tuple[int, int]:
    """Inclusive bounds of what `a` adds per lane."""
    lo, hi = (min(a.steps), max(a.steps)) if a.steps else (0, 0)
    for v, c in a.varying:
        lo += min(c * v.lo, c * v.hi)
        hi += max(c * v.lo, c * v.hi)
    return lo, hi


def materialize(frame: Frame, a: Affine, bits: int) -> Term:
    """`a` as a vector of `bits`, modulo 2**bits."""
    t = f"i{bits}"
    base = shared(frame, a)
    own = lane_part(frame, a, bits)
    if own is not None and base == 0:
        return own
    if isinstance(base, int):
        every = Term(f"splat ({t} {_wrap(base, bits)})", 0)
    else:
        every = frame.share(base.level, f"trunc i64 {base.name} to {t}") if bits != 64 else base
        many = vector(t, frame.now.lanes)
        first = frame.share(every.level, f"insertelement {many} poison, {t} {every.name}, i64 0")
        zeros = f"<{frame.now.lanes} x i32> zeroinitializer"
        every = frame.share(first.level, f"shufflevector {many} {first.name}, {many} poison, {zeros}")
    return every if own is None else _added(frame, vector(t, frame.now.lanes), every, own)


def _wrap(value: int, bits: int) -> int:
    """`value` modulo 2**bits, as a signed number."""
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def condition(frame: Frame, guard: Guard) -> Condition:
    """The guard's truth in registers."""
    if not guard:
        return Condition()
    key = frame.context(guard)
    found = frame.conditions.get(key)
    if found is None:
        found = _condition(frame, guard)
        frame.remember(frame.conditions, key, found)
    return found


def _condition(frame: Frame, guard: Guard) -> Condition:
    if frame.consts:
        guard = rewrite_guard(guard, lambda i: substitute(i, frame.consts))
    alike: list[Term] = []
    masks: list[Mask] = []
    for c in guard:
        sides = [] if c.lo is None else [(c.value - c.lo, False)]
        if c.hi is not None:
            sides.append((c.value - c.hi, True))
        for x, negative in sides:
            got = _sign(frame, x, negative)
            if got is False:
                return Condition(never=True)
            if isinstance(got, Term):
                alike.append(got)
            elif isinstance(got, Mask):
                masks.append(got)
    both: Term | None = None
    for term in sorted(alike, key=lambda t: t.level):
        if both is None:
            both = term
        else:
            both = frame.derived(f"and i1 {both.name}, {term.name}", both, term)
    mask: Mask | None = None
    for m in sorted(masks, key=lambda m: m.level):
        mask = m if mask is None else _both(frame, mask, m)
    known = constant_mask(mask.name) if mask else None
    if known is not None and not any(known):
        return Condition(never=True)
    return Condition(both.name if both else None, mask.name if mask else None)


def _both(frame: Frame, a: Mask, b: Mask) -> Mask:
    if constant_mask(a.name) is not None and constant_mask(b.name) is not None:
        return Mask(frame.both_masks(a.name, b.name) or a.name, 0)
    made = frame.share(max(a.level, b.level), f"and {vector('i1', frame.now.lanes)} {a.name}, {b.name}")
    return Mask(made.name, made.level)


def _sign(frame: Frame, x: Int, negative: bool) -> bool | Term | Mask:
    """x < 0 if `negative` else x >= 0: known, shared by all lanes (a Term of type i1), or a mask."""
    how = "slt" if negative else "sge"
    if isinstance(x, int):
        return (x < 0) is negative
    a = affine(frame, x)
    if a.uniform:
        value = shared(frame, a, const=False)
        if isinstance(value, int):
            return (a.const < 0) is negative
        return frame.share(value.level, f"icmp {how} i64 {value.name}, {-a.const}")
    lo, hi = lane_bounds(a)
    if not a.terms and (a.const + lo >= 0 or a.const + hi < 0):
        return (a.const + lo < 0) is negative
    if not a.terms and not a.varying:
        return Mask("<" + ", ".join(f"i1 {int((a.const + s < 0) is negative)}" for s in a.steps) + ">", 0)
    # the lanes' own part against minus the shared part
    need_lo, need_hi = lo - x.hi, hi - x.lo
    bits = 32 if min(lo, need_lo) >= -(1 << 31) and max(hi, need_hi) < 1 << 31 else 64
    own = lane_part(frame, a, bits)
    assert own is not None
    need = materialize(frame, Affine(-a.const, tuple((term, -c) for term, c in a.terms)), bits)
    t = vector(f"i{bits}", frame.now.lanes)
    made = frame.derived(f"icmp {how} {t} {own.name}, {need.name}", own, need)
    return Mask(made.name, made.level)
