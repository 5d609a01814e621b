"""Manipulation functions of the standard."""

from __future__ import annotations

from collections.abc import Sequence

from weft.array_api.promotion import Axes, index_of, together
from weft.core.layout import gather, indexing, movement
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """All arrays in their common shape."""
    return list(movement.broadcast_tensors(*arrays)) if arrays else []


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """The array in a larger shape."""
    return movement.broadcast_to(x, shape)


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """The arrays one after the other along an axis, or flattened for None."""
    parts = together("concat", *arrays)
    if axis is None:
        return movement.cat([movement.flatten(p) for p in parts], 0)
    for p in parts:
        if p.ndim != parts[0].ndim:
            raise ShapeError(
                f"concat: shapes {tuple(parts[0].shape)} and {tuple(p.shape)} have different numbers of axes"
            )
    return movement.cat(parts, axis)


def expand_dims(x: Tensor, /, *, axis: int | tuple[int, ...] = 0) -> Tensor:
    """Axes of size 1 inserted."""
    rank = x.ndim + (1 if isinstance(axis, int) else len(axis))
    wanted = sorted(index_of(a, rank) for a in ([axis] if isinstance(axis, int) else axis))
    if len(set(wanted)) != len(wanted):
        raise ArgumentError(f"expand_dims: axes {axis} must differ")
    for a in wanted:
        x = movement.unsqueeze(x, a)
    return x


def flip(x: Tensor, /, *, axis: Axes = None) -> Tensor:
    """In reverse order along axes, all by default."""
    over = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return movement.flip(x, over) if over else x


def moveaxis(x: Tensor, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Tensor:
    """Axes moved to other places."""
    return movement.movedim(x, source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """The axes in another order."""
    return movement.permute(x, tuple(axes))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element repeated in place."""
    return gather.repeat_interleave(x, repeats, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The elements in row-major order in another shape."""
    out = movement.reshape(x, tuple(shape))
    return out.clone() if copy else out


def roll(x: Tensor, /, shift: int | tuple[int, ...], *, axis: Axes = None) -> Tensor:
    """Moved by places, what leaves at one end entering at the other."""
    if isinstance(axis, tuple) and isinstance(shift, int):
        shift = (shift,) * len(axis)
    return movement.roll(x, shift, axis) if axis != () else x


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """Axes of size 1 removed."""
    for a in [axis] if isinstance(axis, int) else axis:
        if x.shape[index_of(a, x.ndim)] != 1:
            raise ArgumentError(f"squeeze: axis {a} of shape {tuple(x.shape)} has not size 1")
    return movement.squeeze(x, axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Arrays joined along a new axis."""
    return movement.stack(together("stack", *arrays), axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The array repeated along each axis."""
    times = (1,) * (x.ndim - len(repetitions)) + tuple(repetitions)
    return movement.repeat(x, times)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """All slices along an axis."""
    return indexing.unbind(x, axis)
