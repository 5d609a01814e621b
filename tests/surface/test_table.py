"""The table of names is consistent, and what type checkers read of it is up to date."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import pytest
import surface as stubs

from weft.surface.table import SURFACE, Form, Home, rows

KEYS = {place.strip("()") for home in SURFACE for key in home.offers for place in key.split()}
PLACES = sorted(KEYS - {"Tensor", "Tensor_", "weft_"})


def test_places_are_namespaces_and_the_methods_of_tensors() -> None:
    assert set(PLACES) == set(stubs.PLACES)


@pytest.mark.parametrize("place", sorted(KEYS - {"weft_"}))
def test_a_name_is_in_a_place_once(place: str) -> None:
    words = [
        word.partition("=")[0]
        for home in SURFACE
        for key, names in home.offers.items()
        for word in names.split()
        if {place, f"({place})"} & set(key.split())
    ]
    assert [name for name, n in Counter(words).items() if n > 1] == []


def test_a_module_has_one_row_for_each_form() -> None:
    homes = Counter((home.module, home.form) for home in SURFACE)
    assert [home for home, n in homes.items() if n > 1] == []


def test_a_name_may_be_another_at_home_and_unlisted(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home("weft.m", {"weft Tensor": "f g=h", "(weft)": "k", "weft_ Tensor_": "f"}, Form.MADE, late=True)
    monkeypatch.setattr("weft.surface.table.SURFACE", (home,))
    found = rows.__wrapped__("weft")
    assert {n: (r.attribute, r.listed) for n, r in found.items()} == {
        "f": ("f", True), "g": ("h", True), "k": ("k", False), "f_": ("Tensor.f_", True)
    }  # fmt: skip
    assert (found["g"].module, found["g"].form, found["g"].late) == ("weft.m", Form.MADE, True)
    assert (found["f_"].module, found["f_"].form) == ("weft.core.tensor.tensor", Form.PLAIN)
    assert [*rows.__wrapped__("Tensor")] == ["f", "g"] and [*rows.__wrapped__("Tensor_")] == ["f"]


@pytest.mark.parametrize("place", PLACES)
def test_every_name_is_found(place: str) -> None:
    module = import_module("weft" if place == "weft" else f"weft.{place}")
    missing = [name for name in rows(place) if not name.endswith("*") and not hasattr(module, name)]
    assert missing == []


def test_stubs_are_as_tools_surface_writes_them() -> None:
    stale = [path.name for path, text in stubs.files().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"python tools/surface.py writes them anew: {stale}"
