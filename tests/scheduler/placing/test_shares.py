"""Work is divided so that the last device is done as early as possible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from weft.scheduler.placing.shares import bounds, grouped, least_devices, shares


def test_speeds_one_to_four_take_a_tenth_to_four_tenths() -> None:
    given = shares(1000, [1 / s for s in (1, 2, 3, 4)])
    assert given == (100, 200, 300, 400)
    assert bounds(given) == (100, 300, 600, 1000)
    assert (
        max(n / s for n, s in zip(shares(97, [1, 1 / 2, 1 / 3, 1 / 4]), (1, 2, 3, 4), strict=True))
        <= 1.05 * 97 / 10
    )


def test_shares_are_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        units = int(rng.integers(0, 9))
        ns, fixed = rng.uniform(0.5, 4, 3), rng.uniform(0, 6, 3) * rng.integers(2)
        most = [int(x) for x in rng.integers(3, 9, 3)]

        def end(given: tuple[int, ...]) -> float:
            return max((f + n * x for f, n, x in zip(fixed, given, ns, strict=True) if n), default=0.0)

        given = shares(units, ns.tolist(), fixed.tolist(), most)
        assert sum(given) == units and all(n <= m for n, m in zip(given, most, strict=True))
        every = (x for x in itertools.product(*(range(m + 1) for m in most)) if sum(x) == units)
        assert end(given) == pytest.approx(min(end(x) for x in every))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="5 units do not fit"):
        shares(5, [1, 1], most=[2, 2])


def test_the_least_number_of_devices_is_found_by_few_questions() -> None:
    asked: list[int] = []

    def fits(n: int) -> bool:
        asked.append(n)
        return n >= 37

    assert least_devices(fits, 1000) == 37
    assert len(asked) < 15
    assert least_devices(lambda n: n >= 37, 36) is None
    assert least_devices(lambda n: True, 8) == 1


def test_blocks_come_in_groups_where_that_hardly_delays_the_end() -> None:
    speeds = (1, 2, 3, 4)
    each = [1 / s for s in speeds]
    assert grouped(640, each) == (64, 128, 192, 256)
    assert grouped(8192, each) == (816, 1632, 2464, 3280)
    assert grouped(8195, each) == (816, 1635, 2464, 3280)  # the rest is one device's
    for units in (0, 1, 1000, 4096, 100_003):
        given = grouped(units, each)
        assert sum(given) == units
        ends = [n / s for n, s in zip(given, speeds, strict=True)]
        assert max(ends) <= 1.005 * max(n / s for n, s in zip(shares(units, each), speeds, strict=True))
