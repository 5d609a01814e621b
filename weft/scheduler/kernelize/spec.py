"""What kernelizing a graph gives: one specification per kernel, and copies between devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.ir.graph import Node, elements
from weft.ir.index import Int, high
from weft.ir.kernel.algorithm import Algorithm


@dataclass(frozen=True, slots=True, eq=False)
class KernelSpec:
    """One kernel to be.

    `reads` and `writes` are the nodes whose buffers the algorithm's parameters are, in parameter order: first those
    that are only read, then the written ones. A written parameter named in `inplace` must start as a copy of that
    node's buffer (or be that buffer, where nothing needs the old value). `why` says what ended the kernel's fusion at
    each of its inputs and outputs. `flops` (see `count.operations`) and `bytes` (compulsory traffic) may depend on
    runtime sizes.
    """

    algorithm: Algorithm
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    inplace: Mapping[str, Node]
    why: tuple[str, ...]
    flops: Int
    bytes: Int

    @property
    def written(self) -> int:
        """Of `bytes`, those written, at the largest runtime sizes."""
        whole = sum(high(elements(n.shape)) * n.dtype.itemsize for n in self.writes)
        return min(whole, high(self.bytes))


@dataclass(frozen=True, slots=True, eq=False)
class CopySpec:
    """A tensor to be copied to another device: `target` is the COPY node."""

    source: Node
    target: Node


Spec = KernelSpec | CopySpec
