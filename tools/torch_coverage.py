"""How much of torch's public names weft has, in torch's place: python tools/torch_coverage.py [--missing] [--record]

For each namespace, the names that apply to dense tensors of real numbers, and how many of them weft offers under the
same name. Names of other things are left out by the table below, each with its reason. The names are torch's own where
it is installed (`--record` writes them to tests/data/torch_names.json), else the recorded ones.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[1] / "tests" / "data" / "torch_names.json"
NAMESPACES = (
    "torch", "torch.Tensor", "torch.nn", "torch.nn.functional", "torch.optim", "torch.linalg", "torch.special",
)  # fmt: skip

# regular expressions for whole names, by the reason for which a name is left out
EXCLUDED: dict[str, str] = {
    "complex numbers": r"complex|polar|imag|.*_?as_complex(_copy)?|view_as_real(_copy)?|cfloat|cdouble|"
    r"chalf|i?stft|eig|"
    r"eigvals|symeig|lobpcg|Complex.*|is_complex_.*",
    "sparse tensors": r".*sparse.*|.*_?coo_.*|.*indices(_copy)?|ccol_.*|crow_.*|row_indices.*|col_indices.*|"
    r"values(_copy)?|"
    r"coalesce|is_coalesced|to_dense|dense_dim|s?spmm|sspaddmm|saddmm|hspmm|smm|dsmm|hsmm|to_mkldnn|SparseAdam",
    "quantized tensors": r".*quant.*|q_.*|qscheme|fbgemm_.*|fused_moving_avg_obs.*|int_repr|Q[A-Z].*|"
    r"choose_qparams.*",
    "nested tensors": r"to_padded_tensor|.*jagged.*",
    "distributed and other processes": r".*[dD]istributed.*|SyncBatchNorm|DataParallel|record_stream|"
    r"share_memory_|is_shared|"
    r"prepare_multiprocessing.*|.*rref.*|RRef.*|thread_safe_generator|fork|wait|Future.*|AwaitType|PyRRef",
    "storages and memory layouts, which weft hides": r".*[sS]torage.*|set_|is_set_to|as_subclass|layout|"
    r"memory_format|"
    r"const_data_ptr|data_ptr|channel_last.*|from_file|empty_permuted|untyped_storage|TypedStorage",
    "other devices' libraries": r"cudnn.*|miopen.*|mkldnn.*|cuda|xpu|ipu|mtia|hpu|is_vulkan.*|"
    r"get_device_module|Stream|Event|"
    r"profiler_.*|DeviceObjType|OutOfMemoryError|AcceleratorError|native_.*|pin_memory|is_pinned",
    "TorchScript, tracing and their types": r".*Type|Script.*|Lite.*|.*Module[A-Z].*|Graph|Node|Block|Value|"
    r"Use|Argument.*|"
    r"AliasDb|Capsule|Code|CompilationUnit|CallStack|ConcreteModule.*|ErrorReport|ExecutionPlan|FatalError|"
    r"FileCheck|"
    r"FunctionSchema|Gradient|IODescriptor|JITException|LockingLogger|Logger.*|NoopLogger|OperatorInfo|"
    r"PyTorchFile.*|"
    r"StaticModule|Tag|ThroughputBenchmark|TracingState|Benchmark.*|AggregationType|import_ir.*|parse_.*|"
    r"merge_type.*|unify_type_list|sym_.*|Sym.*|DispatchKey.*|Exclude.*|DisableTorchFunction.*|classproperty|"
    r"DeepCopyMemoTable|.*Serializ.*|BufferDict|ModuleDict_|Module.*_|while_loop|compiled_with.*|"
    r"vmap_|jit|export|get_file_path|hash_tensor|module_load|torch_function.*",
    "autocast, determinism and debugging switches": r".*autocast.*|GradScaler|.*deterministic.*|.*anomaly.*|"
    r".*warn_always.*|"
    r"set_flush_denormal|.*interop_threads|init_num_threads|.*float32_matmul_precision|clear_autocast_cache|"
    r"is_inference_mode_enabled",
    "superseded in torch itself": r"set_default_tensor_type|.*Tensor(?<!Tensor)|(BFloat16|Bool|Byte|Char|"
    r"Double|Float|Half|"
    r"Int|Long|Short)Tensor|solve|lstsq|symeig|reinforce|storage_type|renorm_norm|norm_except_dim|"
    r"frobenius_norm|nuclear_norm|resize_as_sparse.*|to_dlpack|type_",
    "implementation details that torch exposes": r"batch_norm_.*|_.*|embedding_renorm_|grid_sampler.*|"
    r"affine_grid_generator|"
    r"segment_reduce|slice_inverse|conv_tbc|convolution|rnn_.*|lstm(_cell)?|gru(_cell)?|.*_backward.*|"
    r"max_pool1d_with_indices|.*_with_indices|has_torch_function.*|handle_torch_function|boolean_dispatch|"
    r"assert_int_or_pair|Optional|Callable|TYPE_CHECKING|Any|cast|DType|BroadcastingList\d|"
    r"feature_dropout_?|obj|profiler|autograd_.*|istft|hspmm|GradientEdge|dtype|device|Generator_|"
    r"empty_quantized|adaptive_max_pool._with.*|ScalingType|SwizzleType|scaled_(grouped_)?mm|grouped_mm|"
    r"sdp_kernel",
}  # fmt: skip

MISSING: dict[str, str] = {
    "torch.CompleteArgumentSpec": "TorchScript's",
    "torch.GraphExecutorState": "TorchScript's",
    "torch.ParameterDict": "TorchScript's; the module is nn.ParameterDict",
    "torch.Tensor.map2_": "undocumented: a Python function on three tensors; map_ takes two",
    "torch.nn.Container": "deprecated in torch itself: nn.Sequential",
    "torch.nn.UninitializedParameter": "weft's lazy layers make their parameters at the first call",
    "torch.nn.UninitializedBuffer": "as UninitializedParameter",
    "torch.nn.factory_kwargs": "a helper of torch's modules",
    "torch.special.Tensor": "an import of torch's",
    "torch.optim.swap_in_optimizer_params_and_state": "a helper of torch's module conversion",
}
"""Names that apply and that weft lacks, each with the reason."""


def public(module: Any) -> list[str]:
    """The names of functions and classes that a namespace offers."""
    listed = getattr(module, "__all__", None)
    names = listed if listed and module.__name__ in ("torch.nn", "torch.optim") else dir(module)
    return sorted(
        n
        for n in names
        if not n.startswith("_") and not inspect.ismodule(x := getattr(module, n, None)) and callable(x)
    )


def recorded() -> dict[str, list[str]]:
    """The names of each namespace: from torch, or as recorded."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return json.loads(RECORD.read_text())
    return {name: public(_find(torch, name)) for name in NAMESPACES}


