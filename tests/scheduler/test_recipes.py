"""Recipes of plans for all sizes: written and read again, ignored where they make no sense, found by a new process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor, disk_cache
from weft.ir.index import Int, Var, floordiv, maximum, minimum, mod
from weft.scheduler import assembly, build, families, programs, recipes
from weft.scheduler import disk_cache as plans
from weft.scheduler import realize as realization
from weft.scheduler.outline import Outline, OutlineKey
from weft.scheduler.recipes import Recipe
from weft.scheduler.varying import Pattern

N, M = Var("size0", 2, 256), Var("size1", 0, 64)
SIZES: tuple[Int, ...] = (
    N, 8, 3 * N + M - 5, N * M * 2, floordiv(N + 1, 4) * 2, mod(N * M, 7), minimum(N, M + 3), maximum(N, M), M, 64,
)  # fmt: skip
RECIPE = Recipe(Pattern.of((N, M), SIZES, (0, 8)), (1, 0, 2), 2, (1,), ((0, 0.25), (2, 3)), (1, 0), "a plan")
OWN = Outline(OutlineKey(((),)), (1,) * len(SIZES), (0.25, 7.5, 3))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_VERIFY", "0")
    return tmp_path


@pytest.fixture
def built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of runtime variables of the jobs that were prepared, in order."""
    found: list[int] = []
    prepared = build.prepared

    def count(job: assembly.Job, device: Any) -> assembly.Prepared:
        found.append(len(job.variables))
        return prepared(job, device)

    monkeypatch.setattr(build, "prepared", count)
    forget()
    yield found
    forget()


def forget() -> None:
    """Forget what a new process would not know."""
    for table in (realization._plans, families._families, families._met, plans._images, programs._compiled):
        table.clear()


def array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def text_of(r: Recipe) -> tuple[Any, ...]:
    return tuple(
        repr(getattr(r, name)) for name in ("order", "leaves", "lifted", "fixed", "variables", "plan")
    )


def test_a_recipe_is_read_as_it_was_written(folder: Path) -> None:
    recipes.store("a" * 64, [RECIPE, replace(RECIPE, plan=None)])
    first, second = recipes.load("a" * 64, OWN)
    assert first.pattern.sizes == SIZES and first.pattern.variables == (N, M)
    assert text_of(first) == text_of(RECIPE)
    assert second.plan is None
    bound = replace(OWN, sizes=(12, 8, 36, 120, 6, 4, 8, 12, 5, 64))
    assert first.bind(bound) == RECIPE.bind(bound) == (12, 5)
    assert first.bind(replace(bound, numbers=(0.5, 7.5, 3))) is None


def changed(name: str, value: Any) -> Callable[[Any], Any]:
    def change(record: Any) -> Any:
        return {**record, "recipes": [{**record["recipes"][0], name: value}]}

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda r: [],
        lambda r: {},
        lambda r: {**r, "key": "another"},
        lambda r: {**r, "recipes": [{}]},
        changed("sizes", [1, 2]),
        changed("sizes", [[99]] * len(SIZES)),
        changed("variables", [["size0", 9, 2], ["size1", 0, 4]]),
        changed("variables", []),
        changed("places", [0, 99]),
        changed("places", [0]),
        changed("order", [0, 3]),
        changed("lifted", [7]),
        changed("fixed", [[0, "text"], [2, 3]]),
        changed("fixed", []),
        changed("used", [5]),
        changed("plan", 5),
        changed("expressions", [["pow", 1, 2]] * 9),
        changed("expressions", [["size", 7]] * 9),
    ],
)
def test_a_record_that_makes_no_sense_is_ignored_and_goes(folder: Path, change: Callable[[Any], Any]) -> None:
    key = "b" * 64
    recipes.store(key, [RECIPE])
    data = disk_cache.get("family", key)
    assert data is not None and recipes.load(key, OWN)
    disk_cache.put("family", key, json.dumps(change(json.loads(data))).encode())
    assert recipes.load(key, OWN) == []
    assert disk_cache.get("family", key) is None


def test_recipes_that_are_kept_are_few(folder: Path) -> None:
    recipes.store("c" * 64, [replace(RECIPE, plan=str(k)) for k in range(9)])
    kept = [r.plan for r in recipes.load("c" * 64, OWN)]
    assert kept == [str(k) for k in range(recipes.RECIPES_KEPT)]


def step(n: int, c: float) -> tuple[Tensor, np.ndarray[Any, Any]]:
    x, w = array(n, 8), array(8, 8)
    got = (weft.tensor(x) @ weft.tensor(w)).relu()[1:] * c
    return got.sum(0), (np.maximum(x @ w, 0)[1:] * np.float32(c)).sum(0)


