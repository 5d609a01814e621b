"""Shortcuts: plans of small graphs, found by one look at their nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft import Tensor
from weft.backends import registry
from weft.backends.dummy.device import DummyBackend
from weft.errors import MemoryPlanError
from weft.ir import numerics
from weft.ir.errors import IRError
from weft.scheduler import families, plan, shortcuts
from weft.scheduler import realize as engine
from weft.scheduler.plan import Plan
from weft.scheduler.signature import signature


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    for table in (engine._plans, families._families, families._met, families._alike, shortcuts._shortcuts):
        table.clear()
    yield
    for table in (engine._plans, families._families, families._met, families._alike, shortcuts._shortcuts):
        table.clear()


@pytest.fixture
def signatures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The signatures of graphs that are computed, where nothing is verified."""
    monkeypatch.setenv("WEFT_VERIFY", "0")
    found: list[Any] = []

    def noting(*given: Any) -> Any:
        found.append(signature(*given))
        return found[-1]

    monkeypatch.setattr(engine, "signature", noting)
    return found


def array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


NUMBERS = [0.3 + k / 7 for k in range(12)]

BY_NUMBERS: dict[str, tuple[Callable[[Tensor, float], Tensor], Callable[[Any, Any], Any]]] = {
    "scaled": (lambda x, c: x * c, lambda x, c: x * c),
    "bounded": (lambda x, c: x.clamp(-c, c), lambda x, c: np.clip(x, -c, c)),
    "chosen": (lambda x, c: weft.where(x > c, x, 0.0), lambda x, c: np.where(x > c, x, np.float32(0))),
    "two numbers": (lambda x, c: x * c + 3 * c, lambda x, c: x * c + np.float32(3) * c),
    "twice the same": (lambda x, c: x * c + c, lambda x, c: x * c + c),
    "filled": (lambda x, c: weft.full((4, 5), c), lambda x, c: np.full((4, 5), c)),
}


