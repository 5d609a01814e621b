"""Edits of captured tensors: what a compiled function has found of them is found anew after one, and only then."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import nn
from weft.core.args.handle import wrap
from weft.core.compile import plan_replay, replay
from weft.core.execute import edits, ownership
from weft.core.execute.changes import restored_on_error

rng = np.random.default_rng(11)


def floats(*shape: int) -> weft.Tensor:
    return weft.tensor(rng.standard_normal(shape).astype(np.float32))


def test_a_note_is_another_number() -> None:
    some = edits.Edits()
    first = some.latest()
    assert some.latest() == first
    some.note()
    assert some.latest() != first


def withdrawn(t: weft.Tensor) -> None:
    with pytest.raises(KeyError), restored_on_error([t]):
        t.data = floats(2, 4)
        raise KeyError


def left_in_a_trace(t: weft.Tensor) -> None:
    def fn(x: weft.Tensor) -> float:
        t.data = floats(2, 4)
        return float(x.sum()) + 1

    weft.compile(fn)(floats(3))


def by_a_step(t: weft.Tensor) -> None:
    new = floats(2, 4)

    def fn(x: weft.Tensor) -> weft.Tensor:
        t.data = new * x
        return x

    weft.compile(fn)(weft.tensor(2.0))


def by_a_thread(t: weft.Tensor) -> None:
    thread = threading.Thread(target=lambda: setattr(t, "data", floats(2, 4)))
    thread.start()
    thread.join()


EDITS: dict[str, Callable[[weft.Tensor], object]] = {
    "data": lambda t: setattr(t, "data", floats(2, 4)),
    "data of another dtype": lambda t: setattr(t, "data", floats(3, 4).half()),
    "resize": lambda t: t.resize_(2, 4),
    "in another shape": lambda t: t.unsqueeze_(0),
    "copied to": lambda t: t.copy_(floats(3, 4)),
    "an element": lambda t: t.__setitem__((0, 1), 7.0),
    "by a view": lambda t: t[0].mul_(3.0),
    "gradients": lambda t: t.requires_grad_(),
    "constructed again": lambda t: t.__init__(floats(3, 4)),
    "withdrawn": withdrawn,
    "left in a trace": left_in_a_trace,
    "by a step": by_a_step,
    "by a thread": by_a_thread,
    "not computed": lambda t: t.mul_(2.0).add_(1.0),
}  # fmt: skip


@pytest.mark.parametrize("how", EDITS)
@pytest.mark.parametrize("with_state", [False, True])
def test_edits_of_captured_tensors_are_seen(how: str, with_state: bool) -> None:
    t, count = floats(3, 4), weft.zeros(())

    def fn(x: weft.Tensor) -> weft.Tensor:
        if with_state:
            count.add_(1.0)
        return (t * x).sum(-1) + t.mean() * (t.numel() + 10 * t.requires_grad)

    f, x = weft.compile(fn), weft.tensor(1.5)
    for turn in range(3):
        for _ in range(3):
            np.testing.assert_allclose(f(x).detach().numpy(), fn(x).detach().numpy(), rtol=1e-5, atol=1e-6)
            if with_state:
                count.sub_(1.0)
        if turn < 2:
            EDITS[how](t)
    assert not with_state or count.item() == 9


def test_state_dicts_and_modes_are_seen() -> None:
    def made() -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.Linear(4, 2))

    net, other = made(), made()
    f, x = weft.compile(lambda x: net(x)), floats(5, 4)
    loaded = lambda: net.load_state_dict(other.state_dict())  # noqa: E731
    for change in (net.eval, loaded, net.train, net.half, net.float, net.eval):
        change()
        given = x.to(net[0].weight.dtype)
        for _ in range(2):
            found, expected = f(given).detach().float(), net(given).detach().float()
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("count", [5, 12])
def test_steps_that_write_in_place_are_no_edits(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_replay, "sole_thread", lambda: True)
    monkeypatch.setattr(replay, "sole_thread", lambda: True)
    state = [weft.zeros(8).realize() for _ in range(count)]

    def fn(x: weft.Tensor) -> weft.Tensor:
        for s in state:
            s.add_(x)
            s.reshape(2, 4)
        return state[0].sum() + 0

    f, x = weft.compile(fn), weft.tensor(1.0)
    f(x)
    before = edits.tensors.latest()
    memories = [id(s.value.node.storage.memory) for s in state]
    for _ in range(4):
        f(x)
    assert edits.tensors.latest() == before
    assert [id(s.value.node.storage.memory) for s in state] == memories
    held = state[2].value  # somebody sees the memory: it is not written over, and that is an edit
    f(x)
    assert edits.tensors.latest() != before and wrap(held).tolist() == [5.0] * 8
    assert all(s.tolist() == [6.0] * 8 for s in state)


def test_views_of_state_are_swept_and_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_replay, "sole_thread", lambda: True)
    monkeypatch.setattr(replay, "sole_thread", lambda: True)  # no other one knows of these
    state = weft.zeros(2, 3).realize()

    def fn(x: weft.Tensor) -> weft.Tensor:
        state.add_(x)
        return state.reshape(6) + 0

    f, x = weft.compile(fn), weft.tensor(1.0)
    for _ in range(3):
        f(x)
    assert state.look is None or state.look.shared.are_only(state)
    view = state[1]
    f(x)
    assert view.tolist() == [4.0] * 3
    del view
    f(x)
    view = state.T
    f(x)
    assert view.tolist() == [[6.0] * 2] * 3


def assignments(path: Path) -> Iterator[tuple[str, str]]:
    """The functions of a file in which `.value` of something is set, and of what."""

    class Finder(ast.NodeVisitor):
        def __init__(self) -> None:
            self.names: list[str] = []
            self.found: list[tuple[str, str]] = []

        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            self.names.append(node.name)
            self.generic_visit(node)
            self.names.pop()

        def visit_Attribute(self, node: ast.Attribute) -> None:
            if node.attr == "value" and isinstance(node.ctx, ast.Store):
                self.found.append((self.names[-1], ast.unparse(node.value)))
            self.generic_visit(node)

    finder = Finder()
    finder.visit(ast.parse(path.read_text()))
    yield from finder.found


MADE = {
    "wrap", "wrap_constant", "wrap_untracked", "standing_for", "result", "__deepcopy__", "_make_subclass", "_unpickle",
    "of_class", "same_as", "_fresh_holders", "_fresh_untaken",
    "_fresh",
}  # fmt: skip
"""Functions in which the tensor is new."""

NOTED = {"stand_for", "rebind", "requires_grad_"}
"""Functions that note what they do."""

OTHERS = {"__init__ self", "__enter__ cls"}
"""No tensors: nodes of a tape, a structure's constants; the class itself."""


