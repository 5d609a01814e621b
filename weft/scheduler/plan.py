"""A plan: compiled kernels, and the steps that run them on given memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.backends.protocol import Code, Commands, Device, Executable, Memory
from weft.backends.storage import Storage
from weft.ir.dtypes import DType
from weft.ir.index import Int, Var, evaluate


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What is known of one step: for explanations and profiles. Bytes and flops are for the largest runtime sizes."""

    name: str
    bytes: int
    flops: int
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One result: its dtype and shape; the input whose memory it takes over, if it replaces that input (state)."""

    dtype: DType
    shape: tuple[Int, ...]
    replaces: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything that running a graph of one structure on one device takes."""

    device: Device
    commands: Commands
    codes: tuple[Code, ...]
    outputs: tuple[OutputSpec, ...]
    variables: tuple[Var, ...]
    steps: tuple[KernelInfo, ...]
    executable: Executable

    def run(self, inputs: Sequence[Memory], values: Sequence[int] = ()) -> list[Storage]:
        """Run on the memory of the inputs; the results, in memory of their own."""
        results = self.allocate(inputs, values)
        self.executable.run([*inputs, *(s.memory for s in results)], values)
        return results

    def profile(self, inputs: Sequence[Memory], values: Sequence[int] = ()) -> tuple[list[Storage], list[int]]:
        """Run and wait: the results, and the nanoseconds of each step."""
        results = self.allocate(inputs, values)
        return results, self.executable.run_timed([*inputs, *(s.memory for s in results)], values)

    def allocate(self, inputs: Sequence[Memory], values: Sequence[int]) -> list[Storage]:
        """Memory for the results: new, or that of the input which a result replaces."""
        env = {v.name: x for v, x in zip(self.variables, values, strict=True)} if self.variables else {}
        out: list[Storage] = []
        for spec in self.outputs:
            shape = tuple([int(evaluate(n, env)) for n in spec.shape]) if env else spec.shape
            if spec.replaces is not None:
                memory = inputs[spec.replaces]
            else:
                nbytes = spec.dtype.itemsize
                for n in shape:
                    nbytes *= n  # pyright: ignore[reportAssignmentType]
                memory = self.device.allocate(int(nbytes))  # pyright: ignore[reportArgumentType]
            out.append(Storage(self.device, memory, spec.dtype, shape))  # pyright: ignore[reportArgumentType]
        return out
