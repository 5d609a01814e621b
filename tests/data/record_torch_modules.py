"""Writes which of the room's names torch has, beside this file: run it where torch is installed.

python tests/data/record_torch_modules.py
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path

OLDER = {
    "torch": {"is_deterministic", "set_deterministic"}, "torch._C": {"has_cuda", "_has_openmp"},
    "torch.jit.annotations": {"Tensor"}, "torch.jit_internal": {"is_tracing"}, "torch.onnx": {"load"},
    "torch.optim.optimizer": {"params_t"}, "torch.serialization": {"FILE_LIKE"}, "torch.types": {"_symint"},
    "torch.utils.data.dataset": {"T_co"}, "torch.utils.data.sampler": {"T_co"}, "torch.overrides": {"redispatch"},
    "torch.utils.model_zoo": {"HASH_REGEX", "_download_url_to_file", "load_state_dict_from_url", "urlparse"},
    "torch.utils.weak": {"WeakTensorRef"}, "torch.utils.cpp_extension": {"check_compiler_abi_compatibility"},
    "torch.distributed": {"ProcessGroupNCCL"}, "torch.distributed._composable": {"fully_shard"},
    "torch.distributed.tensor.placement_types": {"DTensorSpec", "TensorMeta"}, "torch._dynamo.utils": {"is_compiling"},
    "torch._functorch.vmap": {"vmap"}, "torch._jit_internal": {"is_tracing"}, "torch.multiprocessing": {"Tensor"},
    "torch.onnx.symbolic_opset13": {"reshape"}, "torch.utils.data.datapipes.iter": {"ShufflerIterDataPipe"},
}  # fmt: skip
"""Names of other releases of torch, or of torch for other machines."""


def main() -> None:
    """Write the file."""
    importlib.import_module("torch")
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "torch"}
    as_torch = importlib.import_module("weft.as_torch")
    as_torch.uninstall()
    sys.modules.update(loaded)
    found: dict[str, list[str]] = {}
    for path, names in importlib.import_module("weft.as_torch.tables").TABLE.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                module = importlib.import_module(path)
        except ImportError:
            continue
        if names.listed():
            found[path] = sorted(n for n in names.listed() if hasattr(module, n) or n in OLDER.get(path, ()))
    (Path(__file__).parent / "torch_modules.json").write_text(
        json.dumps(found, indent=0, sort_keys=True) + "\n"
    )


if __name__ == "__main__":
    main()
