"""Torch's surface: every public name of weft, which module has it, and where users find it.

A new function is one word here, in the row of its module; `tools/surface.py` then writes what type checkers read.
`namespaces.py` serves the rows to users, `core/tensor/methods.py` makes methods of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from functools import cache

from weft.lazy_dataclass import dataclass


class Form(Enum):
    """Layers around a function where users find it; each has what those before it have."""

    MODULE = auto()  # the words are modules in the package
    PLAIN = auto()  # nothing
    CHECKED = auto()  # the types of arguments are checked
    OUT = auto()  # NumPy's keywords and `out=` are taken
    MADE = auto()  # results look at the input where torch says so, and are never the input itself


@dataclass(frozen=True, slots=True)
class Home:
    """The public names of a module. A key lists places, its words are names; `name=other` is named `other` at home.

    Places are weft's namespaces ("weft", "nn.functional"), in parentheses where they offer a name that is not in their
    `__all__`, and "Tensor" for methods. "Tensor_" is the method in place, `x.name_()`, and "weft_" that method as a
    function. `name*` is every name that begins so. Methods of a `late` module import it when one is called.
    """

    module: str
    offers: Mapping[str, str]
    form: Form = Form.PLAIN
    late: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A name in one place: where it is defined, under which name, and whether `__all__` has it."""

    name: str
    module: str
    attribute: str
    form: Form
    listed: bool
    late: bool


