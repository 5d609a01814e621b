"""What a compiled function's names stand for may change: it is recorded again, and not where that is its own doing."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.core.execute.names import MAX_ENTRIES, Names, is_installed
from weft.sessions.session import session

Changed = tuple[Callable[..., Any], Callable[[], object]]
"""A function of a tensor, and a change of what its names stand for."""

scale: Any = 2.0
table: dict[str, Any] = {"bias": 1.0, "inner": [1.0, {"deep": 1.0}]}
weight: Any = weft.ones(3)
activation: Any = weft.relu
pair: Any = (1.0, [2.0])
settings = types.ModuleType("settings_of_a_test")
settings.rate = 1.0  # pyright: ignore[reportAttributeAccessIssue]


def helper(x: weft.Tensor) -> weft.Tensor:
    return x * scale + 1


def set_global(name: str, value: Any) -> Callable[[], object]:
    return lambda: globals().__setitem__(name, value)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    for name, value in (
        ("scale", 2.0), ("weight", weft.ones(3)), ("activation", weft.relu), ("pair", (1.0, [2.0])),
        ("table", {"bias": 1.0, "inner": [1.0, {"deep": 1.0}]}), ("helper", helper),
    ):  # fmt: skip
        monkeypatch.setitem(globals(), name, value)
    monkeypatch.setattr(settings, "rate", 1.0)


@dataclass
class Options:
    rate: float = 1.0
    shifts: list[float] = field(default_factory=lambda: [1.0, 2.0])


@dataclass(slots=True)
class Slotted:
    rate: float = 1.0


class Mode(Enum):
    UP = 1
    DOWN = -1


class Model:
    """A class of the user's that is no module."""

    gain = 1.0

    def __init__(self) -> None:
        self.options, self.steps = Options(), 0
        self.layers: list[Any] = [lambda x: x + 1]

    def __call__(self, x: weft.Tensor) -> weft.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.scaled(x) * self.gain

    def scaled(self, x: weft.Tensor) -> weft.Tensor:
        return x * self.options.rate


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.options = Options()
        self.extra = {"shift": 1.0}
        self.tensors = [weft.ones(3)]

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return x * self.options.rate + self.extra["shift"] + self.tensors[0]


def around() -> Changed:
    k = 1.0

    def change() -> None:
        nonlocal k
        k = 4.0

    return lambda x: x * k, change


def of_options(change: Callable[[Options], object]) -> Changed:
    o = Options()
    return lambda x: x * o.rate + sum(o.shifts), lambda: change(o)


def of_model(change: Callable[[Model], object], call: Callable[[Model], Any] = lambda m: m) -> Changed:
    m = Model()
    return call(m), lambda: change(m)


def of_module(change: Callable[[Configured], object]) -> Changed:
    m = Configured()
    return m, lambda: change(m)


def of_object(x: Any, read: Callable[[Any], float], change: Callable[[Any], object]) -> Changed:
    return lambda t: t * read(x), lambda: change(x)


def replaced_layer(m: Model) -> None:
    m.layers[0] = lambda x: x - 1


