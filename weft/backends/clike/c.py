"""C99, without vectors: a vector loop becomes a loop over its lanes for each statement, which compilers vectorize.

Compile with `-ffp-contract=off -fno-strict-aliasing`, and link the mathematical library. The text needs `HEADER`
before it.
"""
# Tests: tests/examples/test_backend_c.py

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.clike import c_family
from weft.backends.clike.language import Place
from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind
from weft.ir.expr import Scalar
from weft.lazy_dataclass import dataclass

HEADER = """#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
"""

_TYPES = {
    dtypes.bool_: "bool", dtypes.int8: "int8_t", dtypes.uint8: "uint8_t", dtypes.int16: "int16_t",
    dtypes.uint16: "uint16_t", dtypes.int32: "int32_t", dtypes.uint32: "uint32_t", dtypes.int64: "int64_t",
    dtypes.uint64: "uint64_t", dtypes.float16: "uint16_t", dtypes.bfloat16: "uint16_t", dtypes.float32: "float",
    dtypes.float64: "double",
}  # fmt: skip
_FUNCTIONS = {"abs": "fabs", "round": "nearbyint"}

RESERVED = c_family.words(
    """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false
    acos asin atan atan2 ceil cos cosh erf exp exp2 fabs floor fma fmax fmin fmod fdim hypot j0 j1 jn ldexp lgamma log
    log2 logb main memcpy memset modf nan pow remainder rint round sin sinh sqrt tan tanh tgamma trunc y0 y1 yn gamma
    index abs div abort exit free malloc
    """
)


@dataclass(frozen=True, slots=True)
class C:
    """The language as the renderer asks for it. Vectors it has none, so nothing about them is ever asked."""

    @property
    def widths(self) -> tuple[int, ...]:
        return ()

    @property
    def reserved(self) -> frozenset[str]:
        return RESERVED

    @property
    def index_bits(self) -> int:
        return 64

    def type(self, dtype: DType, lanes: int = 0) -> str:
        return _TYPES[dtype]

    def memory_type(self, dtype: DType) -> str:
        """The type of an element."""
        return "uint8_t" if dtype is dtypes.bool_ else _TYPES[dtype]

    def constant(self, dtype: DType, lanes: int, name: str, value: str) -> str:
        return f"const {_TYPES[dtype]} {name} = {value};"

    def variable(self, dtype: DType, lanes: int, name: str, value: str) -> str:
        return f"{_TYPES[dtype]} {name} = {value};"

    def assign(self, name: str, value: str) -> str:
        return f"{name} = {value};"

    def array(self, place: Place, size: int) -> str:
        return f"{self.memory_type(place.buffer.dtype)} {place.name}[{size}];"

    def loop(self, name: str, first: str, last: str) -> str:
        return f"for (int64_t {name} = {first}; {name} < {last}; {name}++) {{"

    def branch(self, condition: str) -> str:
        return f"if ({condition}) {{"

    def literal(self, dtype: DType, value: Scalar) -> str:
        if dtype.is_float and dtype.bits > 16 and not -1e999 < float(value) < 1e999:
            suffix = "f" if dtype.bits == 32 else ""
            if float(value) != float(value):
                return "NAN" if suffix else "((double)NAN)"
            return f"({'-' if float(value) < 0 else ''}HUGE_VAL{suffix.upper()})"
        text = c_family.literal(dtype, value, "ll")
        return f"({_TYPES[dtype]}){text}" if dtype.bits < 32 and dtype is not dtypes.bool_ else text

    def binary(self, symbol: str, dtype: DType, lanes: int, a: str, b: str) -> str:
        if dtype is dtypes.bool_:
            return f"({a} {'!=' if symbol == '^' else symbol * 2} {b})"
        if (
            dtype.is_int and symbol in "+-*"
        ):  # what overflows wraps in unsigned numbers of 32 bits or more only
            wide = "uint64_t" if dtype.bits == 64 else "uint32_t"
            return f"({_TYPES[dtype]})(({wide}){a} {symbol} ({wide}){b})"
        text = f"({a} {symbol} {b})"
        return f"({_TYPES[dtype]}){text}" if dtype.bits < 32 else text

    def shift(self, symbol: str, dtype: DType, lanes: int, a: str, amount: str) -> str:
        if symbol == "<<" and dtype.kind is Kind.INT:
            a = f"(uint{max(dtype.bits, 32)}_t){a}"
        return f"({_TYPES[dtype]})({a} {symbol} {amount})"

    def inverted(self, dtype: DType, lanes: int, x: str) -> str:
        return f"(!{x})" if dtype is dtypes.bool_ else f"({_TYPES[dtype]})(~{x})"

    def compare(self, symbol: str, dtype: DType, lanes: int, a: str, b: str) -> str:
        return f"({a} {symbol} {b})"

    def select(self, dtype: DType, lanes: int, condition: str, a: str, b: str) -> str:
        return f"({condition} ? {a} : {b})"

    def convert(self, src: DType, dst: DType, lanes: int, x: str) -> str:
        return f"({_TYPES[dst]})({x})"

    def rounded(self, dtype: DType, lanes: int, x: str) -> str:
        return x

    def subtrahend(self, dtype: DType, lanes: int, x: str) -> str:
        return x

    def reinterpret(self, src: DType, dst: DType, lanes: int, x: str) -> str:
        a, b = _TYPES[src], _TYPES[dst]
        return x if a == b else f"(((union {{ {a} from; {b} to; }}){{ .from = {x} }}).to)"

    def function(self, name: str, dtype: DType, lanes: int, args: Sequence[str]) -> str:
        suffix = "f" if dtype.bits == 32 else ""
        return f"{_FUNCTIONS.get(name, name)}{suffix}({', '.join(args)})"

    def load(self, place: Place, offset: str, lanes: int = 0) -> str:
        text = f"{place.name}[{offset}]"
        return f"({text} != 0)" if place.buffer.dtype is dtypes.bool_ else text

    def store(self, place: Place, offset: str, value: str, lanes: int = 0, stream: bool = False) -> str:
        return f"{place.name}[{offset}] = {value};"

    def choose(self, condition: str, a: str, b: str) -> str:
        return f"({condition} ? {a} : {b})"

    def prefetch(self, place: Place, offset: str) -> str:
        return ""

    def index(self, x: str, dtype: DType) -> str:
        return f"(int64_t){x}"

    def from_index(self, x: str, dtype: DType) -> str:
        return f"({_TYPES[dtype]}){x}"

    def helpers(self, used: frozenset[str]) -> str:
        return c_family.index_helpers(used, "int64_t")

    def parameter(self, place: Place) -> str:
        """A parameter of a function."""
        return f"{'' if place.written else 'const '}{self.memory_type(place.buffer.dtype)} *{place.name}"

    def broadcast(self, dtype: DType, lanes: int, x: str) -> str:
        return x

    def vector(self, dtype: DType, parts: Sequence[str]) -> str:
        raise NoVectorsError

    def lane(self, x: str, lane: int) -> str:
        raise NoVectorsError

    def load_some(self, place: Place, offset: str, lanes: int, mask: str) -> str:
        raise NoVectorsError

    def store_some(self, place: Place, offset: str, value: str, lanes: int, mask: str) -> str:
        raise NoVectorsError

    def halves(self, x: str) -> tuple[str, str]:
        raise NoVectorsError

    def truth(self, x: str) -> str:
        raise NoVectorsError

    def all_lanes(self, x: str) -> str:
        raise NoVectorsError

    def any_lane(self, x: str) -> str:
        raise NoVectorsError


class NoVectorsError(AssertionError):
    """A language without vectors was asked for one."""
