"""Sessions: what a change reaches is computed, with the bits of a full run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.errors import ArgumentError, DTypeError
from weft.sessions.execution import Execution
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


def test_an_argument_that_the_function_has_from_elsewhere_too_is_two_inputs() -> None:
    w, x = floats(4, 4), floats(4, 4)
    s = session(lambda x: x @ w)
    for y in (w, x, w):
        assert s(y).tolist() == anew(lambda x: x @ w, weft.tensor(y.numpy())).tolist()
    w[1] = 2.0
    assert s(w).tolist() == anew(lambda x: x @ w, weft.tensor(w.numpy())).tolist()


def test_a_parameter_is_a_change_where_its_last_value_is_gone() -> None:
    w, x = floats(4), floats(4)
    s = session(lambda x: x * w)
    s(x)
    w[0] = 2.0
    w.numpy()  # computed into the memory of the value that the session saw
    w[1] = 3.0
    assert s(x).tolist() == (x * w).tolist()


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


def test_an_interrupted_run_leaves_a_session_that_computes_right(monkeypatch: pytest.MonkeyPatch) -> None:
    s, x = session(mlp), floats(64, 16)
    s(x)
    for error in (KeyboardInterrupt, MemoryError):
        x[3] = floats(16)
        execute = Execution.run

        def failing(self, *args, error=error, execute=execute):
            execute(self, *args)  # what is kept has been written over
            raise error

        monkeypatch.setattr(Execution, "run", failing)
        with pytest.raises(error):
            s(x)
        monkeypatch.undo()
        assert np.array_equal(s(x).numpy(), anew(mlp, x).numpy())


def test_an_array_that_is_held_is_not_written_over() -> None:
    s, x = session(mlp), floats(64, 16)
    s(x)
    held = s(x).numpy()
    before = held.copy()
    x[3] = floats(16)
    s(x)
    assert np.array_equal(held, before)


def test_a_result_that_is_computed_whole_is_not_written_over_while_it_is_held() -> None:
    s, x = session(lambda x: -x), floats(3)
    held = s(x)
    before = held.numpy().copy()
    for k in range(2):
        x[:] = float(k)
        s(x)
        assert np.array_equal(held.numpy(), before)


def test_results_that_nobody_holds_are_updated_where_they_are() -> None:
    s, x = session(mlp), floats(64, 16)
    s(x)
    (form,) = s._forms.values()
    (result,) = form.template.results
    memory = id(form.values[result].memory)  # and no reference to it
    for t in (3, 4):
        x[t] = floats(16)
        s(x)
        assert id(form.values[result].memory) == memory


def test_the_callers_arrays_are_not_kept() -> None:
    s = session(mlp)
    array = rng.standard_normal((64, 16)).astype(np.float32)
    first = s(array)
    array[5] = 0.0
    y = s(array)
    assert [b[0].lo for b in y.changed.boxes] == [5] and not np.array_equal(first.numpy(), y.numpy())


def test_another_shape_is_another_plan() -> None:
    s = session(mlp)
    x, longer = floats(8, 16), floats(12, 16)
    for given in (x, longer, x):
        assert np.array_equal(s(given).numpy(), anew(mlp, given).numpy())
    assert s.stats().everything == 2


def test_an_input_that_grows_is_said_to_be_computed_from_nothing() -> None:
    s = session(mlp)
    for n in range(1, 8):
        s(floats(n, 16))
    with pytest.warns(UserWarning, match="x had 7 elements along axis 0, now 8.*Variable") as said:
        s(floats(8, 16))
    assert [w.filename for w in said] == [__file__]
    with warnings.catch_warnings(action="error"):
        s(floats(9, 16))


def test_python_values_that_change_are_said_to_be_recorded() -> None:
    s, x = session(lambda x, k: x * k), floats(4)
    with pytest.warns(UserWarning, match="Python values"):
        for k in range(9):
            s(x, k)


def test_several_inputs_and_python_numbers_change() -> None:
    def f(x: weft.Tensor, y: weft.Tensor, scale: float) -> weft.Tensor:
        return (x @ W1 * scale).tanh() + y

    x, y = floats(8, 16), floats(32)
    s = session(f, x, y, weft.tensor(1.0))
    for scale in (0.5, 0.5, 2.0):
        x[1], y[3:5] = floats(16), floats(2)
        found = s(x, y, scale)
        assert np.array_equal(found.numpy(), anew(f, x, y, weft.tensor(scale)).numpy())
    assert s.stats().everything == 1


def test_a_function_that_reads_values_is_refused_by_where_it_does() -> None:
    with pytest.raises(ArgumentError, match=r"graph ends where values are read .*test_session"):
        session(lambda x: x * 2 if x.sum() > 0 else x)(floats(3))


def test_batch_norm_is_refused_while_it_trains() -> None:
    norm, x = weft.nn.BatchNorm1d(16), floats(8, 16)
    with pytest.raises(ArgumentError, match="eval"):
        session(norm)(x)
    norm.eval()
    assert np.array_equal(session(norm)(x).numpy(), anew(norm, x).numpy())


def test_what_changed_may_be_said_and_is_checked() -> None:
    s, x = session(mlp), floats(64, 16)
    s(x)
    array = x.numpy().copy()
    array[7] = 1.0
    y = s(array, changed={"x": [(7,)]})
    assert np.array_equal(y.numpy(), anew(mlp, weft.tensor(array)).numpy())
    with pytest.raises(ArgumentError, match="'z'"):
        s(array, changed={"z": [(7,)]})
    with pytest.raises(ArgumentError, match="slices of step 1"):
        s(array, changed={"x": [(64,)]})


def test_a_change_said_for_a_tensor_that_is_given_twice_is_all_that_is_said_of_it() -> None:
    s, x = session(lambda a, b: a * 2 + b), floats(4, 4)
    s(x, x)
    y = weft.tensor(x.numpy().copy())
    s(y, y)
    z = weft.tensor(np.where(np.arange(4)[:, None] < 2, np.float32(9), y.numpy()))
    assert np.array_equal(s(z, z, changed={"a": [(0,)], "b": [(1,)]}).numpy(), (z * 3).numpy())


@pytest.mark.parametrize("said", [5, ["x"], {"x": (0,)}, {"x": [slice(0, 1)]}, {"x": None}, {"x": [(1.0,)]}])
def test_what_is_no_list_of_boxes_is_refused_by_the_form_that_it_should_have(said: Any) -> None:
    s, x = session(mlp), floats(64, 16)
    s(x)
    with pytest.raises(DTypeError, match=r"session: changed="):
        s(floats(64, 16), changed=said)


def test_arrays_are_taken_in_any_order_of_bytes_and_within_lists_and_dicts() -> None:
    s = session(lambda d: d["a"] * 2 + d["b"][0])
    a = np.arange(3, dtype=">f4")
    for k in range(3):
        a[k] = 7
        assert s({"a": a, "b": [np.ones(3, np.float32)]}).tolist() == (a * 2 + 1).tolist()
    assert s.stats().everything == 1


def test_arrays_that_no_tensor_holds_are_refused() -> None:
    with pytest.raises(DTypeError, match="complex64"):
        session(mlp)(np.ones((64, 16), np.complex64))


def test_a_number_for_a_variable_may_be_named_and_may_not_be_left_out() -> None:
    x = floats(4, 3)
    s = session(lambda x, t=0: x[t] * 2, x, weft.Variable("t", 0, 3))
    assert s(x, t=2).tolist() == s(x, 2).tolist() == (x[2] * 2).tolist()
    with pytest.raises(ArgumentError, match="t needs a number"):
        s(x)


@pytest.mark.parametrize("memory", ["1g", 1.5, True])
def test_a_limit_is_a_number_of_bytes(memory: Any) -> None:
    with pytest.raises(DTypeError, match="number of bytes"):
        session(mlp, memory=memory)


def test_tensors_in_files_are_refused_by_what_to_do(tmp_path: Path) -> None:
    weft.save({"x": floats(4, 3)}, tmp_path / "x.safetensors")
    x = weft.load(tmp_path / "x.safetensors", device="disk")["x"]
    s, y = session(lambda y: y * 2), floats(4, 3)
    s(y)
    for run in (lambda: s(x), lambda: session(lambda y: y * x)(y)):
        with pytest.raises(ArgumentError, match="is in a file"):
            run()
    assert s(x.to("cpu:0")).tolist() == (x.to("cpu:0") * 2).tolist()


def test_draws_stay() -> None:
    drop, x = weft.nn.Dropout(0.5), floats(64, 16)
    s = session(drop)
    first = s(x).numpy()
    x[3] = floats(16)
    second = s(x).numpy()
    assert np.array_equal(np.delete(first, 3, 0), np.delete(second, 3, 0))


def test_threads_wait_for_each_other() -> None:
    from threading import Thread

    s, wrong = session(mlp), []
    inputs = [floats(64, 16) for _ in range(3)]
    wanted = [anew(mlp, x).numpy() for x in inputs]

    def call(k: int) -> None:
        for _ in range(5):
            if not np.array_equal(s(inputs[k]).numpy(), wanted[k]):
                wrong.append(k)

    threads = [Thread(target=call, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_threads_share_a_pool_that_is_closed_meanwhile() -> None:
    from threading import Thread

    same: list[bool] = []
    with weft.memory_pool(30_000) as pool:
        sessions = [session(mlp, pool=pool) for _ in range(3)]
        inputs = [floats(64, 16) for _ in range(4)]

        def call(k: int) -> None:
            mine, x = np.random.default_rng(k), inputs[k]
            for n in range(6):
                x[int(mine.integers(64))] = float(n)
                found = sessions[(k + n) % 3](x).numpy().copy()
                same.append(np.array_equal(found, anew(mlp, x).numpy()))

        threads = [Thread(target=call, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        pool.__exit__()
        for t in threads:
            t.join()
    assert same == [True] * 24 and pool.used_bytes() == 0


def test_a_run_within_a_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with weft.memory_pool(1 << 20) as pool:
        s, other, x = session(mlp, pool=pool), session(mlp, pool=pool), floats(64, 16)
        s(x)
        execute = Execution.run

        def interrupted(self, *args):  # as a handler of a signal would
            monkeypatch.undo()
            execute(self, *args)
            for within in (lambda: s(x), lambda: other(x), s.stats, pool.__exit__):
                with pytest.raises(ArgumentError, match="within a run"):
                    within()

        monkeypatch.setattr(Execution, "run", interrupted)
        x[3] = floats(16)
        assert np.array_equal(s(x).numpy(), anew(mlp, x).numpy())
        assert np.array_equal(other(x).numpy(), anew(mlp, x).numpy())


def test_a_forked_process_goes_on_by_itself() -> None:
    import os
    from threading import Event, Thread

    s, x, done = session(mlp), floats(64, 16), Event()
    s(x)

    def others() -> None:
        y = floats(64, 16)
        while not done.is_set():
            y[3] = 1.0
            s(y)

    busy = Thread(target=others)
    busy.start()
    try:
        for k in range(3):
            x[k] = 2.0
            child = os.fork()
            if child == 0:
                same = np.array_equal(s(x).numpy(), anew(mlp, x).numpy())
                os._exit(0 if same else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        busy.join()


def test_weights_of_steps_of_an_optimizer_are_seen() -> None:
    model, x = weft.nn.Linear(16, 4), floats(8, 16)
    optimizer = weft.optim.Adam(model.parameters(), lr=0.1)
    s = session(model)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    compiled = weft.compile(step)
    for take in (step, compiled, compiled, step):
        take()
        assert np.array_equal(s(x).numpy(), anew(model, x).numpy())
    assert s.stats().everything == 1


def test_decoding_makes_one_plan_and_computes_one_row() -> None:
    emb, rows = weft.nn.Embedding(11, 16), 24
    maps = [weft.nn.Linear(16, 48) for _ in range(2)]

    def model(ids: weft.Tensor, t: int) -> weft.Tensor:
        x = emb(ids)
        for m in maps:
            q, k, v = m(x).chunk(3, -1)
            x = x + weft.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x[0, t]

    ids = weft.zeros((1, rows), dtype=weft.int64)
    s = session(model, ids, weft.Variable("t", 0, rows - 1))
    s(ids, 0)
    for t in range(1, rows):
        ids[0, t] = t % 11
        assert np.array_equal(s(ids, t).numpy(), anew(model, ids, t).numpy()), t
    assert s.stats().plans == 2 and s.stats().everything == 1
    ids[0, 3] = 5  # in the middle: rows from there on, as far as the last one needs them
    assert np.array_equal(s(ids, rows - 1).numpy(), anew(model, ids, rows - 1).numpy())
    ids[0, 9] = 6
    assert np.array_equal(s(ids, 12).numpy(), anew(model, ids, 12).numpy())


def test_a_row_that_nobody_needed_is_computed_when_it_is_needed() -> None:
    def row(x: weft.Tensor, t: int) -> weft.Tensor:
        return (((x @ W1).relu() @ W2) * 2)[t]

    x = floats(32, 16)
    s = session(row, x, weft.Variable("t", 0, 31))
    s(x, 0)
    x[7] = floats(16)
    s(x, 3)  # row 7 is stale
    assert np.array_equal(s(x, 7).numpy(), anew(row, x, 7).numpy())


def test_sums_take_the_fastest_order_where_bits_need_not_be_the_same() -> None:
    s, x = session(mlp, exact=False), floats(64, 16)
    s(x)
    x[3] = floats(16)
    np.testing.assert_allclose(s(x).numpy(), mlp(x).numpy(), rtol=1e-5)
    assert s.stats().steps == 1


def test_a_number_that_leads_out_of_a_tensor_is_refused_and_the_next_run_is_right() -> None:
    x = weft.arange(10.0)
    s = weft.session(lambda x, t: x.exp()[t], x, weft.Variable("t", 0, 20))
    for t in (3, 9):
        assert s(x, t).item() == x.exp()[t].item()
        with pytest.raises(
            weft.IndexError, match=f"index t = {t + 8} is out of range for dimension 0 of size 10"
        ):
            s(x, t + 8)
        x[t] = 0.5
        assert s(x, t).item() == x.exp()[t].item()
