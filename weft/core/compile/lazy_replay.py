"""Replay whose results are computed lazily: the recorded graph over the tensors of a call."""
# Tests: tests/core/compile/test_compile.py

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd.context import default_device
from weft.autograd.value import Value
from weft.core.args.handle import standing_for
from weft.core.compile.draws import drawn_if_run
from weft.core.compile.instantiate import instantiate
from weft.core.compile.recording import Recording
from weft.core.compile.replay import Given, Replay, set_grad, target
from weft.core.execute import run
from weft.core.execute.changes import restored_on_error
from weft.core.execute.ownership import (
    exclusive,
)
from weft.core.sharding.tensors import gradient_of, laid_out_like

if TYPE_CHECKING:
    from weft.core.execute.explanation import Explanation, Profile


class LazyReplay(Replay):
    """A recording whose results are computed lazily, for the reasons that `make_replay` states."""

    def __init__(self, r: Recording, given: Given, realize: bool) -> None:
        super().__init__(r, given)
        self._realize = realize

    def run(self, objects: list[Any]) -> Any:
        with exclusive(self._changed(objects)):
            return self._run(objects)

    def _run(self, objects: list[Any]) -> Any:
        with drawn_if_run(self.recording.draws):
            return self._computed(objects, self._values(objects))

    def _values(self, objects: list[Any]) -> list[Value]:
        """The recorded values over the tensors of a call."""
        r = self.recording
        known = {v: objects[k].value for k, v in r.placeholders.items()}
        drawn = {
            n: run.from_numpy(np.array(g.words(count), np.uint32), n.device or default_device())
            for g, n, count in r.draws
        }
        values = instantiate(r.values, known, drawn)
        for b in r.rebinds:
            if isinstance(b.target, int):
                values[b.value] = laid_out_like(objects[b.target].value.node, values[b.value])
        for g in r.set_grads:
            if g.value is not None:
                values[g.value] = gradient_of(objects[g.target].value.node, values[g.value])
        return values

    def _computed(self, objects: list[Any], values: Sequence[Value]) -> Any:
        r = self.recording
        if self._realize:
            run.realize([v.node for v in values])
        results = [
            objects[s] if s is not None else standing_for(values[k])
            for k, s in zip(r.results, r.same, strict=True)
        ]  # fmt: skip
        return self._committed(
            objects,
            results,
            [values[b.value] for b in r.rebinds],
            [None if g.value is None else values[g.value] for g in r.set_grads],
        )

    def _committed(
        self,
        objects: list[Any],
        results: Sequence[Any],
        rebound: Sequence[Value],
        grads: Sequence[Value | None],
    ) -> Any:
        """The results; state is rebound and gradients are set, all of it or nothing."""
        r = self.recording
        pairs = zip(r.rebinds, rebound, strict=True)
        targets = [(t, value, b.watches) for b, value in pairs if (t := target(b, objects)) is not None]
        seen = [m for t, _, _ in targets if t.look is not None for m in t.look.shared.others(t)]
        with restored_on_error(
            [*(t for t, _, _ in targets), *seen], [objects[g.target] for g in r.set_grads]
        ):
            for t, value, watches in targets:
                t.rebind(value, watches)
            self.spread(objects, results)
            for g, value in zip(r.set_grads, grads, strict=True):
                set_grad(g, objects, value)
        return r.build(results)

    def profile(self, objects: list[Any]) -> Profile:
        """Run; there is no plan of its own whose steps could be timed."""
        from weft.core.execute.explanation import Profile

        self.run(objects)
        return Profile(())

    def explain(self, objects: list[Any]) -> Explanation:
        """The kernels of the run, without times."""
        from weft.core.execute.explanation import explain_nodes

        with exclusive(self._changed(objects)):
            values = self._values(objects)
            found = explain_nodes([v.node for v in values])
            self._computed(objects, values)
        return found
