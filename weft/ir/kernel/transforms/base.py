"""A transform: a check that says why not, an apply that assumes it passed, one line of text, a proposal."""
# Tests: tests/ir/kernel/test_transforms.py

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from weft.ir.errors import IRError
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.ir.kernel.schedule import Kernel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a transform does not apply."""

    why: str


class Pick(Protocol):
    """Chooses one of several, of which there is at least one: `random.Random().choice`, or a strategy of a test."""

    def __call__(self, among: Sequence[T], /) -> T: ...


class Transform:
    """A rewrite of a kernel's schedule that preserves what it computes."""

    __slots__ = ()

    def check(self, k: Kernel) -> Refusal | None:
        """The reason why the transform cannot be applied to `k`; None when it can."""
        raise AssertionError

    def apply(self, k: Kernel) -> Kernel:
        """The transformed kernel; `check` has passed."""
        raise AssertionError

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Transform | None:
        """A transform of this class with arguments from `k`, which has a loop and a value; its check may refuse. None
        where nothing in `k` could be its argument."""
        raise AssertionError

    def __str__(self) -> str:
        values = [getattr(self, f.name) for f in fields(self)]  # pyright: ignore[reportArgumentType]
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        return f"{name}({', '.join(_plain(v) for v in values if v is not False and v not in ('', ()))})"


def _plain(argument: object) -> str:
    """An argument as the transform's text shows it: names without quotes, tuples of them in brackets."""
    match argument:
        case Enum():
            return str(argument.value)
        case tuple():
            return f"[{', '.join(map(_plain, cast('tuple[object, ...]', argument)))}]"
        case _:
            return str(argument)


def run(k: Kernel, *transforms: Transform) -> Kernel:
    """`k` after the transforms, in order; IRError with the reason when one does not apply."""
    for t in transforms:
        refusal = t.check(k)
        if refusal is not None:
            raise IRError(f"{t} on kernel {k.name}: {refusal.why}")
        k = replace(t.apply(k), history=(*k.history, t))
    return k


def attempt(k: Kernel, t: Transform) -> Kernel:
    """`k` after `t`, or `k` itself where `t` does not apply."""
    return k if t.check(k) is not None else run(k, t)
