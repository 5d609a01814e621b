"""Rows summed several at a time: as numpy does, of all lengths, and only where memory is what they wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.scheduler.optimize.test_contraction import info
from weft.ir.kernel.schedule import Kernel
from weft.ir.loops import LoopKind
from weft.scheduler.optimize import abreast
from weft.scheduler.optimize.rules import schedule
from weft.testing.kernels import softmax, total

INFO = info(32, 16)


def written_out(k: Kernel) -> dict[str, int]:
    """Rows that values take at a time."""
    return {
        name: int(str(s.extent))
        for name, nest in k.nests.items()
        for s in nest.loops
        if s.kind is LoopKind.UNROLL and not s.reduce
    }


@pytest.mark.parametrize(
    "case, rows",
    [
        (total(2048, 2048, "j"), {"s_lanes": 4}),
        (total(2048, 2048, "ij"), {"s_part_row_lanes": 4}),
        (total(64, 1 << 17, "j"), {"s_block_lanes": 4}),
        (total(2048, 512, "j"), {}),
        (total(256, 1024, "j"), {}),
        (total(2046, 2048, "j"), {"s_lanes": 4}),
        (softmax(512, 2048), {}),
    ],
    ids=["rows", "all", "long rows", "short rows", "cached", "padded rows", "several passes"],
)
def test_where_memory_is_read_in_order_in_too_few_places(case: Any, rows: dict[str, int]) -> None:
    assert written_out(schedule(case.algorithm, INFO)) == rows


def test_parts_come_in_groups() -> None:
    for steps in (64, 127, 1000, 9766, 12_345):
        for tasks in (16, 64):
            n = abreast.share(steps, tasks, 4)
            assert -(-steps // n) % 4 == 0
            assert n < 2 * -(-steps // tasks)
    assert abreast.share(3, 16, 4) == 1
    assert abreast.share(1000, 16, 1) == 63


LENGTHS = [(700, 1500), (1023, 1025), (250, 4099), (7, 150_000), (2, 600_001), (1, 1_000_003), (129, 8192)]


@pytest.mark.parametrize("shape", LENGTHS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16"])
def test_as_numpy_computes_it(shape: tuple[int, int], dtype: str) -> None:
    rng = np.random.default_rng(shape[1])
    x = weft.tensor(rng.integers(-8, 9, shape), dtype=getattr(weft, dtype)).realize()
    v, w = (weft.tensor(rng.integers(-2, 3, n), dtype=getattr(weft, dtype)).realize() for n in shape[::-1])
    of: dict[str, Callable[[Any, Any, Any], Any]] = {
        "sum": lambda x, v, w: x.sum(),
        "rows": lambda x, v, w: x.sum(1),
        "columns": lambda x, v, w: x.sum(0),
        "squares": lambda x, v, w: (x * x).sum(1),
        "vector": lambda x, v, w: (x * v).sum(1),
        "row": lambda x, v, w: (x * w.reshape(-1, 1)).sum(0),
    }
    a, b, c = (t.double().numpy() for t in (x, v, w))
    for name, f in of.items():
        want = f(a, b, c)
        got = f(x, v, w).double().numpy()
        exact = dtype != "bfloat16" and np.abs(want).max() < 2**24
        np.testing.assert_allclose(got, want, rtol=0 if exact else 1e-2, atol=0 if exact else 1, err_msg=name)
    assert x.max().item() == a.max()
    np.testing.assert_array_equal(x.amax(1).double().numpy(), a.max(1))
    np.testing.assert_array_equal(x.amin(0).double().numpy(), a.min(0))


@pytest.mark.parametrize("over", [None, 0, 1])
def test_sizes_known_at_run_time(over: int | None) -> None:
    """Rows, or parts of a sum, of which the last group may have fewer."""
    rng = np.random.default_rng(0)
    for n in (1000, 1001, 1033, 1090, 1222, 5, 1):
        a = rng.integers(-8, 9, (n, 1531))
        x = weft.tensor(a, dtype=weft.float32).realize()
        np.testing.assert_array_equal((x.sum() if over is None else x.sum(over)).numpy(), a.sum(over))
    text = weft.explain(
        (lambda x: x.sum() if over is None else x.sum(over))(weft.zeros(1117, 1531).realize())
    )
    loops = text.kernels[-1].loops
    assert "size" in loops
    assert ("_group in" in loops) is (over != 0)
