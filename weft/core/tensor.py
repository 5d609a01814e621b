"""Tensor: a handle to a value of the graph, which is immutable; in-place syntax makes it stand for another.

The functions are methods of the class under their own names; see the modules they come from.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeGuard

from weft.autograd.value import Value, apply, grad_enabled
from weft.core import (
    broadcast,
    creation,
    differentiate,
    display,
    elementwise,
    handle,
    indexing,
    movement,
    random,
    realization,
    reductions,
    run,
)  # fmt: skip
from weft.core import (
    gather as picking,
)
from weft.core import (
    matmul as products,
)
from weft.core.functional import activations, padding
from weft.core.handle import Handle, Number, TensorLike, describe, value_of, wrap
from weft.core.lazy import LazyModule
from weft.errors import ArgumentError, DTypeError, GradError, ShapeError
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.graph import Shape, Target, elements
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    import numpy as np

    from weft.core import (
        arithmetic,
        arrangement,
        float_format,
        interchange,
        linear_algebra,
        scans,
        sorting,
        trigonometry,
    )
    from weft.core import products as composed_products
    from weft.core import special_functions as special

    Array: TypeAlias = np.ndarray[Any, Any]
else:
    arithmetic = LazyModule("weft.core.arithmetic")
    arrangement = LazyModule("weft.core.arrangement")
    float_format = LazyModule("weft.core.float_format")
    interchange = LazyModule("weft.core.interchange")
    linear_algebra = LazyModule("weft.core.linear_algebra")
    scans = LazyModule("weft.core.scans")
    sorting = LazyModule("weft.core.sorting")
    trigonometry = LazyModule("weft.core.trigonometry")
    composed_products = LazyModule("weft.core.products")
    special = LazyModule("weft.core.special_functions")

# builtins that methods of the class shadow inside it
Int_: TypeAlias = builtins.int
Float_: TypeAlias = builtins.float
Bool_: TypeAlias = builtins.bool


P = ParamSpec("P")


def _in_place(
    function: Callable[Concatenate[Tensor, P], Tensor], name: str | None = None
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """The method that makes a handle stand for the function's result, which must fit its shape and dtype."""
    label = name or f"{function.__name__}_"

    @wraps(function)
    def method(self: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        return self.become(label, function(self, *args, **kwargs).value)

    method.__name__ = method.__qualname__ = label
    method.__doc__ = f"In place: {function.__doc__}"
    return method


def _in_new_shape(
    function: Callable[Concatenate[Tensor, P], Tensor], name: str
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """As _in_place, for what changes the shape of the handle."""

    @wraps(function)
    def method(self: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        return self.in_shape(name, function(self, *args, **kwargs).value)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In place: {function.__doc__}"
    return method


class Tensor(Handle):
    """An n-dimensional array of one dtype, computed when its values are needed.

    `weft.Tensor(data)` is `weft.tensor(data)`; a subclass such as a parameter is made the same way.
    """

    _grad: Tensor | None = None
    __hash__ = object.__hash__
    __array_priority__ = 1000.0
    __array_ufunc__ = None

    def __init__(
        self,
        data: Any = (),
        dtype: DType | None = None,
        device: str | None = None,
        requires_grad: Bool_ = False,
    ) -> None:
        same = isinstance(data, Handle) and dtype is None and device is None
        source = data if same else creation.tensor(data, dtype, device)
        self.value = Value(source.value.node)
        if requires_grad:
            self.requires_grad_()

    # ------------------------------------------------------------------------------------------ what it is

    @property
    def shape(self) -> Shape:
        """The size of each dimension."""
        return self.value.node.shape

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.value.node.dtype

    @property
    def ndim(self) -> Int_:
        """The number of dimensions."""
        return len(self.value.node.shape)

    @property
    def device(self) -> str:
        """The device, such as "cpu:0", on which the tensor is or will be computed."""
        return self.value.node.device or run.configured_device()

    @property
    def itemsize(self) -> Int_:
        """The size of an element in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> Int:
        """The size of all elements in bytes."""
        return self.numel() * self.dtype.itemsize

    def size(self, dim: Int_ | None = None) -> Any:
        """The shape, or the size of one dimension."""
        from weft.core.axes import axis

        return self.shape if dim is None else self.shape[axis("size", dim, self.shape)]

    def dim(self) -> Int_:
        """The number of dimensions."""
        return len(self.value.node.shape)

    def numel(self) -> Int:
        """The number of elements."""
        return elements(self.value.node.shape)

    nelement = numel

    def element_size(self) -> Int_:
        """The size of an element in bytes."""
        return self.dtype.itemsize

    def is_floating_point(self) -> Bool_:
        """True for float dtypes."""
        return self.dtype.is_float

    def is_contiguous(self) -> Bool_:
        """True: weft has no strides."""
        return True

    @property
    def T(self) -> Tensor:
        """All dimensions in reverse order."""
        return movement.reverse_dims(self)

    @property
    def mT(self) -> Tensor:
        """The last two dimensions exchanged."""
        return movement.matrix_transpose(self)

    # ------------------------------------------------------------------------------------------ gradients

    @property
    def requires_grad(self) -> Bool_:
        """True if backward() of something computed from this tensor reaches it."""
        return self.value.needs_grad

    @requires_grad.setter
    def requires_grad(self, mode: Bool_) -> None:
        self.requires_grad_(mode)

    def requires_grad_(self, requires_grad: Bool_ = True) -> Tensor:
        """Start or stop asking for gradients of this leaf. GradError for other than float tensors, and for results."""
        v = self.value
        if not v.is_leaf:
            if not requires_grad:
                raise GradError(
                    "requires_grad_: only a leaf can stop requiring grad; use .detach() on a result"
                )
            return self
        if requires_grad and not v.dtype.is_float:
            raise GradError(f"requires_grad_: only float tensors can require grad, got {v.dtype.name}")
        if requires_grad != v.needs_grad:
            self.value = Value(v.node, requires_grad)
        if requires_grad:
            differentiate.watch(self)
        return self

    @property
    def is_leaf(self) -> Bool_:
        """True unless the tensor is a recorded result of other tensors."""
        return self.value.is_leaf

    @property
    def grad(self) -> Tensor | None:
        """The gradients that backward() has added up; None before the first."""
        return self._grad

    @grad.setter
    def grad(self, grad: Tensor | None) -> None:
        if grad is not None:
            g = value_of("grad", grad)
            if g.shape != self.shape or g.dtype is not self.dtype:
                raise ShapeError(f"grad: must be {describe(self)}, got {describe(grad)}")
        self._grad = grad

    def retain_grad(self) -> None:
        """Have backward() fill `.grad` of this result too."""
        if not self.value.needs_grad:
            raise GradError("retain_grad: this tensor does not require grad")
        differentiate.watch(self)

    def detach(self) -> Tensor:
        """The same values, without history: a constant to differentiation."""
        return wrap(Value(self.value.node))

    def detach_(self) -> Tensor:
        """Forget the history of this handle."""
        self.value = Value(self.value.node)
        return self

    def clone(self) -> Tensor:
        """A tensor of its own with the same values; gradients flow through."""
        v = self.value
        if v.needs_grad and grad_enabled():
            # a reshape to the same shape: recorded, though the node is the same
            return wrap(Value(v.node, True, Op.RESHAPE, None, (v,)))
        return wrap(Value(v.node))

    @property
    def data(self) -> Tensor:
        """The values without history; assigning replaces them and keeps whether gradients are asked for."""
        return self.detach()

    @data.setter
    def data(self, data: Tensor) -> None:
        v = value_of("data", data)
        self.rebind(Value(v.node, self.value.needs_grad))

    backward = differentiate.backward
    register_hook = differentiate.register_hook
    register_post_accumulate_grad_hook = differentiate.register_post_accumulate_grad_hook

    # ------------------------------------------------------------------------------------------ values

    def realize(self) -> Tensor:
        """Compute the tensor now, and keep the result."""
        if self.value.node.op is not Op.BUFFER:
            realization.realize(self)
        return self

    def numpy(self) -> Array:
        """The values as a NumPy array of its own. Computes the tensor."""
        return run.to_numpy(self.realize().value.node).copy()

    def item(self) -> Any:
        """The value of a tensor of one element, as a Python number. Computes the tensor."""
        if elements(self.shape) != 1:
            raise ShapeError(
                f"item: needs a tensor of one element, got shape {tuple(self.shape)}; use .tolist()"
            )
        value = run.to_numpy(self.realize().value.node).reshape(())
        return Float_(value) if self.dtype.is_float else value.item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers. Computes the tensor."""
        array = run.to_numpy(self.realize().value.node)
        if self.dtype is dtypes.bfloat16:
            array = array.astype("float32")
        return array.tolist()

    def __array__(self, dtype: Any = None, copy: Bool_ | None = None) -> Array:
        """The values for NumPy: read-only over this tensor's own memory where possible, unless a copy is asked for."""
        array = interchange.shared_array(self)
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ArgumentError(f"__array__: {self.dtype.name} as {dtype} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Bool_ | None = None
    ) -> Any:
        """A DLPack capsule of the values in the CPU's memory; read-only where the consumer knows of that."""
        return interchange.to_dlpack(self, max_version, dl_device, copy)

    __dlpack_device__ = interchange.dlpack_device

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The array API standard's functions for this tensor."""
        return interchange.array_namespace(api_version)

    def __repr__(self) -> str:
        return display.text(self)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and not self.shape else repr(self)

    def __bool__(self) -> Bool_:
        if elements(self.shape) != 1:
            raise ShapeError(
                f"bool: the truth of a tensor of shape {tuple(self.shape)} is ambiguous; use .any() or .all()"
            )
        return Bool_(self.item())

    def __int__(self) -> Int_:
        return Int_(self.item())

    def __float__(self) -> Float_:
        return Float_(self.item())

    def __index__(self) -> Int_:
        if not self.dtype.is_int:
            raise DTypeError(
                f"index: only integer tensors of one element can be an index, got {describe(self)}"
            )
        return Int_(self.item())

    def __len__(self) -> Int_:
        if not self.shape:
            raise DTypeError("len: a tensor without dimensions has no length")
        n = self.shape[0]
        if not isinstance(n, builtins.int):
            raise ShapeError(f"len: the size {n} is only known at run time")
        return n

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise DTypeError("iter: a tensor without dimensions cannot be iterated over")
        return iter(movement.unbind(self, 0))

    def __contains__(self, x: TensorLike) -> Bool_:
        return Bool_(reductions.any(elementwise.eq(self, x)).item())

    def __deepcopy__(self, memo: dict[Int_, Any]) -> Tensor:
        out = object.__new__(type(self))
        memo[id(self)] = out
        out.value = Value(self.value.node)
        out.__dict__.update({k: v for k, v in self.__dict__.items() if k != "_grad"})
        if self.grad is not None:
            out._grad = self.grad.detach()
        return out.requires_grad_() if self.requires_grad else out

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.numpy(), self.dtype, self.requires_grad)

    # ------------------------------------------------------------------------------------------ conversion

    def to(self, *args: Any, dtype: DType | None = None, device: str | None = None) -> Tensor:
        """The tensor in another dtype, on another device, or as another tensor is; itself if nothing changes."""
        for x in args:
            if isinstance(x, DType):
                dtype = x
            elif isinstance(x, str):
                device = x
            elif isinstance(x, Handle):
                dtype, device = x.value.dtype, wrap(x.value).device
            elif not isinstance(x, Bool_) and x is not None:
                raise DTypeError(f"to: expected a dtype, a device name or a Tensor, got {describe(x)}")
        out = self if dtype is None else elementwise.to_dtype(self, dtype)
        if device is not None and (name := run.device_name(device)) != out.device:
            out = wrap(apply(Op.COPY, (out.value,), Target(name)))
        return out

    def type(self, dtype: DType | None = None) -> Any:
        """The dtype, or the tensor converted to one."""
        return self.dtype if dtype is None else self.to(dtype)

    def type_as(self, other: Tensor) -> Tensor:
        """The tensor in the dtype of another."""
        return self.to(value_of("type_as", other).dtype)

    def cpu(self) -> Tensor:
        """The tensor on the CPU."""
        return self.to("cpu")

    def bool(self) -> Tensor:
        """True where nonzero."""
        return self.to(dtypes.bool_)

    def byte(self) -> Tensor:
        """As uint8."""
        return self.to(dtypes.uint8)

    def char(self) -> Tensor:
        """As int8."""
        return self.to(dtypes.int8)

    def short(self) -> Tensor:
        """As int16."""
        return self.to(dtypes.int16)

    def int(self) -> Tensor:
        """As int32."""
        return self.to(dtypes.int32)

    def long(self) -> Tensor:
        """As int64."""
        return self.to(dtypes.int64)

    def half(self) -> Tensor:
        """As float16."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Tensor:
        """As bfloat16."""
        return self.to(dtypes.bfloat16)

    def float(self) -> Tensor:
        """As float32."""
        return self.to(dtypes.float32)

    def double(self) -> Tensor:
        """As float64."""
        return self.to(dtypes.float64)

    # ------------------------------------------------------------------------------------------ in place

    def rebind(self, value: Value) -> None:
        """Have this handle stand for another value; gradients of a leaf go on accumulating here."""
        self.value = value
        if value.needs_grad and value.is_leaf:
            differentiate.watch(self)

    def become(self, op: str, result: Value) -> Tensor:
        """In-place syntax: the handle stands for `result`, which must fit its shape and dtype."""
        old = self.value
        if result.shape != old.shape:
            raise ShapeError(
                f"{op}: the result has shape {tuple(result.shape)}, the tensor {tuple(old.shape)}"
            )
        if not broadcast.can_cast(result.dtype, old.dtype):
            raise DTypeError(
                f"{op}: the result is {result.dtype.name}, which a tensor of {old.dtype.name} cannot hold; "
                "write x = x ... to get a new tensor"
            )
        if old.needs_grad and old.is_leaf:
            if grad_enabled():
                raise GradError(
                    f"{op}: this tensor requires grad and its gradients would be lost; do it under weft.no_grad()"
                )
            self.rebind(Value(broadcast.cast(result, old.dtype).node, True))
        else:
            self.rebind(broadcast.cast(result, old.dtype))
        return self

    def copy_(self, src: TensorLike) -> Tensor:
        """Take over the values of src, broadcast and converted to this tensor's shape and dtype."""
        v = broadcast.operand("copy_", src)
        if not isinstance(v, Value):
            return self.become("copy_", broadcast.scalar(v, self.dtype, self.shape))
        if broadcast.broadcast_shape("copy_", (self.shape, v.shape)) != self.shape:
            raise ShapeError(f"copy_: shape {tuple(v.shape)} does not broadcast to {tuple(self.shape)}")
        moved = creation.place(v, self.device) if v.node.device is not None else v
        return self.become("copy_", broadcast.expand(broadcast.cast(moved, self.dtype), self.shape))

    assign = copy_

    def fill_(self, value: TensorLike) -> Tensor:
        """Every element `value`."""
        return self.copy_(value)

    def zero_(self) -> Tensor:
        """Every element 0."""
        return self.copy_(0)

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
    masked_fill_ = _in_place(picking.masked_fill)
    scatter_ = _in_place(picking.scatter)
    scatter_add_ = _in_place(picking.scatter_add)
    scatter_reduce_ = _in_place(picking.scatter_reduce)
    index_add_ = _in_place(picking.index_add)
    index_copy_ = _in_place(picking.index_copy)
    index_fill_ = _in_place(picking.index_fill)
    index_put_ = _in_place(indexing.index_put)
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

    def polygamma_(self, n: Int_) -> Tensor:
        """In place: the n-th derivative of digamma."""
        return self.become("polygamma_", special.polygamma(n, self).value)

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
    resize_as_ = _in_new_shape(arrangement.resize_as, "resize_as_")
    as_strided_ = _in_new_shape(arrangement.as_strided, "as_strided_")

    def fill_diagonal_(self, fill_value: Number, wrap: Bool_ = False) -> Tensor:
        """The main diagonal filled; with wrap, that of a tall matrix begins anew after each square."""
        return self.become("fill_diagonal_", indexing.filled_diagonal(self, fill_value, wrap).value)

    def in_shape(self, op: str, result: Value) -> Tensor:
        """In-place syntax for what changes the shape."""
        old = self.value
        if old.needs_grad and old.is_leaf:
            if grad_enabled():
                raise GradError(f"{op}: this tensor requires grad; do it under weft.no_grad()")
            self.rebind(Value(result.node, True))
        else:
            self.rebind(result)
        return self

    def resize_(self, *size: Any) -> Tensor:
        """Another shape: the elements in row-major order, cut off or filled up with zeros."""
        return self.in_shape("resize_", indexing.resized(self, size).value)

    def _drawn(self, op: str, drawn: Tensor) -> Tensor:
        return self.become(op, broadcast.cast(creation.place(drawn.value, self.device), self.dtype))

    def bernoulli_(self, p: TensorLike = 0.5, *, generator: random.Generator | None = None) -> Tensor:
        """1 with probability p, else 0."""
        if isinstance(p, Handle):
            chances = broadcast.expand(p.value, self.shape)
            return self._drawn("bernoulli_", random.bernoulli(wrap(chances), generator=generator))
        return self._drawn("bernoulli_", random.bernoulli(self, Float_(p), generator=generator))

    def exponential_(self, lambd: Float_ = 1.0, *, generator: random.Generator | None = None) -> Tensor:
        """Exponentially distributed with rate lambd."""
        return self._drawn("exponential_", random.exponential(self.shape, self.dtype, lambd, generator))

    def cauchy_(
        self, median: Float_ = 0.0, sigma: Float_ = 1.0, *, generator: random.Generator | None = None
    ) -> Tensor:
        """Cauchy distributed around median with scale sigma."""
        if not sigma > 0:
            raise ArgumentError(f"cauchy_: sigma must be positive, got {sigma}")
        turn = random.rand(self.shape, generator=generator, dtype=self.dtype) - 0.5
        return self._drawn("cauchy_", elementwise.tan(turn * 3.141592653589793) * sigma + median)

    def log_normal_(
        self, mean: Float_ = 1.0, std: Float_ = 2.0, *, generator: random.Generator | None = None
    ) -> Tensor:
        """The exponential of normal numbers."""
        if not std > 0:
            raise ArgumentError(f"log_normal_: std must be positive, got {std}")
        drawn = random.randn(self.shape, generator=generator, dtype=self.dtype)
        return self._drawn("log_normal_", elementwise.exp(drawn * std + mean))

    def geometric_(self, p: Float_, *, generator: random.Generator | None = None) -> Tensor:
        """How many trials of chance p up to the first success."""
        if not 0 < p < 1:
            raise ArgumentError(f"geometric_: p must be between 0 and 1, got {p}")
        drawn = random.exponential(self.shape, dtypes.float32, 1.0, generator)
        return self._drawn("geometric_", elementwise.ceil(drawn / -special.host_log1p(-p)))

    def random_(
        self, low: Int_ = 0, high: Int_ | None = None, *, generator: random.Generator | None = None
    ) -> Tensor:
        """Uniform integers low, ..., high - 1; up to what the dtype holds exactly when high is not given."""
        if high is None:
            low, high = (0, low) if low else (0, random.largest(self.dtype) + 1)
        return self._drawn("random_", random.randint(low, high, self.shape, generator=generator))

    def uniform_(
        self, a: Number = 0.0, b: Number = 1.0, *, generator: random.Generator | None = None
    ) -> Tensor:
        """Uniform random numbers on [a, b)."""
        if a > b:
            raise ArgumentError(f"uniform_: {a} to {b} is no range")
        drawn = random.rand(self.shape, generator=generator, dtype=self.dtype, device=self.value.node.device)
        return self.become("uniform_", (drawn * (b - a) + a).value)

    def normal_(
        self, mean: Number = 0.0, std: Number = 1.0, *, generator: random.Generator | None = None
    ) -> Tensor:
        """Normal random numbers with the given mean and standard deviation."""
        drawn = random.randn(self.shape, generator=generator, dtype=self.dtype, device=self.value.node.device)
        return self.become("normal_", (drawn * std + mean).value)

    def __setitem__(self, key: Any, value: TensorLike) -> None:
        self.become("index assignment", indexing.setitem(self, key, value))

    def __iadd__(self, other: TensorLike) -> Tensor:
        return self.add_(other)

    def __isub__(self, other: TensorLike) -> Tensor:
        return self.sub_(other)

    def __imul__(self, other: TensorLike) -> Tensor:
        return self.mul_(other)

    def __itruediv__(self, other: TensorLike) -> Tensor:
        return self.div_(other)

    def __ifloordiv__(self, other: TensorLike) -> Tensor:
        return self.floor_divide_(other)

    def __imod__(self, other: TensorLike) -> Tensor:
        return self.remainder_(other)

    def __ipow__(self, other: TensorLike) -> Tensor:
        return self.pow_(other)

    def __iand__(self, other: TensorLike) -> Tensor:
        return self.bitwise_and_(other)

    def __ior__(self, other: TensorLike) -> Tensor:
        return self.bitwise_or_(other)

    def __ixor__(self, other: TensorLike) -> Tensor:
        return self.bitwise_xor_(other)

    def __ilshift__(self, other: TensorLike) -> Tensor:
        return self.bitwise_left_shift_(other)

    def __irshift__(self, other: TensorLike) -> Tensor:
        return self.bitwise_right_shift_(other)

    # ------------------------------------------------------------------------------------------ making others

    def new_zeros(
        self, *size: Any, dtype: DType | None = None, device: str | None = None, requires_grad: Bool_ = False
    ) -> Tensor:
        """Zeros in this tensor's dtype and on its device, unless told otherwise."""
        home = device or self.value.node.device
        return creation.zeros(*size, dtype=dtype or self.dtype, device=home, requires_grad=requires_grad)

    def new_ones(
        self, *size: Any, dtype: DType | None = None, device: str | None = None, requires_grad: Bool_ = False
    ) -> Tensor:
        """Ones in this tensor's dtype and on its device, unless told otherwise."""
        home = device or self.value.node.device
        return creation.ones(*size, dtype=dtype or self.dtype, device=home, requires_grad=requires_grad)

    new_empty = new_zeros

    def new_empty_strided(self, size: Any, stride: Any, **options: Any) -> Tensor:
        """As new_empty: weft has no strides."""
        return self.new_zeros(size, **options)

    def new_full(
        self,
        size: Any,
        fill_value: Number,
        *,
        dtype: DType | None = None,
        device: str | None = None,
        requires_grad: Bool_ = False,
    ) -> Tensor:
        """`fill_value` in this tensor's dtype and on its device, unless told otherwise."""
        home = device or self.value.node.device
        kind = dtype or self.dtype
        return creation.full(size, fill_value, dtype=kind, device=home, requires_grad=requires_grad)

    def new_tensor(
        self,
        data: Any,
        *,
        dtype: DType | None = None,
        device: str | None = None,
        requires_grad: Bool_ = False,
    ) -> Tensor:
        """`data` in this tensor's dtype and on its device, unless told otherwise."""
        home = device or self.value.node.device
        return creation.tensor(data, dtype or self.dtype, home, requires_grad)

    new = new_tensor

    # ------------------------------------------------------------------------------------------ operators

    def __eq__(self, other: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  (as torch)
        return elementwise.eq(self, other) if _comparable(other) else NotImplemented

    def __ne__(self, other: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  (as torch)
        return elementwise.ne(self, other) if _comparable(other) else NotImplemented

    __add__ = __radd__ = elementwise.add
    __sub__, __rsub__ = elementwise.sub, elementwise.rsub
    __mul__ = __rmul__ = elementwise.mul
    __truediv__, __rtruediv__ = elementwise.div, elementwise.rdiv
    __floordiv__, __rfloordiv__ = elementwise.floor_divide, elementwise.rfloor_divide
    __mod__, __rmod__ = elementwise.remainder, elementwise.rremainder
    __pow__, __rpow__ = elementwise.pow, elementwise.rpow
    __matmul__, __rmatmul__ = products.matmul, products.rmatmul
    __and__ = __rand__ = elementwise.bitwise_and
    __or__ = __ror__ = elementwise.bitwise_or
    __xor__ = __rxor__ = elementwise.bitwise_xor
    __lshift__, __rlshift__ = elementwise.bitwise_left_shift, elementwise.rshl
    __rshift__, __rrshift__ = elementwise.bitwise_right_shift, elementwise.rshr
    __lt__, __le__, __gt__, __ge__ = elementwise.lt, elementwise.le, elementwise.gt, elementwise.ge
    __neg__, __pos__, __abs__ = elementwise.neg, elementwise.positive, elementwise.abs
    __invert__ = elementwise.bitwise_not
    __getitem__ = indexing.getitem

    # ------------------------------------------------------------------------------------------ functions as methods

    add = elementwise.add
    sub = elementwise.sub
    subtract = elementwise.sub
    mul = elementwise.mul
    multiply = elementwise.mul
    div = elementwise.div
    divide = elementwise.div
    true_divide = elementwise.div
    floor_divide = elementwise.floor_divide
    remainder = elementwise.remainder
    fmod = elementwise.fmod
    pow = elementwise.pow
    maximum = elementwise.maximum
    minimum = elementwise.minimum
    bitwise_and = elementwise.bitwise_and
    bitwise_or = elementwise.bitwise_or
    bitwise_xor = elementwise.bitwise_xor
    bitwise_not = elementwise.bitwise_not
    bitwise_left_shift = elementwise.bitwise_left_shift
    bitwise_right_shift = elementwise.bitwise_right_shift
    lt = elementwise.lt
    less = elementwise.lt
    le = elementwise.le
    less_equal = elementwise.le
    gt = elementwise.gt
    greater = elementwise.gt
    ge = elementwise.ge
    greater_equal = elementwise.ge
    eq = elementwise.eq
    ne = elementwise.ne
    not_equal = elementwise.ne
    logical_and = elementwise.logical_and
    logical_or = elementwise.logical_or
    logical_xor = elementwise.logical_xor
    logical_not = elementwise.logical_not
    neg = elementwise.neg
    negative = elementwise.neg
    abs = elementwise.abs
    absolute = elementwise.abs
    reciprocal = elementwise.reciprocal
    sqrt = elementwise.sqrt
    rsqrt = elementwise.rsqrt
    square = elementwise.square
    exp = elementwise.exp
    exp2 = elementwise.exp2
    expm1 = elementwise.expm1
    log = elementwise.log
    log2 = elementwise.log2
    log10 = elementwise.log10
    log1p = elementwise.log1p
    sin = elementwise.sin
    cos = elementwise.cos
    tan = elementwise.tan
    tanh = elementwise.tanh
    sinh = elementwise.sinh
    cosh = elementwise.cosh
    erf = elementwise.erf
    sigmoid = elementwise.sigmoid
    logit = elementwise.logit
    sign = elementwise.sign
    floor = elementwise.floor
    ceil = elementwise.ceil
    trunc = elementwise.trunc
    fix = elementwise.trunc
    round = elementwise.round
    frac = elementwise.frac
    isnan = elementwise.isnan
    isinf = elementwise.isinf
    isfinite = elementwise.isfinite
    nan_to_num = elementwise.nan_to_num
    clamp = elementwise.clamp
    clip = elementwise.clamp
    lerp = elementwise.lerp
    addcmul = elementwise.addcmul
    addcdiv = elementwise.addcdiv
    isclose = elementwise.isclose

    sum = reductions.sum
    prod = reductions.prod
    mean = reductions.mean
    var = reductions.var
    std = reductions.std
    amax = reductions.amax
    amin = reductions.amin
    aminmax = reductions.aminmax
    max = reductions.max
    min = reductions.min
    argmax = reductions.argmax
    argmin = reductions.argmin
    any = reductions.any
    all = reductions.all
    count_nonzero = reductions.count_nonzero
    logsumexp = reductions.logsumexp
    norm = reductions.norm
    allclose = reductions.allclose
    equal = reductions.equal

    reshape = movement.reshape
    view = movement.view
    view_as = movement.view_as
    reshape_as = movement.view_as
    flatten = movement.flatten
    ravel = movement.flatten
    unflatten = movement.unflatten
    squeeze = movement.squeeze
    unsqueeze = movement.unsqueeze
    expand = movement.expand
    expand_as = movement.expand_as
    broadcast_to = movement.broadcast_to
    permute = movement.permute
    transpose = movement.transpose
    swapaxes = movement.transpose
    swapdims = movement.transpose
    t = movement.t
    movedim = movement.movedim
    moveaxis = movement.movedim
    flip = movement.flip
    roll = movement.roll
    narrow = movement.narrow
    shrink = movement.shrink
    pad = padding.pad
    select = movement.select
    split = movement.split
    chunk = movement.chunk
    unbind = movement.unbind
    unfold = movement.unfold
    repeat = movement.repeat
    tile = movement.tile
    repeat_interleave = movement.repeat_interleave
    tril = movement.tril
    triu = movement.triu
    diagonal = movement.diagonal
    diag = movement.diag
    contiguous = movement.contiguous

    gather = picking.gather
    take_along_dim = picking.take_along_dim
    index_select = picking.index_select
    take = picking.take
    scatter = picking.scatter
    scatter_add = picking.scatter_add
    scatter_reduce = picking.scatter_reduce
    index_add = picking.index_add
    index_copy = picking.index_copy
    index_fill = picking.index_fill
    masked_fill = picking.masked_fill
    masked_select = picking.masked_select
    nonzero = picking.nonzero
    argwhere = picking.argwhere
    bincount = picking.bincount

    index_put = indexing.index_put

    matmul = products.matmul
    mm = products.mm
    bmm = products.bmm
    mv = products.mv
    dot = products.dot
    outer = products.outer
    addmm = products.addmm
    baddbmm = products.baddbmm
    addmv = products.addmv

    relu = activations.relu
    softmax = activations.softmax
    log_softmax = activations.log_softmax

    bernoulli = random.bernoulli

    fmax = arithmetic.fmax
    fmin = arithmetic.fmin
    clamp_min = arithmetic.clamp_min
    clamp_max = arithmetic.clamp_max
    float_power = arithmetic.float_power
    heaviside = arithmetic.heaviside
    sgn = arithmetic.sgn
    isposinf = arithmetic.isposinf
    isneginf = arithmetic.isneginf
    isreal = arithmetic.isreal
    gcd = arithmetic.gcd
    lcm = arithmetic.lcm
    signbit = float_format.signbit
    copysign = float_format.copysign
    nextafter = float_format.nextafter
    frexp = float_format.frexp
    ldexp = float_format.ldexp
    asin = trigonometry.asin
    acos = trigonometry.acos
    atan = trigonometry.atan
    atan2 = trigonometry.atan2
    asinh = trigonometry.asinh
    acosh = trigonometry.acosh
    atanh = trigonometry.atanh
    hypot = trigonometry.hypot
    sinc = trigonometry.sinc
    deg2rad = trigonometry.deg2rad
    rad2deg = trigonometry.rad2deg
    erfc = special.erfc
    erfinv = special.erfinv
    lgamma = special.lgamma
    digamma = special.digamma
    mvlgamma = special.mvlgamma
    i0 = special.i0
    xlogy = special.xlogy
    logaddexp = special.logaddexp
    logaddexp2 = special.logaddexp2
    cumsum = scans.cumsum
    cumprod = scans.cumprod
    cummax = scans.cummax
    cummin = scans.cummin
    logcumsumexp = scans.logcumsumexp
    diff = scans.diff
    sort = sorting.sort
    argsort = sorting.argsort
    msort = sorting.msort
    topk = sorting.topk
    kthvalue = sorting.kthvalue
    median = sorting.median
    nanmedian = sorting.nanmedian
    quantile = sorting.quantile
    nanquantile = sorting.nanquantile
    mode = sorting.mode
    unique = sorting.unique
    unique_consecutive = sorting.unique_consecutive
    histc = sorting.histc
    histogram = sorting.histogram
    nansum = reductions.nansum
    nanmean = reductions.nanmean
    tensor_split = arrangement.tensor_split
    hsplit = arrangement.hsplit
    vsplit = arrangement.vsplit
    dsplit = arrangement.dsplit
    fliplr = arrangement.fliplr
    flipud = arrangement.flipud
    rot90 = arrangement.rot90
    diag_embed = arrangement.diag_embed
    diagflat = arrangement.diagflat
    as_strided = arrangement.as_strided
    select_scatter = arrangement.select_scatter
    slice_scatter = arrangement.slice_scatter
    diagonal_scatter = arrangement.diagonal_scatter
    as_strided_scatter = arrangement.as_strided_scatter
    put = arrangement.put
    masked_scatter = arrangement.masked_scatter
    index_reduce = arrangement.index_reduce
    nonzero_static = arrangement.nonzero_static
    sum_to_size = arrangement.sum_to_size
    resize_as = arrangement.resize_as
    det = linear_algebra.det
    slogdet = linear_algebra.slogdet
    logdet = linear_algebra.logdet
    matrix_power = linear_algebra.matrix_power
    matrix_exp = linear_algebra.matrix_exp
    pinv = linear_algebra.pinv
    trace = linear_algebra.trace
    qr = linear_algebra.qr
    cholesky_solve = linear_algebra.cholesky_solve
    cholesky_inverse = linear_algebra.cholesky_inverse
    triangular_solve = linear_algebra.triangular_solve
    ormqr = linear_algebra.ormqr
    geqrf = linear_algebra.geqrf
    inner = composed_products.inner
    vdot = composed_products.vdot
    kron = composed_products.kron
    addbmm = composed_products.addbmm
    addr = composed_products.addr
    cross = composed_products.cross
    dist = composed_products.dist
    cov = composed_products.cov
    corrcoef = composed_products.corrcoef
    renorm = composed_products.renorm
    multinomial = random.multinomial
    arcsin = asin
    arccos = acos
    arctan = atan
    arctan2 = atan2
    arcsinh = asinh
    arccosh = acosh
    arctanh = atanh
    positive = elementwise.positive
    narrow_copy = narrow
    split_with_sizes = split
    unsafe_chunk = chunk
    unsafe_split = split
    unsafe_split_with_sizes = split
    ger = outer
    inverse = linear_algebra.inv
    pinverse = pinv
    svd = linear_algebra.torch_svd
    igamma = special.gammainc
    igammac = special.gammaincc
    cholesky = linear_algebra.torch_cholesky
    lu_solve = linear_algebra.torch_lu_solve
    lu = linear_algebra.torch_lu
    lstsq = linear_algebra.lstsq
    index = indexing.index
    resize = resize_

    def polygamma(self, n: Int_) -> Tensor:
        """The n-th derivative of digamma."""
        return special.polygamma(n, self)

    def hardshrink(self, lambd: Float_ = 0.5) -> Tensor:
        """The elements larger than lambd in size, zeros for the rest."""
        return elementwise.where(elementwise.le(elementwise.abs(self), lambd), 0, self)

    def prelu(self, weight: Tensor) -> Tensor:
        """The input where positive, weight * input elsewhere."""
        return activations.prelu(self, weight)

    def is_nonzero(self) -> Bool_:
        """True for a tensor of one element that is not 0. Computes."""
        return Bool_(self)

    def is_signed(self) -> Bool_:
        """True for dtypes with a sign."""
        return self.dtype.is_float or (self.dtype.is_int and self.dtype.min != 0)

    def is_complex(self) -> Bool_:
        """False: weft has real numbers only."""
        return False

    is_conj = is_neg = is_inference = is_coalesced = is_distributed = is_pinned = is_shared = is_complex

    def is_same_size(self, other: Tensor) -> Bool_:
        """True for equal shapes."""
        return self.shape == other.shape

    is_set_to = is_same_size

    def ndimension(self) -> Int_:
        """The number of dimensions."""
        return self.ndim

    def get_device(self) -> Int_:
        """The number of the device among those of its kind; -1 for the CPU, as in torch."""
        kind, _, number = self.device.partition(":")
        return -1 if kind == "cpu" else Int_(number or 0)

    def stride(self, dim: Int_ | None = None) -> Any:
        """The strides of a contiguous tensor of this shape, which is what `numpy()` gives."""
        steps: list[Any] = []
        step: Int = 1
        for n in reversed(self.shape):
            steps.append(step)
            step = step * n
        steps.reverse()
        return tuple(steps) if dim is None else steps[dim]

    def storage_offset(self) -> Int_:
        """0: weft's tensors share no storage with an offset."""
        return 0

    def dim_order(self) -> tuple[Int_, ...]:
        """The dimensions from the outermost to the innermost: as they are."""
        return tuple(range(self.ndim))

    def real_(self) -> Tensor:
        """The tensor itself: weft has real numbers only."""
        return self

    conj = conj_physical = resolve_conj = resolve_neg = real_
    adjoint = movement.matrix_transpose

    @property
    def real(self) -> Tensor:
        """The tensor itself: weft has real numbers only."""
        return self

    @property
    def H(self) -> Tensor:
        """A matrix transposed."""
        return movement.t(self)

    @property
    def mH(self) -> Tensor:
        """The last two dimensions exchanged."""
        return movement.matrix_transpose(self)

    def angle(self) -> Tensor:
        """0 for positive numbers, pi for negative ones, NaN for NaN."""
        return trigonometry.angle(self)

    def apply_(self, function: Callable[[Any], Any]) -> Tensor:
        """Each element replaced by function(element), one by one in Python. Computes."""
        return self.map_(self, lambda x, _: function(x))

    def map_(self, tensor: Tensor, function: Callable[[Any, Any], Any]) -> Tensor:
        """Each element replaced by function(element, that of tensor), one by one in Python. Computes."""
        other = broadcast.expand(value_of("map_", tensor), self.shape)
        pairs = zip(_flat_list(self), _flat_list(wrap(other)), strict=True)
        made = creation.tensor([function(x, y) for x, y in pairs], dtype=self.dtype)
        return self.become("map_", broadcast.reshape(made.value, self.shape))

    def share_memory_(self) -> Tensor:
        """The tensor itself."""
        return self

    pin_memory = share_memory_

    def where(self, condition: Tensor, other: TensorLike) -> Tensor:
        """This tensor where the condition is true, else other."""
        return elementwise.where(condition, self, other)


def _flat_list(x: Tensor) -> list[Any]:
    return movement.flatten(x).tolist()


_ELEMENT_TYPES = (Handle, builtins.bool, builtins.int, builtins.float)


def _comparable(x: object) -> TypeGuard[TensorLike]:
    return isinstance(x, _ELEMENT_TYPES) or type(x).__module__ in ("numpy", "ml_dtypes")


def _unpickle(cls: type[Tensor], array: Array, dtype: DType, requires_grad: builtins.bool) -> Tensor:
    out = object.__new__(cls)
    out.value = creation.tensor(array, dtype).value
    return out.requires_grad_() if requires_grad else out


handle.set_tensor_class(Tensor)
