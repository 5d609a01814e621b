"""Random programs that rebind tensors in every way, compiled, beside the same programs in NumPy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import weft

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))

N = 6

# Statements on state tensors x, y, z (by number): the same text for weft and NumPy, but for whole assignments.
STATEMENTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda x, y, z: x.__iadd__(y),
    "mul": lambda x, y, z: x.__imul__(0.5),
    "expr": lambda x, y, z: x.__iadd__(y * 0.25 - z),
    "slice": lambda x, y, z: x.__setitem__(slice(1, 3), y[2:4]),
    "stride": lambda x, y, z: x.__setitem__(slice(0, N, 2), z[1::2] + 1),
    "flip": lambda x, y, z: x.__setitem__(slice(None), _flipped(y)),
    "own slice": lambda x, y, z: x.__setitem__(slice(0, 2), x[3:5]),
    "sum": lambda x, y, z: x.__setitem__(slice(4, 5), y.sum() * 0.125),
    "element": lambda x, y, z: x.__setitem__(2, 0.75),
    "twice": lambda x, y, z: (x.__setitem__(0, y[1]), x.__setitem__(1, y[0])),
    "swap": lambda x, y, z: _swap(x, y),
    "running": lambda x, y, z: x.__setitem__(slice(None), x * 0.5 + z * 0.5),
}


def _flipped(x: Any) -> Any:
    return np.flip(x, 0).copy() if isinstance(x, np.ndarray) else x.flip(0)


def _swap(x: Any, y: Any) -> None:
    old = x.copy() if isinstance(x, np.ndarray) else x.clone()
    x[:] = y
    y[:] = old


programs = st.lists(
    st.tuples(st.sampled_from(sorted(STATEMENTS)), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    min_size=1,
    max_size=6,
)
holds = st.lists(st.sampled_from(["nothing", "detach", "clone", "lazy", "result"]), min_size=3, max_size=3)


# A partial update that would have been copied over what its kernel reads.
@example([("sum", 1, 0, 0), ("add", 0, 0, 0), ("swap", 0, 1, 0)], ["nothing"] * 3, 1)
@settings(max_examples=max(EXAMPLES, 100))
@given(programs, holds, st.integers(0, 2))
def test_state(program: list[tuple[str, int, int, int]], holding: list[str], returned: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(N).astype(np.float32) for _ in range(3)]
    tensors = [weft.tensor(a) for a in arrays]

    def fn(given: weft.Tensor) -> Any:
        for name, i, j, k in program:
            STATEMENTS[name](tensors[i], tensors[j], given if k == 2 else tensors[k])
        return tensors[returned] * 2, tensors[returned].detach()

    compiled = weft.compile(fn)
    kept: list[tuple[weft.Tensor, np.ndarray]] = []
    for call, hold in enumerate(holding):
        extra = rng.standard_normal(N).astype(np.float32)
        doubled, same = compiled(weft.tensor(extra))
        for name, i, j, k in program:
            STATEMENTS[name](arrays[i], arrays[j], extra if k == 2 else arrays[k])
        kept.append((doubled, arrays[returned] * 2))
        match hold:
            case "detach":
                kept.append((tensors[call].detach(), arrays[call]))  # they share elements
            case "clone":
                kept.append((tensors[call].clone(), arrays[call].copy()))
            case "lazy":
                kept.append((tensors[call] + 1, arrays[call] + 1))
            case "result":
                kept.append((same, arrays[returned]))
            case _:
                pass
        for t, a in zip(tensors, arrays, strict=True):
            np.testing.assert_allclose(t.numpy(), a, rtol=1e-4, atol=1e-5)
    for t, a in kept:
        np.testing.assert_allclose(t.numpy(), a, rtol=1e-4, atol=1e-5)


def test_a_counter_that_many_kernels_read_is_updated_in_place_after_them() -> None:
    data = [np.arange(n, dtype=np.float32) for n in (1000, 7, 64)]
    xs = [weft.tensor(x) for x in data]
    count = weft.tensor(3.0)

    @weft.compile
    def step(*xs: weft.Tensor) -> list[weft.Tensor]:
        old = count.detach() * 2
        count.copy_(count + 1)
        return [x * count + old for x in xs] + [x.sum() * old for x in xs]

    for before in (3.0, 4.0, 5.0):
        got = [t.numpy() for t in step(*xs)]
        want = [x * (before + 1) + 2 * before for x in data] + [x.sum() * 2 * before for x in data]
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5)
        assert count.item() == before + 1


def test_indices_that_a_compiled_step_has_overwritten_are_checked_again() -> None:
    x = weft.arange(4.0)

    @weft.compile
    def advance(index: weft.Tensor) -> weft.Tensor:
        index.add_(5)
        return index.sum()

    for _ in range(3):  # recorded, repeated, called directly
        index = weft.tensor([0, 1])
        assert x.gather(0, index).tolist() == [0.0, 1.0]
        advance(index)
        with pytest.raises(IndexError, match="index 6 is out of range for dimension 0 of size 4"):
            x.gather(0, index)


def test_what_a_function_made_may_be_gone_when_its_plan_is_made() -> None:
    """A tensor that lived on at the end of the trace, and that another thread, or the collector, let go since."""
    from weft.backends import registry
    from weft.core.compile.recorded_plans import staying
    from weft.core.compile.recording import Recording, record

    held: list[weft.Tensor] = []

    def step(x: weft.Tensor) -> weft.Tensor:
        held.append(x * 2)
        return x + scale

    scale, x = weft.tensor([3.0]), weft.tensor([1.0])
    made = record(step, (x,), {}, (x,), whole=False)
    assert isinstance(made, Recording) and made.escapes
    held.clear()
    assert len(staying(made, registry.open_device("cpu:0"))) == 1
