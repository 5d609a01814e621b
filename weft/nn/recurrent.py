"""Recurrent layers: a cell's formula, in a loop. The products with the input are one, over all steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from weft.core.functional.cells import STEPS, State, gates_of, next_cell, next_hidden, shown
from weft.core.functional.dropouts import check_probability
from weft.core.grad.scan import named_scan
from weft.core.layout.creation import arange, empty, tensor, zeros
from weft.core.layout.movement import cat, stack
from weft.core.pointwise.elementwise import where
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import DType
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module, Parameter
from weft.nn.utils.rnn import PackedSequence, pack_with, pad_packed_sequence


class RNNBase(Module):
    """The common base of recurrent layers: weights by layer and direction, and the walk over the sequence.

    weight_ih_l{k} (gates * hidden_size, inputs), weight_hh_l{k} (gates * hidden_size, hidden_size), bias_ih_l{k} and
    bias_hh_l{k}, with the suffix _reverse for the other direction; all start uniform on +-1/sqrt(hidden_size).
    """

    gates = 1
    states = 1

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if mode not in STEPS:
            raise ArgumentError(f"{name}: mode must be one of {', '.join(STEPS)}, got {mode!r}")
        if hidden_size < 1 or num_layers < 1 or input_size < 1:
            raise ArgumentError(f"{name}: sizes and num_layers must be at least 1")
        if isinstance(dropout, bool):
            raise ArgumentError(f"{name}: dropout must be a probability, got {dropout}")
        check_probability(name, "dropout", dropout)
        if proj_size and (mode != "LSTM" or not 0 < proj_size < hidden_size):
            raise ArgumentError(f"{name}: proj_size is for LSTMs, and must be smaller than hidden_size")
        self.gates, self.states = {"LSTM": (4, 2), "GRU": (3, 1)}.get(mode, (1, 1))
        self.mode, self.input_size, self.hidden_size, self.num_layers = (
            mode,
            input_size,
            hidden_size,
            num_layers,
        )
        self.bias, self.batch_first, self.dropout, self.bidirectional = (
            bias,
            batch_first,
            dropout,
            bidirectional,
        )
        self.proj_size = proj_size
        out = proj_size or hidden_size
        for layer in range(num_layers):
            size = input_size if layer == 0 else out * (1 + bidirectional)
            for suffix in self._suffixes(layer):
                shapes = {
                    "weight_ih": (self.gates * hidden_size, size),
                    "weight_hh": (self.gates * hidden_size, out),
                }
                if bias:
                    shapes |= {"bias_ih": (self.gates * hidden_size,), "bias_hh": (self.gates * hidden_size,)}
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                for kind, shape in shapes.items():
                    setattr(self, kind + suffix, Parameter(empty(*shape, device=device, dtype=dtype)))
        self.reset_parameters()

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", *([f"_l{layer}_reverse"] if self.bidirectional else [])]

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: weights need no special layout here."""

    @property
    def _all_weights(self) -> list[list[str]]:
        """The names of the parameters by layer and direction."""
        kinds = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else [])]
        kinds += ["weight_hr"] if self.proj_size else []
        return [
            [kind + suffix for kind in kinds]
            for layer in range(self.num_layers)
            for suffix in self._suffixes(layer)
        ]

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters by layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Any]:
        """The parameters one after the other: those that the attributes are now."""
        return [getattr(self, name, None) for name in self._flat_weights_names]

    def forward(self, input: Any, hx: Any = None) -> Any:
        name = type(self).__name__
        lengths: list[int] | None = None
        packed = input if isinstance(input, PackedSequence) else None
        if packed is not None:
            x, sizes = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes, None, None))
            lengths, batched = cast("list[int]", sizes.tolist()), True
        else:
            x = cast("Tensor", input)
            if x.ndim not in (2, 3):
                raise ShapeError(f"{name}: input must have 2 or 3 dimensions, got shape {tuple(x.shape)}")
            batched = x.ndim == 3
            x = (x.transpose(0, 1) if self.batch_first else x) if batched else x.unsqueeze(1)
        if x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{name}: input must have {self.input_size} features, got shape {tuple(x.shape)}"
            )
        steps = x.shape[0]
        if not isinstance(steps, int) or steps < 1:
            raise ShapeError(
                f"{name}: the length of the sequence must be known and at least 1, got {x.shape[0]}"
            )
        start = self._start(x, hx, batched, packed)
        out, last = self._layers(x, start, lengths)
        if packed is not None:
            order = packed.unsorted_indices
            final = tuple(s if order is None else s.index_select(1, order) for s in last)
            result: Any = pack_with(out, packed)
        else:
            final = last if batched else tuple(s.squeeze(1) for s in last)
            result = (out.transpose(0, 1) if self.batch_first else out) if batched else out.squeeze(1)
        return result, (final if self.states == 2 else final[0])

    def _start(self, x: Tensor, hx: Any, batched: bool, packed: PackedSequence | None) -> State:
        """The states to begin with, each (layers * directions, n, size)."""
        n, rows = x.shape[1], self.num_layers * (1 + self.bidirectional)
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[: self.states]
        if hx is None:
            return tuple(zeros(rows, n, size, dtype=x.dtype, device=x.device) for size in sizes)
        given: State = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if len(given) != self.states:
            raise ArgumentError(
                f"{type(self).__name__}: expected {self.states} initial states, got {len(given)}"
            )
        out: list[Tensor] = []
        for s, size in zip(given, sizes, strict=True):
            want = (rows, n, size) if batched else (rows, size)
            if s.shape != want:
                raise ShapeError(
                    f"{type(self).__name__}: an initial state must have shape {want}, got {tuple(s.shape)}"
                )
            s = s if batched else s.unsqueeze(1)
            sorted_ = None if packed is None else packed.sorted_indices
            out.append(s if sorted_ is None else s.index_select(1, sorted_))
        return tuple(out)

    def _layers(self, x: Tensor, start: State, lengths: Sequence[int] | None) -> tuple[Tensor, State]:
        ends: list[State] = []
        for layer in range(self.num_layers):
            outs: list[Tensor] = []
            for d, suffix in enumerate(self._suffixes(layer)):
                row = layer * (1 + self.bidirectional) + d
                out, end = self._walk(x, tuple(s[row] for s in start), suffix, bool(d), lengths)
                outs.append(out)
                ends.append(end)
            x = cat(outs, -1) if len(outs) > 1 else outs[0]
            if self.dropout and self.training and layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout)
        return x, tuple(stack([end[k] for end in ends]) for k in range(self.states))

    def _walk(
        self, x: Tensor, state: State, suffix: str, backwards: bool, lengths: Sequence[int] | None
    ) -> tuple[Tensor, State]:
        """One layer in one direction: its outputs (T, n, size) and last state."""
        step = STEPS[self.mode]
        bias_ih, bias_hh = (
            getattr(self, kind + suffix) if self.bias else None for kind in ("bias_ih", "bias_hh")
        )
        shares = F.linear(x, getattr(self, "weight_ih" + suffix), bias_ih)
        if bias_hh is not None and self.mode != "GRU":  # gates that are sums take it for all steps at once
            shares, bias_hh = shares + bias_hh, None
        project = getattr(self, "weight_hr" + suffix) if self.proj_size else None
        weight = getattr(self, "weight_hh" + suffix)
        steps = x.shape[0]
        assert isinstance(steps, int)
        masked: Tensor | None = None  # where a sequence of the batch goes on
        if lengths is not None and min(lengths) < steps:
            until = tensor(list(lengths), device=x.device)
            masked = (until > arange(x.shape[0], device=x.device).unsqueeze(1)).unsqueeze(-1)

        def next_state(
            state: State, row: tuple[Tensor, Tensor | None], uses: Sequence[Tensor]
        ) -> tuple[State, Tensor]:
            gates, here = row
            new = step(gates, state, uses[0], None if bias_hh is None else uses[1])
            if project is not None:
                new = (F.linear(new[0], uses[-1]), *new[1:])
            if here is not None:
                new = tuple(where(here, a, b) for a, b in zip(new, state, strict=True))
            return new, new[0]

        start = tuple(s.to(shares.dtype) for s in state)
        uses = [t for t in (weight, bias_hh, project) if t is not None]
        name = self.mode, bias_hh is None, project is None, masked is None
        end, outs = named_scan(next_state, name, uses, start, (shares, masked), backwards)
        return outs, end

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        for name, value, usual in (
            ("proj_size", self.proj_size, 0),
            ("num_layers", self.num_layers, 1),
            ("bias", self.bias, True),
            ("batch_first", self.batch_first, False),
            ("dropout", self.dropout, 0.0),
            ("bidirectional", self.bidirectional, False),
        ):
            if value != usual:
                parts.append(f"{name}={value}")
        return ", ".join(parts)


