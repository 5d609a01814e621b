"""Functions of movement that are repeated by their ops: the same nodes, gradients and refusals as without."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import weft
from weft.core.layout import indexing, movement
from weft.core.views import moves

CALLS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (movement.reshape, (4, 6)),
    (movement.reshape, ((-1, 2),)),
    (movement.reshape, (weft.ones(3, 8).shape,)),
    (movement.permute, (2, 0, 1)),
    (movement.transpose, (0, -1)),
    (movement.squeeze, (1,)),
    (movement.unsqueeze, (0,)),
    (movement.expand, (5, -1, -1, -1)),
    (movement.narrow, (2, 1, 2)),
    (movement.flatten, (0, 1)),
    (indexing.getitem, (0,)),
    (indexing.getitem, (-1,)),
    (indexing.getitem, (slice(1, None),)),
    (indexing.getitem, (slice(None, None, -1),)),
    (indexing.getitem, ((Ellipsis, slice(0, 3, 2), 1),)),
    (indexing.getitem, ((None, 1, 0),)),
    (movement.split, (2, 2)),
    (movement.split, (3,)),
    (indexing.unbind, (2,)),
    (movement.chunk, (3, -1)),
]


NAMED: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (movement.split, (2,), {"dim": -1}),
    (movement.split, (), {"split_size_or_sections": (2, 4), "dim": 0}),
    (movement.chunk, (3,), {"dim": 0}),
    (indexing.unbind, (), {"dim": 2}),
    (movement.squeeze, (), {"dim": 1}),
    (movement.flatten, (), {"start_dim": 1}),
    (movement.flatten, (), {"end_dim": 1}),
    (movement.transpose, (), {"dim0": 0, "dim1": 2}),
    (movement.transpose, (), {"dim1": 0, "dim0": 1}),
    (movement.narrow, (), {"dim": 2, "start": 1, "length": 2}),
    (movement.narrow, (), {"dim": 2, "length": 1, "start": 2}),
]


def nodes(out: Any) -> list[Any]:
    return [t.value.node for t in out] if isinstance(out, tuple) else [out.value.node]


@pytest.mark.parametrize("leaf", ["in memory", "computed", "an op", "a reshape", "a constant", "a range"])
def test_a_call_that_is_repeated_gives_the_node_that_the_function_gives(leaf: str) -> None:
    data = weft.randn(6, 1, 4).realize()
    x = {
        "in memory": data,
        "computed": (data * 2).realize(),
        "an op": data * 3,
        "a reshape": data.reshape(24).reshape(6, 1, 4),
        "a constant": weft.ones(6, 1, 4),
        "a range": weft.arange(24).reshape(6, 1, 4),
    }[leaf]
    for function, args in CALLS:
        for _ in range(3):
            assert nodes(moves.moved(function, x, args)) == nodes(function(x, *args)), function.__name__
    for function, args, named in NAMED:
        for _ in range(3):
            assert nodes(moves.moved(function, x, args, named)) == nodes(function(x, *args, **named))
    same = weft.randn(6, 1, 4).realize()
    for function, args in CALLS:
        assert nodes(moves.moved(function, same, args)) == nodes(function(same, *args)), function.__name__


def test_what_moves_a_reshape_is_repeated_unless_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reshapes are one; others come to the same over a reshape as over anything else. As attention has them."""
    calls: list[str] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **named: (calls.append(function.__name__), function(*args, **named))[1]

    transpose, reshape, split = map(counted, (movement.transpose, movement.reshape, movement.split))
    data = weft.randn(6, 4).realize()
    moves.moved(reshape, weft.randn(2, 3, 4).realize(), (24,))  # which is known from here on
    for k in range(4):
        heads = (data * float(k + 2)).reshape(2, 3, 4)
        one, other = moves.moved(transpose, heads, (0, 1)), movement.transpose(heads, 0, 1)
        assert one.value.node is other.value.node
        assert moves.moved(reshape, heads, (24,)).value.node is movement.reshape(heads, 24).value.node
        parts = moves.moved(split, heads, (2,), {"dim": -1})
        assert nodes(parts) == nodes(movement.split(heads, 2, dim=-1))
    assert calls == ["reshape", "transpose", "reshape", "split", "reshape", "reshape", "reshape"]


def test_gradients_flow_through_a_call_that_is_repeated() -> None:
    for function, args in CALLS:
        for _ in range(2):
            x = weft.randn(6, 1, 4).realize().requires_grad_()
            y = x * 2
            found, expected = (
                weft.autograd.grad(weft.cat([(t * t * t).flatten() for t in parts]).sum(), x)[0]
                for parts in (
                    out if isinstance(out, tuple) else (out,)
                    for out in (moves.moved(function, y, args), function(y, *args))
                )
            )
            assert found.tolist() == expected.tolist(), function.__name__
    with weft.no_grad():
        assert not moves.moved(movement.reshape, y, (4, 6)).requires_grad
    assert moves.moved(movement.reshape, y, (4, 6)).requires_grad


def test_arguments_that_are_equal_but_not_the_same_are_told_apart() -> None:
    x = weft.arange(6.0).realize() * 1
    assert x.reshape(1, 6).shape == (1, 6)
    with pytest.raises(weft.DTypeError):
        x.reshape(True, 6)
    with pytest.raises(weft.DTypeError):
        x.reshape(1.0, 6)
    assert x[1].item() == 1.0
    assert x[True].shape == (1, 6)
    assert x[0:2].tolist() == [0.0, 1.0]
    with pytest.raises((weft.IndexError, TypeError, weft.DTypeError)):
        x[(slice, 0, 2, None)]
    for _ in range(2):
        with pytest.raises(weft.ShapeError):
            x.reshape(4, 2)
        with pytest.raises(weft.IndexError):
            x[6]


def test_random_chains_of_views_are_as_numpy_has_them() -> None:
    rng = random.Random(7)
    for _ in range(60):
        x = weft.randn(4, 6, 2).realize()
        a = x.numpy()
        for _ in range(rng.randrange(1, 5)):
            if x.ndim == 0:
                break
            match rng.randrange(5):
                case 0:
                    k = rng.randrange(x.shape[0])
                    x, a = x[k], a[k]
                case 1:
                    step = rng.choice((1, 2))
                    x, a = x[..., ::step], a[..., ::step]
                case 2:
                    x, a = x.transpose(0, -1), a.swapaxes(0, -1)
                case 3:
                    x, a = x.reshape(-1), a.reshape(-1)
                case _:
                    x, a = x[None, 0:1] * 2, a[None, 0:1] * 2
        assert x.shape == a.shape
        assert (x.numpy() == a).all()


def test_moves_are_kept_within_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "KEPT", 8)
    monkeypatch.setattr(moves, "_known", {})
    x = weft.randn(64).realize()
    for k in range(30):
        assert x[k : k + 2].shape == (2,)
        assert len(moves._known) <= 8
