"""Workspaces of plans for all sizes: laid out for the sizes that came so far."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.backends.protocol import Commands
from weft.backends.registry import open_device
from weft.ir.index import Var, evaluate
from weft.scheduler import families, growing, programs, realize
from weft.scheduler.growing import Growing, Needs, Tenancy
from weft.scheduler.plan import Plan

N, M = Var("n", 2, 1_000_000), Var("m", 2, 64)

sizes = st.sampled_from([4096, N * 4, N * 8 + 12, N * M * 4, (N + 5) // 8 * 64, M * 256, (M * -4) + 512])
tenancies = st.builds(
    lambda nbytes, a, b: Tenancy(tuple(nbytes), min(a, b), max(a, b)),
    st.lists(sizes, min_size=1, max_size=2),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(st.lists(tenancies, min_size=1, max_size=8), st.integers(2, 300), st.integers(2, 64), st.data())
def test_what_lives_at_once_never_shares_a_byte(
    wanted: list[Tenancy], n: int, m: int, data: st.DataObject
) -> None:
    """For all sizes up to those that it is laid out for: also where something is larger when a size is smaller."""
    layout = Needs(tuple(wanted)).layout({N: n, M: m})
    env = {"n": data.draw(st.integers(2, n)), "m": data.draw(st.integers(2, m))}
    ends = [
        at + max(int(evaluate(x, env)) for x in t.nbytes)
        for at, t in zip(layout.offsets, wanted, strict=True)
    ]
    assert max(ends) <= layout.nbytes
    for i, a in enumerate(wanted):
        for j, b in enumerate(wanted[:i]):
            if a.first <= b.last and b.first <= a.last:
                assert ends[i] <= layout.offsets[j] or ends[j] <= layout.offsets[i]


def test_places_in_a_block_stay_at_their_distance() -> None:
    needs = Needs((Tenancy((N * 4,), 0, 3), Tenancy((1024,), 1, 1)), ((1, 0), (1, 256)))
    for n in (2, 1000, N.hi):
        layout = needs.layout({N: n})
        assert layout.offsets[2:] == (layout.offsets[1], layout.offsets[1] + 256)


class _Linked:
    """An executable that tells what it ran on."""

    def __init__(self, commands: Commands) -> None:
        self.commands, self.started, self.finished = commands, 0, 0

    def run(self, memories: Any, variables: Any = (), queue: int = 0) -> None:
        self.started += 1
        self.finished += 1


class _Device:
    def __init__(self) -> None:
        self.linked: list[Commands] = []

    def link(self, codes: Any, commands: Commands) -> _Linked:
        self.linked.append(commands)
        return _Linked(commands)


def _growing(device: Any, *wanted: Tenancy, least: int = 0) -> Any:
    needs = Needs(wanted)
    whole = needs.layout({N: N.hi, M: M.hi})
    commands = Commands((), 0, whole.offsets, max(whole.nbytes, least), 2)
    return growing.linked(device, (), commands, (N, M), needs)


def test_it_is_laid_out_anew_only_for_sizes_beyond_all_before() -> None:
    device = _Device()
    made = _growing(device, Tenancy((N * M * 4,), 0, 1))
    assert isinstance(made, Growing) and not device.linked
    for n, m in ((100, 3), (128, 4), (7, 4), (3, 2)):
        made.run((), (n, m))
    assert [c.workspace_bytes for c in device.linked] == [128 * 4 * 4]
    made.run((), (129, 2))  # not the product counts, but each size
    made.run((), (256, 4))
    assert [c.workspace_bytes for c in device.linked[1:]] == [256 * 4 * 4]
    assert made.nbytes == 256 * 4 * 4
    made.run((), (2, 64))
    assert device.linked[-1].workspace_bytes == 256 * 64 * 4
    assert made.started == made.finished == 7  # also those of executables that are replaced


def test_the_bounds_are_the_end() -> None:
    device = _Device()
    made = _growing(device, Tenancy((N * 4,), 0, 1))
    made.run((), (N.hi - 1, 2))
    made.run((), (N.hi, 64))
    assert [c.workspace_bytes for c in device.linked] == [N.hi * 4] * 2


@pytest.mark.parametrize("size", [M * 256, 4 << 20], ids=["small", "of one size"])
def test_a_small_workspace_and_one_of_one_size_are_as_they_are(size: Any) -> None:
    device = _Device()
    assert isinstance(_growing(device, Tenancy((size,), 0, 1)), _Linked)
    assert len(device.linked) == 1


def test_devices_that_foretell_times_do_so() -> None:
    made = _growing(_Device(), Tenancy((N * 4,), 0, 1))
    assert growing.foretold(made) is None and growing.foretold(_Linked(made._commands)) is None
    foretells = _growing(open_device("dummy:0"), Tenancy((N * 4,), 0, 1))
    for executable in (foretells, foretells.smallest()):
        told = growing.foretold(executable)
        assert told is not None and told.run_ns((2, 2, 0)) >= 0
    foretells._for((5000, 2))
    assert foretells.smallest() is foretells._current[1], "there is one already"


class _Narrow(_Device):
    """A device with room for workspaces of so many bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.ran = room, list[int]()

    def link(self, codes: Any, commands: Commands) -> _Linked:
        made = super().link(codes, commands)
        run = made.run

        def runs(*given: Any) -> None:
            if commands.workspace_bytes > self.room:
                raise MemoryError
            self.ran.append(commands.workspace_bytes)
            run(*given)

        made.run = runs
        return made


