"""Steps that follow from their name: those of recurrent layers, which are not traced where they are known.

    key        the name, modes, and what each value given is like: shapes, dtypes, devices, who needs a gradient
    known      the recording of loops with such a step (see repeated_loops.py), which of the values that the step uses
               the graphs read, which have gradients, and through which results these flow

The function of such a step reads nothing but what it is given, and changes nothing. What is known of it is kept on disk
when the process ends (see execute/recordings.py), and read when such a loop first comes.
"""
# Tests: tests/core/grad/test_named_steps.py, tests/core/grad/test_steps_on_disk.py

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from weft.autograd.context import context, main
from weft.autograd.value import Value
from weft.core.execute import recordings
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
    carries and results that gradients flow through; and how many carries, sliced inputs and results there are."""

    recording: Recording
    outside: tuple[int, ...]
    captured: tuple[int, ...]
    live: tuple[int, ...]
    live_outs: tuple[int, ...]
    carries: int
    slices: int
    outs: int

    def written(self) -> dict[str, Any]:
        """All of it as `recordings` keep it."""
        numbers = {f: getattr(self, f) for f in _NUMBERS} | {f: getattr(self, f) for f in _COUNTS}
        return {**numbers, "recording": self.recording.written()}

    @staticmethod
    def read(record: Any, uses: int) -> KnownStep:
        """All that was written, of a step that uses so many values."""
        numbers: dict[str, Any] = {f: record[f] for f in _NUMBERS}
        carries, slices, outs = (int(record[f]) for f in _COUNTS)
        bounds = {"outside": uses, "captured": uses, "live": carries, "live_outs": outs}
        told = all(isinstance(own, tuple) for own in numbers.values())
        if not told or any(not 0 <= n < bounds[f] for f, own in numbers.items() for n in own):
            raise ValueError("another step than this")
        gradients = carries + slices + len(numbers["captured"])
        recording = Recording.read(record["recording"], carries + outs, gradients)
        return KnownStep(recording, **numbers, carries=carries, slices=slices, outs=outs)


_NUMBERS = ("outside", "captured", "live", "live_outs")
_COUNTS = ("carries", "slices", "outs")


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
        counts: tuple[int, int, int],
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
            *counts,
        )

    def on(self, known: KnownStep) -> Known:
        """The recording of a known step, and what this one uses of what is outside."""
        return Known(known.recording, tuple([self.uses[k].node for k in known.outside]))


_NOT_READ = MOVEMENT | {Op.CONST, Op.RANGE}
"""The ops of nodes in whose place graphs read something else, or nothing."""


@dataclass(slots=True)
class _Entry:
    """The things that follow from a step, and the name of the record that these are kept in, if they are."""

    name: str | None
    known: KnownStep | None = None


_steps: dict[tuple[Hashable, ...], _Entry] = {}
_keeping = forkable(threading.RLock())


def known_step(key: tuple[Hashable, ...], step: Step, devices: Iterable[str | None]) -> KnownStep | None:
    """The things that follow from a step like that, in this process or an earlier one; None where there was none."""
    entry = _steps.get(key)
    if entry is None:
        name = recordings.name_of(Step, (*map(_plain, key),), devices, (*recordings.COMPOSERS, "nn"))
        made = _Entry(name, recordings.found(name, lambda record: KnownStep.read(record, len(step.uses))))
        with _keeping:
            entry = _steps.setdefault(key, made)
            if len(_steps) > KEPT:
                del _steps[next(iter(_steps))]
    return entry.known


def _plain(fact: Hashable) -> Hashable:
    """A fact of a key as a record's name may have it."""
    return tuple(map(_plain, cast("tuple[Hashable, ...]", fact))) if isinstance(fact, tuple) else fact


def keep(key: tuple[Hashable, ...], found: KnownStep) -> None:
    """Enter what was found of a step that was asked for, and not known."""
    entry = _steps.get(key)
    if entry is not None:
        entry.known = found


@recordings.at_exit
def keep_steps() -> None:
    """Write to disk what is new, for processes that come after."""
    for entry in tuple(_steps.values()):
        if entry.name is not None and entry.known is not None and entry.known.recording.changed:
            recordings.keep(entry.name, entry.known.written())