SURFACE: tuple[Home, ...] = (
    # modules
    Home("weft", {
        "(weft)": (
            "autograd backends compiler cuda data distributed errors func overrides "
            "random=core.functions.random testing utils"
        ),
        "weft": "amp array_api distributions io linalg models nn optim quantization signal special",
    }, Form.MODULE),
    Home("weft.nn", {
        "(nn)": "modules",
        "nn": "attention functional init lora utils",
    }, Form.MODULE),
    Home("weft.optim", {"optim": "lr_scheduler swa_utils"}, Form.MODULE),
    # as they are at home
    Home("math", {"weft": "e inf nan pi"}),
    Home("weft._version", {"weft": "__version__"}),
    Home("weft.core.args.broadcast", {"weft": "broadcast_shapes can_cast result_type"}),
    Home("weft.core.args.defaults", {"weft": "get_default_dtype set_default_dtype"}),
    Home("weft.core.args.dtype_names", {
        "(weft)": (
            "bits16 bits1x8 bits2x4 bits4x2 bits8 cdouble cfloat chalf complex128 complex32 complex64 "
            "float4_e2m1fn_x2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu int1 int2 int3 int4 int5 int6 "
            "int7 qint32 qint8 quint2x4 quint4x2 quint8 uint1 uint2 uint3 uint4 uint5 uint6 uint7"
        ),
    }),
    Home("weft.core.args.modes", {
        "weft (autograd)": "enable_grad inference_mode no_grad set_grad_enabled",
        "(autograd)": "Variable=variable detect_anomaly set_detect_anomaly=detect_anomaly",
        "weft": "is_grad_enabled is_inference_mode_enabled numerics",
    }),
    Home("weft.core.args.switches", {
        "(weft)": (
            "BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor "
            "LongTensor ShortTensor are_deterministic_algorithms_enabled channels_last channels_last_3d "
            "contiguous_format get_float32_matmul_precision get_num_interop_threads jagged layout "
            "memory_format preserve_format set_default_tensor_type set_float32_matmul_precision "
            "set_flush_denormal set_num_interop_threads sparse_bsc sparse_bsr sparse_coo sparse_csc "
            "sparse_csr strided use_deterministic_algorithms"
        ),
    }),
    Home("weft.core.compile.compile", {"weft": "compile"}),
    Home("weft.core.compile.explain", {"weft": "explain"}),
    Home("weft.sessions.pool", {"weft": "memory_pool=MemoryPool"}),
    Home("weft.sessions.session", {"weft": "session"}),
    Home("weft.core.compile.marked", {"weft": "mark_dynamic"}),
    Home("weft.core.composed.autocast", {"weft": "autocast get_autocast_dtype is_autocast_enabled"}),
    Home("weft.core.execute.devices", {
        "weft": (
            "device devices get_default_device get_num_threads memory_limit set_default_device "
            "set_num_threads"
        ),
    }),
    Home("weft.core.execute.realization", {"weft": "realize"}),
    Home("weft.core.execute.run", {"weft": "synchronize"}),
    Home("weft.core.execute.variables", {"weft": "Variable bind"}),
    Home("weft.core.functions.windows", {
        "weft": "bartlett_window blackman_window hamming_window hann_window kaiser_window",
    }),
    Home("weft.core.grad.checkpointing", {"(autograd)": "checkpoint checkpoint_sequential"}),
    Home("weft.core.grad.differentiate", {
        "(autograd)": "backward=backward_all grad=gradients",
        "weft": "grad gradients value_and_grad",
    }),
    Home("weft.core.grad.function", {"(autograd)": "Function FunctionCtx once_differentiable"}),
    Home("weft.core.grad.gradcheck", {"(autograd)": "gradcheck gradgradcheck"}),
    Home("weft.core.grad.jacobians", {
        "(autograd)": (
            "functional hessian=functional.hessian jacobian=functional.jacobian jvp=functional.jvp "
            "vjp=functional.vjp"
        ),
    }),
    Home("weft.core.grad.scan", {"weft": "scan"}),
    Home("weft.core.grad.vmap", {"weft": "vmap"}),
    Home("weft.core.linear_algebra.low_rank", {"weft": "pca_lowrank svd_lowrank"}),
    Home("weft.core.pointwise.dtype_info", {"weft": "finfo iinfo"}),
    Home(
        "weft.core.sharding.tensors", {"weft": "shard", "Tensor": "full_tensor redistribute to_local"}, late=True
    ),
    Home("weft.core.pointwise.nonzeros", {"weft Tensor": "argwhere nonzero"}, late=True),
    Home("weft.core.surface.foreach", {"(weft)": "_foreach_*"}),
    Home("weft.core.tensor.as_functions", {
        "(weft)": "_assert=assert_true _assert_async=assert_true",
        "weft": (
            "clone cond conj conj_physical_=conj detach detach_copy=clone fill get_device is_complex "
            "is_conj=is_complex is_floating_point is_inference=is_complex is_neg=is_complex is_nonzero "
            "is_same_size is_signed is_storage is_tensor numel real=conj resize_as_ resolve_conj=conj "
            "resolve_neg=conj typename"
        ),
    }),
    Home("weft.core.tensor.display", {"weft": "set_printoptions"}),
    Home("weft.core.tensor.interchange", {"weft": "from_dlpack from_torch"}),
    Home("weft.core.tensor.sizes", {"weft": "Size"}),
    Home("weft.core.tensor.tensor", {
        "weft": (
            "Tensor as_strided_=Tensor.as_strided_ detach_=Tensor.detach_ fill_=Tensor.fill_ "
            "index_put_=Tensor.index_put_ zero_=Tensor.zero_"
        ),
    }),
    Home("weft.errors", {
        "weft": (
            "ArgumentError DTypeError DeviceError FileError GradError IndexError MemoryPlanError ShapeError "
            "WeftError"
        ),
    }),
    Home("weft.io.nested", {"weft": "load save"}),
    Home("weft.ir.dtypes", {
        "weft": (
            "DType bfloat16 bool=bool_ double=float64 dtype=DType float16 float32 float64 float8_e4m3fn "
            "float8_e5m2 float=float32 half=float16 int16 int32 int64 int8 int=int32 long=int64 promote "
            "promote_types=promote short=int16 uint16 uint32 uint64 uint8"
        ),
    }),
    Home("weft.nn.activations", {
        "nn": (
            "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax "
            "Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus Softshrink "
            "Softsign Tanh Tanhshrink Threshold"
        ),
    }),
    Home("weft.nn.adaptive_softmax", {
        "nn": "AdaptiveLogSoftmaxWithLoss LinearCrossEntropyLoss LinearCrossEntropyOptions",
    }),
    Home("weft.nn.compiled", {"(nn)": "OptimizedModule"}),
    Home("weft.nn.containers", {"nn": "ModuleDict ModuleList ParameterDict ParameterList Sequential"}),
    Home("weft.nn.convolution", {
        "nn": "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    }),
    Home("weft.nn.lazy", {
        "nn": (
            "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d "
            "LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d "
            "LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear"
        ),
    }),
    Home("weft.nn.linear", {
        "nn": "Bilinear CosineSimilarity Embedding EmbeddingBag Identity Linear PairwiseDistance",
    }),
    Home("weft.nn.losses", {
        "nn": (
            "BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss "
            "HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss MSELoss MarginRankingLoss MultiLabelMarginLoss "
            "MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d PoissonNLLLoss SmoothL1Loss "
            "SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss"
        ),
    }),
    Home("weft.nn.module", {"nn": "Buffer IncompatibleKeys Module Parameter"}),
    Home("weft.nn.multihead", {"nn": "MultiheadAttention"}),
    Home("weft.nn.normalization", {
        "nn": (
            "BatchNorm1d BatchNorm2d BatchNorm3d CrossMapLRN2d GroupNorm InstanceNorm1d InstanceNorm2d "
            "InstanceNorm3d LayerNorm LocalResponseNorm RMSNorm SyncBatchNorm"
        ),
    }),
    Home("weft.nn.padding", {
        "nn": (
            "CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d "
            "ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d "
            "ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d"
        ),
    }),
    Home("weft.nn.parallel", {"nn": "DataParallel"}),
    Home("weft.nn.pipeline", {"nn": "Pipeline"}),
    Home("weft.nn.pooling", {
        "nn": (
            "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d "
            "AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d FractionalMaxPool3d "
            "LPPool1d LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d"
        ),
    }),
    Home("weft.nn.quantized", {"nn": "BlockEmbedding BlockLinear IntegerLinear QuantizedEmbedding QuantizedLinear"}),
    Home("weft.nn.recurrent", {"nn": "GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase"}),
    Home("weft.nn.regularization", {
        "nn": "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout Flatten Unflatten",
    }),
    Home("weft.nn.resampling", {
        "nn": (
            "ChannelShuffle Fold PixelShuffle PixelUnshuffle Unfold Upsample UpsamplingBilinear2d "
            "UpsamplingNearest2d"
        ),
    }),
    Home("weft.nn.transformer", {
        "nn": (
            "Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder "
            "TransformerEncoderLayer"
        ),
    }),
    Home("weft.optim.adam", {"optim": "Adam AdamW"}),
    Home("weft.optim.adaptive", {"optim": "ASGD Adadelta Adagrad Adamax NAdam RAdam RMSprop Rprop"}),
    Home("weft.optim.large_batch", {"optim": "Adafactor LAMB Lion Muon"}),
    Home("weft.optim.lbfgs", {"optim": "LBFGS"}),
    Home("weft.optim.optimizer", {"optim": "Optimizer RuleOptimizer"}),
    Home("weft.optim.sgd", {"optim": "SGD"}),
    # with the types of their arguments checked
    Home("weft.core.functional.activations", {
        "weft weft_ Tensor Tensor_ nn.functional": "relu",
        "Tensor nn.functional special": "log_softmax softmax",
        "(weft) nn.functional": "celu celu_ prelu rrelu rrelu_ selu selu_ threshold threshold_",
        "nn.functional": (
            "elu elu_ glu gumbel_softmax hardsigmoid hardswish hardtanh hardtanh_ leaky_relu leaky_relu_ "
            "mish relu6 relu_ sigmoid silu softmin softsign tanh tanhshrink"
        ),
    }, Form.CHECKED),
    Home("weft.core.functional.attention", {
        "nn.functional": "multi_head_attention_forward scaled_dot_product_attention",
    }, Form.CHECKED),
    Home("weft.core.functional.convolution", {
        "(weft) nn.functional": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    }, Form.CHECKED),
    Home("weft.core.functional.ctc", {"(weft) nn.functional": "ctc_loss"}, Form.CHECKED),
    Home("weft.core.functional.distances", {
        "(weft) nn.functional": "cosine_similarity pairwise_distance pdist",
    }, Form.CHECKED),
    Home("weft.core.functional.dropouts", {
        "(weft) nn.functional": (
            "alpha_dropout alpha_dropout_ dropout dropout_ feature_alpha_dropout feature_alpha_dropout_"
        ),
        "nn.functional": "dropout1d dropout2d dropout3d",
    }, Form.CHECKED),
    Home("weft.core.functional.embeddings", {
        "(weft) nn.functional": "embedding embedding_bag",
        "nn.functional": "one_hot",
    }, Form.CHECKED),
    Home("weft.core.functional.grids", {"nn.functional": "affine_grid grid_sample"}, Form.CHECKED),
    Home("weft.core.functional.linear_maps", {
        "(weft) nn.functional": "bilinear",
        "nn.functional": "linear",
    }, Form.CHECKED),
    Home("weft.core.functional.losses", {
        "(weft) nn.functional": "binary_cross_entropy_with_logits kl_div",
        "nn.functional": (
            "binary_cross_entropy cross_entropy huber_loss l1_loss linear_cross_entropy mse_loss nll_loss "
            "smooth_l1_loss"
        ),
    }, Form.CHECKED),
    Home("weft.core.functional.normalization", {
        "(weft) nn.functional": "batch_norm group_norm instance_norm layer_norm rms_norm",
        "nn.functional": "local_response_norm normalize",
    }, Form.CHECKED),
    Home("weft.core.functional.padding", {"Tensor nn.functional": "pad"}, Form.CHECKED, late=True),
    Home("weft.core.functional.pooling", {
        "(weft) nn.functional": (
            "adaptive_avg_pool1d adaptive_max_pool1d avg_pool1d max_pool1d max_pool2d max_pool3d"
        ),
        "nn.functional": (
            "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d "
            "fractional_max_pool2d fractional_max_pool3d lp_pool1d lp_pool2d lp_pool3d max_unpool1d "
            "max_unpool2d max_unpool3d"
        ),
    }, Form.CHECKED),
    Home("weft.core.functional.ranking_losses", {
        "(weft) nn.functional": (
            "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss poisson_nll_loss "
            "triplet_margin_loss"
        ),
        "nn.functional": (
            "gaussian_nll_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss "
            "soft_margin_loss triplet_margin_with_distance_loss"
        ),
    }, Form.CHECKED),
    Home("weft.core.functional.resampling", {
        "(weft) nn.functional": "channel_shuffle pixel_shuffle pixel_unshuffle",
        "nn.functional": "fold interpolate unfold upsample upsample_bilinear upsample_nearest",
    }, Form.CHECKED),
    # with NumPy's keywords and `out=`
    Home("weft.core.functional.activations", {
        "(weft) nn.functional": "hardshrink",
        "nn.functional": "gelu logsigmoid softplus softshrink",
        "weft": "log_softmax softmax",
    }, Form.OUT),
    Home("weft.core.functional.pooling", {"nn.functional": "avg_pool2d avg_pool3d"}, Form.OUT),
    Home("weft.core.pointwise.polynomials", {
        "special": (
            "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
            "hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
            "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
            "shifted_chebyshev_polynomial_w"
        ),
    }, Form.OUT),
    Home("weft.core.tensor.as_functions", {"weft": "alias_copy=clone conj_physical=conj"}, Form.OUT),
    # with results that are views, or never the input
    Home("weft.core.functions.arrangement", {
        "weft Tensor Tensor_": "index_reduce masked_scatter put",
        "weft Tensor": (
            "as_strided as_strided_scatter diag_embed diagflat diagonal_scatter dsplit fliplr flipud hsplit "
            "nonzero_static rot90 select_scatter slice_scatter tensor_split vsplit"
        ),
        "Tensor": "resize_as sum_to_size",
        "weft": (
            "as_strided_copy=as_strided atleast_1d atleast_2d atleast_3d block_diag cartesian_prod "
            "column_stack combinations dstack slice_copy unravel_index"
        ),
    }, Form.MADE, late=True),
    Home("weft.core.functions.histograms", {
        "weft Tensor": "histc histogram",
        "weft": "histogramdd",
    }, Form.MADE, late=True),
    Home("weft.core.functions.matmul", {
        "weft weft_ Tensor Tensor_": "addmv",
        "weft Tensor Tensor_": "addmm baddbmm",
        "weft Tensor linalg": "matmul",
        "weft Tensor": "bmm dot ger=outer mm mv outer",
        "weft": "einsum tensordot",
    }, Form.MADE),
    Home("weft.core.functions.random", {
        "weft Tensor": "bernoulli multinomial",
        "(weft)": "default_generator",
        "weft": (
            "Generator binomial get_rng_state initial_seed manual_seed normal poisson rand rand_like randint "
            "randint_like randn randn_like randperm seed set_rng_state"
        ),
    }, Form.MADE),
    Home("weft.core.functions.reductions", {
        "weft Tensor special": "logsumexp",
        "weft Tensor": (
            "all allclose amax amin aminmax any argmax argmin count_nonzero equal max mean min nanmean "
            "nansum prod std sum var"
        ),
        "weft": "std_mean var_mean",
    }, Form.MADE),
    Home("weft.core.functions.scans", {
        "weft Tensor Tensor_": "cumprod cumsum",
        "weft Tensor": "cummax cummin diff logcumsumexp",
        "weft": "cumulative_trapezoid gradient trapezoid trapz=trapezoid",
    }, Form.MADE, late=True),
    Home("weft.core.functions.sorting", {
        "weft Tensor": (
            "argsort kthvalue median mode msort nanmedian nanquantile quantile sort topk unique "
            "unique_consecutive"
        ),
        "weft": "bucketize isin searchsorted",
    }, Form.MADE, late=True),
    Home("weft.core.layout.creation", {
        "weft": (
            "arange as_tensor asarray empty empty_like empty_strided eye from_numpy frombuffer full "
            "full_like linspace logspace ones ones_like range=range_ scalar_tensor tensor tril_indices "
            "triu_indices zeros zeros_like"
        ),
    }, Form.MADE),
    Home("weft.core.layout.gather", {
        "weft Tensor Tensor_": "index_add index_copy scatter scatter_add scatter_reduce",
        "weft Tensor": (
            "bincount gather index_fill index_select masked_fill repeat_interleave take take_along_dim"
        ),
    }, Form.MADE),
    Home("weft.core.layout.indexing", {
        "weft Tensor": "index_put masked_select select unbind",
        "Tensor": "index",
        "weft": "select_copy=select unbind_copy=unbind",
    }, Form.MADE),
    Home("weft.core.layout.movement", {
        "weft Tensor Tensor_": "tril triu",
        "weft Tensor": (
            "broadcast_to chunk diag diagonal flatten flip moveaxis=movedim movedim narrow "
            "narrow_copy=narrow permute ravel reshape roll shrink split split_with_sizes=split squeeze "
            "swapaxes=transpose swapdims=transpose t tile transpose unflatten unsafe_chunk=chunk "
            "unsafe_split=split unsafe_split_with_sizes=split unsqueeze"
        ),
        "Tensor": "contiguous expand expand_as repeat reshape_as=view_as unfold view view_as",
        "weft": (
            "adjoint=matrix_transpose broadcast_tensors cat concat=cat concatenate=cat "
            "constant_pad_nd=constant_pad diagonal_copy=diagonal expand_copy=expand hstack meshgrid "
            "permute_copy=permute row_stack=vstack split_copy=split split_with_sizes_copy=split "
            "squeeze_copy=squeeze stack t_copy=t transpose_copy=transpose unfold_copy=unfold "
            "unsqueeze_copy=unsqueeze view_copy=view vstack"
        ),
    }, Form.MADE),
    Home("weft.core.linear_algebra", {
        "weft Tensor linalg": "det lstsq matrix_exp matrix_power pinv slogdet",
        "weft Tensor": (
            "cholesky=torch_cholesky cholesky_inverse cholesky_solve geqrf inverse=inv logdet lu=torch_lu "
            "lu_solve=torch_lu_solve orgqr=householder_product ormqr pinverse=pinv qr=torch_qr svd=torch_svd "
            "trace triangular_solve"
        ),
        "weft linalg": "inv matrix_rank",
        "linalg": (
            "LinAlgError cholesky cholesky_ex cond cross diagonal=diagonal_of eigh eigvalsh "
            "householder_product inv_ex ldl_factor ldl_factor_ex ldl_solve lu lu_factor lu_factor_ex "
            "lu_solve matrix_norm multi_dot norm qr solve solve_ex solve_triangular svd svdvals tensorinv "
            "tensorsolve vander vecdot vector_norm"
        ),
        "weft": "lu_unpack",
    }, Form.MADE, late=True),
    Home("weft.core.linear_algebra.torch_products", {
        "weft Tensor Tensor_": "addbmm addr renorm",
        "weft Tensor": "corrcoef cov cross dist inner kron norm vdot",
        "weft": "cdist chain_matmul vander",
    }, Form.MADE, late=True),
    Home("weft.core.pointwise.arithmetic", {
        "weft weft_ Tensor Tensor_": "clamp_max clamp_min gcd lcm",
        "weft Tensor Tensor_": "float_power heaviside sgn",
        "weft Tensor": "fmax fmin isneginf isposinf isreal",
        "weft": "rsub",
    }, Form.MADE, late=True),
    Home("weft.core.pointwise.elementwise", {
        "weft weft_ Tensor Tensor_ special": "erf exp2 expm1 log1p logit round",
        "weft weft_ Tensor Tensor_": (
            "abs ceil clamp clip=clamp cos cosh exp fix=trunc floor frac log log10 log2 nan_to_num neg "
            "negative=neg reciprocal rsqrt sigmoid sin sinh sqrt square tan tanh trunc"
        ),
        "weft Tensor Tensor_": (
            "absolute=abs add addcdiv addcmul bitwise_and bitwise_left_shift bitwise_not bitwise_or "
            "bitwise_right_shift bitwise_xor div divide=div eq floor_divide fmod ge greater=gt "
            "greater_equal=ge gt le lerp less=lt less_equal=le logical_and logical_not logical_or "
            "logical_xor lt mul multiply=mul ne not_equal=ne pow remainder sign sub subtract=sub "
            "true_divide=div"
        ),
        "weft Tensor": "isclose isfinite isinf isnan maximum minimum positive",
        "special": "expit=sigmoid",
        "weft": "where",
    }, Form.MADE),
    Home("weft.core.pointwise.float_format", {
        "weft weft_ Tensor Tensor_": "ldexp",
        "weft Tensor Tensor_": "copysign nextafter",
        "weft Tensor": "frexp signbit",
    }, Form.MADE, late=True),
    Home("weft.core.pointwise.special_functions", {
        "weft weft_ Tensor Tensor_ special": "erfc i0 xlogy",
        "weft Tensor Tensor_ special": "digamma erfinv",
        "weft Tensor Tensor_": "igamma=gammainc igammac=gammaincc lgamma mvlgamma",
        "weft Tensor": "logaddexp logaddexp2",
        "weft special": "polygamma",
        "special": (
            "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx gammainc gammaincc gammaln=lgamma "
            "i0e i1 i1e log_ndtr modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 "
            "multigammaln=mvlgamma ndtr ndtri psi=digamma scaled_modified_bessel_k0 "
            "scaled_modified_bessel_k1 spherical_bessel_j0 xlog1py zeta"
        ),
    }, Form.MADE, late=True),
    Home("weft.core.pointwise.trigonometry", {
        "weft weft_ Tensor Tensor_ special": "sinc",
        "weft weft_ Tensor Tensor_": (
            "acos acosh arccos=acos arccosh=acosh arcsin=asin arcsinh=asinh arctan=atan arctanh=atanh asin "
            "asinh atan atanh deg2rad rad2deg"
        ),
        "weft Tensor Tensor_": "arctan2=atan2 atan2 hypot",
        "weft Tensor": "angle",
    }, Form.MADE, late=True),
)  # fmt: skip


@cache
def rows(place: str) -> Mapping[str, Row]:
    """The rows of a place, by name."""
    return {row.name: row for home in SURFACE for row in _rows(home, place)}


def _rows(home: Home, place: str) -> Iterator[Row]:
    for key, words in home.offers.items():
        places = key.split()
        if place in places or f"({place})" in places:
            for word in words.split():
                name, _, other = word.partition("=")
                yield Row(name, home.module, other or name, home.form, place in places, home.late)
        if f"{place}_" in places and place != "Tensor":
            for word in words.split():
                name = f"{word.partition('=')[0]}_"
                yield Row(name, TENSOR, f"Tensor.{name}", Form.PLAIN, True, False)


TENSOR = "weft.core.tensor.tensor"
"""The module of the class Tensor."""
MODULES = frozenset(home.module for home in SURFACE)
"""The modules that have public names."""
