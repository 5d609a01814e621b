"""What a transform is: a check that says why not, an apply that assumes it passed, one line of text."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from weft.ir.errors import IRError

if TYPE_CHECKING:
    from weft.ir.kernel.schedule import Kernel


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a transform does not apply."""

    why: str


class Transform:
    """A rewrite of a kernel's schedule that preserves what it computes."""

    __slots__ = ()

    def check(self, k: Kernel) -> Refusal | None:
        """Why the transform cannot be applied to `k`; None when it can."""
        raise AssertionError

    def apply(self, k: Kernel) -> Kernel:
        """The transformed kernel; `check` has passed."""
        raise AssertionError

    def __str__(self) -> str:
        args = ", ".join(str(getattr(self, f.name)) for f in fields(self))  # pyright: ignore[reportArgumentType]
        return f"{type(self).__name__.lower()}({args})"


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
