"""An OpenCL device as the scheduler sees it.

A processor is described as the cpu backend describes it, so that it gets the cpu's schedules: one work item per task,
explicit vectors, register tiles, packed panels. Any other device gets blocks of threads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.backends.clike.scalar import NATIVE
from weft.backends.cpu.device import describe as describe_cpu
from weft.backends.cpu.machine import host
from weft.backends.protocol import HOST_PROCESSOR, Bounds, DeviceInfo
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.loops import LoopKind
from weft.ir.ops import Op

from .driver import is_cpu, pyopencl

QUEUES = 4
CPU_LAUNCH_NS = 5_000.0
GPU_LAUNCH_NS = 8_000.0
RESERVED = 8
"""Arguments of a kernel that are reserved for scratch buffers and runtime variables."""
LANES = 64
"""fp32 units of a GPU's compute unit, where nothing else is known."""


def describe(device: Any, index: int, on_cpu: bool | None = None) -> DeviceInfo:
    """The description of device number `index`; as a processor's or not, whatever it is, if `on_cpu` says so."""
    cl = pyopencl()
    has_fma = bool(device.single_fp_config & cl.device_fp_config.FMA)
    missing: set[DType] = set() if device.double_fp_config else {dtypes.float64}
    compute_units, memory_bytes = int(device.max_compute_units), int(device.global_mem_size)
    info = DeviceInfo(
        name=f"opencl:{index}",
        kind="opencl",
        description=f"{device.name.strip()} ({device.platform.name.strip()}), {compute_units} compute units, "
        f"{memory_bytes / 2**30:.1f} GiB",
        cores=compute_units,
        vector_bytes=16,
        vector_registers=255,
        l1_bytes=device.local_mem_size,
        l2_bytes=device.global_mem_cache_size,
        l3_bytes=0,
        memory_bytes=memory_bytes,
        local_bytes=device.local_mem_size,
        bandwidth=2e11,
        flops=2.0 * compute_units * LANES * device.max_clock_frequency * 1e6,
        launch_ns=GPU_LAUNCH_NS,
        task_kind=LoopKind.BLOCK,
        native=NATIVE if has_fma else NATIVE - {Op.FMA},
        dtypes=frozenset(dtypes.DTYPES.values()) - missing,
        warp=32,
        queues=QUEUES,
        bounds=Bounds(
            threads=device.max_work_group_size,
            parameters=max(8, device.max_parameter_size // 8 - RESERVED),
            buffer_bytes=device.max_mem_alloc_size,
        ),
    )
    if not (is_cpu(device) if on_cpu is None else on_cpu):
        return info
    cpu = describe_cpu(host())
    return replace(
        info,
        vector_bytes=min(cpu.vector_bytes, 64),
        vector_registers=cpu.vector_registers,
        l1_bytes=cpu.l1_bytes,
        l1_ways=cpu.l1_ways,
        l2_bytes=cpu.l2_bytes,
        l3_bytes=cpu.l3_bytes,
        bandwidth=cpu.bandwidth,
        flops=cpu.flops,
        launch_ns=CPU_LAUNCH_NS,
        task_kind=LoopKind.PARALLEL,
        warp=1,
        host_memory=True,
        link_bandwidth=cpu.link_bandwidth,
        bounds=replace(info.bounds, threads=1),
        processor=HOST_PROCESSOR,
    )
