"""A C-like language, as far as the renderer has to know it.

In registers a bool is whatever `compare` gives, and the 16-bit floats are their bits as u16, because nothing is ever
computed in them. `lanes` 0 means a scalar, else a vector of that many; a language without vectors is only asked for
scalars. Operands are atoms: names, literals, calls or text in parentheses, so they may stand beside any operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from weft.ir.dtypes import DType
from weft.ir.expr import Scalar
from weft.ir.loops import Buffer
from weft.lazy_dataclass import dataclass


class Where(Enum):
    """The place of a buffer's elements, seen from one thread."""

    GLOBAL = "global"
    LOCAL = "local"
    PRIVATE = "private"


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer by its name in the text. With `lanes`, each lane of a vector loop has its own: element k of lane l is at
    k * lanes + l."""

    name: str
    buffer: Buffer
    where: Where
    lanes: int = 0
    written: bool = True


class Language(Protocol):
    """One language. Every method returns text; `Rendered` parts keep no state in it."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Lengths of vectors, longest first; empty where there are none and vector loops become loops over lanes."""
        ...

    @property
    def reserved(self) -> frozenset[str]:
        """Names that a variable may not have."""
        ...

    @property
    def index_bits(self) -> int:
        """Width of the signed integers that indices are computed in."""
        ...

    def type(self, dtype: DType, lanes: int = 0) -> str:
        """The type of a value in registers."""
        ...

    def constant(self, dtype: DType, lanes: int, name: str, value: str) -> str:
        """The statement that binds `name` to `value` once."""
        ...

    def variable(self, dtype: DType, lanes: int, name: str, value: str) -> str:
        """The statement that declares a variable that changes later."""
        ...

    def assign(self, name: str, value: str) -> str:
        """The statement that changes a variable, or one component of it."""
        ...

    def array(self, place: Place, size: int) -> str:
        """The statement that declares the elements of a private buffer."""
        ...

    def loop(self, name: str, first: str, last: str) -> str:
        """The head of a loop with an index from `first` up to, not including, `last`, with its opening brace."""
        ...

    def branch(self, condition: str) -> str:
        """The head of a branch, with its opening brace; `condition` is a scalar bool."""
        ...

    def literal(self, dtype: DType, value: Scalar) -> str:
        """A scalar constant."""
        ...

    def broadcast(self, dtype: DType, lanes: int, x: str) -> str:
        """A scalar in all lanes."""
        ...

    def vector(self, dtype: DType, parts: Sequence[str]) -> str:
        """A vector of scalars."""
        ...

    def lane(self, x: str, lane: int) -> str:
        """One component of a vector. Of a bool, what `truth` makes a scalar bool of."""
        ...

    def halves(self, x: str) -> tuple[str, str]:
        """The first and the second half of a vector; of two lanes, scalars."""
        ...

    def truth(self, x: str) -> str:
        """A vector's component that is a bool, as a scalar one."""
        ...

    def all_lanes(self, x: str) -> str:
        """True where a bool holds in every lane, as a scalar bool."""
        ...

    def any_lane(self, x: str) -> str:
        """True where a bool holds in some lane, as a scalar bool."""
        ...

    def binary(self, symbol: str, dtype: DType, lanes: int, a: str, b: str) -> str:
        """`+ - * / & | ^` on numbers, the bitwise ones on bools too. Integers wrap; a divisor is neither 0 nor -1."""
        ...

    def shift(self, symbol: str, dtype: DType, lanes: int, a: str, amount: str) -> str:
        """`<<`, or `>>` (arithmetic on signed integers), by less than the width."""
        ...

    def inverted(self, dtype: DType, lanes: int, x: str) -> str:
        """Every bit, or a bool, turned over."""
        ...

    def compare(self, symbol: str, dtype: DType, lanes: int, a: str, b: str) -> str:
        """`< <= == !=` on numbers: a bool."""
        ...

    def select(self, dtype: DType, lanes: int, condition: str, a: str, b: str) -> str:
        """a where the condition holds, else b."""
        ...

    def convert(self, src: DType, dst: DType, lanes: int, x: str) -> str:
        """The same number in another type: integers wrap, floats in range truncate toward zero or round to nearest; a
        bool is 0 or 1. To bool never."""
        ...

    def rounded(self, dtype: DType, lanes: int, x: str) -> str:
        """An operand of `+ - * /` as it was rounded, where compilers would take floats for real numbers otherwise."""
        ...

    def subtrahend(self, dtype: DType, lanes: int, x: str) -> str:
        """The second operand of `-` in the same way, and not known to be equal to the first."""
        ...

    def reinterpret(self, src: DType, dst: DType, lanes: int, x: str) -> str:
        """The same bits in another type of the same width."""
        ...

    def function(self, name: str, dtype: DType, lanes: int, args: Sequence[str]) -> str:
        """`abs sqrt floor ceil trunc round fma fmod` on floats; `round` takes ties to even."""
        ...

    def load(self, place: Place, offset: str, lanes: int = 0) -> str:
        """An element, or `lanes` neighbours from `offset` on, as they are in registers."""
        ...

    def store(self, place: Place, offset: str, value: str, lanes: int = 0, stream: bool = False) -> str:
        """The statement that writes them. `stream`: the address is a multiple of the vector's size, and the elements
        are not wanted soon."""
        ...

    def load_some(self, place: Place, offset: str, lanes: int, mask: str) -> str:
        """Neighbours of which only those in the mask are read; zero for the others."""
        ...

    def store_some(self, place: Place, offset: str, value: str, lanes: int, mask: str) -> str:
        """The statement that writes those neighbours that are in the mask."""
        ...

    def choose(self, condition: str, a: str, b: str) -> str:
        """The index a where a scalar condition holds, else b."""
        ...

    def prefetch(self, place: Place, offset: str) -> str:
        """The statement that hints that an element, which may not be there, is read soon; empty where there is none."""
        ...

    def index(self, x: str, dtype: DType) -> str:
        """A scalar integer as an index."""
        ...

    def from_index(self, x: str, dtype: DType) -> str:
        """An index as a scalar integer, wrapped."""
        ...

    def helpers(self, used: frozenset[str]) -> str:
        """The definitions of those of `weft_floordiv weft_mod weft_min weft_max`, functions of two indices, used."""
        ...
