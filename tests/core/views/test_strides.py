"""Strides of random views, against where their elements are."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft.core.views.strides import copies, overlaps, strides_of
from weft.ir.graph import Axes, Box, Node, Window, apply
from weft.ir.ops import Op
from weft.testing.programs import numpy_leaf
from weft.testing.reference import evaluate

LEAVES = ((24,), (4, 6), (3, 1, 8), (2, 3, 4), (5, 1), (1, 1), ())


def shapes_of(n: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Some shape of n elements."""
    out: list[int] = []
    while n > 1:
        f = int(rng.choice([d for d in range(2, n + 1) if n % d == 0]))
        out += [f, 1] if rng.integers(0, 4) == 0 else [f]
        n //= f
    return tuple(out)


def windows(x: Node, axis: int, rng: np.random.Generator) -> Node:
    """Windows along an axis, as a new last one."""
    n = int(x.shape[axis])
    length, step, dilation = (int(v) for v in rng.integers(1, 4, 3))
    span = (length - 1) * dilation + 1
    if span > n:
        return x
    wide = apply(Op.RESHAPE, (x,), shape=(*x.shape, 1))
    wide = apply(Op.EXPAND, (wide,), shape=(*x.shape, length))
    count = (n - span) // step + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], length)
    return apply(Op.SHEAR, (wide,), Window(axis, len(x.shape), step, dilation), shape)


def step(x: Node, at: Any, rng: np.random.Generator) -> Node:
    """One more view of x, whose elements are those at `at`."""
    shape, rank = tuple(int(n) for n in x.shape), len(x.shape)
    match int(rng.integers(0, 6)) if rank else 4:
        case 0:
            return apply(Op.PERMUTE, (x,), Axes(tuple(rng.permutation(rank).tolist())))
        case 1:
            steps = rng.integers(1, 3, rank).tolist()
            start = [int(rng.integers(0, n)) for n in shape]
            most = [(n - 1 - a) // s + 1 for n, a, s in zip(shape, start, steps, strict=True)]
            counts = tuple([int(rng.integers(1, m + 1)) for m in most])
            return apply(Op.SHRINK, (x,), Box(tuple(start), tuple(steps)), counts)
        case 2:
            return apply(Op.FLIP, (x,), Axes((int(rng.integers(0, rank)),)))
        case 3:
            return windows(x, int(rng.integers(0, rank)), rng) if rank < 4 else x
        case 4:
            wanted = shapes_of(at.size, rng)
            return apply(Op.RESHAPE, (x,), shape=wanted) if in_steps(at.reshape(wanted)) is not None else x
        case _:
            return apply(
                Op.EXPAND, (x,), shape=tuple([3 if n == 1 and rng.integers(0, 2) else n for n in shape])
            )


def way(last: Node, leaf: Node) -> list[Node]:
    """The ops from the leaf on."""
    out: list[Node] = []
    while last is not leaf:
        out.append(last)
        last = last.inputs[0]
    return out[::-1]


def in_steps(at: Any) -> list[int] | None:
    """The strides of elements at these places; None where they have none. Of axes of one element: 0."""
    origin = at[(0,) * at.ndim]
    unit = ([int(j == k) for j in range(at.ndim)] for k in range(at.ndim))
    steps = [int(at[tuple(u)] - origin) if n > 1 else 0 for u, n in zip(unit, at.shape, strict=True)]
    made = origin + sum(
        (s * i for s, i in zip(steps, np.indices(at.shape), strict=True)), np.zeros(at.shape, int)
    )
    return steps if np.array_equal(made, at) else None


def test_random_views() -> None:
    for seed in range(150):
        rng = np.random.default_rng(seed)
        shape = LEAVES[seed % len(LEAVES)]
        leaf = numpy_leaf(np.arange(int(np.prod(shape))).reshape(shape))
        last, at = leaf, np.arange(int(np.prod(shape))).reshape(shape)
        for _ in range(int(rng.integers(1, 5))):
            last = step(last, at, rng)
            at = np.asarray(evaluate([last])[0])
        route = way(last, leaf)
        found, want = strides_of(shape, route), in_steps(at)
        assert found is not None and want is not None
        assert found[0] == list(at.shape), seed
        assert all(a == b for a, b, n in zip(found[1], want, at.shape, strict=True) if n > 1), seed
        assert overlaps(shape, route) == (np.unique(at).size < at.size), seed
        rows = in_steps(np.arange(at.size).reshape(at.shape))
        assert copies(shape, route, at.shape, True) == (want != rows), seed
        for _ in range(4):
            wanted = shapes_of(at.size, rng)
            assert copies(shape, route, wanted, False) == (in_steps(at.reshape(wanted)) is None), (
                seed,
                wanted,
            )


def test_places_that_are_known_at_run_time_only() -> None:
    at = weft.Variable("at", 0, 2)
    x = weft.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    row = x[at : at + 1].reshape(2)
    assert weft.bind(row, at=2).tolist() == [5, 6]
    assert weft.bind(x.T[:, at : at + 2].reshape(4), at=1).tolist() == [3, 5, 4, 6]


def test_nothing_is_never_copied() -> None:
    x = numpy_leaf(np.zeros((0, 3), np.float32))
    turned = apply(Op.PERMUTE, (x,), Axes((1, 0)))
    assert not copies((0, 3), [turned], (3, 0), True) and not copies((0, 3), [turned], (0,), False)
