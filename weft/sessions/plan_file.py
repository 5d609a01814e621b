"""A session's plan as a file: JSON with a digest of all that it says, followed symbolically before it is used.

    {"digest": "5f3c...", "plan": {"format": 1, "graph": ..., "device": ..., "values": ..., "cases": ...,
                                   "offsets": ..., "classes": ..., "states": ..., "transitions": ...}}

The digest finds accidents: a file with one byte changed is refused, or says the same. `verify` finds plans that are
whole but wrong: it follows every run and asks whether all that it reads is there and up to date, and whether all that
it writes over may be lost. A plan of another graph or device is refused by both their names.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from weft.backends.disk import drafts
from weft.errors import FileError, FileFormatError
from weft.lazy_dataclass import dataclass
from weft.scheduler.memory import ALIGNMENT
from weft.sessions.keeping import Keeping, State

FORMAT = 1

_T = TypeVar("_T")

MAX_FILE_BYTES = 64 << 20
"""A plan file is never larger: what is, is something else, and not read."""


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A candidate: its name and bytes; pinned ones are always kept."""

    name: str
    nbytes: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class SavedCase:
    """A bucket: its name, and the numbers of the values of which a part may differ after such a change."""

    name: str
    dirty: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """All that a plan file says. `graph`: the digest of what is computed; `device`: what the plan is for."""

    graph: str
    device: str
    values: tuple[SavedValue, ...]
    cases: tuple[SavedCase, ...]
    keeping: Keeping
    transitions: Mapping[tuple[str, str], int]


