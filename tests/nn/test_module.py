"""Module: what belongs to it, saving and loading, moving, printing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import weft
from weft import nn


class Block(nn.Module):
    """Has a parameter, a buffer, a submodule, and things that are neither."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "block"
        self.inner = nn.Linear(2, 3)
        self.scale = nn.Parameter(weft.ones(3))
        self.absent = None
        self.constant = weft.ones(2)
        self.register_buffer("seen", weft.zeros(3))
        self.register_buffer("scratch", weft.zeros(1), persistent=False)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return self.inner(x) * self.scale


def test_attributes_are_found_in_order() -> None:
    block = Block()
    assert [n for n, _ in block.named_parameters()] == ["scale", "inner.weight", "inner.bias"]
    assert [n for n, _ in block.named_buffers()] == ["seen", "scratch"]
    assert list(block.state_dict()) == ["scale", "seen", "inner.weight", "inner.bias"]
    assert [n for n, _ in nn.Sequential(block).named_modules()] == ["", "0", "0.inner"]
    assert all(p.requires_grad for p in block.parameters())
    assert [n for n, _ in block.named_parameters(recurse=False)] == ["scale"]
    assert nn.Sequential(block).get_submodule("0.inner") is block.inner


def test_shared_parameters_are_listed_once_and_saved_twice() -> None:
    a, b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    b.weight = a.weight
    model = nn.Sequential(a, b)
    assert len(list(model.parameters())) == 1
    assert list(model.state_dict()) == ["0.weight", "1.weight"]


def test_state_dict_shares_elements_and_a_copy_of_it_does_not() -> None:
    layer = nn.Linear(1, 1, bias=False)
    shared, kept = layer.state_dict(), copy.deepcopy(layer.state_dict())
    old = layer.weight.item()
    with weft.no_grad():
        layer.weight += 1
    assert kept["weight"].item() == old and layer.weight.item() == pytest.approx(old + 1)
    assert shared["weight"].item() == layer.weight.item()
    layer.load_state_dict(kept)
    assert layer.weight.item() == old and layer.weight.requires_grad


def test_loading_keeps_identity_gradients_and_dtype() -> None:
    layer = nn.Linear(2, 1)
    weight = layer.weight
    layer.load_state_dict({"weight": np.ones((1, 2)), "bias": [5.0]})
    assert layer.weight is weight and weight.dtype is weft.float32 and isinstance(weight, nn.Parameter)
    layer(weft.tensor([[1.0, 2.0]])).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [[1.0, 2.0]]


def test_loading_what_does_not_fit_changes_nothing_and_says_all() -> None:
    block = Block()
    before = block.inner.weight.tolist()
    state = {**block.state_dict(), "inner.weight": weft.ones(2, 2), "other": weft.ones(1)}
    del state["scale"]
    with pytest.raises(weft.ArgumentError) as error:
        block.load_state_dict(state)
    assert error.value.message == (
        "load_state_dict: Error(s) in loading state_dict for Block:\n"
        '\tMissing key(s) in state_dict: "scale". \n'
        '\tUnexpected key(s) in state_dict: "other". \n'
        f"\tsize mismatch for inner.weight: copying a param with shape {weft.Size((2, 2))} from checkpoint, the shape "
        f"in current model is {weft.Size((3, 2))}."
    )
    assert block.inner.weight.tolist() == before
    del state["inner.weight"]
    keys = block.load_state_dict(state, strict=False)
    assert keys.missing_keys == ["scale", "inner.weight"] and keys.unexpected_keys == ["other"]


def test_train_eval_apply_zero_grad() -> None:
    model = nn.Sequential(Block(), nn.Dropout())
    assert not any(m.training for m in model.eval().modules())
    assert all(m.training for m in model.train().modules())
    seen: list[str] = []
    model.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Block", "Dropout", "Sequential"]
    model(weft.ones(1, 2)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())


