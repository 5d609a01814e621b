"""Programs that came with weft."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from weft import disk_cache, pack
from weft.backends.cpu.device import CpuDevice, cached_ir, packed_native
from weft.backends.cpu.machine import PACKED_LEVELS, described, host, levels, portable
from weft.backends.cpu.runtime import OPTIMIZATION, native_text
from weft.backends.registry import open_device
from weft.errors import ArgumentError
from weft.ir.kernel.digest import digest
from weft.prepare import pack_of
from weft.prepare.routines import Routine
from weft.scheduler import families, kernel_cache, programs
from weft.scheduler import realize as realization
from weft.scheduler.basic import beside, form_kernels, tiers

ENTRIES = {
    ("kernel", "a"): b"one" * 9,
    ("image", "a"): b"two",
    ("image", "b"): b"",
    ("native", "c"): bytes(300),
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of a pack of the test's own, and a cache in which nothing is."""
    path = tmp_path / "of.pack"
    monkeypatch.setattr(pack, "place", lambda: path)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_VERIFY", "0")
    monkeypatch.setenv("WEFT_TIERS", "1")
    monkeypatch.setattr(beside, "ask", lambda *_: True)
    forget()
    yield path
    monkeypatch.undo()
    forget()


def forget() -> None:
    """As a process that begins."""
    pack.opened.cache_clear()
    tiers._luck.pause = tiers._luck.passed = 0
    tables = (
        realization._plans, families._families, families._met, programs._compiled, form_kernels._forms,
    )  # fmt: skip
    for table in tables:
        table.clear()


def test_entries_are_found_by_kind_and_key(file: Path) -> None:
    assert pack.get("kernel", "a") is None
    file.write_bytes(pack.written(ENTRIES))
    assert pack.get("kernel", "a") is None, "a process looks for a pack once"
    pack.opened.cache_clear()
    assert {at: pack.get(*at) for at in ENTRIES} == ENTRIES
    assert pack.get("kernel", "b") is None
    assert pack.get("image", "c") is None
    assert pack.get("plan", "a") is None


def test_a_pack_of_other_sources_is_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        m.setattr(pack, "sources", lambda: bytes(32))
        file.write_bytes(pack.written(ENTRIES))
    for _ in range(2):  # read, and told by the cache on disk
        pack.opened.cache_clear()
        assert pack.get("kernel", "a") is None
    file.write_bytes(pack.written(ENTRIES))
    pack.opened.cache_clear()
    assert pack.get("kernel", "a") == ENTRIES["kernel", "a"]


def test_sources_are_known_by_their_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ir").mkdir()
    source = tmp_path / "ir" / "x.py"
    monkeypatch.setattr(disk_cache, "sources", lambda: iter([str(source)]))
    source.write_text("a = 1\n")
    first = pack.sources()
    source.write_text("a = 1\n")
    assert pack.sources() == first, "when a file was written does not count"
    source.write_text("a = 2\n")
    assert pack.sources() != first


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_noticed(file: Path, data: st.DataObject) -> None:
    whole = pack.written(ENTRIES)
    at = data.draw(st.integers(0, len(whole) - 1))
    kept = data.draw(st.just(whole[:at]) | st.integers(1, 255).map(lambda flip: (
        whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
    )))  # fmt: skip
    file.write_bytes(kept)
    pack.opened.cache_clear()
    for kind, key in ENTRIES:
        assert pack.get(kind, key) in (None, ENTRIES[kind, key])


def test_a_file_that_goes_is_no_pack(file: Path) -> None:
    file.write_bytes(pack.written(ENTRIES))
    assert pack.get("image", "a") == b"two"
    file.unlink()
    assert pack.get("image", "b") is None


def test_levels_are_those_that_a_processor_runs() -> None:
    whole = host()
    for level, below in (("x86-64-v4", PACKED_LEVELS), ("x86-64-v3", ("x86-64-v3",)), ("x86-64-v2", ())):
        assert levels(portable(whole, level).target) == below
        if below:
            assert levels(described(level).target) == below
    narrow = portable(whole, "x86-64-v4").target
    assert levels(type(narrow)(narrow.triple, "", f"{narrow.features},+prefer-256-bit")) == ("x86-64-v3",)
    assert levels(type(narrow)("aarch64-unknown-linux-gnu", "", narrow.features)) == ()


