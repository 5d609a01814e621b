"""A training step that is refused, fails or is interrupted: all of it has happened, or nothing."""

from __future__ import annotations

import linecache
import os
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends.cpu.allocator import OutOfMemoryError
from weft.backends.dummy.device import DummyDevice
from weft.backends.dummy.faults import Faults
from weft.backends.registry import open_device
from weft.core.compile import direct_call, plan_replay
from weft.core.execute import changes, ownership, pending

State = dict[str, Any]
FUZZ = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))


class Training:
    """A small model with batch norms, Adam with two groups, and all that a step of it changes."""

    def __init__(self, width: int = 8, device: str = "cpu", inputs: int = 4, **options: Any) -> None:
        weft.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width // 2),
            nn.BatchNorm1d(width // 2), nn.Linear(width // 2, 2),
        ).to(device)  # fmt: skip
        parameters = list(self.model.parameters())
        groups = [{"params": parameters[:3]}, {"params": parameters[3:], "lr": 1e-2}]
        self.optimizer = weft.optim.Adam(groups, lr=1e-3, **options)

    def loss(self, x: weft.Tensor) -> weft.Tensor:
        return self.model(x).square().mean()

    def step(self, x: weft.Tensor, order: str = "zbs") -> weft.Tensor:
        """z: zero_grad, b: backward, c: clip, s: step, i: item; in this order."""
        loss: Any = None
        for what in order:
            if what == "z":
                self.optimizer.zero_grad()
                loss = self.loss(x)
            elif what == "b":
                loss.backward()
            elif what == "c":
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            elif what == "s":
                self.optimizer.step()
            elif what == "i":
                loss.item()
        return loss

    def tensors(self) -> dict[str, weft.Tensor]:
        found = {f"model {k}": t for k, t in self.model.state_dict().items()}
        for i, group in enumerate(self.optimizer.param_groups):
            found |= {f"optimizer count {i}": group.count, f"optimizer rate {i}": group.rate}
            for j, p in enumerate(group.params):
                found |= {f"optimizer {i} {j} {k}": t for k, t in self.optimizer.state[p].items()}
        return found

    def state(self) -> State:
        """Everything, read."""
        grads = {f"grad {k}": None if p.grad is None else p.grad.numpy().copy()
                 for k, p in enumerate(self.model.parameters())}  # fmt: skip
        return {k: t.numpy().copy() for k, t in self.tensors().items()} | grads

    def reset(self, state: State) -> None:
        """Back to a state, in memory of its own."""
        with weft.no_grad():
            for k, t in self.tensors().items():
                t.copy_(weft.tensor(state[k], dtype=t.dtype, device=t.device))
        for k, p in enumerate(self.model.parameters()):
            p.grad = None if state[f"grad {k}"] is None else weft.tensor(state[f"grad {k}"], device=p.device)


def same(a: State, b: State, of: Callable[[str], bool] = lambda k: True) -> bool:
    """Whether two states are equal, to the bit."""
    return all(
        (a[k] is None) == (b[k] is None) and (a[k] is None or np.array_equal(a[k], b[k], equal_nan=True))
        for k in a
        if of(k)
    )


def close(a: State, b: State, of: Callable[[str], bool]) -> bool:
    """Whether two states are equal but for rounding: what gradients are computed with depends on what is pending."""
    return all(
        (a[k] is None) == (b[k] is None) and (a[k] is None or np.allclose(a[k], b[k], 1e-5, 1e-6))
        for k in a
        if of(k)
    )


def rows(n: int, device: str = "cpu", columns: int = 4) -> weft.Tensor:
    return weft.tensor(
        np.random.default_rng(n).standard_normal((n, columns)).astype(np.float32), device=device
    )


@pytest.fixture(autouse=True)
def as_in_a_process_of_its_own() -> None:
    """Nothing is pending."""
    changes.mine.changed.clear()
    changes.mine.left = 0


