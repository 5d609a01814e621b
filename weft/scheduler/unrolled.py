"""Plans but for the numbers of steps of their loops: these are written out when somebody asks for a plan.

    launch 0                     launch 0
    repeat size0 times           launch 1 with t = 0
      launch 1 with t     ->     launch 2
      launch 2                   launch 1 with t = 1
                                 ...

The memory of a loop does not depend on its number of steps, so all else is planned once, for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from weft.backends.protocol import Code, Commands, Device, Launch, Step
from weft.ir.forks import forkable
from weft.ir.index import Int, Var, evaluate
from weft.lazy_dataclass import dataclass
from weft.scheduler.growing import Needs, linked
from weft.scheduler.plan import KernelInfo, OutputSpec, Plan, Tenant

Item: TypeAlias = "tuple[Step, KernelInfo] | Repeat"


@dataclass(frozen=True, slots=True)
class Repeat:
    """Steps of a loop. `mark`: a negative number that stands for the step's own among the variables of launches.

    `patterns`: the launches of a step, by where its carries are, which change places with each step: of others, those
    an even number of steps before the last one, the first one, and the first one if it is such.
    """

    length: Int
    reverse: bool
    mark: int
    patterns: tuple[tuple[Item, ...], ...]

    def steps(self, sizes: Mapping[str, int]) -> Iterator[tuple[int, tuple[Item, ...]]]:
        """The number of each step, with its launches, in the order in which they run."""
        count = int(evaluate(self.length, sizes))
        for k in range(count):
            pattern = self.patterns[2 * (k == 0) + ((count - 1 - k) % 2 == 0)]
            yield count - 1 - k if self.reverse else k, pattern


@dataclass(slots=True, eq=False)
class _Written:
    """Launches of loops' steps that were written out, by their patterns and the numbers of the steps; and the place of
    each constant among those of all plans so far."""

    steps: dict[tuple[int, ...], tuple[list[Step], list[KernelInfo]]] = field(
        default_factory=dict["tuple[int, ...]", "tuple[list[Step], list[KernelInfo]]"]
    )
    constants: dict[int, int] = field(default_factory=dict[int, int])
    lock: threading.Lock = field(default_factory=lambda: forkable(threading.Lock()))


@dataclass(frozen=True, slots=True, eq=False)
class Unrolled:
    """A plan of which some loops may have as many steps as runtime variables say. In `items`, a variable of a launch
    is one of `variables`, or, counted on from these, one of `computed`, which follow from them, or, counted on from
    these, a constant, or the mark of a loop."""

    device: Device
    items: tuple[Item, ...]
    externals: int
    offsets: tuple[int, ...]
    workspace_bytes: int
    codes: tuple[Code, ...]
    outputs: tuple[OutputSpec, ...]
    variables: tuple[Var, ...]
    largest: tuple[Tenant, ...]
    computed: tuple[Int, ...] = ()
    check: Callable[[Commands, Sequence[KernelInfo]], None] | None = None
    """Raises an error for commands that are wrong, where forms are verified."""
    needs: Needs | None = None
    """The workspace by runtime sizes."""
    _written: _Written = field(init=False, default_factory=_Written)

    @property
    def varies(self) -> bool:
        """True where a loop's number of steps is known only when it runs."""
        return _varies(self.items)

    def settled(self) -> Plan | Unrolled:
        """The plan, where there is one for all sizes."""
        return self if self.varies else self.plan({})

    def plan(self, sizes: Mapping[str, int]) -> Plan:
        """The plan. `sizes`: those of runtime variables that loops' numbers of steps depend on."""
        written = self._written
        with written.lock:
            steps, infos = self._steps(self.items, sizes, {})
            constants = tuple(written.constants)
        total = len(self.variables) + len(self.computed) + len(constants)
        commands = Commands(tuple(steps), self.externals, self.offsets, self.workspace_bytes, total)
        if self.check is not None:
            self.check(commands, infos)
        return Plan(
            device=self.device,
            commands=commands,
            codes=self.codes,
            outputs=self.outputs,
            variables=self.variables,
            computed=self.computed,
            constants=constants,
            steps=tuple(infos),
            executable=linked(self.device, self.codes, commands, self.variables, self.needs),
            largest=self.largest,
            needs=self.needs,
        )

    def _steps(
        self, items: tuple[Item, ...], sizes: Mapping[str, int], marks: Mapping[int, int]
    ) -> tuple[list[Step], list[KernelInfo]]:
        """Each step in turn. `marks`: the numbers of the steps of the loops around it, by the loops' marks."""
        steps: list[Step] = []
        infos: list[KernelInfo] = []
        known: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
        for item in items:
            if isinstance(item, Repeat):
                for t, pattern in item.steps(sizes):
                    found = self._step_of_loop(pattern, sizes, {**marks, item.mark: t})
                    steps += found[0]
                    infos += found[1]
                continue
            step, info = item
            if isinstance(step, Launch):
                used = known.get(step.variables)
                if used is None:
                    used = known[step.variables] = self._used(step.variables, marks)
                if used != step.variables:
                    step = Launch(step.program, step.slots, used)
            steps.append(step)
            infos.append(info)
        return steps, infos

    def _step_of_loop(
        self, pattern: tuple[Item, ...], sizes: Mapping[str, int], marks: Mapping[int, int]
    ) -> tuple[list[Step], list[KernelInfo]]:
        """The launches of a step, which are kept: the next plan has most of them, too."""
        at = id(pattern), *marks.values()
        found = self._written.steps.get(at)
        if found is None:
            found = self._steps(pattern, sizes, marks)
            if not any(isinstance(i, Repeat) for i in pattern):
                self._written.steps[at] = found
        return found

    def _used(self, given: tuple[int, ...], marks: Mapping[int, int]) -> tuple[int, ...]:
        """A launch's variables with its constants, and loops' numbers of steps, among them."""
        count, constants = len(self.variables) + len(self.computed), self._written.constants
        return tuple([
            v if 0 <= v < count
            else count + constants.setdefault(marks[v] if v < 0 else v - count, len(constants))
            for v in given
        ])  # fmt: skip


def _varies(items: Sequence[Item]) -> bool:
    return any(
        not isinstance(i.length, int) or any(map(_varies, i.patterns)) for i in items if isinstance(i, Repeat)
    )
