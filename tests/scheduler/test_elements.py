"""Elements of small tensors are taken by the host, with no program for each index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.registry import open_device
from weft.scheduler import elements
from weft.scheduler import realize as realization


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many plans were run so far, by the number of their results."""
    runs: list[int] = []
    run = realization.planned

    def counting(sig, *rest):
        runs.append(len(sig.key.rows[-1]))
        return run(sig, *rest)

    monkeypatch.setattr(realization, "planned", counting)
    return runs


def test_the_whole_is_computed_once(planned: list[int]) -> None:
    data = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    y = weft.tensor(data).sin()
    found = [float(y[i]) for i in np.ndindex(2, 3, 4)]
    np.testing.assert_allclose(found, np.sin(data).reshape(-1), rtol=1e-6)
    assert planned == [1]
    assert [float(y.T[k, 0, 0]) for k in range(4)] == found[
        :4
    ]  # movements are followed down to what is there
    assert [int(v) for v in weft.tensor(data).long().flip(0)[0, 0]] == [12, 13, 14, 15]


def test_comparisons_of_elements_are_one_program() -> None:
    x, y = weft.tensor([[1.5, 2.5], [3.5, 4.5]]), weft.tensor([2.5, 1.5, 4.5])
    before = len(realization._plans)
    same = [[bool(x[i, j] == y[k]) for k in range(3)] for i in range(2) for j in range(2)]
    assert same == [[a == b for b in (2.5, 1.5, 4.5)] for a in (1.5, 2.5, 3.5, 4.5)]
    assert len(realization._plans) - before <= 1


def test_ranges_constants_and_views() -> None:
    assert [int(i) for i in weft.arange(5)] == [0, 1, 2, 3, 4]
    assert float((weft.arange(6) * 2)[4]) == 8
    assert float(weft.full((3,), 2.5)[1]) == 2.5
    assert float(weft.ones(3).expand(4, 3)[2, 1]) == 1
    assert weft.tensor([[1, 2]])[0, 1].reshape(1, 1).tolist() == [[2]]
    x = weft.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (x * x)[1].backward()
    assert x.grad is not None and x.grad.tolist() == [0, 4, 0]


def test_large_wholes_and_large_graphs_are_left_alone(planned: list[int]) -> None:
    x = weft.ones(elements.ELEMENTS + 1).contiguous() * 3
    assert float(x[7]) == 3 and x.value.node.storage is None
    y = weft.ones(3).contiguous() + 1
    total = sum((y[i % 3] * k for k, i in enumerate(range(elements.NODES))), weft.zeros(()))
    assert float(total) == 2 * sum(range(elements.NODES)) and y.value.node.storage is None


def test_all_axes_count_for_the_size() -> None:
    side = int(elements.ELEMENTS**0.5)
    for rows, whole in ((side, True), (side + 1, False)):
        x = weft.ones(rows, side).contiguous() * 3
        assert float(x[2, 3]) == 3 and (x.value.node.storage is not None) is whole


def test_a_place_known_at_run_time_only() -> None:
    at = weft.Variable("at", 0, 2)
    y = weft.tensor([1.0, 2.0, 3.0]).sin()[at : at + 1].reshape(())
    with pytest.raises(weft.ArgumentError, match="at has no value"):
        float(y)
    assert float(weft.bind(y, at=2)) == pytest.approx(np.sin(3.0))


def test_other_devices() -> None:
    x = weft.tensor([1.0, 2.0, 3.0], device="dummy:1") * 2
    y = x[1]
    assert float(y) == 4 and y.device == "dummy:1" and float(y + x[0]) == 6
    assert open_device("dummy:1").info.name == "dummy:1"


@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16, weft.int64, weft.bool])
def test_an_element_of_what_is_in_memory_is_copied(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(24).reshape(2, 3, 4) % 5
    x = weft.tensor(values).to(dtype).realize()
    expected = values.astype(bool) if dtype is weft.bool else values

    def refuse(*given: Any) -> Any:
        raise AssertionError("an element that is there was planned")

    monkeypatch.setattr(realization, "signature", refuse)
    for view, whole in ((x, expected), (x.flip(0).permute(2, 0, 1), np.flip(expected, 0).transpose(2, 0, 1))):
        for at in ((1, 0, 0), (0, 1, 1), (-1, 1, -1)):
            assert view[at].item() == whole[at]
            assert view[at].reshape(1, 1, 1).tolist() == [[[whole[at]]]]
    assert x[1].unsqueeze(0)[0, 2, 3:4].item() == expected[1, 2, 3]


def test_an_element_keeps_its_value_when_the_whole_is_written_over() -> None:
    x = weft.tensor([1.0, 2.0, 3.0]).realize()
    first = x[0].clone().detach()
    assert first.item() == 1.0
    second = x[1].detach()
    assert second.item() == 2.0
    x.add_(1)
    assert x.tolist() == [2.0, 3.0, 4.0] and first.item() == 1.0
    assert second.item() == 3.0  # which looks at x


def test_an_element_of_what_a_small_graph_computes_computes_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = weft.tensor([1.0, 2.0, 3.0])
    y = x * 1.75
    assert y[1].item() == 3.5
    assert y.value.node.storage is not None
    monkeypatch.setattr(realization, "signature", None)
    assert y[2].item() == 5.25


def test_an_element_of_what_a_large_graph_computes_is_left_to_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(element: elements.Element) -> Any:
        raise AssertionError("an element was taken out by the host")

    monkeypatch.setattr(elements, "copied", refuse)
    y = weft.tensor(np.arange(1000.0, dtype=np.float32))
    for k in range(elements.NODES):
        y = (y + (k + 0.25)).abs()
    assert y[3].item() == 3 + sum(k + 0.25 for k in range(elements.NODES))
