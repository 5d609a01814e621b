"""The invocations of a workgroup that make up a subgroup: WGSL does not say, so it is tried out.

Threads combine registers with their neighbours (`weft.ir.loops.Combine`) where every workgroup consists of subgroups of
one size, a power of two, in the order of `local_invocation_index`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .driver import wgpu

_SHADER = """
@group(0) @binding(0) var<storage, read_write> seen: array<vec2<u32>>;
@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) i: u32, @builtin(subgroup_invocation_id) lane: u32,
        @builtin(subgroup_size) size: u32) {
  seen[i] = vec2<u32>(lane, size);
}
"""

WORKGROUPS = (32, 64, 256)
"""Sizes that are tried."""


def sizes(info: Any) -> tuple[int, int]:
    """The least and the largest size that an adapter states; (1, 1) where it states none."""
    least, most = (
        info.get(f"subgroup_{end}_size") or info.get(f"stackgroup_{end}_size") or 1 for end in ("min", "max")
    )
    return int(least), int(most)


def tried(device: Any) -> int:
    """The size of the subgroups that follow one another in workgroups of a device; 1 where they do not."""
    try:
        found = {_size(device, threads) for threads in WORKGROUPS}
    except wgpu().GPUError:  # a feature that is offered and does not work
        return 1
    return found.pop() if len(found) == 1 else 1


def _size(device: Any, threads: int) -> int:
    usage = wgpu().BufferUsage
    buffer = device.create_buffer(size=8 * threads, usage=usage.STORAGE | usage.COPY_SRC)
    module = device.create_shader_module(code=_SHADER.replace("THREADS", str(threads)))
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    resource = {"buffer": buffer, "offset": 0, "size": buffer.size}
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0), entries=[{"binding": 0, "resource": resource}]
    )
    encoder = device.create_command_encoder()
    run = encoder.begin_compute_pass()
    run.set_pipeline(pipeline)
    run.set_bind_group(0, group)
    run.dispatch_workgroups(1)
    run.end()
    device.queue.submit([encoder.finish()])
    lanes, found = np.frombuffer(device.queue.read_buffer(buffer), np.uint32).reshape(-1, 2).T
    size = int(found[0])
    in_order = np.array_equal(lanes, np.arange(threads) % size) and bool((found == size).all())
    return size if in_order and size & (size - 1) == 0 else 1
