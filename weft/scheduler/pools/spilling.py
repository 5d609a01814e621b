"""Plans in stretches: between them, values go to a slower pool and come back.

    stretch   kernels 0 to 5     makes a and b, in memory of their own
    out       a                  to the host, or a file; its memory is the next value's
    stretch   kernels 6 to 9     makes c where a was
    back      a'                 where b was, which nobody reads any more
    stretch   kernels 10, 11     reads a'

State may rest in the slower pool between runs: it comes back before it is read, and its new value goes there.

What lives across stretches has memory of its own, which values take turns with; all of it is there before the first
stretch begins. What lives within one is in the workspace. Kernels are the programs of the whole plan, so the bits are,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from weft.backends.interrupts import shielded
from weft.backends.protocol import Code, Commands, Device, Executable, Memory, Step
from weft.backends.resting import Cell, CellMemory
from weft.ir import graph
from weft.ir.graph import Node
from weft.lazy_dataclass import dataclass
from weft.scheduler import memory
from weft.scheduler.assembly import Assembly, Job, Prepared, assembled
from weft.scheduler.loops import nbytes
from weft.scheduler.plan import KernelInfo, OutputSpec, Plan, Tenant
from weft.scheduler.pools import slow
from weft.scheduler.pools.again import Spec, Tasks, again, replace_specs
from weft.scheduler.pools.schedule import Action, Kind, Schedule


def cell_of(leaf: int) -> int:
    """The number of the cell in which a leaf rests, which is its own inverse: below 0."""
    return -1 - leaf


@dataclass(frozen=True, slots=True)
class Stretch:
    """Kernels that run at one go. `reads` and `makes`: the values that are there before, and that stay after it."""

    made: Prepared
    reads: tuple[Node, ...]
    makes: tuple[Node, ...]

    def shares(self, over: Mapping[Node, Node]) -> list[Node]:
        """The values that it makes over others which it reads."""
        return [
            self.makes[k] for k, i in self.made.job.state.items() if over.get(self.makes[k]) is self.reads[i]
        ]


@dataclass(frozen=True, slots=True)
class Out:
    """A copy of a value to cell number `cell` of the slower pool; of a leaf that rests there, by `cell_of`."""

    node: Node
    cell: int


@dataclass(frozen=True, slots=True)
class Back:
    """A copy of what is in a cell to a value."""

    node: Node
    cell: int


@dataclass(frozen=True, slots=True)
class Split:
    """A plan in stretches. `room`: the slot of each value that lives across stretches; `cells`: the bytes of each value
    in the slower pool; `replaces`: the outputs that take the memory of a leaf; `rests`: the leaves that rest in that
    pool before and after."""

    made: Prepared
    items: tuple[Stretch | Out | Back, ...]
    room: Mapping[Node, int]
    slots: tuple[int, ...]
    cells: tuple[int, ...]
    replaces: Mapping[int, int]
    workspace: int
    rests: frozenset[int] = frozenset()

    def taken(self, allocated: Callable[[int], int]) -> int:
        """The bytes for results in new memory, for what lives across stretches, and for the workspace."""
        outputs = self.made.job.outputs
        fresh = sum([allocated(nbytes(n)) for k, n in enumerate(outputs) if k not in self.replaces])
        return fresh + sum(map(allocated, self.slots)) + (allocated(self.workspace) if self.workspace else 0)


def split(made: Prepared, found: Tasks, schedule: Schedule) -> Split | None:
    """The plan in stretches for a schedule with copies; None where a leaf could be updated in place by all kernels, but
    not by those of a stretch."""
    pieces, origins = _pieces(made, found, schedule.actions)
    specs = [s for p in pieces if isinstance(p, list) for s in p]
    whole = Assembly(replace_specs(made, specs, origins))
    resting = {found.values[v] for v in found.problem.end}
    outputs, leaves = set(made.job.outputs) - resting, set(made.job.leaves)
    begin: dict[Node, int] = {}
    end: dict[Node, int] = {}
    back: dict[int, Node] = {}
    """The value as which a resting leaf came back last."""
    for at, p in enumerate(pieces):
        if isinstance(p, list):
            for s in p:
                begin.update({n: at for n in s.writes if n not in begin})
                end.update(dict.fromkeys((*s.reads, *s.inplace.values()), at))
        elif isinstance(p, Back):
            begin[p.node] = at
            back[p.cell] = p.node
        else:
            end[p.node] = at
    across = {n for n, at in begin.items() if n not in outputs and end.get(n, at) != at}
    over = _over_what_came_back(made, found, whole, back)
    items: list[Stretch | Out | Back] = []
    for p in pieces:
        if isinstance(p, list):
            items.append(_stretch(made, p, across | outputs | leaves, whole, over))
        else:
            items.append(p)
    shared = {n: over[n] for s in items if isinstance(s, Stretch) for n in s.shares(over)}
    room, slots = _slots([(n, begin[n], end[n]) for n in begin if n in across], shared)
    cells = {p.cell: nbytes(p.node) for p in pieces if isinstance(p, Out) and p.cell >= 0}
    work = 0
    for s in items:
        if isinstance(s, Stretch):
            assembly = Assembly(s.made)
            if assembly.replaces != s.made.job.state:
                return None
            work = max(work, memory.plan(assembly.requests).nbytes)
    sizes = tuple([cells[k] for k in range(len(cells))])
    rests = frozenset(found.rests.values())
    return Split(made, tuple(items), room, slots, sizes, whole.replaces, work, rests)


def _over_what_came_back(
    made: Prepared, found: Tasks, whole: Assembly, back: Mapping[int, Node]
) -> dict[Node, Node]:
    """The new values of state that a kernel may write over the old ones, where these came back."""
    over: dict[Node, Node] = {}
    for v in found.problem.end:
        new, old = found.values[v], back.get(cell_of(found.rests[v]))
        if old is None:
            continue
        k, last = whole.made[new], whole.last_read.get(old, -1)
        if last < k or (last == k and whole.shares(k, new, old)):
            over[new] = old
    return over


def _pieces(
    made: Prepared, found: Tasks, actions: Sequence[Action]
) -> tuple[list[list[Spec] | Out | Back], list[Spec]]:
    """Runs of kernels and the copies between them; of each kernel, which one of the job it is."""
    now: dict[Node, Node] = {}
    ran: set[int] = set()
    there: set[int] = set()
    cells = {v: cell_of(leaf) for v, leaf in found.rests.items()}
    pieces: list[list[Spec] | Out | Back] = []
    origins: list[Spec] = []
    for a in actions:
        match a.kind:
            case Kind.LEAVE:
                there.discard(a.number)
            case Kind.RUN:
                spec = made.specs[a.number]
                run = again(spec, now, frozenset(found.values[v] for v in there), a.number in ran)
                last = pieces[-1] if pieces else None
                if isinstance(last, list):
                    last.append(run)
                else:
                    pieces.append([run])
                origins.append(spec)
                ran.add(a.number)
                there.update(found.problem.tasks[a.number].writes)
            case Kind.OUT:
                n = found.values[a.number]
                if a.number not in cells:
                    cells[a.number] = sum(c >= 0 for c in cells.values())
                pieces.append(Out(now.get(n, n), cells[a.number]))
            case Kind.BACK:
                n = found.values[a.number]
                now[n] = graph.buffer(n.shape, n.dtype, n.device, None)
                pieces.append(Back(now[n], cells[a.number]))
                there.add(a.number)
    return pieces, origins


def _stretch(
    made: Prepared, specs: list[Spec], stay: set[Node], whole: Assembly, over: Mapping[Node, Node]
) -> Stretch:
    """Kernels as a job of their own."""
    own = {n for s in specs for n in s.writes}
    reads = dict.fromkeys(n for s in specs for n in (*s.reads, *s.inplace.values()) if n not in own)
    makes = tuple([n for n in dict.fromkeys(n for s in specs for n in s.writes) if n in stay])
    number = {n: k for k, n in enumerate(reads)}
    leaf_of = {made.job.outputs[o]: made.job.leaves[i] for o, i in whole.replaces.items()} | dict(over)
    state = {k: number[leaf_of[n]] for k, n in enumerate(makes) if n in leaf_of and leaf_of[n] in number}
    job = Job(makes, tuple(reads), (), state)
    return Stretch(replace(made, job=job, specs=tuple(specs), chosen=whole.chosen), tuple(reads), makes)


def _slots(
    lives: Sequence[tuple[Node, int, int]], shared: Mapping[Node, Node]
) -> tuple[dict[Node, int], tuple[int, ...]]:
    """Memory for values that live from one item to another: the largest first, each in a slot that is free then.
    `shared`: those that are made over others, in their memory."""
    until = {node: last for node, _, last in lives}
    joined = {old: until[new] for new, old in shared.items()}
    lives = [(n, first, max(last, joined.get(n, last))) for n, first, last in lives if n not in shared]
    room: dict[Node, int] = {}
    sizes: list[int] = []
    busy: list[list[tuple[int, int]]] = []
    for node, first, last in sorted(lives, key=lambda x: (-nbytes(x[0]), x[1])):
        fits = (k for k, b in enumerate(busy) if all(last < f or to < first for f, to in b))
        k = next(fits, len(sizes))
        if k == len(sizes):
            sizes.append(nbytes(node))
            busy.append([])
        busy[k].append((first, last))
        room[node] = k
    room.update({new: room[old] for new, old in shared.items()})
    return room, tuple(sizes)


@dataclass(frozen=True, slots=True)
class _Run:
    """A stretch that is ready to run, and the places of its memories in the table. `updates`: it changes leaves."""

    executable: Executable
    places: tuple[int, ...]
    constants: tuple[int, ...]
    updates: bool

    def run(self, table: Sequence[Memory], queue: int, times: list[int] | None) -> None:
        """Start it; with `times`, wait, and add those of its kernels."""
        given = [table[k] for k in self.places]
        if times is None:
            self.executable.run(given, self.constants, queue)
        else:
            times += self.executable.run_timed(given, self.constants)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of the first bytes at a place of the table to or from a cell, one of its own or that of a resting leaf."""

    place: int
    cell: int
    nbytes: int
    out: bool

    @property
    def updates(self) -> bool:
        """True where it changes a leaf."""
        return self.out and self.cell < 0


