"""Text being written: lines, names, and the places of values and buffers in them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import field
from typing import NamedTuple

from weft.backends.clike.language import Language, Place
from weft.ir.dtypes import DType
from weft.ir.index import Guard, Int
from weft.lazy_dataclass import dataclass


class TextValue(NamedTuple):
    """A scalar's or, with lanes, a vector's text."""

    text: str
    lanes: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """`lanes` lanes of a vector loop from `start` on, as one vector, of which only those in `mask` (None: all) are
    active. 0 lanes: a single thread of execution, whose mask is a scalar."""

    start: int = 0
    lanes: int = 0
    mask: str | None = None


class Offset(NamedTuple):
    """The element that each lane of a group accesses: at `base`, `steps` further on; or, if these are not
    constants, wherever `whole` says."""

    base: Int
    steps: tuple[int, ...] | None
    whole: Int

    @property
    def uniform(self) -> bool:
        return self.steps is not None and not any(self.steps)

    @property
    def contiguous(self) -> bool:
        return self.steps == tuple(range(len(self.steps or ())))

    @property
    def apart(self) -> bool:
        """True where no two lanes access the same element, as far as is known."""
        return self.steps is not None and len(set(self.steps)) == len(self.steps)


class Condition(NamedTuple):
    """A guard: a scalar condition and one per lane; None where there is nothing to ask."""

    shared: str | None = None
    mask: str | None = None
    never: bool = False


@dataclass(slots=True)
class Names:
    """Names of one function's text, each given once."""

    taken: set[str] = field(default_factory=set[str])

    def fresh(self, name: str) -> str:
        """`name`, or one like it that is free."""
        out, k = name, 1
        while out in self.taken:
            k += 1
            out = f"{name}_{k}"
        self.taken.add(out)
        return out


class Text:
    """Lines in the making, and what is called how in them."""

    def __init__(self, language: Language, taken: Iterable[str] = (), depth: int = 1) -> None:
        self.language = language
        self.lines: list[str] = []
        self.depth = depth
        self.fresh = Names({*language.reserved, *taken})
        self.places: dict[str, Place] = {}
        self.names: dict[str, str] = {}
        """The names of index variables; an unrolled loop's is a number."""
        self.helpers: set[str] = set()
        self.read: dict[tuple[str, Int, Guard, Group], TextValue] = {}
        """Elements that have been read, by buffer, offset, guard and group: unrolled loops read them again."""
        self._counter = 0

    def do(self, line: str) -> None:
        """One line at the current depth."""
        self.lines.append("  " * self.depth + line)

    @contextmanager
    def inside(self, head: str) -> Generator[None]:
        """Lines between `head`, which ends with a brace, and the closing one."""
        self.do(head)
        self.depth += 1
        outer = dict(self.read)
        yield
        self.read = {k: v for k, v in outer.items() if k in self.read}
        self.depth -= 1
        self.do("}")

    @contextmanager
    def where(self, condition: str | None) -> Generator[None]:
        """Lines that run where the condition holds."""
        if condition is None:
            yield
        else:
            with self.inside(self.language.branch(condition)):
                yield

    def _name(self) -> str:
        self._counter += 1
        return self.fresh.fresh(f"v{self._counter}")

    def bind(self, dtype: DType, lanes: int, text: str) -> str:
        """A name for a value."""
        name = self._name()
        self.do(self.language.constant(dtype, lanes, name, text))
        return name

    def variable(self, dtype: DType, lanes: int, value: str) -> str:
        """A variable that may be assigned to."""
        name = self._name()
        self.do(self.language.variable(dtype, lanes, name, value))
        return name

    def define(self, name: str) -> str:
        """Define a name of the program: the name in the text from now on."""
        self.names[name] = self.fresh.fresh(name)
        return self.names[name]
