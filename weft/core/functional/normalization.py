"""Normalization: zero mean and unit variance, over rows, channels or groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.autograd.value import Value, apply
from weft.core.args import broadcast as bc
from weft.core.args.broadcast import size_tensor
from weft.core.args.handle import value_of, wrap
from weft.core.args.requirements import Given, at_most_dims, floats, needs, one_dtype
from weft.core.composed.autocast import widens_on_gpus
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.execute.realization import catch_up_state, note
from weft.core.functional.distances import vector_norm
from weft.core.functions import norms
from weft.core.functions.reductions import count, reduce
from weft.core.layout.movement import pad_value, window
from weft.core.pointwise.elementwise import clamp, div, pow, rsqrt
from weft.core.pointwise.float_format import MANTISSA
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import DType, int64
from weft.ir.graph import Axes
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def _float(op: str, input: Tensor) -> Value:
    v = value_of(op, input)
    if not v.dtype.is_float:
        raise DTypeError(f"{op}: needs a float tensor, got {v.dtype.name}; convert it with .float()")
    return v


def _mean(x: Tensor, over: tuple[int, ...]) -> Tensor:
    total = wrap(reduce(Op.SUM, x.value, over, keepdim=True))
    return total / size_tensor(count(x.value, over), x.value.dtype)


def _standardized(v: Value, over: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(var + eps) in the accumulator's dtype, the mean and the biased variance."""
    x = wrap(widened(v))
    mean = _mean(x, over)
    centred = x - mean
    var = _mean(centred * centred, over)
    return centred * rsqrt(var + eps), mean, var


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: DType) -> Tensor:
    """x * weight + bias, in the dtype of the input."""
    wide = x.value.dtype
    if weight is not None:
        x = x * wrap(bc.cast(weight.value, wide))
    if bias is not None:
        x = x + wrap(bc.cast(bias.value, wide))
    return wrap(bc.cast(x.value, dtype))


def _normalized_axes(
    op: str, v: Value, normalized_shape: Int | Sequence[Int], weight: Tensor | None, bias: Tensor | None
) -> tuple[int, ...]:
    shape = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    if len(shape) > len(v.shape) or not shape or v.shape[-len(shape) :] != shape:
        raise ShapeError(
            f"{op}: the last dimensions of input, shape {tuple(v.shape)}, must be normalized_shape {shape}"
        )
    for name, p in (("weight", weight), ("bias", bias)):
        if p is not None and value_of(op, p).shape != shape:
            raise ShapeError(f"{op}: {name} must have shape {shape}, got {tuple(value_of(op, p).shape)}")
    return tuple(range(len(v.shape) - len(shape), len(v.shape)))


