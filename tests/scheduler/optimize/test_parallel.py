"""When kernels are spread over cores: by what they take, and by what else their plan has the cores do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scheduler.optimize.test_contraction import info
from weft.ir import dtypes, graph
from weft.ir.index import Var, evaluate
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import initial
from weft.ir.loops import Block, If, Loop, LoopKind
from weft.ir.ops import Op
from weft.ir.passes import pipeline
from weft.scheduler.kernelize.kernels import kernelize_all
from weft.scheduler.kernelize.spec import KernelSpec
from weft.scheduler.optimize.parallel import BUSY_WAKES, in_company, padded, spread
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
        ([JOIN / 2] * 400 + [2 * JOIN] * 100, True),  # half of the time each
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


Loops = list[tuple[int, LoopKind]]
SERIAL, PARALLEL = LoopKind.SERIAL, LoopKind.PARALLEL


@pytest.mark.parametrize(
    ("shape", "leading", "loops"),
    [
        ((48, 6), 0, [(48, SERIAL), (6, SERIAL)]),
        (
            (48, 6),
            1,
            [(16, PARALLEL), (3, SERIAL), (6, SERIAL)],
        ),  # the least number of equal tasks from 16 on
        ((48, 6), 2, [(16, PARALLEL), (18, SERIAL)]),
        ((34, 2), 1, [(17, PARALLEL), (2, SERIAL), (2, SERIAL)]),
        ((37, 2), 1, [(37, PARALLEL), (2, SERIAL)]),  # no other number divides it
        ((7, 5), 1, [(7, PARALLEL), (5, SERIAL)]),
        ((7, 5), 2, [(35, PARALLEL)]),
    ],
)
def test_leading_loops_become_one_of_equal_tasks(shape: tuple[int, int], leading: int, loops: Loops) -> None:
    k = initial(columns(*shape).algorithm)
    names = [s.var.name for s in k.nests["out"].loops]
    made = spread(k, "out", names[:leading], ONE)
    assert [(s.extent, s.kind) for s in made.nests["out"].loops] == loops


def test_loops_that_are_not_adjacent_are_not_one() -> None:
    k = initial(columns(48, 6).algorithm)
    outer, inner = (s.var.name for s in k.nests["out"].loops)
    made = spread(k, "out", [inner, outer], ONE)
    assert [(s.extent, s.kind) for s in made.nests["out"].loops] == [(48, SERIAL), (6, PARALLEL)]


@pytest.mark.parametrize(
    ("extent", "parallel", "whole"),
    [(1, True, 16), (17, True, 32), (17, False, 32), (16 * 17, True, 16 * 32), (16 * 17, False, 16 * 17)],
)
def test_extents_are_padded_to_vectors_and_vectors_to_tasks(extent: int, parallel: bool, whole: int) -> None:
    assert padded(extent, 16, ONE, parallel) == whole


def vectors(body: Block, env: dict[str, int]) -> int:
    """The vector loops that a block runs."""
    count = 0
    for s in body:
        match s:
            case Loop(kind=LoopKind.VECTOR):
                count += 1
            case Loop():
                count += sum(vectors(s.body, {**env, s.var.name: k}) for k in range(evaluate(s.extent, env)))
            case If() if all(
                (c.lo is None or evaluate(c.value - c.lo, env) >= 0)
                and (c.hi is None or evaluate(c.value - c.hi, env) < 0)
                for c in s.guard
            ):
                count += vectors(s.body, env)
            case _:
                pass
    return count


@pytest.mark.parametrize("n", [2, 64, 14_400, (1 << 18) - 1, 1 << 18, (1 << 20) + 65])
def test_tasks_of_sizes_known_at_run_time_end_where_these_do(n: int) -> None:
    """A kernel for up to 16 million elements of which there are few took as long as a whole task."""
    x = graph.buffer((Var("n", 2, 1 << 24),), dtypes.float32, "cpu:0", None)
    (spec,) = kernelize_all([graph.apply(Op.SIN, (graph.apply(Op.NEG, (x,)),))], 31)
    assert isinstance(spec, KernelSpec)
    program = pipeline.run(lower(schedule(spec.algorithm, ONE)), verify=True)
    assert any(isinstance(s, Loop) and s.kind is LoopKind.PARALLEL for s in program.body)
    assert vectors(program.body, {"n": n}) <= -(-n // 16)
