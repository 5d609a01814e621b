"""Families of graphs: alike but for sizes and numbers, and served by one plan.

The first graph of a family gets a plan of its own. When a second one comes, what differs is made a runtime variable,
or a number that is read from memory, and a plan is built for all; later ones only give these their values (`bound`).
Which graph has what sizes is looked at each time, so a family may guess how sizes hang together (see `varying`).

A graph that comes back often enough has a plan of its own again, where that pays: kernels for known sizes are faster.
How much is guessed from the work, and measured: a plan that takes too long for some sizes is left early.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from weft import settings
from weft.backends.protocol import Device, Memory
from weft.errors import MemoryPlanError, WeftError
from weft.ir.dtypes import DType, packer
from weft.ir.errors import IRError
from weft.ir.expr import Scalar
from weft.ir.graph import Node
from weft.ir.graph_verify import verify_graph
from weft.ir.index import Var
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.logs import logger
from weft.scheduler import disk_cache, recipes
from weft.scheduler.brief import Brief, brief_like_before
from weft.scheduler.outline import (
    Outline,
    count_of,
    followed,
    inside,
    is_plain,
    number_dtypes,
    outline,
    outlined,
    rebuilt,
    result_shapes,
    roles,
)
from weft.scheduler.plan import Feed, Plan, Runs, Shared
from weft.scheduler.recipes import Recipe
from weft.scheduler.signature import Key, Result, Signature, signature
from weft.scheduler.unrolled import Unrolled
from weft.scheduler.varying import Pattern, patterns

if TYPE_CHECKING:
    from weft.backends.storage import Storage
    from weft.scheduler.basic.tiers import Final

FAMILIES_KEPT = 256
"""Structures that are looked out for; the one met longest ago goes first."""

SAMPLES = 6
"""Graphs of a family that patterns are learned from; with as many that follow none, each has a plan of its own."""

GENERAL_PLANS = 8
"""Plans for all sizes that a family may have: each was outgrown by a size beyond its variables' bounds."""

OWN_RATE = 0.3
"""The part of a run's time that a plan of its own is expected to save."""

KERNEL_SECONDS = 0.02
"""The time that building a kernel takes."""

CALL_SECONDS = 2e-6
"""The time that a call takes more with runtime sizes."""

FLOPS, BYTES, LAUNCH_SECONDS = 5e10, 1e10, 1e-6
"""Rough rates of a core: floating-point operations and bytes in a second; and what starting a kernel takes. By these it
is judged when a plan of its own pays: in powers of two, so it need not be exact. Kernels for known sizes mostly reach
twice as much, so a run that takes longer loses by sharing a plan."""

RUN_SECONDS = 5e-5
"""The time of a run beside its kernels."""

ROOMS = (4, 1)
"""Factors by which sizes may outgrow those seen before another plan is built; tried in this order."""

LATEST_NUMBERS = 16
"""The number of graphs that differ in numbers alone among which one comes back."""

LOOP_PLANS = 64
"""Plans kept for the numbers of steps of a family's loops; the one built longest ago goes first."""

ROOMY_BYTES = 16 << 20
"""The workspace up to which the first of these is tried."""


NEVER = 1 << 60
"""A number of turns that does not come."""

_CONST = Op.CONST  # to load a member of an enumeration takes ten times as long

