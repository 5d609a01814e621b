"""Sessions: a function's last values are kept, and a run computes what its changed inputs can reach."""
# Tests: tests/sessions/test_session.py

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np

from weft.autograd.context import default_device
from weft.autograd.value import Value
from weft.backends.storage import Storage
from weft.core.args.handle import standing_for, wrap
from weft.core.args.modes import numerics
from weft.core.args.structure import Key, flatten
from weft.core.execute import run
from weft.core.tensor.tensor import Tensor
from weft.ir import graph
from weft.ir.graph import Node
from weft.ir.regions.graphs import reached
from weft.ir.regions.region import NOTHING, Region
from weft.sessions.buckets import Bucket, Placed, placed, regions
from weft.sessions.inputs import differing, written
from weft.sessions.plans import Run, planned, stored_nodes
from weft.sessions.recorded import Template, recorded
from weft.sessions.step import StepGraph, leaf_for, step_graph

FORMS_KEPT = 8
"""Structures of arguments whose graph, plans and values a session keeps; the least recently used goes first."""


def session(fn: Callable[..., Any], *example: Any, exact: bool = True) -> Session:
    """A function of tensors, or a module, to be run again and again while most of its input stays as it was."""
    return Session(fn, example, exact)


class Session:
    """A function whose last values are kept; see `session`."""

    def __init__(self, fn: Callable[..., Any], example: tuple[Any, ...], exact: bool) -> None:
        self.fn, self.exact = fn, exact
        self._forms: OrderedDict[Key, Form] = OrderedDict()
        self._lock = threading.RLock()
        if example:
            self._form(*_flattened(example, {}))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock, self._mode():
            found = _flattened(args, kwargs)
            return self._form(*found).run(found[3])

    def _mode(self) -> Any:
        return numerics("same") if self.exact else nullcontext()

    def _form(self, key: Key, args: Any, kwargs: Any, tensors: list[Tensor]) -> Form:
        form = self._forms.get(key)
        if form is None or not form.template.is_current():
            with self._mode():
                form = self._forms[key] = Form(recorded(self.fn, args, kwargs, tensors))
        self._forms.move_to_end(key)
        while len(self._forms) > FORMS_KEPT:
            self._forms.popitem(last=False)
        return form


def _flattened(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Key, tuple[Any, ...], dict[str, Any], list[Tensor]]:
    """The structure of a call with its arrays as tensors, and the tensors in it, realized."""
    given = tuple([_tensor(a) for a in args]), {k: _tensor(a) for k, a in kwargs.items()}
    tensors: list[Tensor] = []
    structure = flatten(given, tensors, {})
    specs = [(t.value.shape, t.value.dtype, t.value.node.device) for t in tensors]
    return (structure, *specs), *given, tensors


