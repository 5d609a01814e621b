"""Pools whose last window may reach beyond the padded input: torch's sizes, values, places and gradients."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch")

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))


def pooled(m: Any, name: str, x: np.ndarray, args: tuple[Any, ...]) -> list[np.ndarray]:
    t = m.tensor(x).requires_grad_()
    out = getattr(m.nn.functional, name)(t, *args)
    parts = list(out) if isinstance(out, tuple) else [out]
    seed = np.arange(1.0, 1 + np.prod(tuple(parts[0].shape))).reshape(tuple(parts[0].shape))
    (grad,) = m.autograd.grad(parts[0], [t], m.tensor(seed))
    return [np.array(p.detach().numpy()) for p in (*parts, grad)]


def compare(name: str, x: np.ndarray, args: tuple[Any, ...]) -> str | None:
    try:
        want = pooled(torch, name, x, args)
    except (
        RuntimeError
    ):  # among them images that are smaller than the kernel, which its avg_pool3d alone refuses
        return None
    got = pooled(weft, name, x, args)
    if name.startswith("max") and np.isinf(want[0]).any():
        return None  # a window of padding alone has no place
    same = all(
        a.shape == b.shape and np.allclose(a, b, equal_nan=True) for a, b in zip(got, want, strict=True)
    )
    return None if same else f"{name}{args} of {x.shape}"


def cases() -> list[tuple[str, tuple[int, ...], tuple[Any, ...]]]:
    """(name, sizes, arguments): the ones that showed it; with the knob, some of all small ones and of more sizes."""
    found: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = [
        ("max_pool2d", (2, 5), (3, 2, 0, 1, True, True)),
        ("max_pool1d", (2,), (3, 2, 0, 1, True, True)),
        ("max_pool1d", (4,), (2, 3, 1, 2, True, True)),
        ("max_pool1d", (1,), (4, 2, 0, 1, True)),
        ("max_pool3d", (2, 3, 2), (3, 2, 1, 1, True, True)),
        ("avg_pool1d", (2,), (3, 2, 0, True, True)),
        ("avg_pool2d", (2, 5), (3, 2, (0, 1), True, False)),
        ("avg_pool2d", (2, 3), (3, 2, 0, True, True, 4)),
        ("avg_pool3d", (3, 3, 4), (3, 2, 1, True, False)),
        ("lp_pool1d", (2,), (2.0, 3, 2, True)),
        ("lp_pool2d", (2, 5), (2.0, 3, 2, True)),
    ]
    if not EXAMPLES:
        return found
    small: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = []
    for n, k, s, p, c in itertools.product(range(1, 8), range(1, 5), range(1, 5), range(3), (True, False)):
        small += [("max_pool1d", (n,), (k, s, p, d, c, True)) for d in (1, 2)]
        small += [("avg_pool1d", (n,), (k, s, p, c, inside)) for inside in (True, False)]
        small.append(("lp_pool1d", (n,), (2.0, k, s, c)))
    draw = np.random.default_rng(EXAMPLES)
    found += [small[i] for i in draw.permutation(len(small))[: 4 * EXAMPLES]]
    for _ in range(EXAMPLES):
        rank = int(draw.integers(2, 4))
        sizes, k, s, d, p = (tuple(int(i) for i in draw.integers(lo, hi, rank)) for lo, hi in
                             ((1, 7), (1, 5), (1, 5), (1, 3), (0, 3)))  # fmt: skip
        c, inside = (bool(b) for b in draw.integers(0, 2, 2))
        wide = tuple(int(i) for i in draw.integers(1, 9, rank))
        found += [
            (f"max_pool{rank}d", sizes, (k, s, p, d, c, True)),
            (f"avg_pool{rank}d", sizes, (k, s, p, c, inside, None if draw.integers(2) else 3)),
            (f"adaptive_avg_pool{rank}d", sizes, (wide,)),
            (f"adaptive_max_pool{rank}d", sizes, (wide, True)),
        ]
    return found


def test_windows_beyond_the_end() -> None:
    draw = np.random.default_rng(1)
    wrong = []
    for name, sizes, args in cases():
        x = draw.permutation(2 * int(np.prod(sizes))).reshape(1, 2, *sizes) + 1.0
        wrong.append(compare(name, x, args))
    assert not any(wrong), "\n".join(w for w in wrong if w)


def test_nothing_but_a_window_too_large() -> None:
    with pytest.raises(weft.ShapeError, match="exceeds"):
        weft.nn.functional.max_pool1d(weft.ones(1, 1, 1), 4, 2, ceil_mode=True, padding=0, dilation=2)