class RNN(RNNBase):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), or relu instead of tanh, for every layer and direction.

    Shapes: input (T, n, input_size), or (n, T, input_size) with batch_first, or without n; initial state
    (num_layers * directions, n, hidden_size) -> outputs (T, n, directions * hidden_size) and the last states. Packed
    sequences of several lengths give packed outputs. Source: Elman, Cognitive Science 14 (1990).

    >>> output, h = weft.nn.RNN(10, 20, num_layers=2)(weft.randn(5, 3, 10))
    >>> output.shape, h.shape
    (weft.Size([5, 3, 20]), weft.Size([2, 3, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"RNN: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional, 0, device, dtype,
        )  # fmt: skip


class LSTM(RNNBase):
    """i, f, o = sigmoid and g = tanh of W_ih x_t + b_ih + W_hh h + b_hh;  c' = f c + i g;  h' = o tanh(c')

    Shapes: input (T, n, input_size), or (n, T, input_size) with batch_first, or without n -> outputs
    (T, n, directions * hidden_size) and the last (h, c), each (num_layers * directions, n, hidden_size). proj_size
    makes h a projection of that size. Source: Hochreiter & Schmidhuber, Neural Computation 9 (1997).

    >>> output, (h, c) = weft.nn.LSTM(10, 20, bidirectional=True)(weft.randn(5, 3, 10))
    >>> output.shape, c.shape
    (weft.Size([5, 3, 40]), weft.Size([2, 3, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
            device, dtype,
        )  # fmt: skip


class GRU(RNNBase):
    """r, z = sigmoid of their gates;  n = tanh(W_in x_t + b_in + r (W_hn h + b_hn));  h' = (1 - z) n + z h

    Shapes as RNN. Source: Cho et al. 2014, arXiv:1406.1078, with torch's place of r.

    >>> output, h = weft.nn.GRU(10, 20, batch_first=True)(weft.randn(3, 5, 10))
    >>> output.shape, h.shape
    (weft.Size([3, 5, 20]), weft.Size([1, 3, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            "GRU",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            0,
            device,
            dtype,
        )


class RNNCellBase(Module):
    """The common base of cells: the weights of one step."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(empty(rows, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(rows, hidden_size, device=device, dtype=dtype))
        self.register_parameter(
            "bias_ih", Parameter(empty(rows, device=device, dtype=dtype)) if bias else None
        )
        self.register_parameter(
            "bias_hh", Parameter(empty(rows, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def weights_for(
        self, x: Tensor, *state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The weights and biases of one step. ShapeError for an input, or a state, that they are not for."""
        name = type(self).__name__
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{name}: input must be (n, {self.input_size}) or ({self.input_size},), got shape {tuple(x.shape)}"
            )
        shape = (*x.shape[:-1], self.hidden_size)
        for s in state:
            if s is not None and s.shape != shape:
                raise ShapeError(f"{name}: a state must have shape {shape}, got {tuple(s.shape)}")
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(RNNCellBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu. Shapes: (n, input_size), (n, hidden_size) -> the latter."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"RNNCell: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        kind = f"RNN_{self.nonlinearity.upper()}"
        return next_hidden(kind, input, *self.weights_for(input, hx), hx)


class LSTMCell(RNNCellBase):
    """One step of LSTM. Shapes: (n, input_size) and (h, c), each (n, hidden_size) -> the next (h, c)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = (None, None) if hx is None else hx
        gates = gates_of(input, *self.weights_for(input, h, c), h)
        c = next_cell(gates, c)
        return shown(gates, c), c


class GRUCell(RNNCellBase):
    """One step of GRU. Shapes: (n, input_size), (n, hidden_size) -> the latter."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return next_hidden("GRU", input, *self.weights_for(input, hx), hx)