def test_tensors_stand_for_other_values_in_named_places_only() -> None:
    folder = Path(weft.__file__).parent / "core"
    for path in folder.rglob("*.py"):
        for function, of in assignments(path):
            assert function in MADE | NOTED or f"{function} {of}" in OTHERS, (
                f"{path}: {function} sets {of}.value"
            )


def test_writing_over_the_only_elements_that_are_watched_is_an_edit() -> None:
    t = weft.ones(4).clone().realize()
    assert ownership.watch_writes(t.value.node.storage)
    before = edits.elements.latest()
    ownership.to_be_written(t)  # its last storage goes, and with it who watches
    assert edits.elements.latest() != before


@pytest.mark.parametrize("others", [False, True])
def test_a_session_sees_steps_where_no_other_thread_runs(
    others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (plan_replay, replay, ownership):
        monkeypatch.setattr(module, "sole_thread", lambda: True)
    w, b, x = (weft.tensor(np.full((4, 4), n, np.float32)) for n in (1, 2, 3))
    s = weft.session((lambda x: x @ w + b) if others else (lambda x: x @ w))
    update = weft.compile(lambda g: w.sub_(g))
    for n in range(6):
        x[0] = float(n)
        s(x)
        s(x)
        update(weft.tensor(np.ones((4, 4), np.float32)))
        wanted = x.numpy() @ w.numpy() + (b.numpy() if others else 0)
        np.testing.assert_array_equal(s(x).numpy(), wanted)