Replaces: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A graph of which all is known but its nodes: the name of its final plan on disk, its results and variables, the
    number of its nodes, and what gives the rows of its signature."""

    name: str
    results: Sequence[Result]
    variables: tuple[Var, ...]
    count: int
    rows: Callable[[], tuple[Any, ...]]


Left: TypeAlias = "Callable[[Wanted, Device], tuple[Unrolled, Final | None] | None]"
"""Basic plans that earlier processes left, with what takes over from them."""

Maker: TypeAlias = "Callable[[Device, Signature, Mapping[int, int]], tuple[Unrolled, Final | None]]"
"""Plans, with what takes over from basic ones."""


@dataclass(slots=True, eq=False)
class _General:
    """A plan for all sizes, and how it is given those of a graph."""

    plan: Plan | Unrolled
    """With `Unrolled`, a plan for each number of steps of its loops; see `plans`."""
    final: Final | None
    """The plan that takes over from a basic one."""
    graph: Callable[[], tuple[Node, ...]]
    recipe: Recipe
    lifted: tuple[tuple[int, Callable[[Scalar], bytes]], ...]
    """The places of the numbers that are read from memory, and what gives their bytes."""
    variables: tuple[Var, ...]
    """The plan's variables, as the pattern has them."""
    plans: dict[tuple[int, ...], tuple[Plan, Shared]] = field(
        default_factory=dict["tuple[int, ...]", "tuple[Plan, Shared]"]
    )
    """Plans by the values of their variables, none where no loop depends on them; and what graphs share of each."""

    def settle(self, plan: Plan | Unrolled) -> None:
        """Take this plan from now on."""
        self.plan, self.final = plan, None
        self.plans.clear()

    def plan_of(self, values: tuple[int, ...]) -> tuple[Plan, Shared]:
        """The plan for these values of its variables, and what graphs share of it."""
        if self.final is not None and self.final.plan is not None:
            self.settle(self.final.plan)
        at = values if isinstance(self.plan, Unrolled) else ()
        found = self.plans.get(at)
        if found is None:
            plan = self.plan
            if isinstance(plan, Unrolled):
                plan = plan.plan({v.name: x for v, x in zip(self.variables, values, strict=True)})
            found = self.plans[at] = plan, Shared(self.graph)
            if len(self.plans) > LOOP_PLANS:
                self.plans.pop(next(iter(self.plans)))
        return found


@dataclass(slots=True)
class _Family:
    """Graphs of one outline."""

    samples: list[Outline] = field(default_factory=list[Outline])
    plans: list[_General] = field(default_factory=list[_General])
    """Plans for all sizes, in the order of `_room`."""
    stored: list[Recipe] = field(default_factory=list[Recipe])
    """Recipes of other processes: their plans are looked for when a graph fits."""
    runs_long: bool = False
    """A run takes so long that each size is worth a plan of its own."""

    def add(self, plan: _General) -> None:
        """Take in one more plan."""
        insort(self.plans, plan, key=_room)


_Where: TypeAlias = tuple[Device, Replaces, int]
_families: dict[tuple[Device, Replaces, Key], _Family] = {}
_alike: dict[tuple[Device, Replaces, Key], Alike] = {}
"""The latest graphs that have numbers, by their rows without these."""
_met: dict[_Where, Key | None] = {}
"""Structures of which one graph has come, with its key; None where there were more."""


def plan_for(
    sig: Signature,
    device: Device,
    replaces: Replaces,
    make: Maker,
    left: Left | None,
    met: Callable[[tuple[Any, ...]], Plan | None],
) -> Plan | None:
    """The plan for the graph as one of a family; None for the first one, and for those that have a plan of their own.
    `make` builds plans; `left` finds basic ones, where these may be taken; `met` gives the plan of a graph met before,
    if it is there."""
    own = outlined(sig)
    family = _family_if_any(device, replaces, own)
    if family is not None:
        found = _found(family, own, sig.key.rows, device, replaces, make, left)
        if found is not None:
            return found
    at = (device, replaces, _coarse(sig.key.rows))
    if at not in _met:
        _met[at] = sig.key if family is None else None
        _bounded(_met)
        if family is None:
            return None
    first = _met[at]
    if first is not None:
        before = outline(first.rows)
        _family(device, replaces, before).samples.append(before)
        _met[at] = None
    family = _family(device, replaces, own)
    if own in family.samples:  # its own plan had to go
        return None
    if len(family.samples) >= SAMPLES or len(family.plans) >= GENERAL_PLANS:
        return None
    family.samples.append(own)
    if len(family.samples) == 1:
        return None
    plan = met((device, first, replaces)) if first is not None else None
    if plan is not None and _seconds(plan) * OWN_RATE >= KERNEL_SECONDS * len(plan.codes):
        family.runs_long = True
    if family.runs_long:
        return None
    size = plan.commands.workspace_bytes if plan is not None else 0
    try:
        general = _learned(family, sig.key.rows, device, replaces, make, size)
    except WeftError as error:  # what is refused for larger sizes may do for this one
        general = str(error)
    if isinstance(general, str):
        logger(__name__).debug("no plan for all sizes yet: %s", general)
        return None
    family.add(general)
    name = recipes.key_of(own, replaces, device)
    if name is not None:
        others = [g.recipe for g in family.plans if g is not general]
        recipes.store(name, [general.recipe, *others, *family.stored])
    found = _bound(general, own, device, replaces)
    assert found is not None  # it was learned from this graph, too
    return found


def forget() -> None:
    """Forget all families. By one thread at a time."""
    for table in (_families, _met, _alike):
        table.clear()


