"""Looking up what a transform speaks of, with a refusal when it is not there."""

from __future__ import annotations

from weft.ir.kernel.algorithm import Item, ItemValue
from weft.ir.kernel.schedule import Kernel, NestLoop, initial_nest
from weft.ir.kernel.transforms.base import Refusal
from weft.ir.loops import LoopKind


def find(k: Kernel, loop: str) -> NestLoop | Refusal:
    """The loop called `loop`."""
    owner = k.owner(loop)
    if owner is None:
        return Refusal(f"there is no loop {loop}")
    spec = k.nests[owner].loop(loop)
    assert spec is not None
    return spec


def find_value(k: Kernel, name: str) -> ItemValue | Refusal:
    """The value (not output) called `name`."""
    for item in k.algorithm.items:
        if item.name == name:
            return item if isinstance(item, ItemValue) else Refusal(f"{name} is an output")
    return Refusal(f"there is no value {name}")


def empty(k: Kernel, item: str) -> Refusal | None:
    """Refuses items in whose loops something is computed."""
    if any(n.at is not None and n.at.item == item for n in k.nests.values()):
        return Refusal(f"something is computed in {item}'s loops")
    return None


def unscheduled(k: Kernel, item: Item) -> Refusal | None:
    """Refuses items that have a place, or other loops than one per axis, which is what they are about to get anew."""
    nest, before = k.nests[item.name], initial_nest(item, set())
    if nest.at is not None or [s.extent for s in nest.loops] != [s.extent for s in before.loops]:
        return Refusal(f"{item.name} has been scheduled already")
    return empty(k, item.name)


def serial(k: Kernel, spec: NestLoop) -> Refusal | None:
    """Refuses loops that already have a kind, or that carry online reductions."""
    if spec.kind is not LoopKind.SERIAL:
        return Refusal(f"the loop {spec.var.name} is already {spec.kind.value}")
    if any(n.online is not None and n.online.loop == spec.var.name for n in k.nests.values()):
        return Refusal(f"online reductions run in the loop {spec.var.name}")
    return None
