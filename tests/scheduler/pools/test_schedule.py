"""Schedules within limits: each task has its values when it runs, and no more memory is used than was allowed."""

from __future__ import annotations

import random

import pytest

from weft.scheduler.pools.schedule import (
    Action,
    Fate,
    Kind,
    Problem,
    Schedule,
    Task,
    Transfer,
    kept,
    least,
    within,
)


def chain(n: int, nbytes: int = 256, ns: float = 10.0) -> Problem:
    """A forward pass of n tasks and a backward pass: task 2n - 1 - k reads value k, and the gradient before it."""
    tasks = [Task((k - 1,) if k else (), (k,), ns) for k in range(n)]
    for j in range(n):
        tasks.append(Task((*((n + j - 1,) if j else ()), n - 1 - j), (n + j,), 2 * ns))
    return Problem(tuple(tasks), (nbytes,) * (2 * n), (2 * n,) * (2 * n))


def random_problem(seed: int) -> Problem:
    """Tasks that read random earlier values, some of which cannot run again, or not for long, or may be spilled."""
    r = random.Random(seed)
    count = r.randint(3, 40)
    tasks: list[Task] = []
    sizes: list[int] = []
    until: list[int] = []
    for k in range(count):
        recent = range(max(0, len(sizes) - 6), len(sizes))
        reads = [v for v in recent if r.random() < 0.4]
        reads += [r.randrange(len(sizes))] if sizes and r.random() < 0.5 else []
        writes = range(len(sizes), len(sizes) + r.choice((1, 1, 1, 2)))
        sizes += [256 * r.randint(1, 9) for _ in writes]
        until += [count if r.random() < 0.9 else r.randint(k, count)] * len(writes)
        over = tuple((w, v) for w in writes for v in reads if r.random() < 0.2)
        again, own = r.random() < 0.9, 256 * r.choice((0, 0, 0, 4))
        tasks.append(
            Task(tuple(dict.fromkeys(reads)), tuple(writes), r.choice((1.0, 10.0, 100.0)), again, own, over)
        )
    transfers = tuple([Transfer(20.0, 20.0) if r.random() < 0.5 else None for _ in sizes])
    return Problem(tuple(tasks), tuple(sizes), tuple(until), transfers if r.random() < 0.5 else ())


def peak(schedule: Schedule) -> int:
    return schedule.peak


def follow(problem: Problem, actions: tuple[Action, ...]) -> int:
    """Follow actions by another way than they were found, and complain; the bytes in use at most. Versions of a value
    are all the same, so what counts is that there is one."""
    there: set[int] = set()
    outside: set[int] = set()
    order: list[int] = []
    most = 0

    def size() -> int:
        return sum(problem.nbytes[v] for v in there)

    for a in actions:
        match a.kind:
            case Kind.RUN:
                task, k = problem.tasks[a.number], a.number
                assert there.issuperset(task.reads), f"task {k} lacks a value"
                if k in order:
                    assert task.again, f"task {k} must not run again"
                    assert all(problem.until[v] > max(order) for v in task.writes), "too late"
                else:
                    assert k == max(order, default=-1) + 1, "the order of the tasks has changed"
                order.append(k)
                new = sum(problem.nbytes[v] for v in task.writes)
                saved = sum(problem.nbytes[w] for w in {w for w, _ in task.over})
                most = max(most, size() + new + task.own - saved)
                there.update(task.writes)
            case Kind.LEAVE:
                there.remove(a.number)
            case Kind.OUT:
                assert a.number in there
                outside.add(a.number)
            case Kind.BACK:
                assert a.number in outside
                there.add(a.number)
                most = max(most, size())
    assert sorted(set(order)) == list(range(len(problem.tasks)))
    return most


@pytest.mark.parametrize("seed", range(150))
def test_random_schedules_keep_within_their_limits_and_lack_nothing(seed: int) -> None:
    problem = random_problem(seed)
    whole = kept(problem)
    assert whole.is_plain
    assert follow(problem, whole.actions) <= whole.peak == problem.peak
    lowest = least(problem, peak)
    for share in (0.0, 0.3, 0.6, 0.9, 1.0):
        limit = round(lowest + share * (whole.peak - lowest))
        found = within(problem, limit, 0, peak)
        assert found is not None, "the least that would do does not do"
        assert found.peak <= limit
        assert follow(problem, found.actions) <= limit
    assert within(problem, lowest - 1, 0, peak) is None


def test_a_chain_at_half_its_memory_takes_little_longer() -> None:
    problem = chain(60)
    half = within(problem, problem.peak // 2, 0, peak)
    third = within(problem, problem.peak // 3, 0, peak)
    assert half is not None
    assert third is not None
    assert half.ns <= 1.25 * problem.clock[-1]
    assert third.ns <= 1.4 * problem.clock[-1]
    assert least(problem, peak) <= problem.peak // 6


def test_nothing_leaves_where_there_is_room() -> None:
    problem = chain(10)
    found = within(problem, problem.peak, 0, peak)
    assert found is not None
    assert found.is_plain
    assert found.ns == problem.clock[-1]


def test_what_is_cheap_to_make_again_leaves_first() -> None:
    """Two values of equal size and time away; one took 100 times as long."""
    tasks = (
        Task((), (0,), 1000.0), Task((), (1,), 10.0), Task((), (2,), 10.0), Task((2,), (3,), 10.0),
        Task((0, 1, 3), (4,), 10.0),
    )  # fmt: skip
    problem = Problem(tasks, (256, 256, 512, 256, 256), (5,) * 5)
    found = within(problem, problem.peak - 256, 0, peak)
    assert found is not None
    assert [x.value for x in found.left] == [1]


def test_a_value_goes_the_way_that_costs_less() -> None:
    """Task 0 is dear and 1 is cheap; copies are in between, so 0 is spilled and 1 made again."""
    tasks = (
        Task((), (0,), 1000.0),
        Task((), (1,), 1.0),
        Task((), (2,), 10.0),
        Task((2, 0), (3,), 1.0),
        Task((1,), (4,), 1.0),
    )
    problem = Problem(tasks, (512, 512, 768, 256, 256), (5,) * 5, (Transfer(50.0, 50.0),) * 5)
    found = within(problem, 768, 0, peak)
    assert found is None  # the fourth task reads 1,280 bytes and makes 256
    found = within(problem, 1536, 0, peak)
    assert found is not None
    assert {x.value: x.fate for x in found.left} == {1: Fate.RECOMPUTED}
    dear = Problem(
        tasks, problem.nbytes, (0, 0, 5, 5, 5), problem.transfers
    )  # what 0 and 1 read is overwritten
    found = within(dear, 1536, 0, peak)
    assert found is not None
    assert {x.value: x.fate for x in found.left} == {1: Fate.SPILLED}


def test_what_reads_overwritten_values_is_not_made_again() -> None:
    problem = chain(8)
    fixed = Problem(problem.tasks, problem.nbytes, (0,) * 16)
    assert within(fixed, problem.peak - 256, 0, peak) is None
    assert least(fixed, peak) == problem.peak
