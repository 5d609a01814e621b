"""Plans of sessions: a graph's plan, where its leaves come from and where its results go."""
# Tests: tests/sessions/test_session.py

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.core.execute import plans
from weft.ir.graph import Node
from weft.ir.index import Var
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.keeping import nbytes
from weft.scheduler.kernelize.kernels import kernelize
from weft.sessions.retention import aligned

if TYPE_CHECKING:
    from weft.backends.protocol import Device
    from weft.scheduler.plan import Plan


def stored_nodes(results: Sequence[Node], order: Sequence[Node], device: Device) -> tuple[Node, ...]:
    """The results and all that kernels store on the way to them, in the order of computation."""
    todo = [n for n in results if n.op is not Op.BUFFER]
    written = {n for spec in kernelize(todo, device.info.bounds.parameters) for n in spec.writes}
    return tuple([n for n in order if n in written or n in todo])


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A plan and the memories that it runs on: `template` has those that never change. `inputs`: the number of the
    input that a leaf stands for; `sources`: the node that each other leaf does; `values`: where the runtime variables
    are among a step's numbers; `results`: the nodes whose value each result is, which is copied for all but the first.
    """

    plan: Plan | None
    template: tuple[Any, ...]
    inputs: tuple[tuple[int, int], ...]
    sources: tuple[tuple[int, Node], ...]
    values: tuple[int, ...]
    results: tuple[tuple[Node, ...], ...]
    replaced: frozenset[int]
    """The leaves whose memory results take."""

    anew: tuple[tuple[Node, int], ...] = ()
    """The nodes, with the number of the result, that are made without a look at their old values."""
    aside: tuple[tuple[Node, int], ...] = ()
    """The nodes, with the number of the result, whose old values are read after the new ones are made: these are copied
    to their places."""
    offsets: tuple[int, ...] = ()
    """The offsets within the workspace of memories that are given at each run; none where the device has it."""
    workspace_bytes: int = 0
    is_alone: bool = False
    """True where nobody else runs the plan's executable."""

    def scratch_bytes(self, places: Container[Node]) -> int:
        """The workspace, and what results take until they are copied to their places."""
        return aligned(self.workspace_bytes) + sum(aligned(nbytes(n)) for n, _ in self.aside if n in places)

    def with_memories_kept(self) -> Run:
        """The same run, which can run again on the memories of its last run, where the device has such."""
        return (
            self if self.plan is None else replace(self, plan=self.plan.with_memories_kept(), is_alone=True)
        )

    def with_scratch_given(self) -> Run:
        """The same run, whose workspace is given."""
        if self.plan is None:
            return self
        return replace(self, plan=self.plan.with_workspace_given(), offsets=self.plan.commands.offsets)


def planned(
    results: Mapping[Node, Node],
    stand_for: Mapping[Node, Node],
    variables: Sequence[Var],
    device: Device,
    inputs: Mapping[Node, int],
) -> Run:
    """The run that computes nodes, given by what they are new values of. `stand_for`: the node by the leaf of the graph
    that stands for its old value, whose memory the new one may take; `inputs`: the leaves that are, by number."""
    if not results:
        return Run(None, (), (), (), (), (), frozenset())
    made: dict[Node, list[Node]] = {}
    for old, new in results.items():
        made.setdefault(new, []).append(old)
    leaf = {node: at for at, node in stand_for.items()}
    state = {k: leaf[old[0]] for k, old in enumerate(made.values()) if old[0] in leaf}
    plan, sig = plans.plan(list(made), device, state, dynamic=False)
    template = [
        None if s is None else plans.memory_on(n, s, device)
        for n, s in zip(sig.leaves, sig.storages, strict=True)
    ]
    sources = [
        (i, stand_for.get(n, n))
        for i, (n, m) in enumerate(zip(sig.leaves, template, strict=True))
        if m is None
    ]
    number = {v.name: k for k, v in enumerate(variables)}
    values = tuple([number[v.name] for v in plan.variables])
    replaced = frozenset([o.replaces for o in plan.outputs if o.replaces is not None])
    read = {n for _, n in sources}
    new = [
        (old[0], k)
        for k, (old, o) in enumerate(zip(made.values(), plan.outputs, strict=True))
        if o.replaces is None
    ]
    anew = tuple([(n, k) for n, k in new if n not in read])
    aside = tuple([(n, k) for n, k in new if n in read])
    given = tuple([(i, inputs[n]) for i, n in sources if n in inputs])
    return Run(
        plan, tuple(template), given, tuple([(i, n) for i, n in sources if n not in inputs]), values,
        tuple(map(tuple, made.values())), replaced, anew, aside, workspace_bytes=plan.commands.workspace_bytes,
    )  # fmt: skip
