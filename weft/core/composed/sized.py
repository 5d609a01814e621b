"""Calls at sizes that never came: made of what was recorded at a few others, without running the function.

    softmax of (9, 64), (21, 64)    recorded
    softmax of (33, 64)             learned from these (see learned.py); from here on made for any n of its bounds

Smaller sizes than it is learned for, as of images of 3 x 3, give another graph, and are learned by themselves. What
earlier processes recorded and learned counts as well. Where forms are verified, what is made is compared with what is
recorded, each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from math import prod
from typing import Any, TypeGuard

from weft.core.composed.learned import LEAST, Calls, Known, Sizes, learned
from weft.core.execute import recordings
from weft.ir.calls import Given, GraphCall
from weft.lazy_dataclass import dataclass

SAMPLES = 2
"""Recordings before something is learned: that takes some more."""

TRIES = 3
"""Times that something is learned, and more for each that was: sizes may outgrow what was learned, or turn out to be
several. Where their product is twice as large, it is tried again: graphs for few elements may differ from those for
more."""

KNOWN_KEPT = 4
"""Kinds of sizes for which something is learned, apart from each other; the latest ones."""

SIZES_KEPT = 64
"""Sizes at which recordings are kept, of functions of which nothing is learned: the latest ones."""


@dataclass(slots=True)
class SizedCalls:
    """The calls that a function was recorded as, by the sizes of its tensors; and those for other sizes."""

    samples: dict[Sizes, Calls] = field(default_factory=dict[Sizes, Calls])
    tries: int = 0
    tried_at: int = 0
    """The product of the sizes when it was tried last."""
    known: tuple[Known, ...] = ()
    """Calls for kinds of sizes, latest first: images of one size are another graph where they are small."""
    stored: _Stored | None = None
    """The work of earlier processes."""
    changed: bool = False
    """True where there is more than what was stored."""

    def at(self, sizes: Sizes, record: Callable[[Sizes], Calls | None]) -> Calls | None:
        """The calls at these sizes, where they are known; they may be learned now, by recordings at other sizes."""
        if not self.known and self.stored is not None:
            self.known = self.stored.take_known()
        for known in self.known:
            made = known.at(sizes)
            if made is not None:
                return made
        made = self._recorded_at(sizes)
        if made is not None or any(known.covers(sizes) for known in self.known):
            return made
        volume = prod([max(n, 1) for n in sizes])
        if self.tries >= TRIES * (1 + len(self.known)) and volume < 2 * self.tried_at:
            return None
        samples = self._alike(sizes)
        if len(samples) < SAMPLES:
            return None
        self.tries, self.tried_at, self.changed = self.tries + 1, volume, True
        found = learned(samples, sizes, record)
        if found is None:
            return None
        others = [k for k in self.known if not k.is_of_the_sizes_of(found)]
        self.known = (found, *others)[:KNOWN_KEPT]
        return found.at(sizes)

    def add(self, sizes: Sizes, calls: Calls) -> None:
        """Remember what was recorded."""
        kept = [*self.samples.items(), (sizes, calls)]
        self.samples = dict(kept[-SIZES_KEPT:])  # another thread may look at the old ones
        self.changed = True

    def _recorded_at(self, sizes: Sizes) -> Calls | None:
        """The calls that were recorded at just these sizes, by this process or an earlier one."""
        found = self.samples.get(sizes)
        if found is None and self.stored is not None:
            found = self.stored.take(sizes)
            if found is not None:
                self.samples = {**self.samples, sizes: found}
        return found

    def _alike(self, sizes: Sizes) -> dict[Sizes, Calls]:
        """The samples that something is learned from, the latest ones: where some sizes are too small for what is known
        already, those that have just these as well."""
        stored = tuple(self.stored.samples) if self.stored is not None else ()
        small = next((at for k in self.known if (at := k.below(sizes, LEAST))), ())
        if small:
            came = [c for c in (*stored, *self.samples) if all(c[k] == sizes[k] for k in small)]
        else:
            came = [*stored[: max(SAMPLES - len(self.samples), 0)], *self.samples]
        latest = came[-SAMPLES - TRIES :]
        found = {c: self._recorded_at(c) for c in latest}
        return {c: calls for c, calls in found.items() if calls is not None}

    def written(self) -> dict[str, Any]:
        """All of it; calls, and what was learned, as bytes."""
        kept = {} if self.stored is None else dict(self.stored.samples)
        for sizes, calls in self.samples.items():
            data = recordings.written_calls(calls)
            if data is not None:
                kept[sizes] = data
        known = [recordings.written(k) for k in self.known]
        if not known and self.stored is not None:
            known = list(self.stored.known)
        samples = list(kept.items())[-SIZES_KEPT:]
        return {"samples": samples, "tries": (self.tries, self.tried_at), "known": known}

    @staticmethod
    def read(record: Any, count: int) -> SizedCalls:
        """All that was written, so many calls at each size, which are looked at when they are asked for."""
        samples = {tuple(map(int, sizes)): calls for sizes, calls in record["samples"]}
        tries, tried_at = map(int, record["tries"])
        return SizedCalls(tries=tries, tried_at=tried_at, stored=_Stored(samples, record["known"], count))


@dataclass(slots=True)
class _Stored:
    """Calls by sizes, and what was learned of them, as bytes; `count` at each size. What makes no sense is absent."""

    samples: dict[Sizes, bytes]
    known: Sequence[object]
    count: int

    def take(self, sizes: Sizes) -> Calls | None:
        """The calls at these sizes, which are not here any more."""
        data = self.samples.pop(sizes, None)
        found: Any = recordings.read(data) if isinstance(data, bytes) else None
        return found if isinstance(found, tuple) and self._are_calls(found) else None

    def take_known(self) -> tuple[Known, ...]:
        """The calls that were learned, which are not here any more."""
        written, self.known = self.known, ()
        found = [recordings.read(data) for data in written if isinstance(data, bytes)]
        return tuple([k for k in found if isinstance(k, Known) and len(k.calls) == self.count])

    def _are_calls(self, found: Any) -> TypeGuard[Calls]:
        return len(found) == self.count and all(c is None or isinstance(c, GraphCall | Given) for c in found)
