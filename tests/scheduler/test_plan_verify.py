"""Plans with a mistake in who lives where are refused, before anything runs on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import weft
from weft import Tensor
from weft.ir.errors import IRError
from weft.scheduler import assembly, loops, memory


def chain() -> Tensor:
    """Products, of which each operand is stored; the first is needed again at the end."""
    x = weft.ones(24, 24).contiguous()
    first = x @ x
    y = first
    for k in range(3):
        y = (y + k).tanh() @ x
    return y @ first


def updates() -> Tensor:
    """A copy with two rows replaced while the old value is still needed, and one product of both."""
    x = weft.ones(9, 9).contiguous()
    y = x @ x
    return weft.index_copy(y, 0, weft.tensor([1, 3]), x[:2]) @ y


def scan() -> Tensor:
    """A loop whose carries change places, with values of its own in each step."""
    w = weft.ones(5, 5).contiguous()

    def step(carry: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        a, b = carry
        return ((a @ w + x).tanh() @ w, b.flip(0) + a[0]), (a @ w) @ w

    (a, b), ys = weft.scan(step, (weft.ones(3, 5), weft.ones(5)), weft.ones(4, 3, 5))
    return a.sum() + b.sum() + ys.sum()


def state() -> Tensor:
    """A state that is replaced, though what comes after needs its old value."""
    x = weft.ones(7, 7).contiguous().realize()

    @weft.compile
    def step() -> Tensor:
        old = x + 0
        x.copy_(old @ old)
        return old @ x

    return step()


def all_at_the_start(requests: Any) -> memory.Layout:
    return memory.Layout((0,) * len(requests), max((r.nbytes for r in requests), default=0))


def too_small(requests: Any) -> memory.Layout:
    found = PLAN(requests)
    return replace(found, nbytes=found.nbytes - memory.ALIGNMENT)


def forgotten(requests: Any) -> memory.Layout:
    return PLAN([replace(r, last=r.first) for r in requests])


def before(run: loops.Run, key: object) -> int:
    return run.take(run.block - run.layout.offsets[key])


PLAN = memory.plan
always = lambda *_: True  # noqa: E731

MISTAKES: dict[str, tuple[Any, str, Callable[..., Any], Callable[[], Tensor]]] = {
    "offsets are ignored": (memory, "plan", all_at_the_start, chain),
    "lifetimes are ignored": (memory, "plan", forgotten, chain),
    "the workspace is too small": (memory, "plan", too_small, chain),
    "all operands are overwritten": (assembly.Assembly, "shares", always, chain),
    "what is updated is not copied": (assembly.Assembly, "place", lambda *_: 0, updates),
    "all state is replaced": (assembly.Assembly, "may_replace", always, state),
    "carries change no places": (loops.LoopLayout, "_may_stay", always, scan),
    "a loop's places are before its block": (loops.Run, "_own", before, scan),
    "a loop's places are all one": (loops.Run, "_own", lambda r, _: r.take(r.block), scan),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, wrong, example = MISTAKES[name]
    monkeypatch.setattr(owner, attribute, wrong)
    with pytest.raises(IRError, match="plan: step"):
        example().realize()


def test_what_is_right_is_taken() -> None:
    for example in (chain, updates, scan, state):
        example().realize()