def save(plan: SavedPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan: the file is there as a whole, or as it was before. FileError where it cannot be written."""
    target = Path(path)
    try:
        draft, file = drafts.create(target.parent)
        try:
            with file:
                file.write(encoded(plan))
                file.flush()
                drafts.settle(file, draft, target)
        finally:
            draft.unlink(missing_ok=True)
            drafts.remove_abandoned(target.parent)
    except OSError as error:
        raise FileError(f"{target}: cannot be written: {error.strerror or error}") from error


def load(path: str | os.PathLike[str], graph: str, device: str) -> SavedPlan:
    """Read and verify a plan. FileError where there is none, FileFormatError where it is damaged, of another graph or
    for another device."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FileError(f"{name}: cannot be read: {error.strerror or error}") from error
    plan = decoded(data, name)
    if plan.graph != graph:
        raise FileFormatError(f"{name} is the plan of another graph: {plan.graph[:12]}, and not {graph[:12]}")
    if plan.device != device:
        raise FileFormatError(f"{name} is a plan for {plan.device}, and not for {device}")
    return plan


def encoded(plan: SavedPlan) -> bytes:
    """The bytes of a plan's file."""
    k = plan.keeping
    content = {
        "format": FORMAT,
        "graph": plan.graph,
        "device": plan.device,
        "values": [[v.name, v.nbytes, int(v.pinned)] for v in plan.values],
        "cases": [[c.name, list(c.dirty)] for c in plan.cases],
        "nbytes": k.nbytes,
        "ns": [float(k.ns), float(k.bound_ns)],
        "offsets": [[v, at] for v, at in zip(k.kept, k.offsets, strict=True)],
        "classes": [list(c) for c in k.classes],
        "states": [_row(s) for s in k.states],
        "transitions": [[a, b, n] for (a, b), n in sorted(plan.transitions.items())],
    }
    return _canonical({"digest": _digest(content), "plan": content})


def _row(s: State) -> list[Any]:
    lists = map(list, (s.reads, s.updates, s.stores, s.invalidates))
    return [s.case, s.before, s.after, float(s.ns), s.scratch, *lists]


def decoded(data: bytes, name: str) -> SavedPlan:
    """The plan in a file's bytes, verified. FileFormatError, with the file's name and the place, for anything else."""
    if len(data) > MAX_FILE_BYTES:
        raise FileFormatError(f"{name} has more than {MAX_FILE_BYTES:,} bytes, which no plan has")
    try:
        whole = json.loads(data, object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{name} is no plan of a session: {error}") from error
    if whole.__class__ is not dict or set(whole) != {"digest", "plan"} or whole["plan"].__class__ is not dict:
        raise FileFormatError(f"{name} is no plan of a session: it has no `digest` and `plan`")
    content = whole["plan"]
    try:
        same = whole["digest"] == _digest(content)
    except (ValueError, RecursionError):  # 1e999
        same = False
    if not same:
        raise FileFormatError(f"{name} is damaged: what it says has not the digest that it was saved with")
    if content.get("format") != FORMAT:
        raise FileFormatError(
            f"{name} has the format {content.get('format')!r}, and this version reads {FORMAT}"
        )
    try:
        plan = _read(content)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{name} is damaged: {error}") from error
    wrong = fault(plan)
    if wrong is not None:
        raise FileFormatError(f"{name} is damaged: {wrong}")
    return plan


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of a plan")


def _canonical(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).encode("ascii")


def _digest(content: object) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


def _read(content: Mapping[str, Any]) -> SavedPlan:
    ns, bound_ns = _list(content, "ns", lambda x: _number(x, "ns"))
    offsets = _list(content, "offsets", lambda row: _whole_numbers(row, "offsets", 2))
    return SavedPlan(
        _text(content["graph"], "graph"),
        _text(content["device"], "device"),
        _list(content, "values", _value),
        _list(content, "cases", _case),
        Keeping(
            _whole_number(content["nbytes"], "nbytes"),
            tuple(v for v, _ in offsets),
            tuple(at for _, at in offsets),
            _list(content, "classes", lambda row: _whole_numbers(row, "classes")),
            _list(content, "states", _state),
            ns,
            bound_ns,
        ),
        dict(_list(content, "transitions", _transition)),
    )


def _list(content: Mapping[str, Any], key: str, of: Callable[[Any], _T]) -> tuple[_T, ...]:
    rows = content[key]
    if rows.__class__ is not list:
        raise ValueError(f"{key} is no list")
    return tuple([of(row) for row in rows])


def _value(row: Any) -> SavedValue:
    name, nbytes, pinned = row
    return SavedValue(
        _text(name, "values"), _whole_number(nbytes, "values"), bool(_whole_number(pinned, "values"))
    )


def _case(row: Any) -> SavedCase:
    name, dirty = row
    return SavedCase(_text(name, "cases"), _whole_numbers(dirty, "cases"))


def _state(row: Any) -> State:
    case, before, after, ns, scratch, *lists = row
    case, before, after, scratch = _whole_numbers([case, before, after, scratch], "states")
    reads, updates, stores, invalidates = (_whole_numbers(x, "states") for x in lists)
    return State(case, before, after, _number(ns, "states"), scratch, reads, updates, stores, invalidates)


def _transition(row: Any) -> tuple[tuple[str, str], int]:
    a, b, count = row
    return (_text(a, "transitions"), _text(b, "transitions")), _whole_number(count, "transitions")


def _text(x: Any, place: str) -> str:
    if x.__class__ is not str:
        raise ValueError(f"{place} has {x!r} for a text")
    return x


def _number(x: Any, place: str) -> float:
    if x.__class__ is not float or not x >= 0:
        raise ValueError(f"{place} has {x!r} for a time")
    return x


def _whole_number(x: Any, place: str) -> int:
    if x.__class__ is not int or x < 0:
        raise ValueError(f"{place} has {x!r} for a number")
    return x


def _whole_numbers(row: Any, place: str, count: int | None = None) -> tuple[int, ...]:
    if row.__class__ is not list or count not in (None, len(row)):
        raise ValueError(f"{place} has {row!r} for numbers")
    return tuple([_whole_number(x, place) for x in row])


# verification -------------------------------------------------------------------------------------------------------


def fault(plan: SavedPlan) -> str | None:
    """The reason why a plan must not be used, where there is one: an offset that is not the value's own, a run that
    reads what is not there or not up to date, or that writes over what it says it keeps."""
    k = plan.keeping
    return _fault_of_values(plan) or _fault_of_places(plan) or _fault_of_classes(plan) or next(
        (f"run {n}, of bucket {s.case} in class {s.before}, {wrong}"
         for n, s in enumerate(k.states) for wrong in [_fault_of_state(plan, s)] if wrong is not None), None
    )  # fmt: skip


def _fault_of_values(plan: SavedPlan) -> str | None:
    count = len(plan.values)
    names = [c.name for c in plan.cases]
    if not names or len(set(names)) < len(names):
        return "cases are none, or two have one name"
    for c in plan.cases:
        if any(not 0 <= v < count for v in c.dirty):
            return f"bucket {c.name} changes a value that is not there"
    if any(not {a, b} <= set(names) for a, b in plan.transitions):
        return "transitions name a bucket that is not there"
    return None


def _fault_of_places(plan: SavedPlan) -> str | None:
    k = plan.keeping
    if any(v >= len(plan.values) for v in k.kept) or len(set(k.kept)) < len(k.kept):
        return "offsets are of values that are not there, or twice of one"
    if any(v.pinned and n not in set(k.kept) for n, v in enumerate(plan.values)):
        return "offsets leave out a value that is always kept"
    places = sorted((at, at + plan.values[v].nbytes, v) for v, at in zip(k.kept, k.offsets, strict=True))
    end = 0
    for at, stop, v in places:
        if at % ALIGNMENT or at < end or stop > k.nbytes:
            return f"value {v} is at {at}, which is not aligned, not free or outside of {k.nbytes} bytes"
        end = stop
    return None


def _fault_of_classes(plan: SavedPlan) -> str | None:
    k = plan.keeping
    if not k.classes or k.classes[0] or len(set(map(frozenset, k.classes))) < len(k.classes):
        return "classes do not begin with the empty one, or one comes twice"
    if any(not set(c) <= set(k.kept) or len(set(c)) < len(c) for c in k.classes):
        return "classes have values that are not kept"
    returned = min((s.after for s in k.states), default=1)  # 0 where nothing is kept
    wanted = {(c, b) for b in range(returned, len(k.classes)) for c in range(len(plan.cases))} | {(0, 0)}
    if len(k.states) != len(wanted) or {(s.case, s.before) for s in k.states} != wanted:
        return "states are not one for each bucket in each class"
    if any(s.after >= len(k.classes) for s in k.states):
        return "states lead to a class that is not there"
    return None


def _fault_of_state(plan: SavedPlan, s: State) -> str | None:
    k = plan.keeping
    before, after, lost = set(k.classes[s.before]), set(k.classes[s.after]), set(s.invalidates)
    at = dict(zip(k.kept, k.offsets, strict=True))
    dirty = set(plan.cases[s.case].dirty)
    pinned = {n for n, v in enumerate(plan.values) if v.pinned}
    if not lost <= before:
        return f"invalidates {_list_of(lost - before)}, not valid before"
    there = before - lost
    if not set(s.reads) <= there:
        return f"reads {_list_of(set(s.reads) - there)}, not valid"
    if set(s.updates) != dirty & there:
        return f"updates {_list_of(set(s.updates))}, and {_list_of(dirty & there)} may differ"
    if not set(s.stores) <= set(at) - there:
        return f"stores {_list_of(set(s.stores) - (set(at) - there))}, valid already or without a place"
    if after != there | set(s.stores):
        return f"leaves {_list_of(after)} valid, and not {_list_of(there | set(s.stores))}"
    if not pinned <= after:
        return f"leaves out {_list_of(pinned - after)}, always kept"
    over = {v for v in there | after if at[v] < s.scratch}
    if over or s.scratch > k.nbytes:
        return f"has scratch up to {s.scratch}, over {_list_of(over) or 'the end'}"
    return None


def _list_of(values: set[int]) -> str:
    return ", ".join(map(str, sorted(values)))
