"""torch._foreach_*: every function that torch has, in each form of its arguments, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.core.surface.foreach import FOREACH

UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "clamp_max", "clamp_min", "maximum", "minimum", "pow")


def lists(library: Any, count: int = 1) -> list[list[Any]]:
    rng = np.random.default_rng(3)
    shapes = [(2, 3), (4,), ()]
    return [
        [library.tensor(rng.uniform(0.1, 0.9, s).astype(np.float32)) for s in shapes] for _ in range(count)
    ]


def cases() -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = [(name, lambda lib: tuple(lists(lib))) for name in UNARY]
    for name in BINARY:
        out.append((name, lambda lib: tuple(lists(lib, 2))))
        out.append((name, lambda lib: (*lists(lib), 0.5)))
        out.append((name, lambda lib: (*lists(lib), [0.5, 2.0, 3.0])))
    for name in ("add", "mul", "div"):
        out.append((name, lambda lib: (*lists(lib), lib.tensor(0.7))))
    for name in ("addcdiv", "addcmul"):
        out.append((name, lambda lib: tuple(lists(lib, 3))))
        out.append((name, lambda lib: (*lists(lib, 3), 0.3)))
        out.append((name, lambda lib: (*lists(lib, 3), [0.3, 2.0, 1.0])))
        out.append((name, lambda lib: (*lists(lib, 3), lib.tensor([0.3, 2.0, 1.0]))))
    out += [("lerp", lambda lib: tuple(lists(lib, 3))), ("lerp", lambda lib: (*lists(lib, 2), 0.3))]
    out.append(("lerp", lambda lib: (*lists(lib, 2), [0.3, 0.2, 0.1])))
    return out


def same(a: Any, b: Any) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert tuple(x.shape) == tuple(y.shape) and str(x.dtype).split(".")[-1] == str(y.dtype).split(".")[-1]
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-6, atol=1e-6)


def test_against_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    mine: list[Any] = []
    for name, make in cases():
        given = make(weft)
        mine += getattr(weft, f"_foreach_{name}")(*given)
        assert getattr(weft, f"_foreach_{name}_")(*given) is None
        mine += given[0]
    weft.realize(*mine)
    theirs: list[Any] = []
    for name, make in cases():
        given = make(torch)
        theirs += getattr(torch, f"_foreach_{name}")(*given)
        getattr(torch, f"_foreach_{name}_")(*given)
        theirs += given[0]
    same(mine, theirs)


def test_the_rest_against_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    found: list[list[Any]] = []
    for lib in (weft, torch):
        x, y = lists(lib, 2)
        square = [lib.ones(2, 2) * 3, lib.ones(3, 2)]
        out: list[Any] = [
            *lib._foreach_norm(x), *lib._foreach_norm(x, 1), *lib._foreach_norm(x, float("inf")),
            *lib._foreach_norm(x, 2, lib.float64), *lib._foreach_max(x), *lib._foreach_pow(2.0, x),
            *lib._foreach_powsum(x, 2), *lib._foreach_mm(square, [lib.ones(2, 2), lib.ones(2, 1)]),
            *lib._foreach_add(x, y, alpha=0.5), *lib._foreach_sub(x, y, alpha=2),
            *lib._foreach_add(x, lib.tensor(2.0), alpha=3), *lib._foreach_clone(x),
        ]  # fmt: skip
        lib._foreach_copy_(x, y)
        lib._foreach_zero_(y)
        found.append([*out, *x, *y])
    same(*found)


def test_all_that_torch_has_is_there() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    assert [n for n in dir(torch) if n.startswith("_foreach") and n not in FOREACH] == []


def test_a_tensor_named_twice_changes_twice() -> None:
    x = weft.ones(2)
    weft._foreach_add_([x, x], 1.0)
    assert x.tolist() == [3.0, 3.0]


def test_mistakes() -> None:
    with pytest.raises(RuntimeError, match="same number of tensors, got 1 and 2"):
        weft._foreach_add([weft.ones(1)], [1.0, 2.0])
    with pytest.raises(RuntimeError, match="at least one tensor"):
        weft._foreach_abs([])
    with pytest.raises(TypeError, match="list of Tensors"):
        weft._foreach_abs([1.0])
    with pytest.raises(AttributeError):
        weft._foreach_nothing
