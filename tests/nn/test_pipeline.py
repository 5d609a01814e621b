"""Pipelines: values and gradients are those of the layers, stages are busy at once, and mistakes are named."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import nn
from weft.errors import ArgumentError, DTypeError, MemoryPlanError
from weft.testing import farm


def network(layers: int = 4, width: int = 16) -> nn.Sequential:
    weft.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)])


def data(rows: int, width: int, seed: int = 0) -> weft.Tensor:
    return weft.tensor(np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32))


def trained(
    model: nn.Module, x: weft.Tensor, y: weft.Tensor, compiled: bool
) -> tuple[list[float], list[Any]]:
    optimizer = weft.optim.Adam(model.parameters(), lr=0.01)

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = weft.compile(step) if compiled else step
    losses = [run(x, y).item() for _ in range(4)]
    return losses, [p.detach().to("cpu").numpy() for p in model.parameters()]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [8, 7, 2])
def test_training_is_that_of_the_layers(rows: int, compiled: bool) -> None:
    x, y = data(rows, 16), data(rows, 16, 1)
    losses, weights = trained(network(), x, y, compiled)
    with farm(3) as f:
        model = nn.Pipeline(network(), f.names, 4, ends=[1, 3, 4])
        assert [str(p.device) for p in model.parameters()] == [
            *["farm:0"] * 2, *["farm:1"] * 4, *["farm:2"] * 2,
        ]  # fmt: skip
        found, others = trained(model, x, y, compiled)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for a, b in zip(others, weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_results_are_where_the_input_is_or_where_they_are_asked_for() -> None:
    x = data(6, 16)
    with farm(2) as f:
        model = nn.Pipeline(network(), f.names, 3, ends=[2, 4])
        assert str(model(x).device) == "cpu" and str(model(x.to("farm:1")).device) == "farm:1"
        stays = nn.Pipeline(network(), f.names, 3, ends=[2, 4], output_device="farm:1")
        assert str(stays(x).device) == "farm:1"
        np.testing.assert_array_equal(stays(x).numpy(), model(x).numpy())
        np.testing.assert_allclose(model(x).numpy(), network()(x).numpy(), rtol=1e-5, atol=1e-6)
        x = x.requires_grad_()
        model(x).sum().backward()
        assert x.grad is not None and str(x.grad.device) == "cpu"


def step_ns(devices: int, microbatches: int, speeds: tuple[float, ...] | None = None) -> tuple[float, Any]:
    """The simulated time of a training step that comes again, and the model."""
    ns, model, _ = measured(devices, microbatches, speeds)
    return ns, model


def measured(
    devices: int, microbatches: int, speeds: tuple[float, ...] | None = None
) -> tuple[float, Any, dict[str, int]]:
    """With that, the most bytes of each device."""
    with farm(devices, speeds=speeds or (1.0,) * devices, timing_only=True, link_bandwidth=1e11) as f:
        x = weft.zeros(2048, 128, device="farm:0").contiguous().realize()
        model = nn.Pipeline(network(8, 128), f.names, microbatches, x, output_device=f.names[-1])
        y = weft.zeros(2048, 128, device=f.names[-1]).contiguous().realize()
        optimizer = weft.optim.SGD(model.parameters(), lr=0.01)

        @weft.compile
        def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        ns = 0.0
        for _ in range(4):
            f.clear()
            step(x, y).realize()
            weft.realize(*model.parameters())
            ns = f.makespan_ns
        return ns, model, f.peak_bytes()


@pytest.mark.parametrize("stages, microbatches", [(2, 4), (4, 8)])
def test_stages_work_on_different_microbatches_at_once(stages: int, microbatches: int) -> None:
    one, _ = step_ns(1, microbatches)
    ns, model = step_ns(stages, microbatches)
    assert len(model.stages) == stages
    assert ns <= 1.05 * one * (microbatches + stages - 1) / microbatches / stages
    assert ns == pytest.approx(model.ns, rel=0.15)


@pytest.mark.parametrize("stages, microbatches", [(2, 4), (4, 8)])
def test_stages_take_about_the_bytes_that_they_are_cut_by(stages: int, microbatches: int) -> None:
    _, model, peaks = measured(stages, microbatches)
    for stage in model.stages:
        # SGD has no moments; targets and the loss, which the last device has besides, are the caller's
        assert 0.75 <= peaks[stage.device] / stage.bytes <= (1.45 if stage is model.stages[-1] else 1.25)


def test_faster_devices_get_more_layers_and_those_that_do_not_help_none() -> None:
    ns, model = step_ns(2, 8, (1.0, 3.0))
    assert [s.end - s.first for s in model.stages] == [2, 6]
    even, _ = step_ns(2, 8, (1.0, 1.0))
    assert ns < 0.6 * even
    _, alone = step_ns(2, 1, (4.0, 1.0))
    assert [s.device for s in alone.stages] == ["farm:0"]


def test_all_devices_of_a_kind_and_layers_whose_weights_are_constants() -> None:
    layers = [nn.LayerNorm(16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16)]
    x = data(8, 16)
    want = nn.Sequential(*layers)(x).numpy()
    with farm(2):
        model = nn.Pipeline(layers, "farm:*", 2, x)
        np.testing.assert_allclose(model(x).numpy(), want, rtol=1e-5, atol=1e-6)
        assert model(x[:0]).shape == (0, 16)
        asked = nn.Pipeline(layers, "farm:*", 2, ends=[2, 4])
        assert [(s.ns, s.bytes) for s in asked.stages] == [(None, None)] * 2


def test_memory_moves_layers() -> None:
    x = data(64, 64)
    with farm(2) as f:
        free = nn.Pipeline(network(8, 64), f.names, 4, x)
        assert [s.end for s in free.stages] == [4, 8]
        assert free.stages[0].bytes is not None
        limit = 3 * free.stages[0].bytes // 4
        tight = nn.Pipeline(network(8, 64), f.names, 4, x, memory={"farm:0": limit})
        assert (tight.stages[0].bytes or 0) <= limit and tight.stages[0].end < 4
        with pytest.raises(MemoryPlanError, match=r"8 layers in 4 microbatches do not fit on 2 groups"):
            nn.Pipeline(network(8, 64), f.names, 4, x, memory=1000)


def test_cutting_leaves_the_model_as_it_was() -> None:
    weft.manual_seed(3)
    norm = nn.BatchNorm1d(8)
    layers = nn.Sequential(nn.Linear(8, 8), norm, nn.Dropout(0.5), nn.Linear(8, 8))
    layers[3].eval()
    assert norm.running_mean is not None
    before, expected = norm.running_mean.numpy().copy(), weft.rand(3).numpy()
    weft.manual_seed(3)
    nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8))
    with farm(2) as f:
        nn.Pipeline(layers, f.names, 2, data(8, 8))
        np.testing.assert_array_equal(weft.rand(3).numpy(), expected)
        np.testing.assert_array_equal(norm.running_mean, before)
    assert [m.training for m in layers] == [True, True, True, False]


def test_without_gradients_stages_are_cut_by_the_forward_pass() -> None:
    with farm(2) as f:
        model = nn.Pipeline(network(4).requires_grad_(False), f.names, 2, data(8, 16))
        assert model.ns is not None and [s.end for s in model.stages] in ([2, 4], [4])
        assert not model(data(8, 16)).requires_grad


def test_state_is_that_of_the_layers() -> None:
    with farm(2) as f:
        model = nn.Pipeline(network(), f.names, 4, ends=[2, 4])
        assert list(model.state_dict()) == [f"module.{name}" for name in network().state_dict()]
        assert "4 microbatches; layers 0 to 1 on farm:0; layers 2 to 3 on farm:1" in repr(model)
        x = data(6, 16)
        want = model(x).numpy()
        np.testing.assert_array_equal(copy.deepcopy(model)(x).numpy(), want)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model))(x).numpy(), want)


def test_a_pipeline_that_was_moved_runs_where_it_is() -> None:
    with farm(2) as f:
        model = nn.Pipeline(network(), f.names, 4, ends=[2, 4])
        x = data(3, 16)  # fewer rows than parts
        want = model(x).numpy()
        model.load_state_dict({k: v.to("cpu") for k, v in model.state_dict().items()})
        assert str(model.module[3][0].weight.device) == "farm:1"
        moved = model.to("cpu")
        np.testing.assert_allclose(moved(x).numpy(), want, rtol=1e-6, atol=1e-6)
        with weft.no_grad():
            assert not moved(x).requires_grad


def test_mistakes() -> None:
    layers, names, x = network(), ["dummy:0", "dummy:1"], data(8, 16)
    with pytest.raises(ArgumentError, match="give example=, a batch to cut the stages by, or ends="):
        nn.Pipeline(layers, names, 4)
    with pytest.raises(ArgumentError, match="give example="):
        nn.Pipeline(layers, names, 4, x, ends=[2, 4])
    with pytest.raises(ArgumentError, match=r"up to 4, got \[2, 5\]"):
        nn.Pipeline(layers, names, 4, ends=[2, 5])
    with pytest.raises(ArgumentError, match=r"up to 4, got \[3, 3, 4\]"):
        nn.Pipeline(layers, ["dummy:0", "dummy:1", "dummy:2"], 4, ends=[3, 3, 4])
    with pytest.raises(ArgumentError, match="microbatches is a number from 1, got 0"):
        nn.Pipeline(layers, names, 0, x)
    with pytest.raises(ArgumentError, match="Pipeline: devices= names none: it needs one at least"):
        nn.Pipeline(layers, [], 4, x)
    with pytest.raises(ArgumentError, match="Pipeline: there are no layers: it needs one at least"):
        nn.Pipeline([], names, 4, x)
    with pytest.raises(DTypeError, match="Pipeline: devices: expected names of devices, or devices, got 3"):
        nn.Pipeline(layers, [3], 4, x)
    for ends in ([], "24", [2], [2, 4.0]):
        with pytest.raises(ArgumentError, match=r"ends= says for each of 2 devices .*, up to 4, got "):
            nn.Pipeline(layers, names, 4, ends=ends)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="memory= has a limit for 'dummy:3', which is none of devices="):
        nn.Pipeline(layers, names, 4, x, memory={"dummy:3": 100})
    with pytest.raises(ArgumentError, match="memory= is a number of bytes for 'dummy:0', got '2G'"):
        nn.Pipeline(layers, names, 4, x, memory="2G")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="memory= is what stages are cut within"):
        nn.Pipeline(layers, names, 4, ends=[2, 4], memory=100)
    with pytest.raises(DTypeError, match=r"example= is a batch, a tensor with rows, got 3"):
        nn.Pipeline(layers, names, 4, 3)  # pyright: ignore[reportArgumentType]
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    tied[1].weight = tied[0].weight
    with pytest.raises(ArgumentError, match=r"0\.weight and 1\.weight are one parameter, in stages 0 and 1"):
        nn.Pipeline(tied, names, 2, ends=[1, 2])
    assert nn.Pipeline(tied, names[:1], 2, ends=[2])(data(4, 4)).shape == (4, 4)
    lstm = nn.Sequential(nn.Linear(16, 16), nn.LSTM(16, 16))
    with pytest.raises(DTypeError, match=r"layer 1 .* gives .*tuple.*: layers of a pipeline take a tensor"):
        nn.Pipeline(lstm, names, 2, x)
    with pytest.raises(DTypeError, match=r"a LSTM gives .*: layers of a pipeline take a tensor"):
        nn.Pipeline(lstm, names, 2, ends=[1, 2])(x)
    with pytest.raises(weft.WeftError, match="nowhere"):
        nn.Pipeline(layers, ["nowhere:0"], 2, ends=[4])
