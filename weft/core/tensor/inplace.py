"""In-place forms of functions as methods of Tensor: the handle stands for the result afterwards."""
# Tests: tests/core/views/test_views.py, tests/core/tensor/test_tensor.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from weft.core.args import broadcast
from weft.core.args.handle import Handle, Number, TensorLike, wrap, writing
from weft.core.functions import random
from weft.core.layout import creation, indexing, movement
from weft.core.layout import gather as picking
from weft.core.pointwise import elementwise
from weft.core.surface.keywords import translated, with_aliases
from weft.core.views import views
from weft.errors import ArgumentError
from weft.ir import dtypes

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

P = ParamSpec("P")


def in_place(
    function: Callable[Concatenate[Tensor, P], Tensor], name: str
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """The method that makes a handle stand for the function's result, which must fit its shape and dtype."""
    call = with_aliases(function)

    @wraps(function)
    def method(self: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        with writing:
            out = call(self, *args, **kwargs) if kwargs else call(self, *args)
            return self.become_locked(name, out.value)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In place: {function.__doc__}"
    return method


def _in_place_once(
    function: Callable[Concatenate[Tensor, P], Tensor], number: int
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """As `in_place`, for a function that writes argument `number` (after the tensor) to some elements: where several
    are one, the last write stays."""
    label, call = f"{function.__name__}_", with_aliases(function)
    parameters = list(signature(function).parameters)[1:]

    @wraps(function)
    def method(self: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        with writing:
            result, hit = call(self, *args, **kwargs).value, None
            if self.look is not None and views.overlapping(self.look):
                given = dict(zip(parameters, args, strict=False)) | translated(function, kwargs)
                if not given.get("accumulate"):
                    given[parameters[number]] = wrap(broadcast.scalar(True, dtypes.bool_, ()))
                    none = wrap(broadcast.scalar(False, dtypes.bool_, self.value.shape))
                    hit = call(none, **given).value  # pyright: ignore[reportCallIssue]  (the same, by name)
            return self.become(label, result, hit)

    method.__name__ = method.__qualname__ = label
    method.__doc__ = f"In place: {function.__doc__}"
    return method


def _in_new_shape(
    function: Callable[Concatenate[Tensor, P], Tensor], name: str
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """As `in_place`, for what changes the shape of the handle; it looks at the same elements as before."""
    call = with_aliases(function)

    @wraps(function)
    def method(self: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        step = views.ViewStep(call, args, kwargs)
        with writing:
            return self.in_shape(name, call(self, *args, **kwargs).value, step)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In place: {function.__doc__}"
    return method


def polygamma_(self: Tensor, n: int) -> Tensor:
    """In place: the n-th derivative of digamma."""
    with writing:
        return self.become("polygamma_", self.polygamma(n).value)


def resize_as_(self: Tensor, other: Tensor) -> Tensor:
    """In place: the shape of another tensor, which has as many elements."""
    from weft.core.functions.arrangement import resize_as

    with writing:
        return self.in_shape("resize_as_", resize_as(self, other).value)


def as_strided_(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """In place: the elements that strides in memory reach."""
    from weft.core.functions.arrangement import as_strided

    with writing:
        return self.in_shape("as_strided_", as_strided(self, size, stride, storage_offset).value)


def fill_diagonal_(self: Tensor, fill_value: Number, wrap: bool = False) -> Tensor:
    """The main diagonal filled; with wrap, that of a tall matrix begins anew after each square."""
    with writing:
        return self.become("fill_diagonal_", indexing.filled_diagonal(self, fill_value, wrap).value)


def _drawn(self: Tensor, op: str, drawn: Tensor) -> Tensor:
    return self.become(op, broadcast.cast(creation.place(drawn.value, self.device), self.dtype))


def bernoulli_(self: Tensor, p: TensorLike = 0.5, *, generator: random.Generator | None = None) -> Tensor:
    """1 with probability p, else 0."""
    if isinstance(p, Handle):
        chances = broadcast.expand(p.value, self.shape)
        return _drawn(self, "bernoulli_", random.bernoulli(wrap(chances), generator=generator))
    return _drawn(self, "bernoulli_", random.bernoulli(self, float(p), generator=generator))


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: random.Generator | None = None) -> Tensor:
    """Exponentially distributed with rate lambd."""
    return _drawn(self, "exponential_", random.exponential(self.shape, self.dtype, lambd, generator))


def cauchy_(
    self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: random.Generator | None = None
) -> Tensor:
    """Cauchy distributed around median with scale sigma."""
    if not sigma > 0:
        raise ArgumentError(f"cauchy_: sigma must be positive, got {sigma}")
    turn = random.rand(self.shape, generator=generator, dtype=self.dtype) - 0.5
    return _drawn(self, "cauchy_", elementwise.tan(turn * 3.141592653589793) * sigma + median)


def log_normal_(
    self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: random.Generator | None = None
) -> Tensor:
    """The exponential of normal numbers."""
    if not std > 0:
        raise ArgumentError(f"log_normal_: std must be positive, got {std}")
    drawn = random.randn(self.shape, generator=generator, dtype=self.dtype)
    return _drawn(self, "log_normal_", elementwise.exp(drawn * std + mean))


def geometric_(self: Tensor, p: float, *, generator: random.Generator | None = None) -> Tensor:
    """The number of trials of chance p up to the first success."""
    if not 0 < p < 1:
        raise ArgumentError(f"geometric_: p must be between 0 and 1, got {p}")
    from weft.core.pointwise.special_functions import host_log1p

    drawn = random.exponential(self.shape, dtypes.float32, 1.0, generator)
    return _drawn(self, "geometric_", elementwise.ceil(drawn / -host_log1p(-p)))


def random_(
    self: Tensor, low: int = 0, high: int | None = None, *, generator: random.Generator | None = None
) -> Tensor:
    """Uniform integers low, ..., high - 1; up to what the dtype holds exactly when high is not given."""
    if high is None:
        low, high = (0, low) if low else (0, random.largest(self.dtype) + 1)
    return _drawn(self, "random_", random.randint(low, high, self.shape, generator=generator))


def uniform_(
    self: Tensor, a: Number = 0.0, b: Number = 1.0, *, generator: random.Generator | None = None
) -> Tensor:
    """Uniform random numbers on [a, b)."""
    if a > b:
        raise ArgumentError(f"uniform_: {a} to {b} is no range")
    drawn = random.rand(self.shape, generator=generator, dtype=self.dtype, device=self.value.node.device)
    return self.become("uniform_", (drawn * (b - a) + a).value)


def normal_(
    self: Tensor, mean: Number = 0.0, std: Number = 1.0, *, generator: random.Generator | None = None
) -> Tensor:
    """Normal random numbers with the given mean and standard deviation."""
    if not std >= 0:
        raise ArgumentError(f"normal_: std must be at least 0, got {std}")
    drawn = random.randn(self.shape, generator=generator, dtype=self.dtype, device=self.value.node.device)
    return self.become("normal_", (drawn * std + mean).value)


class InPlace(Handle):
    """Functions that make the handle stand for their result, whose shape and dtype must fit. Tensor inherits them."""

    __slots__ = ()

    masked_fill_ = _in_place_once(picking.masked_fill, 1)
    index_fill_ = _in_place_once(picking.index_fill, 2)
    index_put_ = _in_place_once(indexing.index_put, 1)
    squeeze_ = _in_new_shape(movement.squeeze, "squeeze_")
    unsqueeze_ = _in_new_shape(movement.unsqueeze, "unsqueeze_")
    transpose_ = _in_new_shape(movement.transpose, "transpose_")
    swapaxes_ = _in_new_shape(movement.transpose, "swapaxes_")
    swapdims_ = _in_new_shape(movement.transpose, "swapdims_")
    t_ = _in_new_shape(movement.t, "t_")
    resize_as_ = resize_as_
    as_strided_ = as_strided_
    polygamma_ = polygamma_
    fill_diagonal_ = fill_diagonal_
    bernoulli_ = bernoulli_
    exponential_ = exponential_
    cauchy_ = cauchy_
    log_normal_ = log_normal_
    geometric_ = geometric_
    random_ = random_
    uniform_ = uniform_
    normal_ = normal_
