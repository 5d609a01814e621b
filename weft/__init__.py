"""weft: a tensor framework. A lazy, torch-like Tensor whose graph is fused into kernels and compiled for the machine.

Names are torch's wherever torch has the thing. Importing opens no device; that happens when the first tensor needs one.
"""
# Tests: tests/core/tensor/test_tensor.py, tests/core/test_surface.py

from __future__ import annotations

import builtins
import importlib
import math
from typing import TYPE_CHECKING, Any

from weft._version import __version__
from weft.core.args.broadcast import broadcast_shapes, can_cast, result_type
from weft.core.args.defaults import get_default_dtype, set_default_dtype
from weft.core.args.handle import value_of
from weft.core.args.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from weft.core.composed.autocast import autocast, get_autocast_dtype, is_autocast_enabled
from weft.core.execute.realization import realize
from weft.core.execute.run import synchronize
from weft.core.functional.activations import log_softmax, relu, softmax
from weft.core.functions.matmul import (
    addmm,
    addmv,
    baddbmm,
    bmm,
    dot,
    einsum,
    matmul,
    mm,
    mv,
    outer,
    tensordot,
)
from weft.core.functions.matmul import outer as ger
from weft.core.functions.random import (
    Generator,
    bernoulli,
    binomial,
    get_rng_state,
    initial_seed,
    manual_seed,
    multinomial,
    normal,
    poisson,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    seed,
    set_rng_state,
)  # fmt: skip  # fmt: skip
from weft.core.functions.reductions import (
    all,
    allclose,
    amax,
    amin,
    aminmax,
    any,
    argmax,
    argmin,
    count_nonzero,
    equal,
    logsumexp,
    max,
    mean,
    min,
    nanmean,
    nansum,
    prod,
    std,
    std_mean,
    sum,
    var,
    var_mean,
)
from weft.core.grad.differentiate import grad, gradients, value_and_grad
from weft.core.layout.creation import (
    arange,
    as_tensor,
    asarray,
    empty,
    empty_like,
    empty_strided,
    eye,
    from_numpy,
    frombuffer,
    full,
    full_like,
    linspace,
    logspace,
    ones,
    ones_like,
    scalar_tensor,
    tensor,
    tril_indices,
    triu_indices,
    zeros,
    zeros_like,
)  # fmt: skip  # fmt: skip
from weft.core.layout.creation import range_ as range
from weft.core.layout.gather import (
    bincount,
    gather,
    index_add,
    index_copy,
    index_fill,
    index_select,
    masked_fill,
    repeat_interleave,
    scatter,
    scatter_add,
    scatter_reduce,
    take,
    take_along_dim,
)
from weft.core.layout.indexing import index_put, masked_select, select, unbind
from weft.core.layout.indexing import select as select_copy
from weft.core.layout.indexing import unbind as unbind_copy
from weft.core.layout.movement import (
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
    ravel,
    reshape,
    roll,
    shrink,
    split,
    squeeze,
    stack,
    t,
    tile,
    transpose,
    tril,
    triu,
    unflatten,
    unsqueeze,
    vstack,
)
from weft.core.layout.movement import cat as concat
from weft.core.layout.movement import (
    cat as concatenate,
)  # fmt: skip
from weft.core.layout.movement import (
    chunk as unsafe_chunk,
)
from weft.core.layout.movement import (
    constant_pad as constant_pad_nd,
)
from weft.core.layout.movement import (
    diagonal as diagonal_copy,
)
from weft.core.layout.movement import (
    expand as expand_copy,
)
from weft.core.layout.movement import (
    matrix_transpose as adjoint,
)
from weft.core.layout.movement import (
    movedim as moveaxis,
)
from weft.core.layout.movement import (
    narrow as narrow_copy,
)
from weft.core.layout.movement import (
    permute as permute_copy,
)
from weft.core.layout.movement import (
    split as split_copy,
)
from weft.core.layout.movement import (
    split as split_with_sizes,
)
from weft.core.layout.movement import (
    split as split_with_sizes_copy,
)
from weft.core.layout.movement import (
    split as unsafe_split,
)
from weft.core.layout.movement import (
    split as unsafe_split_with_sizes,
)
from weft.core.layout.movement import (
    squeeze as squeeze_copy,
)
from weft.core.layout.movement import (
    t as t_copy,
)
from weft.core.layout.movement import (
    transpose as swapaxes,
)
from weft.core.layout.movement import (
    transpose as swapdims,
)
from weft.core.layout.movement import (
    transpose as transpose_copy,
)
from weft.core.layout.movement import (
    unfold as unfold_copy,
)
from weft.core.layout.movement import (
    unsqueeze as unsqueeze_copy,
)
from weft.core.layout.movement import (
    view as view_copy,
)
from weft.core.layout.movement import (
    vstack as row_stack,
)
from weft.core.pointwise.elementwise import (
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
    positive,
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
)  # fmt: skip  # fmt: skip
from weft.core.pointwise.elementwise import (
    abs as absolute,
)  # fmt: skip
from weft.core.pointwise.elementwise import clamp as clip
from weft.core.pointwise.elementwise import div as divide
from weft.core.pointwise.elementwise import (
    div as true_divide,
)
from weft.core.pointwise.elementwise import (
    ge as greater_equal,
)
from weft.core.pointwise.elementwise import (
    gt as greater,
)
from weft.core.pointwise.elementwise import (
    le as less_equal,
)
from weft.core.pointwise.elementwise import (
    lt as less,
)
from weft.core.pointwise.elementwise import mul as multiply
from weft.core.pointwise.elementwise import (
    ne as not_equal,
)
from weft.core.pointwise.elementwise import (
    neg as negative,
)
from weft.core.pointwise.elementwise import sub as subtract
from weft.core.pointwise.elementwise import (
    trunc as fix,
)
from weft.core.pointwise.nonzeros import argwhere, nonzero
from weft.core.surface.keywords import offer, offer_out, offered
from weft.core.surface.overrides import offer_namespace, offered_late
from weft.core.tensor.tensor import Tensor
from weft.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    FileError,
    GradError,
    IndexError,
    MemoryPlanError,
    ShapeError,
    WeftError,
)  # fmt: skip
from weft.ir.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
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
    from collections.abc import Callable, Sequence

    from weft import amp, array_api, distributions, io, linalg, nn, optim, quantization, signal, special
    from weft.core.compile.compile import compile
    from weft.core.compile.explain import explain
    from weft.core.execute.devices import (
        device,
        devices,
        get_default_device,
        get_num_threads,
        memory_limit,
        set_default_device,
        set_num_threads,
    )
    from weft.core.execute.variables import Variable, bind
    from weft.core.functions.arrangement import (
        as_strided,
        as_strided_scatter,
        atleast_1d,
        atleast_2d,
        atleast_3d,
        block_diag,
        cartesian_prod,
        column_stack,
        combinations,
        diag_embed,
        diagflat,
        diagonal_scatter,
        dsplit,
        dstack,
        fliplr,
        flipud,
        hsplit,
        index_reduce,
        masked_scatter,
        nonzero_static,
        put,
        rot90,
        select_scatter,
        slice_copy,
        slice_scatter,
        tensor_split,
        unravel_index,
        vsplit,
    )  # fmt: skip
    from weft.core.functions.arrangement import as_strided as as_strided_copy
    from weft.core.functions.histograms import histc, histogram, histogramdd
    from weft.core.functions.scans import (
        cummax,
        cummin,
        cumprod,
        cumsum,
        cumulative_trapezoid,
        diff,
        gradient,
        logcumsumexp,
        trapezoid,
    )  # fmt: skip
    from weft.core.functions.scans import trapezoid as trapz
    from weft.core.functions.sorting import (
        argsort,
        bucketize,
        isin,
        kthvalue,
        median,
        mode,
        msort,
        nanmedian,
        nanquantile,
        quantile,
        searchsorted,
        sort,
        topk,
        unique,
        unique_consecutive,
    )  # fmt: skip
    from weft.core.functions.windows import (
        bartlett_window,
        blackman_window,
        hamming_window,
        hann_window,
        kaiser_window,
    )
    from weft.core.grad.scan import scan
    from weft.core.grad.vmap import vmap
    from weft.core.linear_algebra import (
        cholesky_inverse,
        cholesky_solve,
        det,
        geqrf,
        inv,
        logdet,
        lstsq,
        lu_unpack,
        matrix_exp,
        matrix_power,
        matrix_rank,
        ormqr,
        pinv,
        slogdet,
        trace,
        triangular_solve,
    )  # fmt: skip
    from weft.core.linear_algebra import householder_product as orgqr
    from weft.core.linear_algebra import inv as inverse
    from weft.core.linear_algebra import pinv as pinverse
    from weft.core.linear_algebra import torch_cholesky as cholesky
    from weft.core.linear_algebra import torch_lu as lu
    from weft.core.linear_algebra import torch_lu_solve as lu_solve
    from weft.core.linear_algebra import torch_qr as qr
    from weft.core.linear_algebra import torch_svd as svd
    from weft.core.linear_algebra.low_rank import pca_lowrank, svd_lowrank
    from weft.core.linear_algebra.torch_products import (
        addbmm,
        addr,
        cdist,
        chain_matmul,
        corrcoef,
        cov,
        cross,
        dist,
        inner,
        kron,
        norm,
        renorm,
        vander,
        vdot,
    )  # fmt: skip
    from weft.core.pointwise.arithmetic import (
        clamp_max,
        clamp_min,
        float_power,
        fmax,
        fmin,
        gcd,
        heaviside,
        isneginf,
        isposinf,
        isreal,
        lcm,
        rsub,
        sgn,
    )  # fmt: skip
    from weft.core.pointwise.dtype_info import finfo, iinfo
    from weft.core.pointwise.float_format import (
        copysign,
        frexp,
        ldexp,
        nextafter,
        signbit,
    )  # fmt: skip
    from weft.core.pointwise.special_functions import (
        digamma,
        erfc,
        erfinv,
        i0,
        lgamma,
        logaddexp,
        logaddexp2,
        mvlgamma,
        polygamma,
        xlogy,
    )  # fmt: skip
    from weft.core.pointwise.special_functions import gammainc as igamma
    from weft.core.pointwise.special_functions import gammaincc as igammac
    from weft.core.pointwise.trigonometry import (
        acos,
        acosh,
        angle,
        asin,
        asinh,
        atan,
        atan2,
        atanh,
        deg2rad,
        hypot,
        rad2deg,
        sinc,
    )  # fmt: skip
    from weft.core.pointwise.trigonometry import (
        acos as arccos,
    )  # fmt: skip
    from weft.core.pointwise.trigonometry import (
        acosh as arccosh,
    )
    from weft.core.pointwise.trigonometry import (
        asin as arcsin,
    )
    from weft.core.pointwise.trigonometry import (
        asinh as arcsinh,
    )
    from weft.core.pointwise.trigonometry import (
        atan as arctan,
    )
    from weft.core.pointwise.trigonometry import (
        atan2 as arctan2,
    )
    from weft.core.pointwise.trigonometry import (
        atanh as arctanh,
    )
    from weft.core.tensor.display import set_printoptions
    from weft.core.tensor.interchange import from_dlpack, from_torch
    from weft.core.tensor.sizes import Size
    from weft.io.nested import load, save

