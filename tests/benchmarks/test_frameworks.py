"""weft and NumPy run every kind of workload that both have, on small inputs, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.frameworks.with_numpy import NumPy
from benchmarks.frameworks.with_weft import Weft
from benchmarks.inference import NETS, rows
from benchmarks.variants import VARIANTS
from benchmarks.worker import agree, check_of
from benchmarks.workloads import INFERENCE, SWEEP, TRAINING, WORKLOADS, causal_mask, normal

WEFT, NUMPY = Weft.__new__(Weft), NumPy(1)


@pytest.fixture(autouse=True, scope="module")
def opened() -> None:
    """Without setting the number of threads: the other tests' is kept."""
    import weft

    WEFT.weft, WEFT.F = weft, weft.nn.functional


def images() -> tuple[Any, ...]:
    return normal(2, 3, 6, 5), normal(4, 3, 3, 3, seed=1)


SMALL: dict[str, Callable[[], tuple[Any, ...]]] = {
    "matmul": lambda: (normal(5, 7), normal(7, 3, seed=1)),
    "product": lambda: (normal(2, 7, 5), normal(2, 3, 7, seed=1), True, True),
    "chain": lambda: tuple(normal(33, seed=k) for k in range(4)),
    "chain_reused": lambda: tuple(normal(33, seed=k) for k in range(4)),
    "sum": lambda: (normal(9, 8), 0),
    "softmax": lambda: (normal(4, 9),),
    "layer_norm": lambda: (normal(4, 9), normal(9, seed=1), normal(9, seed=2)),
    "attention": lambda: (*(normal(1, 2, 8, 4, seed=k) for k in range(3)), causal_mask(8)),
    "causal_attention": lambda: tuple(normal(1, 2, 8, 64, seed=k) for k in range(3)),
    "conv2d": images,
    "adam_step": lambda: ([normal(3, 4)], [normal(3, 4, seed=1)]),
    "mlp_step": WORKLOADS["MLP training step"].inputs,
}
"""Kind -> inputs. What only one of the two has, or has only large sizes, runs in `test_runner`."""


@pytest.mark.parametrize("kind", SMALL)
def test_the_same_results(kind: str) -> None:
    checks = []
    for framework in (WEFT, NUMPY):
        run = getattr(framework, kind)(*SMALL[kind]())
        checks.append(check_of(run.results(run.call())))
    assert agree(checks[0], checks[1], 1e-3) is None


@pytest.mark.parametrize(
    "kind", ["conv2d_nhwc", "conv2d_gradients", "conv2d_gradients_nhwc", "softmax_reused"]
)
def test_the_same_as_another_kind(kind: str) -> None:
    """A layout or a place for the result changes no number."""
    x, w = images()
    dy = normal(2, 4, 6, 5, seed=2)
    run, other = {
        "conv2d_nhwc": lambda: (WEFT.conv2d_nhwc(x, w), WEFT.conv2d(x, w)),
        "conv2d_gradients_nhwc": lambda: (
            WEFT.conv2d_gradients_nhwc(x, w, dy),
            WEFT.conv2d_gradients(x, w, dy),
        ),
        "conv2d_gradients": lambda: (WEFT.conv2d_gradients(x, w, dy), WEFT.conv2d_gradients(x, w, dy)),
        "softmax_reused": lambda: (WEFT.softmax_reused(normal(4, 9)), NUMPY.softmax(normal(4, 9))),
    }[kind]()
    assert agree(check_of(run.results(run.call())), check_of(other.results(other.call())), 1e-4) is None


@pytest.mark.parametrize(
    "kind", ["lazy_adds", "single_adds", "compiled_adds", "replayed_adds", "replayed_products"]
)
def test_overheads_count_right(kind: str) -> None:
    inputs = (np.zeros(4, np.float32),) if "adds" in kind else (normal(4, 4), np.eye(4, dtype=np.float32))
    run = getattr(WEFT, kind)(*inputs)
    (result,) = run.results(run.call())
    calls = next(w.calls for w in WORKLOADS.values() if w.kind == kind)
    np.testing.assert_allclose(result, inputs[0] if "products" in kind else np.full(4, calls), rtol=1e-5)


def test_every_workload_is_one_that_weft_runs() -> None:
    kinds = {w.kind for w in (*WORKLOADS.values(), *SWEEP.values(), *INFERENCE.values(), *TRAINING.values())}
    assert all(hasattr(WEFT, k) for k in kinds) and len(SWEEP) >= 60
    assert {w.name for w in WORKLOADS.values() if w.goal is None and w.group == "products"} == set()
    assert all(v.kinds <= kinds for v in VARIANTS.values())


def test_wrong_results_are_found() -> None:
    good = check_of([normal(30, 30)])
    assert agree(check_of([normal(30, 30) + 1e-9]), good, 1e-6) is None
    assert "results differ" in (agree(check_of([normal(30, 30) * 1.01]), good, 1e-3) or "")
    assert "shapes" in (agree(check_of([normal(900)]), good, 1e-3) or "")
    assert agree(check_of([np.full((30, 30), np.nan)]), good, 1e-3) is not None


@pytest.mark.parametrize("name", NETS)
def test_what_a_network_learns_fits_its_answers(name: str) -> None:
    """Without computing anything: shapes are known when an operation is called."""
    import weft

    net = NETS[name]
    with weft.device("meta"):
        answers = rows(net.make(weft)(weft.tensor(net.inputs(2))))
        answers.sum().backward()
    labels = net.labels(2)
    assert answers.shape[1] == net.classes and answers.shape[:1] + answers.shape[2:] == labels.shape
    assert labels.min() >= 0 and labels.max() < net.classes