CHANGES: dict[str, Callable[[], Changed]] = {
    "global number": lambda: (lambda x: x * scale, set_global("scale", 5.0)),
    "global by another function": lambda: (lambda x: helper(x), set_global("scale", 5.0)),
    "global function": lambda: (lambda x: helper(x), set_global("helper", lambda x: x - 1)),
    "global of the library": lambda: (lambda x: activation(-x), set_global("activation", weft.exp)),
    "global tensor": lambda: (lambda x: x * weight, set_global("weight", weft.ones(3) * 7)),
    "in a tuple": lambda: (lambda x: x * pair[0] + pair[1][0], lambda: pair[1].__setitem__(0, 9.0)),
    "in a dict": lambda: (lambda x: x + table["bias"], lambda: table.__setitem__("bias", 7.0)),
    "deep inside": lambda: (
        lambda x: x + table["inner"][1]["deep"], lambda: table["inner"][1].__setitem__("deep", 7.0)),
    "a new entry": lambda: (lambda x: x + len(table), lambda: table.__setitem__("more", 1)),
    "variable around": around,
    "of a module of Python": lambda: (lambda x: x * settings.rate, lambda: setattr(settings, "rate", 3.0)),
    "attribute": lambda: of_options(lambda o: setattr(o, "rate", 3.0)),
    "list in an object": lambda: of_options(lambda o: o.shifts.append(5.0)),
    "slot": lambda: of_object(Slotted(), lambda o: o.rate, lambda o: setattr(o, "rate", 3.0)),
    "by name": lambda: of_object(Options(), lambda o: getattr(o, "rate"), lambda o: setattr(o, "rate", 3.0)),
    "member of an enum": lambda: of_object(
        {"mode": Mode.UP}, lambda o: o["mode"].value, lambda o: o.__setitem__("mode", Mode.DOWN)),
    "object": lambda: of_model(lambda m: setattr(m, "options", Options(3.0))),
    "object in an object": lambda: of_model(lambda m: setattr(m.options, "rate", 3.0)),
    "own attribute over the class's": lambda: of_model(lambda m: setattr(m, "gain", 3.0)),
    "list of functions": lambda: of_model(replaced_layer),
    "method": lambda: of_model(lambda m: setattr(m.options, "rate", 3.0), lambda m: m.scaled),
    "partial": lambda: of_model(
        lambda m: setattr(m.options, "rate", 3.0), lambda m: partial(lambda n, x: n.scaled(x), m)),
    "object in a module": lambda: of_module(lambda m: setattr(m.options, "rate", 3.0)),
    "dict in a module": lambda: of_module(lambda m: m.extra.__setitem__("shift", 3.0)),
    "list in a module": lambda: of_module(lambda m: m.tensors.__setitem__(0, weft.ones(3) * 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    f, change = CHANGES[name]()
    x = weft.tensor([1.0, 2.0, 3.0])
    compiled, incremental = weft.compile(f), session(f)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(x).numpy(), f(x).numpy())
        np.testing.assert_array_equal(incremental(x).numpy(), f(x).numpy())
    before = f(x).tolist()
    change()
    assert f(x).tolist() != before, "the change changes something"
    for _ in range(2):
        np.testing.assert_array_equal(compiled(x).numpy(), f(x).numpy())
        np.testing.assert_array_equal(incremental(x).numpy(), f(x).numpy())


def test_an_attribute_of_a_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Model()
    f = weft.compile(m)
    assert f(weft.ones(1)).item() == 2.0
    monkeypatch.setattr(Model, "gain", 3.0)
    assert f(weft.ones(1)).item() == 6.0


class Trainer:
    """A method whose object counts steps, and whose optimizer has a method of that name."""

    def __init__(self) -> None:
        self.step, self.runs, self.w = 0, 0, nn.Parameter(weft.ones(3))
        self.optimizer = weft.optim.SGD([self.w], lr=0.1)
        self.losses: list[float] = []

    def train(self, x: weft.Tensor) -> weft.Tensor:
        self.runs += 1
        loss = (self.w * x).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def test_what_the_function_does_not_read_changes_nothing() -> None:
    t = Trainer()
    f = weft.compile(t.train)
    for k in range(6):
        t.step += 1
        t.losses.append(f(weft.ones(3)).item())
        if k == 2:
            runs = t.runs
    assert t.runs == runs
    np.testing.assert_allclose(t.losses, [3.0 - 0.3 * k for k in range(6)], rtol=1e-5)


def test_what_the_function_changes_itself_is_its_own() -> None:
    seen: list[int] = []
    count = 0

    def f(x: weft.Tensor) -> weft.Tensor:
        nonlocal count
        count += 1
        seen.append(len(seen))
        return x * 2

    compiled = weft.compile(f)
    for n in (1, 2, 1, 2, 1):
        assert compiled(weft.ones(n)).tolist() == [2.0] * n
    assert count == len(seen) == 2


def test_equal_numbers_and_what_comes_back_are_not_recorded_again() -> None:
    runs: list[int] = []

    def f(x: weft.Tensor) -> weft.Tensor:
        runs.append(0)
        return x * scale + table["bias"]

    compiled = weft.compile(f)
    for value in (2.0, float("2"), 3.0, 2.0, 3.0, float("3")):
        globals()["scale"] = value
        table["bias"] = value + 0.5
        assert compiled(weft.ones(1)).item() == value * 2 + 0.5
    assert len(runs) == 2
    globals()["scale"] = float("nan")
    for _ in range(3):
        assert np.isnan(compiled(weft.ones(1)).item())
    assert len(runs) == 3


def test_a_name_that_changes_at_each_call_is_told() -> None:
    f = weft.compile(lambda x: x * scale)
    with pytest.warns(UserWarning, match="since scale has changed"):
        for k in range(12):
            globals()["scale"] = k + 0.5
            assert f(weft.ones(1)).item() == k + 0.5


def test_a_flag_that_the_function_turns_is_right() -> None:
    up = False

    def f(x: weft.Tensor) -> weft.Tensor:
        nonlocal up
        up = not up
        return x if up else -x

    compiled = weft.compile(f)
    assert [compiled(weft.ones(1)).item() for _ in range(4)] == [1.0, -1.0, 1.0, -1.0]


def test_of_a_large_container_the_length_counts() -> None:
    many = [1.0] * (MAX_ENTRIES + 1)
    f = weft.compile(lambda x: x * len(many))
    assert f(weft.ones(1)).item() == MAX_ENTRIES + 1
    many.append(1.0)
    assert f(weft.ones(1)).item() == MAX_ENTRIES + 2


def test_objects_that_hold_each_other_are_looked_at_once() -> None:
    a, b = Options(), Options()
    a.shifts.append(b)  # pyright: ignore[reportArgumentType]
    b.shifts.append(a)  # pyright: ignore[reportArgumentType]
    f = weft.compile(lambda x: x * a.rate * b.rate)
    assert f(weft.ones(1)).item() == 1.0
    b.rate = 3.0
    assert f(weft.ones(1)).item() == 3.0


def test_hooks_on_gradients_are_seen() -> None:
    w = weft.ones(3, requires_grad=True)

    def f(x: weft.Tensor) -> weft.Tensor | None:
        (w * x).sum().backward()
        g, w.grad = w.grad, None
        return g

    compiled = weft.compile(f)
    assert compiled(weft.ones(3)).tolist() == [1.0] * 3  # pyright: ignore[reportOptionalMemberAccess]
    handle = w.register_hook(lambda g: g * 2)
    assert compiled(weft.ones(3)).tolist() == [2.0] * 3  # pyright: ignore[reportOptionalMemberAccess]
    handle.remove()
    assert compiled(weft.ones(3)).tolist() == [1.0] * 3  # pyright: ignore[reportOptionalMemberAccess]


def test_hooks_on_the_gradients_of_arguments_are_theirs() -> None:
    def f(x: weft.Tensor) -> weft.Tensor:
        (x * 3).sum().backward()
        g, x.grad = x.grad, None
        assert g is not None
        return g

    compiled = weft.compile(f)
    x, y = weft.ones(2, requires_grad=True), weft.ones(2, requires_grad=True)
    x.register_hook(lambda g: g * 10)
    for _ in range(3):
        assert compiled(x).tolist() == [30.0] * 2
        assert compiled(y).tolist() == [3.0] * 2


@pytest.mark.parametrize(
    ("module", "installed"),
    [
        ("weft.nn.module", True), ("os.path", True), ("numpy.linalg", True), (None, True),
        ("__main__", False), (__name__, False),
    ],
)  # fmt: skip
def test_installed_packages_are_taken_not_to_change(module: str | None, installed: bool) -> None:
    assert is_installed(module) is installed


def test_nothing_is_noted_of_a_function_of_its_arguments() -> None:
    names = Names()
    names.enter(lambda x, y: x.exp() * y)
    names.end()
    assert names.are_none and names.are_as_they_were() and not names.are_gone()
