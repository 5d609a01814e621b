"""Keeping in a limit, for a form of a session: solved from estimates, and checked against real plans.

The problem of `keeping.py` counts bytes of values and estimates the scratch of runs. What scratch plans take is known
once they are made, so the limit that is solved for is corrected by what they took more, until the plans of what was
chosen fit: no run starts that was not measured before. Where none fits, the least that would do is that of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from weft.backends.protocol import Divider
from weft.errors import FileFormatError, MemoryPlanError
from weft.ir.graph import Node
from weft.ir.regions.region import Region
from weft.lazy_dataclass import dataclass
from weft.scheduler.keeping import nbytes
from weft.scheduler.kernelize.uses import find_uses
from weft.scheduler.signature import signature
from weft.sessions.buckets import Bucket
from weft.sessions.costs import Change, retention, value_name
from weft.sessions.keeping import Keeping, keep, least, rank, stacked, unlimited
from weft.sessions.plan_file import SavedCase, SavedPlan, SavedValue
from weft.sessions.plans import Run, stored_nodes
from weft.sessions.pool import Arena, MemoryPool, most_within, rounded
from weft.sessions.retention import Retention, aligned, bits, members
from weft.sessions.sharing import Ladder, Rung
from weft.sessions.state import copied, is_alone
from weft.sessions.transitions import TransitionLog

if TYPE_CHECKING:
    from weft.backends.protocol import Memory
    from weft.backends.storage import Storage
    from weft.sessions.form import Form
    from weft.sessions.recorded import Template

EVERYTHING = "all"
"""The name of the bucket of a run that computes everything."""

TRIES = 6
"""Limits that are solved for before the least that would do is taken, or named."""


RUNGS = 12
"""Choices of what to keep that a form offers, to divide a pool by."""

LEAST_LOST = 1e-3
"""The part of the time that the limit has to cost for scratch to have the places of what is kept: it takes all bytes of
the limit then."""


def name_of(bucket: Bucket) -> str:
    """A bucket as text, the same in every process."""
    return repr(tuple(bucket))


@dataclass(frozen=True, slots=True)
class FormMemory:
    """Bytes of what is kept, of the results, and the most scratch of any run, as the device rounds them."""

    kept: int = 0
    results: int = 0
    scratch: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.kept + self.results + self.scratch


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The nodes to keep, in the order of computation. `arena`: the bytes of the memory that they share with the scratch
    of runs, and where in it each begins that is no result; None where scratch is the device's."""

    nodes: tuple[Node, ...]
    arena: int | None = None
    offsets: Mapping[Node, int] = field(default_factory=dict["Node", int])