@pytest.fixture(params=["new memory", "old memory"], autouse=True)
def where_values_go(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """New values, small as they are, get memory of their own, or are written over the old ones, as large ones are."""
    if request.param == "old memory":
        for module in (ownership, plan_replay, direct_call):
            monkeypatch.setattr(module, "SPARE_BYTES", 0)


def room_for(nbytes: int) -> weft.memory_limit:
    """A limit with room for these bytes beside what is in use, which stays (`memory_limit`): earlier tests hold some,
    in small blocks that are kept for ever too. There is no workspace that a step could fit into."""
    with weft.memory_limit(0, "cpu"), pytest.raises(OutOfMemoryError) as refused:
        open_device("cpu:0").allocate(1 << 20)  # the workspace is given up before it is refused
    return weft.memory_limit(refused.value.live + nbytes)


@pytest.mark.parametrize("make", [weft.optim.SGD, weft.optim.AdamW])
def test_views_of_parameters_and_of_state_see_a_step(make: Any) -> None:
    p = weft.nn.Parameter(weft.ones(3, 4))
    optimizer = make([p], lr=0.5, **({"momentum": 0.9} if make is weft.optim.SGD else {}))
    row, shared = p.detach()[1], p.data
    (state, *_) = optimizer.state[p].values()
    first = state[0]
    for k in range(3):
        optimizer.zero_grad()
        (p * p).sum().backward()
        optimizer.step()
        assert p.requires_grad and p.is_leaf
        np.testing.assert_array_equal(row.numpy(), p.detach().numpy()[1])
        np.testing.assert_array_equal(shared.numpy(), p.detach().numpy())
        np.testing.assert_array_equal(first.numpy(), state.numpy()[0])
        assert float(row[0]) < 1.0 and p._version == k + 1


# ------------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("order", ["zbsi", "zibs", "zbcs"])
def test_a_batch_that_does_not_fit_changes_nothing_and_half_of_it_can_be_tried(order: str) -> None:
    training, other = Training(64), Training(64)
    small, big = rows(16), rows(20_000)
    for t in (training, other):
        t.step(small, order)
        t.optimizer.zero_grad()
    before = training.state()
    with room_for(5 << 20), pytest.raises(MemoryError) as refused:
        training.step(big, order)
    assert any("are as they were before" in note for note in refused.value.__notes__)
    assert same(training.state(), before)
    with room_for(5 << 20):
        training.step(small, order)
    other.step(small, order)
    assert same(training.state(), other.state())


def test_a_compiled_step_that_does_not_fit_changes_nothing() -> None:
    training = Training(64)
    step = weft.compile(lambda x: training.step(x).detach())
    small, big = rows(16), rows(20_000)
    for _ in range(2):
        step(small)
    before = training.state()
    with room_for(5 << 20):
        with pytest.raises(MemoryError):
            step(big)
        assert same(training.state(), before)
        step(small)
    assert not same(training.state(), before)


def test_a_dummy_device_without_memory() -> None:
    device = open_device("dummy:3")
    assert isinstance(device, DummyDevice)
    training = Training(8, "dummy:3")
    small, big = rows(6, "dummy:3"), rows(4_000, "dummy:3")
    training.step(small, "zbs")
    training.optimizer.zero_grad()
    before = training.state()
    with weft.memory_limit(device.used_bytes() + (8 << 10), "dummy:3"), pytest.raises(MemoryError):
        training.step(big, "zbsi")
    assert same(training.state(), before)
    training.step(small, "zbs")


def test_gradients_that_were_accumulated_before_are_kept() -> None:
    training = Training(64)
    small, big = rows(16), rows(20_000)
    training.step(small, "zbi")
    grads = [p.grad for p in training.model.parameters()]
    weft.realize(*(g for g in grads if g is not None))
    before = training.state()
    with room_for(5 << 20), pytest.raises(MemoryError):
        loss = training.loss(big)
        loss.backward()
        loss.item()
    assert same(training.state(), before)
    training.loss(small).backward()
    training.optimizer.step()
    assert same(training.state(), training.state())


def test_a_loop_of_ones_own_is_undone_wholly() -> None:
    weft.manual_seed(0)
    ws = [weft.randn(64, 64).mul(0.1).requires_grad_() for _ in range(4)]
    weft.realize(*ws)
    before = [w.numpy().copy() for w in ws]

    def step(x: weft.Tensor) -> weft.Tensor:
        y = x
        for w in ws:
            w.grad = None
            y = (y @ w).relu()
        loss = y.square().mean()
        loss.backward()
        with weft.no_grad():
            for w in ws:
                assert w.grad is not None
                w -= 0.1 * w.grad
        return loss

    with room_for(8 << 20):
        with pytest.raises(MemoryError):
            step(rows(40_000, columns=64)).item()
        assert all(np.array_equal(w.numpy(), b) for w, b in zip(ws, before, strict=True))
        step(rows(16, columns=64)).item()
    assert not any(np.array_equal(w.numpy(), b) for w, b in zip(ws, before, strict=True))


def test_what_the_failed_computation_was_made_of_has_happened() -> None:
    x = weft.arange(4.0).realize()
    count, other = weft.tensor(0.0), weft.tensor([1.0, 2.0])
    with weft.no_grad():
        x[0] = 5.0
        x.mul_(2)
        other += 1
        count += x.sum()  # computed by itself, as it shares work with what fails
    with room_for(1 << 20), pytest.raises(MemoryError):
        (x[:, None, None] * weft.ones(4, 4096, 4096)).cumsum(1).numpy()
    assert x.tolist() == [10.0, 2.0, 4.0, 6.0] and other.tolist() == [2.0, 3.0] and count.item() == 22.0


def test_views_go_back_together() -> None:
    x = weft.zeros(4, 4).realize()
    row = x[1]
    wide = rows(4096, columns=1).exp() * rows(2048, columns=1).exp().T
    with room_for(1 << 20), pytest.raises(MemoryError):
        row.add_(wide.cumsum(0).cumsum(1)[0, :4])
        x.numpy()
    assert x.tolist() == [[0.0] * 4] * 4 and row.tolist() == [0.0] * 4
    row.add_(1)
    assert x[1].tolist() == [1.0] * 4


def test_a_closure_that_fails_leaves_lbfgs_as_it_was() -> None:
    weft.manual_seed(0)
    model, x = nn.Linear(4, 3), rows(6)
    optimizer = weft.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    calls = [0]

    def closure() -> weft.Tensor:
        calls[0] += 1
        if calls[0] == 5:
            raise MemoryError("no room")
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = [p.numpy().copy() for p in model.parameters()], repr(optimizer.memory)
    with pytest.raises(MemoryError):
        optimizer.step(closure)
    assert all(np.array_equal(p.numpy(), b) for p, b in zip(model.parameters(), before[0], strict=True))
    assert repr(optimizer.memory) == before[1]
    optimizer.step(closure)


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("along", [False, True], ids=["step", "step with gradients"])
def test_a_kernel_that_fails_at_any_place_of_an_eager_step(
    along: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that are computed along, since they are read after steps, are left to whoever reads them then."""
    monkeypatch.setattr(pending, "OFTEN", 0 if along else 1 << 30)
    device = open_device("dummy:2")
    assert isinstance(device, DummyDevice)
    training, x = Training(4, "dummy:2"), rows(5, "dummy:2")
    for _ in range(2):
        training.step(x)
    training.optimizer.zero_grad()
    before = training.state()
    training.step(x)
    after = training.state()
    training.reset(before)
    launches = device.clock.launches
    training.step(x)
    count = device.clock.launches - launches
    for k in random.Random(1).sample(range(count), min(count, 3 + FUZZ)):
        training.reset(before)
        device.faults = Faults(launches=frozenset({k}))
        if along:
            training.step(x)
            device.faults = Faults()
        else:
            with pytest.raises(weft.DeviceError):
                training.step(x)
            device.faults = Faults()
            assert same(training.state(), before), k
            training.step(x)
        assert same(training.state(), after), k


def test_a_kernel_that_fails_at_any_place_of_a_compiled_step() -> None:
    device = open_device("dummy:2")
    assert isinstance(device, DummyDevice)
    training, x = Training(4, "dummy:2"), rows(5, "dummy:2")
    step = weft.compile(lambda x: training.step(x).detach())
    for _ in range(3):
        step(x)
    before = training.state()
    launches = device.clock.launches
    step(x)
    count, after = device.clock.launches - launches, training.state()
    for k in random.Random(2).sample(range(count), min(count, 4 + FUZZ)):
        training.reset(before)
        device.faults = Faults(launches=frozenset({k}))
        with pytest.raises(weft.DeviceError):
            step(x)
        device.faults = Faults()
        assert same(training.state(), before), k
        step(x)
        assert same(training.state(), after), k


# ------------------------------------------------------------------------------------------------ interrupts


class Interrupt:
    """Raises KeyboardInterrupt at event number `at` (a call, line or return) in weft's code.

    Not where a `with` block is left: Python looks for signals within it, and after its end, but not in between, so a
    lock is always released. A trace function could come in between.
    """

    def __init__(self, at: int) -> None:
        self.at, self.count, self.where = at, 0, ""
        self.lines: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        name = frame.f_code.co_filename
        if "/weft/" not in name or "/tests/" in name or frame.f_code.co_name == "__del__":
            return None
        line, before = frame.f_lineno, self.lines.get(frame, 0)
        self.lines[frame] = line
        if event == "return":
            del self.lines[frame]
        elif event == "line" and line < before and linecache.getline(name, line).lstrip().startswith("with "):
            return self
        self.count += 1
        if self.count == self.at:
            self.where = f"{name}:{frame.f_lineno} {event} {frame.f_code.co_qualname}"
            sys.settrace(None)
            self.lines.clear()  # what a frame holds is forgotten with it
            raise KeyboardInterrupt
        return self

    def during(self, run: Callable[[], object]) -> bool:
        before = sys.gettrace()
        try:
            sys.settrace(self)
            run()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
            self.lines.clear()
        return False


def is_bn(k: str) -> bool:
    return "running" in k or "tracked" in k


def is_step(k: str) -> bool:
    return not is_bn(k) and not k.startswith("grad")


PARTS = {
    "step": is_step,
    "first batch norm": lambda k: is_bn(k) and k.startswith("model 1."),
    "second batch norm": lambda k: is_bn(k) and k.startswith("model 4."),
    "gradients": lambda k: k.startswith("grad"),
}
"""What changes wholly or not at all."""


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # in a weak reference's callback
@pytest.mark.parametrize("compiled", [False, True])
def test_an_interrupt_leaves_no_half_step(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DETERMINISTIC", "1")  # states are compared to the last bit
    training, x = Training(4), rows(5)
    step: Callable[[weft.Tensor], weft.Tensor] = training.step
    if compiled:
        step = weft.compile(lambda x: training.step(x).detach())
    for _ in range(3):
        step(x)
    if not compiled:
        training.optimizer.zero_grad()
    before = training.state()
    step(x)
    after = training.state()
    training.reset(before)
    counts = list[int]()
    for _ in range(3):  # the trials' own way; what is learned on the way, or collected, changes the count
        training.reset(before)
        whole = Interrupt(-1)
        whole.during(lambda: step(x))
        assert same(training.state(), after)
        counts.append(whole.count)
    count = max(counts)
    seen: dict[str, set[str]] = {name: set() for name in PARTS}
    for at in _places(count, 20 + FUZZ):
        training.reset(before)
        trial = Interrupt(at)
        trial.during(lambda: step(x))
        assert weft.is_grad_enabled(), (at, trial.where)
        now = training.state()
        for name, part in PARTS.items():
            equal = close if name == "gradients" else same
            is_before, is_after = equal(now, before, part), equal(now, after, part)
            none = name == "gradients" and all(v is None for k, v in now.items() if part(k))
            assert is_before or is_after or none, (at, name, trial.where)
            seen[name].add("before" if is_before else "after")
        # and the next one is right
        training.reset(before)
        step(x)
        assert same(training.state(), after), (at, trial.where)
    assert seen["step"] == {"before", "after"}


def _places(count: int, n: int) -> Iterator[int]:
    """Some of the events, the last ones, where all is written, and one that no step reaches."""
    chosen = set(random.Random(n).sample(range(1, count + 1), min(n, count)))
    yield from sorted(chosen | set(range(max(1, count - 15), count + 1)) | {4 * count})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_schedulers_and_averages_change_wholly() -> None:
    training = Training(4)
    optimizer = training.optimizer
    inner = [
        weft.optim.lr_scheduler.StepLR(optimizer, 1),
        weft.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    ]
    scheduler = weft.optim.lr_scheduler.SequentialLR(optimizer, inner, [2])
    average = weft.optim.swa_utils.AveragedModel(training.model)
    average.update_parameters(training.model)

    def state() -> Any:
        rates = [(g["lr"], g.rate.item()) for g in optimizer.param_groups]
        averaged = {k: t.numpy().copy() for k, t in average.state_dict().items()}
        return repr((scheduler.state_dict(), rates)), averaged

    whole = Interrupt(-1)
    whole.during(scheduler.step)
    steps, averages = set[str](), set[int]()
    for at in [*random.Random(3).sample(range(1, whole.count), 15), whole.count, 4 * whole.count]:
        before, _ = state()
        Interrupt(at).during(scheduler.step)
        now, _ = state()
        steps.add("same" if now == before else "next")
        epoch = scheduler.last_epoch
        assert sum(s.last_epoch for s in inner) <= epoch <= sum(s.last_epoch for s in inner) + 2
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(group.rate.item())
    assert steps == {"same", "next"}
    whole = Interrupt(-1)
    whole.during(lambda: average.update_parameters(training.model))
    for at in random.Random(3).sample(range(1, whole.count), 8):
        for p in training.model.parameters():
            p.data += 1
        _, before = state()
        Interrupt(at).during(lambda: average.update_parameters(training.model))
        _, now = state()
        counted = int(now["n_averaged"]) - int(before["n_averaged"])
        moved = {not np.array_equal(now[k], before[k]) for k in before if k.endswith(("weight", "bias"))}
        assert counted in (0, 1) and moved == {bool(counted)}, at
        averages.add(counted)
    assert 0 in averages


# ------------------------------------------------------------------------------------------------ bounds


def test_a_count_that_nobody_reads_does_not_grow() -> None:
    model, x = nn.BatchNorm1d(4), rows(5)
    for _ in range(3):
        model(x).sum().item()
    tracked = model.num_batches_tracked
    assert tracked is not None and not tracked.value.node.inputs and tracked.item() == 3
    count, y = weft.tensor([1.0]), weft.tensor([2.0])
    for _ in range(2 * changes.LONG):
        count += 1
        (y * 3).tolist()
    assert len(weft.ir.graph.toposort([count.value.node])) <= changes.LONG + 2
    assert count.item() == 2 * changes.LONG + 1


def test_what_was_before_is_let_go_when_a_step_is_computed() -> None:
    training, x = Training(4), rows(5)
    training.step(x, "zbsi")
    training.optimizer.zero_grad()
    changes.settle()
    assert not changes.mine.changed
