"""When layouts are chosen again: for what lasts and pays, not for noise."""

from __future__ import annotations

from random import Random

import pytest

from weft.scheduler.placing.load import MIN_GAIN, WINDOW, Load


def observed(load: Load, random: Random, sigma: float, slower: tuple[float, ...], count: int) -> int | None:
    """The observations until a look finds that other blocks would gain; None if `count` pass before."""
    for k in range(count):
        load.add([100 * random.lognormvariate(0, sigma) * s for s in slower], [100.0] * len(slower))
        if load.look():
            return k + 1
    return None


@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.2, 0.4])
def test_noise_is_no_reason(sigma: float) -> None:
    for seed in range(4):
        assert observed(Load((1.0,) * 4), Random(seed), sigma, (1.0,) * 4, 1000) is None


@pytest.mark.parametrize("sigma, most", [(0.0, WINDOW), (0.1, WINDOW), (0.2, 2 * WINDOW)])
def test_what_lasts_is_found(sigma: float, most: int) -> None:
    for seed in range(4):
        load, random = Load((1.0,) * 4), Random(seed)
        assert observed(load, random, sigma, (1.0,) * 4, 2 * WINDOW) is None
        assert observed(load, random, sigma, (1.0, 2.0, 1.0, 1.0), most)
        assert load.now()[1] == pytest.approx(2, rel=0.1 + sigma)


def test_a_device_that_is_a_little_slower_is_no_reason() -> None:
    assert observed(Load((1.0,) * 4), Random(0), 0.01, (1.1, 1.0, 1.0, 1.0), 200) is None
    assert observed(Load((1.0,) * 4), Random(0), 0.01, (1.3, 1.0, 1.0, 1.0), 200) == WINDOW


def test_all_that_are_slower_alike_are_no_reason() -> None:
    assert observed(Load((1.0, 2.0, 3.0)), Random(0), 0.01, (5.0,) * 3, 200) is None


def test_each_look_that_finds_something_puts_off_the_next() -> None:
    load, at = Load((1.0, 1.0)), list[int | None]()
    for slower in (2.0, 4.0, 8.0):
        at.append(observed(load, Random(0), 0.0, (slower, 1.0), 1000))
        load.chose((slower, 1.0))
    assert at == [WINDOW, 2 * WINDOW, 4 * WINDOW]


def test_blocks_pay_if_they_gain_enough_and_soon() -> None:
    load = Load((1.0, 1.0))
    for _ in range(WINDOW):
        load.add([3e6, 1e6], [1e6, 1e6])
    now = load.look()
    assert now is not None and now == (3.0, 1.0)
    assert load.step_ns(now) == 3e6 and load.balanced_ns(now) == pytest.approx(1.5e6)
    assert load.repays(now, 1e6, 1.5e6, took_ns=1e9)  # as slow as now: 3e6
    assert not load.repays(now, 1e6, 1.5e6, took_ns=1e12)
    assert not load.repays(now, 1e6, 3e6 * (1 - MIN_GAIN / 2), took_ns=0.0)


def test_a_device_without_work_is_as_it_was_thought_to_be() -> None:
    load = Load((1.0, 1.0), (1.0, 7.0))
    load.add([0.0, 0.0], [0.0, 0.0])
    assert not load.seen
    for _ in range(WINDOW):
        load.add([1e6, 0.0], [1e6, 0.0])
    assert load.now() == (1.0, 7.0)
