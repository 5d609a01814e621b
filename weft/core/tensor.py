"""Tensor: a handle to a value of the graph, which is immutable; in-place syntax makes it stand for another.

The functions are methods of the class under their own names; see the modules they come from.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

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
from weft.core.functional import activations, resampling
from weft.core.handle import Handle, Number, TensorLike, describe, value_of, wrap
from weft.errors import DTypeError, GradError, ShapeError
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.graph import Shape, Target, elements
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

# builtins that methods of the class shadow inside it
Int_: TypeAlias = builtins.int
Float_: TypeAlias = builtins.float
Bool_: TypeAlias = builtins.bool


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

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

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

    def _become(self, op: str, result: Value) -> Tensor:
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
            return self._become("copy_", broadcast.scalar(v, self.dtype, self.shape))
        if broadcast.broadcast_shape("copy_", (self.shape, v.shape)) != self.shape:
            raise ShapeError(f"copy_: shape {tuple(v.shape)} does not broadcast to {tuple(self.shape)}")
        moved = creation.place(v, self.device) if v.node.device is not None else v
        return self._become("copy_", broadcast.expand(broadcast.cast(moved, self.dtype), self.shape))

    assign = copy_

    def fill_(self, value: TensorLike) -> Tensor:
        """Every element `value`."""
        return self.copy_(value)

    def zero_(self) -> Tensor:
        """Every element 0."""
        return self.copy_(0)

    def add_(self, other: TensorLike, *, alpha: Number = 1) -> Tensor:
        """x += alpha * other"""
        return self._become("add_", elementwise.add(self, other, alpha=alpha).value)

    def sub_(self, other: TensorLike, *, alpha: Number = 1) -> Tensor:
        """x -= alpha * other"""
        return self._become("sub_", elementwise.sub(self, other, alpha=alpha).value)

    def mul_(self, other: TensorLike) -> Tensor:
        """x *= other"""
        return self._become("mul_", elementwise.mul(self, other).value)

    def div_(self, other: TensorLike, *, rounding_mode: str | None = None) -> Tensor:
        """x /= other"""
        return self._become("div_", elementwise.div(self, other, rounding_mode=rounding_mode).value)

    def pow_(self, exponent: TensorLike) -> Tensor:
        """x **= exponent"""
        return self._become("pow_", elementwise.pow(self, exponent).value)

    def lerp_(self, end: Tensor, weight: TensorLike) -> Tensor:
        """x += weight * (end - x)"""
        return self._become("lerp_", elementwise.lerp(self, end, weight).value)

    def addcmul_(self, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
        """x += value * tensor1 * tensor2"""
        return self._become("addcmul_", elementwise.addcmul(self, tensor1, tensor2, value=value).value)

    def addcdiv_(self, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
        """x += value * tensor1 / tensor2"""
        return self._become("addcdiv_", elementwise.addcdiv(self, tensor1, tensor2, value=value).value)

    def sqrt_(self) -> Tensor:
        """x = sqrt(x)"""
        return self._become("sqrt_", elementwise.sqrt(self).value)

    def neg_(self) -> Tensor:
        """x = -x"""
        return self._become("neg_", elementwise.neg(self).value)

    def exp_(self) -> Tensor:
        """x = exp(x)"""
        return self._become("exp_", elementwise.exp(self).value)

    def relu_(self) -> Tensor:
        """x = relu(x)"""
        return self._become("relu_", activations.relu(self).value)

    def clamp_(self, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
        """x limited to [min, max]"""
        return self._become("clamp_", elementwise.clamp(self, min, max).value)

    def masked_fill_(self, mask: Tensor, value: TensorLike) -> Tensor:
        """`value` where the mask is true"""
        return self._become("masked_fill_", picking.masked_fill(self, mask, value).value)

    def scatter_(self, dim: Int_, index: Tensor, src: TensorLike, *, reduce: str | None = None) -> Tensor:
        """Elements replaced by those of src at their index; see scatter."""
        return self._become("scatter_", picking.scatter(self, dim, index, src, reduce=reduce).value)

    def scatter_add_(self, dim: Int_, index: Tensor, src: Tensor) -> Tensor:
        """Elements of src added at their index; see scatter_add."""
        return self._become("scatter_add_", picking.scatter_add(self, dim, index, src).value)

    def index_add_(self, dim: Int_, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
        """Slices of source added at their index; see index_add."""
        return self._become("index_add_", picking.index_add(self, dim, index, source, alpha=alpha).value)

    def index_copy_(self, dim: Int_, index: Tensor, source: Tensor) -> Tensor:
        """Slices replaced by those of source at their index; see index_copy."""
        return self._become("index_copy_", picking.index_copy(self, dim, index, source).value)

    def uniform_(
        self, a: Number = 0.0, b: Number = 1.0, *, generator: random.Generator | None = None
    ) -> Tensor:
        """Uniform random numbers on [a, b)."""
        drawn = random.rand(self.shape, generator=generator, dtype=self.dtype, device=self.value.node.device)
        return self._become("uniform_", (drawn * (b - a) + a).value)

    def normal_(
        self, mean: Number = 0.0, std: Number = 1.0, *, generator: random.Generator | None = None
    ) -> Tensor:
        """Normal random numbers with the given mean and standard deviation."""
        drawn = random.randn(self.shape, generator=generator, dtype=self.dtype, device=self.value.node.device)
        return self._become("normal_", (drawn * std + mean).value)

    def __setitem__(self, key: Any, value: TensorLike) -> None:
        self._become("index assignment", indexing.setitem(self, key, value))

    def __iadd__(self, other: TensorLike) -> Tensor:
        return self.add_(other)

    def __isub__(self, other: TensorLike) -> Tensor:
        return self.sub_(other)

    def __imul__(self, other: TensorLike) -> Tensor:
        return self.mul_(other)

    def __itruediv__(self, other: TensorLike) -> Tensor:
        return self.div_(other)

    def __ifloordiv__(self, other: TensorLike) -> Tensor:
        return self._become("floor_divide_", elementwise.floor_divide(self, other).value)

    def __imod__(self, other: TensorLike) -> Tensor:
        return self._become("remainder_", elementwise.remainder(self, other).value)

    def __ipow__(self, other: TensorLike) -> Tensor:
        return self.pow_(other)

    def __iand__(self, other: TensorLike) -> Tensor:
        return self._become("bitwise_and_", elementwise.bitwise_and(self, other).value)

    def __ior__(self, other: TensorLike) -> Tensor:
        return self._become("bitwise_or_", elementwise.bitwise_or(self, other).value)

    def __ixor__(self, other: TensorLike) -> Tensor:
        return self._become("bitwise_xor_", elementwise.bitwise_xor(self, other).value)

    # ------------------------------------------------------------------------------------------ making others

    def new_zeros(self, *size: Any, dtype: DType | None = None) -> Tensor:
        """Zeros in this tensor's dtype and on its device."""
        return creation.zeros(*size, dtype=dtype or self.dtype, device=self.value.node.device)

    def new_ones(self, *size: Any, dtype: DType | None = None) -> Tensor:
        """Ones in this tensor's dtype and on its device."""
        return creation.ones(*size, dtype=dtype or self.dtype, device=self.value.node.device)

    def new_full(self, size: Any, fill_value: Number, *, dtype: DType | None = None) -> Tensor:
        """`fill_value` in this tensor's dtype and on its device."""
        return creation.full(size, fill_value, dtype=dtype or self.dtype, device=self.value.node.device)

    def new_tensor(self, data: Any, *, dtype: DType | None = None) -> Tensor:
        """`data` in this tensor's dtype and on its device."""
        return creation.tensor(data, dtype or self.dtype, self.value.node.device)

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
    cumsum = reductions.cumsum
    cumprod = reductions.cumprod
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
    pad = resampling.pad
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

    def where(self, condition: Tensor, other: TensorLike) -> Tensor:
        """This tensor where the condition is true, else other."""
        return elementwise.where(condition, self, other)


_ELEMENT_TYPES = (Handle, builtins.bool, builtins.int, builtins.float)


def _comparable(x: object) -> TypeGuard[TensorLike]:
    return isinstance(x, _ELEMENT_TYPES) or type(x).__module__ in ("numpy", "ml_dtypes")


def _unpickle(cls: type[Tensor], array: Array, dtype: DType, requires_grad: builtins.bool) -> Tensor:
    out = object.__new__(cls)
    out.value = creation.tensor(array, dtype).value
    return out.requires_grad_() if requires_grad else out


handle.set_tensor_class(Tensor)
