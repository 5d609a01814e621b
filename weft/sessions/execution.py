"""Runs of plans on what a form of a session keeps.

    the first time      all memories are looked up, a few for each kernel, and given to the plan
    again               where nothing was moved meanwhile: only those of arguments, and of results

What else a plan reads and writes is where it was: kept values move only here, and of the tensors that the function
uses without being given them `core/execute/edits.py` knows whether any changed. Their memories are not held, so another
thread could have them freed while kernels run: then, and where anything was edited during a run, it does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from weft.backends.protocol import Repeater
from weft.backends.storage import Storage
from weft.core.execute.ownership import sole_thread
from weft.lazy_dataclass import dataclass
from weft.sessions.inputs import EditedError
from weft.sessions.state import copied, own_memory

if TYPE_CHECKING:
    from weft.backends.protocol import Memory
    from weft.ir.graph import Node
    from weft.scheduler.plan import Plan
    from weft.sessions.inputs import Inputs
    from weft.sessions.keeper import Keeper
    from weft.sessions.plans import Run
    from weft.sessions.recorded import Template


@dataclass(slots=True, eq=False)
class Bound:
    """The memories of a run, by their numbers: `template` has those that never change, `arguments` and `captured` those
    of inputs, by number, `kept` those of kept values, `looked` and `given` those of results, which move: the latter are
    written over, and the caller may have the old ones."""

    plan: Plan
    template: tuple[Any, ...]
    arguments: tuple[tuple[int, int], ...]
    captured: tuple[tuple[int, int], ...]
    kept: tuple[tuple[int, Node], ...]
    looked: tuple[tuple[int, Node], ...]
    given: tuple[tuple[int, Node], ...]
    made: tuple[tuple[int, tuple[Node, ...]], ...]
    """The results of which something is to be noted, by number, and the nodes: others are where they were."""
    results_given: Mapping[int, int]
    """The results that take the memories of those `given`."""
    anew: tuple[int, ...]
    """The results that take the memory of no input."""
    can_repeat: bool
    """True where the plan can run again on the memories of its last run."""
    last: tuple[object, object] = (None, None)
    """The object that stands for where everything was in the last run, and the edits that had been made; None where the
    plan cannot run again."""


class Execution:
    """Runs on what is kept; see the module. `leaves`: the leaves that stand for kept values."""

    def __init__(
        self, template: Template, inputs: Inputs, keeper: Keeper, leaves: Mapping[Node, Node]
    ) -> None:
        self._template, self._inputs, self._keeper, self._leaves = template, inputs, keeper, leaves
        self._results = frozenset(template.results)
        self._bound: dict[Run, Bound] = {}
        self._layout = object()
        """Another one whenever a kept value that is no result is elsewhere."""

    def clear(self) -> None:
        """Forget all runs: what is kept is another set."""
        self._bound = {}
        self.moved()

    def moved(self) -> None:
        """Have the next run of each plan look up all memories: what is kept is elsewhere."""
        self._layout = object()

    def run(self, r: Run, inputs: dict[int, Storage], values: dict[Node, Storage], at: Sequence[int]) -> None:
        """Run a plan, which writes over what is kept. `at`: the values of all runtime variables. EditedError where what
        the function uses without being given it was edited meanwhile."""
        if r.plan is None:
            return
        b = self._bound.get(r)
        if b is None:
            b = self._bound[r] = self._bind(r, r.plan)
        numbers = [at[k] for k in r.values]
        edit = self._inputs.edit
        if edit is not None and b.last == (self._layout, edit) and sole_thread():
            self._again(r, b, inputs, values, numbers)
            if self._inputs.are_edited(edit) or not sole_thread():
                raise EditedError
        else:
            self._anew(r, b, inputs, values, numbers)

    def _again(
        self,
        r: Run,
        b: Bound,
        inputs: Mapping[int, Storage],
        values: dict[Node, Storage],
        numbers: Sequence[int],
    ) -> None:
        """Run on the memories of the last time."""
        first = len(b.template)
        changed = [(i, inputs[k].memory) for i, k in b.arguments]
        changed += [(i, values[n].memory) for i, n in b.looked]
        for i, n in b.given:
            memory = own_memory(values, n)
            changed += [(i, memory), (first + b.results_given[i], memory)]
        if b.anew:
            places = self._keeper.places_of(r, values)
            changed += [(first + k, places[k] if k in places else b.plan.allocated(k)) for k in b.anew]
        b.plan.start_again(changed, numbers)
        if b.made:
            at = dict(changed)
            made = [at[first + k] if first + k in at else values[nodes[0]].memory for k, nodes in b.made]
            self._note(b, made, values)

    def _anew(
        self,
        r: Run,
        b: Bound,
        inputs: dict[int, Storage],
        values: dict[Node, Storage],
        numbers: Sequence[int],
    ) -> None:
        """Run on memories that are looked up."""
        self._inputs.complete(inputs)
        memories: list[Memory] = list(b.template)
        for i, k in (*b.arguments, *b.captured):
            memories[i] = inputs[k].memory
        for i, n in (*b.kept, *b.looked):
            memories[i] = values[n].memory
        for i, n in b.given:
            memories[i] = own_memory(values, n)
        memories = b.plan.external(memories, numbers, self._keeper.places_of(r, values))
        if r.offsets:
            memories += self._keeper.scratch_of(r)
        b.plan.start(memories, numbers)
        first = len(b.plan.feed or b.template)
        self._note(b, [memories[first + k] for k, _ in b.made], values)
        b.last = (self._layout, self._inputs.edit if b.can_repeat else None)

    def _note(self, b: Bound, made: Sequence[Memory], values: dict[Node, Storage]) -> None:
        """Have the kept values be where a run made them."""
        device, keeper = self._template.device, self._keeper
        for memory, (_, nodes) in zip(made, b.made, strict=True):
            n = nodes[0]
            self._put(n, keeper.placed(n, Storage(device, memory, n.dtype, _sized(n))), values)
            for other in nodes[1:]:
                self._put(other, copied(values[n], keeper.place(other)), values)

    def _put(self, n: Node, storage: Storage, values: dict[Node, Storage]) -> None:
        before = values.get(n)
        if n not in self._results and (before is None or before.memory is not storage.memory):
            self.moved()
        values[n] = storage

    def _bind(self, r: Run, plan: Plan) -> Bound:
        """The memories of a run, by where they are found."""
        places, results = self._keeper.places, self._results
        template = list(r.template)
        kept: list[tuple[int, Node]] = []
        looked: list[tuple[int, Node]] = []
        given: list[tuple[int, Node]] = []
        for i, n in r.sources:
            if n in self._leaves:
                moves = n in results and n not in places  # others have results only
                (kept if not moves else given if i in r.replaced else looked).append((i, n))
            else:
                template[i] = self._template.draws[n]
        made = [
            (k, nodes)
            for k, (nodes, o) in enumerate(zip(r.results, plan.outputs, strict=True))
            if o.replaces is None or len(nodes) > 1 or not results.isdisjoint(nodes)
        ]
        arguments = self._template.arguments
        return Bound(
            plan,
            tuple(template),
            tuple([(i, k) for i, k in r.inputs if k < arguments]),
            tuple([(i, k) for i, k in r.inputs if k >= arguments]),
            tuple(kept),
            tuple(looked),
            tuple(given),
            tuple(made),
            {o.replaces: k for k, o in enumerate(plan.outputs) if o.replaces is not None},
            tuple([k for k, o in enumerate(plan.outputs) if o.replaces is None]),
            r.is_alone and plan.feed is None and isinstance(plan.executable, Repeater),
        )


def _sized(n: Node) -> tuple[int, ...]:
    """The shape of a node: sessions have no other than known ones."""
    return cast("tuple[int, ...]", n.shape)
