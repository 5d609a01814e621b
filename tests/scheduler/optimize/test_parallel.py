"""When kernels are spread over cores: by what they take, and by what else their plan has the cores do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scheduler.optimize.test_contraction import info
from weft.ir.loops import LoopKind
from weft.scheduler.optimize.parallel import BUSY_WAKES, in_company
from weft.scheduler.optimize.rules import schedule
from weft.testing.kernels import columns

ONE = info(64, 32)
WAKE, JOIN = ONE.costs.wake_ns, ONE.costs.join_ns


@pytest.mark.parametrize(
    ("works", "awake"),
    [
        ([2 * JOIN] * 3, False),  # over before the others are awake
        ([2 * JOIN] * 100, True),
        ([BUSY_WAKES * WAKE], True),
        ([JOIN / 2] * 1000, False),  # nothing to share
        ([JOIN / 2] * 1000 + [2 * JOIN] * 100, False),  # they would sleep in between
        ([JOIN / 2] * 100 + [2 * JOIN] * 100, True),
    ],
)
def test_cores_are_awake_in_plans_that_keep_them_busy(works: list[float], awake: bool) -> None:
    assert in_company(works, ONE).costs.wake_ns == (JOIN if awake else WAKE)


def test_one_core_has_no_company() -> None:
    one = replace(ONE, cores=1)
    assert in_company([WAKE] * 1000, one) is one


def test_what_is_small_is_shared_where_cores_are_awake() -> None:
    algorithm = columns(256, 256).algorithm  # half a megabyte in and out: 13 us of 40 GB/s
    awake = in_company([WAKE] * 100, ONE)
    tasks = [
        any(s.kind is LoopKind.PARALLEL for n in schedule(algorithm, i).nests.values() for s in n.loops)
        for i in (ONE, awake)
    ]
    assert tasks == [False, True]
