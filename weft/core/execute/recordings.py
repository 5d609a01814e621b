"""Recordings of functions on disk: a process finds there what earlier ones recorded.

A record is found by the function and all that its graph follows from but for sizes, by its devices, and by the sources
of weft. It is written when the process ends. Where forms are verified nothing is kept, so that all is recorded.
"""
# Tests: tests/core/composed/test_recordings.py

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft import settings
from weft.errors import WeftError
from weft.ir.dtypes import DType
from weft.ir.placement import is_mesh

if TYPE_CHECKING:
    from weft.ir.calls import Given, GraphCall
    from weft.ir.index import Var
    from weft.scheduler.sized import SizedTemplate

KIND = "recorded"

NO_SENSE = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)
"""Errors of reading a record that makes no sense; it counts as absent."""


def name_of(function: Callable[..., Any], facts: Sequence[Any], devices: Iterable[str | None]) -> str | None:
    """The name of the record of a function with these facts; None where none is kept: also for functions that are not
    the only ones with their names, and for facts that are not plain."""
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
        disk_cache.state(COMPOSERS),
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


COMPOSERS = ("core", "autograd")
"""The folders of weft's sources that functions are composed by."""


def load(name: str) -> Any:
    """The record of that name; None where there is none."""
    import json

    from weft import disk_cache

    data = disk_cache.get(KIND, name)
    if data is None:
        return None
    try:
        record = json.loads(data)
        if record["name"] != name:
            raise ValueError("another record")
    except NO_SENSE:
        disk_cache.discard(KIND, name)
        return None
    return record


def keep(name: str, record: Mapping[str, Any]) -> None:
    """Keep a record under its name."""
    import json

    from weft import disk_cache

    disk_cache.put(KIND, name, json.dumps({"name": name, **record}, separators=(",", ":")).encode())


def written_calls(calls: Sequence[GraphCall | Given | None]) -> list[Any] | None:
    """Calls as JSON has them; None where they are not kept."""
    from weft.scheduler.template_json import UntoldError, written_call

    try:
        return [written_call(c) for c in calls]
    except UntoldError:
        return None


def read_calls(record: Any) -> tuple[GraphCall | Given | None, ...]:
    """The calls that were written."""
    from weft.scheduler.template_json import read_call

    return tuple([read_call(r) for r in record])


def written_sized(template: SizedTemplate, variables: Sequence[Var]) -> Any:
    """A template for all sizes as JSON has it."""
    from weft.scheduler.template_json import written_sized

    return written_sized(template, variables)


def read_sized(record: Any, variables: Sequence[Var]) -> SizedTemplate:
    """The template that was written."""
    from weft.scheduler.template_json import read_sized

    return read_sized(record, variables)