__all__ = [
    "ArgumentError", "DType", "DTypeError", "DeviceError", "FileError", "Generator", "GradError",
    "IndexError", "MemoryPlanError", "ShapeError", "Tensor", "Variable", "WeftError", "__version__", "abs",
    "abs_", "absolute", "acos", "acos_", "acosh", "acosh_", "add", "addbmm", "addcdiv", "addcmul", "addmm",
    "addmv", "addmv_", "addr", "adjoint", "alias_copy", "all", "allclose", "amax", "amin", "aminmax", "amp",
    "angle", "any", "arange", "arccos", "arccos_", "arccosh", "arccosh_", "arcsin", "arcsin_", "arcsinh",
    "arcsinh_", "arctan", "arctan2", "arctan_", "arctanh", "arctanh_", "argmax", "argmin", "argsort",
    "argwhere", "array_api", "as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter",
    "as_tensor", "asarray", "asin", "asin_", "asinh", "asinh_", "atan", "atan2", "atan_", "atanh", "atanh_", "autocast",
    "atleast_1d", "atleast_2d", "atleast_3d", "baddbmm", "bartlett_window", "bernoulli", "bfloat16",
    "bincount", "bind", "binomial", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "blackman_window", "block_diag", "bmm", "bool",
    "broadcast_shapes", "broadcast_tensors", "broadcast_to", "bucketize", "can_cast", "cartesian_prod",
    "cat", "cdist", "ceil", "ceil_", "chain_matmul", "cholesky", "cholesky_inverse", "cholesky_solve",
    "chunk", "clamp", "clamp_", "clamp_max", "clamp_max_", "clamp_min", "clamp_min_", "clip", "clip_",
    "clone", "column_stack", "combinations", "compile", "concat", "concatenate", "conj", "conj_physical",
    "conj_physical_", "constant_pad_nd", "copysign", "corrcoef", "cos", "cos_", "cosh", "cosh_",
    "count_nonzero", "cov", "cross", "cummax", "cummin", "cumprod", "cumsum", "cumulative_trapezoid",
    "deg2rad", "deg2rad_", "det", "detach", "detach_", "detach_copy", "device", "devices", "diag",
    "diag_embed", "diagflat", "diagonal", "diagonal_copy", "diagonal_scatter", "diff", "digamma", "dist",
    "distributions",
    "div", "divide", "dot", "double", "dsplit", "dstack", "e", "einsum", "empty", "empty_like",
    "empty_strided", "enable_grad", "eq", "equal", "erf", "erf_", "erfc", "erfc_", "erfinv", "exp", "exp2",
    "exp2_", "exp_", "expand_copy", "explain", "expm1", "expm1_", "eye", "fill", "fill_", "finfo", "fix",
    "fix_", "flatten", "flip", "fliplr", "flipud", "float", "float16", "float32", "float64",
    "float8_e4m3fn", "float8_e5m2", "float_power", "floor", "floor_", "floor_divide", "fmax", "fmin",
    "fmod", "frac", "frac_", "frexp", "from_dlpack", "from_numpy", "from_torch", "frombuffer", "full",
    "full_like", "gather", "gcd", "gcd_", "ge", "geqrf", "ger", "get_autocast_dtype",
    "get_default_device", "get_default_dtype",
    "get_device", "get_num_threads", "get_rng_state", "grad", "gradient", "gradients", "greater",
    "greater_equal", "gt", "half", "hamming_window", "hann_window", "heaviside", "histc", "histogram", "histogramdd",
    "hsplit", "hstack", "hypot", "i0", "i0_", "igamma", "igammac", "iinfo", "index_add", "index_copy",
    "index_fill", "index_put", "index_put_", "index_reduce", "index_select", "inf", "inference_mode",
    "initial_seed", "inner", "int", "int16", "int32", "int64", "int8", "inv", "inverse", "io",
    "is_autocast_enabled", "is_complex",
    "is_conj", "is_floating_point", "is_grad_enabled", "is_inference", "is_inference_mode_enabled",
    "is_neg", "is_nonzero",
    "is_same_size", "is_signed", "is_storage", "is_tensor", "isclose", "isfinite", "isin", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "kaiser_window", "kron", "kthvalue", "lcm", "lcm_", "ldexp", "ldexp_",
    "le", "lerp", "less", "less_equal", "lgamma", "linalg", "linspace", "load", "log", "log10", "log10_",
    "log1p", "log1p_", "log2", "log2_", "log_", "log_softmax", "logaddexp", "logaddexp2", "logcumsumexp",
    "logdet", "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "logit_", "logspace",
    "logsumexp", "long", "lstsq", "lt", "lu", "lu_solve", "lu_unpack", "manual_seed", "masked_fill",
    "masked_scatter", "masked_select", "matmul", "matrix_exp", "matrix_power", "matrix_rank", "max",
    "maximum", "mean", "median", "memory_limit", "meshgrid", "min", "minimum", "mm", "mode", "moveaxis",
    "movedim", "msort", "mul", "multinomial", "multiply", "mv", "mvlgamma", "nan", "nan_to_num",
    "nan_to_num_", "nanmean", "nanmedian", "nanquantile", "nansum", "narrow", "narrow_copy", "ne", "neg",
    "neg_", "negative", "negative_", "nextafter", "nn", "no_grad", "nonzero", "nonzero_static", "norm",
    "normal", "not_equal", "numel", "ones", "ones_like", "optim", "orgqr", "ormqr", "outer", "pca_lowrank",
    "permute", "permute_copy", "pi", "pinv", "pinverse", "poisson", "polygamma", "positive", "pow", "prod",
    "promote", "promote_types", "put", "qr", "quantile", "quantization", "rad2deg", "rad2deg_", "rand",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "range", "ravel", "real",
    "realize", "reciprocal", "reciprocal_", "relu", "relu_", "remainder", "renorm", "repeat_interleave",
    "reshape", "resize_as_", "resolve_conj", "resolve_neg", "result_type", "roll", "rot90", "round",
    "round_", "row_stack", "rsqrt", "rsqrt_", "rsub", "save", "scalar_tensor", "scan", "scatter", "scatter_add",
    "scatter_reduce", "searchsorted", "seed", "select", "select_copy", "select_scatter",
    "Size", "cond", "dtype", "set_default_device", "set_default_dtype", "set_grad_enabled",
    "set_num_threads", "set_printoptions", "set_rng_state",
    "sgn", "short", "shrink", "sigmoid", "sigmoid_", "sign", "signal", "signbit", "sin", "sin_", "sinc",
    "sinc_", "sinh", "sinh_", "slice_copy", "slice_scatter", "slogdet", "softmax", "sort", "special",
    "split", "split_copy", "split_with_sizes", "split_with_sizes_copy", "sqrt", "sqrt_", "square",
    "square_", "squeeze", "squeeze_copy", "stack", "std", "std_mean", "sub", "subtract", "sum", "svd",
    "svd_lowrank", "swapaxes", "swapdims", "synchronize", "t", "t_copy", "take", "take_along_dim", "tan",
    "tan_", "tanh", "tanh_", "tensor", "tensor_split", "tensordot", "tile", "topk", "trace", "transpose",
    "transpose_copy", "trapezoid", "trapz", "triangular_solve", "tril", "tril_indices", "triu",
    "triu_indices", "true_divide", "trunc", "trunc_", "typename", "uint16", "uint32", "uint64", "uint8",
    "unbind", "unbind_copy", "unflatten", "unfold_copy", "unique", "unique_consecutive", "unravel_index",
    "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "unsqueeze", "unsqueeze_copy",
    "value_and_grad", "vander", "var", "var_mean", "vdot", "view_copy", "vmap", "vsplit", "vstack", "where",
    "xlogy", "xlogy_", "zero_", "zeros", "zeros_like",
]  # fmt: skip

