"""Steps that follow from their name: those of recurrent layers, which are not traced where they are known.

    key        the name, modes, and what each value given is like: shapes, dtypes, devices, who needs a gradient
    known      the recording of loops with such a step (see repeated_loops.py), which of the values that the step uses
               the graphs read, which have gradients, and through which results these flow

The function of such a step reads nothing but what it is given, and changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from weft.autograd.context import context, main
from weft.autograd.value import Value
from weft.core.grad.repeated_loops import KEPT, Known, Recording
from weft.ir.forks import forkable
from weft.ir.numerics import pinned
from weft.ir.ops import MOVEMENT, Op
from weft.lazy_dataclass import dataclass

StepOf: TypeAlias = Callable[[list[Value], list[Value], Sequence[Value]], tuple[list[Value], list[Value]]]
"""(carries, a row of each sliced input, what all steps use) -> (the next carries, what is stacked)."""


@dataclass(frozen=True, slots=True)
class KnownStep:
    """The things that follow from a step: its recording; which used values graphs read, and which have gradients; the
    carries and results that gradients flow through; and how many carries there are."""

    recording: Recording
    outside: tuple[int, ...]
    captured: tuple[int, ...]
    live: tuple[int, ...]
    live_outs: tuple[int, ...]
    carries: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step's function, and the values that all steps use. None is the name of one that does not follow from it."""

    name: Hashable
    function: StepOf
    uses: tuple[Value, ...]

    def on_values(self, carries: list[Value], rows: list[Value]) -> tuple[list[Value], list[Value]]:
        """The step on values, with those that it uses."""
        return self.function(carries, rows, self.uses)

    def key(self, init: Sequence[Value], xs: Sequence[Value], reverse: bool) -> tuple[Hashable, ...] | None:
        """All that a loop of the step follows from, but for the number of steps; None where it has to be traced: it has
        no name, is traced itself, or uses what is a movement of something, which graphs read in its place."""
        now = context()
        uses = self.uses
        if (
            self.name is None
            or now.trace is not None
            or now.lifted is not None
            or len({v.node for v in uses}) < len(uses)
        ):
            return None
        for v in uses:
            if v.op in MOVEMENT or v.node.op in _NOT_READ or v.node.device is None:
                return None
        return (
            self.name, now, main.dtype, main.device, pinned(), reverse,
            *[(v.node.shape, v.node.dtype, v.node.device, v.needs_grad) for v in (*init, *uses)],
            *[(v.node.shape[1:], v.node.dtype, v.node.device, v.needs_grad) for v in xs],
        )  # fmt: skip

    def found(
        self,
        known: Known,
        captured: Sequence[Value],
        live: Sequence[int],
        live_outs: Sequence[int],
        carries: int,
    ) -> KnownStep | None:
        """The things that a trace has found; None where it reads what is not among the values used."""
        nodes, values = [v.node for v in self.uses], list(self.uses)
        if not all(n in nodes for n in known.outside):
            return None
        return KnownStep(
            known.recording,
            tuple(map(nodes.index, known.outside)),
            tuple(map(values.index, captured)),
            tuple(live),
            tuple(live_outs),
            carries,
        )

    def on(self, known: KnownStep) -> Known:
        """The recording of a known step, and what this one uses of what is outside."""
        return Known(known.recording, tuple([self.uses[k].node for k in known.outside]))


_NOT_READ = MOVEMENT | {Op.CONST, Op.RANGE}
"""The ops of nodes in whose place graphs read something else, or nothing."""

_steps: dict[tuple[Hashable, ...], KnownStep] = {}
_keeping = forkable(threading.RLock())


def known_step(key: tuple[Hashable, ...]) -> KnownStep | None:
    """The things that follow from a step like that; None where there was none."""
    return _steps.get(key)


def keep(key: tuple[Hashable, ...], found: KnownStep) -> None:
    """Enter what was found; the one met first goes where there are too many."""
    with _keeping:
        _steps[key] = found
        if len(_steps) > KEPT:
            del _steps[next(iter(_steps))]