def test_conversion_keeps_integers_and_identity() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    first = next(model.parameters())
    assert model.to(weft.float64) is model
    assert first is next(model.parameters())
    assert {x.dtype for x in model.state_dict().values()} == {weft.float64, weft.int64}
    assert model(weft.ones(3, 2, dtype=weft.float64)).dtype is weft.float64
    assert all(p.requires_grad for p in model.half().parameters())
    with pytest.raises(TypeError, match="only accepts floating point"):
        model.to(weft.int32)


def test_copies_are_independent() -> None:
    layer = nn.Linear(2, 2)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert isinstance(other.weight, nn.Parameter) and other.weight.requires_grad
        assert other.weight.tolist() == layer.weight.tolist()
        with weft.no_grad():
            other.weight += 1
        assert other.weight.tolist() != layer.weight.tolist()


def test_containers() -> None:
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    assert len(layers) == 3 and layers[-1] is list(layers)[2] and len(layers[:2]) == 2
    layers.append(nn.ReLU()).extend([nn.Tanh()])
    assert [type(m).__name__ for m in layers][3:] == ["ReLU", "Tanh"]
    layers[0] = nn.Identity()
    assert isinstance(layers[0], nn.Identity)
    with pytest.raises(IndexError):
        layers[9] = nn.ReLU()
    table = nn.ModuleDict({"a": nn.Linear(1, 1)})
    table["b"] = nn.ReLU()
    assert list(table) == ["a", "b"] and "a" in table and len(table) == 2
    del table["a"]
    assert list(table.keys()) == ["b"]
    with pytest.raises(KeyError):
        table["forward"] = nn.ReLU()
    assert isinstance(nn.Sequential(nn.ReLU(), nn.Tanh())[1], nn.Tanh)
    assert list(nn.Sequential({"first": nn.Linear(1, 1)}).state_dict()) == ["first.weight", "first.bias"]


def test_printing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Sequential(nn.ReLU(), nn.Dropout(0.1)))
    assert repr(model) == (
        "Sequential(\n"
        "  (0): Conv2d(1, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))\n"
        "  (1): Sequential(\n"
        "    (0): ReLU()\n"
        "    (1): Dropout(p=0.1)\n"
        "  )\n"
        ")"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "Conv2d: 2 groups do not divide 3 and 4 channels"),
        (lambda: nn.Dropout(1.5), "Dropout: p must be between 0 and 1, got 1.5"),
        (lambda: nn.MultiheadAttention(10, 3), "MultiheadAttention: 3 heads do not divide embed_dim 10"),
        (
            lambda: nn.Embedding(3, 2, padding_idx=3),
            "Embedding: padding_idx 3 is out of range for 3 embeddings",
        ),
        (
            lambda: nn.BatchNorm2d(3)(weft.ones(2, 3)),
            "BatchNorm2d: needs input of 4 dimensions, got shape (2, 3)",
        ),
        (
            lambda: nn.MSELoss(reduction="avg"),
            "MSELoss: reduction must be 'mean', 'sum' or 'none', got 'avg'",
        ),
        (
            lambda: nn.init.xavier_uniform_(weft.zeros(3)),
            "xavier_uniform_: init: fans need a weight of at least 2 dimensions, got shape (3,)",
        ),
    ],
)
def test_mistakes(make: Callable[[], object], message: str) -> None:
    with pytest.raises(weft.WeftError) as error:
        make()
    assert error.value.message == message


def test_lazy_layers_become_what_their_input_asks_for() -> None:
    model = nn.Sequential(
        nn.LazyConv2d(4, 3, padding=1),
        nn.LazyBatchNorm2d(),
        nn.Flatten(),
        nn.LazyLinear(2, bias=False),
        nn.LazyBatchNorm1d(),
    )
    assert not list(model.parameters()) and "?" in repr(model)
    assert model.eval()(weft.ones(2, 3, 4, 4)).shape == (2, 2)
    kinds = [type(m).__name__ for m in model]
    assert kinds == ["Conv2d", "BatchNorm2d", "Flatten", "Linear", "BatchNorm1d"] and not model[3].training
    assert model[0].weight.shape == (4, 3, 3, 3) and model[3].in_features == 64
