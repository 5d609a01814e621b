# Written by tools/surface.py from weft/surface/table.py.

from math import e, inf, nan, pi
from weft import (
    amp, array_api, autograd as autograd, backends as backends, compiler as compiler, cuda as cuda,
    data as data, distributed as distributed, distributions, errors as errors, func as func, io, linalg,
    models, nn, optim, overrides as overrides, quantization, signal, special, testing as testing,
    utils as utils,
)
from weft._version import __version__
from weft.core.args.broadcast import broadcast_shapes, can_cast, result_type
from weft.core.args.defaults import get_default_dtype, set_default_dtype
from weft.core.args.dtype_names import (
    bits16 as bits16, bits1x8 as bits1x8, bits2x4 as bits2x4, bits4x2 as bits4x2, bits8 as bits8,
    cdouble as cdouble, cfloat as cfloat, chalf as chalf, complex128 as complex128, complex32 as complex32,
    complex64 as complex64, float4_e2m1fn_x2 as float4_e2m1fn_x2, float8_e4m3fnuz as float8_e4m3fnuz,
    float8_e5m2fnuz as float8_e5m2fnuz, float8_e8m0fnu as float8_e8m0fnu, int1 as int1, int2 as int2,
    int3 as int3, int4 as int4, int5 as int5, int6 as int6, int7 as int7, qint32 as qint32, qint8 as qint8,
    quint2x4 as quint2x4, quint4x2 as quint4x2, quint8 as quint8, uint1 as uint1, uint2 as uint2,
    uint3 as uint3, uint4 as uint4, uint5 as uint5, uint6 as uint6, uint7 as uint7,
)
from weft.core.args.modes import (
    enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad, numerics,
    set_grad_enabled,
)
from weft.core.args.switches import (
    BFloat16Tensor as BFloat16Tensor, BoolTensor as BoolTensor, ByteTensor as ByteTensor,
    CharTensor as CharTensor, DoubleTensor as DoubleTensor, FloatTensor as FloatTensor,
    HalfTensor as HalfTensor, IntTensor as IntTensor, LongTensor as LongTensor, ShortTensor as ShortTensor,
    are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
    channels_last as channels_last, channels_last_3d as channels_last_3d,
    contiguous_format as contiguous_format, get_float32_matmul_precision as get_float32_matmul_precision,
    get_num_interop_threads as get_num_interop_threads, jagged as jagged, layout as layout,
    memory_format as memory_format, preserve_format as preserve_format,
    set_default_tensor_type as set_default_tensor_type,
    set_float32_matmul_precision as set_float32_matmul_precision, set_flush_denormal as set_flush_denormal,
    set_num_interop_threads as set_num_interop_threads, sparse_bsc as sparse_bsc, sparse_bsr as sparse_bsr,
    sparse_coo as sparse_coo, sparse_csc as sparse_csc, sparse_csr as sparse_csr, strided as strided,
    use_deterministic_algorithms as use_deterministic_algorithms,
)
from weft.core.compile.compile import compile
from weft.core.compile.explain import explain
from weft.core.compile.marked import mark_dynamic
from weft.core.composed.autocast import autocast, get_autocast_dtype, is_autocast_enabled
from weft.core.execute.devices import (
    device, devices, get_default_device, get_num_threads, memory_limit, set_default_device, set_num_threads,
)
from weft.core.execute.realization import realize
from weft.core.execute.run import synchronize
from weft.core.execute.variables import Variable, bind
from weft.core.functional.activations import (
    celu as celu, celu_ as celu_, hardshrink as hardshrink, log_softmax, prelu as prelu, relu, rrelu as rrelu,
    rrelu_ as rrelu_, selu as selu, selu_ as selu_, softmax, threshold as threshold, threshold_ as threshold_,
)
from weft.core.functional.convolution import (
    conv1d as conv1d, conv2d as conv2d, conv3d as conv3d, conv_transpose1d as conv_transpose1d,
    conv_transpose2d as conv_transpose2d, conv_transpose3d as conv_transpose3d,
)
from weft.core.functional.ctc import ctc_loss as ctc_loss
from weft.core.functional.distances import (
    cosine_similarity as cosine_similarity, pairwise_distance as pairwise_distance, pdist as pdist,
)
from weft.core.functional.dropouts import (
    alpha_dropout as alpha_dropout, alpha_dropout_ as alpha_dropout_, dropout as dropout,
    dropout_ as dropout_, feature_alpha_dropout as feature_alpha_dropout,
    feature_alpha_dropout_ as feature_alpha_dropout_,
)
from weft.core.functional.embeddings import embedding as embedding, embedding_bag as embedding_bag
from weft.core.functional.linear_maps import bilinear as bilinear
from weft.core.functional.losses import (
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits, kl_div as kl_div,
)
from weft.core.functional.normalization import (
    batch_norm as batch_norm, group_norm as group_norm, instance_norm as instance_norm,
    layer_norm as layer_norm, rms_norm as rms_norm,
)
from weft.core.functional.pooling import (
    adaptive_avg_pool1d as adaptive_avg_pool1d, adaptive_max_pool1d as adaptive_max_pool1d,
    avg_pool1d as avg_pool1d, max_pool1d as max_pool1d, max_pool2d as max_pool2d, max_pool3d as max_pool3d,
)
from weft.core.functional.ranking_losses import (
    cosine_embedding_loss as cosine_embedding_loss, hinge_embedding_loss as hinge_embedding_loss,
    margin_ranking_loss as margin_ranking_loss, poisson_nll_loss as poisson_nll_loss,
    triplet_margin_loss as triplet_margin_loss,
)
from weft.core.functional.resampling import (
    channel_shuffle as channel_shuffle, pixel_shuffle as pixel_shuffle, pixel_unshuffle as pixel_unshuffle,
)
from weft.core.functions import random as random
from weft.core.functions.arrangement import (
    as_strided, as_strided as as_strided_copy, as_strided_scatter, atleast_1d, atleast_2d, atleast_3d,
    block_diag, cartesian_prod, column_stack, combinations, diag_embed, diagflat, diagonal_scatter, dsplit,
    dstack, fliplr, flipud, hsplit, index_reduce, masked_scatter, nonzero_static, put, rot90, select_scatter,
    slice_copy, slice_scatter, tensor_split, unravel_index, vsplit,
)
from weft.core.functions.histograms import histc, histogram, histogramdd
from weft.core.functions.matmul import (
    addmm, addmv, baddbmm, bmm, dot, einsum, matmul, mm, mv, outer, outer as ger, tensordot,
)
from weft.core.functions.random import (
    Generator, bernoulli, binomial, default_generator as default_generator, get_rng_state, initial_seed,
    manual_seed, multinomial, normal, poisson, rand, rand_like, randint, randint_like, randn, randn_like,
    randperm, seed, set_rng_state,
)
from weft.core.functions.reductions import (
    all, allclose, amax, amin, aminmax, any, argmax, argmin, count_nonzero, equal, logsumexp, max, mean, min,
    nanmean, nansum, prod, std, std_mean, sum, var, var_mean,
)
from weft.core.functions.scans import (
    cummax, cummin, cumprod, cumsum, cumulative_trapezoid, diff, gradient, logcumsumexp, trapezoid,
    trapezoid as trapz,
)
from weft.core.functions.sorting import (
    argsort, bucketize, isin, kthvalue, median, mode, msort, nanmedian, nanquantile, quantile, searchsorted,
    sort, topk, unique, unique_consecutive,
)
from weft.core.functions.windows import (
    bartlett_window, blackman_window, hamming_window, hann_window, kaiser_window,
)
from weft.core.grad.differentiate import grad, gradients, value_and_grad
from weft.core.grad.scan import scan
from weft.core.grad.vmap import vmap
from weft.core.layout.creation import (
    arange, as_tensor, asarray, empty, empty_like, empty_strided, eye, from_numpy, frombuffer, full,
    full_like, linspace, logspace, ones, ones_like, range_ as range, scalar_tensor, tensor, tril_indices,
    triu_indices, zeros, zeros_like,
)
from weft.core.layout.gather import (
    bincount, gather, index_add, index_copy, index_fill, index_select, masked_fill, repeat_interleave,
    scatter, scatter_add, scatter_reduce, take, take_along_dim,
)
from weft.core.layout.indexing import (
    index_put, masked_select, select, select as select_copy, unbind, unbind as unbind_copy,
)
from weft.core.layout.movement import (
    broadcast_tensors, broadcast_to, cat, cat as concat, cat as concatenate, chunk, chunk as unsafe_chunk,
    constant_pad as constant_pad_nd, diag, diagonal, diagonal as diagonal_copy, expand as expand_copy,
    flatten, flip, hstack, matrix_transpose as adjoint, meshgrid, movedim, movedim as moveaxis, narrow,
    narrow as narrow_copy, permute, permute as permute_copy, ravel, reshape, roll, shrink, split,
    split as split_copy, split as split_with_sizes, split as split_with_sizes_copy, split as unsafe_split,
    split as unsafe_split_with_sizes, squeeze, squeeze as squeeze_copy, stack, t, t as t_copy, tile,
    transpose, transpose as swapaxes, transpose as swapdims, transpose as transpose_copy, tril, triu,
    unflatten, unfold as unfold_copy, unsqueeze, unsqueeze as unsqueeze_copy, view as view_copy, vstack,
    vstack as row_stack,
)
from weft.core.linear_algebra import (
    cholesky_inverse, cholesky_solve, det, geqrf, householder_product as orgqr, inv, inv as inverse, logdet,
    lstsq, lu_unpack, matrix_exp, matrix_power, matrix_rank, ormqr, pinv, pinv as pinverse, slogdet,
    torch_cholesky as cholesky, torch_lu as lu, torch_lu_solve as lu_solve, torch_qr as qr, torch_svd as svd,
    trace, triangular_solve,
)
from weft.core.linear_algebra.low_rank import pca_lowrank, svd_lowrank
from weft.core.linear_algebra.torch_products import (
    addbmm, addr, cdist, chain_matmul, corrcoef, cov, cross, dist, inner, kron, norm, renorm, vander, vdot,
)
from weft.core.pointwise.arithmetic import (
    clamp_max, clamp_min, float_power, fmax, fmin, gcd, heaviside, isneginf, isposinf, isreal, lcm, rsub, sgn,
)
from weft.core.pointwise.dtype_info import finfo, iinfo
from weft.core.pointwise.elementwise import (
    abs, abs as absolute, add, addcdiv, addcmul, bitwise_and, bitwise_left_shift, bitwise_not, bitwise_or,
    bitwise_right_shift, bitwise_xor, ceil, clamp, clamp as clip, cos, cosh, div, div as divide,
    div as true_divide, eq, erf, exp, exp2, expm1, floor, floor_divide, fmod, frac, ge, ge as greater_equal,
    gt, gt as greater, isclose, isfinite, isinf, isnan, le, le as less_equal, lerp, log, log10, log1p, log2,
    logical_and, logical_not, logical_or, logical_xor, logit, lt, lt as less, maximum, minimum, mul,
    mul as multiply, nan_to_num, ne, ne as not_equal, neg, neg as negative, positive, pow, reciprocal,
    remainder, round, rsqrt, sigmoid, sign, sin, sinh, sqrt, square, sub, sub as subtract, tan, tanh, trunc,
    trunc as fix, where,
)
from weft.core.pointwise.float_format import copysign, frexp, ldexp, nextafter, signbit
from weft.core.pointwise.nonzeros import argwhere, nonzero
from weft.core.pointwise.special_functions import (
    digamma, erfc, erfinv, gammainc as igamma, gammaincc as igammac, i0, lgamma, logaddexp, logaddexp2,
    mvlgamma, polygamma, xlogy,
)
from weft.core.pointwise.trigonometry import (
    acos, acos as arccos, acosh, acosh as arccosh, angle, asin, asin as arcsin, asinh, asinh as arcsinh, atan,
    atan as arctan, atan2, atan2 as arctan2, atanh, atanh as arctanh, deg2rad, hypot, rad2deg, sinc,
)
from weft.core.sharding.tensors import shard
from weft.core.tensor.as_functions import (
    assert_true as assert_true, clone, clone as alias_copy, clone as detach_copy, cond, conj,
    conj as conj_physical, conj as conj_physical_, conj as real, conj as resolve_conj, conj as resolve_neg,
    detach, fill, get_device, is_complex, is_complex as is_conj, is_complex as is_inference,
    is_complex as is_neg, is_floating_point, is_nonzero, is_same_size, is_signed, is_storage, is_tensor,
    numel, resize_as_, typename,
)
from weft.core.tensor.display import set_printoptions
from weft.core.tensor.interchange import from_dlpack, from_torch
from weft.core.tensor.sizes import Size
from weft.core.tensor.tensor import Tensor
from weft.errors import (
    ArgumentError, DTypeError, DeviceError, FileError, GradError, IndexError, MemoryPlanError, ShapeError,
    WeftError,
)
from weft.io.nested import load, save
from weft.ir.dtypes import (
    DType, DType as dtype, bfloat16, bool_ as bool, float16, float16 as half, float32, float32 as float,
    float64, float64 as double, float8_e4m3fn, float8_e5m2, int16, int16 as short, int32, int32 as int, int64,
    int64 as long, int8, promote, promote as promote_types, uint16, uint32, uint64, uint8,
)
from weft.sessions.pool import MemoryPool as memory_pool
from weft.sessions.session import session
_assert = assert_true
_assert_async = assert_true
abs_ = Tensor.abs_
acos_ = Tensor.acos_
acosh_ = Tensor.acosh_
addmv_ = Tensor.addmv_
arccos_ = Tensor.arccos_
arccosh_ = Tensor.arccosh_
arcsin_ = Tensor.arcsin_
arcsinh_ = Tensor.arcsinh_
arctan_ = Tensor.arctan_
arctanh_ = Tensor.arctanh_
as_strided_ = Tensor.as_strided_
asin_ = Tensor.asin_
asinh_ = Tensor.asinh_
atan_ = Tensor.atan_
atanh_ = Tensor.atanh_
ceil_ = Tensor.ceil_
clamp_ = Tensor.clamp_
clamp_max_ = Tensor.clamp_max_
clamp_min_ = Tensor.clamp_min_
clip_ = Tensor.clip_
cos_ = Tensor.cos_
cosh_ = Tensor.cosh_
deg2rad_ = Tensor.deg2rad_
detach_ = Tensor.detach_
erf_ = Tensor.erf_
erfc_ = Tensor.erfc_
exp2_ = Tensor.exp2_
exp_ = Tensor.exp_
expm1_ = Tensor.expm1_
fill_ = Tensor.fill_
fix_ = Tensor.fix_
floor_ = Tensor.floor_
frac_ = Tensor.frac_
gcd_ = Tensor.gcd_
i0_ = Tensor.i0_
index_put_ = Tensor.index_put_
lcm_ = Tensor.lcm_
ldexp_ = Tensor.ldexp_
log10_ = Tensor.log10_
log1p_ = Tensor.log1p_
log2_ = Tensor.log2_
log_ = Tensor.log_
logit_ = Tensor.logit_
nan_to_num_ = Tensor.nan_to_num_
neg_ = Tensor.neg_
negative_ = Tensor.negative_
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
__all__ = [
    "ArgumentError", "DType", "DTypeError", "DeviceError", "FileError", "Generator", "GradError",
    "IndexError", "MemoryPlanError", "ShapeError", "Size", "Tensor", "Variable", "WeftError", "__version__",
    "abs", "abs_", "absolute", "acos", "acos_", "acosh", "acosh_", "add", "addbmm", "addcdiv", "addcmul",
    "addmm", "addmv", "addmv_", "addr", "adjoint", "alias_copy", "all", "allclose", "amax", "amin", "aminmax",
    "amp", "angle", "any", "arange", "arccos", "arccos_", "arccosh", "arccosh_", "arcsin", "arcsin_",
    "arcsinh", "arcsinh_", "arctan", "arctan2", "arctan_", "arctanh", "arctanh_", "argmax", "argmin",
    "argsort", "argwhere", "array_api", "as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter",
    "as_tensor", "asarray", "asin", "asin_", "asinh", "asinh_", "atan", "atan2", "atan_", "atanh", "atanh_",
    "atleast_1d", "atleast_2d", "atleast_3d", "autocast", "baddbmm", "bartlett_window", "bernoulli",
    "bfloat16", "bincount", "bind", "binomial", "bitwise_and", "bitwise_left_shift", "bitwise_not",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "blackman_window", "block_diag", "bmm", "bool",
    "broadcast_shapes", "broadcast_tensors", "broadcast_to", "bucketize", "can_cast", "cartesian_prod", "cat",
    "cdist", "ceil", "ceil_", "chain_matmul", "cholesky", "cholesky_inverse", "cholesky_solve", "chunk",
    "clamp", "clamp_", "clamp_max", "clamp_max_", "clamp_min", "clamp_min_", "clip", "clip_", "clone",
    "column_stack", "combinations", "compile", "concat", "concatenate", "cond", "conj", "conj_physical",
    "conj_physical_", "constant_pad_nd", "copysign", "corrcoef", "cos", "cos_", "cosh", "cosh_",
    "count_nonzero", "cov", "cross", "cummax", "cummin", "cumprod", "cumsum", "cumulative_trapezoid",
    "deg2rad", "deg2rad_", "det", "detach", "detach_", "detach_copy", "device", "devices", "diag",
    "diag_embed", "diagflat", "diagonal", "diagonal_copy", "diagonal_scatter", "diff", "digamma", "dist",
    "distributions", "div", "divide", "dot", "double", "dsplit", "dstack", "dtype", "e", "einsum", "empty",
    "empty_like", "empty_strided", "enable_grad", "eq", "equal", "erf", "erf_", "erfc", "erfc_", "erfinv",
    "exp", "exp2", "exp2_", "exp_", "expand_copy", "explain", "expm1", "expm1_", "eye", "fill", "fill_",
    "finfo", "fix", "fix_", "flatten", "flip", "fliplr", "flipud", "float", "float16", "float32", "float64",
    "float8_e4m3fn", "float8_e5m2", "float_power", "floor", "floor_", "floor_divide", "fmax", "fmin", "fmod",
    "frac", "frac_", "frexp", "from_dlpack", "from_numpy", "from_torch", "frombuffer", "full", "full_like",
    "gather", "gcd", "gcd_", "ge", "geqrf", "ger", "get_autocast_dtype", "get_default_device",
    "get_default_dtype", "get_device", "get_num_threads", "get_rng_state", "grad", "gradient", "gradients",
    "greater", "greater_equal", "gt", "half", "hamming_window", "hann_window", "heaviside", "histc",
    "histogram", "histogramdd", "hsplit", "hstack", "hypot", "i0", "i0_", "igamma", "igammac", "iinfo",
    "index_add", "index_copy", "index_fill", "index_put", "index_put_", "index_reduce", "index_select", "inf",
    "inference_mode", "initial_seed", "inner", "int", "int16", "int32", "int64", "int8", "inv", "inverse",
    "io", "is_autocast_enabled", "is_complex", "is_conj", "is_floating_point", "is_grad_enabled",
    "is_inference", "is_inference_mode_enabled", "is_neg", "is_nonzero", "is_same_size", "is_signed",
    "is_storage", "is_tensor", "isclose", "isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf",
    "isreal", "kaiser_window", "kron", "kthvalue", "lcm", "lcm_", "ldexp", "ldexp_", "le", "lerp", "less",
    "less_equal", "lgamma", "linalg", "linspace", "load", "log", "log10", "log10_", "log1p", "log1p_", "log2",
    "log2_", "log_", "log_softmax", "logaddexp", "logaddexp2", "logcumsumexp", "logdet", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "logit_", "logspace", "logsumexp", "long", "lstsq",
    "lt", "lu", "lu_solve", "lu_unpack", "manual_seed", "mark_dynamic", "masked_fill", "masked_scatter",
    "masked_select", "matmul", "matrix_exp", "matrix_power", "matrix_rank", "max", "maximum", "mean",
    "median", "memory_limit", "memory_pool", "meshgrid", "min", "minimum", "mm", "mode", "models", "moveaxis",
    "movedim", "msort", "mul", "multinomial", "multiply", "mv", "mvlgamma", "nan", "nan_to_num",
    "nan_to_num_", "nanmean", "nanmedian", "nanquantile", "nansum", "narrow", "narrow_copy", "ne", "neg",
    "neg_", "negative", "negative_", "nextafter", "nn", "no_grad", "nonzero", "nonzero_static", "norm",
    "normal", "not_equal", "numel", "numerics", "ones", "ones_like", "optim", "orgqr", "ormqr", "outer",
    "pca_lowrank", "permute", "permute_copy", "pi", "pinv", "pinverse", "poisson", "polygamma", "positive",
    "pow", "prod", "promote", "promote_types", "put", "qr", "quantile", "quantization", "rad2deg", "rad2deg_",
    "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "range", "ravel",
    "real", "realize", "reciprocal", "reciprocal_", "relu", "relu_", "remainder", "renorm",
    "repeat_interleave", "reshape", "resize_as_", "resolve_conj", "resolve_neg", "result_type", "roll",
    "rot90", "round", "round_", "row_stack", "rsqrt", "rsqrt_", "rsub", "save", "scalar_tensor", "scan",
    "scatter", "scatter_add", "scatter_reduce", "searchsorted", "seed", "select", "select_copy",
    "select_scatter", "session", "set_default_device", "set_default_dtype", "set_grad_enabled",
    "set_num_threads", "set_printoptions", "set_rng_state", "sgn", "shard", "short", "shrink", "sigmoid",
    "sigmoid_", "sign", "signal", "signbit", "sin", "sin_", "sinc", "sinc_", "sinh", "sinh_", "slice_copy",
    "slice_scatter", "slogdet", "softmax", "sort", "special", "split", "split_copy", "split_with_sizes",
    "split_with_sizes_copy", "sqrt", "sqrt_", "square", "square_", "squeeze", "squeeze_copy", "stack", "std",
    "std_mean", "sub", "subtract", "sum", "svd", "svd_lowrank", "swapaxes", "swapdims", "synchronize", "t",
    "t_copy", "take", "take_along_dim", "tan", "tan_", "tanh", "tanh_", "tensor", "tensor_split", "tensordot",
    "tile", "topk", "trace", "transpose", "transpose_copy", "trapezoid", "trapz", "triangular_solve", "tril",
    "tril_indices", "triu", "triu_indices", "true_divide", "trunc", "trunc_", "typename", "uint16", "uint32",
    "uint64", "uint8", "unbind", "unbind_copy", "unflatten", "unfold_copy", "unique", "unique_consecutive",
    "unravel_index", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "unsqueeze", "unsqueeze_copy",
    "value_and_grad", "vander", "var", "var_mean", "vdot", "view_copy", "vmap", "vsplit", "vstack", "where",
    "xlogy", "xlogy_", "zero_", "zeros", "zeros_like",
]