def test_where_there_is_no_room_it_is_laid_out_for_just_these_sizes() -> None:
    device = _Narrow(640 * 4)
    made = _growing(device, Tenancy((N * 4,), 0, 1))
    for n in (100, 520, 60, 580, 700, 50):
        if n > 600:
            with pytest.raises(MemoryError):
                made.run((), (n, 2))
        else:
            made.run((), (n, 2))
    assert device.ran == [512, 2304, 512, 2560, 512]  # in whole pieces of 256 bytes
    assert made.started == made.finished == 5 and len(made._linked) <= 5
    device.room = 1 << 20
    made.run((), (580, 2))
    assert device.ran[-1] == 4096 and made.finished == 6


# --- plans


def _run(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Several sums, so that something lies between them; and a loop."""
    t = weft.tensor(x)
    a = t.softmax(1) @ t.T.contiguous()
    b = (a.cumsum(0) / (1 + a.sum(0, keepdim=True))).tanh().softmax(0)
    return (b @ t).numpy()


def _expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    def softmax(v: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
        e = np.exp(v - v.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    wide = x.astype(np.float64)
    a = softmax(wide, 1) @ wide.T
    return softmax(np.tanh(a.cumsum(0) / (1 + a.sum(0, keepdims=True))), 0) @ wide


def _plans() -> list[Plan]:
    return [p for p in map(realize._met, list(realize._plans)) if p is not None]


ROWS = (40, 33, 12, 97, 64, 3, 250, 8, 251, 120, 600, 5)


def test_results_are_right_while_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "LEAST_BYTES", 0)
    grown: list[int] = []
    laid_out = Growing._laid_out
    monkeypatch.setattr(Growing, "_laid_out", lambda self, v: grown.append(self.nbytes) or laid_out(self, v))
    rng = np.random.default_rng(7)
    for n in ROWS:
        x = rng.standard_normal((n, 24)).astype(np.float32)
        np.testing.assert_allclose(_run(x), _expected(x), rtol=2e-4, atol=2e-5)
    assert len([g for g in grown if g]) >= 2  # one plan grew more than once


def test_threads_that_run_while_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "LEAST_BYTES", 0)
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for n in rng.permutation(ROWS):
            x = rng.standard_normal((int(n), 16)).astype(np.float32)
            if not np.allclose(_run(x), _expected(x), rtol=2e-4, atol=2e-5):
                wrong.append(f"{n} rows, seed {seed}")

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_needs_are_those_of_the_plan_on_disk() -> None:
    """A stored plan is read with what its workspace needs; one that tells of another workspace is no plan."""
    from weft.scheduler import disk_cache

    needs = Needs((Tenancy((N * 4, 64), 0, 2), Tenancy((N * M * 4,), 1, 1)), ((1, 256),))
    sizes = [disk_cache.encoded(x, {N: 0, M: 1}) for x in needs.sizes]
    rows = [[[needs.sizes.index(x) for x in t.nbytes], t.first, t.last] for t in needs.tenancies]
    assert disk_cache._read_needs([sizes, rows, needs.inside], (N, M), 3) == needs
    wrong = (([sizes, rows, needs.inside], 2), ([sizes, rows, [[2, 0]]], 3), ([sizes, [[[], 0, 1]], []], 1))
    for record, count in wrong:
        with pytest.raises(ValueError, match="another plan"):
            disk_cache._read_needs(record, (N, M), count)
    assert disk_cache._read_needs(None, (N, M), 7) is None


def _families() -> list[Plan]:
    """The plans for all sizes of this process."""
    return [g.plan for f in families._families.values() for g in f.plans if isinstance(g.plan, Plan)]


def test_plans_grow_in_other_processes_and_on_other_devices_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_VERIFY", "0")
    monkeypatch.setattr(growing, "LEAST_BYTES", 0)
    tables = (realize._plans, families._families, families._met, families._alike, programs._compiled)
    for _ in range(2):
        for table in tables:
            table.clear()
        for n in (30, 41, 52, 300):
            x = np.random.default_rng(n).standard_normal((n, 24)).astype(np.float32)
            np.testing.assert_allclose(_run(x), _expected(x), rtol=2e-4, atol=2e-5)
        found = [p for p in _families() if p.needs is not None and p.needs.vary]
        assert found and all(isinstance(p.executable, Growing) for p in found)
    assert isinstance(found[0].on(open_device("cpu:0")).executable, Growing)
    for table in tables:
        table.clear()


def test_a_refusal_tells_what_these_sizes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "LEAST_BYTES", 0)
    for n in (700, 411, 12, 21):
        _run(np.ones((n, 20), np.float32))
    plan = min((p for p in _plans() if isinstance(p.executable, Growing)), key=lambda p: p.executable.nbytes)
    assert plan.executable.nbytes < plan.commands.workspace_bytes
    text = plan._refusal(MemoryError("refused"))
    assert f"{plan.executable.nbytes:,} for what lies between" in text


def test_layouts_are_kept_for_a_few_limits() -> None:
    needs = Needs((Tenancy((N * 4,), 0, 3), Tenancy((1024,), 1, 1)))
    first = needs.layout({N: 16})
    assert needs.layout({N: 16}) is first
    for n in range(17, 17 + 3 * growing.LAYOUTS_KEPT):
        assert needs.layout({N: n}).nbytes >= 4 * n + 1024
    assert len(needs._layouts) == growing.LAYOUTS_KEPT
    assert needs.layout({N: 16}) == first and needs.layout({N: 16}) is not first