class Spilling:
    """An executable over one table of memories: those that are given, then the slots."""

    def __init__(
        self,
        device: Device,
        items: Sequence[_Run | _Copy],
        slots: Sequence[int],
        cells: Sequence[int],
        workspace: Executable,
    ) -> None:
        self._device, self._items, self._slots, self._cells = device, items, slots, cells
        self._workspace = workspace
        self.started = self.finished = 0

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = (), queue: int = 0) -> None:
        """Start the steps. MemoryError, before anything is changed, where a pool has no room."""
        self._run(memories, queue, None)

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        """Run and wait; the nanoseconds of each kernel."""
        times: list[int] = []
        self._run(memories, 0, times)
        self._device.synchronize()
        return times

    def _run(self, memories: Sequence[Memory], queue: int, times: list[int] | None) -> None:
        device, self.started = self._device, self.finished
        cells = slow.reserve(device.info, self._cells)
        table = [*memories, *[device.allocate(n) for n in self._slots]]
        self._workspace.run([], (), queue)  # which is kept for the stretches
        with ExitStack() as whole:
            for item in self._items:
                if not item.updates or self.started != self.finished:
                    self._do(item, table, cells, queue, times)
                    continue
                whole.enter_context(
                    shielded((memories[0],) * 2)
                )  # what has begun to change goes on to the end
                if isinstance(item, _Copy):
                    data = device.read(table[item.place], item.nbytes, 0, queue)
                    self.started = self.finished + 1
                    self._cell(item, table, cells).put(data)
                    continue
                inner, self.started = item.executable.started, self.finished + 1
                try:
                    item.run(table, queue, times)
                except BaseException:
                    if item.executable.started == inner:  # nothing has been changed
                        self.started = self.finished
                    raise
            self.started = self.finished = self.finished + 1

    def _do(
        self,
        item: _Run | _Copy,
        table: Sequence[Memory],
        cells: Sequence[Cell],
        queue: int,
        times: list[int] | None,
    ) -> None:
        if isinstance(item, _Run):
            item.run(table, queue, times)
        elif item.out:
            data = self._device.read(table[item.place], item.nbytes, 0, queue)
            self._cell(item, table, cells).put(data)
        else:
            self._device.write(table[item.place], self._cell(item, table, cells).get(), 0, queue)

    def _cell(self, copy: _Copy, table: Sequence[Memory], cells: Sequence[Cell]) -> Cell:
        if copy.cell >= 0:
            return cells[copy.cell]
        given = table[cell_of(copy.cell)]
        assert isinstance(given, CellMemory)
        return given.cell


