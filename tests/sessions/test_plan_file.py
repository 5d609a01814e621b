"""A plan's file says all of it again, or is refused by its name; no plan that is accepted reads what is not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.sessions.retention_problems import Machine, random_problem
from weft.errors import FileError, FileFormatError
from weft.sessions import plan_file
from weft.sessions.keeping import keep, least, rank, unlimited
from weft.sessions.plan_file import SavedCase, SavedPlan, SavedValue, decoded, encoded, fault, load, save
from weft.sessions.retention import Retention


def saved(p: Retention, limit: int) -> SavedPlan:
    return SavedPlan(
        "5" * 64,
        "cpu",
        tuple(SavedValue(v.name, v.nbytes, v.pinned) for v in p.values),
        tuple(SavedCase(c.name, tuple(sorted(c.dirty))) for c in p.cases),
        keep(p, limit),
        {("all", "all"): 3},
    )


def plans(seed: int, count: int, values: int, cases: int) -> Iterator[tuple[Retention, SavedPlan]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        p = random_problem(rng, values, cases)
        order = rank(p)
        yield p, saved(p, int(rng.uniform(least(p, order)[0], unlimited(p, order))))


def test_a_plan_is_read_as_it_was_saved(tmp_path: Path) -> None:
    for _, plan in plans(0, 20, 9, 3):
        save(plan, tmp_path / "plan.json")
        assert load(tmp_path / "plan.json", plan.graph, plan.device) == plan
    assert [f.name for f in tmp_path.iterdir()] == ["plan.json"], "and leaves no drafts"


def test_a_file_with_any_byte_changed_is_refused_or_says_the_same() -> None:
    _, plan = next(plans(5, 1, 3, 2))
    data = encoded(plan)
    refused = 0
    for at in range(len(data)):
        for other in {data[at] ^ 1, data[at] ^ 0x80, 0x20, 0x30} - {data[at]}:
            try:
                found = decoded(data[:at] + bytes([other]) + data[at + 1 :], "plan.json")
            except FileFormatError as error:
                assert "plan.json" in error.message
                refused += 1
            else:
                assert found == plan
    assert refused > 3 * len(data)


def test_a_file_that_is_cut_or_longer_is_refused() -> None:
    _, plan = next(plans(5, 1, 3, 2))
    data = encoded(plan)
    for n in range(len(data)):
        with pytest.raises(FileFormatError, match=r"plan\.json"):
            decoded(data[:n], "plan.json")
    with pytest.raises(FileFormatError, match="no plan"):
        decoded(data + b"}", "plan.json")


NO_PLANS = (
    b"", b"null", b"[]", b"NaN", b"\xff\xfe", b"[" * 100_000, b'{"digest":1,"digest":1}', b'{"digest":"","plan":[]}',
    b'{"digest":"","plan":{}}', b'{"digest":"","plan":{"x":1e999}}', b'{"digest":null,"plan":{"x":1e999}}',
)  # fmt: skip


@pytest.mark.parametrize("data", NO_PLANS, ids=range(len(NO_PLANS)))
def test_what_is_no_plan_is_refused(data: bytes) -> None:
    with pytest.raises(FileFormatError, match=r"^plan\.json is"):
        decoded(data, "plan.json")


def test_plans_of_others_are_refused_by_both_names(tmp_path: Path) -> None:
    _, plan = next(plans(5, 1, 3, 2))
    save(plan, tmp_path / "plan.json")
    with pytest.raises(FileFormatError, match="another graph: 555555555555, and not 666666666666"):
        load(tmp_path / "plan.json", "6" * 64, "cpu")
    with pytest.raises(FileFormatError, match="for cpu, and not for opencl"):
        load(tmp_path / "plan.json", plan.graph, "opencl")
    with pytest.raises(FileError, match="cannot be read"):
        load(tmp_path / "other.json", plan.graph, "cpu")
    with pytest.raises(FileError, match="cannot be written"):
        save(plan, tmp_path / "none" / "plan.json")


def test_formats_of_other_versions_and_files_that_are_too_large_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, plan = next(plans(5, 1, 3, 2))
    data = encoded(plan)
    monkeypatch.setattr(plan_file, "FORMAT", 2)
    with pytest.raises(FileFormatError, match="the format 1, and this version reads 2"):
        decoded(data, "plan.json")
    monkeypatch.setattr(plan_file, "MAX_FILE_BYTES", len(data) - 1)
    with pytest.raises(FileFormatError, match="more than"):
        decoded(data, "plan.json")


def altered(value: Any, rng: np.random.Generator) -> Any:
    """The content with one number a little different, or a list with one entry fewer or more."""
    match value:
        case dict():
            content = cast("dict[str, Any]", value)
            key = str(rng.choice(sorted(set(content) - {"format", "transitions"})))
            return {**content, key: altered(content[key], rng)}
        case list():
            rows = cast("list[Any]", value)
            at, how = int(rng.integers(0, max(len(rows), 1))), rng.random()
            if not rows or how < 0.1:
                return [*rows, int(rng.integers(0, 4))]
            if how < 0.2:
                return [*rows[:at], *rows[at + 1 :]]
            return [*rows[:at], altered(rows[at], rng), *rows[at + 1 :]]
        case int():
            return value + int(rng.choice([-256, -1, 1, 256]))
        case _:
            return value


def test_a_plan_that_is_whole_but_wrong_is_refused_or_runs_right() -> None:
    rng = np.random.default_rng(2)
    refused = 0
    for p, plan in plans(1, 40, 6, 3):
        assert fault(plan) is None
        for _ in range(25):
            content = altered(json.loads(encoded(plan))["plan"], rng)
            text = json.dumps(content, separators=(",", ":"), sort_keys=True)
            data = json.dumps({"digest": sha256(text.encode()).hexdigest(), "plan": content}).encode()
            try:
                found = decoded(data, "plan.json")
            except FileFormatError as error:
                assert "is damaged" in error.message
                refused += 1
                continue
            if found.cases != plan.cases or found.values != plan.values:
                continue  # of another graph
            machine = Machine(p, found.keeping)
            machine.run(0)
            for case in rng.integers(0, len(p.cases), 20):
                machine.run(int(case))
    assert refused > 400


def test_what_is_wrong_is_named() -> None:
    _, plan = next(plan for plan in plans(1, 40, 6, 3) if len(plan[1].keeping.kept) > 2)
    k = plan.keeping
    state, *others = k.states

    def wrong(**changes: Any) -> str | None:
        return fault(replace(plan, keeping=replace(k, **changes)))

    def wrong_state(**changes: Any) -> str | None:
        return wrong(states=(replace(state, **changes), *others))

    assert "twice" in (wrong(kept=(k.kept[0],) * len(k.kept)) or "")
    assert "not aligned" in (wrong(offsets=(k.offsets[0] - 1, *k.offsets[1:])) or "")
    assert "not free" in (wrong(offsets=(k.offsets[1], *k.offsets[1:])) or "")
    assert "always kept" in (
        fault(replace(plan, values=tuple(replace(v, pinned=True) for v in plan.values))) or ""
    )
    assert "begin with the empty one" in (wrong(classes=k.classes[1:]) or "")
    assert "one for each bucket" in (wrong(states=k.states[1:]) or "")
    assert "reads" in (wrong_state(reads=k.kept) or "")
    assert "updates" in (wrong_state(updates=k.kept) or "")
    assert "invalidates" in (wrong_state(invalidates=k.kept) or "")
    assert "leaves" in (wrong_state(stores=()) or "")
    assert "scratch" in (wrong_state(scratch=k.nbytes) or "")
    assert "bucket c1 changes a value" in (
        fault(replace(plan, cases=(plan.cases[0], SavedCase("c1", (99,)), plan.cases[2]))) or ""
    )
    assert "transitions" in (fault(replace(plan, transitions={("x", "all"): 1})) or "")
