"""Random schedules are made of all transforms that there are."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from random import Random

from weft.ir.kernel import transforms
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Transform
from weft.testing.schedules import KINDS, random_schedule, starts

SEEDS = 160
"""Schedules of each kernel: the rarest kind is applied three times or more."""


def defined(kind: type[Transform] = Transform) -> Iterator[type[Transform]]:
    """The classes that derive from `kind`, at any depth."""
    for c in kind.__subclasses__():
        yield c
        yield from defined(c)


def seeded(name: str, start: Kernel, seed: int) -> Kernel:
    return random_schedule(Random(f"{name} {seed}").choice, start, 16)


def test_every_transform_is_proposed() -> None:
    for module in pkgutil.iter_modules(transforms.__path__, f"{transforms.__name__}."):
        import_module(module.name)
    names = {
        kind.__name__ for kind in defined()
    }  # a class with slots is there twice: as it was before it had them
    assert {kind.__name__ for kind in KINDS} == names


def test_every_kind_of_transform_applies_in_some_schedule() -> None:
    applied = dict.fromkeys(KINDS, 0)
    for name, (_, start) in starts().items():
        for seed in range(SEEDS):
            for t in seeded(name, start, seed).history[len(start.history) :]:
                applied[type(t)] += 1
    assert [kind.__name__ for kind, count in applied.items() if count == 0] == []


def test_a_seed_always_gives_the_same_schedule() -> None:
    for name, (_, start) in starts().items():
        assert seeded(name, start, 1).history == seeded(name, start, 1).history
