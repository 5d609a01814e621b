"""Regions through kernels, against poison in what the kernel reads; and kernels of random programs."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from weft.ir.calls import expand_calls
from weft.ir.graph import Node
from weft.ir.index import evaluate
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.regions.boxes import Interval
from weft.ir.regions.kernels import needed, reached
from weft.ir.regions.region import NOTHING, Region
from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.kernelize.kernels import kernelize_all
from weft.scheduler.kernelize.spec import KernelSpec
from weft.testing.dependence import leaf, points, some_node, some_region, some_shape
from weft.testing.kernelized import run, unscheduled

QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
RANDOM = st.randoms(use_true_random=False)

Buffers = dict[str, np.ndarray]


def box(*sides: tuple[Any, Any]) -> Region:
    return Region.of([tuple(Interval(*side) for side in sides)])


def shape_of(algorithm: Algorithm, name: str) -> tuple[int, ...]:
    param = algorithm.param(name)
    assert param is not None
    return tuple(evaluate(n, {}) for n in param.shape)


def kernels(root: Node) -> Iterator[tuple[Algorithm, Buffers, Any]]:
    """The kernels of a graph, with what each is given, and a function that runs it on such."""
    specs = [s for s in kernelize_all([root], NO_LIMIT) if isinstance(s, KernelSpec)]
    met: list[tuple[Algorithm, Buffers, Any]] = []

    def launch(algorithm: Algorithm, buffers: Buffers, variables: Any) -> None:
        met.append((algorithm, {k: v.copy() for k, v in buffers.items()}, unscheduled))
        unscheduled(algorithm, buffers, variables)

    run(specs, [root], launch=launch)
    return iter(met)


def poisoned(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    out = values.copy()
    out[where.reshape(-1)] = np.nan
    return out


def check(algorithm: Algorithm, buffers: Buffers, launch: Any, random: Random) -> None:
    written = [p.name for p in algorithm.params if p.written]
    floats = [p.name for p in algorithm.params if buffers[p.name].dtype.kind == "f"]
    if any(not b.size for b in buffers.values()):
        return
    out = random.choice(written)
    shape = shape_of(algorithm, out)
    wanted = some_region(random, shape)
    need = needed(algorithm, {out: wanted})
    given = {}
    for name, values in buffers.items():
        kept = points(need.get(name, NOTHING), shape_of(algorithm, name))
        given[name] = poisoned(values, ~kept) if name in floats else values.copy()
    launch(algorithm, given, {})
    assert not np.isnan(given[out].reshape(shape)[points(wanted, shape)]).any(), (algorithm, wanted)
    source = random.choice(floats)
    changed = some_region(random, shape_of(algorithm, source))
    reach = reached(algorithm, {source: changed})
    given = {name: values.copy() for name, values in buffers.items()}
    given[source] = poisoned(given[source], points(changed, shape_of(algorithm, source)))
    launch(algorithm, given, {})
    for name in written:
        if given[name].dtype.kind == "f":
            found = points(reach.get(name, NOTHING), shape_of(algorithm, name))
            assert not np.isnan(given[name].reshape(found.shape)[~found]).any(), (algorithm, source, changed)


@settings(max_examples=40, **QUIET)
@given(RANDOM)
def test_kernels_of_random_graphs_read_and_write_what_their_relation_says(random: Random) -> None:
    y = leaf(*some_shape(random))
    for _ in range(random.randint(2, 5)):
        y = some_node(random, y)
    for algorithm, buffers, launch in kernels(y):
        check(algorithm, buffers, launch, random)


def kernel_of(t: weft.Tensor) -> Algorithm:
    specs = kernelize_all(expand_calls([t.value.node]), NO_LIMIT)
    assert isinstance(specs[0], KernelSpec) and len(specs) == 1
    return specs[0].algorithm


def test_a_product_with_an_epilogue() -> None:
    x, w, b = weft.rand(8, 16).realize(), weft.rand(16, 4).realize(), weft.rand(4).realize()
    algorithm = kernel_of((x @ w + b).relu())
    found = needed(algorithm, {"y0": box((2, 4), (1, 2))})
    assert found["p0"] == box((2, 4), (0, 16)) and found["p1"] == box((0, 16), (1, 2))
    assert found["p2"] == box((1, 2)) and found["y0"] == NOTHING
    assert reached(algorithm, {"p0": box((2, 3), (5, 6))})["y0"] == box((2, 3), (0, 4))
    assert reached(algorithm, {"p1": box((2, 3), (3, 4))})["y0"] == box((0, 8), (3, 4))


def test_windows_with_padding_have_a_halo() -> None:
    x, w = weft.rand(1, 1, 16).realize(), weft.rand(1, 1, 3).realize()
    algorithm = kernel_of(weft.nn.functional.conv1d(x, w, padding=1))
    found = needed(algorithm, {"y0": box((0, 1), (0, 1), (4, 6))})
    assert found["p0"].boxes == box((0, 1), (0, 1), (3, 7)).boxes
    assert (
        needed(algorithm, {"y0": box((0, 1), (0, 1), (0, 2))})["p0"].boxes
        == box((0, 1), (0, 1), (0, 3)).boxes
    )
    assert (
        reached(algorithm, {"p0": box((0, 1), (0, 1), (7, 8))})["y0"].boxes
        == box((0, 1), (0, 1), (6, 9)).boxes
    )


def test_what_a_condition_on_indices_does_not_choose_is_not_read() -> None:
    x = weft.rand(6, 6).realize()
    lower = weft.where(weft.arange(6)[None] <= weft.arange(6)[:, None], x, 0.0)
    algorithm = kernel_of(lower.sum(1))
    (name,) = [p.name for p in algorithm.params if not p.written]
    assert needed(algorithm, {"y0": box((2, 3))})[name] == box((2, 3), (0, 3))
    assert reached(algorithm, {name: box((0, 6), (4, 5))})["y0"] == box((4, 6))


def test_what_an_update_keeps_is_needed_of_the_memory_itself() -> None:
    x, part = weft.rand(8, 4).realize(), weft.rand(2, 4).realize()
    y = weft.slice_scatter(x * 1.0, part, 0, 3, 5)
    for spec in kernelize_all(expand_calls([y.value.node]), NO_LIMIT):
        assert isinstance(spec, KernelSpec)
        if spec.inplace:
            out = next(iter(spec.inplace))
            found = needed(spec.algorithm, {out: Region.whole((8, 4))})[out]
            assert found.boxes == (box((0, 3), (0, 4)) | box((5, 8), (0, 4))).boxes


def test_gathered_rows_may_be_any() -> None:
    x, index = weft.rand(9, 4).realize(), weft.tensor([1, 5, 5]).realize()
    algorithm = kernel_of(x[index] * 2)
    found = needed(algorithm, {"y0": box((1, 2), (2, 3))})
    sources = {p.name: p for p in algorithm.params if not p.written}
    for name, p in sources.items():
        wanted = box((1, 2)) if len(p.shape) == 1 else box((0, 9), (2, 3))
        assert found[name].boxes == wanted.boxes and found[name].exact == (len(p.shape) == 1)
