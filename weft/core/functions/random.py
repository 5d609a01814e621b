"""Random numbers, counter-based: element i of a draw is Threefry(key, offset + i), on every device the same.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""
# Tests: tests/core/test_surface.py, tests/distributions/test_distributions.py

from __future__ import annotations

import math
import os
import threading
from collections import abc
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd.context import default_device
from weft.autograd.value import Value, apply, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import Sizes, is_int, new_shape
from weft.core.args.defaults import check_dtype, get_default_dtype
from weft.core.args.handle import Handle, Number, value_of, wrap
from weft.core.composed.composite import composite
from weft.core.composed.known_values import check_known
from weft.core.execute import host_operations, run, tracing
from weft.core.execute.random_draws import WORD, Draws, Span, count_draw, given_again, write_down
from weft.core.execute.realization import realize
from weft.core.layout.creation import leaf, place, tensor
from weft.core.pointwise.elementwise import cos, exp, log, lt, sqrt
from weft.errors import ArgumentError, DTypeError
from weft.ir import reference_ops
from weft.ir.dtypes import DType, accumulator, float32, float64, int64, uint32, uint64
from weft.ir.forks import forkable
from weft.ir.graph import Box, Shape, arange, elements
from weft.ir.index import Int, high
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_drawing = forkable(threading.Lock())
"""Held while a generator moves on: no two threads draw the same numbers. (A generator's own could not be copied.)"""


def _place(drawn: int, n: int) -> tuple[int, int]:
    """The epoch, which changes the key, and the first counter of `n` numbers after so many."""
    epoch, offset = divmod(drawn, WORD)
    return (epoch + 1, 0) if offset + n > WORD else (epoch, offset)


class Generator:
    """A stream of random numbers: a seed, and how many numbers were drawn.

    While a function is traced, draws come from a state that every call of the compiled function gets anew.
    """

    def __init__(self, seed: int | str | None = None, *, device: Any = None) -> None:
        if isinstance(seed, str):  # a device, as in torch: numbers are the same on all
            seed = None
        self.manual_seed(int.from_bytes(os.urandom(8), "little") if seed is None else seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of `seed` from its beginning."""
        if not is_int(seed):
            raise DTypeError(f"manual_seed: the seed must be an int, got {seed!r}")
        tracing.host_only("manual_seed")
        with _drawing:
            self._seed, self._drawn = seed % (1 << 64), 0
        return self

    def initial_seed(self) -> int:
        """The seed that this stream started from."""
        return self._seed

    def get_state(self) -> tuple[int, int]:
        """The seed and how many numbers were drawn."""
        tracing.host_only("get_state")
        with _drawing:
            return self._seed, self._drawn

    def set_state(self, state: tuple[int, int]) -> None:
        """Go to a state from `get_state`."""
        tracing.host_only("set_state")
        with _drawing:
            self._seed, self._drawn = state

    def words(self, n: int) -> tuple[int, int, int]:
        """Key and first counter of the next `n` numbers."""
        count_draw()
        span = given_again(n) or self.move(n)
        write_down(span)
        return span.words()

    def move(self, n: int) -> Span:
        """The next `n` numbers, of which it is already known that this thread draws them."""
        with _drawing:
            seed = self._seed
            epoch, offset = _place(self._drawn, n)
            start = epoch * WORD + offset
            self._drawn = start + n
        return Span(seed, start, n)

    def give_back(self, state: tuple[int, int], n: int) -> None:
        """Go back to a state, after which `n` numbers were drawn that nobody has used; not where more were drawn."""
        with _drawing:
            epoch, offset = _place(state[1], n)
            if (self._seed, self._drawn) == (state[0], epoch * WORD + offset + n):
                self._drawn = state[1]

    def draw(self, n: Int) -> Value:
        """[key0, key1, offset] for the next `n` numbers, as a u32 value that no compiled program depends on."""
        most = int(high(n))
        if most > WORD:
            raise ArgumentError(f"random: one call can draw at most 2**32 numbers, got {n}")
        count_draw()
        home, trace = default_device(), tracing.current()
        if trace is None and home == run.META:
            return Value(run.valueless((3,), uint32))
        span = given_again(most, trace) or (self.move(most) if trace is None else trace.draw(self, most))
        write_down(span, trace)
        if isinstance(span.stream, Draws):
            state = Value(span.stream.placeholder)
            return (
                (wrap(state) + tensor([0, 0, span.start % WORD], dtype=uint32)).value if span.start else state
            )
        tracing.host_only("numbers that were drawn before the function began")
        return Value(run.from_numpy(np.array(span.words(), np.uint32), home))


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


def drawn(shape: Shape, streams: int, generator: Generator | None, like: Value | None = None) -> Value:
    """[key0, key1, offset] of `streams` numbers for each element, on the device of `like` if that has one."""
    state = (default_generator if generator is None else generator).draw(elements(shape) * streams)
    home = None if like is None else like.node.device
    return state if home is None or home == state.node.device else place(state, home)


def bits(shape: Shape, streams: int, generator: Generator | None) -> list[Value]:
    """`streams` independent u32 tensors of uniform random bits."""
    return _bits(shape, streams, drawn(shape, streams, generator))


def _bits(shape: Shape, streams: int, state: Value) -> list[Value]:
    """The same from what was drawn for them."""
    n = elements(shape)
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


def uniform(shape: Shape, dtype: DType, generator: Generator | None, like: Value | None = None) -> Tensor:
    """Uniform on [0, 1), on the grid of the dtype's mantissa; on the device of `like`."""
    return _uniform(wrap(drawn(shape, 2 if dtype is float64 else 1, generator, like)), shape, dtype)


@composite(rounds_once=False)
def _uniform(state: Tensor, shape: Shape, dtype: DType) -> Tensor:
    if dtype is float64:
        a, b = (wrap(bc.cast(v, float64)) for v in _shifted(_bits(shape, 2, state.value), (5, 6)))
        return (a * 2.0**26 + b) * 2.0**-53
    digits = {"float16": 11, "bfloat16": 8, "float32": 24}[dtype.name]
    (word,) = _shifted(_bits(shape, 1, state.value), (32 - digits,))
    return wrap(bc.cast((wrap(bc.cast(word, float32)) * 2.0**-digits).value, dtype))


def _shifted(words: list[Value], by: tuple[int, ...]) -> list[Value]:
    return [apply(Op.SHR, (w, bc.scalar(n, uint32, w.shape))) for w, n in zip(words, by, strict=True)]


def gaussian(shape: Shape, dtype: DType, generator: Generator | None) -> Tensor:
    """Standard normal, by Box and Muller: sqrt(-2 log u) cos(2 pi v) with u on (0, 1]."""
    return _gaussian(wrap(drawn(shape, 4 if accumulator(dtype) is float64 else 2, generator)), shape, dtype)


@composite(rounds_once=False)
def _gaussian(state: Tensor, shape: Shape, dtype: DType) -> Tensor:
    if accumulator(dtype) is float64:
        a, b, c, d = _bits(shape, 4, state.value)
        high_, low, high2, low2 = (wrap(bc.cast(v, float64)) for v in _shifted([a, b, c, d], (5, 6, 5, 6)))
        u, v = (high_ * 2.0**26 + low + 1) * 2.0**-53, (high2 * 2.0**26 + low2) * 2.0**-53
    else:
        a, b = _bits(shape, 2, state.value)
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
    state = drawn(shape, 1 if high - low <= WORD else 2, generator)
    return _integers(wrap(state), low, high, shape, dtype).value


@composite(rounds_once=False)
def _integers(state: Tensor, low: int, high: int, shape: Shape, dtype: DType) -> Tensor:
    span = high - low
    if span <= WORD:
        (word,) = _bits(shape, 1, state.value)
        out = wrap(bc.cast(word, uint64)) * span >> 32
    else:
        a, b = (wrap(bc.cast(w, uint64)) for w in _bits(shape, 2, state.value))
        out = ((a << 32) | b) % span if span < 1 << 64 else (a << 32) | b
    return wrap(bc.cast((wrap(bc.cast(out.value, int64)) + low).value, dtype))


def randperm(
    n: int, *, generator: Generator | None = None, dtype: DType = int64, device: str | None = None
) -> Tensor:
    """The integers 0, ..., n - 1 in random order. Drawn at once, on the host."""
    if not is_int(n) or n < 0:
        raise ArgumentError(f"randperm: n must be an int that is not negative, got {n!r}")
    tracing.host_only("randperm")
    host_operations.note("randperm")
    key0, key1, offset = (default_generator if generator is None else generator).words(n)
    counter = (np.arange(n, dtype=np.uint64) + np.uint64(offset)).astype(np.uint32)
    zero = np.zeros(n, np.uint32)
    with np.errstate(over="ignore"):
        x, y = reference_ops.threefry_block(counter, zero, zero + np.uint32(key0), zero + np.uint32(key1))
    return tensor(_order(x, y), dtype=dtype, device=device)


def _order(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The places of the pairs (x, y) in ascending order. Values are sorted several times as fast as an order is found,
    so the places are sorted below x; y decides where x is equal."""
    packed = (x.astype(np.uint64) << np.uint64(32)) | np.arange(len(x), dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64(WORD - 1)).astype(np.int64)
    first = packed >> np.uint64(32)
    equal = np.flatnonzero(first[1:] == first[:-1])
    if equal.size:
        at = np.union1d(equal, equal + 1)
        among = order[at]
        order[at] = among[np.lexsort((y[among], x[among]))]
    return order


def rand_like(input: Tensor, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Uniform on [0, 1) in the shape, dtype and device of input."""
    v = value_of("rand_like", input)
    return rand(v.shape, dtype=dtype or v.dtype, device=device or v.node.device)


def randn_like(input: Tensor, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Standard normal in the shape, dtype and device of input."""
    v = value_of("randn_like", input)
    return randn(v.shape, dtype=dtype or v.dtype, device=device or v.node.device)


def randint_like(
    input: Tensor,
    low: int | None = None,
    high: int | None = None,
    *,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Uniform integers low (0), ..., high - 1 in the shape, dtype and device of input."""
    v = value_of("randint_like", input)
    low, high = (0, low) if high is None else (low or 0, high)
    if high is None:
        raise ArgumentError("randint_like: needs high, the first integer that is not drawn")
    return randint(low, high, v.shape, dtype=dtype or v.dtype, device=device or v.node.device)


def normal(
    mean: Tensor | Number = 0.0,
    std: Tensor | Number = 1.0,
    size: Sequence[Int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal with the given mean and standard deviation: of shape `size`, or that of the tensors given.

    Their gradient is 0, as in torch: `mean + std * weft.randn(...)` has another.
    """
    for x in (mean, std):
        if isinstance(x, Handle) and not x.value.dtype.is_float:
            raise DTypeError(f"normal: mean and std must be float tensors, got {x.value.dtype.name}")
    if isinstance(std, int | float) and std < 0:
        raise ArgumentError(f"normal: std must not be negative, got {std}")
    if isinstance(std, Handle):
        check_known("normal", "std", std.value)
    if isinstance(size, float):
        raise ArgumentError(f"normal: the size must be ints, got {size}")
    if size is None:
        shapes = [x.value.shape for x in (mean, std) if isinstance(x, Handle)]
        if not shapes:
            raise ArgumentError("normal: give a size, or a tensor as mean or std")
        size = bc.broadcast_shape("normal", shapes)
    given = [x.value for x in (mean, std) if isinstance(x, Handle)]
    kind = given[0].dtype if given and dtype is None else dtype
    if device is None:
        device = next((v.node.device for v in given if v.node.device is not None and v.shape), None)
    size = (size,) if isinstance(size, int) else tuple(size)
    out = randn(size, generator=generator, dtype=kind, device=device) * std + mean
    if requires_grad:
        return leaf(Value(out.value.node), True)
    # a draw is no function of these: the gradient is 0, as in torch; weft.distributions have rsample
    return wrap(
        zero_gradient(Value(out.value.node), *(x.value for x in (mean, std) if isinstance(x, Handle)))
    )


def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that input holds (or with p), else 0, in the dtype of input. The gradient is 0."""
    v = value_of("bernoulli", input)
    if p is not None:
        if not 0 <= p <= 1:
            raise ArgumentError(f"bernoulli: p must be from 0 to 1, got {p:g}")
        return wrap(zero_gradient(bc.cast(bernoulli_mask(v.shape, p, generator, v).value, v.dtype), v))
    if not v.dtype.is_float:
        raise DTypeError(f"bernoulli: needs a float tensor of probabilities, got {v.dtype.name}")
    check_known("bernoulli", "probabilities", v, 0, 1)
    drawn = lt(uniform(v.shape, accumulator(v.dtype), generator, v), wrap(Value(v.node)))
    return wrap(zero_gradient(bc.cast(drawn.value, v.dtype), v))


def bernoulli_mask(
    shape: Shape, p: float, generator: Generator | None = None, like: Value | None = None
) -> Tensor:
    """True with probability p: a random word below p * 2**32; on the device of `like`."""
    return _below(wrap(drawn(shape, 1, generator, like)), shape, p)


@composite(rounds_once=False)
def _below(state: Tensor, shape: Shape, p: float) -> Tensor:
    (word,) = _bits(shape, 1, state.value)
    limit = min(WORD - 1, int(p * WORD))
    return (
        lt(wrap(word), wrap(bc.scalar(limit, uint32, ())))
        if p < 1
        else wrap(bc.scalar(True, lt(wrap(word), 0).dtype, shape))
    )


def _open_uniform(
    shape: Shape, dtype: DType, generator: Generator | None, like: Value | None = None
) -> Tensor:
    """Uniform on (0, 1]: one less what `uniform` draws."""
    return 1 - uniform(shape, dtype, generator, like)


def exponential(
    shape: Shape, dtype: DType, lambd: float, generator: Generator | None, like: Value | None = None
) -> Tensor:
    """Exponentially distributed with rate lambd; on the device of `like`."""
    if not lambd > 0:
        raise ArgumentError(f"exponential_: the rate must be positive, got {lambd}")
    return log(_open_uniform(shape, dtype, generator, like)) * (-1.0 / lambd)


MAX_CATEGORIES = 1 << 24
"""Categories that a uniform float32 tells apart: torch's limit, too."""


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Indices drawn from the rows of weights: with replacement by inverting their running sum, without by racing
    exponentials (the num_samples largest weight / exponential)."""
    from weft.core.functions.scans import cumsum
    from weft.core.functions.sorting import searchsorted, topk
    from weft.core.layout.movement import narrow

    v = value_of("multinomial", input)
    if not v.dtype.is_float:
        raise DTypeError(f"multinomial: needs a float tensor of weights, got {v.dtype.name}")
    if len(v.shape) not in (1, 2):
        raise ArgumentError(f"multinomial: needs 1 or 2 dimensions, got shape {tuple(v.shape)}")
    n = v.shape[-1]
    if not isinstance(n, int) or num_samples < 1 or (not replacement and num_samples > n):
        raise ArgumentError(
            f"multinomial: cannot draw {num_samples} of {n} without replacement"
            if isinstance(n, int) and num_samples >= 1
            else f"multinomial: the number of samples must be positive, got {num_samples}"
        )
    if n > MAX_CATEGORIES:
        raise ArgumentError(
            f"multinomial: {n:,} categories are more than 2^24, the steps of a uniform float32: "
            "draw a block of them by its sum first, then within the block"
        )
    known = run.host_array(v.node)
    if known is not None and known.size:  # what is not computed yet cannot be checked
        rows = np.asarray(known, np.float64).reshape(-1, n)
        if not (np.isfinite(rows).all() and (rows >= 0).all()):
            raise ArgumentError("multinomial: weights must be finite and not negative")
        if ((rows > 0).sum(1) < (1 if replacement else num_samples)).any():
            raise ArgumentError(f"multinomial: a row has too few positive weights to draw {num_samples} from")
    wide = accumulator(v.dtype)
    weights = wrap(bc.cast(Value(v.node), wide))
    if replacement:
        running = cumsum(weights, -1)
        total = narrow(running, -1, n - 1, 1)
        drawn = uniform((*v.shape[:-1], num_samples), wide, generator, v) * total
        return searchsorted(running, drawn, right=True).clamp(max=n - 1)
    return topk(weights / exponential(v.shape, wide, 1.0, generator, v), num_samples).indices


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Poisson distributed with the rates that input holds: by inverting the distribution's running sum.

    How many terms that sum has follows from the largest rate, so the rates are computed.
    """
    v = value_of("poisson", input)
    if not v.dtype.is_float:
        raise DTypeError(f"poisson: needs a float tensor of rates, got {v.dtype.name}")
    rate = wrap(bc.cast(Value(v.node), float64))
    array = run.to_numpy(rate.value.node)
    top = float(array.max()) if array.size else 0.0
    if not (array >= 0).all():
        raise ArgumentError("poisson: rates must not be negative")
    u = uniform(v.shape, float64, generator, v)
    found = _poisson_by_terms(rate, u, top) if top <= MAX_SUMMED_RATE else _poisson_by_bisection(rate, u, top)
    return wrap(bc.cast(found.value, v.dtype))


MAX_SUMMED_RATE = 16.0
"""Up to here the terms are some sixty at most: fewer operations than one incomplete gamma function has."""


def _poisson_by_terms(rate: Tensor, u: Tensor, top: float) -> Tensor:
    """The smallest k with P(X > k) < 1 - u: the number of tails that are not below, each summed from its far end."""
    from weft.core.pointwise.elementwise import ge, where

    terms, left = [exp(-rate)], math.exp(-top)
    while len(terms) <= top or left > 2.0**-60:  # u has 53 bits: no smaller tail is drawn
        left *= top / len(terms)
        terms.append(terms[-1] * (rate / len(terms)))
    above, drawn, tail = 1.0 - u, rate * 0.0, rate * 0.0
    for term in reversed(terms[1:]):
        tail = tail + term
        drawn = drawn + where(ge(tail, above), 1.0, 0.0)
    return drawn


def _poisson_by_bisection(rate: Tensor, u: Tensor, top: float) -> Tensor:
    """The smallest k with P(X <= k) = Q(k + 1, rate) > u, twelve standard deviations above the rate at most."""
    from weft.core.pointwise.elementwise import le, where
    from weft.core.pointwise.special_functions import gammaincc

    last = int(top + 12 * math.sqrt(top) + 40)
    low, high_ = rate * 0.0, rate * 0.0 + last
    realize(rate, u, low, high_)
    for _ in range(last.bit_length() + 1):
        middle = ((low + high_) * 0.5).floor()
        below = le(gammaincc(middle + 1, rate), u)
        low, high_ = where(below, middle + 1, low), where(below, high_, middle)
        realize(low, high_)  # one kernel for all steps, in place of one that is as large as all of them
    return where(le(rate, 0), 0.0, high_)


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of successes in `count` trials of probability `prob`: trials are drawn one by one, so counts
    are computed."""
    from weft.core.functions.reductions import sum
    from weft.core.layout.movement import broadcast_tensors, positions, unsqueeze
    from weft.core.pointwise.elementwise import logical_and

    n, p = broadcast_tensors(count, prob)
    array = run.to_numpy(n.value.node)
    most = int(array.max()) if array.size else 0
    shape = (*n.value.shape, most)
    if most == 0:
        return n * 0
    drawn = lt(uniform(shape, float32, generator, p.value), unsqueeze(p, -1))
    counted = lt(wrap(positions(shape, len(shape) - 1)), unsqueeze(n, -1))
    return wrap(bc.cast(sum(logical_and(drawn, counted), -1).value, n.value.dtype))


def get_rng_state() -> Tensor:
    """The state of the default generator, as four int64: the seed's two halves and how much was drawn."""
    seed_, drawn = default_generator.get_state()
    return tensor([seed_ % WORD, seed_ // WORD, drawn % WORD, drawn // WORD])


def set_rng_state(new_state: Tensor) -> None:
    """Go back to a state from get_rng_state."""
    a, b, c, d = (int(x) for x in new_state.tolist())
    default_generator.set_state((b * WORD + a, d * WORD + c))


def largest(dtype: DType) -> int:
    """The largest integer up to which a dtype holds all, as torch's random_ draws."""
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
    return (1 << digits[dtype.name]) if dtype.is_float else int(dtype.max)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, **options: Any) -> abc.Generator[None]:
    """A context in which drawing leaves no trace: the stream of numbers goes on as if without it."""
    before = default_generator.get_state()
    try:
        yield
    finally:
        if enabled:
            default_generator.set_state(before)
