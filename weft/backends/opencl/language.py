"""OpenCL C.

A bool is `bool` in a scalar and an `int` of 0 or -1 in each lane of a vector; in memory it is a byte. Conversions to
integers never see values out of range, so they are the plain ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.backends.clike import c_family
from weft.backends.clike.language import Place, Where
from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind
from weft.ir.expr import Scalar
from weft.lazy_dataclass import dataclass

_SCALARS = {
    dtypes.bool_: "bool", dtypes.int8: "char", dtypes.uint8: "uchar", dtypes.int16: "short", dtypes.uint16: "ushort",
    dtypes.int32: "int", dtypes.uint32: "uint", dtypes.int64: "long", dtypes.uint64: "ulong",
    dtypes.float16: "ushort", dtypes.bfloat16: "ushort", dtypes.float32: "float", dtypes.float64: "double",
}  # fmt: skip
_INTEGERS = {8: "char", 16: "short", 32: "int", 64: "long"}
_FUNCTIONS = {"abs": "fabs", "round": "rint"}
_SPACES = {Where.GLOBAL: "__global", Where.LOCAL: "__local", Where.PRIVATE: "__private"}
_DIGITS = "0123456789abcdef"

RESERVED = c_family.words(
    """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool half uchar
    ushort uint ulong size_t true false kernel global local constant private read_only write_only read_write abs acos
    all any as_float as_int as_uint as_long barrier ceil clamp convert cos cross degrees distance dot erf exp exp2
    fabs floor fma fmax fmin fmod fract hypot ldexp length log log2 mad mad24 max min mix mul24 normalize pow pown
    printf prefetch radians rint rotate round rsqrt select shuffle sign sin sinh sqrt step tan tanh trunc vload
    vstore half_exp native_exp block thread I NAN INFINITY M_E M_PI main event_t image2d_t sampler_t complex imaginary
    quad uniform pipe
    """
)


@dataclass(frozen=True, slots=True)
class OpenCL:
    """The language as the renderer asks for it."""

    widths: tuple[int, ...] = (16, 8, 4, 2)
    index_bits: int = 64
    on_cpu: bool = True
    """True where the device is a processor: hints about its caches are given."""

    @property
    def reserved(self) -> frozenset[str]:
        return RESERVED

    @property
    def _index_type(self) -> str:
        return "long" if self.index_bits == 64 else "int"

    def type(self, dtype: DType, lanes: int = 0) -> str:
        scalar = "int" if lanes and dtype is dtypes.bool_ else _SCALARS[dtype]
        return f"{scalar}{lanes or ''}"

    def memory_type(self, dtype: DType) -> str:
        """The type of an element."""
        return "uchar" if dtype is dtypes.bool_ else _SCALARS[dtype]

    def constant(self, dtype: DType, lanes: int, name: str, value: str) -> str:
        return f"const {self.type(dtype, lanes)} {name} = {value};"

    def variable(self, dtype: DType, lanes: int, name: str, value: str) -> str:
        return f"{self.type(dtype, lanes)} {name} = {value};"

    def assign(self, name: str, value: str) -> str:
        return f"{name} = {value};"

    def array(self, place: Place, size: int) -> str:
        return f"{self.memory_type(place.buffer.dtype)} {place.name}[{size}] __attribute__((aligned(64)));"

    def loop(self, name: str, first: str, last: str) -> str:
        return f"for ({self._index_type} {name} = {first}; {name} < {last}; {name}++) {{"

    def branch(self, condition: str) -> str:
        return f"if ({condition}) {{"

    def literal(self, dtype: DType, value: Scalar) -> str:
        if dtype.is_float and dtype.bits > 16 and not -1e999 < float(value) < 1e999:
            bits = c_family.float_bits(float(value), dtype)
            return f"as_float({bits:#010x}u)" if dtype.bits == 32 else f"as_double({bits:#018x}ul)"
        text = c_family.literal(dtype, value, "l")
        return f"({_SCALARS[dtype]}){text}" if dtype.bits < 32 and dtype is not dtypes.bool_ else text

    def broadcast(self, dtype: DType, lanes: int, x: str) -> str:
        return f"({self.type(dtype, lanes)})({self.component(dtype, x)})"

    def vector(self, dtype: DType, parts: Sequence[str]) -> str:
        return f"({self.type(dtype, len(parts))})({', '.join(self.component(dtype, p) for p in parts)})"

    def lane(self, x: str, lane: int) -> str:
        return f"{x}.s{_DIGITS[lane]}"

    def component(self, dtype: DType, x: str) -> str:
        return f"-(int){x}" if dtype is dtypes.bool_ else x

    def halves(self, x: str) -> tuple[str, str]:
        return f"{x}.lo", f"{x}.hi"

    def truth(self, x: str) -> str:
        return f"({x} != 0)"

    def all_lanes(self, x: str) -> str:
        return f"all({x})"

    def any_lane(self, x: str) -> str:
        return f"any({x})"

    def binary(self, symbol: str, dtype: DType, lanes: int, a: str, b: str) -> str:
        if dtype.kind is Kind.INT and symbol in "+-*":  # what overflows wraps in unsigned numbers only
            unsigned = f"u{self.type(dtype, lanes)}"
            return (
                f"as_{self.type(dtype, lanes)}(({unsigned})(as_{unsigned}({a}) {symbol} as_{unsigned}({b})))"
            )
        if dtype is dtypes.bool_ and not lanes:
            return f"({a} {'!=' if symbol == '^' else symbol * 2} {b})"
        if not lanes and dtype.bits < 32:  # which C has made an int
            return f"({self.type(dtype)})({a} {symbol} {b})"
        return f"({a} {symbol} {b})"

    def shift(self, symbol: str, dtype: DType, lanes: int, a: str, amount: str) -> str:
        if dtype.kind is Kind.INT and symbol == "<<":
            t = self.type(dtype, lanes)
            return f"as_{t}((u{t})(as_u{t}({a}) << as_u{t}({amount})))"
        text = f"({a} {symbol} {amount})"
        return f"({self.type(dtype)}){text}" if not lanes and dtype.bits < 32 else text

    def inverted(self, dtype: DType, lanes: int, x: str) -> str:
        if dtype is dtypes.bool_ and not lanes:
            return f"(!{x})"
        return f"({self.type(dtype)})(~{x})" if not lanes and dtype.bits < 32 else f"(~{x})"

    def compare(self, symbol: str, dtype: DType, lanes: int, a: str, b: str) -> str:
        text = f"({a} {symbol} {b})"
        return text if not lanes or dtype.bits == 32 else f"convert_int{lanes}{text}"

    def select(self, dtype: DType, lanes: int, condition: str, a: str, b: str) -> str:
        if not lanes:
            small = dtype.bits < 32 and dtype is not dtypes.bool_  # which C would make an int
            return f"{f'({self.type(dtype)})' if small else ''}({condition} ? {a} : {b})"
        bits = 32 if dtype is dtypes.bool_ else dtype.bits
        if bits != 32:
            condition = f"convert_{_INTEGERS[bits]}{lanes}({condition})"
        return f"({condition} ? {a} : {b})"

    def convert(self, src: DType, dst: DType, lanes: int, x: str) -> str:
        if not lanes:
            return f"({self.type(dst)})({x})"
        if src is dtypes.bool_:
            x = f"({x} & 1)"
        return f"convert_{self.type(dst, lanes)}({x})"

    def rounded(self, dtype: DType, lanes: int, x: str) -> str:
        return x

    def subtrahend(self, dtype: DType, lanes: int, x: str) -> str:
        return x

    def reinterpret(self, src: DType, dst: DType, lanes: int, x: str) -> str:
        t = self.type(dst, lanes)
        return x if t == self.type(src, lanes) else f"as_{t}({x})"

    def function(self, name: str, dtype: DType, lanes: int, args: Sequence[str]) -> str:
        if name == "fmod" and lanes:  # PoCL's on vectors of doubles is wrong where the quotient is large
            each = [f"fmod({', '.join(self.lane(a, k) for a in args)})" for k in range(lanes)]
            return self.vector(dtype, each)
        return f"{_FUNCTIONS.get(name, name)}({', '.join(args)})"

    def load(self, place: Place, offset: str, lanes: int = 0) -> str:
        is_bool = place.buffer.dtype is dtypes.bool_
        if not lanes:
            text = f"{place.name}[{offset}]"
            return f"({text} != 0)" if is_bool else text
        at = f"{place.name} + {_term(offset)}"
        text = f"({self._run(place, lanes, at)})" if self.on_cpu else f"vload{lanes}(0, {at})"
        return f"convert_int{lanes}({text} != (uchar{lanes})(0))" if is_bool else text

    def store(self, place: Place, offset: str, value: str, lanes: int = 0, stream: bool = False) -> str:
        is_bool = place.buffer.dtype is dtypes.bool_
        if not lanes:
            return f"{place.name}[{offset}] = {value};"
        if is_bool:
            value = f"convert_uchar{lanes}({value} & 1)"
        if stream and self.on_cpu and place.where is Where.GLOBAL:
            t = f"{self.memory_type(place.buffer.dtype)}{lanes}"
            return f"WEFT_STREAM({t}, {value}, {place.name} + {_term(offset)});"
        at = f"{place.name} + {_term(offset)}"
        return (
            f"{self._run(place, lanes, at)} = {value};"
            if self.on_cpu
            else f"vstore{lanes}({value}, 0, {at});"
        )

    def _run(self, place: Place, lanes: int, at: str) -> str:
        """Neighbours in memory as one access. PoCL's `vload` and `vstore` are made of pieces, so that a tile written by
        them does not get into registers."""
        const = "const " if place.where is Where.GLOBAL and not place.written else ""
        t = f"{self.memory_type(place.buffer.dtype)}{lanes}"
        return f"(({_SPACES[place.where]} {const}weft_{t}*)({at}))->v"

    def load_some(self, place: Place, offset: str, lanes: int, mask: str) -> str:
        text = f"{self._some('get', place, lanes)}({place.name} + {_term(offset)}, {mask})"
        return (
            f"convert_int{lanes}({text} != (uchar{lanes})(0))" if place.buffer.dtype is dtypes.bool_ else text
        )

    def store_some(self, place: Place, offset: str, value: str, lanes: int, mask: str) -> str:
        if place.buffer.dtype is dtypes.bool_:
            value = f"convert_uchar{lanes}({value} & 1)"
        return f"{self._some('put', place, lanes)}({place.name} + {_term(offset)}, {value}, {mask});"

    def _some(self, what: str, place: Place, lanes: int) -> str:
        return f"weft_{what}_{place.where.value}_{self.memory_type(place.buffer.dtype)}{lanes}"

    def choose(self, condition: str, a: str, b: str) -> str:
        return f"({condition} ? {a} : {b})"

    def prefetch(self, place: Place, offset: str) -> str:
        if not self.on_cpu or place.where is not Where.GLOBAL:
            return ""
        return f"WEFT_PREFETCH({place.name} + {_term(offset)});"

    def index(self, x: str, dtype: DType) -> str:
        return f"({self._index_type}){x}"

    def from_index(self, x: str, dtype: DType) -> str:
        return f"({self.type(dtype)}){x}"

    def helpers(self, used: frozenset[str]) -> str:
        return c_family.index_helpers(used, self._index_type)

    def runs(self, text: str) -> str:
        """The types that `text` accesses neighbours by."""
        names = sorted({*re.findall(r"weft_([a-z]+\d+)\*", text)})
        types = [f"typedef struct __attribute__((packed)) {{ {t} v; }} weft_{t};\n" for t in names]
        return "".join([*types, *_masked(text)])

    def parameter(self, place: Place) -> str:
        """A parameter of a kernel."""
        const = "" if place.written else "const "
        return f"{_SPACES[place.where]} {const}{self.memory_type(place.buffer.dtype)}* {place.name}"


def _masked(text: str) -> list[str]:
    """Functions that read or write some of several neighbours: loops, which compile faster than a branch per lane."""
    out: list[str] = []
    for what, space, scalar, lanes in sorted(set(re.findall(r"weft_(get|put)_([a-z]+)_([a-z]+)(\d+)", text))):
        head, t = f"weft_{what}_{space}_{scalar}{lanes}", f"{scalar}{lanes}"
        mask = f"int m[{lanes}]; vstore{lanes}(mask, 0, m); {scalar} v[{lanes}];"
        loop = f'_Pragma("nounroll") for (int i = 0; i < {lanes}; i++)'
        if what == "get":
            out.append(
                f"static inline {t} {head}(const __{space} {scalar}* at, int{lanes} mask) {{ {mask} "
                f"{loop} v[i] = m[i] ? at[i] : 0; return vload{lanes}(0, v); }}\n"
            )
        else:
            out.append(
                f"static inline void {head}(__{space} {scalar}* at, {t} value, int{lanes} mask) {{ {mask} "
                f"vstore{lanes}(value, 0, v); {loop} if (m[i]) at[i] = v[i]; }}\n"
            )
    return out


def _term(offset: str) -> str:
    return offset if offset.isidentifier() or offset.isdigit() else f"({offset})"
