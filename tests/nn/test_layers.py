"""Layers against torch's of the same name, with torch's weights: results, gradients, and state dicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")


@dataclass(frozen=True)
class Case:
    """A layer, made by `make(nn)` from either library, and the shape of its input."""

    make: Callable[[Any], Any]
    shape: tuple[int, ...]
    name: str = ""


def layer(name: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda library: getattr(library, name)(*args, **kwargs)


ACTIVATIONS = [
    Case(layer(name, *args), (3, 8), name)
    for name, args in {
        "ReLU": (), "ReLU6": (), "LeakyReLU": (0.2,), "PReLU": (), "ELU": (0.7,), "SELU": (), "GELU": (), "SiLU": (),
        "Mish": (), "Sigmoid": (), "LogSigmoid": (), "Tanh": (), "Hardtanh": (-0.5, 0.5), "Hardsigmoid": (),
        "Hardswish": (), "Softplus": (2.0, 3.0), "Softsign": (), "Softmax": (-1,), "LogSoftmax": (-1,), "GLU": (),
        "Identity": (),
    }.items()
]  # fmt: skip

LAYERS = [
    *ACTIVATIONS,
    Case(layer("GELU", approximate="tanh"), (3, 8), "GELU tanh"),
    Case(layer("PReLU", 4), (3, 4, 5), "PReLU per channel"),
    Case(layer("Linear", 5, 3), (2, 4, 5), "Linear"),
    Case(layer("Linear", 5, 3, bias=False), (5,), "Linear without bias"),
    Case(layer("Conv1d", 4, 6, 3, stride=2, padding=1), (2, 4, 9), "Conv1d"),
    Case(layer("Conv1d", 4, 6, 3, dilation=2, groups=2, bias=False), (2, 4, 9), "Conv1d grouped"),
    Case(layer("Conv2d", 3, 4, 3, padding=1), (2, 3, 6, 5), "Conv2d"),
    Case(layer("Conv2d", 2, 4, (3, 2), stride=(2, 1), padding="valid"), (2, 2, 6, 5), "Conv2d valid"),
    Case(layer("Conv2d", 2, 4, 3, padding="same", padding_mode="circular"), (2, 2, 6, 5), "Conv2d circular"),
    Case(layer("Conv2d", 2, 2, 3, padding=2, padding_mode="reflect"), (2, 2, 6, 5), "Conv2d reflected"),
    Case(layer("Conv2d", 2, 2, 3, padding=(1, 2), padding_mode="replicate"), (2, 6, 5), "Conv2d replicated"),
    Case(layer("BatchNorm1d", 4), (5, 4), "BatchNorm1d"),
    Case(layer("BatchNorm1d", 4, affine=False), (5, 4, 3), "BatchNorm1d with length"),
    Case(layer("BatchNorm2d", 3, momentum=0.3), (2, 3, 4, 4), "BatchNorm2d"),
    Case(layer("BatchNorm2d", 3, track_running_stats=False), (2, 3, 4, 4), "BatchNorm2d without statistics"),
    Case(layer("LayerNorm", 6), (2, 3, 6), "LayerNorm"),
    Case(layer("LayerNorm", (3, 6), elementwise_affine=False), (2, 3, 6), "LayerNorm of two"),
    Case(layer("LayerNorm", 6, bias=False), (2, 6), "LayerNorm without bias"),
    Case(layer("RMSNorm", 6), (2, 3, 6), "RMSNorm"),
    Case(layer("RMSNorm", 6, eps=1e-3), (2, 6), "RMSNorm eps"),
    Case(layer("GroupNorm", 2, 4), (3, 4, 5), "GroupNorm"),
    Case(layer("MaxPool1d", 3, 2, padding=1), (2, 3, 9), "MaxPool1d"),
    Case(layer("MaxPool2d", 2), (2, 3, 6, 6), "MaxPool2d"),
    Case(layer("MaxPool2d", 3, 2, ceil_mode=True), (2, 3, 6, 6), "MaxPool2d ceil"),
    Case(layer("AvgPool1d", 2), (2, 3, 8), "AvgPool1d"),
    Case(layer("AvgPool2d", 3, 2, padding=1, count_include_pad=False), (2, 3, 6, 6), "AvgPool2d"),
    Case(layer("AdaptiveAvgPool1d", 3), (2, 3, 7), "AdaptiveAvgPool1d"),
    Case(layer("AdaptiveAvgPool2d", 1), (2, 3, 5, 4), "AdaptiveAvgPool2d"),
    Case(layer("AdaptiveMaxPool2d", (2, 3)), (2, 3, 6, 6), "AdaptiveMaxPool2d"),
    *(
        Case(layer(name, *args), (2, 4, 6, 6), name)
        for name, args in {
            "CELU": (0.7,),
            "RReLU": (0.2, 0.2),
            "Threshold": (0.1, 3.0),
            "Hardshrink": (),
            "Softshrink": (0.3,),
            "Tanhshrink": (),
            "Softmin": (1,),
            "Softmax2d": (),
            "LPPool2d": (1, 2),
            "ZeroPad2d": (2,),
            "ConstantPad2d": ((1, 0, 2, 1), 3.5),
            "ReflectionPad2d": (2,),
            "ReplicationPad2d": ((1, 2, 0, 1),),
            "CircularPad2d": (1,),
            "InstanceNorm2d": (4,),
            "LocalResponseNorm": (3,),
            "PixelShuffle": (2,),
            "PixelUnshuffle": (2,),
            "ChannelShuffle": (2,),
            "Unfold": (2,),
            "AdaptiveMaxPool2d": ((2, 4),),
        }.items()
    ),
    Case(
        layer("InstanceNorm1d", 4, affine=True, track_running_stats=True),
        (3, 4, 6),
        "InstanceNorm1d tracking",
    ),
    Case(layer("InstanceNorm3d", 2), (2, 4, 3, 3), "InstanceNorm3d single"),
    Case(layer("BatchNorm3d", 2), (2, 2, 3, 3, 3), "BatchNorm3d"),
    Case(layer("BatchNorm1d", 4, momentum=None), (5, 4), "BatchNorm1d cumulative"),
    Case(layer("Conv3d", 2, 4, (1, 2, 3), padding="same", groups=2), (1, 2, 3, 4, 4), "Conv3d"),
    Case(layer("ConvTranspose1d", 4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 5), "ConvTranspose1d"),
    Case(
        layer("ConvTranspose2d", 3, 2, 3, stride=2, output_padding=1, bias=False),
        (2, 3, 4, 3),
        "ConvTranspose2d",
    ),
    Case(layer("ConvTranspose3d", 2, 2, 2, dilation=2), (1, 2, 2, 3, 2), "ConvTranspose3d"),
    Case(layer("Fold", (4, 5), 2), (2, 12, 12), "Fold"),
    Case(layer("Upsample", scale_factor=2, mode="bilinear"), (1, 2, 3, 4), "Upsample"),
    Case(layer("TransformerEncoderLayer", 8, 2, 12, 0.0), (3, 2, 8), "TransformerEncoderLayer"),
    Case(
        layer(
            "TransformerEncoderLayer", 8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True, bias=False
        ),
        (3, 2, 8),
        "TransformerEncoderLayer norm first",
    ),
    Case(layer("Flatten"), (2, 3, 4), "Flatten"),
    Case(layer("Unflatten", 1, (2, 3)), (4, 6), "Unflatten"),
    Case(lambda n: n.Sequential(n.Linear(4, 6), n.ReLU(), n.Linear(6, 2)), (3, 4), "Sequential"),
]


def twins(make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A weft layer and a torch layer with the same weights, which torch drew."""
    torch.manual_seed(0)
    theirs, ours = make(torch.nn), make(nn)
    with torch.no_grad():
        for p in theirs.parameters():
            p.uniform_(-1, 1)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    return ours, theirs


