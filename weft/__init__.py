"""weft: a tensor framework. A lazy, torch-like Tensor whose graph is fused into kernels and compiled for the machine.

Names are torch's wherever torch has the thing. Importing opens no device; that happens when the first tensor needs one.
"""

from __future__ import annotations

import builtins
import importlib
import math
from typing import TYPE_CHECKING, Any

from weft._version import __version__
from weft.core.broadcast import broadcast_shapes, can_cast, result_type
from weft.core.creation import (
    arange,
    as_tensor,
    asarray,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tensor,
    tril_indices,
    triu_indices,
    zeros,
    zeros_like,
)  # fmt: skip
from weft.core.defaults import get_default_dtype, set_default_dtype
from weft.core.differentiate import grad, gradients, value_and_grad
from weft.core.elementwise import (
    abs,
    add,
    addcdiv,
    addcmul,
    bitwise_and,
    bitwise_left_shift,
    bitwise_not,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clamp,
    cos,
    cosh,
    div,
    eq,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    fmod,
    frac,
    ge,
    gt,
    isclose,
    isfinite,
    isinf,
    isnan,
    le,
    lerp,
    log,
    log1p,
    log2,
    log10,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    logit,
    lt,
    maximum,
    minimum,
    mul,
    nan_to_num,
    ne,
    neg,
    pow,
    reciprocal,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    sub,
    tan,
    tanh,
    trunc,
    where,
)  # fmt: skip
from weft.core.elementwise import clamp as clip
from weft.core.elementwise import div as divide
from weft.core.elementwise import mul as multiply
from weft.core.elementwise import sub as subtract
from weft.core.functional.activations import log_softmax, relu, softmax
from weft.core.gather import (
    argwhere,
    bincount,
    gather,
    index_add,
    index_copy,
    index_fill,
    index_select,
    masked_fill,
    masked_select,
    nonzero,
    scatter,
    scatter_add,
    scatter_reduce,
    take,
    take_along_dim,
)  # fmt: skip
from weft.core.indexing import index_put
from weft.core.matmul import addmm, addmv, baddbmm, bmm, dot, einsum, matmul, mm, mv, outer, tensordot
from weft.core.modes import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from weft.core.movement import (
    broadcast_tensors,
    broadcast_to,
    cat,
    chunk,
    diag,
    diagonal,
    flatten,
    flip,
    hstack,
    meshgrid,
    movedim,
    narrow,
    permute,
    repeat_interleave,
    reshape,
    roll,
    select,
    shrink,
    split,
    squeeze,
    stack,
    t,
    tile,
    transpose,
    tril,
    triu,
    unbind,
    unflatten,
    unsqueeze,
    vstack,
)  # fmt: skip
from weft.core.movement import cat as concat
from weft.core.random import (
    Generator,
    bernoulli,
    initial_seed,
    manual_seed,
    normal,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    seed,
)  # fmt: skip
from weft.core.realization import realize
from weft.core.reductions import (
    all,
    allclose,
    amax,
    amin,
    aminmax,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumprod,
    cumsum,
    equal,
    logsumexp,
    max,
    mean,
    min,
    norm,
    prod,
    std,
    std_mean,
    sum,
    var,
    var_mean,
)  # fmt: skip
from weft.core.run import synchronize
from weft.core.tensor import Tensor
from weft.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GradError,
    IndexError,
    MemoryPlanError,
    ShapeError,
    WeftError,
)  # fmt: skip
from weft.ir.dtypes import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from weft.ir.dtypes import bool_ as bool
from weft.ir.dtypes import float16 as half
from weft.ir.dtypes import float32 as float
from weft.ir.dtypes import float64 as double
from weft.ir.dtypes import int16 as short
from weft.ir.dtypes import int32 as int
from weft.ir.dtypes import int64 as long

if TYPE_CHECKING:
    from weft import io, nn, optim
    from weft.core.compile import compile
    from weft.core.devices import device, devices, memory_limit, set_num_threads
    from weft.core.explain import explain
    from weft.core.variables import Variable, bind
    from weft.core.vmap import vmap

