"""One table: elementwise op -> the instructions that compute it. The meaning of each is stated in `weft.ir.ops`."""
# Tests: tests/backends/cpu/test_ops.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.backends.llvm.convert import cast, splat
from weft.backends.llvm.remainder import remainder
from weft.backends.llvm.types import register_type, suffix, vector
from weft.backends.llvm.writer import Function
from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Site:
    """The site of an op: the function, the dtype of its operands and its lanes."""

    f: Function
    dtype: DType
    lanes: int

    @property
    def scalar(self) -> str:
        return register_type(self.dtype)

    @property
    def type(self) -> str:
        return register_type(self.dtype, self.lanes)

    @property
    def bools(self) -> str:
        return vector("i1", self.lanes)

    def int(self, value: int) -> str:
        """An integer constant of this site's type."""
        return splat(self.scalar, value, self.lanes)

    def one_of(self, condition: str, a: str, b: str) -> str:
        """a where condition else b."""
        return self.f.emit(f"select {self.bools} {condition}, {self.type} {a}, {self.type} {b}")

    def intrinsic(self, name: str, args: Sequence[str], flags: str = "") -> str:
        """Call `llvm.name` on operands of this type."""
        full = f"llvm.{name}.{suffix(self.scalar, self.lanes)}"
        if not flags:
            return self.f.call(full, self.type, [(self.type, a) for a in args])
        self.f.module.declare(full, self.type, ", ".join([self.type] * len(args)))
        return self.f.emit(f"call {flags} {self.type} @{full}({', '.join(f'{self.type} {a}' for a in args)})")


RenderRule: TypeAlias = Callable[[Site, Sequence[str]], str]


def _plain(floats: str | None, signed: str | None, unsigned: str | None, bools: str | None) -> RenderRule:
    """One instruction, chosen by the operands' kind."""
    names = {Kind.FLOAT: floats, Kind.INT: signed, Kind.UINT: unsigned, Kind.BOOL: bools}

    def rule(s: Site, args: Sequence[str]) -> str:
        name = names[s.dtype.kind]
        if name is None:
            raise ValueError(f"op not defined on {s.dtype.name}")
        return s.f.emit(f"{name} {s.type} {', '.join(args)}")

    return rule


def _rounding(name: str) -> RenderRule:
    """A rounding to integral values; integers are already."""
    return lambda s, args: s.intrinsic(name, args) if s.dtype.is_float else args[0]


def _neg(s: Site, args: Sequence[str]) -> str:
    if s.dtype.is_float:
        return s.f.emit(f"fneg {s.type} {args[0]}")
    return s.f.emit(f"sub {s.type} {s.int(0)}, {args[0]}")


def _abs(s: Site, args: Sequence[str]) -> str:
    match s.dtype.kind:
        case Kind.FLOAT:
            return s.intrinsic("fabs", args)
        case Kind.INT:
            name = f"llvm.abs.{suffix(s.scalar, s.lanes)}"
            return s.f.call(name, s.type, [(s.type, args[0]), ("i1", "false")])
        case _:
            return args[0]


def _recip(s: Site, args: Sequence[str]) -> str:
    one = f"splat ({s.scalar} 1.0)" if s.lanes else "1.0"
    return s.f.emit(f"fdiv {s.type} {one}, {args[0]}")


def _not(s: Site, args: Sequence[str]) -> str:
    ones = s.int(-1) if s.dtype is not dtypes.bool_ else ("splat (i1 true)" if s.lanes else "true")
    return s.f.emit(f"xor {s.type} {args[0]}, {ones}")


def _extremum(name: str, compare: str) -> RenderRule:
    """MAX or MIN. On floats the zeros are equal and a NaN wins."""

    def rule(s: Site, args: Sequence[str]) -> str:
        a, b = args
        match s.dtype.kind:
            case Kind.FLOAT:
                if s.f.module.extrema and s.dtype is dtypes.float32:
                    return s.intrinsic(f"{name}imum", args, "nsz")
                if _constant(a):
                    a, b = b, a
                if _constant(b) and not _nan(b):
                    # false for a NaN in `a`, which is then chosen
                    wins = s.f.emit(f"fcmp {compare} {s.type} {b}, {a}")
                    return s.one_of(wins, b, a)
                if not s.f.module.gpu:
                    return s.intrinsic(f"{name}imum", args, "nsz")
                larger = s.one_of(s.f.emit(f"fcmp {compare} {s.type} {a}, {b}"), a, b)
                return s.one_of(s.f.emit(f"fcmp uno {s.type} {a}, {a}"), a, larger)
            case Kind.INT:
                return s.intrinsic(f"s{name}", args)
            case Kind.UINT:
                return s.intrinsic(f"u{name}", args)
            case Kind.BOOL:
                return s.f.emit(f"{'or' if name == 'max' else 'and'} {s.type} {a}, {b}")

    return rule