def plan_of(found: Split) -> Plan:
    """The plan for a job in stretches."""
    job, device = found.made.job, found.made.device
    place: dict[Node, int] = {n: k for k, n in enumerate(job.leaves)}
    place.update({n: len(job.leaves) + k for k, n in enumerate(job.outputs)})
    externals = len(job.leaves) + len(job.outputs)
    place.update({n: externals + k for n, k in found.room.items()})
    made = {n: k for k, n in enumerate(job.outputs)}
    items: list[_Run | _Copy] = []
    codes: dict[Code, None] = {}
    infos: list[KernelInfo] = []
    steps: list[Step] = []
    largest: list[Tenant] = []
    for item in found.items:
        if isinstance(item, Stretch):
            plan = assembled(item.made).plan({})
            given = tuple([place[n] for n in (*item.reads, *item.makes)])
            updates = any(
                found.replaces.get(made.get(n, -1), -1) not in (-1, *found.rests) for n in item.makes
            )
            items.append(_Run(plan.executable, given, plan.constants, updates))
            codes.update(dict.fromkeys(plan.codes))
            infos += plan.steps
            steps += plan.commands.steps
            largest += plan.largest
        else:
            items.append(_Copy(place[item.node], item.cell, nbytes(item.node), isinstance(item, Out)))
    held = Commands((), 0, (0,) if found.workspace else (), found.workspace)
    executable = Spilling(device, items, found.slots, found.cells, device.link([], held))
    outputs = [OutputSpec(n.dtype, n.shape, found.replaces.get(k)) for k, n in enumerate(job.outputs)]
    return Plan(
        device, Commands((), externals, (), found.workspace + sum(found.slots)), tuple(codes), tuple(outputs), (),
        tuple(infos), executable, tuple(sorted(largest, key=lambda t: -t.nbytes)[:5]),
    )  # fmt: skip
