"""Plans of loops written out: the numbers of steps in launches, which plans of other lengths share."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from weft.backends.protocol import Commands, CopyBytes, Device, Launch
from weft.ir.index import Var
from weft.scheduler.plan import KernelInfo, Plan
from weft.scheduler.unrolled import Item, Repeat, Unrolled

N, M = Var("n", 0, 64), Var("m", 0, 64)
COUNT = 2
"""Runtime variables of the plans."""


class Linked:
    """A device whose executables are the commands."""

    def link(self, codes: Any, commands: Commands) -> Any:
        return commands


def launch(*variables: int) -> Item:
    return Launch(0, (0, 1), variables), KernelInfo("kernel", 0, 0)


def unrolled(*items: Item) -> Unrolled:
    return Unrolled(cast("Device", Linked()), items, 2, (), 0, (), (), (N, M), ())


def loop(reverse: bool = False) -> Unrolled:
    """A launch; n launches of two kinds, by how many are left, that take m, the step's number and 7; a copy each."""
    copy: Item = CopyBytes(0, 1, 4), KernelInfo("copy", 0, 0)
    even, odd = (launch(1, -1, COUNT + 7), copy), (launch(-1), copy)
    return unrolled(launch(0), Repeat(N, reverse, -1, (odd, even, odd, even)))


def given(plan: Plan, n: int, m: int) -> list[tuple[int, ...]]:
    """The values that launches take."""
    values = (n, m, *plan.constants)
    assert len(values) == plan.commands.variables and len(plan.steps) == len(plan.commands.steps)
    return [tuple([values[v] for v in s.variables]) for s in plan.commands.steps if isinstance(s, Launch)]


def expected(n: int, m: int, reverse: bool) -> list[tuple[int, ...]]:
    steps = [n - 1 - k if reverse else k for k in range(n)]
    return [(n,), *[(m, t, 7) if (n - 1 - k) % 2 == 0 else (t,) for k, t in enumerate(steps)]]


@pytest.mark.parametrize("reverse", [False, True])
def test_each_length_has_its_own_numbers(reverse: bool) -> None:
    made = loop(reverse)
    for n in (3, 7, 0, 1, 6, 64, 2):
        assert given(made.plan({"n": n, "m": 5}), n, 5) == expected(n, 5, reverse)


def test_launches_of_a_step_are_made_once() -> None:
    """To write them out anew took a third of a step of an LSTM."""
    made = loop()
    short, long = (made.plan({"n": n, "m": 5}).commands.steps for n in (5, 7))
    assert all(a is b for a, b in zip(short[1:], long[1:], strict=False))
    assert len(made.plan({"n": 7, "m": 5}).constants) == 8, "seven steps and a number"


def test_loops_in_loops_have_the_numbers_of_both() -> None:
    inner = Repeat(M, False, -2, ((launch(-1, -2),),) * 4)
    made = unrolled(Repeat(N, True, -1, ((launch(-1), inner),) * 4))
    for n, m in ((2, 3), (3, 1), (2, 3), (4, 0)):
        own = [[(t,), *[(t, u) for u in range(m)]] for t in reversed(range(n))]
        assert given(made.plan({"n": n, "m": m}), n, m) == [x for rows in own for x in rows]


def test_threads_may_ask_for_plans_at_once() -> None:
    lengths = [1, 40, 3, 64, 8, 50, 2, 30]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            made = loop()
            with ThreadPoolExecutor(8) as pool:
                plans = list(pool.map(lambda n, made=made: made.plan({"n": n, "m": 5}), lengths))
            for n, plan in zip(lengths, plans, strict=True):
                assert given(plan, n, 5) == expected(n, 5, False)
    finally:
        sys.setswitchinterval(before)
