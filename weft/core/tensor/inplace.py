"""In-place forms of functions as methods of Tensor: the handle stands for the result afterwards."""
# Tests: tests/core/views/test_views.py, tests/core/tensor/test_tensor.py

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from weft.core.args import broadcast
from weft.core.args.handle import Handle, Number, TensorLike, wrap, writing
from weft.core.functional import activations
from weft.core.functions import matmul as products
from weft.core.functions import random
from weft.core.layout import creation, indexing, movement
from weft.core.layout import gather as picking
from weft.core.pointwise import elementwise
from weft.core.surface.keywords import translated, with_aliases
from weft.core.tensor.deferred import (
    arithmetic,
    arrangement,
    composed_products,
    float_format,
    scans,
    special,
    trigonometry,
)
from weft.core.views import views
from weft.errors import ArgumentError
from weft.ir import dtypes

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

P = ParamSpec("P")


def _in_place(
    function: Callable[Concatenate[Tensor, P], Tensor], name: str | None = None
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """The method that makes a handle stand for the function's result, which must fit its shape and dtype."""
    label, call = name or f"{function.__name__}_", with_aliases(function)

    @wraps(function)
    def method(self: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        with writing:
            return self.become_locked(label, call(self, *args, **kwargs).value)

    method.__name__ = method.__qualname__ = label
    method.__doc__ = f"In place: {function.__doc__}"
    return method


def _in_place_once(
    function: Callable[Concatenate[Tensor, P], Tensor], number: int
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """As `_in_place`, for a function that writes argument `number` (after the tensor) to some elements: where several
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
    function: Callable[Concatenate[Tensor, P], Tensor], name: str, looks: bool = True
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """As _in_place, for what changes the shape of the handle; with `looks` it looks at the same elements as before."""
    call = with_aliases(function)

    @wraps(function)
    def method(self: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        step = views.ViewStep(call, args, kwargs) if looks else None
        with writing:
            return self.in_shape(name, call(self, *args, **kwargs).value, step)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In place: {function.__doc__}"
    return method


def polygamma_(self: Tensor, n: int) -> Tensor:
    """In place: the n-th derivative of digamma."""
    with writing:
        return self.become("polygamma_", special.polygamma(n, self).value)


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
    drawn = random.exponential(self.shape, dtypes.float32, 1.0, generator)
    return _drawn(self, "geometric_", elementwise.ceil(drawn / -special.host_log1p(-p)))


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
    drawn = random.randn(self.shape, generator=generator, dtype=self.dtype, device=self.value.node.device)
    return self.become("normal_", (drawn * std + mean).value)


class InPlace(Handle):
    """Functions that make the handle stand for their result, whose shape and dtype must fit. Tensor inherits them."""

    __slots__ = ()

    add_ = _in_place(elementwise.add)
    sub_ = _in_place(elementwise.sub)
    mul_ = _in_place(elementwise.mul)
    div_ = _in_place(elementwise.div)
    pow_ = _in_place(elementwise.pow)
    lerp_ = _in_place(elementwise.lerp)
    addcmul_ = _in_place(elementwise.addcmul)
    addcdiv_ = _in_place(elementwise.addcdiv)
    sqrt_ = _in_place(elementwise.sqrt)
    neg_ = _in_place(elementwise.neg)
    exp_ = _in_place(elementwise.exp)
    clamp_ = _in_place(elementwise.clamp)
    abs_ = _in_place(elementwise.abs)
    reciprocal_ = _in_place(elementwise.reciprocal)
    rsqrt_ = _in_place(elementwise.rsqrt)
    square_ = _in_place(elementwise.square)
    exp2_ = _in_place(elementwise.exp2)
    expm1_ = _in_place(elementwise.expm1)
    log_ = _in_place(elementwise.log)
    log2_ = _in_place(elementwise.log2)
    log10_ = _in_place(elementwise.log10)
    log1p_ = _in_place(elementwise.log1p)
    sin_ = _in_place(elementwise.sin)
    cos_ = _in_place(elementwise.cos)
    tan_ = _in_place(elementwise.tan)
    tanh_ = _in_place(elementwise.tanh)
    sinh_ = _in_place(elementwise.sinh)
    cosh_ = _in_place(elementwise.cosh)
    erf_ = _in_place(elementwise.erf)
    sigmoid_ = _in_place(elementwise.sigmoid)
    logit_ = _in_place(elementwise.logit)
    sign_ = _in_place(elementwise.sign)
    floor_ = _in_place(elementwise.floor)
    ceil_ = _in_place(elementwise.ceil)
    trunc_ = _in_place(elementwise.trunc)
    round_ = _in_place(elementwise.round)
    frac_ = _in_place(elementwise.frac)
    nan_to_num_ = _in_place(elementwise.nan_to_num)
    floor_divide_ = _in_place(elementwise.floor_divide)
    remainder_ = _in_place(elementwise.remainder)
    fmod_ = _in_place(elementwise.fmod)
    bitwise_and_ = _in_place(elementwise.bitwise_and)
    bitwise_or_ = _in_place(elementwise.bitwise_or)
    bitwise_xor_ = _in_place(elementwise.bitwise_xor)
    bitwise_not_ = _in_place(elementwise.bitwise_not)
    bitwise_left_shift_ = _in_place(elementwise.bitwise_left_shift)
    bitwise_right_shift_ = _in_place(elementwise.bitwise_right_shift)
    lt_ = _in_place(elementwise.lt)
    le_ = _in_place(elementwise.le)
    gt_ = _in_place(elementwise.gt)
    ge_ = _in_place(elementwise.ge)
    eq_ = _in_place(elementwise.eq)
    ne_ = _in_place(elementwise.ne)
    logical_and_ = _in_place(elementwise.logical_and)
    logical_or_ = _in_place(elementwise.logical_or)
    logical_xor_ = _in_place(elementwise.logical_xor)
    logical_not_ = _in_place(elementwise.logical_not)
    clamp_min_ = _in_place(arithmetic.clamp_min)
    clamp_max_ = _in_place(arithmetic.clamp_max)
    float_power_ = _in_place(arithmetic.float_power)
    heaviside_ = _in_place(arithmetic.heaviside)
    sgn_ = _in_place(arithmetic.sgn)
    gcd_ = _in_place(arithmetic.gcd)
    lcm_ = _in_place(arithmetic.lcm)
    copysign_ = _in_place(float_format.copysign)
    nextafter_ = _in_place(float_format.nextafter)
    ldexp_ = _in_place(float_format.ldexp)
    asin_ = _in_place(trigonometry.asin)
    acos_ = _in_place(trigonometry.acos)
    atan_ = _in_place(trigonometry.atan)
    atan2_ = _in_place(trigonometry.atan2)
    asinh_ = _in_place(trigonometry.asinh)
    acosh_ = _in_place(trigonometry.acosh)
    atanh_ = _in_place(trigonometry.atanh)
    hypot_ = _in_place(trigonometry.hypot)
    sinc_ = _in_place(trigonometry.sinc)
    deg2rad_ = _in_place(trigonometry.deg2rad)
    rad2deg_ = _in_place(trigonometry.rad2deg)
    erfc_ = _in_place(special.erfc)
    erfinv_ = _in_place(special.erfinv)
    lgamma_ = _in_place(special.lgamma)
    digamma_ = _in_place(special.digamma)
    mvlgamma_ = _in_place(special.mvlgamma)
    i0_ = _in_place(special.i0)
    xlogy_ = _in_place(special.xlogy)
    cumsum_ = _in_place(scans.cumsum)
    cumprod_ = _in_place(scans.cumprod)
    masked_fill_ = _in_place_once(picking.masked_fill, 1)
    scatter_ = _in_place(picking.scatter)
    scatter_add_ = _in_place(picking.scatter_add)
    scatter_reduce_ = _in_place(picking.scatter_reduce)
    index_add_ = _in_place(picking.index_add)
    index_copy_ = _in_place(picking.index_copy)
    index_fill_ = _in_place_once(picking.index_fill, 2)
    index_put_ = _in_place_once(indexing.index_put, 1)
    put_ = _in_place(arrangement.put)
    masked_scatter_ = _in_place(arrangement.masked_scatter)
    index_reduce_ = _in_place(arrangement.index_reduce)
    tril_ = _in_place(movement.tril)
    triu_ = _in_place(movement.triu)
    addmm_ = _in_place(products.addmm)
    addmv_ = _in_place(products.addmv)
    baddbmm_ = _in_place(products.baddbmm)
    addbmm_ = _in_place(composed_products.addbmm)
    addr_ = _in_place(composed_products.addr)
    renorm_ = _in_place(composed_products.renorm)
    relu_ = _in_place(activations.relu)
    igamma_ = _in_place(special.gammainc, "igamma_")
    igammac_ = _in_place(special.gammaincc, "igammac_")
    subtract_ = sub_
    multiply_ = mul_
    divide_ = div_
    true_divide_ = div_
    negative_ = neg_
    absolute_ = abs_
    fix_ = trunc_
    clip_ = clamp_
    less_ = lt_
    less_equal_ = le_
    greater_ = gt_
    greater_equal_ = ge_
    not_equal_ = ne_
    arcsin_ = asin_
    arccos_ = acos_
    arctan_ = atan_
    arctan2_ = atan2_
    arcsinh_ = asinh_
    arccosh_ = acosh_
    arctanh_ = atanh_
    squeeze_ = _in_new_shape(movement.squeeze, "squeeze_")
    unsqueeze_ = _in_new_shape(movement.unsqueeze, "unsqueeze_")
    transpose_ = _in_new_shape(movement.transpose, "transpose_")
    swapaxes_ = _in_new_shape(movement.transpose, "swapaxes_")
    swapdims_ = _in_new_shape(movement.transpose, "swapdims_")
    t_ = _in_new_shape(movement.t, "t_")
    resize_as_ = _in_new_shape(arrangement.resize_as, "resize_as_", looks=False)
    as_strided_ = _in_new_shape(arrangement.as_strided, "as_strided_", looks=False)
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
    __iadd__ = add_
    __isub__ = sub_
    __imul__ = mul_
    __itruediv__ = div_
    __ifloordiv__ = floor_divide_
    __imod__ = remainder_
    __ipow__ = pow_
    __iand__ = bitwise_and_
    __ior__ = bitwise_or_
    __ixor__ = bitwise_xor_
    __ilshift__ = bitwise_left_shift_
    __irshift__ = bitwise_right_shift_
