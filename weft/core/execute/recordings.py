"""Recordings of functions on disk: a process finds there what earlier ones recorded.

A record is found by the function and all that its graph follows from but for sizes, by its devices, and by the sources
of weft. It is written when the process ends. Where forms are verified nothing is kept, so that all is recorded.
"""
# Tests: tests/core/composed/test_recordings.py

from __future__ import annotations

import atexit
import contextlib
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from weft import settings
from weft.errors import WeftError
from weft.ir.dtypes import DType
from weft.ir.placement import is_mesh

if TYPE_CHECKING:
    from weft.ir.calls import Given, GraphCall

T = TypeVar("T")

KIND = "recorded"

COMPOSERS = ("core", "autograd")
"""The folders of weft's sources that functions are composed by."""

NO_SENSE = (ValueError, KeyError, TypeError, IndexError, AttributeError)
"""Errors of reading a record that makes no sense; it counts as absent."""


def name_of(
    function: Callable[..., Any],
    facts: Sequence[Any],
    devices: Iterable[str | None],
    composers: tuple[str, ...] = COMPOSERS,
) -> str | None:
    """The name of the record of a function with these facts; None where none is kept: also for functions that are not
    the only ones with their names, and for facts that are not plain. `composers`: the folders of sources that it
    follows from."""
    if settings.verify() or settings.cache_dir() is None or not _is_named(function):
        return None
    try:
        told = _told(tuple(facts))
    except TypeError:
        return None
    # Here, as below, since a process may compute nothing.
    from weft import disk_cache
    from weft.backends.registry import open_device
    from weft.scheduler.disk_cache import device_key

    places = sorted({d for d in devices if d is not None})
    if any(map(is_mesh, places)):
        return None
    try:
        keys = [f"{d} {device_key(open_device(d))}" for d in places]
    except (WeftError, OSError):  # meta, or gone: whoever computes something there is told
        return None
    return disk_cache.digest(
        f"{function.__module__}.{function.__qualname__}",
        told,
        *keys,
        disk_cache.compiler(),
        disk_cache.state(composers),
    )


def _is_named(function: Callable[..., Any]) -> bool:
    """True for a function of weft's that is found by its name, within what was put around it."""
    module = function.__module__
    found: Any = sys.modules.get(module) if module.startswith("weft.") else None
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    while found is not None and found is not function:
        found = getattr(found, "__wrapped__", None)
    return found is function


def _told(x: Any) -> str:
    """A fact as text. TypeError for one that is not plain."""
    if x.__class__ is tuple:
        return f"({', '.join(map(_told, x))})"
    if isinstance(x, DType):
        return x.name
    if isinstance(x, type):
        return f"{x.__module__}.{x.__qualname__}"
    if x is None or x.__class__ in (bool, int, float, str):
        return repr(x)
    raise TypeError


def load(name: str) -> Any:
    """The record of that name; None where there is none."""
    from weft import disk_cache

    data = disk_cache.get(KIND, name)
    if data is None:
        return None
    try:
        record = read(data)
        if record["name"] != name:
            raise ValueError("another record")
    except NO_SENSE:
        disk_cache.discard(KIND, name)
        return None
    return record


def found(name: str | None, made: Callable[[Any], T]) -> T | None:
    """The content of the record of that name, as `made` of it; None where there is none that makes sense."""
    record = None if name is None else load(name)
    try:
        return None if record is None else made(record)
    except NO_SENSE:
        return None


def at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """The function, which is called as well when the process ends: it keeps what is new."""

    def end() -> None:
        with contextlib.suppress(Exception):  # a program that ends has nobody to tell
            function()

    atexit.register(end)
    return function


def keep(name: str, record: Mapping[str, Any]) -> None:
    """Keep a record under its name."""
    from weft import disk_cache

    disk_cache.put(KIND, name, written({"name": name, **record}))


def written(value: Any) -> bytes:
    """Calls, and what was learned of them, as bytes."""
    from weft.scheduler.pickles import pickled

    return pickled(value)


def read(data: bytes) -> Any:
    """Calls that were written, or the like; None for other bytes."""
    from weft.scheduler.pickles import NOT_PICKLED

    try:
        return pickle.loads(data)  # as trusted as the machine code beside it
    except NOT_PICKLED:
        return None


def written_calls(calls: Sequence[GraphCall | Given | None]) -> bytes | None:
    """Calls as bytes; None where they are not kept."""
    from weft.ir.calls import GraphCall
    from weft.scheduler.pickles import means_the_same_elsewhere

    templates = [c.template for c in calls if isinstance(c, GraphCall)]
    return written(tuple(calls)) if all(map(means_the_same_elsewhere, templates)) else None
