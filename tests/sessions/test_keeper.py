"""Limits of sessions: what is kept fits, runs give the same bits, and no more bytes are used than were planned."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.dummy.device import DummyBackend
from weft.backends.registry import open_device, register, unregister
from weft.errors import ArgumentError, MemoryPlanError
from weft.scheduler.keeping import nbytes
from weft.scheduler.memory import ALIGNMENT
from weft.sessions.keeper import Choice
from weft.sessions.pool import MemoryPool, most_within, rounded
from weft.sessions.retention import aligned
from weft.sessions.session import Session, session

ROWS = 24


def network(
    device: str, depth: int = 2, seed: int = 0
) -> tuple[Callable[[weft.Tensor], weft.Tensor], weft.Tensor]:
    """Causal attention, layer by layer, of which the last row is the result; and an input."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> weft.Tensor:
        return weft.tensor((rng.standard_normal(shape) / ROWS**0.5).astype(np.float32), device=device)

    weights = [floats(ROWS, ROWS) for _ in range(depth)]
    before = weft.tensor(np.tril(np.ones((ROWS, ROWS), bool)), device=device)

    def f(x: weft.Tensor) -> weft.Tensor:
        for w in weights:
            k = x @ w
            x = weft.where(before, x @ k.transpose(0, 1), -float("inf")).softmax(-1) @ k + x
        return x[-1]

    x = floats(ROWS, ROWS)
    for t in (x, before, *weights):
        t.numpy()
    return f, x


def form_of(s: Session) -> Any:
    (form,) = s._forms.values()  # pyright: ignore[reportPrivateUsage]
    return form


def least(f: Callable[..., Any], x: weft.Tensor) -> int:
    """The least limit that a session says would do."""
    with pytest.raises(MemoryPlanError, match="at least") as refused:
        session(f, memory=10)(x)
    return int(str(refused.value).split("at least ")[1].split(" bytes")[0].replace(",", ""))


@pytest.fixture
def dummy() -> Iterator[str]:
    backend = DummyBackend(name="sessions")
    register(backend)
    yield "sessions:0"
    unregister("sessions")