def teach(sig: Signature, device: Device, replaces: Replaces) -> None:
    """Learn from a graph that is not going to run: the next one that is alike gets a plan for all sizes."""
    _met[device, replaces, _coarse(sig.key.rows)] = None
    _bounded(_met)
    own = outlined(sig)
    family = _family(device, replaces, own)
    if not family.plans and not family.stored and len(family.samples) < SAMPLES and own not in family.samples:
        family.samples.append(own)


def known(sig: Signature, device: Device) -> Plan | None:
    """The plan of its family that computing the graph would take, if there is one already. Nothing is built."""
    if sig.variables or sig.homeless:
        return None
    sig.found = _briefly(sig.key.rows, device, ())
    if sig.found is not None:
        return sig.found
    own = outlined(sig)
    family = _family_if_any(device, (), own)
    sig.found = None if family is None else _found(family, own, sig.key.rows, device, (), None)
    return sig.found


def settled(
    sig: Signature, device: Device, replaces: Replaces, final: Final, make: Callable[[], Plan | Unrolled]
) -> Plan | None:
    """The plan for a graph of a family whose basic one gives way to `final`, which `make` builds if it is not there."""
    own = outlined(sig)
    family = _families.get((device, replaces, own.key))
    for general in family.plans if family is not None else ():
        if general.final is final:
            general.settle(final.plan or make())
    found = known_plan(sig, device, replaces)
    return None if found is None else found[0]


def known_plan(sig: Signature, device: Device, replaces: Replaces) -> tuple[Plan, bool] | None:
    """As `plan_for`, where a plan is in memory that serves the graph. True with one that is worth keeping for this very
    graph: not where it differs from those before in numbers alone, and these did not come lately."""
    if sig.found is not None and sig.found.device is device and not replaces:
        return sig.found, True
    rows = sig.key.rows
    at = varying(rows)
    key = (device, replaces, _without(at, rows)) if at else None
    alike = None if key is None else _alike.get(key)
    if alike is not None:
        found = alike.plan(at, rows, device, replaces)
        if found is not None:
            return found
    if key is None:
        plan = _briefly(rows, device, replaces)
        if plan is not None:
            return plan, True
    own = outlined(sig)
    family = _families.get((device, replaces, own.key))
    if family is None:
        return None
    for general in family.plans:
        if any(_room(r) < _room(general) and r.bind(own) is not None for r in family.stored):
            return None
        found = _bound(general, own, device, replaces)
        if found is not None:
            if key is not None:
                _alike[key] = Alike(general, family, len(family.plans), own)
                _bounded(_alike)
            return found, True
    return None


def _briefly(rows: tuple[Any, ...], device: Device, replaces: Replaces) -> Plan | None:
    """The plan that the outline would be found to fit first, where a brief says so."""
    brief = brief_like_before(rows)
    family = None if brief is None else _families.get((device, replaces, brief.key))
    if brief is None or family is None:
        return None
    for general in family.plans:
        recipe = general.recipe
        if any(_room(r) < recipe.room and _may_fit(r, brief) for r in family.stored):
            return None
        pattern = brief.of(recipe.pattern)
        if pattern is None:
            return None
        values = pattern.bind(brief.sizes) if recipe.has(brief.numbers) else None
        if settings.verify():
            _compare(brief, recipe, values)
        if values is not None:
            bound = tuple([values[k] for k in recipe.variables])
            return _fed(general, bound, brief.numbers, device, replaces)
    return None


def _may_fit(recipe: Recipe, brief: Brief) -> bool:
    """False where a brief says that the graph has other sizes or numbers than a recipe's."""
    if not recipe.has(brief.numbers):
        return False
    pattern = brief.of(recipe.pattern)
    return pattern is None or pattern.bind(brief.sizes) is not None


def _compare(brief: Brief, recipe: Recipe, values: tuple[int, ...] | None) -> None:
    """IRError where the outline says something else than a brief."""
    own = outline(brief.rows)
    if own.key != brief.key or own.numbers != brief.numbers or recipe.bind(own) != values:
        raise IRError("a graph's outline is not what was made of the one before", "brief")


