"""The context of a thread or task: what is entered in one does not show in another, and no end leaves it behind."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.autograd import context as module
from weft.autograd.context import Context, change, context, restore, switched
from weft.core.execute import tracing
from weft.overrides import BaseTorchFunctionMode, DisableTorchFunction

PAGE = Path(__file__).parents[2] / "manuals" / "caches.md"

W = weft.ones(2, requires_grad=True)


class Mode(BaseTorchFunctionMode):
    """A mode that changes nothing."""


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": weft.no_grad,
    "inference_mode": weft.inference_mode,
    "set_grad_enabled": lambda: weft.set_grad_enabled(False),
    "autocast": lambda: weft.autocast("cpu"),
    "device": lambda: weft.device("dummy:0"),
    "Mode": Mode,
    "DisableTorchFunction": DisableTorchFunction,
}


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    before = context()
    yield
    assert context() == before
    restore(before)


def in_thread(run: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("name", MODES)
def test_tasks_that_take_turns_do_not_see_each_others_modes(name: str) -> None:
    async def inside(turn: Callable[[], Awaitable[None]]) -> list[Context]:
        seen: list[Context] = []
        for _ in range(3):
            with MODES[name]():
                seen.append(context())
                await turn()
                seen.append(context())
            await turn()
        return seen

    async def outside(turn: Callable[[], Awaitable[None]]) -> list[Context]:
        seen: list[Context] = []
        for _ in range(6):
            seen.append(context())
            await turn()
        return seen

    async def both() -> list[list[Context]]:
        async def turn() -> None:
            await asyncio.sleep(0)

        return await asyncio.gather(inside(turn), outside(turn), inside(turn))

    first, other, second = asyncio.run(both())
    assert set(other) == {context()} and context() not in first + second
    if name != "Mode":  # each an object of its own
        assert len(set(first + second)) == 1


def test_what_tasks_compute_is_in_their_own_modes() -> None:
    async def made(mode: AbstractContextManager[Any], steps: int) -> set[tuple[bool, Any, str]]:
        seen: set[tuple[bool, Any, str]] = set()
        with mode:
            for _ in range(steps):
                await asyncio.sleep(0)
                product = W.reshape(1, 2) @ weft.ones(2, 2, device="cpu")
                seen.add((product.requires_grad, product.dtype, weft.zeros(1).device.type))
        return seen

    async def all_of_them() -> list[set[tuple[bool, Any, str]]]:
        return await asyncio.gather(
            made(weft.no_grad(), 5),
            made(weft.autocast("cpu"), 4),
            made(weft.device("dummy:0"), 5),
            made(switched(), 6),
        )

    assert asyncio.run(all_of_them()) == [
        {(False, weft.float32, "cpu")},
        {(True, weft.bfloat16, "cpu")},
        {(True, weft.float32, "dummy")},
        {(True, weft.float32, "cpu")},
    ]


def test_a_task_starts_with_the_modes_of_who_made_it() -> None:
    async def child() -> bool:
        await asyncio.sleep(0)
        return weft.is_grad_enabled()

    async def parent() -> tuple[bool, bool]:
        with weft.no_grad():
            task = asyncio.create_task(child())
        return await task, weft.is_grad_enabled()

    assert asyncio.run(parent()) == (False, True)


@pytest.mark.parametrize("name", MODES)
def test_threads_start_with_the_defaults(name: str) -> None:
    with MODES[name]():
        assert context() != Context()
        assert in_thread(context) == Context()


def test_a_task_that_a_traced_function_made_is_not_traced_after_it() -> None:
    async def later() -> tuple[Any, float]:
        return tracing.current(), float((weft.ones(3) * 2).sum())

    async def run() -> list[Any]:
        made: list[asyncio.Task[Any]] = []

        @weft.compile
        def f(x: weft.Tensor) -> weft.Tensor:
            if tracing.current() is not None:
                made.append(asyncio.create_task(later()))
            return x + 1

        assert f(weft.ones(2)).tolist() == [2.0, 2.0] and len(made) == 1
        return await made[0]

    assert asyncio.run(run()) == (None, 6.0)


def test_only_the_main_threads_defaults_hold_in_other_threads() -> None:
    before = weft.get_default_dtype()
    own, others = threading.Event(), threading.Event()
    seen: list[Any] = []

    def other() -> None:
        weft.set_default_dtype(weft.float16)
        weft.set_default_device("dummy:0")
        seen.append((weft.get_default_dtype(), weft.get_default_device().type))
        own.set()
        others.wait(30)
        seen.append((weft.get_default_dtype(), weft.get_default_device().type))
        weft.set_default_device(None)
        seen.append(weft.get_default_device().type)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert own.wait(30)
        assert (weft.get_default_dtype(), weft.get_default_device().type) == (before, "cpu")
        weft.set_default_dtype(weft.float64)
        weft.set_default_device("dummy:1")
        assert in_thread(lambda: (weft.get_default_dtype(), str(weft.get_default_device()))) == (
            weft.float64,
            "dummy:1",
        )
    finally:
        weft.set_default_dtype(before)
        weft.set_default_device(None)
        others.set()
        thread.join()
    assert seen == [(weft.float16, "dummy"), (weft.float16, "dummy"), "cpu"]


def test_blocks_that_end_in_another_order_leave_each_other_alone() -> None:
    grad, casts = weft.no_grad(), weft.autocast("cpu")
    grad.__enter__()
    casts.__enter__()
    grad.__exit__(None, None, None)
    assert weft.is_grad_enabled() and weft.is_autocast_enabled("cpu")
    casts.__exit__(None, None, None)
    assert not weft.is_autocast_enabled("cpu")


def test_a_block_is_entered_again_within_itself() -> None:
    block = weft.no_grad()
    with block, weft.enable_grad(), block:
        assert not weft.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), block:
        _ = 1 / 0
    assert weft.is_grad_enabled()


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(AssertionError):
        switched(gradient=False)
    with pytest.raises(ValueError, match="gradient"):
        change(gradient=False)


class Interrupt:
    """Raises KeyboardInterrupt where a call returns that sets the context: where Python looks for signals."""

    def __init__(self, variable: Any) -> None:
        self.variable, self.armed = variable, False

    def __call__(self, value: Context) -> None:
        self.variable.set(value)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", [n for n in MODES if n not in ("set_grad_enabled",)])
def test_an_interrupt_of_the_beginning_leaves_no_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, interrupt = MODES[name](), Interrupt(module._variable)
    monkeypatch.setattr(module, "_set", interrupt)
    before = context()
    for _ in range(2):
        interrupt.armed = True
        with pytest.raises(KeyboardInterrupt), block:
            raise AssertionError("it was entered")
        assert context() == before
    with block:  # the same object again
        assert context() != before
    assert context() == before


def test_a_failed_step_leaves_no_mode() -> None:
    from weft.core.execute.changes import restored_on_error

    stuck = switched(grad=False, inline=True, devices=("dummy:0",))
    with pytest.raises(KeyboardInterrupt), restored_on_error([]):
        stuck.__enter__()
        raise KeyboardInterrupt
    assert context() == Context()


def test_the_page_lists_every_field_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|[^|]+\|[^|]+\|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert dict(rows) == {name: repr(default) for name, default in Context._field_defaults.items()}
    assert [name for name, _ in rows] == list(Context._fields)
