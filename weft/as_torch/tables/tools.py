"""torch.utils, torch.autograd, torch.hub and other tools around models."""

from __future__ import annotations

from collections.abc import Mapping

from weft.as_torch.kinds import Names

_DOWNLOAD = "weft downloads nothing: fetch the file, and give its path to torch.load"

TOOLS: Mapping[str, Names] = {
    "torch.autograd": Names(
        weft="weft.autograd",
        first={
            "Variable": "weft.as_torch.parts.differentiation:Variable",
            "gradcheck": "weft.core.grad.gradcheck:gradcheck",
        },
        refused="",
        context="",
        classes="NestedIOFunction",
        enums={"DeviceType": "CPU CUDA XPU"},
        instead="weft.autograd has torch's tools",
    ),
    "torch.autograd.function": Names(
        weft="weft.core.grad.function weft.autograd", classes="NestedIOFunction InplaceFunction BackwardCFunction",
        at={"InplaceFunction": "weft.autograd:Function"},
    ),
    "torch.autograd.functional": Names(at={
        n: f"weft.core.grad.jacobians:functional.{n}" for n in ("jacobian", "hessian", "vjp", "jvp", "vhp", "hvp")}),
    "torch.autograd.variable": Names(also="torch.autograd"),
    "torch.autograd.grad_mode": Names(weft="weft.core.args.modes", context="set_multithreading_enabled "
        "_force_original_view_tracking _unsafe_preserve_version_counter"),
    "torch.autograd.anomaly_mode": Names(weft="weft.core.args.modes"),
    "torch.autograd.gradcheck": Names(weft="weft.core.grad.gradcheck"),
    "torch.autograd.graph": Names(
        at={n: f"weft.as_torch.parts.differentiation:{n}" for n in ("saved_tensors_hooks", "save_on_cpu")},
        context="disable_saved_tensors_hooks allow_mutation_on_saved_tensors "
        "set_warn_on_accumulate_grad_stream_mismatch",
        refused="register_multi_grad_hook get_gradient_edge increment_version",
        classes="Node GradientEdge",
        instead="register a hook on each tensor: x.register_hook",
    ),
    "torch.autograd.forward_ad": Names(
        refused="make_dual enter_dual_level exit_dual_level",
        at={"unpack_dual": "weft.as_torch.parts.differentiation:unpack_dual"},
        classes="", context="dual_level",
        values={"_current_level": -1},
        instead="torch.func.jvp gives derivatives along a direction",
    ),
    "torch.autograd.profiler": Names(
        at={n: f"weft.as_torch.parts.profiling:{n}" for n in ("profile", "record_function", "emit_nvtx",
        "emit_itt")},
        context="EnforceUnique KinetoStepTracker",
        refused="load_nvprof",
    ),
    "torch.autograd.profiler_util": Names(classes="EventList FunctionEvent Kernel"),
    "torch.profiler": Names(
        at={n: f"weft.as_torch.parts.profiling:{n}" for n in (
            "profile", "record_function", "schedule", "tensorboard_trace_handler", "ProfilerActivity",
            "ProfilerAction")},
        none="", classes="ExecutionTraceObserver _ExperimentalConfig DeviceType",
    ),
    "torch.profiler.profiler": Names(also="torch.profiler"),
    "torch.profiler.itt": Names(nothing="range_push range_pop mark", false="is_available", context="range"),
    "torch.monitor": Names(nothing="log_event register_event_handler", classes="Event Stat Aggregation"),
    "torch.hub": Names(
        weft="weft.as_torch.parts.hub",
        refused="load help download_url_to_file",
        instead=_DOWNLOAD,
    ),
    "torch.utils": Names(
        at={"set_module": "weft.as_torch.parts.functions:set_module",
        "swap_tensors": "weft.as_torch.parts.functions:swap_tensors"},
        refused="rename_privateuse1_backend generate_methods_for_privateuse1_backend",
    ),
    "torch.utils.model_zoo": Names(at={
        "load_url": "weft.as_torch.parts.hub:load_state_dict_from_url", "tqdm": "weft.as_torch.parts.hub:tqdm",
        "_download_url_to_file": "torch.hub:download_url_to_file",
        "load_state_dict_from_url": "weft.as_torch.parts.hub:load_state_dict_from_url",
        "urlparse": "urllib.parse:urlparse", "HASH_REGEX": "weft.as_torch.parts.hub:HASH_REGEX",
    }),
    "torch.utils._pytree": Names(weft="weft.as_torch.parts.pytree"),
    "torch.utils._cxx_pytree": Names(weft="weft.as_torch.parts.pytree"),
    "torch.utils.pytree": Names(weft="weft.as_torch.parts.pytree"),
    "torch.utils._python_dispatch": Names(
        false="is_traceable_wrapper_subclass", none="_get_current_dispatch_mode",
        context="_disable_current_modes",
        classes="TorchDispatchMode", refused="transform_subclass return_and_correct_aliasing",
        instead="weft runs no Python code under its operations: use module hooks",
    ),
    "torch.utils._contextlib": Names(
        at={"_DecoratorContextManager": "contextlib:ContextDecorator"}, refused="context_decorator"
    ),
    "torch.utils._mode_utils": Names(false="no_dispatch"),
    "torch.utils._foreach_utils": Names(
        at={"_group_tensors_by_device_and_dtype": "weft.as_torch.parts.functions:group_by_device_and_dtype",
            "_get_foreach_kernels_supported_devices": "builtins:list",
            "_get_fused_kernels_supported_devices": "builtins:list",
            "_has_foreach_support": "weft.as_torch.parts.functions:no", "_device_has_foreach_support":
            "weft.as_torch.parts.functions:no"},
    ),
    "torch.utils._device": Names(at={"DeviceContext": "weft:device"}),
    "torch.utils._traceback": Names(),
    "torch.utils._ordered_set": Names(at={"OrderedSet": "builtins:dict"}),
    "torch.utils.backend_registration": Names(refused="rename_privateuse1_backend"),
    "torch.utils.benchmark": Names(
        classes="Timer Measurement Compare Fuzzer", instead="the standard library has timeit; "
        "weft.synchronize() waits"
    ),
    "torch.utils.checkpoint": Names(
        weft="weft.core.grad.checkpointing",
        first={n: f"weft.as_torch.parts.checkpoints:{n}" for n in (
            "checkpoint", "checkpoint_sequential", "CheckpointFunction", "CheckpointPolicy",
            "check_backward_validity",
            "detach_variable", "get_device_states", "noop_context_fn", "set_checkpoint_early_stop",
            "set_checkpoint_debug_enabled", "set_device_states", "SelectiveCheckpointContext",
            "create_selective_checkpoint_contexts", "_get_autocast_kwargs", "_infer_device_type",
            "DefaultDeviceType")},
    ),
    "torch.utils.collect_env": Names(at={"get_pretty_env_info": "weft.as_torch.parts.functions:environment"},
                                     refused="get_env_info main"),
    "torch.utils.data": Names(
        weft="weft.data",
        at={"functional_datapipe": "weft.as_torch.parts.data:functional_datapipe"},
        classes="DFIterDataPipe DataChunk ",
        refused="runtime_validation runtime_validation_disabled non_deterministic "
        "guaranteed_datapipes_determinism",
    ),
    "torch.utils.data.dataset": Names(weft="weft.data.dataset weft.data",
    at={"T_co": "weft.as_torch.parts.data:T_co"}),
    "torch.utils.data.dataloader": Names(
        weft="weft.data.loader weft.data", at={"_utils": "torch.utils.data._utils:"},
        classes="_BaseDataLoaderIter _SingleProcessDataLoaderIter _MultiProcessingDataLoaderIter _DatasetKind",
    ),
    "torch.utils.data.sampler": Names(weft="weft.data.sampler", at={"T_co": "weft.as_torch.parts.data:T_co"}),
    "torch.utils.data.distributed": Names(weft="weft.data", classes="DistributedSampler"),
    "torch.utils.data._utils": Names(values={"MP_STATUS_CHECK_INTERVAL": 5.0, "python_exit_status": False}),
    "torch.utils.data._utils.collate": Names(
        weft="weft.data.collate", at={n: f"weft.as_torch.parts.data:{n}" for n in (
            "np_str_obj_array_pattern", "default_collate_err_msg_format", "default_collate_fn_map", "collate")},
    ),
    "torch.utils.data._utils.worker": Names(weft="weft.data", at={"WorkerInfo": "weft.data.loader:WorkerInfo"}),
    "torch.utils.data._utils.fetch": Names(classes="_IterableDatasetFetcher _MapDatasetFetcher"),
    "torch.utils.data._utils.pin_memory": Names(unchanged="pin_memory"),
    "torch.utils.data.datapipes": Names(),
    "torch.utils.data.datapipes.iter": Names(classes="IterableWrapper Mapper Filter Batcher Shuffler "
    "ShufflerIterDataPipe"),
    "torch.utils.data.datapipes.iter.combinatorics": Names(classes="ShufflerIterDataPipe SamplerIterDataPipe"),
    "torch.utils.data.datapipes.map": Names(classes="SequenceWrapper Mapper Shuffler"),
    "torch.utils.data.datapipes.datapipe": Names(classes="IterDataPipe MapDataPipe"),
    "torch.utils.data.datapipes.utils.common": Names(refused="StreamWrapper"),
    "torch.utils.data.graph_settings": Names(unchanged="apply_shuffle_settings apply_sharding "
    "apply_random_seed"),
    "torch.utils.data.graph": Names(refused="traverse traverse_dps"),
    "torch.utils.data.backward_compatibility": Names(nothing="worker_init_fn"),
    "torch.utils.dlpack": Names(weft="weft.utils.dlpack"),
    "torch.utils.flop_counter": Names(classes="FlopCounterMode", instead="weft.explain(x) counts flops"),
    "torch.utils.hipify": Names(),
    "torch.utils.hooks": Names(
        weft="weft.core.grad.differentiate", nothing="warn_if_has_hooks", unchanged="unserializable_hook",
        classes="BackwardHook",
    ),
    "torch.utils.module_tracker": Names(classes="ModuleTracker"),
    "torch.utils.serialization": Names(),
    "torch.utils.serialization.config": Names(context="patch"),
    "torch.utils.show_pickle": Names(),
    "torch.utils.tensorboard": Names(at={"SummaryWriter": "tensorboardX:SummaryWriter"}),
    "torch.utils.tensorboard.writer": Names(also="torch.utils.tensorboard"),
    "torch.utils.throughput_benchmark": Names(classes="ThroughputBenchmark"),
    "torch.utils.viz": Names(),
    "torch.utils.weak": Names(
        at={"WeakTensorKeyDictionary": "weakref:WeakKeyDictionary",
        "WeakIdKeyDictionary": "weakref:WeakKeyDictionary",
            "WeakTensorRef": "weakref:ref"}
    ),
    "torch.types": Names(
        at={
            "Number": "weft.as_torch.parts.annotations:Number", "Device": "typing:Any",
            "_device": "weft:device",
            "_dtype": "weft:dtype", "_size": "weft.as_torch.parts.annotations:Sizes", "_int": "builtins:int",
            "_float": "builtins:float", "_bool": "builtins:bool", "_layout": "weft:layout", "_complex":
            "builtins:complex", "_TensorOrTensors": "typing:Any", "_TensorOrTensorsOrGradEdge": "typing:Any",
            "FileLike": "weft.as_torch.parts.annotations:FileLike", "Storage": "typing:Any",
            "_symint": "builtins:int",
            "_qscheme": "typing:Any", "_dispatchkey": "builtins:str", "IntLikeType": "builtins:int",
            "FloatLikeType": "builtins:float", "BoolLikeType": "builtins:bool", "Tensor": "weft:Tensor",
            "SymInt": "weft.as_torch.parts.functions:SymInt", "PySymType": "typing:Any", "py_sym_types":
            "weft.as_torch.parts.annotations:NO_TYPES",
        },
    ),
    "torch.overrides": Names(
        at={n: f"weft.as_torch.parts.overriding:{n}" for n in (
            "TorchFunctionMode", "get_default_nowrap_functions", "get_ignored_functions",
            "get_overridable_functions", "get_testing_overrides", "handle_torch_function", "has_torch_function",
            "has_torch_function_unary", "has_torch_function_variadic", "is_tensor_like",
            "is_tensor_method_or_property", "resolve_name", "wrap_torch_function", "redispatch")},
        context="enable_reentrant_dispatch _enable_torch_function",
    ),
    "torch.serialization": Names(
        weft="weft.io.nested weft",
        at={n: f"weft.as_torch.parts.files:{n}" for n in (
            "add_safe_globals", "clear_safe_globals", "get_safe_globals", "safe_globals",
            "normalize_storage_type",
            "get_unsafe_globals_in_checkpoint", "location_tag", "FILE_LIKE", "MAP_LOCATION",
            "default_restore_location", "get_default_load_endianness", "set_default_load_endianness",
            "LoadEndianness", "SourceChangeWarning", "get_crc32_options", "set_crc32_options",
            "get_default_mmap_options", "set_default_mmap_options", "check_module_version_greater_or_equal",
            "_is_zipfile", "StorageType")},
        nothing="register_package", context="skip_data",
        values={"DEFAULT_PROTOCOL": 2},
    ),
    "torch.storage": Names(classes="UntypedStorage TypedStorage _LegacyStorage", refused="_load_from_bytes"),
    "torch.testing": Names(),
    "torch.testing._internal": Names(),
    "torch.testing._internal.common_utils": Names(classes="TestCase", nothing="run_tests"),
    "torch.futures": Names(weft="weft.as_torch.parts.futures"),
    "torch.numa": Names(),
    "torch.numa.binding": Names(records={"NumaOptions": "affinity_mode"}, enums={"AffinityMode": "NODE "
    "SOCKET EXCLUSIVE CORE_COMPLEX"}),
    "torch.contrib": Names(),
}  # fmt: skip
"""Paths of tools."""
