"""Which frameworks run, with which settings. Each variant is a process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# glibc keeps and recycles large blocks, on huge pages where it may: what an allocator of one's own would do.
_RECYCLING = (
    "glibc.malloc.mmap_threshold=4000000000:glibc.malloc.trim_threshold=8000000000:glibc.malloc.hugetlb=1"
)
_MALLOC = {"GLIBC_TUNABLES": _RECYCLING}
_WIDE = {"XLA_FLAGS": "--xla_cpu_prefer_vector_width=512"}
_UNFUSED = {"XLA_FLAGS": "--xla_disable_hlo_passes=fusion,cpu-instruction-fusion"}


@dataclass(frozen=True, slots=True)
class Variant:
    """A framework's class as "module:name", the packages it needs, and the environment it runs in. `kinds`: the only
    kinds of workloads that it is for, all if empty. `sweep`: it takes part in the sweep of products."""

    name: str
    where: str
    packages: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    kinds: frozenset[str] = frozenset()
    sweep: bool = False

    @property
    def framework(self) -> str:
        """The family: "torch" of "torch-malloc"."""
        return self.name.partition("-")[0]

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [p for p in self.packages if find_spec(p) is None]

    def environ(self, threads: int) -> dict[str, str]:
        """The environment of its process."""
        names = (
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "MKL_NUM_THREADS",
            "NUM_CPU_THREADS",
            "WEFT_NUM_THREADS",
        )
        fixed = {n: str(threads) for n in names}
        fixed |= {"JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}
        own = dict(self.environment)
        if self.framework == "jax" and threads == 1:
            own["XLA_FLAGS"] = f"{own.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
        given = {**os.environ, **fixed, **own}
        given.pop("PYTHONDONTWRITEBYTECODE", None)  # who has installed a package has its bytecode
        return given


def load(where: str, threads: int) -> Any:
    """The framework at "module:name", opened in this process."""
    module, _, name = where.partition(":")
    return getattr(import_module(f"benchmarks.frameworks.{module}"), name)(threads)


_ALL = (
    Variant("weft", "with_weft:Weft", ("weft",), sweep=True),
    # what the rules make of a description with half as wide vectors and registers, and whom that is compared with
    Variant("weft-avx2", "with_weft:Weft", ("weft",), {"WEFT_CPU_LEVEL": "x86-64-v3"}, frozenset({"matmul"})),
    Variant(
        "numpy-avx2", "with_numpy:NumPy", ("numpy",), {"OPENBLAS_CORETYPE": "Haswell"}, frozenset({"matmul"})
    ),
    Variant("numpy", "with_numpy:NumPy", ("numpy",)),
    # OpenBLAS takes some CPUs with AVX-512 for older ones
    Variant("numpy-avx512", "with_numpy:NumPy", ("numpy",), {"OPENBLAS_CORETYPE": "SkylakeX"}, sweep=True),
    Variant("torch", "with_torch:Torch", ("torch",)),
    Variant("torch-malloc", "with_torch:Torch", ("torch",), _MALLOC, sweep=True),
    Variant("torch-onednn", "with_torch:TorchOneDNN", ("torch",), _MALLOC, sweep=True),
    Variant(
        "torch-channels-last",
        "with_torch:TorchChannelsLast",
        ("torch",),
        kinds=frozenset({"inference", "network_step"}),
    ),
    Variant("torch-compile", "with_torch:TorchCompile", ("torch",)),
    Variant("torch-compile-malloc", "with_torch:TorchCompile", ("torch",), _MALLOC),
    Variant("jax", "with_jax:Jax", ("jax",)),
    Variant("jax-v512", "with_jax:Jax", ("jax",), _WIDE),
    Variant("jax-malloc", "with_jax:Jax", ("jax",), {**_MALLOC, **_WIDE}, sweep=True),
    Variant("jax-unfused", "with_jax:JaxUnfused", ("jax",), _UNFUSED, frozenset({"replayed_adds"})),
    Variant("onnxruntime", "with_onnxruntime:OnnxRuntime", ("onnxruntime", "onnx"), sweep=True),
    Variant("openvino", "with_openvino:OpenVino", ("openvino", "onnx"), kinds=frozenset({"inference"})),
)

VARIANTS: dict[str, Variant] = {v.name: v for v in _ALL}

USUAL = (
    "weft", "weft-avx2", "numpy-avx2", "numpy-avx512", "torch-malloc", "torch-onednn", "torch-compile-malloc",
    "jax-v512", "jax-malloc", "jax-unfused", "onnxruntime",
)  # fmt: skip
"""What runs when nothing else is asked for: each framework at its best. The others lose by their allocator."""

QUICK = ("weft", "numpy-avx512", "torch-malloc", "torch-onednn", "jax-malloc", "jax-unfused", "onnxruntime")
"""What runs with --fast: without what compiles for long."""