promote_types = promote
inf, nan, pi, e = math.inf, math.nan, math.pi, math.e

# names of modules that are imported when one of them is asked for; "name=function" where torch has several names
_IN_MODULES = {
    "pointwise.arithmetic": (
        "clamp_max clamp_min float_power fmax fmin gcd heaviside isneginf isposinf isreal lcm rsub sgn "
    ),
    "functions.arrangement": (
        "as_strided as_strided_copy=as_strided as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag "
        "cartesian_prod column_stack combinations diag_embed diagflat diagonal_scatter dsplit dstack fliplr "
        "flipud hsplit index_reduce masked_scatter nonzero_static put rot90 select_scatter slice_copy "
        "slice_scatter tensor_split unravel_index vsplit "
    ),
    "pointwise.float_format": ("copysign frexp ldexp nextafter signbit "),
    "tensor.interchange": ("from_dlpack from_torch "),
    "linear_algebra": (
        "cholesky=torch_cholesky cholesky_inverse cholesky_solve det geqrf inv inverse=inv logdet lstsq "
        "lu=torch_lu lu_solve=torch_lu_solve lu_unpack matrix_exp matrix_power matrix_rank "
        "orgqr=householder_product ormqr pinv pinverse=pinv qr=torch_qr slogdet svd=torch_svd trace triangular_solve "
    ),
    "linear_algebra.low_rank": ("pca_lowrank svd_lowrank "),
    "linear_algebra.torch_products": (
        "addbmm addr cdist chain_matmul corrcoef cov cross dist inner kron norm renorm vander vdot "
    ),
    "functions.scans": (
        "cummax cummin cumprod cumsum cumulative_trapezoid diff gradient logcumsumexp trapezoid "
        "trapz=trapezoid "
    ),
    "functions.histograms": ("histc histogram histogramdd "),
    "functions.sorting": (
        "argsort bucketize isin kthvalue median mode msort nanmedian nanquantile quantile "
        "searchsorted sort topk unique unique_consecutive "
    ),
    "pointwise.special_functions": (
        "digamma erfc erfinv i0 igamma=gammainc igammac=gammaincc lgamma logaddexp logaddexp2 mvlgamma "
        "polygamma xlogy "
    ),
    "pointwise.trigonometry": (
        "acos acosh angle arccos=acos arccosh=acosh arcsin=asin arcsinh=asinh arctan2=atan2 arctan=atan "
        "arctanh=atanh asin asinh atan atan2 atanh deg2rad hypot rad2deg sinc "
    ),
    "functions.windows": ("bartlett_window blackman_window hamming_window hann_window kaiser_window "),
}
_LAZY_FUNCTIONS = {
    name: (f"weft.core.{module}", function or name)
    for module, names in _IN_MODULES.items()
    for name, _, function in (entry.partition("=") for entry in names.split())
}
_SWITCHES = (
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor",
    "IntTensor", "LongTensor", "ShortTensor", "are_deterministic_algorithms_enabled", "channels_last",
    "channels_last_3d", "contiguous_format", "get_float32_matmul_precision", "get_num_interop_threads",
    "layout", "memory_format", "preserve_format", "set_default_tensor_type", "set_float32_matmul_precision",
    "set_flush_denormal",
    "set_num_interop_threads", "sparse_bsc",
    "sparse_bsr", "sparse_coo", "sparse_csc", "sparse_csr", "jagged", "strided", "use_deterministic_algorithms",
)  # fmt: skip
_DTYPE_NAMES = (
    "bits16", "bits1x8", "bits2x4", "bits4x2", "bits8", "cdouble", "cfloat", "chalf", "complex128", "complex32",
    "complex64", "float4_e2m1fn_x2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "int1", "int2", "int3",
    "int4", "int5", "int6", "int7", "qint32", "qint8", "quint2x4", "quint4x2", "quint8", "uint1", "uint2", "uint3",
    "uint4", "uint5", "uint6", "uint7",
)  # fmt: skip
_LAZY = {
    "Variable": "weft.core.execute.variables",
    "bind": "weft.core.execute.variables",
    "compile": "weft.core.compile.compile",
    "load": "weft.io.nested",
    "save": "weft.io.nested",
    "Size": "weft.core.tensor.sizes",
    "device": "weft.core.execute.devices",
    "devices": "weft.core.execute.devices",
    "memory_limit": "weft.core.execute.devices",
    "set_num_threads": "weft.core.execute.devices",
    "explain": "weft.core.compile.explain",
    "vmap": "weft.core.grad.vmap",
    "scan": "weft.core.grad.scan",
    "finfo": "weft.core.pointwise.dtype_info",
    "set_printoptions": "weft.core.tensor.display",
    "get_default_device": "weft.core.execute.devices",
    "get_num_threads": "weft.core.execute.devices",
    "iinfo": "weft.core.pointwise.dtype_info",
    "set_default_device": "weft.core.execute.devices",
    "default_generator": "weft.core.functions.random",
    **dict.fromkeys(_SWITCHES, "weft.core.args.switches"),
    **dict.fromkeys(_DTYPE_NAMES, "weft.core.args.dtype_names"),
}
_PACKAGES = frozenset(
    (
        "backends",
        "compiler",
        "cuda",
        "distributed",
        "utils",
        "amp",
        "array_api",
        "autograd",
        "data",
        "distributions",
        "func",
        "io",
        "linalg",
        "nn",
        "optim",
        "overrides",
        "quantization",
        "signal",
        "special",
        "testing",
    )
)
# functions of weft.nn.functional that torch offers here as well
_FUNCTIONAL = frozenset({
    "adaptive_avg_pool1d", "adaptive_max_pool1d", "alpha_dropout", "alpha_dropout_", "avg_pool1d",
    "batch_norm", "bilinear", "binary_cross_entropy_with_logits", "celu", "celu_", "channel_shuffle",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "cosine_embedding_loss", "cosine_similarity", "ctc_loss", "dropout", "dropout_", "embedding",
    "embedding_bag", "feature_alpha_dropout", "feature_alpha_dropout_", "group_norm", "hardshrink",
    "hinge_embedding_loss", "instance_norm", "kl_div", "layer_norm", "margin_ranking_loss", "max_pool1d",
    "max_pool2d", "max_pool3d", "pairwise_distance", "pdist", "pixel_shuffle", "pixel_unshuffle",
    "poisson_nll_loss", "prelu", "rms_norm", "rrelu", "rrelu_", "selu", "selu_", "threshold", "threshold_",
    "triplet_margin_loss",
})  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is not needed by every program when it is first asked for (PEP 562)."""
    if name in _PACKAGES:
        return importlib.import_module(f"weft.{name}")
    if name == "random":
        return importlib.import_module("weft.core.functions.random")
    if name in _FUNCTIONAL:
        return getattr(importlib.import_module("weft.core.functional"), name)
    if name in _LAZY_FUNCTIONS:
        module, function = _LAZY_FUNCTIONS[name]
        found = offered_late(offered(getattr(importlib.import_module(module), function), name, "weft"))
        globals()[name] = found
        return found
    if name in _LAZY:
        found = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = found
        return found
    if name.startswith("_foreach_"):
        return getattr(importlib.import_module("weft.core.surface.foreach"), name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def is_tensor(obj: object) -> builtins.bool:
    """True for a Tensor."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> Any:
    """The number of elements."""
    return input.numel()


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A tensor of its own with the same values."""
    return input.clone()


def conj(input: Tensor) -> Tensor:
    """The tensor itself: weft has real numbers only. `real` and `resolve_conj` are the same."""
    value_of("conj", input)
    return input


conj_physical = conj_physical_ = real = resolve_conj = resolve_neg = conj
alias_copy = detach_copy = clone


def detach(input: Tensor) -> Tensor:
    """The same values, without history."""
    return input.detach()


def fill(input: Tensor, value: Any) -> Tensor:
    """`value` in every element, in the shape and dtype of the input."""
    return input.clone().fill_(value)


dtype = DType
"""The class of element types, under torch's name."""


