"""Sessions: what a change reaches is computed, with the bits of a full run."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.errors import ArgumentError
from weft.sessions.session import session

rng = np.random.default_rng(0)


def floats(*shape: int) -> weft.Tensor:
    return weft.tensor(rng.standard_normal(shape).astype(np.float32))


W1, W2 = floats(16, 32), floats(32, 8)


def mlp(x: weft.Tensor) -> weft.Tensor:
    return ((x @ W1).relu() @ W2).softmax(-1)


def anew(fn, *args):
    """The results of a session that starts anew."""
    return session(fn)(*args)


def test_a_row_that_is_written_is_computed_anew_and_no_other() -> None:
    s, x = session(mlp), floats(64, 16)
    s(x)
    for t in (3, 60, 17):
        x[t] = floats(16)
        y = s(x)
        assert str(y.changed) == f"[{t}:{t + 1}, 0:8] at most"
        assert np.array_equal(y.numpy(), anew(mlp, x).numpy())


def test_an_identical_input_changes_nothing() -> None:
    s, x = session(mlp), floats(64, 16)
    first = s(x)
    again = s(x)
    assert again.changed.is_empty and np.array_equal(first.numpy(), again.numpy())
    assert s(x.numpy().copy()).changed.is_empty


def test_fresh_arrays_are_compared() -> None:
    s, x = session(mlp), floats(64, 16)
    s(x)
    array = x.numpy().copy()
    array[5, 3] += 1
    array[40] += 1
    y = s(array)
    assert str(y.changed) == "[5:6, 0:8] | [40:41, 0:8] at most"
    assert np.array_equal(y.numpy(), anew(mlp, weft.tensor(array)).numpy())


def test_results_are_the_callers() -> None:
    s, x = session(mlp), floats(64, 16)
    first = s(x)
    before = first.numpy().copy()
    x[3] = 0.0
    s(x)
    assert np.array_equal(first.numpy(), before)


def test_a_parameter_is_a_change_like_any_other() -> None:
    model = weft.nn.Linear(16, 4)
    s, x = session(model), floats(8, 16)
    s(x)
    with weft.no_grad():
        model.weight[1] = 0.5
    y = s(x)
    assert str(y.changed) == "[0:8, 1:2] at most"
    assert np.array_equal(y.numpy(), anew(model, x).numpy())


def test_a_function_that_writes_to_its_argument_is_refused() -> None:
    def counts(x: weft.Tensor) -> weft.Tensor:
        x += 1
        return x * 2

    with pytest.raises(ArgumentError, match="writes to tensors"):
        session(counts)(floats(3))


def test_numbers_are_runtime_variables_where_the_example_shows_one() -> None:
    def row(x: weft.Tensor, t: int) -> weft.Tensor:
        return ((x @ W1).relu() @ W2)[t].softmax(-1)

    x = floats(64, 16)
    s = session(row, x, weft.Variable("t", 0, 63))
    for t in (0, 1, 2, 3, 60, 2):
        x[t] = floats(16)
        assert np.array_equal(s(x, t).numpy(), anew(row, x, t).numpy()), t
