"""torch's devices other than the CPU: what programs ask about them, and what they switch."""

from __future__ import annotations

from collections.abc import Mapping

from weft.as_torch.kinds import Names

_NO_DEVICE = "weft knows no such device; weft.devices() lists those there are"

DEVICES: Mapping[str, Names] = {
    "torch.cuda": Names(
        weft="weft.cuda",
        nothing="reset_max_memory_allocated reset_max_memory_cached reset_accumulated_memory_stats _lazy_init "
        "set_per_process_memory_fraction set_sync_debug_mode check_error _sleep",
        false="is_current_stream_capturing _is_in_bad_fork _is_compiled is_tf32_supported",
        zero="utilization temperature power_draw clock_rate get_sync_debug_mode",
        context="graph StreamContext device_of _DeviceGuard",
        classes="CUDAGraph CUDAPluggableAllocator MemPool ExternalStream CudaError DeferredCudaCallError",
        refused="make_graphed_callables graph_pool_handle list_gpu_processes memory_snapshot cudart  "
        "can_device_access_peer",
        at={
            "FloatTensor": "weft:FloatTensor", "LongTensor": "weft:LongTensor", "IntTensor": "weft:IntTensor",
            "HalfTensor": "weft:HalfTensor", "BoolTensor": "weft:BoolTensor", "ByteTensor": "weft:ByteTensor",
            "DoubleTensor": "weft:DoubleTensor", "BFloat16Tensor": "weft:BFloat16Tensor",
            **{
                n: f"weft.as_torch.parts.devices:{n}"
                for n in (
                    "Event", "Stream", "amp", "current_stream", "default_stream", "empty_cache", "init",
                    "ipc_collect",
                    "is_bf16_supported", "is_initialized", "manual_seed", "manual_seed_all", "seed", "seed_all",
                    "set_device", "set_stream", "stream", "get_rng_state", "set_rng_state", "get_rng_state_all",
                    "set_rng_state_all", "memory_summary", "memory_stats", "memory_cached", "max_memory_cached",
                    "get_arch_list", "get_gencode_flags", "device", "default_generators", "initial_seed",
                )
            },
            "OutOfMemoryError": "weft:MemoryPlanError",
        },
        values={"has_half": True, "has_magma": False},
        instead="weft plans launches and memory itself",
    ),
    "torch.cuda.amp": Names(
        at={
            "GradScaler": "weft.amp:GradScaler", "autocast": "weft.as_torch.parts.devices:cuda_autocast",
            "custom_fwd": "weft.as_torch.parts.devices:custom_fwd",
            "custom_bwd": "weft.as_torch.parts.devices:custom_bwd",
        }
    ),
    "torch.cuda.amp.autocast_mode": Names(also="torch.cuda.amp", values={},
    at={"_cast": "weft.as_torch.parts.devices:cast"}),
    "torch.cuda.amp.grad_scaler": Names(also="torch.cuda.amp", enums={"OptState": "READY UNSCALED STEPPED"}),
    "torch.cuda.amp.common": Names(false="amp_definitely_not_available"),
    "torch.cuda.random": Names(also="torch.cuda"),
    "torch.cuda.memory": Names(also="torch.cuda"),
    "torch.cuda.streams": Names(also="torch.cuda"),
    "torch.cuda.graphs": Names(also="torch.cuda"),
    "torch.cuda.nccl": Names(false="is_available", zero="version"),
    "torch.cuda.comm": Names(refused="broadcast scatter gather reduce_add", instead="weft runs on one "
    "device a model"),
    "torch.cuda.tunable": Names(nothing="enable tuning_enable", false="is_enabled"),
    "torch.cuda.nvtx": Names(nothing="range_push range_pop mark range_start range_end", context="range"),
    "torch.cuda.profiler": Names(nothing="start stop", context="profile"),
    "torch.cuda.sparse": Names(),
    "torch.cuda.jiterator": Names(refused="_create_jit_fn"),
    "torch.cuda._utils": Names(zero="_get_device_index"),
    "torch.amp": Names(
        weft="weft.amp",
        at={
            "is_autocast_available": "weft.as_torch.parts.devices:is_autocast_available",
            "custom_fwd": "weft.as_torch.parts.devices:custom_fwd",
            "custom_bwd": "weft.as_torch.parts.devices:custom_bwd",
        },
    ),
    "torch.amp.autocast_mode": Names(
        also="torch.amp", at={"_cast": "weft.as_torch.parts.devices:cast"},
    ),
    "torch.amp.grad_scaler": Names(also="torch.amp", enums={"OptState": "READY UNSCALED STEPPED"}),
    "torch.cpu": Names(
        false="is_initialized ", true="is_available", one="device_count",
        nothing="set_device synchronize", zero="current_device",
        context="stream StreamContext", at={"Stream": "weft.as_torch.parts.devices:Stream",
        "current_stream": "weft.as_torch.parts.devices:current_stream"},
    ),
    "torch.cpu.amp": Names(
        at={"GradScaler": "weft.amp:GradScaler", "autocast": "weft.as_torch.parts.devices:cpu_autocast"}
    ),
    "torch.cpu.amp.autocast_mode": Names(also="torch.cpu.amp"),
    "torch.mps": Names(
        false="is_available _is_in_bad_fork",
        zero="device_count current_allocated_memory driver_allocated_memory recommended_max_memory seed",
        nothing="empty_cache manual_seed set_per_process_memory_fraction",
        refused="synchronize get_rng_state set_rng_state compile_shader", instead=_NO_DEVICE,
    ),
    "torch.mps.event": Names(classes="Event"),
    "torch.xpu": Names(
        false="is_available is_initialized is_bf16_supported is_current_stream_capturing _is_in_bad_fork "
        "is_tf32_supported",
        zero="device_count memory_allocated memory_reserved max_memory_allocated max_memory_reserved "
        "current_device "
        "initial_seed seed",
        nothing="empty_cache reset_peak_memory_stats manual_seed manual_seed_all init _lazy_init seed_all "
        "reset_accumulated_memory_stats set_per_process_memory_fraction",
        refused="synchronize set_device get_device_properties get_device_name get_device_capability "
        "mem_get_info "
        "get_rng_state set_rng_state current_stream set_stream get_rng_state_all set_rng_state_all "
        "memory_stats "
        "make_graphed_callables get_arch_list",
        context="device device_of stream StreamContext graph", classes="Stream Event XPUGraph MemPool",
        instead=_NO_DEVICE,
    ),
    "torch.xpu.random": Names(also="torch.xpu"),
    "torch.mtia": Names(
        false="is_available is_initialized is_bf16_supported _is_in_bad_fork",
        zero="device_count memory_allocated max_memory_allocated current_device initial_seed seed",
        nothing="empty_cache reset_peak_memory_stats manual_seed manual_seed_all init _lazy_init seed_all",
        refused="synchronize set_device get_device_properties get_device_capability get_rng_state "
        "set_rng_state "
        "current_stream get_rng_state_all set_rng_state_all memory_stats",
        context="device stream StreamContext", classes="Stream Event", instead=_NO_DEVICE,
    ),
    "torch.accelerator": Names(
        at={
            n: f"weft.as_torch.parts.devices:accelerator_{n}"
            for n in (
                "current_accelerator", "synchronize", "device_count", "current_device_index", "is_available",
                "set_device_index", "memory_allocated", "max_memory_allocated", "memory_reserved",
                "max_memory_reserved", "get_memory_info",
            )
        },
        nothing="empty_cache reset_peak_memory_stats reset_accumulated_memory_stats empty_host_cache",
        context="device_index",
        refused="set_stream current_stream memory_stats",
        instead="weft orders what it computes itself",
    ),
    "torch.backends": Names(values={"fp32_precision": "ieee"}),
    "torch.backends.cudnn": Names(
        false="is_available is_acceptable", none="version", context="flags", nothing="set_flags",
        classes="CudnnModule",
        at={"conv": "weft.as_torch.parts.devices:precision"},
        values={"benchmark": False, "deterministic": True, "enabled": True, "allow_tf32": False,
        "benchmark_limit": 10,
                "fp32_precision": "none"},
    ),
    "torch.backends.cudnn.rnn": Names(values={"fp32_precision": "none"}, refused="get_cudnn_mode"),
    "torch.backends.cuda": Names(
        weft="weft.backends.cuda",
        nothing="enable_flash_sdp enable_mem_efficient_sdp enable_math_sdp enable_cudnn_sdp "
        "preferred_linalg_library "
        "preferred_blas_library allow_fp16_bf16_reduction_math_sdp preferred_rocm_fa_library",
        true="flash_sdp_enabled mem_efficient_sdp_enabled math_sdp_enabled",
        false="is_built cudnn_sdp_enabled can_use_flash_attention can_use_efficient_attention "
        "can_use_cudnn_attention "
        "is_flash_attention_available",
        context="sdp_kernel",
        classes="SDPAParams cuFFTPlanCache",
    ),
    "torch.backends.mps": Names(false="is_available is_built is_macos_or_newer is_macos13_or_newer"),
    "torch.backends.mkldnn": Names(
        false="is_available", context="flags verbose", nothing="set_flags",
        at={"conv": "weft.as_torch.parts.devices:precision", "matmul": "weft.as_torch.parts.devices:precision"},
        values={"enabled": False, "allow_tf32": False, "deterministic": True, "fp32_precision": "none"},
    ),
    "torch.backends.mkl": Names(false="is_available", context="verbose"),
    "torch.backends.openmp": Names(false="is_available"),
    "torch.backends.opt_einsum": Names(false="is_available", none="get_opt_einsum", values={
        "enabled": False, "strategy": None}),
    "torch.backends.nnpack": Names(false="is_available", context="flags", nothing="set_flags"),
    "torch.backends.xnnpack": Names(values={"enabled": False}),
    "torch.backends.quantized": Names(values={"engine": "none", "supported_engines": ["none"]}),
    "torch.backends.cpu": Names(at={"get_cpu_capability": "weft.as_torch.parts.devices:cpu_capability"}),
    "torch.backends.cusparselt": Names(false="is_available", none="version"),
    "torch.backends.miopen": Names(values={"immediate": False}),
    "torch.backends.xeon": Names(),
    "torch.version": Names(
        at={"__version__": "weft.as_torch.parts.version:TORCH_VERSION"},
        values={"cuda": None, "hip": None, "xpu": None, "rocm": None, "debug": False, "git_version": "Unknown"},
    ),
}  # fmt: skip
"""Paths of devices and of the switches of their libraries."""