class Keeper:
    """The values that a form keeps, and where: chosen in the limit of a pool, each at an offset of one arena."""

    def __init__(self, template: Template, pool: MemoryPool | None) -> None:
        self.pool, self.log = pool, TransitionLog()
        self._template = template
        self.stored = stored_nodes(template.results, template.order, template.device)
        self.kept = self.stored
        self.answer: Keeping | None = None
        """The last choice; None where everything is kept that kernels store."""
        self.names: tuple[str, ...] = (EVERYTHING,)
        """The buckets that were chosen for."""
        self.planned = FormMemory()
        self.part: int | None = None
        """The bytes of the pool that are the form's; None where it takes turns with others."""
        self._least = 0
        """The bytes that the plans of the last choice that was refused take at least."""
        self.places: dict[Node, int] = {}
        """The nodes with a place in the arena, by number."""
        self.shares = False
        """True where scratch of runs may take the places of what is kept."""
        self._arena = Arena.packed(template.device, ())
        self._offsets: Mapping[Node, int] = {}
        self._scratch: dict[Run, list[Memory]] = {}
        self._problem: Retention | None = None
        self._room = 0
        self._graph: str | None = None

    # choosing -------------------------------------------------------------------------------------------------------

    def problem(self, reaches: Mapping[str, Mapping[Node, Region]]) -> Retention:
        """The problem of what to keep for buckets that reach these regions, as probable as the log says."""
        self.names = (EVERYTHING, *reaches)
        every = [Change(EVERYTHING, {}), *(Change(name, dirty) for name, dirty in reaches.items())]
        t = self._template
        return retention(
            self.stored,
            t.results,
            every,
            self.log.chances(self.names),
            t.device.info,
            find_uses(t.order, frozenset(t.results)),
        )

    def solved(
        self,
        reaches: Mapping[str, Mapping[Node, Region]],
        seconds: float,
        measure: Callable[[Choice], int],
    ) -> Choice:
        """The nodes to keep. `measure` gives the bytes that plans take which keep some. MemoryPlanError where nothing
        fits: it says what the least limit would be."""
        p = self._problem = self.problem(reaches)
        if self.pool is None:
            self.answer = keep(p)
            return Choice(self._nodes(self.answer))
        apart, refused = None, None
        try:
            apart = self._fitting(p, self.limit, seconds, lambda a: measure(Choice(self._nodes(a))))
        except MemoryPlanError as error:
            if (
                self.part is not None and self.part < self._least <= self.pool.nbytes
            ):  # no more than has to be
                self.part = self._least
                return self.solved(reaches, seconds, measure)
            refused = error
        if apart is None or apart.ns > (1 + LEAST_LOST) * keep(p).ns:
            shared = self._sharing(p, self.limit, seconds)
            if shared is not None and (apart is None or shared[0].ns <= (1 + LEAST_LOST) * apart.ns):
                try:
                    measure(shared[1])
                except MemoryPlanError:
                    pass
                else:
                    self.answer = shared[0]
                    return shared[1]
        if apart is None:
            assert refused is not None
            raise refused
        self.answer = apart
        return Choice(self._nodes(apart))

    def _sharing(self, p: Retention, limit: int, seconds: float) -> tuple[Keeping, Choice] | None:
        """The best answer in which scratch may take the places of what is kept, where the device can do that."""
        device, pinned = self._template.device, sum(aligned(v.nbytes) for v in p.values if v.pinned)
        if not isinstance(device, Divider) or self.part is not None:  # scratch is what others have, too
            return None
        given = sum(rounded(device, v.nbytes) for v in p.values if v.pinned)
        room = most_within(device, limit - given)
        try:
            answer = keep(p, room + pinned, seconds)
        except MemoryPlanError:
            return None
        places = zip(answer.kept, answer.offsets, strict=True)
        offsets = {self.stored[k]: at for k, at in places if not p.values[k].pinned}
        return (answer, Choice(self._nodes(answer), room, offsets)) if offsets else None

    def _fitting(
        self, p: Retention, limit: int, seconds: float, measure: Callable[[Keeping], int]
    ) -> Keeping:
        aim = limit
        for _ in range(TRIES):
            try:
                answer = keep(p, aim, seconds, shares=False)
            except MemoryPlanError:
                break
            over = measure(answer) - limit
            if over <= 0:
                return answer
            aim -= over
        order, needs = rank(p), list[int]()
        for kept in dict.fromkeys((least(p, order)[1], members(p.pinned))):
            answer = stacked(p, kept, unlimited(p, order))
            assert answer is not None
            needs.append(measure(answer))
            if needs[-1] <= limit:
                return answer
        self._least = min(needs)
        raise MemoryPlanError(
            f"session: its results and what its largest run needs take at least {min(needs):,} bytes, and the limit "
            f"is {limit:,}. Raise memory=, or use smaller inputs"
        )

    def _nodes(self, answer: Keeping) -> tuple[Node, ...]:
        return tuple([self.stored[k] for k in sorted(answer.kept)])

    # files ----------------------------------------------------------------------------------------------------------

    def saved(self, reaches: Mapping[str, Mapping[Node, Region]]) -> SavedPlan:
        """The choice as a plan file has it, for these buckets."""
        p = self.problem(reaches)
        order = rank(p)
        kept = {k for k, n in enumerate(self.stored) if n in set(self.kept)}
        first = (*members(p.pinned), *(k for k in order if k in kept))
        answer = stacked(p, first, unlimited(p, order))
        assert answer is not None
        names = set(self.names)
        return SavedPlan(
            self.graph,
            self.device,
            self._values(),
            tuple([SavedCase(c.name, tuple(sorted(c.dirty))) for c in p.cases]),
            answer,
            {pair: n for pair, n in self.log.counts.items() if names.issuperset(pair)},
        )

    def adopted(self, saved: SavedPlan, name: str) -> tuple[Node, ...]:
        """The nodes that a plan file keeps, in the order of computation, whose log goes on from here. FileFormatError
        where its values are not those of this form."""
        if saved.values != self._values():
            raise FileFormatError(
                f"{name} keeps other values than this version computes: {len(saved.values)}, and here "
                f"{len(self.stored)}; save it again"
            )
        self.log.counts.update(saved.transitions)
        self.answer = saved.keeping
        return self._nodes(saved.keeping)

    def _values(self) -> tuple[SavedValue, ...]:
        results = set(self._template.results)
        return tuple(
            [SavedValue(value_name(k, n), nbytes(n), n in results) for k, n in enumerate(self.stored)]
        )

    @property
    def graph(self) -> str:
        """The digest of what is computed."""
        if self._graph is None:
            self._graph = signature(self._template.results).digest()
        return self._graph

    @property
    def device(self) -> str:
        """The kind of device that plans are for."""
        info = self._template.device.info
        return f"{info.kind} ({info.description})"

    # memory ---------------------------------------------------------------------------------------------------------

    def keep(self, choice: Choice) -> None:
        """Have these be what is kept."""
        device, results = self._template.device, set(self._template.results)
        self.kept = choice.nodes
        inside = [n for n in self.kept if n not in results] if self.pool is not None else []
        self.places = {n: k for k, n in enumerate(inside)}
        self.shares, self._offsets = choice.arena is not None, choice.offsets
        if choice.arena is None:
            self._arena = Arena.packed(device, [nbytes(n) for n in inside])
        else:
            self._arena = Arena(device, [(self._offsets[n], nbytes(n)) for n in inside], choice.arena)
            self._room = choice.arena
        self.planned = FormMemory()

    def within(self, r: Run) -> Run:
        """A run as it is started: its scratch in the arena, where that is shared."""
        return r.with_scratch_given() if self.shares else r

    def reached(self, r: Run) -> frozenset[Node] | None:
        """The kept nodes that the scratch of a run takes the places of; None where it does not fit at all."""
        if not self.shares:
            return frozenset()
        scratch = r.scratch_bytes(self.places)
        return (
            None if scratch > self._room else frozenset(n for n, at in self._offsets.items() if at < scratch)
        )

    def restored(
        self,
        bucket: str,
        reach: Callable[[], Mapping[str, Mapping[Node, Region]]],
        valid: Collection[Node],
        lost: Collection[Node],
    ) -> frozenset[Node]:
        """The lost nodes of which runs of a bucket need everything, so that they are computed whole. `reach`: the
        regions of all buckets so far, for one that the problem does not know."""
        if not lost:
            return frozenset()
        if self._problem is None or bucket not in self.names:
            self._problem = self.problem(reach())
        number = {n: k for k, n in enumerate(self.stored)}
        there = bits(number[n] for n in valid)
        stores = self._problem.work(self.names.index(bucket), there, there | bits(number[n] for n in lost))[4]
        return frozenset(self.stored[k] for k in members(stores))

    @property
    def fits(self) -> bool:
        """True where what was planned is in the limit."""
        return self.pool is None or self.planned.total <= self.limit

    @property
    def limit(self) -> int:
        """The bytes that the form may take: its part of the pool's, or all of these."""
        assert self.pool is not None
        return min(self.pool.nbytes, self.part or self.pool.nbytes)

    def ladder(self, p: Retention, scratch: int, runs: int, turns: int) -> Ladder:
        """The choices of what to keep, from all that is worth it to results only, with bytes and times by estimate.
        `scratch`: what plans take; it is no less with less that is kept."""
        self._problem = p
        order, first = rank(p), members(p.pinned)
        limit, rungs, whole = unlimited(p, order), list[Rung](), 0.0
        counts = sorted({len(order) * k // RUNGS for k in range(RUNGS + 1)}, reverse=True)
        for count in counts:
            answer = stacked(p, (*first, *order[:count]), limit, shares=False)
            if answer is None:
                continue
            kept = sum(aligned(p.values[k].nbytes) for k in answer.kept)
            rungs.append(Rung(kept, max(scratch, *(s.scratch for s in answer.states)), answer.ns))
            whole = answer.states[0].ns
        return Ladder(tuple(rungs), whole, runs, turns)

    def memory(self, runs: Sequence[Run]) -> FormMemory:
        """The bytes that are taken by what is kept, and these runs."""
        device, results = self._template.device, set(self._template.results)
        scratch = 0 if self.shares else max([r.scratch_bytes(self.places) for r in runs], default=0)
        given = sum(rounded(device, nbytes(n)) for n in self.kept if n in results)
        kept = self._arena.nbytes
        if self.pool is None:
            kept = sum(rounded(device, nbytes(n)) for n in self.kept if n not in results)
        return FormMemory(kept, given, rounded(device, scratch))

    def enter(self, form: Form) -> bool:
        """Have room in the pool for a run of the form; False where it has to choose anew what to keep."""
        if self.pool is None:
            return True
        if not self.planned.total:
            self.planned = form.memory()
        return self.pool.enter(form, self.planned.kept + self.planned.results, self.planned.scratch)

    def release(self, form: Form) -> None:
        """Give back the memory of what is kept."""
        self._arena.release()
        self._scratch = {}
        if self.pool is not None:
            self.pool.leave(form)

    def place(self, n: Node) -> Memory | None:
        """The place of a node in the arena."""
        return self._arena.memories[self.places[n]] if n in self.places else None

    def places_of(self, r: Run, values: dict[Node, Storage]) -> dict[int, Memory]:
        """The places of results of a run that does not read what is there, by number: of results of the function, where
        the old ones are, if nobody else has them."""
        found: dict[int, Memory] = {}
        for n, k in r.anew:
            at = self.place(n)
            if at is None and n in values and is_alone(values, n):
                at = values[n].memory
            if at is not None:
                found[k] = at
        if self.shares and r.aside:
            offset = aligned(r.workspace_bytes)
            for n, k in r.aside:
                if n in self.places:
                    found[k] = self._arena.part(offset, nbytes(n))
                    offset += aligned(nbytes(n))
        return found

    def scratch_of(self, r: Run) -> list[Memory]:
        """The memories in the arena that a run is given as its workspace."""
        if r not in self._scratch:
            self._scratch[r] = [self._arena.part(at, r.workspace_bytes - at) for at in r.offsets]
        return self._scratch[r]

    def placed(self, n: Node, storage: Storage) -> Storage:
        """The value of a node in its place."""
        at = self.place(n)
        return storage if at is None or storage.memory is at else copied(storage, at)