def _constant(ref: str) -> bool:
    return not ref.startswith(("%", "<"))


def _nan(ref: str) -> bool:
    """True where a float literal ("0x7FF8...", perhaps in a splat) is a NaN."""
    word = int(ref.rstrip(")")[-16:], 16)
    return (word >> 52) & 0x7FF == 0x7FF and word & ((1 << 52) - 1) != 0


def _compare(floats: str, signed: str, unsigned: str) -> RenderRule:
    def rule(s: Site, args: Sequence[str]) -> str:
        match s.dtype.kind:
            case Kind.FLOAT:
                how = f"fcmp {floats}"
            case Kind.INT:
                how = f"icmp {signed}"
            case _:
                how = f"icmp {unsigned}"
        return s.f.emit(f"{how} {s.type} {args[0]}, {args[1]}")

    return rule


def _literal_int(ref: str) -> int | None:
    """The value of an integer literal, perhaps in a splat."""
    if not _constant(ref):
        return None
    return int(ref.rstrip(")").split(" ")[-1])


def _divisor(s: Site, b: str) -> tuple[str, str | None, str | None]:
    """A divisor that cannot trap, and where the real one is 0 and -1 (None: nowhere)."""
    known = _literal_int(b)
    if known is not None and known not in (0, -1):
        return b, None, None
    zero = s.f.emit(f"icmp eq {s.type} {b}, {s.int(0)}")
    bad, minus = zero, None
    if s.dtype.kind is Kind.INT:
        minus = s.f.emit(f"icmp eq {s.type} {b}, {s.int(-1)}")
        bad = s.f.emit(f"or {s.bools} {zero}, {minus}")
    return s.one_of(bad, s.int(1), b), zero, minus


def _quotient(s: Site, a: str, b: str) -> str:
    """a / b toward zero, b safe. Vectors of up to 32 bits go through a float that is wide enough to be exact."""
    signed = s.dtype.kind is Kind.INT
    if not s.lanes or s.dtype.bits > 32 or _literal_int(b) is not None:
        return s.f.emit(f"{'sdiv' if signed else 'udiv'} {s.type} {a}, {b}")
    real = vector("double" if s.dtype.bits == 32 else "float", s.lanes)
    to, back = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    x, y = (s.f.emit(f"{to} {s.type} {v} to {real}") for v in (a, b))
    return s.f.emit(f"{back} {real} {s.f.emit(f'fdiv {real} {x}, {y}')} to {s.type}")


def _remainder(s: Site, a: str, b: str, q: str) -> str:
    return s.f.emit(f"sub {s.type} {a}, {s.f.emit(f'mul {s.type} {q}, {b}')}")


def _off_by_one(s: Site, rest: str, b: str) -> str:
    """True where the remainder is not 0 and has not the divisor's sign."""
    uneven = s.f.emit(f"icmp ne {s.type} {rest}, {s.int(0)}")
    opposite = s.f.emit(f"icmp slt {s.type} {s.f.emit(f'xor {s.type} {rest}, {b}')}, {s.int(0)}")
    return s.f.emit(f"and {s.bools} {uneven}, {opposite}")


def _floordiv(s: Site, args: Sequence[str]) -> str:
    a, b = args
    safe, zero, minus = _divisor(s, b)
    q = _quotient(s, a, safe)
    if s.dtype.kind is Kind.INT:
        off = _off_by_one(s, _remainder(s, a, safe, q), safe)
        q = s.f.emit(f"add {s.type} {q}, {s.f.emit(f'sext {s.bools} {off} to {s.type}')}")
    if minus is not None:
        q = s.one_of(minus, s.f.emit(f"sub {s.type} {s.int(0)}, {a}"), q)
    return s.one_of(zero, s.int(0), q) if zero is not None else q