@dataclass(slots=True, eq=False)
class Alike:
    """The plan of a graph, for those that differ from it in numbers alone."""

    general: _General
    family: _Family
    count: int
    """The number of the family's plans, when this one was found."""
    own: Outline
    read: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """The places of the graph's own numbers among the outline's, and the values of the plan's variables."""
    latest: tuple[tuple[Scalar, ...], ...] = ()
    """The numbers that came last."""

    def plan(
        self, at: Sequence[int], rows: tuple[Any, ...], device: Device, replaces: Replaces
    ) -> tuple[Plan, bool] | None:
        """As `known_plan`, by the numbers `at` these rows. None where the family has others by now, or is gone."""
        if not self._is_last(device, replaces):
            return None
        given = tuple([rows[k][1].value for k in at])
        numbers = self._numbers(given, self._read(rows)[0])
        if numbers is None:
            return None
        return _fed(self.general, self._read(rows)[1], numbers, device, replaces), self._came(given)

    def ready(self, rows: tuple[Any, ...]) -> bool:
        """True where the plan is for numbers alone: it may be `run`."""
        return not self._read(rows)[1]

    def run(self, given: tuple[Scalar, ...], leaves: Sequence[Memory]) -> list[Storage] | None:
        """The results for numbers that did not come lately, on the memory of the graph's leaves. None where the plan is
        not for them, or has to give way, or the family has others by now, or is gone."""
        general = self.general
        final = general.final  # once: another thread may settle on it
        if self.read is None or (final is not None and final.due()):
            return None
        plan, _ = general.plan_of(())
        if not self._is_last(plan.device, ()) or self._came(given):
            return None
        numbers = self._numbers(given, self.read[0])
        return None if numbers is None else plan.run_fed(leaves, _feed(general, numbers, plan.device), final)

    def _is_last(self, device: Device, replaces: Replaces) -> bool:
        family = self.family
        return _families.get((device, replaces, self.own.key)) is family and len(family.plans) <= self.count

    def _read(self, rows: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        read = self.read
        if read is None:
            values = self.general.recipe.pattern.bind(self.own.sizes)
            assert values is not None  # it was taken by them
            bound = tuple([values[k] for k in self.general.recipe.variables])
            read = self.read = _places(varying(rows), rows), bound
        return read

    def _numbers(self, given: Sequence[Scalar], places: Sequence[int]) -> list[Scalar] | None:
        """The numbers of the outline, with those given in their places; None where the plan is not for them."""
        numbers, recipe = list(self.own.numbers), self.general.recipe
        for k, number in zip(places, given, strict=True):
            numbers[k] = number
        return numbers if not recipe.fixed or recipe.has(numbers) else None

    def _came(self, given: tuple[Scalar, ...]) -> bool:
        """True where these numbers came lately."""
        if given in self.latest:
            return True
        self.latest = (*self.latest[1 - LATEST_NUMBERS :], given)  # no lock is held by who has a shortcut
        return False


def alike(rows: tuple[Any, ...], device: Device) -> Alike | None:
    """The plan for graphs that differ from one in numbers alone, where there is one, which is for no other sizes."""
    found = _alike.get((device, (), without_numbers(rows)))
    return found if found is not None and found.ready(rows) else None


def varying(rows: Sequence[Any]) -> list[int]:
    """The rows of numbers that are no part of the structure."""
    return [k for k, r in enumerate(rows) if r[0] is _CONST and not is_plain(r[1].value, r[2])]


def without_numbers(rows: Sequence[Any]) -> Key:
    """Rows as a key, without such numbers."""
    return _without(varying(rows), rows)


def _without(at: Sequence[int], rows: Sequence[Any]) -> Key:
    """Rows as a key, without the numbers of some."""
    own = list(rows)
    for k in at:
        own[k] = rows[k][2:]
    return Key(tuple(own))


def _places(at: Sequence[int], rows: Sequence[Any]) -> tuple[int, ...]:
    """The places of the numbers `at` these rows among the outline's, where those in calls are, too."""
    inner = [len(inside(r[1]).numbers) if r[0] is Op.CALL else 0 for r in rows[:-1]]
    return tuple([n + sum(inner[:k]) for n, k in enumerate(at)])


def _found(
    family: _Family,
    own: Outline,
    rows: tuple[Any, ...],
    device: Device,
    replaces: Replaces,
    make: Maker | None,
    left: Left | None = None,
) -> Plan | None:
    """The plan for a graph, if it fits one for all sizes. Without `make`, nothing is built."""
    for given in sorted([*family.plans, *family.stored], key=_room) if family.stored else family.plans:
        if isinstance(given, _General):
            found = _bound(given, own, device, replaces)
            if found is not None:
                return found
            continue
        if given.bind(own) is None:
            continue
        general = _loaded(given, rows, device, left)
        if general is None and make is not None:
            general = _made(
                given.pattern, given.lifted, given.fixed, rows, device, replaces, make, learned=False
            )
        if general is not None:
            family.add(general)
            family.stored.remove(given)
            return _bound(general, own, device, replaces)
    return None


def _room(given: _General | Recipe) -> int:
    """The order in which plans are asked: those with room for fewer sizes first."""
    return (given.recipe if isinstance(given, _General) else given).room


def turns(plan: Plan) -> int:
    """The number of runs after which a plan of its own pays, for a graph that shares one; 0 for those that do not."""
    shared = plan.shared
    if shared is None:
        return 0
    if not shared.sizes:
        return NEVER
    saved = OWN_RATE * _shared_seconds(plan, shared) + CALL_SECONDS
    return 1 << max(int(KERNEL_SECONDS * len(plan.codes) / saved), 2).bit_length()


def is_slow(plan: Plan) -> bool:
    """True where a plan of its own would have been built in the time that a graph's runs on a shared one took beyond
    what is expected of them."""
    shared, worth = plan.shared, KERNEL_SECONDS * len(plan.codes)
    if shared is None or shared.runs.seconds < worth or not shared.sizes:
        return False
    runs = shared.runs
    if runs.expected is None:
        runs.expected = _shared_seconds(plan, shared) + RUN_SECONDS
    return runs.seconds - runs.count * runs.expected >= worth


def _seconds(plan: Plan) -> float:
    """The time that a run takes, roughly, with the work that the steps are described with."""
    return _work_seconds(plan) + len(plan.steps) * LAUNCH_SECONDS


def _shared_seconds(plan: Plan, shared: Shared) -> float:
    """The same, with the share of that work that there is for the sizes of a graph."""
    return shared.share * _work_seconds(plan) + len(plan.steps) * LAUNCH_SECONDS


def _work_seconds(plan: Plan) -> float:
    return sum([max(s.flops / FLOPS, s.bytes / BYTES) for s in plan.steps])


def _family(device: Device, replaces: Replaces, own: Outline) -> _Family:
    found = _family_if_any(device, replaces, own)
    if found is None:
        found = _families[device, replaces, own.key] = _Family()
        _bounded(_families)
    return found


def _family_if_any(device: Device, replaces: Replaces, own: Outline) -> _Family | None:
    """The graphs like this one, if two of them have come, or other processes left recipes for them."""
    found = _families.get((device, replaces, own.key))
    if found is None:
        name = recipes.key_of(own, replaces, device)
        stored = [] if name is None else recipes.load(name, own)
        if stored:
            found = _families[device, replaces, own.key] = _Family(stored=stored)
            _bounded(_families)
    return found


def _bounded(table: dict[Any, Any]) -> None:
    while len(table) > FAMILIES_KEPT:
        table.pop(next(iter(table)), None)


def _coarse(rows: Sequence[Any]) -> int:
    """A hash that graphs of one family have in common; what is inside calls is not looked at."""
    return hash(
        tuple(
            [
                (r[0], len(r[1]), r[2]) if r[0].__class__ is DType else (r[0], r[2], len(r[3]), *r[4:])
                for r in rows[:-1]
            ]
        )
    )


def _learned(
    family: _Family, rows: tuple[Any, ...], device: Device, replaces: Replaces, make: Maker, workspace: int
) -> _General | str:
    """A plan for all graphs like the samples; or the reason why there is none."""
    samples = family.samples
    columns = list(zip(*[s.numbers for s in samples], strict=True))
    lifted = frozenset(k for k, c in enumerate(columns) if any(x != c[0] for x in c))
    rooms = ROOMS if workspace <= ROOMY_BYTES else ROOMS[1:]
    fixed = tuple([(k, c[0]) for k, c in enumerate(columns) if k not in lifted])
    reason: IRError | str = "no pattern"
    for pattern in patterns(list(roles(rows)), [s.sizes for s in samples], rooms, followed(rows)):
        try:
            return _made(pattern, tuple(sorted(lifted)), fixed, rows, device, replaces, make)
        except IRError as error:
            reason = error
    return str(reason)


def _made(
    pattern: Pattern,
    lifted: tuple[int, ...],
    fixed: tuple[tuple[int, Scalar], ...],
    rows: tuple[Any, ...],
    device: Device,
    replaces: Replaces,
    make: Maker,
    learned: bool = True,
) -> _General:
    """The plan for all graphs of a pattern, found or built. IRError where there is no graph of these sizes; not looked
    for unless it was just `learned`."""
    made = rebuilt(rows, pattern.sizes, frozenset(lifted), device.info.name)
    if learned or settings.verify():
        verify_graph(made.outputs)
    sig = signature(made.outputs)
    leaf = {n: k for k, n in enumerate((*made.leaves, *(made.numbers[k] for k in lifted)))}
    order = tuple([leaf[n] for n in sig.leaves])
    moved = {k: order.index(i) for k, i in replaces if i in order}
    plan, final = make(device, sig, moved)
    names = [v.name for v in pattern.variables]
    used = tuple([names.index(v.name) for v in sig.variables])
    name = disk_cache.key_of(sig, moved, device)
    recipe = Recipe(pattern, order, len(made.leaves), lifted, fixed, used, name)
    return _general(plan, final, recipe, rows, device)


def _loaded(recipe: Recipe, rows: tuple[Any, ...], device: Device, left: Left | None) -> _General | None:
    """The plan for all sizes that another process built, if it is on disk; or the basic one that is `left` there."""
    if recipe.plan is None:
        return None
    dtypes = [row[0] if row[0].__class__ is DType else row[2] for row in rows[:-1]]
    shapes = result_shapes(rows, recipe.pattern.sizes)
    outputs = [Result(dtypes[k], shape) for k, shape in zip(rows[-1], shapes, strict=True)]
    variables = tuple([recipe.pattern.variables[k] for k in recipe.variables])
    plan, final = disk_cache.load(recipe.plan, device, outputs, variables), None
    if plan is None and left is not None:

        def all_rows() -> tuple[Any, ...]:
            return signature(_graph(recipe, rows, device)).key.rows

        found = left(Wanted(recipe.plan, outputs, variables, count_of(rows), all_rows), device)
        plan, final = found or (None, None)
    if plan is None or plan.externals != len(recipe.order) + len(outputs):
        return None
    return _general(plan, final, recipe, rows, device)


def _graph(recipe: Recipe, rows: tuple[Any, ...], device: Device) -> tuple[Node, ...]:
    """The graph of a recipe, for all sizes."""
    return rebuilt(rows, recipe.pattern.sizes, frozenset(recipe.lifted), device.info.name).outputs


def _general(
    made: Unrolled, final: Final | None, recipe: Recipe, rows: tuple[Any, ...], device: Device
) -> _General:
    dtypes = list(number_dtypes(rows))
    graph = partial(_graph, recipe, rows, device)
    lifted = tuple([(k, packer(dtypes[k])) for k in recipe.lifted])
    variables = tuple([recipe.pattern.variables[k] for k in recipe.variables])
    return _General(made.settled(), final, graph, recipe, lifted, variables)


def _bound(general: _General, own: Outline, device: Device, replaces: Replaces) -> Plan | None:
    """The plan for a graph of these sizes and numbers; None where they do not fit."""
    recipe = general.recipe
    values = recipe.bind(own)
    if values is None:
        return None
    return _fed(general, tuple([values[k] for k in recipe.variables]), own.numbers, device, replaces)


def _fed(
    general: _General,
    bound: tuple[int, ...],
    numbers: Sequence[Scalar],
    device: Device,
    replaces: Replaces,
) -> Plan:
    """The plan for a graph with these values of its variables, and numbers."""
    feed = _feed(general, numbers, device)
    plan, shared = general.plan_of(bound)
    if bound:
        shared = Shared(shared.graph, tuple(zip(general.variables, bound, strict=True)), Runs())
    return plan.bound(bound, feed, dict(replaces), shared, general.final)


def _feed(general: _General, numbers: Sequence[Scalar], device: Device) -> Feed:
    """The memory of each leaf of a plan: a leaf of the graph, or one of these numbers."""
    order = general.recipe.order
    if not general.lifted:
        return order
    leaves = general.recipe.leaves
    given = [_memory(packed(numbers[k]), device) for k, packed in general.lifted]
    return tuple([k if k < leaves else given[k - leaves] for k in order])


def _memory(data: bytes, device: Device) -> Memory:
    """A number in memory of the device."""
    try:
        memory = device.allocate(len(data))
    except MemoryError as error:
        raise MemoryPlanError(f"a number does not fit: {error}") from error
    device.write(memory, memoryview(data))
    return memory
