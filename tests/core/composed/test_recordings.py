"""What functions build is kept on disk: later processes record nothing again, and compute the same."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.core.composed import test_sized
from tests.core.composed.test_halves import CASES
from tests.core.composed.test_sized import LEARNED, leaf
from weft import Tensor, disk_cache
from weft.backends import registry
from weft.core.composed import composite, learned, sized
from weft.core.execute import recordings
from weft.errors import DeviceError
from weft.ir.calls import Given
from weft.ir.index import Var
from weft.scheduler import disk_cache as plans

SIZES = (9, 21, 33, 42)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what is recorded, each time; nothing is known in advance."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_VERIFY", "0")
    found: list[str] = []
    record, gradients = composite._record, composite._Result.record_gradients

    def count(entry: Any) -> Any:
        found.append(entry.function.__name__)
        return record(entry)

    def count_gradients(result: Any) -> None:
        found.append(f"gradients of {result.entry.function.__name__}")
        gradients(result)

    monkeypatch.setattr(composite, "_record", count)
    monkeypatch.setattr(composite._Result, "record_gradients", count_gradients)
    _forget()
    yield found
    _forget()


def _forget() -> None:
    composite._entries.clear()
    composite._families.clear()


def _next_process() -> None:
    composite.keep_recordings()
    _forget()


def _computed(function: Callable[[int], Tensor], n: int) -> list[float]:
    """The sums of the result, and of all gradients."""
    made: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_sized, "leaf", lambda *shape: (made.append(leaf(*shape)), made[-1])[1])
        out = function(n)
    out.sum().backward()
    return [out.sum().item(), *(x.grad.sum().item() for x in made if x.grad is not None)]


def _graphs() -> dict[Any, Any]:
    """The calls of all structures, and those of their gradients."""
    return {
        key: [(r.call.whole, [c and c.whole for c in r.backward or ()]) for r in e.results]
        for key, e in composite._entries.items()
    }


@pytest.mark.parametrize("name", LEARNED)
def test_another_process_records_nothing_again(name: str, recorded: list[str]) -> None:
    want = [_computed(LEARNED[name], n) for n in SIZES]
    assert recorded
    graphs = _graphs()
    _next_process()
    recorded.clear()
    for n, values in zip(SIZES, want, strict=True):
        np.testing.assert_allclose(_computed(LEARNED[name], n), values, rtol=1e-4, atol=1e-2)
    assert not recorded, "each of it is on disk"
    assert _graphs() == graphs
    LEARNED[name](27).sum().backward()
    assert not recorded, "what was learned is on disk, too"


def test_it_goes_on_from_there(recorded: list[str]) -> None:
    """One size in each process: the third of them learns."""
    for n in (9, 21, 33):
        F.gelu(leaf(n, 64)).sum().backward()
        _next_process()
    recorded.clear()
    x, want = leaf(50, 64), leaf(50, 64)
    F.gelu(x).sum().backward()
    assert not recorded
    composite.without_calls(F.gelu)(want).sum().backward()
    assert x.grad is not None and want.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), want.grad.numpy())


@pytest.mark.parametrize("name", ["sort", "median", "cummax", "var_mean"])
def test_results_of_several_tensors_come_as_they_are_made(name: str, recorded: list[str]) -> None:
    x = leaf(5, 9)
    first = getattr(weft, name)(x, 1)
    _next_process()
    recorded.clear()
    again = getattr(weft, name)(x, 1)
    assert not recorded and type(again) is type(first)
    for t, u in zip(again, first, strict=True):
        assert t.tolist() == u.tolist() and t.requires_grad is u.requires_grad
    again[0].sum().backward()
    assert x.grad is not None and x.grad.shape == (5, 9)


def test_gradients_that_nobody_asked_for_are_recorded_later(recorded: list[str]) -> None:
    F.softmax(leaf(9, 64), -1).sum().item()
    _next_process()
    recorded.clear()
    x, want = leaf(9, 64), leaf(9, 64)
    (F.softmax(x, -1) ** 2).sum().backward()
    assert recorded == ["gradients of softmax", "softmax"]
    (composite.without_calls(F.softmax)(want, -1) ** 2).sum().backward()
    assert x.grad is not None and want.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), want.grad.numpy(), atol=1e-6)


def test_second_derivatives_are_those_of_the_function(recorded: list[str]) -> None:
    def twice() -> list[float]:
        x = leaf(4, 6)
        (g,) = weft.autograd.grad((F.softmax(x, -1) ** 2).sum(), [x], create_graph=True)
        (g**2).sum().backward()
        assert x.grad is not None
        return x.grad.flatten().tolist()

    want = twice()
    _next_process()
    assert twice() == want


def test_all_that_is_recorded_can_be_read_again(recorded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the functions of many kinds: the calls that are read are those that were written."""
    seen: list[learned.Calls] = []
    add = sized.SizedCalls.add
    monkeypatch.setattr(
        sized.SizedCalls, "add", lambda own, sizes, calls: (seen.append(calls), add(own, sizes, calls))
    )
    for case in CASES:
        values = [case.domain(x) for x in np.random.default_rng(0).uniform(-1, 1, (case.inputs, *case.shape))]
        tensors = [weft.tensor(v.astype(np.float32), requires_grad=True) for v in values]
        out = case.function(*tensors)
        for t in out if isinstance(out, tuple) else (out,):
            if case.smooth and t.requires_grad:
                t.sum().backward(retain_graph=True)
    assert len(seen) > 100
    for calls in seen:
        written = recordings.written_calls(calls)
        assert written is not None
        assert learned.alike(recordings.read(written), calls)


