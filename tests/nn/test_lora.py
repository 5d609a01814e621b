"""Adapters: their formula over each kind of layer, what learns, merging, what is saved and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.errors import ArgumentError
from weft.nn import lora
from weft.quantization import BlockFormat, to_blocks

KINDS = ["linear", "int4", "blocks"]


def model_of(kind: str) -> Any:
    weft.manual_seed(0)
    model = nn.Sequential()
    model.add_module("q_proj", nn.Linear(32, 64))
    model.add_module("act", nn.Tanh())
    model.add_module("o_proj", nn.Linear(64, 32, bias=False))
    for name in ("q_proj", "o_proj"):
        layer = model.get_submodule(name)
        if kind == "int4":
            model.set_submodule(name, nn.QuantizedLinear.from_linear(layer, bits=4, block=32))
        elif kind == "blocks":
            model.set_submodule(name, nn.BlockLinear(to_blocks(layer.weight, BlockFormat.Q8_0), layer.bias))
    return model


def filled(model: Any) -> None:
    """Adapters that are not zero."""
    with weft.no_grad():
        for _, m in lora.adapters(model):
            m.lora_B.copy_(weft.randn(*m.lora_B.shape))


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_add_their_product_and_alone_learn(kind: str) -> None:
    model, x = model_of(kind), weft.randn(5, 32)
    with weft.no_grad():
        before = model(x).numpy()
    weights = lora.add(model, ["q_proj"], rank=4, alpha=12)
    with weft.no_grad():
        np.testing.assert_array_equal(model(x).numpy(), before)
        filled(model)
        layer = model.q_proj
        expected = layer.base(x).numpy() + 3 * x.numpy() @ layer.lora_A.numpy().T @ layer.lora_B.numpy().T
        np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-4, atol=1e-4)
    assert [tuple(w.shape) for w in weights] == [(4, 32), (64, 4)]
    kept = {k: t.numpy() for k, t in model.state_dict().items() if "lora" not in k}
    optimizer = weft.optim.AdamW(weights, lr=1e-2)
    y, losses = weft.randn(5, 32).realize(), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["q_proj.lora_A", "q_proj.lora_B"]
    for k, old in kept.items():
        np.testing.assert_array_equal(model.state_dict()[k].numpy(), old)


@pytest.mark.parametrize("kind", KINDS)
def test_merging_computes_the_same_and_is_undone_bit_for_bit(kind: str) -> None:
    model, x = model_of(kind), weft.randn(5, 32)
    lora.add(model, ["*_proj"], rank=4)
    filled(model)
    with weft.no_grad():
        apart = model(x).numpy()
        lora.merge(model)
        np.testing.assert_allclose(model(x).numpy(), apart, atol=1e-4 * abs(apart).max())
        with pytest.raises(ArgumentError, match="merged"):
            lora.load_state_dict(model, lora.state_dict(model))
        lora.unmerge(model)
        np.testing.assert_array_equal(model(x).numpy(), apart)
        lora.fold(model)
        assert isinstance(model.q_proj, nn.Linear) and not list(lora.adapters(model))
        np.testing.assert_allclose(model(x).numpy(), apart, atol=1e-4 * abs(apart).max())


def test_state_is_of_adapters_alone_and_comes_back_from_peft_s_names() -> None:
    model, x = model_of("linear"), weft.randn(5, 32)
    lora.add(model, ["*_proj"], rank=2)
    filled(model)
    state = lora.state_dict(model)
    assert sorted(state) == [f"{n}_proj.lora_{p}.weight" for n in "oq" for p in "AB"]
    peft = {f"base_model.model.{k.replace('.weight', '.default.weight')}": t for k, t in state.items()}
    for given in (state, peft):
        other = model_of("linear")
        lora.add(other, ["*_proj"], rank=2)
        lora.load_state_dict(other, given)
        with weft.no_grad():
            np.testing.assert_allclose(other(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    for change, told in (
        ({}, "lacks o_proj.lora_A"), (state | {"k_proj.lora_A.weight": x}, "has k_proj.lora_A.weight, unknown"),
        (state | {"q_proj.lora_A.weight": x}, r"of shape \(5, 32\) in place of \(2, 32\)"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=told):
            lora.load_state_dict(model, change)
    lora.remove(model)
    assert isinstance(model.q_proj, nn.Linear)


def test_dropout_is_of_training_and_halves_stay_halves() -> None:
    model = model_of("linear").half()
    lora.add(model, ["q_proj"], rank=4, dropout=0.5)
    filled(model)
    x = weft.randn(5, 32).half()
    with weft.no_grad():
        assert model(x).dtype is weft.float16
        assert (model.train()(x) != model(x)).any().item()
        assert (model.eval()(x) == model(x)).all().item()


def test_what_cannot_be_adapted_is_refused() -> None:
    model = model_of("linear")
    for names, how, told in (
        (["v_proj"], {}, "called 'v_proj'"), (["act"], {}, "act is a Tanh"), (["q_proj"], {"rank": 0}, "rank"),
        (["q_proj"], {"dropout": 1.0}, "dropout"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=told):
            lora.add(model, names, **how)
    lora.add(model, ["q_proj"])
    with pytest.raises(ArgumentError, match="adapter already"):
        lora.add(model, ["base"])
