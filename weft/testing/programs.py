"""A random program in a form that prints, shrinks, and builds on any device: leaves, steps, outputs."""
# Tests: tests/testing/test_strategies.py

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from weft.ir import graph
from weft.ir.dtypes import DType, from_numpy
from weft.ir.graph import Attrs, Fill, Node, Shape, Target
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

Array: TypeAlias = np.ndarray[Any, Any]
LeafMaker: TypeAlias = Callable[[Array], Node]

HERE = {"home": "cpu:0", "away": "dummy:0"}


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One op. `inputs` number earlier values: leaves first, then steps."""

    op: Op
    inputs: tuple[int, ...] = ()
    attrs: Attrs = None
    shape: Shape | None = None
    dtype: DType | None = None

    def apply(self, values: list[Node], devices: Mapping[str, str] = HERE) -> Node:
        """The node of this step on the values before it. A COPY goes to "home" or "away", as `devices` has it."""
        if self.op is Op.CONST:
            assert isinstance(self.attrs, Fill) and self.dtype is not None and self.shape is not None
            return graph.const(self.attrs.value, self.dtype, self.shape)
        if self.op is Op.RANGE:
            assert self.dtype is not None and self.shape is not None
            return graph.arange(self.shape[0], self.dtype)
        inputs = tuple(values[i] for i in self.inputs)
        attrs = Target(devices[self.attrs.device]) if isinstance(self.attrs, Target) else self.attrs
        return graph.apply(self.op, inputs, attrs, self.shape, self.dtype)


@dataclass(frozen=True, slots=True, repr=False)
class GraphProgram:
    """Leaves' values, steps, and the numbers of the values asked for."""

    leaves: tuple[Array, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[int, ...]

    def build(self, leaf: LeafMaker, devices: Mapping[str, str] = HERE) -> list[Node]:
        """The output nodes, with leaves made by `leaf` at home."""
        values = [leaf(a) for a in self.leaves]
        for step in self.steps:
            values.append(step.apply(values, devices))
        return [values[i] for i in self.outputs]

    def __repr__(self) -> str:
        lines: list[str] = []
        for k, a in enumerate(self.leaves):
            text = np.array2string(a.ravel(), threshold=40, separator=", ").replace("\n", "")
            lines.append(f"v{k} = leaf {from_numpy(a.dtype).short}{list(a.shape)} {text}")
        for k, s in enumerate(self.steps, len(self.leaves)):
            args = [f"v{i}" for i in s.inputs]
            args += [repr(x) for x in (s.attrs, s.shape, s.dtype) if x is not None]
            lines.append(f"v{k} = {s.op.symbol}({', '.join(args)})")
        lines.append("return " + ", ".join(f"v{i}" for i in self.outputs))
        return "\n".join(["GraphProgram:", *lines])


def numpy_leaf(array: Array) -> Node:
    """A leaf that only the reference can read: its storage is the array itself."""
    return graph.buffer(array.shape, from_numpy(array.dtype), "cpu:0", array)
