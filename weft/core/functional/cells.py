"""The formulas of recurrent cells: of a step of a layer, which is a loop's, and of a cell by itself, as calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from weft.core.composed.composite import composite
from weft.core.functional.activations import relu
from weft.core.functional.linear_maps import linear
from weft.core.layout.creation import zeros
from weft.core.pointwise.elementwise import tanh
from weft.ir.index import Int

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

State: TypeAlias = "tuple[Tensor, ...]"
CellStep: TypeAlias = "Callable[[Tensor, State, Tensor, Tensor | None], State]"
"""(the input's share of the gates, state, weight_hh, bias_hh) -> the next state, the hidden one first."""


def _tanh_step(gates: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    """h' = tanh(x-part + W h + b)"""
    return (tanh(gates + linear(state[0], w, b)),)


def _relu_step(gates: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    """h' = relu(x-part + W h + b)"""
    return (relu(gates + linear(state[0], w, b)),)


def _lstm_step(gates: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    """i, f, o = sigmoid, g = tanh of the gates; c' = f c + i g; h' = o tanh(c')"""
    i, f, g, o = (gates + linear(state[0], w, b)).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(gates: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    """r, z = sigmoid; n = tanh(x-part + r * (W h + b)); h' = (1 - z) n + z h"""
    (h,) = state
    xr, xz, xn = gates.chunk(3, -1)
    hr, hz, hn = linear(h, w, b).chunk(3, -1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return ((1 - z) * n + z * h,)


STEPS: dict[str, CellStep] = {
    "RNN_TANH": _tanh_step,
    "RNN_RELU": _relu_step,
    "LSTM": _lstm_step,
    "GRU": _gru_step,
}


@composite
def next_hidden(
    kind: str,
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h: Tensor | None,
) -> Tensor:
    """One step of a cell whose state is what it shows."""
    return STEPS[kind](linear(x, w_ih, b_ih), (_or_zeros(h, x, w_hh.shape[1]),), w_hh, b_hh)[0]


@composite
def gates_of(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, h: Tensor | None
) -> Tensor:
    """The gates of an LSTM before their functions: a call of its own, so that the gradients of what is made of them
    meet before they go through the products."""
    return linear(x, w_ih, b_ih) + linear(_or_zeros(h, x, w_hh.shape[1]), w_hh, b_hh)


@composite
def next_cell(gates: Tensor, c: Tensor | None) -> Tensor:
    """The next cell state of an LSTM, from zeros where there is none."""
    i, f, g, _ = gates.chunk(4, -1)
    return f.sigmoid() * _or_zeros(c, gates, i.shape[-1]) + i.sigmoid() * g.tanh()


@composite
def shown(gates: Tensor, c: Tensor) -> Tensor:
    """The hidden state of an LSTM by its cell state."""
    return gates.chunk(4, -1)[3].sigmoid() * c.tanh()


def _or_zeros(state: Tensor | None, like: Tensor, width: Int) -> Tensor:
    return zeros(*like.shape[:-1], width, dtype=like.dtype, device=like.device) if state is None else state
