"""A schedule rule: it recognises a form, chooses among the ways to compute it, and applies the choice.

Each of the three may refuse, with a sentence that names what it found and what it asks for. A transform that does not
apply refuses for the rule: its reason is the rule's.
"""
# Tests: tests/scheduler/optimize/test_refusals.py, tests/scheduler/optimize/test_reports.py

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import ClassVar, Generic, NamedTuple, TypeVar

from weft.backends.protocol import DeviceInfo
from weft.ir.errors import IRError
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal
from weft.lazy_dataclass import dataclass

Form = TypeVar("Form")
ChoiceOf = TypeVar("ChoiceOf", bound="Choice")


class TileSize(NamedTuple):
    """Rows and columns of a tile."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Choice:
    """The way to compute a form. `refused`: other ways to compute the same form, and
    why they were not taken."""

    refused: tuple[tuple[str, Refusal], ...] = field(default=(), kw_only=True)

    decision: ClassVar[str] = ""
    """The decision that the choice is mostly of."""

    def text(self, made: Kernel) -> str:
        """The choice in a few words, of what was made by it."""
        return str(self)


def counted(n: int, noun: str) -> str:
    """1 value, 2 values"""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The kernel that a rule made, and its choice."""

    kernel: Kernel
    choice: Choice


@dataclass(frozen=True, slots=True)
class NotReached:
    """The outcome of a rule when one before it decided."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[Form, ChoiceOf]):
    """A rule by its parts: the form of a kernel that it is for, how it is to be computed, and that as transforms."""

    name: str
    recognise: Callable[[Kernel, DeviceInfo], Form | Refusal]
    choose: Callable[[Form, DeviceInfo], ChoiceOf | Refusal]
    apply: Callable[[Form, ChoiceOf, DeviceInfo], Kernel | Refusal]

    def schedule(self, k: Kernel, info: DeviceInfo) -> Chosen | Refusal:
        """The kernel scheduled by this rule, or why it is not."""
        try:
            form = self.recognise(k, info)
            if isinstance(form, Refusal):
                return form
            choice = self.choose(form, info)
            if isinstance(choice, Refusal):
                return choice
            made = self.apply(form, choice, info)
        except IRError as error:  # a transform's condition does not hold for this kernel
            return Refusal(str(error))
        return made if isinstance(made, Refusal) else Chosen(made, choice)