@pytest.mark.parametrize("verify", ["0", "1"])
@pytest.mark.parametrize("name", BY_NUMBERS)
def test_numbers_that_never_came_are_right(name: str, verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_VERIFY", verify)
    f, expected = BY_NUMBERS[name]
    x = array(20)
    for c in (*NUMBERS, 0.5, 1.0, 2.0, *NUMBERS[::-1]):
        np.testing.assert_allclose(
            f(weft.tensor(x), c).numpy(), expected(x, np.float32(c)), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("name", BY_NUMBERS)
def test_a_plan_for_all_numbers_is_found_without_a_signature(name: str, signatures: list[Any]) -> None:
    f, x = BY_NUMBERS[name][0], weft.tensor(array(20))
    for c in NUMBERS[:4]:
        f(x, c).realize()
    signatures.clear()
    for c in NUMBERS[4:]:
        f(x, c).realize()
    assert not signatures


def test_what_comes_again_is_found_without_a_signature(signatures: list[Any]) -> None:
    for k in range(5):
        x = array(5, 6) + k
        assert weft.tensor(x).norm().item() == pytest.approx(np.linalg.norm(x), rel=1e-6)
        assert bool(shortcuts._shortcuts) is (k > 0)  # what came once is not kept
    assert len(signatures) == 2


def test_sizes_that_come_again_take_turns_as_by_signature(signatures: list[Any]) -> None:
    for _ in range(4):
        for n in (3, 7, 12, 17):
            x = array(n, 4)
            np.testing.assert_allclose(weft.tensor(x).sum(0).numpy(), x.sum(0), rtol=1e-5, atol=1e-6)
    kept = [k for k in engine._plans.values() if k.plan.shared is not None]
    assert kept and all(k.turns == engine.COMES_BACK - 3 for k in kept)
    assert len(signatures) == 8
    for _ in range(engine.COMES_BACK):
        weft.tensor(array(17, 4)).sum(0).realize()
    assert len(signatures) > 4  # whether it gets one of its own is not for a shortcut to say


@st.composite
def small(draw: st.DrawFn) -> Tensor:
    """A small graph on three leaves of two shapes, with numbers, some plain."""
    leaves = [weft.tensor(array(3, 4)), weft.tensor(array(3, 4) + 1), weft.tensor(array(4))]
    pool = [leaves[draw(st.integers(0, 2))]]
    for _ in range(draw(st.integers(1, 4))):
        a = draw(st.sampled_from(pool))
        b: Any = draw(st.sampled_from([*pool, *leaves, 0.25, 0.75, 1.0, 2.5]))
        op = draw(st.sampled_from(["mul", "add", "sub", "maximum", "neg", "T", "wide"]))
        match op:
            case "neg":
                pool.append(-a)
            case "T":
                pool.append(a + a.transpose(-1, -2) if a.ndim == 2 and a.shape[0] == a.shape[1] else a * a)
            case "wide":
                pool.append(weft.where(a > b, a, 0.5))
            case _:
                pool.append(getattr(weft, op)(a, b) if isinstance(b, Tensor) else getattr(a, op, a.mul)(b))
    return pool[-1]


@given(small(), small())
def test_a_look_says_what_a_signature_says(a: Tensor, b: Tensor) -> None:
    looks: list[tuple[Any, Any]] = []
    for t in (a, b):
        node = t.value.node
        if node.storage is not None:
            return
        at, sig = shortcuts.look(node), signature([node])
        if at is None:
            assert len(sig.key.rows) - 1 > shortcuts.MOST_NODES
            return
        rows = sig.key.rows
        assert [id(s) for s in at.storages] == [id(s) for s in sig.storages]
        assert list(at.numbers) == [rows[k][1].value for k in families.varying(rows)]
        looks.append((at.key, families.without_numbers(rows)))
    (one, these), (other, those) = looks
    assert (one == other) == (these == those)


def test_nodes_that_are_met_again_are_told_apart() -> None:
    a, b = array(4), array(4) + 3
    for _ in range(4):
        x, y = weft.tensor(a), weft.tensor(b)
        np.testing.assert_array_equal(((x * y) * x).numpy(), a * b * a)
        np.testing.assert_array_equal(((x * y) * y).numpy(), a * b * b)
        np.testing.assert_array_equal((x * (y * x)).numpy(), a * b * a)


def test_leaves_in_files_have_no_shortcut(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    weft.save({"x": weft.tensor(array(20))}, path)
    for k in range(4):
        x = weft.load(path, device="disk")["x"]
        np.testing.assert_allclose(
            (x * 3.25 + k).numpy(), array(20) * np.float32(3.25) + np.float32(k), rtol=1e-6, atol=1e-6
        )
        assert x.norm().item() == pytest.approx(np.linalg.norm(array(20)), rel=1e-6)
    assert not shortcuts._shortcuts


def test_a_basic_plan_for_all_numbers_gives_way(
    signatures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are added up, and when they took long enough the final plan is taken the long way."""
    x = weft.tensor(array(20))
    for c in NUMBERS[:4]:
        (x * c).realize()
    (found,) = [s.alike for s in shortcuts._shortcuts.values() if s.alike is not None]

    class Final:
        spent, plan, is_due = 0.0, None, False

        def due(self) -> bool:
            return self.is_due

    final = Final()
    monkeypatch.setattr(found.general, "final", final)
    monkeypatch.setattr(plan, "perf_counter", iter(range(100)).__next__)
    signatures.clear()
    for k, c in enumerate(NUMBERS[4:7]):
        (x * c).realize()
        assert final.spent == k + 1 and not signatures
    final.is_due = True
    node = (x * NUMBERS[8]).value.node
    at = shortcuts.look(node)
    assert at is not None and shortcuts.taken(at, node) is None


def test_large_graphs_and_leaves_without_a_value_have_no_look() -> None:
    x = weft.tensor(array(4))
    y = x
    for k in range(shortcuts.MOST_NODES):
        y = (y * (k + 0.3)).sin()
    assert shortcuts.look(y.value.node) is None
    assert shortcuts.look((weft.empty(3, device="meta") + 1).value.node) is None
    assert shortcuts.look((x[1:] + 1).value.node) is None
    y.realize()
    at = shortcuts.look((y + 1.25).value.node)
    assert at is not None and at.storages == [y.value.node.storage] and at.numbers == (1.25,)


def test_a_look_that_says_something_else_is_refused_while_verifying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_VERIFY", "1")
    x = weft.tensor(array(20))
    for c in NUMBERS[:4]:
        (x * c).realize()
    look = shortcuts.look

    def wrong(node: Any) -> Any:
        found = look(node)
        assert found is not None
        return shortcuts.Look(found.home, found.key, found.storages, (found.numbers[0] + 1,), found.inner)

    monkeypatch.setattr(shortcuts, "look", wrong)
    with pytest.raises(IRError, match="not what its signature says"):
        (x * NUMBERS[5]).realize()
    monkeypatch.setattr(shortcuts, "look", look)
    np.testing.assert_allclose((x * NUMBERS[5]).numpy(), x.numpy() * np.float32(NUMBERS[5]), rtol=1e-6)


def test_in_deterministic_mode_each_number_has_a_plan_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    x = weft.tensor(array(20))
    for c in NUMBERS[:5]:
        (x * c).realize()
    before = len(engine._plans)
    monkeypatch.setenv("WEFT_DETERMINISTIC", "1")
    for c in NUMBERS[6:9]:
        (x * c).realize()
    assert len(engine._plans) == before + 3


def test_pinned_sums_have_plans_of_their_own() -> None:
    x = weft.tensor(array(300))
    y = (x + 0).sum()
    z = (x + 0).sum().exp()
    assert y.item() == pytest.approx(array(300).sum(), rel=1e-4)
    free = shortcuts.look(z.value.node)
    with numerics.switched(True):
        pinned = shortcuts.look(z.value.node)
    assert free is not None and pinned is not None and free.key != pinned.key


def test_what_waits_on_the_way_is_kept() -> None:
    x = weft.tensor(array(20))
    for c in (1.25, 1.5, 1.75, 3.5):
        y = x * c
        y.sum().item()
        assert y.value.node.storage is not None


def test_without_memory_for_a_run_the_long_way_is_taken(
    signatures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = weft.tensor(array(20))
    for _ in range(3):
        x.norm().item()
    signatures.clear()
    run, refused = Plan.run, list[Any]()

    def refuse_once(self: Plan, *given: Any) -> Any:
        if not refused:
            refused.append(self)
            raise MemoryPlanError("none")
        return run(self, *given)

    monkeypatch.setattr(Plan, "run", refuse_once)
    assert x.norm().item() == pytest.approx(np.linalg.norm(array(20)), rel=1e-6)
    assert refused and signatures


def test_a_shortcut_does_not_outlive_what_it_leads_to(signatures: list[Any]) -> None:
    x = weft.tensor(array(20))
    for c in NUMBERS[:4]:
        (x * c).realize()
        x.norm().realize()
    signatures.clear()
    engine._plans.clear()
    x.norm().realize()
    (x * NUMBERS[5]).realize()
    assert len(signatures) == 1  # the plan for all numbers is its family's
    engine.forget_sizes()
    assert not shortcuts._shortcuts
    (x * NUMBERS[6]).realize()
    assert len(signatures) == 2


def test_constants_go_by_the_device_where_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cpu", "dummy", "cpu", "dummy"):
        monkeypatch.setenv("WEFT_DEVICE", device)
        for c in NUMBERS[:6]:
            filled = weft.full((3,), c).realize()
            assert filled.value.node.storage.device.info.name == f"{device}:0"
            np.testing.assert_allclose(filled.numpy(), np.full(3, c, np.float32))


def test_another_device_of_a_name_has_plans_of_its_own(
    signatures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> None:
        x = weft.tensor(array(20), device="dummy")
        assert x.norm().item() == pytest.approx(np.linalg.norm(array(20)), rel=1e-6)

    for _ in range(3):
        read()
    signatures.clear()
    read()
    assert not signatures
    others = {name: d for name, d in registry._devices.items() if not name.startswith("dummy")}
    monkeypatch.setattr(registry, "_devices", others)
    monkeypatch.setattr(registry, "_backends", {**registry._backends, "dummy": DummyBackend()})
    read()
    assert len(signatures) == 1
    read()
    signatures.clear()
    read()
    assert not signatures


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "KEPT", 4)
    for n in range(1, 12):
        weft.tensor(array(n)).sum().item()
        for c in NUMBERS:
            (weft.tensor(array(3)) ** c).realize()
    assert len(shortcuts._shortcuts) <= 4
    assert all(len(s.own) <= shortcuts.NUMBERS_KEPT for s in shortcuts._shortcuts.values())


def test_threads_have_their_own_numbers() -> None:
    x, wrong = array(50), list[str]()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        t = weft.tensor(x)
        for c in rng.uniform(0.3, 3.0, 60):
            if not np.allclose((t * float(c)).numpy(), x * np.float32(c), rtol=1e-6):
                wrong.append(f"{seed}: {c}")
            if not np.isclose((t - float(c)).sum().item(), (x - np.float32(c)).sum(), rtol=1e-3, atol=1e-3):
                wrong.append(f"{seed}: sum, {c}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
