"""torch itself, and the modules of functions of tensors."""

from __future__ import annotations

from collections.abc import Mapping

from weft.as_torch.kinds import Names

_COMPLEX = "weft has real numbers only; numpy.fft computes it on .numpy()"
_SPARSE = "weft has dense tensors only"

NUMBERS: Mapping[str, Names] = {
    "torch": Names(
        weft="weft",
        refused="stft istft polar complex view_as_complex view_as_real hspmm sspaddmm smm sparse_coo_tensor "
        "sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor sparse_compressed_tensor "
        "quantize_per_tensor quantize_per_channel fake_quantize_per_tensor_affine "
        "fake_quantize_per_channel_affine "
        "quantize_per_tensor_dynamic dequantize lobpcg _weight_norm_interface  "
        ""
        "cudnn_convolution mkldnn_convolution",
        nothing="set_warn_always set_vital _sync _assert_tensor_metadata set_deterministic "
        "set_autocast_cache_enabled clear_autocast_cache _enable_functionalization "
        "_disable_functionalization sym_constrain_range_for_size sym_constrain_range  "
        "set_deterministic_debug_mode",
        false="is_warn_always_enabled is_vulkan_available is_anomaly_enabled "
        "is_distributed _is_functional_tensor  "
        "_has_compatible_shallow_copy_type ",
        zero="get_deterministic_debug_mode",
        true="",
        classes="ByteStorage CharStorage ShortStorage IntStorage LongStorage FloatStorage DoubleStorage "
        "HalfStorage "
        "BoolStorage BFloat16Storage UntypedStorage TypedStorage Graph Node Value Block JITException "
        "Stream Event ComplexFloatStorage ComplexDoubleStorage QUInt8Storage QInt8Storage QInt32Storage "
        "ScriptObject "
        "CompilationUnit FatalError ErrorReport Tag",
        first={"__version__": "weft.as_torch.parts.version:TORCH_VERSION"},
        at={
            "while_loop": "weft.as_torch.parts.scans:while_loop",
            "legacy_contiguous_format": "weft:contiguous_format",
            "_shape_as_tensor": "weft.as_torch.parts.scripting:shape_as_tensor",
            "ops": "weft.as_torch.parts.library:ops",
            **{n: f"weft.as_torch.parts.functions:{n}" for n in (
                "_assert", "_assert_async", "_check", "_check_is_size", "_check_index", "_check_value",
                "_check_type", "_check_tensor_all", "_check_with", "_check_not_implemented",
                "compiled_with_cxx11_abi", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype",
                "get_device_module", "is_autocast_cpu_enabled", "is_autocast_cache_enabled",
                "is_inference_mode_enabled", "set_autocast_dtype", "set_autocast_cpu_dtype",
                "set_autocast_enabled", "set_autocast_gpu_dtype", "set_autocast_cpu_enabled",
                "set_flush_denormal",
                "spmm", "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt",
                "sym_sum",
                "SymBool", "SymFloat", "SymInt", "thread_safe_generator", "_is_all_true", "_is_any_true",
                "is_deterministic_algorithms_warn_only_enabled", "get_file_path",
            )},
            "is_deterministic": "weft:are_deterministic_algorithms_enabled",
            "set_anomaly_enabled": "weft.core.args.modes:detect_anomaly",
            "OutOfMemoryError": "weft:MemoryPlanError",
            "AcceleratorError": "weft:DeviceError",
            "Type": "builtins:type",
            "fork": "weft.as_torch.parts.futures:fork", "wait": "weft.as_torch.parts.futures:wait",
            "Future": "weft.as_torch.parts.futures:Future",
        },
        instead="weft has dense tensors of real numbers",
    ),
    "torch.torch": Names(also="torch"),
    "torch._VF": Names(weft="weft weft.nn.functional"),
    "torch._C._VariableFunctions": Names(weft="weft weft.nn.functional"),
    "torch._six": Names(
        at={"string_classes": "builtins:str", "int_classes": "builtins:int",
        "container_abcs": "collections.abc:",
            "FileNotFoundError": "builtins:FileNotFoundError", "inf": "math:inf", "nan": "math:nan"},
        values={"PY3": True, "PY37": True},
    ),
    "torch._tensor": Names(at={"Tensor": "weft:Tensor"}),
    "torch._utils": Names(
        at={n: f"weft.as_torch.parts.functions:{n}" for n in (
            "_flatten_dense_tensors", "_unflatten_dense_tensors", "_take_tensors", "_get_all_device_indices",
            "_get_available_device_type", "_get_device_index", "ExceptionWrapper")},
        refused="_rebuild_tensor _rebuild_tensor_v2 _rebuild_parameter _rebuild_qtensor",
        instead="weft.load reads what torch.save wrote",
    ),
    "torch._utils_internal": Names(false="justknobs_check"),
    "torch._torch_docs": Names(
        at={"reproducibility_notes": "builtins:dict", "tf32_notes": "builtins:dict"},
        unchanged="merge_dicts parse_kwargs"
    ),
    "torch._appdirs": Names(at={"user_cache_dir": "platformdirs:user_cache_dir"}),
    "torch._namedtensor_internals": Names(refused="check_serializing_named_tensor"),
    "torch._tensor_str": Names(at={"_str": "builtins:repr"}, values={"PRINT_OPTS": None}),
    "torch._weights_only_unpickler": Names(),
    "torch._lowrank": Names(weft="weft"),
    "torch._refs": Names(weft="weft weft.nn.functional"),
    "torch._prims": Names(weft="weft"),
    "torch.functional": Names(weft="weft", also="torch"),
    "torch.linalg": Names(
        weft="weft.linalg", refused="eig eigvals", instead="weft has real numbers only; eigh for symmetric "
        "matrices"
    ),
    "torch.special": Names(weft="weft.special"),
    "torch.random": Names(weft="weft.core.functions.random weft"),
    "torch.return_types": Names(at={
        n: f"weft.as_torch.parts.functions:{n}_result" for n in (
            "cummax", "cummin", "topk", "max", "min", "sort", "median", "mode", "kthvalue", "aminmax")}),
    "torch.signal": Names(weft="weft.signal"),
    "torch.signal.windows": Names(weft="weft.signal.windows"),
    "torch.quasirandom": Names(classes="SobolEngine", instead="draw with weft.rand"),
    "torch.distributions": Names(weft="weft.distributions", classes="NegativeBinomial RelaxedBernoulli "
        "RelaxedOneHotCategorical VonMises Weibull Pareto FisherSnedecor LowRankMultivariateNormal "
        "MixtureSameFamily "
        "Multinomial OneHotCategoricalStraightThrough LogisticNormal LKJCholesky Kumaraswamy InverseGamma "
        "HalfCauchy "
        "ContinuousBernoulli Wishart ExponentialFamily", instead="weft.distributions has others"),
    "torch.distributions.constraints": Names(weft="weft.as_torch.parts.constraints"),
    "torch.distributions.constraint_registry": Names(refused="biject_to transform_to ConstraintRegistry"),
    "torch.distributions.kl": Names(weft="weft.distributions"),
    "torch.distributions.exp_family": Names(also="torch.distributions"),
    "torch.distributions.utils": Names(at={
        n: f"weft.as_torch.parts.constraints:{n}" for n in (
            "broadcast_all", "lazy_property", "logits_to_probs", "probs_to_logits", "clamp_probs",
            "_standard_normal")}),
    **{
        f"torch.distributions.{n}": Names(weft="weft.distributions", also="torch.distributions")
        for n in (
            "bernoulli", "beta", "binomial", "categorical", "cauchy", "chi2", "dirichlet", "distribution",
            "exponential", "gamma", "geometric", "gumbel", "half_normal", "independent", "laplace",
            "log_normal",
            "multivariate_normal", "negative_binomial", "normal", "one_hot_categorical", "poisson",
            "relaxed_bernoulli", "relaxed_categorical", "studentT", "transformed_distribution", "transforms",
            "uniform", "mixture_same_family", "lowrank_multivariate_normal", "von_mises", "multinomial",
        )
    },
    "torch.fft": Names(
        refused="fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 fftn ifftn rfftn "
        "irfftn hfftn ihfftn",
        at={n: f"weft.as_torch.parts.frequencies:{n}" for n in ("fftfreq", "rfftfreq", "fftshift",
        "ifftshift")},
        instead=_COMPLEX,
    ),
    "torch.sparse": Names(
        refused="mm sum addmm sampled_addmm softmax log_softmax spdiags to_sparse_semi_structured",
        classes="SparseSemiStructuredTensor SparseSemiStructuredTensorCUTLASS",
        context="check_sparse_tensor_invariants", instead=_SPARSE,
    ),
    "torch.sparse.semi_structured": Names(also="torch.sparse"),
    "torch.masked": Names(
        refused="masked_tensor as_masked_tensor mean var sum std amax amin argmax argmin prod norm median "
        "logsumexp "
        "softmax log_softmax softmin normalize cumsum cumprod logaddexp",
        false="is_masked_tensor", classes="MaskedTensor",
        instead="use weft.where and the function of the same name",
    ),
    "torch.nested": Names(
        refused="nested_tensor as_nested_tensor to_padded_tensor nested_tensor_from_jagged narrow "
        "masked_select",
        instead="pad with nn.utils.rnn.pad_sequence",
    ),
    "torch.nested._internal.nested_tensor": Names(classes="NestedTensor"),
}  # fmt: skip
"""Paths of functions of tensors."""
