"""Values that compiled functions compute from what they only read, and keep until that is written.

    f = weft.compile(lambda x: x * scale.exp())     scale.exp() is computed in the first call, and kept

Nothing writes into a storage but a compiled step that updates it in place, and then the tensor has another storage
object afterwards (see ownership.py). So what was computed from storages is good for as long as the tensors have these
very ones. They are referred to weakly: memory that nobody else needs may be written over, and where it goes, what was
computed from it goes too. A value is there once, for all traces and functions that compute it from the same storages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

from weft.core.execute import ownership
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.protocol import Memory
    from weft.backends.storage import Storage
    from weft.scheduler.plan import Plan
    from weft.scheduler.signature import Key

MAX_UNUSED = 8
"""Values in a row that were used by one call only, after which nothing is kept: what they depend on does not stay."""


class KeptValue:
    """A value, as long as the storages that it was computed from are there; then its memory is None."""

    __slots__ = ("__weakref__", "memory", "sources")

    def __init__(self, memory: Memory, sources: Sequence[Storage]) -> None:
        self.memory: Memory | None = memory
        mine = ref(self)

        def forget(_: object) -> None:
            value = mine()
            if value is not None:
                value.memory = None

        self.sources = tuple([ref(s, forget) for s in sources])

    def is_of(self, sources: Sequence[Storage]) -> bool:
        """True where it was computed from just these storages."""
        return all(r() is s for r, s in zip(self.sources, sources, strict=True))


_values: WeakValueDictionary[tuple[Any, ...], KeptValue] = WeakValueDictionary()
"""Values that some function keeps, by what computes them and the identities of their sources."""


@dataclass(frozen=True, slots=True)
class Part:
    """The plan of one value. `template`: the memory of its leaves; None for those that `tensors` have, which are pairs
    of a leaf's number and a tensor's. `key`: equal for plans that compute the same from equal leaves."""

    plan: Plan
    key: Key
    template: tuple[Memory | None, ...]
    tensors: tuple[tuple[int, int], ...]

    def value(self, sources: Sequence[Storage]) -> KeptValue | None:
        """The value computed from these storages that is there already."""
        found = _values.get(self._name(sources))
        return found if found is not None and found.memory is not None and found.is_of(sources) else None

    def computed(self, sources: Sequence[Storage]) -> tuple[KeptValue, bool]:
        """The value, computed now, and whether it will be known when a source is written. Whoever writes to the sources
        meanwhile writes elsewhere, since they are referred to."""
        given: list[Any] = list(self.template)
        for (i, _), s in zip(self.tensors, sources, strict=True):
            given[i] = s.memory
        (storage,) = self.plan.run(given)
        value = KeptValue(storage.memory, sources)
        stays = all(map(ownership.watch_writes, sources))
        if stays:
            _values[self._name(sources)] = value
        return value, stays

    def _name(self, sources: Sequence[Storage]) -> tuple[Any, ...]:
        return (self.plan.device, self.key, *map(id, self.template), *map(id, sources))


@dataclass(frozen=True, slots=True)
class KeptAt:
    """In the place of a memory: that of the kept value of this number."""

    number: int


class Kept:
    """The values of some parts. `tensors` are those that they are computed from, by number: part by part."""

    __slots__ = ("_unused", "current", "is_used", "parts", "tensors")

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.tensors = tuple(dict.fromkeys([k for p in parts for _, k in p.tensors]))
        self.current: Current | None = None
        self.is_used = True
        self._unused = 0

    @property
    def nbytes(self) -> int:
        """The memory that the values take."""
        return sum([p.plan.result_bytes() for p in self.parts])

    @property
    def is_in_vain(self) -> bool:
        """True where what is kept is mostly used by one call only."""
        return self._unused >= MAX_UNUSED

    def lines(self) -> tuple[str, ...]:
        """The values by dtype and shape, how many of each, and the memory of all, for explanations."""
        outputs = [o for p in self.parts for o in p.plan.outputs]
        count = Counter(f"{o.dtype.short}{list(o.shape)}" for o in outputs)
        shown = [text if n == 1 else f"{n} x {text}" for text, n in count.items()]
        return (*shown, f"in all {self.nbytes:,} bytes")

    def memories(self, objects: Sequence[Any]) -> list[Memory]:
        """The memories of the values for these tensors, computed where they are not there."""
        now = self.current
        if now is not None:
            # First the memories: what is there before the sources are looked at is theirs.
            found: list[Any] = [v.memory for v in now.values]
            for k, source in zip(self.tensors, now.sources, strict=True):
                s = objects[k].value.node.storage
                if s is None or s is not source():
                    break
            else:
                self.is_used = True
                return found
        return self._computed(objects)

    def _computed(self, objects: Sequence[Any]) -> list[Memory]:
        self._unused = 0 if self.is_used else self._unused + 1
        self.is_used = False
        storages: dict[int, Storage] = {k: objects[k].value.node.storage for k in self.tensors}
        values: list[KeptValue] = []
        stay = True
        for part in self.parts:
            sources = [storages[k] for _, k in part.tensors]
            value = part.value(sources)
            if value is None:
                value, stays = part.computed(sources)
                stay = stay and stays
            values.append(value)
        self.current = Current(tuple([ref(s) for s in storages.values()]), tuple(values)) if stay else None
        memories: list[Any] = [v.memory for v in values]
        return memories


@dataclass(frozen=True, slots=True)
class Current:
    """The values, and the storages of the tensors that they were computed from."""

    sources: tuple[ref[Storage], ...]
    values: tuple[KeptValue, ...]
