"""What is known of recurrent layers' steps is kept on disk: later processes trace none, and compute the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor, disk_cache, nn
from weft.core.composed import composite
from weft.core.execute import recordings
from weft.core.grad import loops, named_steps, repeated_loops

LENGTHS = (5, 9, 6, 21, 12, 3, 40)


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An entry for each step that is traced; nothing is known in advance."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_VERIFY", "0")
    found: list[str] = []
    trace = loops._traced
    monkeypatch.setattr(loops, "_traced", lambda *given: (found.append(""), trace(*given))[1])
    _forget()
    yield found
    _forget()


def _forget() -> None:
    for table in (
        repeated_loops._known,
        repeated_loops._seen,
        named_steps._steps,
        composite._entries,
        composite._families,
    ):
        table.clear()


def _next_process() -> None:
    named_steps.keep_steps()
    composite.keep_recordings()
    _forget()


def _layer(make: Callable[[], Any]) -> Any:
    weft.manual_seed(3)
    return make()


def _computed(layer: Any, n: int, second: bool = False) -> list[Tensor]:
    """Outputs, last states and gradients for a batch of n steps."""
    rng = np.random.default_rng(n)
    x = weft.tensor(rng.standard_normal((n, 2, 24)).astype(np.float32), requires_grad=True)
    out, states = layer(x)
    ends = list(states) if isinstance(states, tuple) else [states]
    loss = (out**2).sum() + sum((s.sin().sum() for s in ends), weft.tensor(0.0))
    asked = [x, *layer.parameters()]
    found = weft.autograd.grad(loss, asked, create_graph=second)
    if second:
        found = (*found, *weft.autograd.grad((found[0] ** 2).sum(), asked))
    return [out, *ends, *found]


def _same(a: list[Tensor], b: list[Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x.detach().numpy(), y.detach().numpy(), rtol=2e-5, atol=2e-6)


LAYERS: dict[str, Callable[[], Any]] = {
    "LSTM": lambda: nn.LSTM(24, 16),
    "LSTM of two layers, both ways": lambda: nn.LSTM(24, 16, num_layers=2, bidirectional=True),
    "LSTM with projections": lambda: nn.LSTM(24, 16, proj_size=14),
    "LSTM without bias": lambda: nn.LSTM(24, 16, bias=False),
    "GRU": lambda: nn.GRU(24, 16),
    "RNN": lambda: nn.RNN(24, 16, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_another_process_traces_nothing(name: str, traced: list[str]) -> None:
    layer = _layer(LAYERS[name])
    want = [_computed(layer, n) for n in LENGTHS]
    assert traced
    _next_process()
    traced.clear()
    for n, values in zip(LENGTHS, want, strict=True):
        _same(_computed(layer, n), values)
    found = _computed(layer, 33)  # a length that never came
    assert not traced
    _forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings, "load", lambda name: None)
        _same(found, _computed(layer, 33))
    assert traced


def test_second_derivatives_are_those_of_the_step(traced: list[str]) -> None:
    layer = _layer(LAYERS["LSTM"])
    want = [_computed(layer, n, second=True) for n in LENGTHS[:4]]
    _next_process()
    for n, values in zip(LENGTHS[:4], want, strict=True):
        _same(_computed(layer, n, second=True), values)


def test_it_goes_on_from_there(traced: list[str]) -> None:
    """Two lengths in each process, of which the first shows that loops come again; what was learned serves the next."""
    layer = _layer(LAYERS["GRU"])
    for n in (9, 21, 12):
        _computed(layer, 5)
        _computed(layer, n)
        _next_process()
    traced.clear()
    found = _computed(layer, 57)
    assert not traced
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE_DIR", "")
        _forget()
        _same(found, _computed(layer, 57))


def test_modes_and_shapes_have_their_own(traced: list[str]) -> None:
    layer = _layer(LAYERS["LSTM"])
    for n in LENGTHS:
        _computed(layer, n)
    _next_process()
    traced.clear()
    x = weft.tensor(np.ones((7, 2, 24), np.float32))
    with weft.no_grad():
        out, _ = layer(x)
    assert traced and not out.requires_grad
    traced.clear()
    layer(weft.tensor(np.ones((7, 4, 24), np.float32)))
    assert traced


def _records() -> Iterator[tuple[str, dict[str, Any]]]:
    for e in list(named_steps._steps.values()):
        assert e.name is not None
        yield e.name, recordings.load(e.name)


NONSENSE = [None, "x", (99,), -1, b"", {}, pickle.dumps(3)]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
def test_records_that_make_no_sense_count_as_absent(nonsense: Any, traced: list[str]) -> None:
    layer = _layer(LAYERS["RNN"])
    want = [_computed(layer, n) for n in LENGTHS[:4]]
    named_steps.keep_steps()
    ((name, record),) = _records()
    parts = [(k,) for k in record if k != "name"] + [("recording", k) for k in record["recording"]]
    for first, *rest in parts:
        value = nonsense if not rest else {**record[first], rest[0]: nonsense}
        recordings.keep(name, {**{k: v for k, v in record.items() if k != "name"}, first: value})
        _forget()
        _same(_computed(layer, LENGTHS[3]), want[3])


def test_what_other_sources_built_is_not_found(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of layers count, too: they have the functions of the steps."""
    layer = _layer(LAYERS["GRU"])
    for n in LENGTHS:
        _computed(layer, n)
    _next_process()
    state = disk_cache.state
    monkeypatch.setattr(disk_cache, "state", lambda f: state(f) + ("x" if "nn" in f else ""))
    traced.clear()
    _computed(layer, 9)
    assert traced


def test_nothing_is_kept_while_forms_are_verified(
    traced: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_VERIFY", "1")
    layer = _layer(LAYERS["GRU"])
    for n in LENGTHS[:3]:
        _computed(layer, n)
    named_steps.keep_steps()
    assert not list(tmp_path.glob(f"**/{recordings.KIND}/**/*"))
