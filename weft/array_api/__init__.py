"""The Python array API standard, version 2024.12: `xp = weft.array_api`, or `xp = x.__array_namespace__()`.

Its arrays are `Array`s: weft's Tensors with the standard's operators; the dtypes are weft's. Unlike weft's own
functions and Tensors, which promote as torch does, arrays without dimensions promote like all others here, results
keep the kind of their operands, and reductions of unsigned integers are unsigned. Functions take any Tensor and give
Arrays.
Source: https://data-apis.org/array-api/2024.12.

Left out: complex64, complex128, `conj` of anything but itself, `imag` and the extension `fft`, since weft has real
numbers only; `linalg.eig` and `eigvals` for the same reason. `nonzero`, `unique_*` and boolean indexing compute their
input when called, since their results' sizes depend on it.
"""
# Tests: tests/array_api/test_functions.py, tests/array_api/test_standard.py

import math

from weft.array_api import linalg
from weft.array_api.array import Array, offer_arrays
from weft.array_api.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from weft.array_api.data_types import astype, can_cast, finfo, iinfo, isdtype
from weft.array_api.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    conj,
    copysign,
    cos,
    cosh,
    divide,
    equal,
    exp,
    expm1,
    floor,
    floor_divide,
    greater,
    greater_equal,
    hypot,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    nextafter,
    not_equal,
    positive,
    pow,
    real,
    reciprocal,
    remainder,
    round,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
)
from weft.array_api.indexing import take, take_along_axis
from weft.array_api.inspection import __array_namespace_info__
from weft.array_api.manipulation import (
    broadcast_arrays,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    unstack,
)
from weft.array_api.products import matmul, matrix_transpose, tensordot, vecdot
from weft.array_api.promotion import result_type
from weft.array_api.searching import argmax, argmin, count_nonzero, nonzero, searchsorted, where
from weft.array_api.sets import unique_all, unique_counts, unique_inverse, unique_values
from weft.array_api.sorting import argsort, sort
from weft.array_api.statistics import (
    all,
    any,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from weft.ir.dtypes import bool_ as bool
from weft.ir.dtypes import float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64

__array_api_version__ = "2024.12"

e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None

__all__ = [
    "Array", "__array_namespace_info__", "abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin",
    "argsort", "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool",
    "broadcast_arrays", "broadcast_to", "can_cast", "ceil", "clip", "concat", "conj", "copysign", "cos",
    "cosh", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "divide", "e", "empty",
    "empty_like", "equal", "exp", "expand_dims", "expm1", "eye", "finfo", "flip", "float32", "float64",
    "floor", "floor_divide", "from_dlpack", "full", "full_like", "greater", "greater_equal", "hypot",
    "iinfo", "inf", "int16", "int32", "int64", "int8", "isdtype", "isfinite", "isinf", "isnan", "less",
    "less_equal", "linalg", "linspace", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "matmul", "matrix_transpose", "max", "maximum", "mean",
    "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan", "negative", "newaxis", "nextafter",
    "nonzero", "not_equal", "ones", "ones_like", "permute_dims", "pi", "positive", "pow", "prod", "real",
    "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll", "round", "searchsorted", "sign",
    "signbit", "sin", "sinh", "sort", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum",
    "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "tril", "triu", "trunc", "uint16",
    "uint32", "uint64", "uint8", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "unstack", "var", "vecdot", "where", "zeros", "zeros_like",
]  # fmt: skip

offer_arrays(globals(), __all__)
