"""Recipes of plans for all sizes: how such a plan is given the sizes and numbers of a graph; kept on disk.

    outline of a graph    recipe: sizes n 64 n 128, 2 <= n <= 256; the number 0.3 is read from memory; which plan

A new process finds the recipes of a family by its outline, so its first graph runs on the plan for all sizes: nothing
is learned again, and where the plan is on disk, nothing is built. As in the process that learned it, a recipe is taken
for a graph only if it gives just the graph's sizes. Records are JSON, and one that makes no sense counts as absent.
"""
# Tests: tests/scheduler/test_recipes.py, tests/scheduler/test_disk_cache.py, tests/fuzz/test_families.py

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any

from weft import disk_cache, settings
from weft.backends.protocol import Device
from weft.ir.expr import Scalar
from weft.ir.index import (
    Index,
    Var,
)
from weft.lazy_dataclass import dataclass
from weft.scheduler.disk_cache import device_key
from weft.scheduler.outline import Outline
from weft.scheduler.size_json import decoded, encoded
from weft.scheduler.varying import Pattern

RECIPES_KEPT = 4
"""Recipes of a family that are kept on disk: the latest one, and those with room for the fewest sizes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The things that a graph gives to a plan for all sizes. `lifted`: the places of numbers that are read from memory;
    `fixed`: those of the others, with their values."""

    pattern: Pattern
    order: tuple[int, ...]
    """The leaves of the plan: the number of one of the graph's, or of a lifted number, counted on from these."""
    leaves: int
    """The number of the graph's own."""
    lifted: tuple[int, ...]
    fixed: tuple[tuple[int, Scalar], ...]
    variables: tuple[int, ...]
    """The numbers of the pattern's variables that are the plan's, in its order."""
    plan: str | None
    """The name of the plan on disk, if it may be there."""

    @property
    def room(self) -> int:
        """The number of sizes that the plan serves: the fewer, the better its kernels are for them."""
        return prod(v.hi for v in self.pattern.variables)

    def bind(self, own: Outline) -> tuple[int, ...] | None:
        """The values of the pattern's variables for a graph; None where it does not fit."""
        return self.pattern.bind(own.sizes) if self.has(own.numbers) else None

    def has(self, numbers: Sequence[Scalar]) -> bool:
        """True where these are the numbers that are not read from memory."""
        return not self.fixed or all(numbers[k] == value for k, value in self.fixed)


def key_of(own: Outline, replaces: Sequence[tuple[int, int]], device: Device) -> str | None:
    """The name of a family's recipes on disk; None where none are kept."""
    if settings.verify() or settings.cache_dir() is None:
        return None
    return disk_cache.digest(
        own.key.digest(), json.dumps(replaces), device_key(device), disk_cache.compiler()
    )


def store(key: str, recipes: Sequence[Recipe]) -> None:
    """Keep the first of a family's recipes."""
    record = {"key": key, "recipes": [_written(r) for r in recipes[:RECIPES_KEPT]]}
    disk_cache.put("family", key, json.dumps(record, separators=(",", ":")).encode())


def load(key: str, own: Outline) -> list[Recipe]:
    """The recipes called `key`, if they are there and whole: for graphs of this outline."""
    data = disk_cache.get("family", key)
    if data is None:
        return []
    try:
        record = json.loads(data)
        if record["key"] != key:
            raise ValueError("recipes of another name")
        return [_read(r, len(own.sizes), len(own.numbers)) for r in record["recipes"]]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        disk_cache.discard("family", key)
        return []


def _written(r: Recipe) -> dict[str, Any]:
    """A recipe as JSON has it; sizes are numbers, or refer to expressions."""
    p = r.pattern
    number = {v: k for k, v in enumerate(p.variables)}
    table = {e: [k] for k, e in enumerate(dict.fromkeys(s for s in p.sizes if isinstance(s, Index)))}
    return {
        "variables": [[v.name, v.lo, v.hi] for v in p.variables],
        "places": p.places,
        "expressions": [encoded(e, number) for e in table],
        "sizes": [s if isinstance(s, int) else table[s] for s in p.sizes],
        "order": r.order,
        "leaves": r.leaves,
        "lifted": r.lifted,
        "fixed": r.fixed,
        "used": r.variables,
        "plan": r.plan,
    }


def _read(record: Any, sizes: int, numbers: int) -> Recipe:
    """The recipe of a record, for so many sizes and numbers. ValueError where it refers to others."""
    variables = tuple([Var(str(name), int(lo), int(hi)) for name, lo, hi in record["variables"]])
    expressions = [decoded(e, variables) for e in record["expressions"]]
    places = tuple(map(int, record["places"]))
    listed: list[Any] = record["sizes"]
    given = tuple([s if isinstance(s, int) else expressions[int(s[0])] for s in listed])
    order, lifted = tuple(map(int, record["order"])), tuple(map(int, record["lifted"]))
    fixed = tuple([(int(k), _number(value)) for k, value in record["fixed"]])
    leaves, used = int(record["leaves"]), tuple(map(int, record["used"]))
    plan = record["plan"]
    whole = (
        len(given) == sizes
        and len(places) == len(variables)
        and all(v.lo <= v.hi for v in variables)
        and set(places) <= set(range(sizes))
        and set(order) <= set(range(leaves + len(lifted)))
        and {*lifted, *(k for k, _ in fixed)} == set(range(numbers))
        and set(used) <= set(range(len(variables)))
        and (plan is None or plan.__class__ is str)
    )
    if not whole:
        raise ValueError("a recipe of another family")
    return Recipe(Pattern.of(variables, given, places), order, leaves, lifted, fixed, used, plan)


def _number(value: Any) -> Scalar:
    if value.__class__ not in (int, float):
        raise ValueError(f"{value!r} is no number")
    return value
