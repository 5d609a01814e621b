"""Sequences of several lengths: padded to one, or packed without padding."""
# Tests: tests/nn/test_recurrent.py

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core.layout.creation import tensor
from weft.core.layout.movement import cat, constant_pad, stack
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError


class PackedSequence(NamedTuple):
    """The steps of several sequences one after the other: all first steps, all second steps ... longest sequence first.

    batch_sizes[t] is how many sequences have a step t. sorted_indices is the order of the sequences by length,
    unsorted_indices the way back; None where they came in that order.
    """

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The same with data in another dtype or on another device."""
        return self._replace(data=self.data.to(*args, **kwargs))


def _lengths(batch_sizes: Any) -> Any:
    """The length of each sequence, longest first."""
    here = np.greater(np.asarray(batch_sizes)[None, :], np.arange(int(batch_sizes[0])).reshape(-1, 1))
    return np.count_nonzero(here, 1)


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """(T, n, ...), or (n, T, ...) with batch_first, of which each sequence has `lengths` steps, without the padding.

    With enforce_sorted, the lengths must come longest first. They are read now.
    """
    sizes = np.asarray(lengths.numpy() if isinstance(lengths, Tensor) else lengths, np.int64).reshape(-1)
    x = input.transpose(0, 1) if batch_first else input
    steps, n = x.shape[:2]
    if (
        not isinstance(steps, int)
        or len(sizes) != n
        or sizes.min(initial=1) < 1
        or sizes.max(initial=1) > steps
    ):
        raise ArgumentError(
            f"pack_padded_sequence: lengths must be {n} numbers from 1 to {steps}, got {sizes.tolist()}"
        )
    order = np.argsort(-sizes, kind="stable")
    if enforce_sorted and (np.diff(sizes) > 0).any():
        raise ArgumentError(
            f"pack_padded_sequence: lengths {sizes.tolist()} must come longest first, or pass enforce_sorted=False"
        )
    here = np.greater(sizes[None, :], np.arange(int(sizes.max())).reshape(-1, 1))
    batch_sizes = np.asarray(np.count_nonzero(here, 1))
    places: list[Any] = [t * len(sizes) + order[:k] for t, k in enumerate(batch_sizes)]
    flat = np.concatenate(places)
    data = x.reshape((-1, *x.shape[2:])).index_select(0, tensor(flat, device=x.device))
    if enforce_sorted:
        return PackedSequence(data, tensor(batch_sizes))
    back = np.argsort(order)
    return PackedSequence(data, tensor(batch_sizes), *(tensor(i, device=x.device) for i in (order, back)))


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(the sequences (T, n, ...) padded to one length, their lengths): the way back from pack_padded_sequence."""
    batch_sizes = sequence.batch_sizes.numpy()
    steps, n = len(batch_sizes), int(batch_sizes[0])
    lengths = _lengths(batch_sizes)
    start = np.cumsum(batch_sizes) - batch_sizes
    here = np.arange(n)[None, :] < batch_sizes[:, None]
    place = np.where(here, start[:, None] + np.arange(n), 0)
    data = sequence.data
    rows = data.index_select(0, tensor(place.reshape(-1), device=data.device)).reshape(
        (steps, n, *data.shape[1:])
    )
    keep = tensor(here.reshape((steps, n, *(1 for _ in data.shape[1:]))), device=data.device)
    out = rows.masked_fill(keep.logical_not(), padding_value)
    if total_length is not None:
        if total_length < steps:
            raise ArgumentError(
                f"pad_packed_sequence: total_length {total_length} is less than the {steps} steps"
            )
        after = [*(0 for _ in range(2 * (out.ndim - 1))), 0, total_length - steps]
        out = constant_pad(out, after, padding_value)
    if sequence.unsorted_indices is not None:
        out = out.index_select(1, sequence.unsorted_indices)
        lengths = lengths[sequence.unsorted_indices.numpy()]
    return (out.transpose(0, 1) if batch_first else out), tensor(lengths)


def pack_with(padded: Tensor, like: PackedSequence) -> PackedSequence:
    """(T, n, ...), sequences longest first, packed as another sequence is."""
    batch_sizes: Any = like.batch_sizes.numpy()
    n = int(batch_sizes[0])
    places: list[Any] = [t * n + np.arange(k) for t, k in enumerate(batch_sizes)]
    flat = np.concatenate(places)
    rows = padded.reshape((-1, *padded.shape[2:]))
    return like._replace(data=rows.index_select(0, tensor(flat, device=padded.device)))


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:  # fmt: skip
    """Tensors (T_i, ...) padded to the longest and stacked: (T, n, ...), or (n, T, ...) with batch_first."""
    if padding_side not in ("right", "left"):
        raise ArgumentError(f"pad_sequence: padding_side must be 'right' or 'left', got {padding_side!r}")
    items = list(sequences)
    if not items or any(x.ndim < 1 or x.shape[1:] != items[0].shape[1:] for x in items):
        raise ShapeError("pad_sequence: needs tensors (T_i, ...) that agree in all sizes but the first")
    known = [n for x in items if isinstance(n := x.shape[0], int)]
    if len(known) < len(items):
        given = ", ".join(str(x.shape[0]) for x in items)
        raise ShapeError(
            f"pad_sequence: lengths {given} are not all known when it is called; cut the tensors by numbers, not by "
            "Variables: plans are shared by all lengths in any case"
        )
    lengths = np.asarray(known).reshape(-1, 1)
    most = int(lengths.max())
    within = np.arange(most) - (0 if padding_side == "right" else most - lengths)
    here = np.greater_equal(within, 0) & np.less(within, lengths)
    if here.all():
        return stack(items, 0 if batch_first else 1)
    # rows by number: of paddings, the longest would have none, and each that is the longest a graph of its own
    place = np.where(here, within + lengths.cumsum(0).reshape(-1, 1) - lengths, 0)
    if not batch_first:
        place, here = place.T, here.T
    inner = items[0].shape[1:]
    rows = cat(items).index_select(0, tensor(place.reshape(-1), device=items[0].device))
    added = tensor(~here.reshape((*here.shape, *(1 for _ in inner))), device=items[0].device)
    return rows.reshape((*place.shape, *inner)).masked_fill(added, padding_value)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """The tensors (T_i, ...) that pad_sequence padded to one length."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [rows[i, :n] for i, n in enumerate(lengths.tolist())]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Tensors (T_i, ...) packed."""
    lengths = [n for x in sequences if isinstance(n := x.shape[0], int)]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The tensors (T_i, ...) that pack_sequence packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


__all__ = [
    "PackedSequence", "pack_padded_sequence", "pack_sequence", "pack_with", "pad_packed_sequence",
    "pad_sequence", "unpack_sequence", "unpad_sequence",
]  # fmt: skip
