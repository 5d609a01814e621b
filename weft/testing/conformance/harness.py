"""Programs on a device under test: compiled, run on arrays, and compared with the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from weft.backends.dummy.interpreter import interpret
from weft.backends.protocol import Code, Commands, Device, Launch, Memory
from weft.ir.dtypes import to_numpy
from weft.ir.index import evaluate
from weft.ir.loops import Program
from weft.ir.loops_verify import verify
from weft.lazy_dataclass import dataclass
from weft.scheduler.lowering import optimized

Array: TypeAlias = np.ndarray[Any, Any]
Arrays: TypeAlias = Mapping[str, Array]

ULP = 4
"""Units in the last place that a function may be off."""


@dataclass(frozen=True, slots=True)
class Harness:
    """One device, and what tests do with it."""

    device: Device

    def put(self, array: Array) -> Memory:
        """A memory that holds the array's bytes."""
        memory = self.device.allocate(array.nbytes)
        if array.nbytes:
            self.device.write(memory, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return memory

    def get(self, memory: Memory, like: Array) -> Array:
        """The bytes of a memory as an array of that shape and dtype: a copy."""
        data = self.device.read(memory, like.nbytes)
        return np.frombuffer(bytes(data), like.dtype).reshape(like.shape)

    def compile(self, programs: Sequence[Program]) -> list[Runnable]:
        """Code for the programs as the scheduler would have it: functions expanded, passes run. Under new names."""
        ready: list[Program] = []
        for k, p in enumerate(programs):
            verify(p)
            ready.append(replace(optimized(p, self.device.info), name=f"{p.name}_{k}"))
        codes, _ = self.device.compile(ready)
        assert len(codes) == len(programs), "compile gives one code per program"
        return [Runnable(self, p, c) for p, c in zip(programs, codes, strict=True)]


@dataclass(frozen=True, slots=True)
class Runnable:
    """A compiled program."""

    harness: Harness
    program: Program
    code: Code

    def run(self, arrays: Arrays, variables: Mapping[str, int] | None = None) -> dict[str, Array]:
        """The arrays of the parameters as the program leaves them."""
        p, device = self.program, self.harness.device
        values = [(variables or {})[v.name] for v in p.variables]
        step = Launch(0, tuple(range(len(p.params))), tuple(range(len(values))))
        plan = device.link([self.code], Commands((step,), len(p.params), (), 0, len(values)))
        memories = [self.harness.put(arrays[b.name]) for b in p.params]
        plan.run(memories, values)
        return {b.name: self.harness.get(m, arrays[b.name]) for b, m in zip(p.params, memories, strict=True)}

    def check(self, arrays: Arrays, variables: Mapping[str, int] | None = None, ulp: float = 0) -> None:
        """Run, and compare every parameter with what the interpreter makes of it."""
        want = {name: a.copy() for name, a in arrays.items()}
        interpret(self.program, want, variables)
        got = self.run(arrays, variables)
        for b in self.program.params:
            wrong = difference(got[b.name], want[b.name], ulp)
            assert wrong is None, f"{self.program.name}: {b.name}{wrong}"


def empty(p: Program, variables: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Arrays for the written parameters of a program, filled with 77."""
    out: dict[str, Array] = {}
    for b in p.params:
        if b.name in p.writes:
            out[b.name] = np.full(int(evaluate(b.size, variables or {})), 77).astype(to_numpy(b.dtype))
    return out


def difference(got: Array, want: Array, ulp: float = 0) -> str | None:
    """The first place where two arrays differ by more than `ulp` units in the last place, None if nowhere.

    All NaN are alike, and zeros of either sign. Infinity is alike to what is as near to the largest number.
    """
    if got.dtype.kind in "iub":
        bad = got != want
    else:
        info = _limits(want.dtype)
        with np.errstate(all="ignore"):
            a, b = got.astype(np.float64), want.astype(np.float64)
            largest = float(info.max)
            size = np.minimum(np.abs(b), largest)
            room = ulp * (float(info.eps) * size + float(info.smallest_subnormal))
            if ulp:  # one rounding decides whether it overflows
                a, b = np.clip(a, -largest, largest), np.clip(b, -largest, largest)
            bad = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= room))
    if not np.any(bad):
        return None
    k = int(np.flatnonzero(bad)[0])
    return f"[{k}] is {got.flat[k]!r}, expected {want.flat[k]!r} ({int(bad.sum())} of {got.size} differ)"


def _limits(dtype: np.dtype[Any]) -> Any:
    import ml_dtypes

    finfo: Any = ml_dtypes.finfo  # has no types
    return finfo(dtype)
