"""torch's compilers, tracers, exporters and C++ modules: names that change nothing here, or refuse.

weft compiles everything that runs, so what programs say to a compiler has no effect,
and its answers are those of a
program that is not being traced.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.as_torch.kinds import Names

_NO_GRAPH = "weft has no graph of a Python function to give: call the function as it is, or use weft.compile"
_NO_FILE = "save a state_dict, and make the model from its class"
_NO_CPP = "code in C++ is built on torch itself; use the program's fallback in Python"
_NO_QUANTIZED = "weft.quantization.quantize_model_ quantizes the weights of a model"

_NO_ONNX = "export the model where torch itself is installed; weights go there by weft.save or safetensors"

_LIST = "typing:List"

_OPSETS = {
    7: "max min", 8: "addmm", 9: "select squeeze unsqueeze dropout softmax masked_fill reshape cat slice "
    "expand size "
    "index_put linear pad roll upsample_bilinear2d layer_norm gelu embedding_bag", 10: "flip slice "
    "embedding_bag",
    11: "select squeeze unsqueeze cat size index_put pad embedding_bag", 12: "dropout einsum",
    13: "softmax reshape",
    14: "reshape", 15: "", 16: "grid_sampler", 17: "layer_norm", 18: "", 19: "", 20: "gelu",
}  # fmt: skip
"""The version of ONNX's operators -> those that programs call to say how theirs are exported."""

_QUANTIZED = (
    "BatchNorm2d BatchNorm3d Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d "
    "DeQuantize Dropout ELU "
    "Embedding EmbeddingBag FXFloatFunctional GroupNorm Hardswish InstanceNorm1d InstanceNorm2d "
    "InstanceNorm3d LSTM "
    "LayerNorm LeakyReLU Linear MaxPool2d MultiheadAttention PReLU QFunctional Quantize ReLU6 Sigmoid Softmax"
)
_FUSED = "ConvReLU1d ConvReLU2d ConvReLU3d LinearReLU"
_FUSED_NORMS = "ConvBn1d ConvBn2d ConvBn3d ConvBnReLU1d ConvBnReLU2d ConvBnReLU3d LinearBn1d"

_QUANTIZED_LAYERS = {
    "quantized": _QUANTIZED,
    "quantized.dynamic": "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d GRU GRUCell "
    "LSTM LSTMCell "
    "Linear RNNCell",
    "intrinsic": f"{_FUSED} {_FUSED_NORMS} BNReLU2d BNReLU3d _FusedModule",
    "intrinsic.qat": f"{_FUSED} {_FUSED_NORMS}",
    "intrinsic.quantized": f"{_FUSED} BNReLU2d BNReLU3d",
    "qat": "Conv1d Conv2d Conv3d Embedding EmbeddingBag Linear",
    "quantizable": "LSTM LSTMCell MultiheadAttention",
}
"""Path below torch.nn -> its classes."""