def work() -> Iterator[weft.Tensor]:
    """Results of a small program, which is new to the process."""
    x = weft.arange(24).reshape(4, 6).to(weft.float32).realize()
    w = weft.linspace(-1, 1, 30).reshape(6, 5).realize()
    y = (x @ w).tanh()
    yield from (y, y.softmax(-1), (x * 2 + 1).sum(0), x[1:3, ::2].clone(), x.where(x > 3, 0.0))


def test_a_process_compiles_nothing_that_came_with_weft(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("cpu:0")
    assert isinstance(device, CpuDevice)
    if not device.levels:
        pytest.skip("this processor is below the levels that programs are packed for")
    expected = [t.numpy() for t in work()]
    forget()
    disk_cache.clear()
    *progress, data = pack_of([Routine("work", work)], device.levels)
    assert len(progress) == 1 + len(device.levels)
    assert isinstance(data, bytes)
    algorithms = programs.known(device)
    assert len(algorithms) > 4

    def refused(*_: object) -> None:
        raise AssertionError("a program was compiled, or a form kernelized")

    for folder in ("other", ""):
        monkeypatch.setenv("WEFT_CACHE_DIR", str(file.parent / folder) if folder else "")
        file.unlink(missing_ok=True)
        forget()
        assert set(programs.missing(algorithms, device)) == set(algorithms), "nothing came"
        file.write_bytes(data)
        forget()
        assert not programs.missing(algorithms, device)
        forget()
        with monkeypatch.context() as m:
            m.setattr(CpuDevice, "compile", refused)
            m.setattr(form_kernels, "kernels_of", refused)
            if folder:  # tiers are there where plans can be kept
                for mine, theirs in zip(work(), expected, strict=True):
                    np.testing.assert_allclose(mine.numpy(), theirs, rtol=2e-6, atol=1e-6)
            else:
                assert len(programs.compiled(algorithms, device)) == len(algorithms)


def test_plans_of_what_came_with_weft_are_kept(file: Path) -> None:
    device = open_device("cpu:0")
    assert isinstance(device, CpuDevice)
    *_, data = pack_of([Routine("work", work)], device.levels)
    assert isinstance(data, bytes)
    file.write_bytes(data)
    disk_cache.clear()
    forget()
    first = [t.numpy() for t in work()]
    assert not {"kernel", "form"} & {*kinds(file.parent / "cache")}, "all of them came with weft"
    forget()
    basics = [t.numpy() for t in work()]
    for mine, theirs in zip(first, basics, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def kinds(cache: Path) -> list[str]:
    """The kind of each entry in a cache."""
    return [p.parent.parent.name for p in cache.glob("*/*/*.weft")]


def test_every_level_has_the_runtime_and_each_kernel(file: Path) -> None:
    device = open_device("cpu:0")
    assert isinstance(device, CpuDevice)
    *_, data = pack_of([Routine("work", work)], PACKED_LEVELS)
    assert isinstance(data, bytes)
    algorithms = programs.known(device)
    file.write_bytes(data)
    pack.opened.cache_clear()
    for level in PACKED_LEVELS:
        machine = described(level)
        text = native_text(machine)
        disk_cache.clear()
        found = cached_ir(text, machine.target, OPTIMIZATION)
        assert found == pack.get("native", packed_native(text, level))
        for a in algorithms:
            key = kernel_cache.packed_key(digest(a), level)
            record = json.loads(pack.get("kernel", key) or b"{}")
            assert record["key"] == key
            assert pack.get("image", record["image"]) is not None


def test_a_pack_needs_a_process_and_a_cache_without_programs(file: Path) -> None:
    next(work()).realize()
    with pytest.raises(ArgumentError, match="an empty cache"):
        next(pack_of([Routine("work", work)], PACKED_LEVELS))


@pytest.mark.parametrize("table", [(form_kernels, "FORMS_KEPT"), (programs, "PROGRAMS_KEPT")])
def test_a_pack_has_all_that_its_samples_need(
    file: Path, table: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*table, 3)
    with pytest.raises(ArgumentError, match="make packs of fewer samples"):
        list(pack_of([Routine("work", work)], PACKED_LEVELS))


def test_verified_programs_are_compiled(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("cpu:0")
    assert isinstance(device, CpuDevice)
    *_, data = pack_of([Routine("work", work)], device.levels)
    assert isinstance(data, bytes)
    algorithms = programs.known(device)
    file.write_bytes(data)
    forget()
    monkeypatch.setenv("WEFT_VERIFY", "1")
    assert set(programs.missing(algorithms, device)) == set(algorithms)
