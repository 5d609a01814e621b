"""Functions as methods of Tensor, under torch's names: a table from name to function, read with the modules at hand."""

from __future__ import annotations

from types import FunctionType

from weft.core.args.handle import Handle
from weft.core.functional import activations, padding
from weft.core.functions import matmul as products
from weft.core.functions import random, reductions
from weft.core.layout import gather as picking
from weft.core.layout import indexing, movement
from weft.core.pointwise import elementwise, nonzeros
from weft.core.surface.keywords import with_aliases
from weft.core.tensor.deferred import (
    arithmetic,
    arrangement,
    composed_products,
    float_format,
    histograms,
    linear_algebra,
    scans,
    sorting,
    special,
    trigonometry,
)
from weft.core.views import views


class Methods(Handle):
    """Operators and functions that give a new Tensor. Tensor inherits them."""

    __slots__ = ()

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
    __getitem__ = views.picking(indexing.getitem)

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
    norm = composed_products.norm
    allclose = reductions.allclose
    equal = reductions.equal

    reshape = movement.reshape
    view = movement.view
    view_as = movement.view_as
    reshape_as = movement.view_as
    flatten = movement.flatten
    ravel = movement.ravel
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
    select = indexing.select
    split = movement.split
    chunk = movement.chunk
    unbind = indexing.unbind
    unfold = movement.unfold
    repeat = movement.repeat
    tile = movement.tile
    repeat_interleave = picking.repeat_interleave
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
    masked_select = indexing.masked_select
    nonzero = nonzeros.nonzero
    argwhere = nonzeros.argwhere
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
    histc = histograms.histc
    histogram = histograms.histogram
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
    qr = linear_algebra.torch_qr
    cholesky_solve = linear_algebra.cholesky_solve
    cholesky_inverse = linear_algebra.cholesky_inverse
    triangular_solve = linear_algebra.triangular_solve
    ormqr = linear_algebra.ormqr
    orgqr = linear_algebra.householder_product
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


for _name, _function in list(vars(Methods).items()):
    if isinstance(_function, FunctionType):
        setattr(Methods, _name, views.offered(_name, with_aliases(_function)))
