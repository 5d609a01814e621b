"""The base of replays: whether a call fits a recording, its tensors by number, who looks at what it wrote."""
# Tests: tests/core/compile/test_compile.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from weft.autograd.context import context
from weft.autograd.value import Value
from weft.core.args.handle import wrap
from weft.core.compile.direct_call import DirectCall
from weft.core.compile.recording import Rebind, Recording, Result, SetGrad
from weft.core.execute import edits, run, tracing
from weft.core.execute.ownership import (
    sole_thread,
)
from weft.core.views import views
from weft.ir.graph import Node
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.execute.explanation import Explanation, Profile


@dataclass(slots=True, eq=False)
class Seen:
    """The last edit when captured tensors were found to be as at the trace; then, whether others look at the elements
    of those that a call writes."""

    edit: int = -1
    looked: bool = True


@dataclass(frozen=True, slots=True)
class Given:
    """The classes of the tensors among the arguments; whether these are all arguments, by position."""

    classes: tuple[type, ...]
    positional: bool


class Replay:
    """A recording that can be run again."""

    def __init__(self, r: Recording, given: Given) -> None:
        self.recording, self._given = r, given
        classes = given.classes if given.positional else None
        self.escapes = r.escapes
        # Where an argument is not used, nothing of it is checked but by the key.
        self._classes = classes if classes and all(k in r.specs for k in range(r.arguments)) else None
        if r.arguments == 0 and classes is not None:
            self._classes = ()
        self._checks = [(k, s.device, s.shape, s.dtype, s.needs_grad) for k, s in r.specs.items()]
        self._captured = r.captured
        of_captured = range(r.arguments, r.arguments + len(r.captured))
        self._checks_of_others = [c for c in self._checks if c[0] not in of_captured]
        self.seen = Seen()
        for t in r.captured:
            edits.capture(t)
        self._reads_grads = bool(r.had_grad or r.grads_read)
        self._modules = None if r.modules.are_none else r.modules
        now = context()
        self._records, self._casts, self._devices = now.grad, now.casts, now.devices[-1:]
        self._pinned = now.pinned
        mutated = any(isinstance(b.target, int) and b.target < r.arguments for b in r.rebinds)
        self._written = sorted(
            {b.target for b in r.rebinds if isinstance(b.target, int)} | {g.target for g in r.set_grads}
        )
        self._rebound = [b.target for b in r.rebinds if isinstance(b.target, int)]
        self._rebound_new = [b.target for b in r.rebinds if not isinstance(b.target, int)]
        self._distinct = r.arguments > 1 and (mutated or bool(r.set_grads))
        self.captured_ids = frozenset(map(id, r.captured))
        self.arguments: Mapping[int, ref[Any]] = {}
        """The arguments of the trace."""
        self.bound: Mapping[int, ref[Any]] = {}
        self.shortest: DirectCall | None = None
        """The shortest way for the tensors of a call, where there is one; see direct_call.py."""

    def _number_values(self, nodes: Sequence[Node]) -> None:
        """Note where values come from: from what tensors stood for before the call, from fixed leaves, from what is
        computed for `nodes`; in this order. The tape is not needed from here on."""
        r = self.recording
        number = {v.node: k for k, v in r.placeholders.items()}
        self._passed = [number[v.node] for v in r.values if v.node in number]
        computed = set(nodes)
        self._fixed = [v.node for v in r.values if v.node not in number and v.node not in computed]
        places = [*(r.placeholders[k].node for k in self._passed), *self._fixed, *nodes]
        where = {n: i for i, n in enumerate(places)}
        self._source = [where[v.node] for v in r.values]
        leaves = [v.needs_grad and v.is_leaf for v in r.values]
        self._results = [(s, k, leaves[k]) for k, s in zip(r.results, r.same, strict=True)]
        r.values = [Value(v.node, v.needs_grad) for v in r.values]
        r.differentiated = set()

    @property
    def direct(self) -> DirectCall | None:
        """The shortest way for a call of positional tensors."""
        return self.shortest if self._classes is not None else None

    def bind(self, arguments: Mapping[int, ref[Any]]) -> None:
        """Be for calls with just these tensors as the arguments of those numbers; see aliases.py."""
        self.bound = arguments

    @property
    def lost(self) -> bool:
        """True where a tensor is gone that has to be an argument, or an object that modules had: no call is to find it
        again."""
        return any(tensor() is None for tensor in self.bound.values()) or (
            self._modules is not None and self._modules.are_gone()
        )

    def modes(self) -> list[tuple[int, bool]]:
        """The modules that were called, by identity, and whether each was training."""
        return [(id(module), training) for module, training in self.recording.modules.modes]

    def is_for(self, tensors: Sequence[Any]) -> bool:
        """True where arguments are bound tensors where they have to be, and no others are captured."""
        for k, tensor in self.bound.items():
            if tensor() is not tensors[k]:
                return False
        return not self.captured_ids or self.captured_ids.isdisjoint(map(id, tensors))

    def accepts(self, args: tuple[Any, ...]) -> bool:
        """True for positional tensors as at the trace, in the same mode; `gather` checks the rest."""
        now = context()
        if tuple(map(type, args)) != self._classes or now.grad is not self._records:
            return False
        if now.casts is not self._casts or now.devices[-1:] != self._devices:
            return False
        if now.pinned is not self._pinned:
            return False
        if self._distinct and len(set(map(id, args))) != len(args):
            return False
        return now.trace is None or tracing.current() is None

    def gather(self, tensors: Sequence[Any]) -> list[Any] | None:
        """The numbered tensors for these arguments; None where one, or a module, is not as it was."""
        if not self.is_for(tensors) or (self._modules is not None and not self._modules.are_as_they_were()):
            return None
        return self.objects(tensors)

    def objects(self, tensors: Sequence[Any]) -> list[Any] | None:
        """As `gather`, for modules as they are."""
        objects = [*tensors, *self._captured]
        if self._reads_grads:
            r = self.recording
            for k, had in r.had_grad:
                if (objects[k].__dict__.get("_grad") is not None) is not had:
                    return None
            for k in r.grads_read:
                objects.append(objects[k].__dict__["_grad"])
        edit, checks = edits.tensors.latest(), self._checks
        if edit == self.seen.edit:
            checks = self._checks_of_others
        else:
            n = self.recording.arguments
            mine = [self._captured[k - n] for k in self._written if n <= k < n + len(self._captured)]
            self.seen.looked = any(t.look is not None for t in mine)
        for k, device, shape, dtype, needs_grad in checks:
            v = objects[k].value
            s = v.node.storage
            if s is None:
                run.realize(
                    [objects[j].value.node for j, *_ in self._checks]
                )  # at once: they have much in common
                run.realize_value(v)
                s = v.node.storage
            if s.device is not device or s.shape != shape or s.dtype is not dtype:
                return None
            if v.needs_grad is not needs_grad:
                return None
        self.seen.edit = edit
        return objects

    def run(self, objects: list[Any]) -> Any:
        """Repeat the recording on the numbered tensors; the function's result."""
        raise NotImplementedError

    def _changed(self, objects: Sequence[Any]) -> frozenset[int]:
        """The tensors of a call that it rebinds or whose gradient it sets, by identity."""
        return frozenset([id(objects[k]) for k in self._written])

    def spread(self, objects: list[Any], results: Sequence[Any]) -> None:
        """Have what looks at the elements of rebound tensors see them, and results look at what they are views of."""
        self._spread_writes(objects)
        for result, k, steps in self.recording.looks:
            now = [views.with_tensors(s, lambda r: results[r.number], Result) for s in steps]
            views.compose_views(objects[k], results[result], now)

    def _spread_writes(self, objects: list[Any]) -> None:
        """Have what looks at the elements of rebound tensors see them."""
        changed = [objects[k] for k in self._rebound]
        changed += [t for b in self._rebound_new if (t := b()) is not None]
        seen = [t for t in changed if (look := t.look) is not None and not look.shared.are_only(t)]
        if seen:
            here = set(map(id, changed))
            for t in seen:
                views.written(t, here)
            if sole_thread():  # nobody goes through these meanwhile, or adds to them
                for t in seen:
                    t.look.shared.sweep()

    def profile(self, objects: list[Any]) -> Profile:
        """Run, and the time of each step."""
        raise NotImplementedError

    def explain(self, objects: list[Any]) -> Explanation:
        """Run, and the kernels of the run."""
        raise NotImplementedError


def target(b: Rebind, objects: Sequence[Any]) -> Any:
    """The tensor to rebind; None where it was made by the function and nobody holds it any more."""
    return objects[b.target] if isinstance(b.target, int) else b.target()


def set_grad(g: SetGrad, objects: Sequence[Any], value: Value | None) -> None:
    """Have `.grad` be another tensor of the call, a new tensor, or None."""
    grad = objects[g.tensor] if g.tensor is not None else None if value is None else wrap(value)
    objects[g.target].__dict__["_grad"] = grad
