"""Moments of eight bits: codes beside a table of all values, training beside whole moments, saving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.errors import ArgumentError
from weft.optim.eight_bit import decoded, encoded


def table(signed: bool) -> np.ndarray[Any, Any]:
    """All values, rising, as the paper's appendix lists them."""
    values = [0.0, 1.0]
    for i in range(7):
        edges = np.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        means = 10.0 ** (i - 6) * (edges[1:] + edges[:-1]) / 2
        values += [*means, *(-means if signed else ())]
    return np.sort(values)


@pytest.mark.parametrize("signed", [True, False])
def test_a_code_is_the_nearest_of_the_table(signed: bool) -> None:
    values = table(signed)
    assert len(values) == 256
    rng = np.random.default_rng(0)
    x = 10.0 ** rng.uniform(-8, 0, 5000) * (rng.choice([-1, 1], 5000) if signed else 1)
    x = np.concatenate([values, x, [0.0]]).astype(np.float32)
    x[::256] = 1  # each block's largest
    codes, scale = encoded(weft.tensor(x), signed)
    found = decoded(codes, scale, signed, weft.tensor(x)).numpy()
    np.testing.assert_allclose(values[codes.numpy().ravel()[: len(x)]], found, rtol=1e-5)
    best = abs(x[:, None].astype(np.float64) - values).min(1)
    if not signed:  # what is not zero is not rounded to it
        best = np.where((x > 0) & (x < values[1] / 2), values[1] - x, best)
    assert (abs(found.astype(np.float64) - x) <= best * 1.01 + 1e-6 * abs(x)).all()
    assert (found[x == 0] == 0).all() and (signed or (found[x > 0] > 0).all())


def test_blocks_have_scales_of_their_own_and_shapes_come_back() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(7, 5, 31)) * 10.0 ** rng.integers(-6, 6, (7, 1, 1))).astype(np.float32)
    codes, scale = encoded(weft.tensor(x), True)
    assert codes.shape == (5, 256) and codes.dtype is weft.uint8 and scale.shape == (5, 1)
    found = decoded(codes, scale, True, weft.tensor(x)).numpy()
    rows = np.pad(x.ravel(), (0, 195)).reshape(5, 256)
    limit = np.repeat(abs(rows).max(1), 256)[: x.size].reshape(x.shape)
    assert (abs(found - x) <= 0.0071 * limit).all()
    assert not encoded(weft.zeros(300), True)[1].numpy().any()


def fitted(compiled: bool = False, **how: Any) -> tuple[float, Any, Any]:
    """The loss after some steps of a small network, with it and its optimizer."""
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 64))
    optimizer = optim.AdamW(model.parameters(), lr=3e-3, **how)
    x = weft.randn(64, 64).realize()
    y = weft.sin(x @ weft.randn(64, 64) / 4).realize()

    def step() -> weft.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = weft.compile(step) if compiled else step
    for _ in range(60):
        loss = run()
    return loss.item(), model, optimizer


def test_training_goes_as_with_whole_moments() -> None:
    whole, _, plain = fitted()
    found, model, optimizer = fitted(state_bits=8)
    again, _, _ = fitted(compiled=True, state_bits=8)
    assert whole < 0.2 and abs(found - whole) < 0.1 * whole and abs(again - found) < 0.02 * whole
    large, small = model[0].weight, model[0].bias
    assert {t.dtype for t in optimizer.state[small].values()} == {weft.float32}
    kept, before = (
        sum(t.numel() * t.element_size() for t in o.state[p].values())
        for o, p in ((optimizer, large), (plain, next(iter(plain.state))))
    )
    assert kept < 0.26 * before


def test_a_saved_state_goes_on_bit_for_bit() -> None:
    _, model, optimizer = fitted(state_bits=8)
    other = optim.AdamW(model.parameters(), lr=3e-3, state_bits=8)
    other.load_state_dict(optimizer.state_dict())
    for p in model.parameters():
        for name, t in optimizer.state[p].items():
            np.testing.assert_array_equal(other.state[p][name].numpy(), t.numpy())
    with pytest.raises(ArgumentError, match="shape"):
        optim.AdamW(model.parameters()).load_state_dict(optimizer.state_dict())


def test_what_has_no_such_form_is_refused() -> None:
    p = nn.Parameter(weft.zeros(3))
    with pytest.raises(ArgumentError, match="amsgrad"):
        optim.Adam([p], amsgrad=True, state_bits=8)
    with pytest.raises(ArgumentError, match="8 or None, got 4"):
        optim.AdamW([p], state_bits=4)