COMPILERS: Mapping[str, Names] = {
    "torch.jit": Names(
        unchanged="script script_method trace trace_module export ignore unused script_if_tracing "
        "_script_if_tracing "
        "interface freeze optimize_for_inference _overload _overload_method _drop",
        refused="load save fork wait",
        context="optimized_execution fuser strict_fusion ",
        nothing="set_fusion_strategy enable_onednn_fusion set_module",
        false="is_scripting is_tracing onednn_fusion_enabled",
        classes="ScriptFunction RecursiveScriptModule CompilationUnit TopLevelTracedModule Error Future",
        at={
            "Final": "typing:Final",
            "ScriptModule": "weft.as_torch.parts.scripting:ScriptModule",
            "TracedModule": "weft.as_torch.parts.scripting:ScriptModule",
            "isinstance": "builtins:isinstance",
            "annotate": "weft.as_torch.parts.scripting:annotate",
            "Attribute": "weft.as_torch.parts.scripting:Attribute",
        },
        values={"_state": None},
        instead=_NO_FILE,
    ),
    "torch.jit.annotations": Names(
        at={n: f"typing:{n}" for n in ("List", "Dict", "Tuple", "Optional", "Union", "Any")}
        | {f"BroadcastingList{n}": _LIST for n in range(1, 4)}
        | {"Tensor": "weft:Tensor", "Future": "weft.as_torch.parts.futures:Future"},
    ),
    "torch.jit._script": Names(also="torch.jit"),
    "torch.jit._trace": Names(also="torch.jit"),
    "torch.jit._state": Names(),
    "torch.jit.frontend": Names(classes="NotSupportedError"),
    "torch.jit.mobile": Names(refused="_load_for_lite_interpreter", instead=_NO_FILE),
    "torch._jit_internal": Names(
        unchanged="export ignore unused _overload _overload_method  ",
        false="is_scripting is_tracing",
        at={
            "Final": "typing:Final",
            "Optional": "typing:Optional",
            "List": _LIST,
            "Dict": "typing:Dict",
            "Tuple": "typing:Tuple",
            "Union": "typing:Union",
            "_isinstance": "builtins:isinstance",
            "Future": "weft.as_torch.parts.futures:Future",
            "boolean_dispatch": "weft.as_torch.parts.scripting:boolean_dispatch",
            **{f"BroadcastingList{n}": _LIST for n in range(1, 7)},
        },
    ),
    "torch.fx": Names(
        unchanged="wrap has_side_effect",
        refused="symbolic_trace replace_pattern map_arg",
        classes="Proxy Node Graph GraphModule Interpreter Transformer CodeGen ProxyableClassMeta Tracer",
        instead=_NO_GRAPH,
    ),
    "torch.fx.node": Names(
        also="torch.fx",
        refused="map_aggregate",
        at={"Target": "typing:Any", "Argument": "typing:Any", "BaseArgumentTypes": "typing:Any"},
        instead=_NO_GRAPH,
    ),
    "torch.fx.graph": Names(also="torch.fx", classes="_PyTreeCodeGen _PyTreeInfo PythonCode"),
    "torch.fx.graph_module": Names(
        also="torch.fx",
        classes="_CodeOnlyModule",
        refused="_copy_attr _assign_attr _forward_from_src reduce_graph_module",
        values={"_USER_PRESERVED_ATTRIBUTES_KEY": "_user_preserved_attributes"},
        instead=_NO_GRAPH,
    ),
    "torch.fx.proxy": Names(also="torch.fx", classes="Attribute ParameterProxy TracerBase TraceError"),
    "torch.fx._symbolic_trace": Names(
        also="torch.fx", false="is_fx_tracing", values={"_is_fx_tracing_flag": False}
    ),
    "torch.fx._pytree": Names(
        nothing="register_pytree_flatten_spec", refused="tree_flatten_spec", instead="see torch.utils._pytree"
    ),
    "torch.fx.passes.infra.pass_base": Names(classes="PassResult PassBase", instead=_NO_GRAPH),
    "torch.fx.passes.shape_prop": Names(classes="ShapeProp TensorMetadata", instead=_NO_GRAPH),
    "torch.fx.passes.split_module": Names(refused="split_module", instead=_NO_GRAPH),
    "torch.fx.operator_schemas": Names(refused="normalize_function normalize_module", instead=_NO_GRAPH),
    "torch.fx.experimental.proxy_tensor": Names(
        refused="make_fx",
        none="get_proxy_mode",
        context="disable_proxy_modes_tracing ",
        classes="ProxyTorchDispatchMode PythonKeyTracer",
        instead=_NO_GRAPH,
    ),
    "torch.fx.experimental.symbolic_shapes": Names(
        classes="GuardOnDataDependentSymNode ShapeEnv DimDynamic StatelessSymbolicContext "
        "ConstraintViolationError",
        refused="",
        at={
            "guard_or_false": "weft.as_torch.parts.scripting:known",
            "guard_or_true": "weft.as_torch.parts.scripting:known",
            "statically_known_true": "weft.as_torch.parts.scripting:known",
            "guard_size_oblivious": "builtins:bool",
            "sym_eq": "operator:eq",
            "free_symbols": "weft.as_torch.parts.scripting:no_symbols",
            "free_unbacked_symbols": "weft.as_torch.parts.scripting:no_symbols",
        },
        false="has_free_symbols is_symbolic ",
        instead=_NO_GRAPH,
    ),
    "torch.compiler": Names(
        weft="weft.compiler",
        unchanged="disable allow_in_graph assume_constant_result substitute_in_graph "
        "set_enable_guard_collectives",
        nothing="reset cudagraph_mark_step_begin set_stance save_cache_artifacts load_cache_artifacts",
        context="",
        refused="load_compiled_function wrap_numpy compile",
        false="is_exporting",
        at={
            "is_compiling": "weft.as_torch.parts.compiling:is_compiling",
            "is_dynamo_compiling": "weft.as_torch.parts.compiling:is_compiling",
            "list_backends": "weft.as_torch.parts.compiling:list_backends",
            "set_stance": "weft.as_torch.parts.compiling:set_stance",
        },
        instead=_NO_GRAPH,
    ),
    "torch._compile": Names(unchanged="_disable_dynamo"),
    "torch._dynamo": Names(
        unchanged="disable allow_in_graph assume_constant_result disallow_in_graph forbid_in_graph run "
        "nonstrict_trace substitute_in_graph",
        nothing="reset mark_dynamic maybe_mark_dynamic mark_static mark_static_address graph_break  "
        "reset_code_caches ",
        refused="export explain",
        classes="OptimizedModule",
        at={
            "is_compiling": "weft.as_torch.parts.compiling:is_compiling",
            "list_backends": "weft.as_torch.parts.compiling:list_backends",
            "optimize": "weft.as_torch.parts.compiling:optimize",
        },
        instead=_NO_GRAPH,
    ),
    "torch._dynamo.config": Names(
        context="patch",
        values={
            "cache_size_limit": 8,
            "recompile_limit": 8,
            "accumulated_cache_size_limit": 256,
            "verbose": False,
            "suppress_errors": False,
            "capture_scalar_outputs": False,
            "capture_dynamic_output_shape_ops": False,
            "automatic_dynamic_shapes": True,
            "assume_static_by_default": True,
            "optimize_ddp": True,
            "inline_inbuilt_nn_modules": True,
            "allow_unspec_int_on_nn_module": False,
            "skip_fwd_side_effects_in_bwd_under_checkpoint": False,
            "dynamic_shapes": True,
        },
    ),
    "torch._dynamo.utils": Names(
        at={"is_compiling": "weft.as_torch.parts.compiling:is_compiling"},
        false="is_compile_supported",
        classes="",
        refused="clone_input same",
        instead=_NO_GRAPH,
    ),
    "torch._dynamo.external_utils": Names(at={"is_compiling": "weft.as_torch.parts.compiling:is_compiling"}),
    "torch._dynamo.eval_frame": Names(
        also="torch._dynamo", at={"OptimizedModule": "weft.as_torch.parts.compiling:optimized_module"}
    ),
    "torch._dynamo.decorators": Names(also="torch._dynamo"),
    "torch._dynamo.exc": Names(
        classes="",
        at=dict.fromkeys(
            ("TorchDynamoException", "BackendCompilerFailed", "Unsupported", "InternalTorchDynamoError"),
            "weft.errors:WeftError",
        )
        | {"TensorifyScalarRestartAnalysis": "weft.as_torch.parts.compiling:NeverRaised"},
    ),
    "torch._dynamo.backends.registry": Names(
        unchanged="register_backend", at={"list_backends": "weft.as_torch.parts.compiling:list_backends"}
    ),
    "torch._dynamo.testing": Names(
        refused="reduce_to_scalar_loss", classes="CompileCounter", instead=_NO_GRAPH
    ),
    "torch._dynamo._trace_wrapped_higher_order_op": Names(context="TransformGetItemToIndex"),
    "torch._higher_order_ops": Names(
        refused="scan",
        at={
            "cond": "weft:cond",
            "associative_scan": "weft.as_torch.parts.scans:associative_scan",
            "while_loop": "weft.as_torch.parts.scans:while_loop",
        },
        instead="weft.scan takes a step function",
    ),
    "torch._higher_order_ops.associative_scan": Names(
        at={"associative_scan": "weft.as_torch.parts.scans:associative_scan"}
    ),
    "torch._functorch.aot_autograd": Names(refused="aot_function aot_module", instead=_NO_GRAPH),
    "torch._functorch.config": Names(context="patch", values={"donated_buffer": True}),
    "torch._functorch.apis": Names(at={"vmap": "weft:vmap"}),
    "torch._functorch.vmap": Names(at={"vmap": "weft:vmap"}),
    "torch._inductor": Names(
        nothing="cudagraph_mark_step_begin",
        refused="compile aoti_compile_and_package aoti_load_package list_options",
        instead=_NO_GRAPH,
        at={"list_mode_options": "builtins:dict"},
    ),
    "torch._inductor.config": Names(
        context="patch",
        values={
            "coordinate_descent_tuning": False,
            "fx_graph_cache": True,
            "max_autotune": False,
            "epilogue_fusion": True,
            "force_fuse_int_mm_with_mul": False,
            "conv_1x1_as_mm": False,
            "fallback_random": False,
            "debug": False,
            "shape_padding": True,
            "triton.cudagraphs": False,
            "realize_opcount_threshold": 30,
            "freezing": False,
            "coordinate_descent_check_all_directions": False,
            "use_mixed_mm": False,
            "disable_progress": True,
        },
    ),
    "torch._inductor.utils": Names(refused="do_bench_using_profiling run_and_get_code", instead=_NO_GRAPH),
    "torch._inductor.cpu_vec_isa": Names(false="pick_vec_isa valid_vec_isa_list"),
    "torch._inductor.runtime.cache_dir_utils": Names(at={"cache_dir": "tempfile:gettempdir"}),
    "torch._logging": Names(nothing="set_logs"),
    "torch._guards": Names(none="detect_fake_mode", classes="Source TracingContext"),
    "torch._subclasses": Names(classes="FakeTensor FakeTensorMode ", instead=_NO_GRAPH),
    "torch._subclasses.fake_tensor": Names(also="torch._subclasses", false="is_fake"),
    "torch._decomp": Names(refused="get_decompositions register_decomposition", instead=_NO_GRAPH),
    "torch._prims_common": Names(
        nothing="alert_not_deterministic",
        true="is_contiguous is_contiguous_or_false",
        at={"DeviceLikeType": "typing:Any", "TensorLike": "weft:Tensor", "ShapeType": "typing:Any"},
    ),
    "torch._higher_order_ops.effects": Names(nothing="_register_effectful_op"),
    "torch.export": Names(
        refused="export load save draft_export",
        nothing="register_dataclass",
        classes="ExportedProgram ExportGraphSignature ModuleCallEntry ShapesCollection",
        at={"Dim": "weft.as_torch.parts.compiling:Dim"},
        instead=_NO_GRAPH,
    ),
    "torch.export._trace": Names(refused="_export", instead=_NO_GRAPH),
    "torch.export.decomp_utils": Names(classes="CustomDecompTable"),
    "torch.export.dynamic_shapes": Names(also="torch.export"),
    "torch.export.unflatten": Names(refused="unflatten", instead=_NO_GRAPH),
    "torch.export.exported_program": Names(also="torch.export"),
    "torch.onnx": Names(
        refused="export load",
        false="is_in_onnx_export ",
        nothing="register_custom_op_symbolic unregister_custom_op_symbolic  ",
        classes="ONNXProgram JitScalarType OnnxExporterError",
        enums={
            "OperatorExportTypes": "ONNX ONNX_ATEN ONNX_ATEN_FALLBACK ONNX_FALLTHROUGH",
            "TrainingMode": "EVAL PRESERVE TRAINING",
            "TensorProtoDataType": "UNDEFINED FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 STRING BOOL "
            "FLOAT16 DOUBLE "
            "UINT32 UINT64 COMPLEX64 COMPLEX128 BFLOAT16",
        },
        instead=_NO_ONNX,
    ),
    **{
        f"torch.onnx.symbolic_opset{n}": Names(refused=names, instead=_NO_ONNX)
        for n, names in _OPSETS.items()
    },
    "torch.onnx.symbolic_helper": Names(
        unchanged="parse_args quantized_args",
        refused="_get_tensor_sizes _get_tensor_dim_size _maybe_get_const _is_none _unimplemented "
        "_onnx_unsupported "
        "_squeeze_helper _unsqueeze_helper _parse_arg _is_value _slice_helper _topk_helper",
        values={"cast_pytorch_to_onnx": {}},
        instead=_NO_ONNX,
    ),
    "torch.onnx.symbolic_registry": Names(nothing="register_op", false="is_registered_op"),
    "torch.onnx.utils": Names(also="torch.onnx"),
    "torch.onnx.operators": Names(
        at={
            "shape_as_tensor": "weft.as_torch.parts.scripting:shape_as_tensor",
            "reshape_from_tensor_shape": "weft.as_torch.parts.scripting:reshape_from_tensor_shape",
        }
    ),
    "torch.onnx.verification": Names(refused="verify_onnx_program"),
    "torch.library": Names(
        at={
            n: f"weft.as_torch.parts.library:{n}"
            for n in (
                "Library",
                "custom_op",
                "define",
                "impl",
                "impl_abstract",
                "register_autograd",
                "register_fake",
                "register_kernel",
                "register_vmap",
                "register_autocast",
                "register_torch_dispatch",
                "triton_op",
                "wrap_triton",
                "infer_schema",
                "get_ctx",
                "fallthrough_kernel",
                "CustomOpDef",
            )
        },
        refused="opcheck",
        classes="",
    ),
    "torch._library": Names(also="torch.library"),
    "torch._custom_ops": Names(also="torch.library"),
    "torch._custom_op.impl": Names(also="torch.library"),
    "torch._ops": Names(
        at={
            n: f"weft.as_torch.parts.library:{n}"
            for n in ("OpOverload", "OpOverloadPacket", "HigherOrderOperator", "ops")
        }
    ),
    "torch.classes": Names(refused="load_library", instead=_NO_CPP),
    "torch._classes": Names(also="torch.classes"),
    "torch._C": Names(
        weft="weft.overrides",
        nothing="_log_api_usage_once _jit_set_nvfuser_enabled _jit_set_nvfuser_guard_mode "
        "_jit_set_profiling_executor "
        "_jit_set_profiling_mode _jit_set_texpr_fuser_enabled _jit_override_can_fuse_on_cpu "
        "_jit_override_can_fuse_on_gpu _jit_set_bailout_depth _set_math_sdp_allow_fp16_bf16_reduction "
        "_set_worker_signal_handlers _jit_set_num_profiled_runs _debug_set_autodiff_subgraph_inlining "
        "_jit_set_logging_option _set_mkldnn_enabled _set_cudnn_enabled",
        context="DisableTorchFunctionSubclass DisableTorchFunction _ExcludeDispatchKeyGuard "
        "_AutoDispatchBelowAutograd "
        "_DisableFuncTorch _IncludeDispatchKeyGuard _DisableTorchDispatch ",
        false="_are_functorch_transforms_active _jit_can_fuse_on_cpu _jit_can_fuse_on_gpu _is_tracing "
        "_jit_texpr_fuser_enabled _has_torch_function _jit_nvfuser_enabled",
        none="_get_tracing_state _get_accelerator",
        classes="Graph Value Block Type TensorType Node Future ScriptModule ScriptFunction "
        "FunctionSchema Argument ClassType _TensorMeta FileCheck OptionalType "
        "ListType TupleType IntType StringType _FunctionBase",
        refused="import_ir_module _jit_pass_inline _jit_pass_lower_all_tuples  ",
        enums={
            "DispatchKey": "Undefined CPU CUDA XPU MPS Meta AutogradCPU AutogradCUDA Autograd AutocastCPU "
            "AutocastCUDA "
            "AutocastXPU CompositeImplicitAutograd CompositeExplicitAutograd PythonDispatcher Python "
            "Functionalize",
        },
        at={
            "Generator": "weft:Generator",
            "device": "weft:device",
            "Size": "weft:Size",
            "dtype": "weft:dtype",
            "_get_privateuse1_backend_name": "weft.as_torch.parts.scripting:privateuse1",
            "DispatchKeySet": "weft.as_torch.parts.scripting:DispatchKeySet",
            "TensorBase": "weft:Tensor",
            "_TensorBase": "weft:Tensor",
            "memory_format": "weft:memory_format",
            "layout": "weft:layout",
        },
        values={
            "has_cuda": False,
            "_has_mkldnn": False,
            "has_mkl": False,
            "has_lapack": True,
            "_GLIBCXX_USE_CXX11_ABI": True,
            "has_spectral": False,
            "_has_cuda": False,
            "_has_xpu": False,
            "_has_mps": False,
            "_has_openmp": False,
        },
        instead="torch's C++ is not here",
    ),
    "torch._C._autograd": Names(classes="SavedTensor ProfilerEvent", enums={"DeviceType": "CPU CUDA"}),
    "torch._C._distributed_c10d": Names(
        classes="Store ProcessGroup Work _SymmetricMemory FakeProcessGroup",
    ),
    "torch._C._functorch": Names(
        false="is_legacy_batchedtensor is_batchedtensor is_gradtrackingtensor is_functorch_wrapped_tensor",
        none="maybe_get_bdim",
        refused="get_unwrapped",
    ),
    "torch._C._nn": Names(
        weft="weft.nn.functional", at={"_parse_to": "weft.as_torch.parts.scripting:parse_to"}
    ),
    "torch._C._onnx": Names(also="torch.onnx"),
    "torch._C._profiler": Names(enums={"RecordScope": "FUNCTION USER_SCOPE"}),
    "torch.ao": Names(),
    "torch.ao.quantization": Names(
        refused="convert prepare prepare_qat quantize quantize_dynamic quantize_qat fuse_modules "
        "fuse_modules_qat "
        "get_default_qconfig get_default_qat_qconfig get_default_qconfig_mapping "
        "get_default_qat_qconfig_mapping "
        "propagate_qconfig_ swap_module add_quant_dequant   ",
        records={"QConfig": "activation weight"},
        classes="QConfigMapping ObserverBase FakeQuantize FakeQuantizeBase MinMaxObserver HistogramObserver "
        "MovingAverageMinMaxObserver PerChannelMinMaxObserver PlaceholderObserver NoopObserver "
        "MovingAveragePerChannelMinMaxObserver QConfigDynamic FusedMovingAvgObsFakeQuantize",
        nothing="disable_observer enable_observer disable_fake_quant enable_fake_quant",
        values=dict.fromkeys(
            (
                "default_observer",
                "default_weight_observer",
                "default_per_channel_weight_observer",
                "default_qconfig",
                "default_qat_qconfig",
                "default_dynamic_qconfig",
                "per_channel_dynamic_qconfig",
                "float16_dynamic_qconfig",
                "default_fake_quant",
                "default_weight_fake_quant",
                "default_float_qparams_observer",
            )
        ),
        at={
            "QuantStub": "weft.as_torch.parts.scripting:Stub",
            "DeQuantStub": "weft.as_torch.parts.scripting:Stub",
        },
        instead=_NO_QUANTIZED,
    ),
    **{
        f"torch.ao.quantization.{n}": Names(also="torch.ao.quantization")
        for n in (
            "observer",
            "fake_quantize",
            "qconfig",
            "quantize_fx",
            "stubs",
            "quantize",
            "fuse_modules",
            "qconfig_mapping",
            "fx",
            "fx._decomposed",
        )
    },
    "torch.quantization": Names(also="torch.ao.quantization"),
    "torch.quantization.observer": Names(also="torch.ao.quantization"),
    "torch.quantization.quantize_fx": Names(
        refused="prepare_fx convert_fx prepare_qat_fx fuse_fx", instead=_NO_QUANTIZED
    ),
    **{
        f"{root}.{path}": Names(
            classes=classes,
            at={"FloatFunctional": "weft.as_torch.parts.scripting:FloatFunctional"}
            if path == "quantized"
            else {},
            instead=_NO_QUANTIZED,
        )
        for root in ("torch.nn", "torch.ao.nn")
        for path, classes in _QUANTIZED_LAYERS.items()
    },
    "torch.nn.quantized.modules": Names(also="torch.nn.quantized"),
    "torch.ao.nn.quantized.modules": Names(also="torch.ao.nn.quantized"),
    "torch.ao.pruning": Names(refused="WeightNormSparsifier"),
    "torch.utils.cpp_extension": Names(
        refused="load load_inline include_paths library_paths",
        none="",
        false="is_ninja_available verify_ninja_availability check_compiler_abi_compatibility",
        classes="BuildExtension CppExtension CUDAExtension SyclExtension",
        values={"CUDA_HOME": None, "ROCM_HOME": None, "IS_HIP_EXTENSION": False, "TORCH_LIB_PATH": ""},
        instead=_NO_CPP,
    ),
    "torch.utils.mobile_optimizer": Names(refused="optimize_for_mobile", instead=_NO_FILE),
    "torch.utils.bundled_inputs": Names(refused="bundle_inputs", instead=_NO_FILE),
    "torch.package": Names(classes="PackageExporter PackageImporter", instead=_NO_FILE),
    "torch.utils._sympy.numbers": Names(classes="IntInfinity NegativeIntInfinity"),
    "torch.utils._sympy.value_ranges": Names(classes="ValueRanges"),
    "torch.utils._triton": Names(false="has_triton has_triton_package"),
}
"""Paths of compilers, tracers, exporters, C++."""
