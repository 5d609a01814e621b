"""Plans but for the numbers of steps of their loops: these are written out when somebody asks for a plan.

    launch 0                     launch 0
    repeat size0 times           launch 1 with t = 0
      launch 1 with t     ->     launch 2
      launch 2                   launch 1 with t = 1
                                 ...

The memory of a loop does not depend on its number of steps, so all else is planned once, for all of them.
"""
# Tests: tests/core/grad/test_scan.py, tests/scheduler/test_recipes.py

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from weft.backends.protocol import Code, Commands, Device, Launch, Step
from weft.ir.index import Int, Var, evaluate
from weft.lazy_dataclass import dataclass
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

    @property
    def varies(self) -> bool:
        """True where a loop's number of steps is known only when it runs."""
        return _varies(self.items)

    def settled(self) -> Plan | Unrolled:
        """The plan, where there is one for all sizes."""
        return self if self.varies else self.plan({})

    def plan(self, sizes: Mapping[str, int]) -> Plan:
        """The plan. `sizes`: those of runtime variables that loops' numbers of steps depend on."""
        count = len(self.variables) + len(self.computed)
        constants: dict[int, int] = {}
        steps: list[Step] = []
        infos: list[KernelInfo] = []
        for step, info, marks in _written_out(self.items, sizes, {}):
            if isinstance(step, Launch) and step.variables:
                used = [
                    v if 0 <= v < count
                    else constants.setdefault(marks[v] if v < 0 else v - count, count + len(constants))
                    for v in step.variables
                ]  # fmt: skip
                steps.append(Launch(step.program, step.slots, tuple(used)))
            else:
                steps.append(step)
            infos.append(info)
        total = count + len(constants)
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
            constants=tuple(constants),
            steps=tuple(infos),
            executable=self.device.link(self.codes, commands),
            largest=self.largest,
        )


def _written_out(
    items: Sequence[Item], sizes: Mapping[str, int], marks: Mapping[int, int]
) -> Iterator[tuple[Step, KernelInfo, Mapping[int, int]]]:
    """Each step in turn, and the number of the step of each loop around it, by the loops' marks."""
    for item in items:
        if isinstance(item, Repeat):
            for t, pattern in item.steps(sizes):
                yield from _written_out(pattern, sizes, {**marks, item.mark: t})
        else:
            yield *item, marks


def _varies(items: Sequence[Item]) -> bool:
    return any(
        not isinstance(i.length, int) or any(map(_varies, i.patterns)) for i in items if isinstance(i, Repeat)
    )
