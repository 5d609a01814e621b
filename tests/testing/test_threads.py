"""The attack on races, in short: each scene once; `make fuzz` plays for longer."""

from __future__ import annotations

import os
import random

import pytest

import weft
from weft.testing import threads

SECONDS = 10.0
ROUNDS = 1 if "WEFT_FUZZ_EXAMPLES" not in os.environ else 50


@pytest.mark.parametrize("scene", threads.SCENES, ids=lambda s: s.__name__)
def test_nothing_is_wrong_with_threads_that_change_places_often(scene: object) -> None:
    report = threads.run(SECONDS * ROUNDS, 4, 1e-5, 0, [scene], ROUNDS)
    assert report.ok, str(report)


def test_what_is_wrong_is_counted() -> None:
    def lazy(rng: random.Random, count: int) -> threads.Scene:
        x = weft.ones(3)
        return threads.Scene(lambda k: [float(x.sum()) == 3 + (k == 0)], lambda: False)

    def raising(rng: random.Random, count: int) -> threads.Scene:
        return threads.Scene(lambda k: [1 // k == 1] if k < 2 else [])

    report = threads.run(60, 3, 1e-5, 0, [lazy, raising], 2)
    assert (report.compared["lazy"], report.wrong) == (4, {"lazy": 2})
    assert report.errors[0].startswith("raising: ZeroDivisionError")
    assert not report.ok
    assert "6 compared" not in str(report)
