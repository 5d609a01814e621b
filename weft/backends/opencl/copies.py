"""Copies of boxes on a queue: between buffers, or from the host's memory, which is kept until they are done."""
# Tests: tests/backends/opencl/test_blocks.py, tests/scheduler/parts/test_plan.py

from __future__ import annotations

from typing import Any

import numpy as np

from weft.backends.boxes import BoxCopy, Place
from weft.backends.protocol import Device, Memory
from weft.backends.synchronous import SynchronousQueue

from .driver import pyopencl


def host_bytes(origin: Device, source: Memory) -> np.ndarray[Any, Any] | None:
    """The bytes of a memory where they are the host's, and there already, whoever wrote them; else None. The array
    keeps the memory alive."""
    if not (origin.info.host_memory and isinstance(origin.queue(0), SynchronousQueue)):
        return None
    return np.frombuffer(origin.read(source, source.nbytes), np.uint8)


def enqueue(queue: Any, target: Any, source: Any, copy: BoxCopy) -> list[Any]:
    """Start the copy of a box from a buffer, or an array of bytes, into a buffer; the events of its pieces."""
    return [_piece(queue, target, source, piece) for piece in _pieces(copy)]


def _pieces(copy: BoxCopy) -> list[BoxCopy]:
    """The copies of at most two axes of runs, of which the outer one is a multiple of the inner: what there are
    commands for."""
    outer = len(copy.counts) - 1
    if outer >= 1 and all(
        p.strides[-2] % p.strides[-1] == 0 and p.strides[-2] >= copy.counts[-1] * p.strides[-1]
        for p in (copy.source, copy.target)
    ):
        outer -= 1
    if outer <= 0:
        return [copy]
    inner = copy.counts[outer:]
    places: list[BoxCopy] = []
    for at in np.ndindex(copy.counts[:outer]):
        source, target = (
            Place(
                p.offset + sum(k * s for k, s in zip(at, p.strides[:outer], strict=True)), p.strides[outer:]
            )
            for p in (copy.source, copy.target)
        )
        places.append(BoxCopy(inner, copy.run_bytes, source, target))
    return places


def _piece(queue: Any, target: Any, source: Any, copy: BoxCopy) -> Any:
    cl = pyopencl()
    on_host = isinstance(source, np.ndarray)
    if not copy.counts:
        start, nbytes = copy.source.offset, copy.run_bytes
        if on_host:
            return cl.enqueue_copy(
                queue,
                target,
                source[start : start + nbytes],
                dst_offset=copy.target.offset,
                is_blocking=False,
            )
        return cl.enqueue_copy(
            queue, target, source, src_offset=start, dst_offset=copy.target.offset, byte_count=nbytes
        )
    rows = copy.counts[::-1]
    region = (copy.run_bytes, *rows, *(1,) * (2 - len(rows)))
    origins = (copy.source.offset, 0, 0), (copy.target.offset, 0, 0)
    pitches = tuple(copy.source.strides[::-1]), tuple(copy.target.strides[::-1])
    if on_host:
        return cl.enqueue_copy(
            queue, target, source, is_blocking=False, region=region, host_origin=origins[0],
            buffer_origin=origins[1], host_pitches=pitches[0], buffer_pitches=pitches[1],
        )  # fmt: skip
    return cl.enqueue_copy(
        queue, target, source, region=region, src_origin=origins[0], dst_origin=origins[1],
        src_pitches=pitches[0], dst_pitches=pitches[1],
    )  # fmt: skip