def cond(
    pred: Tensor | builtins.bool,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    """true_fn(*operands) where pred, a bool or a tensor of one element that is computed, holds, else false_fn."""
    return (true_fn if builtins.bool(pred) else false_fn)(*operands)


def _assert(condition: Any, message: str) -> None:
    """AssertionError with the message unless the condition holds, which is computed."""
    if not condition:
        raise AssertionError(message)


_assert_async = _assert


def is_nonzero(input: Tensor) -> builtins.bool:
    """True for a tensor of one element that is not 0. Computes."""
    return input.is_nonzero()


def is_floating_point(input: Tensor) -> builtins.bool:
    """True for float dtypes."""
    return input.is_floating_point()


def is_complex(input: Tensor) -> builtins.bool:
    """False: weft has real numbers only."""
    return input.is_complex()


is_conj = is_neg = is_inference = is_complex


def is_signed(input: Tensor) -> builtins.bool:
    """True for dtypes with a sign."""
    return input.is_signed()


def is_same_size(input: Tensor, other: Tensor) -> builtins.bool:
    """True for equal shapes."""
    return input.is_same_size(other)


def resize_as_(input: Tensor, the_template: Tensor) -> Tensor:
    """The handle in the shape of another, which has as many elements."""
    return input.resize_as_(the_template)


def get_device(input: Tensor) -> builtins.int:
    """The number of the device among those of its kind; -1 for the CPU."""
    return input.get_device()


def is_storage(obj: object) -> builtins.bool:
    """False: weft shows no storages."""
    return False


def typename(obj: object) -> str:
    """The full name of an object's type; of a tensor that of its dtype and device, "weft.FloatTensor"."""
    if isinstance(obj, Tensor):
        return obj.type()
    kind = type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# in place, as functions
abs_ = Tensor.abs_
acos_ = Tensor.acos_
acosh_ = Tensor.acosh_
asin_ = Tensor.asin_
asinh_ = Tensor.asinh_
atan_ = Tensor.atan_
atanh_ = Tensor.atanh_
ceil_ = Tensor.ceil_
clamp_ = Tensor.clamp_
clamp_max_ = Tensor.clamp_max_
clamp_min_ = Tensor.clamp_min_
cos_ = Tensor.cos_
cosh_ = Tensor.cosh_
deg2rad_ = Tensor.deg2rad_
erf_ = Tensor.erf_
erfc_ = Tensor.erfc_
exp_ = Tensor.exp_
exp2_ = Tensor.exp2_
expm1_ = Tensor.expm1_
floor_ = Tensor.floor_
frac_ = Tensor.frac_
gcd_ = Tensor.gcd_
i0_ = Tensor.i0_
lcm_ = Tensor.lcm_
ldexp_ = Tensor.ldexp_
log_ = Tensor.log_
log10_ = Tensor.log10_
log1p_ = Tensor.log1p_
log2_ = Tensor.log2_
logit_ = Tensor.logit_
nan_to_num_ = Tensor.nan_to_num_
neg_ = Tensor.neg_
rad2deg_ = Tensor.rad2deg_
reciprocal_ = Tensor.reciprocal_
relu_ = Tensor.relu_
round_ = Tensor.round_
rsqrt_ = Tensor.rsqrt_
sigmoid_ = Tensor.sigmoid_
sin_ = Tensor.sin_
sinc_ = Tensor.sinc_
sinh_ = Tensor.sinh_
sqrt_ = Tensor.sqrt_
square_ = Tensor.square_
tan_ = Tensor.tan_
tanh_ = Tensor.tanh_
trunc_ = Tensor.trunc_
xlogy_ = Tensor.xlogy_
zero_ = Tensor.zero_
fill_ = Tensor.fill_
index_put_ = Tensor.index_put_
detach_ = Tensor.detach_
addmv_ = Tensor.addmv_
as_strided_ = Tensor.as_strided_
arccos_ = Tensor.arccos_
arccosh_ = Tensor.arccosh_
arcsin_ = Tensor.arcsin_
arcsinh_ = Tensor.arcsinh_
arctan_ = Tensor.arctan_
arctanh_ = Tensor.arctanh_
clip_ = Tensor.clip_
fix_ = Tensor.fix_
negative_ = Tensor.negative_

offer(globals(), [n for n in __all__ if n in globals()], "weft")
offer_out(globals(), ("softmax", "log_softmax", "conj_physical", "alias_copy"), "weft")
offer_namespace("weft")
