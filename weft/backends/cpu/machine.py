"""The host: its instruction set as LLVM names it, its vectors, its cores and its caches.

A `Machine` is data. `host()` measures one; `dataclasses.replace` and `portable` make others, e.g. to generate
AVX2 code on an AVX-512 machine.
"""
# Tests: tests/backends/cpu/test_llvm.py, tests/backends/cpu/test_runtime.py

from __future__ import annotations

import ctypes
import math
import os
import platform
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from weft.lazy_dataclass import dataclass

from .detected import detected
from .targets import Target

_CPU_FOLDER = Path("/sys/devices/system/cpu")
_CGROUP_FOLDER = Path("/sys/fs/cgroup")

_KIB = 1024
_MIB = 1024 * _KIB

# Taken where the system does not tell: what an ordinary desktop core has had at least since about 2015.
_DEFAULT_L1D = 32 * _KIB
_DEFAULT_L1D_WAYS = 8
_DEFAULT_L2 = 512 * _KIB
_DEFAULT_L3 = 8 * _MIB
_DEFAULT_MEMORY = 4 * 1024 * _MIB


@dataclass(frozen=True, slots=True)
class Machine:
    """One shared-memory host as the scheduler and the code generator see it.

    `vector_bytes` is the width to generate for and `vector_registers` how many of them there are. `cores` counts
    the physical cores this process may use, `hardware_threads` the logical ones. `l1d_bytes` and `l2_bytes` are
    per core, `l1d_ways` the lines of one set, `l3_bytes` is one whole instance, which `l3_cores` cores share.
    """

    target: Target
    vector_bytes: int
    vector_registers: int
    cores: int
    hardware_threads: int
    l1d_bytes: int
    l1d_ways: int
    l2_bytes: int
    l3_bytes: int
    l3_cores: int
    memory_bytes: int
    line_bytes: int = 64

    def has(self, feature: str) -> bool:
        """True where the description grants a feature by LLVM's name: `has("avx512bf16")`, `has("f16c")`."""
        return f"+{feature}" in self.target.features.split(",")


@dataclass(frozen=True, slots=True)
class _Level:
    features: str
    vector_bytes: int
    vector_registers: int


# The psABI's levels: https://gitlab.com/x86-psABIs/x86-64-ABI
_X86_V2 = "+cx16,+sahf,+popcnt,+sse3,+ssse3,+sse4.1,+sse4.2"
_X86_V3 = f"{_X86_V2},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe"
_X86_V4 = f"{_X86_V3},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"
_LEVELS = {
    "x86-64": _Level("", 16, 16),
    "x86-64-v2": _Level(_X86_V2, 16, 16),
    "x86-64-v3": _Level(_X86_V3, 32, 16),
    "x86-64-v4": _Level(_X86_V4, 64, 32),
}


@cache
def host() -> Machine:
    """This machine, measured once per process."""
    target = detected().target
    width, registers = vector_shape(target)
    threads = usable_threads()
    return Machine(
        target=target,
        vector_bytes=width,
        vector_registers=registers,
        cores=_physical_cores(threads),
        hardware_threads=len(threads),
        l1d_bytes=_cache_bytes(1, _DEFAULT_L1D),
        l1d_ways=_cache_ways(1, _DEFAULT_L1D_WAYS),
        l2_bytes=_cache_bytes(2, _DEFAULT_L2),
        l3_bytes=_cache_bytes(3, _DEFAULT_L3),
        l3_cores=_cores_sharing(3, threads),
        memory_bytes=_memory_bytes(),
    )


def portable(machine: Machine, level: str) -> Machine:
    """`machine` reduced to one of the psABI levels "x86-64", "x86-64-v2", "-v3" (AVX2), "-v4" (AVX-512).

    Raises ValueError for an unknown level or where `machine` is no x86-64.
    """
    if level not in _LEVELS or not _is_x86(machine.target.triple):
        raise ValueError(
            f"{level!r} is not one of {', '.join(_LEVELS)}, or {machine.target.triple} is not x86-64"
        )
    chosen = _LEVELS[level]
    # LLVM's "x86-64-v4" prefers 256-bit vectors; naming the features on the plain CPU leaves the width to us.
    return replace(
        machine,
        target=Target(machine.target.triple, "x86-64", chosen.features),
        vector_bytes=chosen.vector_bytes,
        vector_registers=chosen.vector_registers,
    )


PACKED_LEVELS = ("x86-64-v4", "x86-64-v3")
"""The levels for which compiled programs may come with weft, the most able first."""


def levels(target: Target) -> tuple[str, ...]:
    """The levels of `PACKED_LEVELS` whose code a target runs, with vectors no wider than it uses."""
    if not _is_x86(target.triple):
        return ()
    features = set(target.features.split(","))
    width, _ = vector_shape(target)
    wanted = {name: _LEVELS[name] for name in PACKED_LEVELS}
    return tuple([
        name for name, level in wanted.items()
        if level.vector_bytes <= width and features.issuperset(level.features.split(","))
    ])  # fmt: skip