__all__ = [
    "ArgumentError", "DType", "DTypeError", "DeviceError", "Generator", "GradError", "IndexError",
    "MemoryPlanError", "ShapeError", "Tensor", "Variable", "WeftError", "__version__", "abs", "add", "addcdiv",
    "addcmul", "addmm", "addmv", "all", "allclose", "amax", "amin", "aminmax", "any", "arange", "argmax",
    "argmin", "argwhere", "as_tensor", "asarray", "baddbmm", "bernoulli", "bfloat16", "bincount", "bind",
    "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "bmm", "bool", "broadcast_shapes", "broadcast_tensors", "broadcast_to", "can_cast", "cat", "ceil",
    "chunk", "clamp", "clip", "clone", "compile", "concat", "cos", "cosh", "count_nonzero", "cumprod",
    "cumsum", "device", "devices", "diag", "diagonal", "div", "divide", "dot", "double", "e", "einsum",
    "empty", "empty_like", "enable_grad", "eq", "equal", "erf", "exp", "exp2", "explain", "expm1", "eye",
    "flatten", "flip", "float", "float16", "float32", "float64", "floor", "floor_divide", "fmod", "frac",
    "from_numpy", "full", "full_like", "gather", "ge", "get_default_dtype", "grad", "gradients", "gt",
    "half", "hstack", "index_add", "index_copy", "index_fill", "index_put", "index_select", "inf",
    "inference_mode", "initial_seed", "int", "int16", "int32", "int64", "int8", "io", "is_grad_enabled",
    "is_tensor", "isclose", "isfinite", "isinf", "isnan", "le", "lerp", "linspace", "log", "log10", "log1p",
    "log2", "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "logsumexp",
    "long", "lt", "manual_seed", "masked_fill", "masked_select", "matmul", "max", "maximum", "mean",
    "memory_limit", "meshgrid", "min", "minimum", "mm", "movedim", "mul", "multiply", "mv", "nan",
    "nan_to_num", "narrow", "ne", "neg", "nn", "no_grad", "nonzero", "norm", "normal", "numel", "ones",
    "ones_like", "optim", "outer", "permute", "pi", "pow", "prod", "promote", "promote_types", "rand",
    "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm", "realize", "reciprocal", "relu", "remainder",
    "repeat_interleave", "reshape", "result_type", "roll", "round", "rsqrt", "scatter", "scatter_add",
    "scatter_reduce", "seed", "select", "set_default_dtype", "set_grad_enabled", "set_num_threads", "short", "shrink",
    "sigmoid", "sign", "sin", "sinh", "softmax", "split", "sqrt", "square", "squeeze", "stack", "std",
    "std_mean", "sub", "subtract", "sum", "synchronize", "t", "take", "take_along_dim", "tan", "tanh",
    "tensor", "tensordot", "tile", "transpose", "tril", "tril_indices", "triu", "triu_indices", "trunc",
    "uint16", "uint32", "uint64", "uint8", "unbind", "unflatten", "unsqueeze", "value_and_grad", "var",
    "var_mean", "vmap", "vstack", "where", "zeros", "zeros_like",
]  # fmt: skip

promote_types = promote
inf, nan, pi, e = math.inf, math.nan, math.pi, math.e

_LAZY = {
    "Variable": "weft.core.variables",
    "bind": "weft.core.variables",
    "compile": "weft.core.compile",
    "device": "weft.core.devices",
    "devices": "weft.core.devices",
    "memory_limit": "weft.core.devices",
    "set_num_threads": "weft.core.devices",
    "explain": "weft.core.explain",
    "vmap": "weft.core.vmap",
}
_PACKAGES = frozenset({"autograd", "data", "func", "io", "nn", "optim", "testing"})


def __getattr__(name: str) -> Any:
    """What is not needed by every program is imported when first asked for (PEP 562)."""
    if name in _PACKAGES:
        return importlib.import_module(f"weft.{name}")
    if name in _LAZY:
        found = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def is_tensor(obj: object) -> builtins.bool:
    """True for a Tensor."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> Any:
    """The number of elements."""
    return input.numel()


def clone(input: Tensor) -> Tensor:
    """A tensor of its own with the same values."""
    return input.clone()