def _mod(s: Site, args: Sequence[str]) -> str:
    a, b = args
    if s.dtype.is_float:
        return remainder(s.f, s.dtype, s.lanes, a, b)
    # for a divisor of 0 or -1 the remainder by 1 is what is wanted: 0
    safe, _, _ = _divisor(s, b)
    rest = _remainder(s, a, safe, _quotient(s, a, safe))
    if s.dtype.kind is Kind.INT:
        off = _off_by_one(s, rest, safe)
        rest = s.f.emit(f"add {s.type} {rest}, {s.one_of(off, safe, s.int(0))}")
    return rest


def _shift(left: bool) -> RenderRule:
    def rule(s: Site, args: Sequence[str]) -> str:
        a, b = args
        arithmetic = not left and s.dtype.kind is Kind.INT
        fits = s.f.emit(f"icmp ult {s.type} {b}, {s.int(s.dtype.bits)}")
        if s.f.module.gpu and s.dtype.bits == 64:
            # not chosen by `fits`: NVPTX makes one instruction of both choices, which reads 32 bits of the amount
            amount = s.intrinsic("umin", (b, s.int(63)))
        else:
            amount = s.one_of(fits, b, s.int(s.dtype.bits - 1 if arithmetic else 0))
        name = "shl" if left else "ashr" if arithmetic else "lshr"
        moved = s.f.emit(f"{name} {s.type} {a}, {amount}")
        return moved if arithmetic else s.one_of(fits, moved, s.int(0))

    return rule


RULES: dict[Op, RenderRule] = {
    Op.NEG: _neg,
    Op.ABS: _abs,
    Op.RECIP: _recip,
    Op.SQRT: lambda s, args: s.intrinsic("sqrt", args),
    Op.FLOOR: _rounding("floor"),
    Op.CEIL: _rounding("ceil"),
    Op.TRUNC: _rounding("trunc"),
    Op.ROUND: _rounding("roundeven"),
    Op.NOT: _not,
    Op.ADD: _plain("fadd", "add", "add", "or"),
    Op.SUB: _plain("fsub", "sub", "sub", "xor"),
    Op.MUL: _plain("fmul", "mul", "mul", "and"),
    Op.DIV: _plain("fdiv", None, None, None),
    Op.FLOORDIV: _floordiv,
    Op.MOD: _mod,
    Op.MAX: _extremum("max", "ogt"),
    Op.MIN: _extremum("min", "olt"),
    Op.LT: _compare("olt", "slt", "ult"),
    Op.LE: _compare("ole", "sle", "ule"),
    Op.EQ: _compare("oeq", "eq", "eq"),
    Op.NE: _compare("une", "ne", "ne"),
    Op.AND: _plain(None, "and", "and", "and"),
    Op.OR: _plain(None, "or", "or", "or"),
    Op.XOR: _plain(None, "xor", "xor", "xor"),
    Op.SHL: _shift(left=True),
    Op.SHR: _shift(left=False),
    Op.FMA: lambda s, args: s.intrinsic("fma", args),
}
"""Rules over operands of one dtype. CAST, BITCAST and WHERE, which are not, stand in `render`."""

NATIVE: frozenset[Op] = frozenset(RULES) | {Op.CAST, Op.BITCAST, Op.WHERE}
"""The ops that need no expansion before rendering."""


def render(f: Function, op: Op, src: Sequence[DType], dst: DType, lanes: int, args: Sequence[str]) -> str:
    """Append the instructions of `op` on operands of dtypes `src`, each of `lanes`; the result, of dtype `dst`.

    Raises ValueError for an op without a rule.
    """
    match op:
        case Op.CAST:
            return cast(f, src[0], dst, lanes, args[0])
        case Op.BITCAST:
            if dtypes.bool_ in (src[0], dst):
                return cast(f, dtypes.uint8 if src[0].bits == 8 else src[0], dst, lanes, args[0])
            a, b = register_type(src[0], lanes), register_type(dst, lanes)
            return args[0] if a == b else f.emit(f"bitcast {a} {args[0]} to {b}")
        case Op.WHERE:
            t = register_type(dst, lanes)
            return f.emit(f"select {vector('i1', lanes)} {args[0]}, {t} {args[1]}, {t} {args[2]}")
        case _:
            rule = RULES.get(op)
            if rule is None:
                raise ValueError(f"{op.symbol} must be expanded before it is rendered")
            return rule(Site(f, src[0], lanes), args)
