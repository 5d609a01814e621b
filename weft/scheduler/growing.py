"""The workspace of a plan for all sizes, laid out for those that came so far.

    n up to 4096, so far at most 100     laid out for n up to 128     later, n = 300: laid out anew, for n up to 512

A plan's runtime sizes have wide bounds. Were the workspace laid out for these, what lies in it would be far apart, each
in pages of its own: memory that nobody needs, and time to clear it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import field

from weft.backends.protocol import Code, Commands, Device, Executable, Foretold, Memory
from weft.ir.forks import forkable
from weft.ir.index import Int, Var, high, substitute
from weft.lazy_dataclass import dataclass
from weft.scheduler import memory

LEAST_BYTES = 2 << 20
"""The workspace from which on it grows: a smaller one is in one huge page."""


LAYOUTS_KEPT = 8
"""Layouts of a workspace that are kept, the latest ones."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Memory that is needed from step `first` to step `last`, both included, for one of values that take so many bytes
    each."""

    nbytes: tuple[Int, ...]
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Needs:
    """The memory that a workspace has to hold. `inside`: for each offset beyond those of the tenancies, the number of
    the tenancy that it is in, and the distance from its beginning."""

    tenancies: tuple[Tenancy, ...]
    inside: tuple[tuple[int, int], ...] = ()
    _layouts: dict[tuple[tuple[Var, int], ...], memory.Layout] = field(
        init=False,
        compare=False,
        repr=False,
        default_factory=dict["tuple[tuple[Var, int], ...]", memory.Layout],
    )
    """The latest layouts, by the variables' limits: plans of loops of other lengths have the same."""

    @property
    def sizes(self) -> list[Int]:
        """The different bytes of values: much fewer than there are tenancies."""
        return list(dict.fromkeys([n for t in self.tenancies for n in t.nbytes]))

    @property
    def vary(self) -> bool:
        """True where runtime sizes have a say."""
        return any(not isinstance(n, int) for n in self.sizes)

    def layout(self, limits: Mapping[Var, int]) -> memory.Layout:
        """Offsets that hold all, in the order of the commands, as long as the variables do not exceed these."""
        at = tuple(limits.items())
        known = self._layouts.get(at)
        if known is None:
            known = self._layouts[at] = self._laid_out(limits)
            for old in tuple(self._layouts)[:-LAYOUTS_KEPT]:
                self._layouts.pop(old, None)
        return known

    def _laid_out(self, limits: Mapping[Var, int]) -> memory.Layout:
        narrow: dict[Var, Int] = {v: Var(v.name, v.lo, n) for v, n in limits.items()}
        most = {n: high(substitute(n, narrow)) for n in self.sizes}
        requests = [memory.Request(max([most[n] for n in t.nbytes]), t.first, t.last) for t in self.tenancies]
        found = memory.plan(requests)
        offsets = found.offsets
        return memory.Layout(offsets + tuple([offsets[k] + at for k, at in self.inside]), found.nbytes)


def grows(needs: Needs, nbytes: int) -> bool:
    """True where a workspace of at most so many bytes grows with the runtime sizes."""
    return nbytes >= LEAST_BYTES and needs.vary


def linked(
    device: Device, codes: Sequence[Code], commands: Commands, variables: tuple[Var, ...], needs: Needs | None
) -> Executable:
    """The commands as an executable, whose workspace grows with its `variables` where it may be large."""
    if needs is None or not grows(needs, commands.workspace_bytes):
        return device.link(codes, commands)
    return Growing(device, codes, commands, variables, needs)


def foretold(executable: Executable) -> Foretold | None:
    """The executable as one that states what its runs take, where it does."""
    one = executable.smallest() if isinstance(executable, Growing) else executable
    return one if isinstance(one, Foretold) else None


class Growing:
    """An executable whose workspace is laid out anew whenever a variable exceeds all its values so far. Where there is
    no room for that, it is laid out for just the sizes of the run, and as before for those that follow."""

    __slots__ = (
        "_codes", "_commands", "_current", "_device", "_linked", "_lock", "_needs", "_past", "_variables", "nbytes",
    )  # fmt: skip

    def __init__(
        self,
        device: Device,
        codes: Sequence[Code],
        commands: Commands,
        variables: tuple[Var, ...],
        needs: Needs,
    ) -> None:
        self._device, self._codes, self._commands = device, codes, commands
        self._variables, self._needs = variables, needs
        self._lock = forkable(threading.Lock())
        self._current: tuple[tuple[int, ...], Executable] | None = None
        """The largest values of the variables, and the executable for these."""
        self._linked: list[Executable] = []
        """All that there were: runs of other threads may not have ended."""
        self._past = 0
        """Runs of those that were for one run."""
        self.nbytes = 0
        """The workspace that was laid out last."""

    @property
    def started(self) -> int:
        return self._past + sum([e.started for e in self._linked])

    @property
    def finished(self) -> int:
        return self._past + sum([e.finished for e in self._linked])

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = (), queue: int = 0) -> None:
        before = self._current
        try:
            self._for(variables).run(memories, variables, queue)
        except MemoryError:
            self._current = before  # for which there is room
            self._run_tightly(memories, variables, queue)

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        return self._for(variables).run_timed(memories, variables)

    def smallest(self) -> Executable:
        """An executable for the least sizes, at least."""
        return self._for([v.lo for v in self._variables])

    def _for(self, variables: Sequence[int]) -> Executable:
        """The executable for these values of the variables, of which those of the commands' own come later."""
        current = self._current
        if current is None or any(n > most for n, most in zip(variables, current[0], strict=False)):
            with self._lock:
                limits = self._grown(variables)
                current = self._current
                if current is None or current[0] != limits:  # no other thread was here
                    current = self._current = limits, self._laid_out(limits)
        return current[1]

    def _run_tightly(self, memories: Sequence[Memory], variables: Sequence[int], queue: int) -> None:
        """Run with a workspace for just these sizes. MemoryError where there is no room for that either."""
        with self._lock:
            tight = self._laid_out(tuple(variables[: len(self._variables)]))
        try:
            tight.run(memories, variables, queue)
        finally:
            with self._lock:
                if tight.started == tight.finished:
                    self._linked.remove(tight)
                    self._past += tight.finished

    def _laid_out(self, limits: tuple[int, ...]) -> Executable:
        layout = self._needs.layout(dict(zip(self._variables, limits, strict=True)))
        c = self._commands
        commands = Commands(c.steps, c.externals, layout.offsets, layout.nbytes, c.variables)
        executable = self._device.link(self._codes, commands)
        self.nbytes = layout.nbytes
        self._linked.append(executable)
        return executable

    def _grown(self, variables: Sequence[int]) -> tuple[int, ...]:
        """The largest values for which it is laid out next: powers of two that none of those so far exceeds."""
        before = (0,) * len(self._variables) if self._current is None else self._current[0]
        return tuple([
            max(m, min(1 << max(n - 1, 0).bit_length(), v.hi))
            for m, n, v in zip(before, variables, self._variables, strict=False)
        ])  # fmt: skip
