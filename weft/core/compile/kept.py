"""Values that a compiled function computes from what it only reads, and keeps until that is written.

    f = weft.compile(lambda x: x * scale.exp())     scale.exp() is computed in the first call, and kept

Nothing writes into a storage but a compiled step that updates it in place, and then the tensor has another storage
object afterwards (see ownership.py). So what was computed from storages is good for as long as the tensors have these
very ones. They are referred to weakly: memory that nobody else needs may be written over, and where it goes, what was
computed from it goes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

from weft.core.execute import ownership

if TYPE_CHECKING:
    from weft.backends.protocol import Memory
    from weft.backends.storage import Storage
    from weft.scheduler.plan import Plan

MAX_UNUSED = 8
"""Values in a row that were used by one call only, after which nothing is kept: what they depend on does not stay."""


@dataclass(frozen=True, slots=True)
class Current:
    """The values, and the storages that they were computed from."""

    sources: tuple[ref[Storage], ...]
    memories: tuple[Memory, ...]


@dataclass(frozen=True, slots=True)
class KeptAt:
    """In the place of a memory: that of the kept value of this number."""

    number: int


class Kept:
    """The values of a plan's outputs. `template`: the memory of its leaves; None for those that `tensors` have, which
    are pairs of a leaf's number and a tensor's."""

    __slots__ = ("__weakref__", "_template", "_unused", "current", "is_used", "nbytes", "plan", "tensors")

    def __init__(
        self, plan: Plan, template: Sequence[Memory | None], tensors: Sequence[tuple[int, int]]
    ) -> None:
        self.plan, self.tensors, self._template = plan, tuple(tensors), tuple(template)
        self.nbytes = plan.result_bytes()
        self.current: Current | None = None
        self.is_used = True
        self._unused = 0

    @property
    def is_in_vain(self) -> bool:
        """True where what is kept is mostly used by one call only."""
        return self._unused >= MAX_UNUSED

    def lines(self) -> tuple[str, ...]:
        """The values by dtype and shape, and how many of each, for explanations."""
        count = Counter(f"{o.dtype.short}{list(o.shape)}" for o in self.plan.outputs)
        return tuple([text if n == 1 else f"{n} x {text}" for text, n in count.items()])

    def memories(self, objects: Sequence[Any]) -> tuple[Memory, ...]:
        """The memories of the values for these tensors, computed where they are not there."""
        now = self.current
        if now is not None:
            for (_, k), source in zip(self.tensors, now.sources, strict=True):
                if objects[k].value.node.storage is not source():
                    break
            else:
                self.is_used = True
                return now.memories
        return self._computed(objects)

    def _computed(self, objects: Sequence[Any]) -> tuple[Memory, ...]:
        self.current = None  # before the next values take memory
        self._unused = 0 if self.is_used else self._unused + 1
        self.is_used = False
        # As long as the storages are referred to here, nobody writes them over.
        sources: list[Storage] = [objects[k].value.node.storage for _, k in self.tensors]
        given: list[Any] = list(self._template)
        for (i, _), s in zip(self.tensors, sources, strict=True):
            given[i] = s.memory
        found = tuple([s.memory for s in self.plan.run(given)])
        if all(map(ownership.watch_writes, sources)):
            mine = ref(self)

            def forget(_: object) -> None:
                kept = mine()
                if kept is not None:
                    kept.current = None

            self.current = Current(tuple([ref(s, forget) for s in sources]), found)
        return found
