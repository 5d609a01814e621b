"""Recurrent layers, cells, transformers and packed sequences beside torch's, with torch's weights."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
RNG = np.random.default_rng(0)


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def twins(name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    theirs, ours = getattr(torch.nn, name)(*args, **kwargs), getattr(nn, name)(*args, **kwargs)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    assert list(ours.state_dict()) == list(theirs.state_dict())
    return ours, theirs


def flat(x: Any) -> list[Any]:
    """The tensors in nested tuples; data of packed sequences."""
    if isinstance(x, (nn.utils.rnn.PackedSequence, torch.nn.utils.rnn.PackedSequence)):
        return [x.data]
    return [t for part in x for t in flat(part)] if isinstance(x, tuple) else [x]


def compare(ours: Any, theirs: Any, mine: Any, yours: Any, leaves: tuple[Any, Any]) -> list[Any]:
    """Pairs to compare: results, and gradients of a sum of them by input and parameters."""
    a, b = flat(mine), flat(yours)
    (sum((t * t).sum() + t.sum() for t in a)).backward()
    (sum((t * t).sum() + t.sum() for t in b)).backward()
    return [*zip(a, b, strict=True), (leaves[0].grad, leaves[1].grad)] + [
        (p.grad, q.grad) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True)
    ]


def check(pairs: list[Any]) -> None:
    weft.realize(*(a for a, _ in pairs))
    for a, b in pairs:
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=2e-4, atol=2e-5)


LAYERS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("RNN", {"nonlinearity": "relu", "bias": False}, (4, 2, 3)),
    ("RNN", {"num_layers": 2, "bidirectional": True}, (3, 2, 3)),
    ("LSTM", {"num_layers": 2, "batch_first": True, "bidirectional": True}, (2, 3, 3)),
    ("LSTM", {"proj_size": 2}, (3, 3)),
    ("GRU", {"num_layers": 2}, (4, 2, 3)),
    ("GRU", {"bidirectional": True}, (3, 3)),
]


def test_layers() -> None:
    pairs: list[Any] = []
    for k, (name, options, shape) in enumerate(LAYERS):
        for with_state in (bool(k % 2),):
            ours, theirs = twins(name, 3, 5, **options)
            x = data(*shape)
            a, b = weft.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
            state: list[Any] = [None, None]
            if with_state:
                _, last = theirs(b)
                last = [t.detach().numpy() for t in flat(last)]
                state = [tuple(m.tensor(s) for s in last) for m in (weft, torch)]
                state = [s if len(s) > 1 else s[0] for s in state]
            pairs += compare(ours, theirs, ours(a, state[0]), theirs(b, state[1]), (a, b))
    check(pairs)


def test_packed_sequences() -> None:
    pairs: list[Any] = []
    for name, is_sorted in (("LSTM", False), ("GRU", True)):
        ours, theirs = twins(name, 3, 4, bidirectional=True)
        lengths = [4, 2, 1] if is_sorted else [2, 4, 1]
        x = data(4, 3, 3)
        leaves, results = [], []
        for m, layer in ((weft, ours), (torch, theirs)):
            tools = m.nn.utils.rnn
            leaf = m.tensor(x, requires_grad=True)
            packed = tools.pack_padded_sequence(leaf, lengths, enforce_sorted=is_sorted)
            out, last = layer(packed)
            padded, sizes = tools.pad_packed_sequence(out, padding_value=-1.0, total_length=5)
            assert sizes.tolist() == lengths
            leaves.append(leaf)
            results.append((out, padded, last))
        pairs += compare(ours, theirs, results[0], results[1], (leaves[0], leaves[1]))
    check(pairs)


def test_sequences() -> None:
    parts = [data(n, 2) for n in (3, 1, 2)]
    pairs: list[Any] = []
    results: list[list[Any]] = []
    for m in (weft, torch):
        tools, items = m.nn.utils.rnn, [m.tensor(p) for p in parts]
        packed = tools.pack_sequence(items, enforce_sorted=False)
        results.append([
            tools.pad_sequence(items, batch_first=True, padding_value=7.0),
            tools.pad_sequence(items, padding_side="left"),
            packed.data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices,
            *tools.unpack_sequence(packed),
        ])  # fmt: skip
    pairs += zip(*results, strict=True)
    check(pairs)
    with pytest.raises(weft.ArgumentError, match="must come longest first"):
        nn.utils.rnn.pack_padded_sequence(weft.zeros(3, 2, 1), [1, 3])


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("lengths", [(3, 0, 2), (2, 2), (0, 0), (4,)])
def test_sequences_are_padded_on_both_sides(lengths: tuple[int, ...], dtype: str) -> None:
    parts = [(data(n, 2, 3) * 9).astype(dtype) for n in lengths]
    for side, batch_first, value in itertools.product(("left", "right"), (False, True), (0, 1)):
        ours, theirs = (
            m.nn.utils.rnn.pad_sequence([m.tensor(p) for p in parts], batch_first, value, side)
            for m in (weft, torch)
        )
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), strict=True)


def test_lengths_of_sequences_are_known_when_they_are_padded() -> None:
    x, n = weft.tensor(data(8, 2)), weft.Variable("n", 1, 8)
    with pytest.raises(weft.ShapeError, match="lengths n, 3, 2 are not all known"):
        nn.utils.rnn.pad_sequence([x[:n], x[:3], x[:2]])


def test_gradients_of_padded_sequences_are_those_of_their_own_elements() -> None:
    parts = [data(n, 2) for n in (3, 1, 2)]
    grads: list[list[Any]] = []
    for m in (weft, torch):
        items = [m.tensor(p, requires_grad=True) for p in parts]
        (m.nn.utils.rnn.pad_sequence(items, padding_value=3.0) ** 3).sum().backward()
        grads.append([x.grad.numpy() for x in items])
    for ours, theirs in zip(*grads, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_cells() -> None:
    pairs: list[Any] = []
    for name in ("RNNCell", "LSTMCell", "GRUCell"):
        ours, theirs = twins(name, 3, 5)
        x, h, c = data(2, 3), data(2, 5), data(2, 5)
        a, b = weft.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        states = [(m.tensor(h), m.tensor(c)) if name == "LSTMCell" else m.tensor(h) for m in (weft, torch)]
        first = (ours(a), theirs(b))
        pairs += compare(
            ours, theirs, (ours(a, states[0]), first[0]), (theirs(b, states[1]), first[1]), (a, b)
        )
    check(pairs)


def test_transformer() -> None:
    ours, theirs = twins("Transformer", 8, 2, 1, 2, 12, 0.0, norm_first=True)
    src, tgt = data(4, 2, 8), data(3, 2, 8)
    padding = np.array([[False, False, False, True], [False, False, True, True]])
    results, leaves = [], []
    for m, model in ((weft, ours), (torch, theirs)):
        leaf = m.tensor(src, requires_grad=True)
        mask = m.nn.Transformer.generate_square_subsequent_mask(3)
        pad = m.tensor(np.where(padding, -np.inf, 0).astype(np.float32))
        results.append(
            model(leaf, m.tensor(tgt), tgt_mask=mask, src_key_padding_mask=pad, memory_key_padding_mask=pad)
        )
        leaves.append(leaf)
    check(compare(ours, theirs, results[0], results[1], (leaves[0], leaves[1])))


def test_dropout_is_between_layers_only() -> None:
    layer = nn.LSTM(3, 4, num_layers=2, dropout=1.0)
    single = nn.LSTM(3, 4)
    single.load_state_dict({k: v for k, v in layer.state_dict().items() if "l0" in k})
    x = weft.tensor(data(3, 2, 3))
    _, (h, _) = layer(x)
    np.testing.assert_allclose(h[0].numpy(), single(x)[1][0][0].numpy(), rtol=1e-6)
    assert (layer.eval()(x)[0].numpy() != h[1].numpy()).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.LSTM(3, 4)(weft.zeros(2, 1, 5)), "LSTM: input must have 3 features"),
        (lambda: nn.RNN(3, 4)(weft.zeros(3)), "RNN: input must have 2 or 3 dimensions"),
        (
            lambda: nn.GRU(3, 4)(weft.zeros(2, 1, 3), weft.zeros(1, 2, 4)),
            "GRU: an initial state must have shape",
        ),
        (
            lambda: nn.LSTM(3, 4)(weft.zeros(2, 1, 3), weft.zeros(1, 1, 4)),
            "LSTM: expected 2 initial states, got 1",
        ),
        (lambda: nn.GRU(3, 4, proj_size=2), "unexpected keyword"),
        (lambda: nn.LSTM(3, 4, proj_size=4), "LSTM: proj_size is for LSTMs"),
        (lambda: nn.RNN(3, 4, nonlinearity="gelu"), "RNN: nonlinearity must be 'tanh' or 'relu'"),
        (lambda: nn.GRUCell(3, 4)(weft.zeros(2, 5)), "GRUCell: input must be"),
        (lambda: nn.TransformerEncoderLayer(8, 3), "3 heads do not divide embed_dim 8"),
        (
            lambda: nn.TransformerEncoderLayer(8, 2, activation="none"),
            "activation must be 'relu', 'gelu' or a function",
        ),
    ],
)
def test_mistakes(call: Any, message: str) -> None:
    with pytest.raises((weft.WeftError, TypeError), match=message):
        call()