def _tensor(x: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    return wrap(Value(run.from_numpy(cast("np.ndarray[Any, Any]", x), default_device())))


class Form:
    """A function for arguments of one structure: its graph, plans, and last values."""

    def __init__(self, template: Template) -> None:
        self.template = template
        device = template.device
        self.kept = stored_nodes(template.results, template.order, device)
        self._old = {n: leaf_for(n, device.info.name) for n in self.kept}
        self._number = {n: k for k, n in template.leaves.items()}
        self._steps: dict[Bucket, tuple[StepGraph, Run]] = {}
        self._whole: Run | None = None
        self._last: dict[int, Storage] = {}
        self._values: dict[Node, Storage] | None = None

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """The function's results for tensors as arguments."""
        objects = [*tensors, *self.template.captured]
        changed: dict[int, Region] = {}
        now: dict[int, Storage] = {}
        for k in self.template.leaves:
            v = objects[k].value
            before = self._last.get(k)
            region = None if before is None else written(v.node, before)
            run.realize_value(v)
            now[k] = storage = v.node.storage
            if before is None:
                continue
            if region is None:
                region = differing(storage.numpy(), before.numpy())
            if not region.is_empty:
                changed[k] = region
        values = self._values
        if values is None or len(self._last) != len(now):
            reach = self._all(now)
        else:
            self._values = None  # until all steps are done
            reach: Mapping[Node, Region] = {}
            for p in placed(changed, self.template.leaves):
                reach = _joined(reach, self._step(p, now, values))
            self._values = values
        self._last = now
        return self._results(now, reach)

    def _all(self, inputs: Mapping[int, Storage]) -> Mapping[Node, Region]:
        """Compute everything."""
        self._values = None
        if self._whole is None:
            self._whole = planned({n: n for n in self.kept}, {}, (), self.template.device)
        values: dict[Node, Storage] = {}
        self._run(self._whole, inputs, values, ())
        self._values = values
        return {n: Region.whole(n.shape) for n in self.kept}

    def _step(
        self, change: Placed, inputs: Mapping[int, Storage], values: dict[Node, Storage]
    ) -> Mapping[Node, Region]:
        """Compute what a change of inputs reaches."""
        found = self._steps.get(change.bucket)
        if found is None:
            found = self._steps[change.bucket] = self._made(change.bucket)
        step, planned_run = found
        self._run(planned_run, inputs, values, change.starts)
        env = {v.name: x for v, x in zip(step.variables, change.starts, strict=True)}
        return {n: r.at(env) for n, r in step.dirty.items() if n in self.template.results}

    def _made(self, bucket: Bucket) -> tuple[StepGraph, Run]:
        leaves = self.template.leaves
        changes, variables = regions(bucket, leaves)
        dirty = reached({leaves[k]: r for k, r in changes.items()}, self.template.order)
        step = step_graph(self.kept, self._old, dirty, variables)
        names = [v.name for v in variables]
        stand_for = {at: n for n, at in self._old.items()}
        return step, planned(step.new, stand_for, names, self.template.device)

    def _run(
        self, r: Run, inputs: Mapping[int, Storage], values: dict[Node, Storage], starts: Sequence[int]
    ) -> None:
        """Run a plan on what is kept, whose memory it updates; what somebody else looks at is copied before."""
        if r.plan is None:
            return
        memories = list(r.template)
        for i, n in r.sources:
            if n in values:
                memories[i] = values[n].memory
            elif n in self._number:
                memories[i] = inputs[self._number[n]].memory
            else:
                memories[i] = self.template.draws[n]
        for spec in r.plan.outputs:
            if spec.replaces is not None:
                memories[spec.replaces] = self._own(values, dict(r.sources)[spec.replaces])
        env = tuple([starts[k] for k in r.values])
        storages, given = r.plan.with_results(memories, env)
        r.plan.start(given, env)
        values.update(zip(r.results, storages, strict=True))

    def _own(self, values: dict[Node, Storage], node: Node) -> Any:
        """The memory of a kept value, to be written over: of a copy, for results, which are the caller's."""
        storage = values[node]
        if node in self.template.results:
            device = storage.device
            fresh = device.allocate(storage.memory.nbytes)
            device.write(fresh, device.read(storage.memory, storage.memory.nbytes))
            return fresh
        return storage.memory

    def _results(self, inputs: Mapping[int, Storage], reach: Mapping[Node, Region]) -> Any:
        """New tensors over the results."""
        values = self._values
        assert values is not None
        found: list[Tensor] = []
        for n in self.template.results:
            storage = (
                values[n] if n in values else inputs[self._number[n]] if n in self._number else n.storage
            )
            t = standing_for(
                Value(graph.buffer(storage.shape, storage.dtype, storage.device.info.name, storage))
            )
            t.__dict__["changed"] = reach.get(n, NOTHING)
            found.append(t)
        return self.template.build(found)


def _joined(a: Mapping[Node, Region], b: Mapping[Node, Region]) -> Mapping[Node, Region]:
    return {n: a.get(n, NOTHING) | b.get(n, NOTHING) for n in (*a, *b)}
