"""Random numbers, counter-based: element i of a draw is Threefry(key, offset + i), on every device the same.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.autograd.value import Value, apply
from weft.core import broadcast as bc
from weft.core import run, tracing
from weft.core.axes import Sizes, is_int, new_shape
from weft.core.creation import leaf, place, tensor
from weft.core.defaults import check_dtype, get_default_dtype
from weft.core.elementwise import cos, log, lt, sqrt
from weft.core.handle import Handle, Number, value_of, wrap
from weft.errors import ArgumentError, DTypeError
from weft.ir import reference_ops
from weft.ir.dtypes import DType, accumulator, float32, float64, int64, uint32, uint64
from weft.ir.graph import Box, Shape, arange, elements
from weft.ir.index import Int, high
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor import Tensor

_WORD = 1 << 32


class Generator:
    """A stream of random numbers: a seed, and how many numbers were drawn.

    While a function is traced, draws come from a state that every call of the compiled function gets anew.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.manual_seed(int.from_bytes(os.urandom(8), "little") if seed is None else seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of `seed` from its beginning."""
        if not is_int(seed):
            raise DTypeError(f"manual_seed: the seed must be an int, got {seed!r}")
        self._seed, self._drawn = seed % (1 << 64), 0
        return self

    def initial_seed(self) -> int:
        """The seed that this stream started from."""
        return self._seed

    def get_state(self) -> tuple[int, int]:
        """The seed and how many numbers were drawn."""
        return self._seed, self._drawn

    def set_state(self, state: tuple[int, int]) -> None:
        """Go to a state from `get_state`."""
        self._seed, self._drawn = state

    def words(self, n: int) -> tuple[int, int, int]:
        """Key and first counter of the next `n` numbers. A counter has 32 bits: each 2**32 numbers change the key."""
        epoch, offset = divmod(self._drawn, _WORD)
        if offset + n > _WORD:
            epoch, offset = epoch + 1, 0
        self._drawn = epoch * _WORD + offset + n
        return self._seed % _WORD, (self._seed // _WORD + 0x9E3779B9 * epoch) % _WORD, offset

    def draw(self, n: Int) -> Value:
        """[key0, key1, offset] for the next `n` numbers, as a u32 value that no compiled program depends on."""
        most = int(high(n))
        if most > _WORD:
            raise ArgumentError(f"random: one call can draw at most 2**32 numbers, got {n}")
        trace = tracing.current()
        if trace is not None:
            return trace.draw(self, most)
        return Value(run.from_numpy(np.array(self.words(most), np.uint32), run.default_device()))


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator: the same seed gives the same numbers on every device."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator from the operating system; the seed."""
    return default_generator.manual_seed(int.from_bytes(os.urandom(8), "little")).initial_seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def bits(shape: Shape, streams: int, generator: Generator | None) -> list[Value]:
    """`streams` independent u32 tensors of uniform random bits."""
    n = elements(shape)
    state = (default_generator if generator is None else generator).draw(n * streams)
    key0, key1, offset = (
        bc.expand(apply(Op.SHRINK, (state,), Box((i,), (1,)), (1,)), (n,)) for i in range(3)
    )
    out: list[Value] = []
    counter = apply(Op.ADD, (Value(arange(n, uint32)), offset))
    for i in range(streams):
        at = apply(Op.ADD, (counter, _count(n, i))) if i else counter
        out.append(bc.reshape(apply(Op.THREEFRY, (at, key0, key1)), shape))
    return out


def _count(n: Int, i: int) -> Value:
    """i * n in every element of a vector of n."""
    if isinstance(n, int):
        return bc.scalar(n * i, uint32, (n,))
    from weft.ir.graph import Axes

    ones = Value(bc.scalar(i, uint32, (n,)).node)
    return bc.expand(bc.reshape(apply(Op.SUM, (ones,), Axes((0,))), (1,)), (n,))


def uniform(shape: Shape, dtype: DType, generator: Generator | None) -> Tensor:
    """Uniform on [0, 1), on the grid of the dtype's mantissa."""
    if dtype is float64:
        a, b = (wrap(bc.cast(v, float64)) for v in _shifted(bits(shape, 2, generator), (5, 6)))
        return (a * 2.0**26 + b) * 2.0**-53
    digits = {"float16": 11, "bfloat16": 8, "float32": 24}[dtype.name]
    (word,) = _shifted(bits(shape, 1, generator), (32 - digits,))
    return wrap(bc.cast((wrap(bc.cast(word, float32)) * 2.0**-digits).value, dtype))


def _shifted(words: list[Value], by: tuple[int, ...]) -> list[Value]:
    return [apply(Op.SHR, (w, bc.scalar(n, uint32, w.shape))) for w, n in zip(words, by, strict=True)]


def gaussian(shape: Shape, dtype: DType, generator: Generator | None) -> Tensor:
    """Standard normal, by Box and Muller: sqrt(-2 log u) cos(2 pi v) with u on (0, 1]."""
    wide = accumulator(dtype)
    if wide is float64:
        a, b, c, d = bits(shape, 4, generator)
        high_, low, high2, low2 = (wrap(bc.cast(v, float64)) for v in _shifted([a, b, c, d], (5, 6, 5, 6)))
        u, v = (high_ * 2.0**26 + low + 1) * 2.0**-53, (high2 * 2.0**26 + low2) * 2.0**-53
    else:
        a, b = bits(shape, 2, generator)
        u = wrap(bc.cast(a, float32)) * 2.0**-32 + 2.0**-33
        v = wrap(bc.cast(b, float32)) * 2.0**-32
    return wrap(bc.cast((sqrt(log(u) * -2.0) * cos(v * (2 * math.pi))).value, dtype))


def _float_dtype(op: str, dtype: DType | None) -> DType:
    kind = get_default_dtype() if dtype is None else check_dtype(op, dtype)
    if not kind.is_float:
        raise DTypeError(f"{op}: needs a float dtype, got {kind.name}; randint draws integers")
    return kind


def rand(
    *size: Sizes,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform on [0, 1)."""
    out = uniform(new_shape("rand", size), _float_dtype("rand", dtype), generator)
    return leaf(place(out.value, device), requires_grad)


def randn(
    *size: Sizes,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal with mean 0 and variance 1."""
    out = gaussian(new_shape("randn", size), _float_dtype("randn", dtype), generator)
    return leaf(place(out.value, device), requires_grad)


def randint(
    low: int,
    high: int | Sequence[int],
    size: Sequence[Int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Uniform on the integers low, ..., high - 1; called as randint(low, high, size) or randint(high, size)."""
    if size is None:
        if isinstance(high, int):
            raise ArgumentError(
                "randint: the size is missing; call randint(low, high, size) or randint(high, size)"
            )
        low, high, size = 0, low, high
    if not isinstance(high, int) or high <= low:
        raise ArgumentError(f"randint: high must be greater than low, got low {low} and high {high}")
    kind = int64 if dtype is None else check_dtype("randint", dtype)
    return leaf(place(integers(low, high, new_shape("randint", (size,)), kind, generator), device), False)


def integers(low: int, high: int, shape: Shape, dtype: DType, generator: Generator | None) -> Value:
    """Uniform integers: the random word, as a fraction of its range, times how many there are."""
    span = high - low
    if span <= _WORD:
        (word,) = bits(shape, 1, generator)
        out = wrap(bc.cast(word, uint64)) * span >> 32
    else:
        a, b = (wrap(bc.cast(w, uint64)) for w in bits(shape, 2, generator))
        out = ((a << 32) | b) % span if span < 1 << 64 else (a << 32) | b
    return bc.cast((wrap(bc.cast(out.value, int64)) + low).value, dtype)


def randperm(
    n: int, *, generator: Generator | None = None, dtype: DType = int64, device: str | None = None
) -> Tensor:
    """The integers 0, ..., n - 1 in random order. Drawn at once, on the host."""
    tracing.host_only("randperm")
    key0, key1, offset = (default_generator if generator is None else generator).words(n)
    counter = (np.arange(n, dtype=np.uint64) + np.uint64(offset)).astype(np.uint32)
    zero = np.zeros(n, np.uint32)
    with np.errstate(over="ignore"):
        x, y = reference_ops.threefry_block(counter, zero, zero + np.uint32(key0), zero + np.uint32(key1))
    order = np.argsort((x.astype(np.uint64) << np.uint64(32)) | y, kind="stable")
    return tensor(order, dtype=dtype, device=device)


def rand_like(input: Tensor, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Uniform on [0, 1) in the shape, dtype and device of input."""
    v = value_of("rand_like", input)
    return rand(v.shape, dtype=dtype or v.dtype, device=device or v.node.device)


def randn_like(input: Tensor, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Standard normal in the shape, dtype and device of input."""
    v = value_of("randn_like", input)
    return randn(v.shape, dtype=dtype or v.dtype, device=device or v.node.device)


def randint_like(
    input: Tensor, low: int, high: int | None = None, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """Uniform integers in the shape, dtype and device of input."""
    v = value_of("randint_like", input)
    low, high = (0, low) if high is None else (low, high)
    return randint(low, high, v.shape, dtype=dtype or v.dtype, device=device or v.node.device)


def normal(
    mean: Tensor | Number = 0.0,
    std: Tensor | Number = 1.0,
    size: Sequence[Int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
) -> Tensor:
    """Normal with the given mean and standard deviation: of shape `size`, or that of the tensors given."""
    if size is None:
        shapes = [x.value.shape for x in (mean, std) if isinstance(x, Handle)]
        if not shapes:
            raise ArgumentError("normal: give a size, or a tensor as mean or std")
        size = bc.broadcast_shape("normal", shapes)
    return randn(tuple(size), generator=generator, dtype=dtype) * std + mean


def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that input holds, else 0, in the dtype of input."""
    v = value_of("bernoulli", input)
    if not v.dtype.is_float:
        raise DTypeError(f"bernoulli: needs a float tensor of probabilities, got {v.dtype.name}")
    drawn = lt(uniform(v.shape, accumulator(v.dtype), generator), wrap(Value(v.node)))
    return wrap(bc.cast(drawn.value, v.dtype))


def bernoulli_mask(shape: Shape, p: float, generator: Generator | None = None) -> Tensor:
    """True with probability p: a random word below p * 2**32."""
    (word,) = bits(shape, 1, generator)
    limit = min(_WORD - 1, int(p * _WORD))
    return (
        lt(wrap(word), wrap(bc.scalar(limit, uint32, ())))
        if p < 1
        else wrap(bc.scalar(True, lt(wrap(word), 0).dtype, shape))
    )
