"""Replay over several devices, as one plan of parts."""
# Tests: tests/core/compile/test_over_devices.py

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd.context import default_device
from weft.autograd.value import Value
from weft.core.args.handle import standing_for
from weft.core.compile.draws import drawn_if_run
from weft.core.compile.lazy_replay import LazyReplay
from weft.core.compile.recording import Recording
from weft.core.compile.replay import Given
from weft.core.execute import plans
from weft.ir import graph
from weft.ir.graph import Node
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.storage import Storage
    from weft.core.execute.explanation import Explanation
    from weft.scheduler.parts.plan import PartsPlan
    from weft.scheduler.signature import Signature


@dataclass(frozen=True, slots=True)
class Inputs:
    """The leaves of a plan, by where they come from: memory that never changes, numbered tensors, draws on devices."""

    fixed: list[Any]
    tensors: list[tuple[int, int]]
    draws: list[tuple[int, int, str | None]]

    @classmethod
    def of(cls, r: Recording, sig: Signature) -> Inputs:
        """The leaves of a plan for what was recorded."""
        number = {v.node: k for k, v in r.placeholders.items()}
        drawn = {n: k for k, (_, n, _) in enumerate(r.draws)}
        return cls(
            [None if s is None else s.memory for s in sig.storages],
            [(i, number[n]) for i, n in enumerate(sig.leaves) if n in number],
            [(i, drawn[n], n.device) for i, n in enumerate(sig.leaves) if n in drawn],
        )

    def memories(self, r: Recording, objects: Sequence[Any]) -> list[Any]:
        """The memory of each leaf for a call."""
        return self.drawn(r, self.taken(objects))

    def taken(self, objects: Sequence[Any]) -> list[Any]:
        """The memory of each leaf, but for draws."""
        found = self.fixed.copy()
        for i, k in self.tensors:
            found[i] = objects[k].value.node.storage.memory
        return found

    def drawn(self, r: Recording, found: list[Any]) -> list[Any]:
        """The memories with those of new draws."""
        for i, k, device in self.draws:
            generator, _, count = r.draws[k]
            words = np.array(generator.words(count), np.uint32)
            found[i] = plans.memory_of(words, plans.open_device(device or default_device()))
        return found


class PartsReplay(LazyReplay):
    """A recording over several devices as one plan of parts for `nodes`. State gets new memory at each call, so that
    a call which fails on one device has changed nothing."""

    def __init__(
        self,
        r: Recording,
        given: Given,
        nodes: Sequence[Node],
        plan: PartsPlan,
        sig: Signature,
    ) -> None:
        super().__init__(r, given, realize=True)
        self._plan, self._inputs = plan, Inputs.of(r, sig)
        self._number_values(nodes)

    def _run(self, objects: list[Any]) -> Any:
        with drawn_if_run(self.recording.draws):
            storages = self._plan.run(self._inputs.memories(self.recording, objects), {})
        return self._stored(objects, storages, self._source)

    def _stored(self, objects: list[Any], storages: Sequence[Storage], source: Sequence[int]) -> Any:
        """The results, where a call has computed these values. `source`: the place of each recorded value."""
        r = self.recording
        env: list[Node] = [objects[k].value.node for k in self._passed]
        env += self._fixed
        env += [graph.buffer(s.shape, s.dtype, s.home, s) for s in storages]
        found = [env[i] for i in source]
        results = [
            objects[s] if s is not None else standing_for(Value(found[k], leaf))
            for s, k, leaf in self._results
        ]
        return self._committed(
            objects,
            results,
            [Value(found[b.value], b.needs_grad) for b in r.rebinds],
            [None if g.value is None else Value(found[g.value]) for g in r.set_grads],
        )

    def explain(self, objects: list[Any]) -> Explanation:
        """Run; the kernels of the plan's parts, without times."""
        from weft.core.execute.explanation import explain_nodes

        self.run(objects)
        return explain_nodes([v.node for v in self.recording.values])
