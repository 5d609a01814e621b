"""Initial values of parameters, written into a tensor in place, as torch.nn.init names them."""
# Tests: tests/nn/test_hooks.py, tests/nn/test_mistakes.py

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import numpy as np

from weft.core.args.modes import no_grad
from weft.core.functions.random import Generator, rand, randn
from weft.core.layout.creation import as_tensor
from weft.core.layout.creation import eye as identity
from weft.core.pointwise.elementwise import clamp, erf, where
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import float64

P = ParamSpec("P")

_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 3 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance through a nonlinearity; `param` is the slope of "leaky_relu" (0.01)."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ArgumentError(f"calculate_gain: {nonlinearity!r} is not one of {', '.join(_GAINS)}, leaky_relu")
    return _GAINS[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """The number of inputs that an output of this weight (out, in, *window) sums, and the other way round."""
    sizes = [n for n in tensor.shape if isinstance(n, int)]
    if len(sizes) < 2 or len(sizes) != tensor.ndim:
        raise ShapeError(
            f"init: fans need a weight of at least 2 dimensions, got shape {tuple(tensor.shape)}"
        )
    window = math.prod(sizes[2:])
    return sizes[1] * window, sizes[0] * window


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform on [a, b)."""
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Normal with the given mean and standard deviation."""
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """`val` in every element."""
    with no_grad():
        return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """0 in every element."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """1 in every element."""
    return constant_(tensor, 1.0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity, for a matrix."""
    if tensor.ndim != 2:
        raise ShapeError(f"eye_: needs a matrix, got shape {tuple(tensor.shape)}")
    rows, columns = (n for n in tensor.shape if isinstance(n, int))
    with no_grad():
        return tensor.copy_(identity(rows, columns, dtype=tensor.dtype))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform on [-a, a) with a = gain * sqrt(6 / (fan in + fan out)). Source: Glorot & Bengio, AISTATS 2010."""
    bound = gain * math.sqrt(6 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with std = gain * sqrt(2 / (fan in + fan out)). Source: Glorot & Bengio, AISTATS 2010."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(fans(tensor))), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"kaiming: mode must be 'fan_in' or 'fan_out', got {mode!r}")
    return calculate_gain(nonlinearity, a) / math.sqrt(fans(tensor)[mode == "fan_out"])


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform with std = gain / sqrt(fan); `a` is the slope of a leaky ReLU. Source: arXiv:1502.01852 (He et al.)."""
    bound = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with std = gain / sqrt(fan); `a` is the slope of a leaky ReLU. Source: arXiv:1502.01852 (He et al.)."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normal with the given mean and standard deviation, on [a, b] only: the inverse distribution function of uniforms.

    The inverse of the distribution function is found by Newton steps on it.
    """

    def below(x: float) -> float:
        return (1 + math.erf(x / math.sqrt(2))) / 2

    low, high = below((a - mean) / std), below((b - mean) / std)
    with no_grad():
        u = rand(tensor.shape, generator=generator, dtype=float64, device=tensor.device) * (high - low) + low
        x = _normal_quantile(u)
        return tensor.copy_(clamp(x * std + mean, a, b))


def _normal_quantile(u: Tensor) -> Tensor:
    """The inverse of the standard normal's distribution function: a logistic guess, then Newton's method."""
    x = (u / (1 - u)).log() / 1.702
    for _ in range(6):
        error = (erf(x * math.sqrt(0.5)) + 1) / 2 - u
        x = x - clamp(error * math.sqrt(2 * math.pi) * (x * x / 2).exp(), -1.0, 1.0)
    return x


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """The weights of a convolution that passes its input on, in each group of outputs."""
    if tensor.ndim not in (3, 4, 5):
        raise ShapeError(f"dirac_: needs a weight of 3, 4 or 5 dimensions, got shape {tuple(tensor.shape)}")
    out, channels, *window = (n for n in tensor.shape if isinstance(n, int))
    if groups < 1 or out % groups:
        raise ArgumentError(f"dirac_: {groups} groups do not divide the {out} outputs of the weight")
    values = np.zeros((out, channels, *window))
    middle = tuple(n // 2 for n in window)
    for g in range(groups):
        for k in range(min(out // groups, channels)):
            values[(g * (out // groups) + k, k, *middle)] = 1
    with no_grad():
        return tensor.copy_(as_tensor(values))


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """A (semi-)orthogonal matrix times gain; further dimensions are flattened into its columns.

    The Q of a random normal matrix, computed at once on the host. Source: Saxe et al. 2013, arXiv:1312.6120.
    """
    if tensor.ndim < 2:
        raise ShapeError(f"orthogonal_: needs at least 2 dimensions, got shape {tuple(tensor.shape)}")
    sizes = [n for n in tensor.shape if isinstance(n, int)]
    rows, columns = sizes[0], math.prod(sizes[1:])
    if not rows or not columns:
        return tensor
    flat = randn(rows, columns, generator=generator, dtype=float64).numpy()
    q, r = np.linalg.qr(flat.T if rows < columns else flat)
    q = q * np.sign(np.diag(r))
    with no_grad():
        return tensor.copy_(as_tensor((q.T if rows < columns else q).reshape(sizes) * gain))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Normal with this standard deviation, and in each column a share of `sparsity` zeros. Needs a matrix.

    Source: Martens, ICML 2010.
    """
    if tensor.ndim != 2:
        raise ShapeError(f"sparse_: needs a matrix, got shape {tuple(tensor.shape)}")
    rows, columns = (n for n in tensor.shape if isinstance(n, int))
    order = np.argsort(rand(rows, columns, generator=generator).numpy(), 0)
    keep = np.ones((rows, columns), bool)
    np.put_along_axis(keep, order[: math.ceil(sparsity * rows)], False, 0)
    with no_grad():
        normal_(tensor, 0.0, std, generator)
        return tensor.copy_(where(as_tensor(keep), tensor.detach(), 0.0))


def correct_fan(tensor: Tensor, mode: str) -> int:
    """The number of inputs or of outputs, as `mode` says."""
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ArgumentError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return fans(tensor)[mode.lower() == "fan_out"]


_calculate_fan_in_and_fan_out, _calculate_correct_fan = fans, correct_fan  # torch's names


def _older(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """A function under torch's older name, without the underscore."""
    name = function.__name__

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        warnings.warn(
            f"`nn.init.{name[:-1]}` is now deprecated in favor of `nn.init.{name}`.",
            FutureWarning,
            stacklevel=2,
        )
        return function(*args, **kwargs)

    call.__name__ = name[:-1]
    return call


uniform, normal, constant, dirac = _older(uniform_), _older(normal_), _older(constant_), _older(dirac_)
eye, sparse, orthogonal = _older(eye_), _older(sparse_), _older(orthogonal_)
xavier_uniform, xavier_normal = _older(xavier_uniform_), _older(xavier_normal_)
kaiming_uniform, kaiming_normal = _older(kaiming_uniform_), _older(kaiming_normal_)
