"""torch.distributed and torch.multiprocessing: weft runs in one process, and what needs several refuses."""

from __future__ import annotations

from collections.abc import Mapping

from weft.as_torch.kinds import Names

_ONE = "weft runs in one process: run the program without it"

PROCESSES: Mapping[str, Names] = {
    "torch.distributed": Names(
        weft="weft.distributed",
        refused="init_process_group new_group new_subgroups all_gather all_gather_into_tensor "
        "all_gather_object all_reduce "
        "all_to_all all_to_all_single barrier monitored_barrier broadcast broadcast_object_list "
        "batch_isend_irecv gather "
        "gather_object get_global_rank get_group_rank get_process_group_ranks irecv isend recv reduce "
        "reduce_scatter "
        "reduce_scatter_tensor scatter scatter_object_list send send_object_list recv_object_list "
        "all_reduce_coalesced "
        "init_device_mesh get_node_local_rank split_group",
        nothing="destroy_process_group set_debug_level",
        false="is_mpi_available is_nccl_available is_gloo_available is_ucc_available is_xccl_available "
        "is_torchelastic_launched is_backend_available",
        none="get_backend_config",
        classes="ProcessGroup ProcessGroupNCCL ProcessGroupGloo Store FileStore TCPStore HashStore "
        "PrefixStore P2POp Work Backend "
        "DeviceMesh GradBucket Reducer Logger BuiltinCommHookType ",
        enums={
            "ReduceOp": "SUM PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM AVG", "DebugLevel": "OFF INFO DETAIL",
        },
        at={
            "reduce_op": "torch.distributed:ReduceOp", "group": "weft.as_torch.parts.parallel:group",
            "GroupMember": "weft.as_torch.parts.parallel:group",
            "get_backend": "weft.as_torch.parts.parallel:get_backend",
            "DistError": "weft:WeftError", "DistBackendError": "weft:WeftError",
            "DistNetworkError": "weft:WeftError",
            "DistStoreError": "weft:WeftError",
            "default_pg_timeout": "weft.as_torch.parts.parallel:DEFAULT_TIMEOUT",
        },
        instead=_ONE,
    ),
    "torch.distributed.distributed_c10d": Names(
        also="torch.distributed", refused="_get_default_group _get_process_group_name "
        "_find_pg_by_ranks_and_tag "
        "_resolve_process_group _object_to_tensor _tensor_to_object", instead=_ONE,
        at={"default_pg_timeout": "weft.as_torch.parts.parallel:DEFAULT_TIMEOUT"},
    ),
    "torch.distributed.constants": Names(at={"default_pg_timeout": "weft.as_torch.parts.parallel:DEFAULT_TIMEOUT"}),
    "torch.distributed.device_mesh": Names(
        classes="DeviceMesh", refused="init_device_mesh _get_device_handle", none="_mesh_resources",
        instead=_ONE
    ),
    "torch.distributed.tensor": Names(
        classes="DTensor Placement DeviceMesh",
        records={"Shard": "dim", "Replicate": "", "Partial": "reduce_op"},
        refused="distribute_tensor distribute_module init_device_mesh empty full ones rand randn zeros",
        instead=_ONE,
    ),
    "torch.distributed._tensor": Names(also="torch.distributed.tensor"),
    "torch.distributed._tensor.api": Names(also="torch.distributed.tensor"),
    "torch.distributed._tensor.placement_types": Names(also="torch.distributed.tensor.placement_types"),
    "torch.distributed._tensor.experimental": Names(),
    "torch.distributed.tensor._utils": Names(refused="compute_local_shape_and_global_offset", instead=_ONE),
    "torch.distributed.tensor.placement_types": Names(
        also="torch.distributed.tensor", classes="DTensorSpec TensorMeta",
        records={"_StridedShard": "dim"}, instead=_ONE
    ),
    "torch.distributed.tensor.parallel": Names(
        records=dict.fromkeys(("ColwiseParallel", "RowwiseParallel", "SequenceParallel",
        "PrepareModuleInput", "PrepareModuleOutput"), ""),
        classes="ParallelStyle "
        "PrepareModuleInputOutput",
        refused="parallelize_module", context="loss_parallel", instead=_ONE,
    ),
    "torch.distributed.tensor.parallel.style": Names(also="torch.distributed.tensor.parallel"),
    "torch.distributed.tensor.experimental": Names(
        refused="local_map register_sharding", context="context_parallel implicit_replication", instead=_ONE
    ),
    "torch.distributed.tensor.experimental._attention": Names(
        nothing="set_rotate_method", context="context_parallel", classes="", instead=_ONE
    ),
    "torch.distributed.tensor.device_mesh": Names(also="torch.distributed.device_mesh"),
    "torch.distributed._composable": Names(refused="replicate checkpoint fully_shard", instead=_ONE),
    "torch.distributed._composable.fsdp": Names(also="torch.distributed.fsdp"),
    "torch.distributed._composable.replicate": Names(refused="replicate", instead=_ONE),
    "torch.distributed._functional_collectives": Names(
        classes="AsyncCollectiveTensor",
        refused="all_gather_tensor all_reduce all_to_all_single all_to_all_single_autograd permute_tensor "
        "reduce_scatter_tensor broadcast all_gather_tensor_autograd reduce_scatter_tensor_autograd",
        unchanged="wait_tensor", instead=_ONE,
    ),
    "torch.distributed._shard": Names(classes=""),
    "torch.distributed._shard.api": Names(),
    "torch.distributed._shard.sharded_tensor": Names(classes="ShardedTensor Shard", instead=_ONE),
    "torch.distributed._shard.checkpoint": Names(),
    "torch.distributed._tools": Names(),
    "torch.distributed._symmetric_memory": Names(refused="empty rendezvous enable_symm_mem_for_group",
    instead=_ONE),
    "torch.distributed.algorithms": Names(),
    "torch.distributed.algorithms._checkpoint": Names(),
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper": Names(
        at={n: f"weft.as_torch.parts.checkpoints:{n}" for n in (
            "checkpoint_wrapper", "offload_wrapper", "apply_activation_checkpointing", "CheckpointWrapper")},
        enums={"CheckpointImpl": "REENTRANT NO_REENTRANT"},
    ),
    "torch.distributed.algorithms.ddp_comm_hooks": Names(),
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks": Names(
        refused="allreduce_hook fp16_compress_hook bf16_compress_hook fp16_compress_wrapper "
        "bf16_compress_wrapper",
        instead=_ONE,
    ),
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook": Names(
        refused="powerSGD_hook batched_powerSGD_hook", classes="PowerSGDState", instead=_ONE
    ),
    "torch.distributed.algorithms.join": Names(classes="Join Joinable JoinHook", instead=_ONE),
    "torch.distributed.algorithms.model_averaging.averagers": Names(classes="PeriodicModelAverager",
    instead=_ONE),
    "torch.distributed.autograd": Names(refused="backward get_gradients context", instead=_ONE),
    "torch.distributed.checkpoint": Names(
        classes="FileSystemReader FileSystemWriter StorageReader StorageWriter DefaultLoadPlanner "
        "DefaultSavePlanner "
        "LoadPlanner SavePlanner HuggingFaceStorageReader HuggingFaceStorageWriter",
        refused="load save async_save load_state_dict save_state_dict", instead="weft.save and "
        "weft.io.save_sharded write files",
    ),
    **{
        f"torch.distributed.checkpoint.{n}": Names(also="torch.distributed.checkpoint")
        for n in ("default_planner", "filesystem", "planner", "hf_storage", "optimizer", "stateful", "metadata")
    },
    "torch.distributed.checkpoint.format_utils": Names(
        classes="_EmptyStateDictLoadPlanner BroadcastingTorchSaveReader DynamicMetaLoadPlanner",
        refused="dcp_to_torch_save torch_save_to_dcp", instead=_ONE,
    ),
    "torch.distributed.checkpoint.state_dict": Names(
        records={"StateDictOptions": "full_state_dict cpu_offload"},
        refused="get_model_state_dict get_optimizer_state_dict get_state_dict set_model_state_dict "
        "set_optimizer_state_dict set_state_dict", instead="model.state_dict() is whole in one process",
    ),
    "torch.distributed.checkpoint.state_dict_loader": Names(refused="_load_state_dict load", instead=_ONE),
    "torch.distributed.checkpoint.state_dict_saver": Names(refused="save async_save", instead=_ONE),
    "torch.distributed.checkpoint._consolidate_hf_safetensors": Names(
        refused="consolidate_safetensors_files", instead=_ONE
    ),
    "torch.distributed.elastic": Names(),
    "torch.distributed.elastic.multiprocessing": Names(classes="Std DefaultLogsSpecs", instead=_ONE),
    "torch.distributed.elastic.multiprocessing.errors": Names(
        at={"record": "weft.as_torch.parts.scripting:same", "ChildFailedError": "weft:WeftError"}
    ),
    "torch.distributed.elastic.agent.server.api": Names(classes="WorkerState", instead=_ONE),
    "torch.distributed.elastic.rendezvous": Names(),
    "torch.distributed.elastic.utils": Names(),
    "torch.distributed.fsdp": Names(
        classes="FullyShardedDataParallel FSDPModule FlatParameter UnshardHandle",
        records={
            "FullStateDictConfig": "offload_to_cpu rank0_only",
            "FullOptimStateDictConfig": "offload_to_cpu rank0_only",
            "LocalStateDictConfig": "offload_to_cpu", "LocalOptimStateDictConfig": "offload_to_cpu",
            "ShardedStateDictConfig": "offload_to_cpu", "ShardedOptimStateDictConfig": "offload_to_cpu",
            "StateDictConfig": "offload_to_cpu", "OptimStateDictConfig": "offload_to_cpu",
            "StateDictSettings": "state_dict_type state_dict_config optim_state_dict_config",
            "CPUOffload": "offload_params", "CPUOffloadPolicy": "pin_memory", "OffloadPolicy": "",
            "MixedPrecision": "param_dtype reduce_dtype buffer_dtype",
            "MixedPrecisionPolicy": "param_dtype reduce_dtype output_dtype",
        },
        refused="fully_shard register_fsdp_forward_method", instead=_ONE,
        enums={
            "ShardingStrategy": "FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD _HYBRID_SHARD_ZERO2",
            "BackwardPrefetch": "BACKWARD_PRE BACKWARD_POST",
            "StateDictType": "FULL_STATE_DICT LOCAL_STATE_DICT SHARDED_STATE_DICT",
        },
    ),
    **{
        f"torch.distributed.fsdp.{n}": Names(also="torch.distributed.fsdp")
        for n in ("fully_sharded_data_parallel", "api", "_fully_shard", "_common_utils", "_fsdp_extensions")
    },
    "torch.distributed.fsdp._runtime_utils": Names(nothing="_lazy_init"),
    "torch.distributed.fsdp._traversal_utils": Names(refused="_get_fsdp_handles _get_fsdp_states"),
    "torch.distributed.fsdp.sharded_grad_scaler": Names(at={"ShardedGradScaler": "weft.amp:GradScaler"}),
    "torch.distributed.fsdp.wrap": Names(
        at={n: f"weft.as_torch.parts.parallel:{n}" for n in (
            "always_wrap_policy", "lambda_auto_wrap_policy", "size_based_auto_wrap_policy",
            "transformer_auto_wrap_policy", "ModuleWrapPolicy", "CustomPolicy")},
        unchanged="wrap", context="enable_wrap", refused="_or_policy", instead=_ONE,
    ),
    "torch.distributed.launch": Names(refused="main launch", instead=_ONE),
    "torch.distributed.launcher": Names(classes="elastic_launch", records={"LaunchConfig": "min_nodes "
    "max_nodes nproc_per_node"}, instead=_ONE),
    "torch.distributed.launcher.api": Names(classes="elastic_launch", records={"LaunchConfig": "min_nodes "
    "max_nodes nproc_per_node"}, instead=_ONE),
    "torch.distributed.nn": Names(refused="all_gather all_reduce all_to_all broadcast gather reduce",
    instead=_ONE),
    "torch.distributed.nn.functional": Names(also="torch.distributed.nn"),
    "torch.distributed.optim": Names(
        classes="ZeroRedundancyOptimizer DistributedOptimizer PostLocalSGDOptimizer", instead="use the "
        "optimizer that it wraps"
    ),
    "torch.distributed.pipeline.sync": Names(classes="Pipe", instead=_ONE),
    "torch.distributed.pipelining": Names(
        classes="ScheduleGPipe Schedule1F1B PipelineStage Pipe", refused="pipeline pipe_split",
        enums={"SplitPoint": "BEGINNING END"}, instead=_ONE,
    ),
    "torch.distributed.rpc": Names(
        refused="init_rpc shutdown rpc_sync rpc_async remote", false="is_available", classes="RRef",
        instead=_ONE
    ),
    "torch.distributed.run": Names(refused="get_args_parser run main", instead=_ONE),
    "torch.distributed.utils": Names(refused="_sync_module_states _verify_param_shape_across_processes",
    instead=_ONE),
    "torch.multiprocessing": Names(
        weft="weft.as_torch.parts.processes", first={"spawn": "weft.as_torch.parts.processes:spawn"},
        at={"Tensor": "weft:Tensor"}, classes="",
    ),
    "torch.multiprocessing.spawn": Names(weft="weft.as_torch.parts.processes"),
    "torch.multiprocessing.reductions": Names(nothing="init_reductions", refused="reduce_tensor "
    "rebuild_cuda_tensor"),
    "torch.multiprocessing.queue": Names(at={"Queue": "multiprocessing.queues:Queue"}),
    "torch.multiprocessing.pool": Names(at={"Pool": "multiprocessing.pool:Pool"}),
}  # fmt: skip
"""Paths of several processes."""