def described(level: str) -> Machine:
    """An ordinary machine of a level, for which programs are scheduled that others run.

    Raises ValueError as `portable` does.
    """
    common = Machine(
        target=detected().target,
        vector_bytes=0,
        vector_registers=0,
        cores=8,
        hardware_threads=16,
        l1d_bytes=_DEFAULT_L1D,
        l1d_ways=_DEFAULT_L1D_WAYS,
        l2_bytes=2 * _DEFAULT_L2,
        l3_bytes=4 * _DEFAULT_L3,
        l3_cores=8,
        memory_bytes=4 * _DEFAULT_MEMORY,
    )
    return portable(common, level)


def vector_shape(target: Target) -> tuple[int, int]:
    """(vector bytes, vector registers) that code for `target` should use.

    512-bit vectors wherever AVX-512 is whole (also where the core executes them in two halves: one instruction
    is still decoded for two halves, and there are 32 registers), unless the features ask for 256.
    """
    features = frozenset(target.features.split(","))
    if _is_x86(target.triple):
        whole = {"+avx512f", "+avx512bw", "+avx512dq", "+avx512vl"} <= features
        if whole:
            return (32, 32) if "+prefer-256-bit" in features else (64, 32)
        return (32, 16) if "+avx2" in features else (16, 16)
    # AArch64 Advanced SIMD. SVE's length is not known when code is generated, so it is used as 128 bits.
    return (16, 32)


def usable_threads() -> tuple[int, ...]:
    """Numbers of the logical processors this process may use: its affinity, cut to its cgroup's quota."""
    if sys.platform == "linux":
        allowed = tuple(sorted(os.sched_getaffinity(0)))
    else:
        allowed = tuple(range(os.cpu_count() or 1))
    quota = _cgroup_quota()
    return allowed if quota is None else allowed[: max(1, math.ceil(quota))]


def _is_x86(triple: str) -> bool:
    return triple.startswith(("x86_64", "amd64"))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _cgroup_quota() -> float | None:
    """Processors' worth of time this cgroup (version 2) may use, or None where there is no limit."""
    fields = (_read(_CGROUP_FOLDER / "cpu.max") or "max").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return int(fields[0]) / int(fields[1])


def _physical_cores(threads: tuple[int, ...]) -> int:
    """Distinct cores among the given logical processors."""
    if sys.platform == "darwin":
        return _sysctl("hw.physicalcpu") or len(threads)
    cores = {
        (
            _read(_CPU_FOLDER / f"cpu{thread}/topology/physical_package_id"),
            _read(_CPU_FOLDER / f"cpu{thread}/topology/core_id"),
        )
        for thread in threads
    }
    return len(threads) if any(None in core for core in cores) else len(cores)


def _cache_folder(level: int) -> Path | None:
    """sysfs' folder of the first processor's data (or unified) cache of that level."""
    for folder in sorted((_CPU_FOLDER / "cpu0/cache").glob("index*")):
        if _read(folder / "level") == str(level) and _read(folder / "type") in ("Data", "Unified"):
            return folder
    return None


_MAC_CACHES = {1: "hw.l1dcachesize", 2: "hw.l2cachesize", 3: "hw.l3cachesize"}
_UNITS = {"K": _KIB, "M": _MIB, "G": 1024 * _MIB}


def _cache_bytes(level: int, default: int) -> int:
    if sys.platform == "darwin":
        return _sysctl(_MAC_CACHES[level]) or default
    folder = _cache_folder(level)
    text = _read(folder / "size") if folder else None
    if not text:
        return default
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text)


def _cache_ways(level: int, default: int) -> int:
    """The lines of one set of the first processor's cache of that level."""
    folder = _cache_folder(level) if sys.platform != "darwin" else None
    text = _read(folder / "ways_of_associativity") if folder else None
    return int(text) if text and text.isdecimal() and int(text) else default


def _cores_sharing(level: int, threads: tuple[int, ...]) -> int:
    """The number of our cores that share the first processor's cache of that level."""
    folder = _cache_folder(level)
    shared = _read(folder / "shared_cpu_list") if folder else None
    if not shared:
        return _physical_cores(threads)
    numbers: set[int] = set()
    for part in shared.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return _physical_cores(tuple(thread for thread in threads if thread in numbers) or threads[:1])


def _memory_bytes() -> int:
    """Physical memory, cut to the cgroup's limit."""
    limits = [_DEFAULT_MEMORY]
    if sys.platform == "darwin":
        limits = [_sysctl("hw.memsize") or _DEFAULT_MEMORY]
    elif sys.platform != "win32":
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    cgroup = _read(_CGROUP_FOLDER / "memory.max")
    if cgroup and cgroup.isdigit():
        limits.append(int(cgroup))
    return min(limits)


def _sysctl(name: str) -> int | None:
    """An integer from macOS's sysctl."""
    if platform.system() != "Darwin":
        return None
    from ctypes.util import find_library

    libc = ctypes.CDLL(find_library("c"))
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    failed = libc.sysctlbyname(
        name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return None if failed or value.value <= 0 else value.value