def _record_of(name: str) -> tuple[str, Any]:
    """The one record of a function that was called by itself: its name and content."""
    composite.keep_recordings()
    (family,) = [f for k, f in composite._families.items() if k[0].__name__ == name]
    assert family.name is not None
    return family.name, recordings.load(family.name)


def _parts(record: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all parts of a record."""
    items = (
        record.items()
        if isinstance(record, dict)
        else enumerate(record)
        if isinstance(record, list | tuple)
        else ()
    )
    for key, value in items:
        yield (*path, key)
        yield from _parts(value, (*path, key))


def _with(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    made = dict(record) if isinstance(record, dict) else list(record)
    made[path[0]] = _with(record[path[0]], path[1:], value)
    return tuple(made) if isinstance(record, tuple) else made


NONSENSE = ["x", [[99], 3], None, b"x", b"", pickle.dumps(3), pickle.dumps((None, 3)), pickle.dumps(())]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
def test_records_that_make_no_sense_count_as_absent(nonsense: Any, recorded: list[str]) -> None:
    for n in SIZES:
        want = F.softmax(leaf(n, 64), -1).sum(-1).tolist()
    name, record = _record_of("softmax")
    for path in _parts(record):
        if path[-1] in ("known", "several") and nonsense is None:
            continue  # which is a record of what is not learned
        recordings.keep(name, {k: v for k, v in _with(record, path, nonsense).items() if k != "name"})
        _forget()
        found = F.softmax(leaf(SIZES[-1], 64), -1)
        assert found.shape == (SIZES[-1], 64)
        np.testing.assert_allclose(found.sum(-1).numpy(), want, rtol=1e-5)


def test_calls_of_another_number_or_kind_count_as_absent() -> None:
    sizes, fine = (3, 4), (None, Given(0))
    for calls in (fine, fine[:1], (), (*fine, None), (None, 3), [None, None], 3):
        stored = sized._Stored({sizes: pickle.dumps(calls)}, (), 2)
        assert stored.take(sizes) == (fine if calls is fine else None)
        assert stored.take(sizes) is None  # it is not there any more
    for count, found in ((1, True), (2, False)):
        known = learned.Known((Var("n", 4, 9),), ((0,),), (), (Given(0),))
        stored = sized._Stored({}, [recordings.written(known), b"nothing", 3], count)
        assert len(stored.take_known()) == found and not stored.take_known()


def test_nothing_is_kept_without_a_cache_or_while_forms_are_verified(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("WEFT_VERIFY", "1"), ("WEFT_CACHE_DIR", "")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            _forget()
            F.softmax(leaf(9, 64), -1)
            assert all(f.name is None for f in composite._families.values())
            _next_process()


def test_what_other_sources_built_is_not_found(recorded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    F.softmax(leaf(9, 64), -1)
    _next_process()
    recorded.clear()
    state = disk_cache.state
    monkeypatch.setattr(disk_cache, "state", lambda folders: state(folders) + "changed")
    F.softmax(leaf(9, 64), -1)
    assert recorded == ["softmax"]


def test_what_another_device_records_is_its_own(recorded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of another machine, on whose folder this one works."""
    F.softmax(leaf(9, 64), -1)
    _next_process()
    recorded.clear()
    monkeypatch.setattr(plans, "device_key", lambda device: "another processor")
    F.softmax(leaf(9, 64), -1)
    assert recorded == ["softmax"]


def test_functions_that_are_not_found_by_their_names_are_not_kept(recorded: list[str]) -> None:
    @composite.composite()
    def softmax(input: Tensor, dim: int) -> Tensor:
        return input.exp() * 2 + dim

    softmax.__module__, softmax.__qualname__ = F.softmax.__module__, F.softmax.__qualname__
    x = leaf(9, 64)
    want = softmax(x, -1)
    assert [f.name for f in composite._families.values()] == [None]
    _next_process()
    np.testing.assert_array_equal(softmax(x, -1).numpy(), want.numpy())


def test_nothing_is_kept_where_there_is_no_device(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = weft.ones(3, 4, device="meta", requires_grad=True)
    assert F.softmax(x, -1).sum().shape == ()
    y = leaf(3, 4)

    def gone(name: str) -> Any:
        raise DeviceError(f"{name} is gone")

    with monkeypatch.context() as patch:
        patch.setattr(registry, "open_device", gone)
        F.softmax(y, -1)
    assert [f.name for f in composite._families.values()] == [None, None]
    _next_process()


def test_modes_and_numbers_are_part_of_the_name(recorded: list[str]) -> None:
    names: set[str | None] = set()
    calls: list[Callable[[], object]] = [
        lambda: F.softplus(leaf(3, 5)),
        lambda: F.softplus(leaf(3, 5), 2.0),
        lambda: F.softplus(leaf(3, 5), 2),
        lambda: F.softplus(leaf(3, 5), threshold=2.0),
        lambda: F.softplus(leaf(3, 5).detach()),
        lambda: F.softplus(leaf(3, 5).double()),
        lambda: F.softplus(leaf(3, 3)),
        lambda: F.softplus(leaf(3, 5, 7)),
    ]
    for call in calls:
        _forget()
        call()
        names |= {f.name for k, f in composite._families.items() if k[0].__name__ == "softplus"}
    with weft.no_grad():
        _forget()
        F.softplus(leaf(3, 5))
        names |= {f.name for f in composite._families.values()}
    assert len(names) == len(calls) + 1 and None not in names


PROGRAM = """
import sys
import numpy as np
import weft
from weft.core.composed import composite
count, record = [0], composite._record
def counted(entry):
    count[0] += 1
    return record(entry)
composite._record = counted
rng = np.random.default_rng(0)
net = weft.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
with weft.no_grad():
    for p in net.parameters():
        p.copy_(weft.tensor(rng.standard_normal(p.shape).astype(np.float32) / 4))
optimizer = weft.optim.Adam(net.parameters(), lr=1e-3)
for n in (5, 9, 13, 11, 5):
    optimizer.zero_grad()
    loss = (net(weft.tensor(rng.standard_normal((3, n, 16)).astype(np.float32))) ** 2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
print("recorded", count[0], flush=True)
if "killed" in sys.argv:
    import os
    os._exit(1)
"""


def test_programs_record_once(tmp_path: Path) -> None:
    """But for one that was killed, which leaves nothing."""
    env = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path), "WEFT_VERIFY": "0"}

    def run(*args: str) -> tuple[list[str], int]:
        command = [sys.executable, "-c", PROGRAM, *args]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        *losses, last = done.stdout.splitlines()
        return losses, int(last.split()[1])

    losses, first = run("killed")
    again, second = run()
    assert first == second > 20
    for _ in range(2):
        found, count = run()
        assert count == 0 and found == again
    np.testing.assert_allclose([float(x) for x in losses], [float(x) for x in again], rtol=1e-5)
