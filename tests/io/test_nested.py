"""weft.save and weft.load: what goes in comes out, files of others are read, and mistakes are explained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft import nn, optim
from weft.errors import ArgumentError
from weft.io import load_safetensors, save_safetensors

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
    | st.builds(lambda n, k: weft.arange(n, dtype=k), st.integers(0, 3), st.sampled_from([weft.float32, weft.int8]))
)  # fmt: skip
KEYS = st.text(max_size=3) | st.integers(-3, 3) | st.tuples(st.integers(0, 2), st.text(max_size=1))
NESTED = st.recursive(
    LEAVES,
    lambda x: st.lists(x, max_size=3) | st.tuples(x, x) | st.dictionaries(KEYS, x, max_size=3),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    match a:
        case weft.Tensor():
            return a.dtype == b.dtype and np.array_equal(a.numpy(), b.numpy())
        case np.ndarray():
            return a.dtype == b.dtype and np.array_equal(a, b)
        case dict():
            return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
        case list() | tuple():
            return len(a) == len(b) and all(map(same, a, b))
        case _:
            return a == b


@pytest.fixture(params=["x.pt", "x.safetensors"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


@given(NESTED, st.sampled_from(["x.safetensors", "x.pt"]))
def test_what_goes_in_comes_out(tmp_path_factory: pytest.TempPathFactory, obj: Any, name: str) -> None:
    path = tmp_path_factory.mktemp("nested") / name
    weft.save(obj, path)
    assert same(weft.load(path), obj)


def test_numbers_that_json_lacks(path: Path) -> None:
    weft.save([math.inf, -math.inf, math.nan, np.float32(2), np.int64(3), np.bool_(True)], path)
    a, b, c, *rest = weft.load(path)
    assert (a, b) == (math.inf, -math.inf) and math.isnan(c) and rest == [2.0, 3, True]
    kinds = [np.float32, np.int64, np.bool_] if path.suffix == ".pt" else [float, int, bool]
    assert [type(x) for x in rest] == kinds


def test_arrays_come_back_as_arrays(path: Path) -> None:
    weft.save({"a": np.arange(3)}, path)
    assert same(weft.load(path), {"a": np.arange(3)})


def test_a_tensor_that_occurs_twice_is_written_once(path: Path) -> None:
    w = weft.randn(1000)
    weft.save({"a": w, "b": [w, w.detach()]}, path)
    assert path.stat().st_size < 6000
    back = weft.load(path)
    assert same(back["b"][1], w) and same(back["b"][0], w)


def test_tensors_are_named_by_their_places(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    weft.save({"model": {"weight": weft.ones(2)}, "a.b": weft.ones(1), "a": {"b": weft.zeros(1)}}, path)
    assert set(load_safetensors(path)) == {"model.weight", "a.b", "a.b_"}


def test_a_model_and_its_optimizer(path: Path) -> None:
    model = nn.Linear(2, 3)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    model(weft.ones(1, 2)).sum().backward()
    optimizer.step()
    weft.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    saved = weft.load(path)
    other = nn.Linear(2, 3)
    other.load_state_dict(saved["model"])
    theirs = optim.AdamW(other.parameters(), lr=0.5)
    theirs.load_state_dict(saved["optimizer"])
    for m, o in ((model, optimizer), (other, theirs)):
        o.zero_grad()
        (m(weft.ones(1, 2)) ** 2).sum().backward()
        o.step()
    assert same(model.weight.detach(), other.weight.detach())


def test_safetensors_of_others_are_read(tmp_path: Path) -> None:
    save_safetensors({"w": weft.ones(2)}, tmp_path / "x", {"format": "pt"})
    assert same(weft.load(tmp_path / "x"), {"w": weft.ones(2)})


def test_what_cannot_be_kept_says_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(ArgumentError, match=r"the entry 'model\.1' is a Linear.*state_dict"):
        weft.save({"model": [1, nn.Linear(1, 1)]}, path)
    with pytest.raises(ArgumentError, match="the object has a key of type frozenset"):
        weft.save({frozenset(): 1}, path)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ArgumentError, match="the entry '0' contains itself"):
        weft.save(loop, path)
    with pytest.raises(ArgumentError, match=r"the entry 'model\.1' is <function .*not found by its name"):
        weft.save({"model": [1, lambda x: x]}, tmp_path / "x.pt")
    with pytest.raises(ArgumentError, match=r"the entry 'a\.0' is a generator, which cannot be written"):
        weft.save({"a": [(k for k in ())]}, tmp_path / "x.pt")
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ArgumentError, match="nested too deeply"):
        weft.save(deep, tmp_path / "x.pt")
    assert not list(tmp_path.iterdir()), "nothing is left of what failed"


def test_what_was_there_stays_when_saving_fails(path: Path) -> None:
    weft.save(1, path)
    with pytest.raises(ArgumentError):
        weft.save(lambda: 1, path)
    assert weft.load(path) == 1


@pytest.mark.parametrize(
    "structure", ["{", '{"tensor":"none"}', '{"set":[]}', '{"dict":[1]}', '{"dict":[[[],1]]}']
)
def test_damaged_structures(tmp_path: Path, structure: str) -> None:
    save_safetensors({"w": weft.ones(1)}, tmp_path / "x", {"weft.structure": structure})
    with pytest.raises(ArgumentError, match=r"the structure in .* is damaged"):
        weft.load(tmp_path / "x")


def test_something_else(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no checkpoint at all")
    with pytest.raises(ArgumentError):
        weft.load(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        weft.load(tmp_path / "y")
