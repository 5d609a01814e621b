"""Replay on meshes of devices: a plan of parts for each way in which tensors lie."""
# Tests: tests/core/compile/test_over_devices.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.core.compile.draws import drawn_if_run
from weft.core.compile.lazy_replay import LazyReplay
from weft.core.compile.parts_replay import Inputs, PartsReplay
from weft.core.compile.recording import Recording
from weft.core.compile.replay import Given
from weft.core.execute import meshes, plans
from weft.ir import graph
from weft.ir.graph import Node
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.storage import Storage
    from weft.core.execute.explanation import Explanation
    from weft.ir.placement import Layout
    from weft.scheduler.mesh_plans import MeshPlan, SharedPlan
    from weft.scheduler.meshes import Search


LAYOUTS_KEPT = 4
"""Plans of a compiled function on a mesh, one for each way in which its tensors lie; the oldest one goes first."""


@dataclass(frozen=True, slots=True)
class _Laid:
    """The plan of a recording for tensors that lie so: of the nodes `asked`. `search`: how other layouts are chosen.
    `source`: the place of each value, laid out as the tensor that stands for it afterwards, or whose gradient it is.
    `lie`: the leaves on a mesh, and how they have to lie."""

    layouts: list[Layout | None]
    search: Search | None
    asked: list[Node]
    plan: MeshPlan | SharedPlan | None
    inputs: Inputs
    source: list[int]
    lie: list[tuple[int, Layout]]


class MeshReplay(PartsReplay):
    """A recording on meshes: a plan of parts for each of the last ways in which the tensors that it uses lay."""

    def __init__(self, r: Recording, given: Given, nodes: Sequence[Node]) -> None:
        LazyReplay.__init__(self, r, given, realize=True)
        self._number_values(nodes)
        self._known: list[_Laid] = []

    @staticmethod
    def serves(r: Recording, nodes: Sequence[Node]) -> bool:
        """True where plans can be kept: nothing is in files, and of tensors that get gradients the layout is known."""
        known = all(g.value is None or g.target in r.specs for g in r.set_grads)
        return known and not plans.in_files(nodes)

    def _laid(self, objects: list[Any]) -> _Laid:
        """The plan for tensors that lie as these."""
        layouts = [meshes.layout_of(objects[k].value.node) for k in self.recording.specs]
        search = meshes.current_search()
        for known in self._known:
            if known.layouts == layouts and known.search == search:
                return known
        made = self._planned(layouts)
        self._known = [made, *self._known[: LAYOUTS_KEPT - 1]]
        return made

    def _run(self, objects: list[Any]) -> Any:
        with drawn_if_run(self.recording.draws):
            known, memories = self._at_once(objects)
            storages: list[Storage] = [] if known.plan is None else known.plan.run(memories)
        return self._stored(objects, storages, known.source)

    def _at_once(self, objects: list[Any]) -> tuple[_Laid, list[Any]]:
        """The plan, and memories that lie as it was made for: another thread may lay out a tensor anew in between."""
        while True:
            known = self._laid(objects)
            memories = known.inputs.taken(objects)
            if all(memories[i].layout == layout for i, layout in known.lie):
                return known, known.inputs.drawn(self.recording, memories)

    def _planned(self, layouts: list[Layout | None]) -> _Laid:
        """The plan for these layouts of the tensors."""
        r = self.recording
        lies = {r.placeholders[k].node: l for k, l in zip(r.specs, layouts, strict=True) if l is not None}
        nodes = [v.node for v in r.values]
        for b in r.rebinds:
            if isinstance(b.target, int):
                nodes[b.value] = self._as_before(b.target, nodes[b.value], lies)
        for g in r.set_grads:
            if g.value is not None and meshes.current_search() is None:
                nodes[g.value] = self._as_before(g.target, nodes[g.value], lies)
        places = [*(r.placeholders[k].node for k in self._passed), *self._fixed]
        known = set(places)
        asked = list(dict.fromkeys([n for n in nodes if n not in known]))
        where = {n: i for i, n in enumerate([*places, *asked])}
        found = plans.over_meshes(asked, lies) if asked else None
        plan, inputs = (None, Inputs([], [], [])) if found is None else (found[0], Inputs.of(r, found[1]))
        laid = dict(zip(r.specs, layouts, strict=True))
        lie = [(i, layout) for i, k in inputs.tensors if (layout := laid.get(k)) is not None]
        return _Laid(layouts, meshes.current_search(), asked, plan, inputs, [where[n] for n in nodes], lie)

    def _as_before(self, tensor: int, new: Node, lies: Mapping[Node, Layout]) -> Node:
        """A node that a tensor is to stand for, or its gradient: laid out as the tensor is."""
        old = self.recording.placeholders[tensor].node
        layout = lies.get(old)
        same = new.device in (None, old.device) and new.shape == old.shape
        if layout is None or not same or lies.get(new, meshes.layout_of(new)) == layout:
            return new
        return graph.apply(Op.COPY, (new,), graph.Target(old.device or "", layout))

    def explain(self, objects: list[Any]) -> Explanation:
        """Run; the kernels of the plan for tensors that lie as these, without times."""
        from weft.core.execute.explanation import explain_nodes

        self.run(objects)
        known = self._laid(objects)
        places = self.recording.placeholders
        lie = zip(self.recording.specs, known.layouts, strict=True)
        return explain_nodes(known.asked, layouts={places[k].node: l for k, l in lie if l is not None})
