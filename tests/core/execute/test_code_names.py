"""Names in code, with the attributes that are read of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft.core.execute.code_names import Path, Root, names_in

rate = options = 1.0


def attribute(x: Any) -> Any:
    return x + options.rate.real  # type: ignore[attr-defined]


def method(self: Any) -> Any:
    return self.model.step(self.x)


def item(x: Any) -> Any:
    return x[0].rate + rate


def text(x: Any) -> Any:
    return getattr(x, "bias") + getattr(x, "no name")


def inside(x: Any) -> Any:
    return [x.real * rate for _ in range(3)]


def around() -> Callable[[], Any]:
    k = 1.0

    def f() -> Any:
        def g() -> Any:
            return k.real

        return g

    return f


G, A, L = Root.GLOBAL, Root.AROUND, Root.LOCAL
CASES: dict[str, tuple[Callable[..., Any], set[Path], set[str]]] = {
    "attribute": (attribute, {Path(G, "options", ("rate", "real")), Path(L, "x")}, set()),
    "method": (method, {Path(L, "self", ("model", "step")), Path(L, "self", ("x",))}, set()),
    "item": (item, {Path(L, "x"), Path(G, "rate")}, {"rate"}),
    "text": (text, {Path(G, "getattr"), Path(L, "x")}, {"bias"}),
    "around": (around(), {Path(A, "k", ("real",))}, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_paths_and_loose_attributes(name: str) -> None:
    f, paths, loose = CASES[name]
    found = names_in(f.__code__)
    assert paths <= found.paths and loose <= found.loose
    assert {p for p in found.paths if p.root is not L} == {p for p in paths if p.root is not L}


def test_what_is_made_inside_counts() -> None:
    found = names_in(inside.__code__)
    assert Path(G, "rate") in found.paths
    assert Path(L, "x", ("real",)) in found.paths or "real" in found.loose