def same(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", LAYERS, ids=[c.name for c in LAYERS])
def test_layers_compute_what_torchs_do(case: Case) -> None:
    ours, theirs = twins(case.make)
    x = np.random.default_rng(1).standard_normal(case.shape).astype(np.float32)
    a, b = weft.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    for _ in range(2):  # twice: batch norm's statistics move
        y, z = ours(a), theirs(b)
        same(y, z)
    weights = np.random.default_rng(2).standard_normal(tuple(z.shape)).astype(np.float32)
    (y * weft.tensor(weights)).sum().backward()
    (z * torch.tensor(weights)).sum().backward()
    same(a.grad, b.grad, 1e-4)
    for (name, p), (their_name, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == their_name
        same(p.grad, q.grad, 1e-4)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        same(ours.state_dict()[name], value)
    same(ours.eval()(a), theirs.eval()(b))
    assert repr(ours).split("(")[0] == repr(theirs).split("(")[0]


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
def test_embedding(padding_idx: int | None) -> None:
    ours, theirs = twins(layer("Embedding", 7, 3, padding_idx=padding_idx))
    index = np.array([[1, 2, 2], [6, 0, 1]])
    y, z = ours(weft.tensor(index)), theirs(torch.tensor(index))
    same(y, z)
    (y * y).sum().backward()
    (z * z).sum().backward()
    same(ours.weight.grad, theirs.weight.grad)


def test_embedding_starts_with_zeros_for_padding() -> None:
    assert nn.Embedding(4, 3, padding_idx=1).weight[1].tolist() == [0, 0, 0]
    frozen = nn.Embedding.from_pretrained(weft.arange(6.0).reshape(3, 2))
    assert not frozen.weight.requires_grad and frozen(weft.tensor([2])).tolist() == [[4, 5]]


MASKS = {
    "none": (None, None),
    "bool": (np.triu(np.ones((4, 5), bool), 2), np.array([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]], bool)),
    "float": (np.linspace(-1, 1, 20).reshape(4, 5).astype(np.float32), None),
    "per head": (np.random.default_rng(0).random((6, 4, 5)) > 0.8, None),
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("options", [
    {}, {"batch_first": True}, {"kdim": 7, "vdim": 8}, {"bias": False}, {"add_bias_kv": True, "add_zero_attn": True},
])  # fmt: skip
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention(masks: str, options: dict[str, Any], need_weights: bool) -> None:
    ours, theirs = twins(layer("MultiheadAttention", 6, 3, **options))
    rng = np.random.default_rng(3)
    sizes = [(2, 4, 6), (2, 5, options.get("kdim", 6)), (2, 5, options.get("vdim", 6))]
    qkv = [rng.standard_normal(s).astype(np.float32) for s in sizes]
    if not options.get("batch_first"):
        qkv = [x.transpose(1, 0, 2) for x in qkv]
    attn, padding = MASKS[masks]
    results = [
        module(
            *[tensor(x) for x in qkv],
            attn_mask=None if attn is None else tensor(attn),
            key_padding_mask=None if padding is None else tensor(padding),
            need_weights=need_weights,
        )
        for module, tensor in ((ours, weft.tensor), (theirs, torch.tensor))
    ]
    (y, weights), (z, their_weights) = results
    same(y, z)
    if need_weights:
        same(weights, their_weights)
    else:
        assert weights is None
    (y * y).sum().backward()
    (z * z).sum().backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        same(p.grad, q.grad, 2e-4)


def test_multihead_attention_unbatched_and_per_head_weights() -> None:
    ours, theirs = twins(layer("MultiheadAttention", 6, 2))
    x = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
    y, w = ours(*[weft.tensor(x)] * 3, average_attn_weights=False)
    z, v = theirs(*[torch.tensor(x)] * 3, average_attn_weights=False)
    same(y, z)
    same(w, v)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("given", ["aaa", "baa", "aab", "aba", "bac"])
def test_each_tensor_is_projected_by_its_own_rows(given: str, batch_first: bool) -> None:
    ours, theirs = twins(layer("MultiheadAttention", 6, 2, batch_first=batch_first))
    data = {c: np.random.default_rng(ord(c)).standard_normal((3, 3, 6)).astype(np.float32) for c in given}
    results = []
    for module, tensor in ((ours, weft.tensor), (theirs, torch.tensor)):
        made = {c: tensor(x).requires_grad_() for c, x in data.items()}
        y, _ = module(*(made[c] for c in given), need_weights=False)
        (y * y).sum().backward()
        results.append((y, *(t.grad for t in made.values()), *(p.grad for p in module.parameters())))
    for got, expected in zip(*results, strict=True):
        same(got, expected, 2e-4)


@pytest.mark.parametrize("same_tensors", [3, 2])
def test_a_tensor_that_is_given_more_than_once_is_projected_once(same_tensors: int) -> None:
    ours = nn.MultiheadAttention(6, 2)
    alone = weft.compile(lambda k: ours(k, k, k, need_weights=False)[0])
    crossed = weft.compile(lambda k, q: ours(q, k, k, need_weights=False)[0])
    kernels = (alone if same_tensors == 3 else crossed).explain(
        *[weft.ones(3, 4, 6) for _ in range(4 - same_tensors)]
    )
    reading = [k for k in kernels if "f32[18, 6]" in k.algorithm]
    assert len(reading) == 4 - same_tensors


LOSSES: list[tuple[str, tuple[int, ...], Any, dict[str, Any]]] = [
    ("MSELoss", (3, 4), "floats", {}),
    ("L1Loss", (3, 4), "floats", {"reduction": "sum"}),
    ("SmoothL1Loss", (3, 4), "floats", {"beta": 0.5}),
    ("HuberLoss", (3, 4), "floats", {"delta": 0.5, "reduction": "none"}),
    ("CrossEntropyLoss", (3, 4), "classes", {"label_smoothing": 0.1}),
    ("CrossEntropyLoss", (3, 4), "classes", {"ignore_index": 1}),
    ("CrossEntropyLoss", (3, 4), "probabilities", {}),
    ("NLLLoss", (3, 4), "classes", {"reduction": "sum"}),
    ("BCELoss", (3, 4), "probabilities", {}),
    ("BCEWithLogitsLoss", (3, 4), "probabilities", {"reduction": "sum"}),
    ("KLDivLoss", (3, 4), "probabilities", {"reduction": "batchmean"}),
]


@pytest.mark.parametrize(
    ("name", "shape", "target", "options"), LOSSES, ids=[f"{n[0]}-{k}" for k, n in enumerate(LOSSES)]
)
def test_losses(name: str, shape: tuple[int, ...], target: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(np.float32)
    if name == "BCELoss":
        x = 1 / (1 + np.exp(-x))
    y = {
        "floats": rng.standard_normal(shape).astype(np.float32),
        "classes": rng.integers(0, shape[1], shape[0]),
        "probabilities": rng.dirichlet(np.ones(shape[1]), shape[0]).astype(np.float32),
    }[target]
    same(
        getattr(nn, name)(**options)(weft.tensor(x), weft.tensor(y)),
        getattr(torch.nn, name)(**options)(torch.tensor(x), torch.tensor(y)),
    )


def test_class_weights() -> None:
    x, y, w = (
        np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32),
        np.array([0, 2, 1, 1]),
        [1.0, 2.0, 0.5],
    )
    same(
        nn.CrossEntropyLoss(weft.tensor(w))(weft.tensor(x), weft.tensor(y)),
        torch.nn.CrossEntropyLoss(torch.tensor(w))(torch.tensor(x), torch.tensor(y)),
    )


@pytest.mark.parametrize("name", ["Linear", "Conv2d", "Embedding", "MultiheadAttention"])
def test_initial_values_are_distributed_as_torchs(name: str) -> None:
    args = {
        "Linear": (64, 256),
        "Conv2d": (16, 64, 3),
        "Embedding": (200, 64),
        "MultiheadAttention": (64, 4),
    }[name]
    weft.manual_seed(1)
    torch.manual_seed(1)
    ours, theirs = getattr(nn, name)(*args), getattr(torch.nn, name)(*args)
    for (n, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        a, b = p.numpy(), q.detach().numpy()
        assert a.shape == b.shape, n
        np.testing.assert_allclose([a.mean(), a.std()], [b.mean(), b.std()], rtol=0.15, atol=0.02)
        assert a.min() >= 1.1 * b.min() - 0.3 and a.max() <= 1.1 * b.max() + 0.3


def test_dropout_drops_in_training_only() -> None:
    x = weft.ones(1000)
    y = nn.Dropout(0.3)(x).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.7)}
    assert 0.2 < (y == 0).mean() < 0.4
    assert (nn.Dropout(0.3).eval()(x).numpy() == 1).all()
    per_channel = nn.Dropout2d(0.5)(weft.ones(4, 16, 3, 3)).numpy().reshape(64, 9)
    assert all(len(set(c)) == 1 for c in per_channel)
