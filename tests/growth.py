"""How the time of work grows with its size, whatever else a machine does meanwhile."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import TypeVar

Case = TypeVar("Case")


def best_ratio(
    make: Callable[[int], Case], work: Callable[[Case], object], n: int, factor: int, tries: int = 5
) -> float:
    """The ratio of the least times of the work on a case of size factor * n and on one of size n, per unit: about 1
    where time is linear, and `factor` where it is quadratic. To make a case is not counted, and Python's collector,
    which walks all that other tests left, is off."""
    least = [math.inf, math.inf]
    gc.collect()
    gc.disable()
    try:
        for _ in range(tries):
            for k, size in enumerate((n, factor * n)):
                case = make(size)
                start = time.process_time()
                work(case)
                least[k] = min(least[k], time.process_time() - start)
            if least[1] < 1.5 * factor * least[0]:
                break
    finally:
        gc.enable()
    return least[1] / least[0] / factor