@pytest.mark.parametrize("device", ["cpu:0", "dummy"])
def test_runs_in_any_limit_give_the_same_bits(device: str, request: pytest.FixtureRequest) -> None:
    f, x = network(request.getfixturevalue("dummy") if device == "dummy" else device)
    s = session(f, memory=1 << 24)
    s(x)
    x[-1] = 1.0
    s(x)
    most, few = form_of(s).memory().total, least(f, x)
    kept: list[int] = []
    for limit in (most, (most + few) // 2, few):
        s = session(f, memory=limit)
        for t in (0, ROWS - 1, 3, ROWS - 1):
            x[t] = float(t) + limit / most
            assert np.array_equal(s(x).numpy(), session(f)(x).numpy())
        assert form_of(s).memory().total <= limit
        kept.append(len(form_of(s).keeper.kept))
    assert max(kept) > kept[-1]


def test_the_peak_is_what_was_planned_byte_for_byte(dummy: str) -> None:
    f, x = network(dummy)
    device: Any = open_device(dummy)
    for limit in (1 << 30, 15_000, 11_500):
        s = session(f, memory=limit)
        s(x)
        x[3] = 1.0
        s(x)  # plans are made, and memory is given back
        form_of(s).release()
        gc.collect()
        before = device.pool.peak_bytes = device.pool.used_bytes
        s(x)
        first = device.pool.peak_bytes - before
        x[5] = float(limit)
        x.numpy()
        edited = device.pool.used_bytes - before
        device.pool.peak_bytes = device.pool.used_bytes
        s(x)
        second = device.pool.peak_bytes - before
        memory = form_of(s).memory()
        copy = edited - memory.kept - memory.results  # of the argument, which the session has as it was
        assert max(first, second - copy) == memory.total <= limit


def test_a_limit_that_cannot_be_met_says_which_one_can() -> None:
    f, x = network("cpu:0")
    few = least(f, x)
    assert np.array_equal(session(f, memory=few)(x).numpy(), session(f)(x).numpy())
    with pytest.raises(MemoryPlanError, match=f"at least {few:,}"):
        session(f, memory=few - 1)(x)


def test_sessions_of_a_pool_make_room_for_each_other() -> None:
    nets = [network("cpu:0", depth, depth) for depth in (1, 2, 3)]
    alone = [session(f, memory=1 << 24) for f, _ in nets]
    for s, (_, x) in zip(alone, nets, strict=True):
        s(x)
        x[-1] = 1.0
        s(x)
    most = max(form_of(s).memory().total for s in alone)
    with weft_pool(int(1.1 * most)) as pool:
        some = [session(f, pool=pool) for f, _ in nets]
        for turn in range(3):
            for s, (f, x) in zip(some, nets, strict=True):
                x[turn] = float(turn)
                assert np.array_equal(s(x).numpy(), session(f)(x).numpy())
                assert pool.used_bytes() <= pool.nbytes
        last = some[-1]
        before = form_of(last).counts.whole
        nets[-1][1][7] = 7.0
        last(nets[-1][1])
        assert form_of(last).counts.whole == before, "the last has what it kept"
    assert pool.used_bytes() == 0 and form_of(last).values is None


def test_sessions_of_a_pool_divide_it_where_they_take_turns() -> None:
    nets = [tokens("cpu:0", depth, depth) for depth in (1, 2, 3)]
    alone = [session(f, x, t, memory=1 << 24) for f, x, t in nets]
    for s, (_, x, _) in zip(alone, nets, strict=True):
        for n in range(4):
            x[n] = 1.0
            s(x, n)
        s.optimize(0.2)
        s(x, 5)
        x[6] = 1.0
        s(x, 6)
    most = max(form_of(s).memory().total for s in alone)
    pool = weft_pool(2 * most)
    some = [session(f, x, t, pool=pool) for f, x, t in nets]
    wholes: list[int] = []
    for n in range(8):
        for s, (f, x, t) in zip(some, nets, strict=True):
            x[n] = float(n)
            assert np.array_equal(s(x, n).numpy(), session(f, x, t)(x, n).numpy())
            assert pool.used_bytes() <= pool.nbytes
        wholes.append(sum(form_of(s).counts.whole for s in some))
    assert wholes[3] == wholes[-1] <= 9, "from the third turn on, nobody lost anything"


def test_a_step_that_came_with_one_that_is_too_large_is_held_against_the_limit() -> None:
    f, x = network("cpu:0")
    s = session(f, memory=1 << 20)
    s(x)
    x[3] = 1.0
    s(x)
    form = form_of(s)
    (large,) = form.steps
    form.keep(form._choice)
    form._too_large.add(large)
    x[5:9] = 1.0
    y = x.numpy().copy()
    y[2:9:3, ::5] = 3.0
    y[20] = 4.0
    for given in (x, y):
        assert np.array_equal(s(given).numpy(), session(f)(given).numpy())
        assert all(state not in form._too_large for state in form.steps)
        assert form.keeper.planned.total >= form.memory().total, "all that is planned was counted"


def test_sessions_that_fit_keep_what_they_have() -> None:
    nets = [network("cpu:0", depth, depth) for depth in (1, 2)]
    pool = weft_pool(1 << 24)
    some = [session(f, pool=pool) for f, _ in nets]
    for turn in range(3):
        for s, (_, x) in zip(some, nets, strict=True):
            x[turn] = float(turn)
            s(x)
    assert [form_of(s).counts.whole for s in some] == [1, 1]
    some.clear()
    del s  # pyright: ignore[reportPossiblyUnboundVariable]
    gc.collect()
    assert pool.used_bytes() == 0, "and what dies gives its bytes back"


def weft_pool(nbytes: int) -> MemoryPool:
    return MemoryPool(nbytes)


def test_pools_and_limits_are_one_or_the_other() -> None:
    with pytest.raises(ArgumentError, match="not both"):
        session(abs, memory=1000, pool=weft_pool(1000))
    with pytest.raises(ArgumentError, match="room for nothing"):
        weft_pool(0)


def test_a_step_that_has_no_room_is_a_run_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = network("cpu:0")
    s = session(f, memory=1 << 20)
    s(x)
    form = form_of(s)
    monkeypatch.setattr("weft.sessions.keeper.Keeper.fits", False)

    def refuse(**_: object) -> None:
        raise MemoryPlanError("no room")

    monkeypatch.setattr(form, "choose", refuse)
    for t in (3, 4):
        x[t] = 1.0
        assert np.array_equal(s(x).numpy(), session(f)(x).numpy())
    assert form.counts.whole == 3 and form.counts.steps == 0


def test_parts_of_a_memory_are_its_bytes_and_keep_it_alive(dummy: str) -> None:
    for name in ("cpu:0", dummy):
        device: Any = open_device(name)
        gc.collect()
        before = device.used_bytes()
        whole = device.allocate(1 << 20)
        taken = device.used_bytes() - before
        assert taken == rounded(device, 1 << 20)
        device.write(whole, memoryview(bytes(range(256)) * 4096))
        part = device.part(whole, 512, 256)
        assert part.nbytes == 256 and bytes(device.read(part, 256)) == bytes(range(256))
        device.write(part, memoryview(b"\7" * 16), 64)
        assert bytes(device.read(whole, 16, 576)) == b"\7" * 16, name
        assert device.used_bytes() - before == taken, "a part takes nothing"
        for offset, size in ((1 << 20, 1), (-64, 64), (0, (1 << 20) + 1)):
            with pytest.raises(ValueError, match=r"bytes|out of bounds"):
                device.part(whole, offset, size)
        del whole
        gc.collect()
        assert device.used_bytes() - before == taken, "the part has it"
        del part
        gc.collect()
        assert device.used_bytes() == before


def test_a_part_dies_with_what_is_freed(dummy: str) -> None:
    device: Any = open_device(dummy)
    whole = device.allocate(1024)
    part = device.part(whole, 0, 256)
    device.free(whole)
    with pytest.raises(ValueError, match="after free"):
        device.read(part, 16)


def tokens(
    device: str, depth: int, seed: int
) -> tuple[Callable[..., weft.Tensor], weft.Tensor, weft.Variable]:
    """Rows of attention with wide maps between, one row of the result."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> weft.Tensor:
        return weft.tensor((rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), device=device)

    weights = [(floats(16, 16), floats(16, 64), floats(64, 16)) for _ in range(depth)]
    before = weft.tensor(np.tril(np.ones((ROWS, ROWS), bool)), device=device)

    def f(x: weft.Tensor, t: Any) -> weft.Tensor:
        for w, up, down in weights:
            k = x @ w
            x = weft.where(before, x @ k.transpose(0, 1), -float("inf")).softmax(-1) @ k + x
            x = x + (x @ up).relu() @ down
        return x[t]

    return f, floats(ROWS, 16), weft.Variable("t", 0, ROWS - 1)


def in_an_arena(form: Any, free: int, order: Callable[[list[Any]], list[Any]] = list) -> int:
    """Have a form keep all that kernels store in an arena with so many bytes besides; its bytes."""
    results = set(form.template.results)
    inside = [n for n in form.keeper.stored if n not in results]
    arena = at = sum(aligned(nbytes(n)) for n in inside) + free
    offsets: dict[Any, int] = {}
    for n in order(inside):
        at -= aligned(nbytes(n))
        offsets[n] = at
    form.keep(Choice(form.keeper.stored, arena, offsets))
    return arena


@pytest.mark.parametrize("seed", range(3))
def test_scratch_that_takes_the_places_of_what_is_kept_changes_no_bit(seed: int) -> None:
    f, x, t = tokens("cpu:0", 1 + seed % 2, seed)
    s = session(f, x, t, memory=1 << 24)
    s(x, 0)
    form, rng = form_of(s), np.random.default_rng(seed)
    in_an_arena(form, 0, lambda nodes: [nodes[k] for k in rng.permutation(len(nodes))])
    for n in (0, 1, 2, 3, 2, 7, 8, 20):
        x[min(n, 5)] = float(n)
        assert np.array_equal(s(x, n).numpy(), session(f, x, t)(x, n).numpy()), n
    states = form.steps.items()
    assert any(step.invalidates or lost for (_, lost), step in states), "something was lost"
    for (_, lost), step in states:
        assert step.invalidates.isdisjoint(lost) and step.lost <= lost | step.invalidates
        assert all(
            form.keeper._offsets[n] < step.run.scratch_bytes(form.keeper.places) for n in step.invalidates
        )


def test_an_arena_with_scratch_in_it_takes_its_bytes_and_no_more(dummy: str) -> None:
    f, x, t = tokens(dummy, 1, 0)
    device: Any = open_device(dummy)
    s = session(f, x, t, memory=1 << 24)
    s(x, 0)
    form = form_of(s)
    arena = in_an_arena(form, 0)
    s(x, 0)
    gc.collect()
    used = device.pool.used_bytes
    form.release()
    gc.collect()
    before = device.pool.peak_bytes = device.pool.used_bytes
    assert used - before == arena + 64  # and the result
    s(x, 0)
    assert device.pool.peak_bytes - before == form.memory().total == arena + 64
    for n in (1, 2, 9):
        x[n] = float(n)
        x.numpy()
        gc.collect()
        start = device.pool.peak_bytes = device.pool.used_bytes
        s(x, n)
        assert device.pool.peak_bytes == start, "a step needs nothing besides"
    assert form.counts.steps == 3


def test_scratch_and_what_is_kept_share_where_they_do_not_fit_beside_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryPlanError("no room")

    f, x, t = tokens("cpu:0", 2, 0)
    roomy = session(f, x, t, memory=1 << 24)
    roomy(x, 0)
    assert not form_of(roomy).keeper.shares
    limit = form_of(roomy).memory().total * 2
    monkeypatch.setattr("weft.sessions.keeper.Keeper._fitting", refuse)
    s = session(f, x, t, memory=limit)
    for n in range(4):
        x[n] = float(n)
        assert np.array_equal(s(x, n).numpy(), roomy(x, n).numpy())
        assert s.pool is not None and s.pool.used_bytes() == form_of(s).memory().total <= limit
    assert form_of(s).keeper.shares


def test_a_new_arena_that_nothing_fits_in_is_refused() -> None:
    f, x, t = tokens("cpu:0", 1, 0)
    s = session(f, x, t, memory=1 << 24)
    s(x, 0)
    form = form_of(s)
    with pytest.raises(MemoryPlanError, match="computes everything"):
        form.keep(Choice(form.template.results, 64, {}))


def test_a_choice_that_is_refused_leaves_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    f, x, t = tokens("cpu:0", 1, 0)
    s = session(f, x, t, memory=1 << 24)
    form = form_of(s)

    def refused(reaches: object, seconds: float, measure: Callable[[Choice], int]) -> Choice:
        measure(Choice(form.template.results))
        raise MemoryPlanError("what was tried last does not do")

    with monkeypatch.context() as patched:
        patched.setattr(form.keeper, "solved", refused)
        with pytest.raises(MemoryPlanError):
            s(x, 0)
        assert not form.is_planned
    s(x, 0)
    kept = form.keeper.kept
    monkeypatch.setattr(form.keeper, "solved", refused)
    with pytest.raises(MemoryPlanError):
        s.optimize(0)
    assert form.keeper.kept == kept != form.template.results
    for n in (0, 1, 2):
        x[n] = 0.5
        assert np.array_equal(s(x, n).numpy(), session(f, x, t)(x, n).numpy())


def test_a_run_that_has_room_once_nothing_is_kept_loses_all(monkeypatch: pytest.MonkeyPatch) -> None:
    f, x, t = tokens("cpu:0", 1, 0)
    s = session(f, x, t, memory=1 << 24)
    s(x, 0)
    form = form_of(s)
    rooms = iter([None, frozenset[Any]()])
    reached = form.keeper.reached
    monkeypatch.setattr(form.keeper, "reached", lambda run: next(rooms, reached))
    in_an_arena(form, 1 << 16, list)
    monkeypatch.setattr(form.keeper, "reached", reached)
    assert np.array_equal(s(x, 1).numpy(), session(f, x, t)(x, 1).numpy())
    assert form._lost == frozenset(form.keeper.places)


def test_the_most_that_fits_is_found() -> None:
    device: Any = open_device("cpu:0")
    for limit in (0, 63, 64, 1_000, 14_227, 100_000, (1 << 20) + 5):
        found = most_within(device, limit)
        assert rounded(device, found) <= limit < rounded(device, found + ALIGNMENT)


def test_a_function_that_computes_nothing_has_nothing_to_keep(tmp_path: Path) -> None:
    x = weft.tensor(np.ones((3, 4), np.float32))
    for f in (lambda x: x, lambda x: weft.ones(3)):
        s = session(f, x, memory=1 << 16)
        for k in range(3):
            x[k] = 2.0
            assert np.array_equal(s(x).numpy(), session(f)(x).numpy())
        s.optimize(0.1)
        s(x)
        s.save(tmp_path / "plan.json")
        assert np.array_equal(session(f, x, plan=tmp_path / "plan.json")(x).numpy(), f(x).numpy())