def _find(root: Any, name: str) -> Any:
    if name.endswith("Tensor"):
        return root.Tensor
    for part in name.split(".")[1:]:
        root = getattr(root, part)
    return root


def _room() -> Any:
    """torch as `weft.as_torch` offers it; torch itself, where it is loaded, is put aside and back."""
    aside = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "torch"}
    with importlib.import_module("weft.as_torch").in_place():
        room = importlib.import_module("torch")
        for namespace in NAMESPACES:
            if not namespace.endswith("Tensor"):
                importlib.import_module(namespace)
    sys.modules.update(aside)
    return room


def _has(namespace: Any, name: str) -> bool:
    """Whether weft has it: a stand-in, which says that it is torch's, does not count."""
    found = getattr(namespace, name, None)
    return found is not None and str(getattr(found, "__module__", "")).partition(".")[0] != "torch"


def excluded(name: str) -> str | None:
    """The reason for which a name is left out."""
    return next((reason for reason, pattern in EXCLUDED.items() if re.fullmatch(pattern, name)), None)


def coverage(names: dict[str, list[str]] | None = None) -> dict[str, tuple[list[str], list[str]]]:
    """For each namespace the names that apply, and those of them that weft lacks."""
    out: dict[str, tuple[list[str], list[str]]] = {}
    names, room = names or recorded(), _room()
    for namespace, listed in names.items():
        kept = {"torch": {"solve", "lstsq"}}.get(namespace, set())
        always = (
            {"solve", "lstsq", "cond", "dtype", "RNN", "LSTM", "GRU"} - kept
            if namespace != "torch.Tensor"
            else set()
        )
        apply = [n for n in listed if n in always or not excluded(n)]
        ours = _find(room, namespace)
        out[namespace] = apply, [n for n in apply if not _has(ours, n)]
    return out


def main(args: list[str]) -> None:
    """Print the table."""
    names = recorded()
    if "--record" in args:
        RECORD.write_text(json.dumps(names, indent=0) + "\n")
    have = want = 0
    for namespace, (apply, missing) in coverage(names).items():
        have, want = have + len(apply) - len(missing), want + len(apply)
        share = 100 * (1 - len(missing) / len(apply))
        left = len(names[namespace]) - len(apply)
        sys.stdout.write(
            f"{namespace:20} {len(apply) - len(missing):4} of {len(apply):4}  {share:5.1f} %   ({left} left out)\n"
        )
        if "--missing" in args:
            for name in missing:
                sys.stdout.write(f"    {name}: {MISSING.get(f'{namespace}.{name}', 'no reason is given')}\n")
    sys.stdout.write(f"{'all':20} {have:4} of {want:4}  {100 * have / want:5.1f} %\n")


if __name__ == "__main__":
    main(sys.argv[1:])