def agrees(n: int, c: float) -> None:
    got, want = step(n, c)
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=1e-5)


def test_a_new_process_builds_nothing_for_sizes_that_are_new(built: list[int]) -> None:
    agrees(9, 0.3)
    agrees(21, 0.4)
    assert built == [0, 1]
    forget()
    for n, c in ((16, 0.7), (33, 0.3), (9, 0.3)):
        agrees(n, c)
    assert built == [0, 1]


def test_a_new_process_learns_on_where_a_size_is_beyond_the_bounds(built: list[int]) -> None:
    agrees(9, 0.3)
    agrees(21, 0.4)
    forget()
    for n in (500, 600, 700, 12):
        agrees(n, 0.3)
    assert built == [0, 1, 0, 1]
    forget()
    for n in (800, 13, 21):
        agrees(n, 0.9 if n < 100 else 0.3)
    assert built == [0, 1, 0, 1]


def test_a_new_process_takes_the_plan_with_room_for_the_fewest_sizes(built: list[int]) -> None:
    for n, c in ((9, 0.3), (21, 0.4), (500, 0.3)):
        agrees(n, c)
    assert built == [0, 1, 1]
    for n, most in ((600, 2048), (13, 128), (600, 2048)):
        if n == 600:
            forget()
        agrees(n, 0.9)
        ran = max(realization._plans.values(), key=lambda kept: kept.used).plan.shared
        assert f"size0 = {n} of 3 to {most}" in str(ran)
        assert f"size0 = {n} of 3 to {most}" in str(weft.explain(step(n, 0.7)[0]))
    assert built == [0, 1, 1]


def test_where_the_plan_for_all_sizes_is_gone_it_is_built_for_the_first_graph(
    built: list[int], folder: Path
) -> None:
    agrees(9, 0.3)
    agrees(21, 0.4)
    for f in (folder / "plan").rglob("*.weft"):
        f.unlink()
    forget()
    agrees(16, 0.7)
    agrees(30, 0.7)
    assert built == [0, 1, 1]


def scanned(n: int, m: int) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """A loop in a loop: n times the sum of m products that depend on one another."""
    x, y = array(n, 8) * 0.5, array(m, 8) * 0.5

    def outer(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        inner, _ = weft.scan(lambda c, r: ((c * r + row).tanh(), c.sum()), h, weft.tensor(y))
        return inner, inner * 2

    last, rows = weft.scan(outer, weft.tensor(array(8)), weft.tensor(x))
    h, want = array(8), []
    for row in x:
        for r in y:
            h = np.tanh(h * r + row)
        want.append(h * 2)
    return rows.sum(0) + last, np.sum(want, 0) + h


def test_loops_of_any_length_are_known_to_a_new_process(built: list[int]) -> None:
    sizes = (5, 8, 11, 4)
    for n in sizes[:2]:
        got, want = scanned(n, 7)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)
    count = len(built)
    forget()
    for n in sizes:
        got, want = scanned(n, 7)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)
    assert built == [0, 1] and count == 2


def test_explain_says_what_another_process_learned(built: list[int]) -> None:
    agrees(9, 0.3)
    agrees(21, 0.4)
    forget()
    assert "size0 = 16 of" in str(weft.explain(step(16, 0.7)[0]))
    assert built == [0, 1]


def shares(n: int) -> bool:
    """True where the graph of this size runs on a plan for all sizes."""
    got, _ = step(n, 0.3)
    got.realize()
    return max(realization._plans.values(), key=lambda kept: kept.used).plan.shared is not None


def test_a_size_that_comes_again_takes_its_own_plan_from_disk(built: list[int]) -> None:
    agrees(9, 0.3)
    agrees(21, 0.3)
    forget()
    assert [shares(9) for _ in range(6)] == [True] * 4 + [False] * 2
    assert all(shares(21) for _ in range(6)), "there is none"
    agrees(9, 0.3)
    assert built == [0, 1]


def test_a_compiled_function_takes_its_own_plan_from_disk_at_once(built: list[int]) -> None:
    def run(n: int) -> Tensor:
        return weft.compile(lambda x: (x @ x.T).tanh().sum())(weft.tensor(array(n, 8)))

    for n in (9, 21):
        run(n)
    forget()
    for n, own in ((9, True), (21, False), (16, False)):
        run(n)
        kept = max(realization._plans.values(), key=lambda kept: kept.used)
        assert (kept.plan.shared is None) == own
    assert built == [0, 1]