@composite(autocast=widens_on_gpus, rounds_once=False)
@needs(one_dtype("input", "weight", "bias", mixed=True))
def layer_norm(
    input: Tensor,
    normalized_shape: Int | Sequence[Int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dimensions, which normalized_shape names.

    Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """
    v = _float("layer_norm", input)
    over = _normalized_axes("layer_norm", v, normalized_shape, weight, bias)
    out, _, _ = _standardized(v, over, eps)
    return _affine(out, weight, bias, v.dtype)


@composite(rounds_once=False)
def rms_norm(
    input: Tensor,
    normalized_shape: Int | Sequence[Int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x**2) + eps) * weight over the last dimensions, which normalized_shape names.

    eps is the machine epsilon of the dtype that computes unless given: float32's for 16-bit floats.
    Source: Zhang & Sennrich 2019, arXiv:1910.07467.
    """
    v = _float("rms_norm", input)
    over = _normalized_axes("rms_norm", v, normalized_shape, weight, None)
    x = wrap(widened(v))
    least = 2.0 ** -MANTISSA[x.value.dtype.name] if eps is None else eps
    return _affine(x * rsqrt(_mean(x * x, over) + least), weight, None, v.dtype)


def _check_per_channel(op: str, name: str, t: Tensor | None, channels: Int) -> None:
    if t is not None and value_of(op, t).shape != (channels,):
        raise ShapeError(f"{op}: {name} must have shape ({channels},), got {tuple(value_of(op, t).shape)}")


def _per_channel(op: str, name: str, t: Tensor | None, channels: Int, rank: int) -> Tensor | None:
    """A vector with one number per channel, shaped to broadcast along dimension 1."""
    if t is None:
        return None
    _check_per_channel(op, name, t, channels)
    return wrap(bc.reshape(t.value, (1, channels, *(1 for _ in range(rank - 2)))))


def _fits_channels(op: str, given: Given) -> None:
    """Weights and statistics have one number per channel, and there is something to take statistics of."""
    if "input" not in given:
        return  # Python says so
    v = _float(op, given["input"])
    rank = len(v.shape)
    if rank < 2:
        raise ShapeError(f"{op}: needs input (n, channels, ...), got shape {tuple(v.shape)}")
    for name in ("weight", "bias", "running_mean", "running_var"):
        _check_per_channel(op, name, given.get(name), v.shape[1])
    if not given.get("training"):
        if given.get("running_mean") is None or given.get("running_var") is None:
            raise ArgumentError(f"{op}: running_mean and running_var are needed unless training")
        return
    eps = given.get("eps", 1.0)
    if not eps > 0:
        raise ArgumentError(f"{op}: eps must be positive in training, got {eps}")
    if count(v, (0, *range(2, rank))) == 1:
        raise ShapeError(f"{op}: training needs more than one value per channel, got shape {tuple(v.shape)}")


@needs(
    one_dtype("input", "weight", "bias", "running_mean", "running_var", mixed=True),
    floats("input"),
    _fits_channels,
)
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias per channel (dimension 1).

    In training, mean and variance are the batch's, and the running ones move toward them by momentum (the variance
    unbiased); otherwise the running ones are used. Source: Ioffe & Szegedy 2015, arXiv:1502.03167.
    """
    if not training:
        assert running_mean is not None
        assert running_var is not None
        return _by_running(input, running_mean, running_var, weight, bias, eps)
    shape = input.value.node.shape
    if count(input.value, (0, *range(2, len(shape)))) == 0:  # nothing was seen
        return _by_batch(input, None, None, weight, bias, 0.0, eps)[0]
    mean, var = (None if t is None else t.detach_() for t in (running_mean, running_var))
    if mean is not None:
        catch_up_state(mean)
    out, next_mean, next_var = _by_batch(input, mean, var, weight, bias, momentum, eps)
    if mean is not None:
        _move(mean, next_mean)
    if var is not None:
        _move(var, next_var)
    return out


@composite(rounds_once=False)
def _by_running(
    input: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalization by a mean and a variance that are known."""
    v, x = input.value, wrap(widened(input.value))
    shape = (1, v.shape[1], *(1 for _ in v.shape[2:]))
    centre, spread = (wrap(bc.cast(bc.reshape(t.value, shape), x.value.dtype)) for t in (mean, var))
    return _scaled((x - centre) * rsqrt(spread + eps), weight, bias, v)


@composite(rounds_once=False)
def _by_batch(
    input: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalization by the batch's mean and variance, one per channel; and these where there are no running ones, else
    the running ones, moved toward the mean and the unbiased variance."""
    v = input.value
    over = (0, *range(2, len(v.shape)))
    out, centre, spread = _standardized(v, over, eps)
    size = size_tensor(count(v, over), spread.value.dtype)
    unbiased = spread + spread / (size - 1)
    moved = (_moved(mean, _vector(centre), momentum), _moved(var, _vector(unbiased), momentum))
    return _scaled(out, weight, bias, v), *moved


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, v: Value) -> Tensor:
    """x * weight + bias by channel, in the dtype of `v`."""
    channels, rank = v.shape[1], len(v.shape)
    w = _per_channel("batch_norm", "weight", weight, channels, rank)
    b = _per_channel("batch_norm", "bias", bias, channels, rank)
    return _affine(x, w, b, v.dtype)


def _vector(statistic: Tensor) -> Tensor:
    """One number per channel, without history."""
    v = statistic.value
    return wrap(Value(bc.reshape(v, (v.shape[1],)).node))


def _move(running: Tensor, to: Tensor) -> None:
    """Have the running statistic be another, which is computed with what is asked for next."""
    running.copy_(to)
    note(running)


@composite(rounds_once=False)
def _moved(running: Tensor | None, batch: Tensor, momentum: float) -> Tensor:
    """(1 - momentum) * running + momentum * batch; the batch's without a running one."""
    if running is None:
        return batch
    return wrap(widened(running.value)) * (1.0 - momentum) + batch * momentum


@composite(autocast=widens_on_gpus, rounds_once=False)
@needs(one_dtype("input", "weight", "bias", mixed=True), floats("input"))
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalization over groups of channels (dimension 1) and all that follows.

    Source: Wu & He 2018, arXiv:1803.08494.
    """
    v = _float("group_norm", input)
    channels = v.shape[1] if len(v.shape) > 1 else 0
    if len(v.shape) < 2 or num_groups < 1 or channels % num_groups:
        raise ShapeError(
            f"group_norm: {num_groups} groups do not divide the channels of shape {tuple(v.shape)}"
        )
    rank = len(v.shape)
    grouped = bc.reshape(v, (v.shape[0], num_groups, channels // num_groups, *v.shape[2:]))
    out, _, _ = _standardized(grouped, tuple(range(2, rank + 1)), eps)
    w = _per_channel("group_norm", "weight", weight, channels, rank)
    b = _per_channel("group_norm", "bias", bias, channels, rank)
    return _affine(wrap(bc.reshape(out.value, v.shape)), w, b, v.dtype)


@needs(
    one_dtype("input", "weight", "bias", "running_mean", "running_var", mixed=True),
    floats("input"),
    at_most_dims("running_mean", 1),
    at_most_dims("running_var", 1),
)
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalization of each channel of each example by its own statistics, or by the running ones."""
    v = _float("instance_norm", input)
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if (running_mean is None) != (running_var is None):
        raise ArgumentError("instance_norm: give both running_mean and running_var, or neither")
    rank = len(v.shape)
    out, mean, var = _standardized(v, tuple(range(2, rank)), eps)
    channels = v.shape[1]
    if running_mean is not None:
        catch_up_state(running_mean)
        _move(running_mean, _moved(running_mean.detach_(), _vector(_mean(mean, (0,))), momentum))
    if running_var is not None:
        n = count(v, tuple(range(2, rank)))
        size = size_tensor(n, var.value.dtype)
        unbiased = _mean(var, (0,)) * (size / (size - 1))
        _move(running_var, _moved(running_var.detach_(), _vector(unbiased), momentum))
    w = _per_channel("instance_norm", "weight", weight, channels, rank)
    b = _per_channel("instance_norm", "bias", bias, channels, rank)
    return _affine(out, w, b, v.dtype)


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """x / max(norm(x, p), eps) along dim; into `out` if given."""
    result = _normalize(input, p, dim, eps)
    return result if out is None else out.copy_(result)


@composite(autocast=widens_on_gpus)
def _normalize(input: Tensor, p: float, dim: int, eps: float) -> Tensor:
    _float("normalize", input)
    length = (
        vector_norm(input, p, dim, keepdim=True)
        if p in (1, 2)
        else norms.vector_norm(input, p, dim, keepdim=True)
    )
    return input / clamp(length, min=eps)


@composite
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x / (k + alpha * mean of x**2 over `size` channels around)**beta; channels outside count as 0.

    Shapes: (n, c, ...) -> same. Source: Krizhevsky, Sutskever & Hinton, NeurIPS 2012.
    """
    v = value_of("local_response_norm", input)
    v = v if v.dtype is int64 else _float("local_response_norm", input)
    if len(v.shape) < 3:
        raise ShapeError(f"local_response_norm: needs input (n, c, ...), got shape {tuple(v.shape)}")
    if size < 1:
        raise ArgumentError(f"local_response_norm: size must be at least 1, got {size}")
    if 0 in v.shape:
        return input
    x = wrap(widened(v) if v.dtype.is_float else v)
    low, rest = [0] * len(v.shape), [0] * len(v.shape)
    low[1], rest[1] = size // 2, (size - 1) // 2
    squares = window(pad_value((x * x).value, low, rest), 1, size, 1, 1)
    total = wrap(apply(Op.SUM, (squares,), Axes((len(v.shape),))))
    mean = div(total, size, rounding_mode=None if v.dtype.is_float else "trunc")  # integers: as avg_pool's
    out = x / pow(mean * alpha + k, beta)
    return wrap(bc.cast(out.value, v.dtype)) if v.dtype.is_float else out
