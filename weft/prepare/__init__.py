"""Basic programs compiled ahead of time, so that the first steps of new models need no compiler.

    weft.prepare.prepare(SAMPLES)      what samples compute runs on basic plans, whose programs stay on disk

Basic programs know no sizes and no names, so those of small samples are those of large models of the same ops.
"""
# Tests: tests/test_prepare.py

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import weft
from weft import disk_cache, pack, settings
from weft.backends import registry
from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass
from weft.prepare.changing import CHANGING
from weft.prepare.networks import NETWORKS
from weft.prepare.products import Products
from weft.prepare.routines import ROUTINES
from weft.scheduler import programs
from weft.scheduler.basic import form_kernels, tiers
from weft.scheduler.realize import forget_sizes


class Work(Protocol):
    """Something that computes, and is called by a name."""

    @property
    def name(self) -> str:
        """The name that progress has."""
        ...

    def run(self) -> None:
        """Compute it."""
        ...


SAMPLES: tuple[Work, ...] = (*ROUTINES, *CHANGING, Products(), *NETWORKS)
"""The samples, smallest first."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of preparing: sample number `done` of `count` is over."""

    done: int
    count: int
    name: str


def pack_of(samples: Sequence[Work], levels: Sequence[str]) -> Iterator[Progress | bytes]:
    """Prepares samples, and compiles their programs for levels of processors; what was done, and last the bytes of the
    file that comes with weft.

    Raises `ArgumentError` as `prepare` does, where the process has computed other things, or the cache has plans (what
    these ran would be missing), and where samples need more than a process keeps in memory.

    Example: `*_, data = pack_of(SAMPLES, PACKED_LEVELS)`. Source: `weft/pack.py`.
    """
    from weft.prepare.packing import packed

    used = disk_cache.usage().entries
    device = registry.open_device("cpu:0")
    if used or programs.known(device):
        raise ArgumentError(
            "pack_of: a pack is made by a process that computed nothing yet, with an empty cache; set "
            "WEFT_CACHE_DIR to an empty folder"
        )
    count = len(samples) + len(levels)
    for p in prepare(samples):
        yield Progress(p.done, count, p.name)
    entries, algorithms = form_kernels.entries(), programs.known(device)
    if len(entries) >= form_kernels.FORMS_KEPT or len(algorithms) >= programs.PROGRAMS_KEPT:
        raise ArgumentError(
            "pack_of: some of what the samples need is not in memory any more; make packs of fewer samples"
        )
    for n, level in enumerate(levels, 1):
        entries.update(packed(algorithms, [level]))
        yield Progress(len(samples) + n, count, level)
    yield pack.written(entries)


def prepare(samples: Sequence[Work]) -> Iterator[Progress]:
    """Compiles the basic programs of samples, and keeps them on disk; what was done, after each sample.

    Raises `ArgumentError` where nothing can be kept (no cache on disk), or basic plans are off.

    Example: `for progress in prepare(SAMPLES): print(progress)`. Source: `scheduler/basic/tiers.py`.
    """
    used = disk_cache.usage()
    if used.folder is None or used.refused is not None:
        raise ArgumentError(
            "prepare: there is no cache on disk to fill; set WEFT_CACHE_DIR to a private folder"
        )
    if not settings.tiers():
        raise ArgumentError("prepare: basic plans are off; unset WEFT_TIERS")
    for n, sample in enumerate(samples, 1):
        forget_sizes()  # samples alike but for sizes are to have basic plans of their own
        with weft.device("cpu"), tiers.ahead():
            sample.run()
        yield Progress(n, len(samples), sample.name)
