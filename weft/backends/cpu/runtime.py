"""The CPU runtime of one process: native code loaded, threads started, memory pool opened.

runtime = open_runtime()
code = load_object(kernel_bytes, ["kernel_0"], runtime.symbols)
plan = runtime.plan([Instruction(code.address("kernel_0"), (0, 1, 2))], externals=3, keep=code)
plan.run([x.address, y.address, out.address])
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence

from weft.lazy_dataclass import dataclass

from . import direct, half
from .allocator import Allocator
from .direct import DirectCalls
from .machine import Machine, host
from .native import EXPORTS, runtime_ir
from .objects import Loaded, load_object
from .pool import Pool, PoolFunctions, guard
from .runner import NativePlan, RunnerFunctions
from .targets import Optimization, Target

Builder = Callable[[str, Target, Optimization], bytes]
"""IR text, target, effort -> object file, as `compile_ir` does it. A disk cache wraps that in one of these."""

# The text is written as it should run, and LLVM's pipeline would take as long again as its code generator.
OPTIMIZATION = Optimization(level=0)


@dataclass(frozen=True, slots=True, eq=False)
class Runtime:
    """The parts that the cpu backend runs on. `symbols` are the addresses that generated objects import."""

    machine: Machine
    pool: Pool
    runner: RunnerFunctions
    allocator: Allocator
    symbols: dict[str, int]
    code: Loaded
    direct: DirectCalls | None

    def plan(
        self,
        instructions: Sequence[tuple[int, tuple[int, ...]]],
        pointers: Sequence[int] = (),
        *,
        externals: int = 0,
        variables: int = 0,
        keep: object = None,
    ) -> NativePlan:
        """A NativePlan on this runtime; see there for the arguments."""
        return NativePlan(
            self.runner,
            self.pool,
            instructions,
            pointers,
            externals=externals,
            variables=variables,
            direct=self.direct,
            keep=(self, keep),
        )

    def set_threads(self, count: int) -> None:
        """Set the number of threads that parallel loops use from now on, their caller included."""
        self.pool.set_threads(count)


def compiled(text: str, target: Target, optimization: Optimization) -> bytes:
    """`compile_ir`, with LLVM loaded when it is called."""
    from .llvm import compile_ir

    return compile_ir(text, target, optimization)


def load_runtime(machine: Machine, build: Builder = compiled, *, futex: bool = True) -> Runtime:
    """A runtime of its own, single-threaded until `set_threads`. `build` may answer from a cache.

    Its code is kept until the process ends, which calls it then and when it forks.
    """
    native = build(native_text(machine, futex), machine.target, OPTIMIZATION)
    imports = _system_symbols() | (direct.symbols() if direct.AVAILABLE else {})
    code = load_object(native, (*EXPORTS, *(["weft_direct"] if direct.AVAILABLE else [])), imports)
    at = code.address
    pool = Pool(PoolFunctions(at("weft_worker"), at("weft_resize"), at("weft_reset"), code), machine.cores)
    guard(pool)
    runner = RunnerFunctions(
        at("weft_run_plan"), at("weft_run_timed"), at("weft_copy"), at("weft_copy_variable")
    )
    allocator = Allocator(idle_limit=machine.memory_bytes // 4)
    calls = DirectCalls(at("weft_direct")) if direct.AVAILABLE else None
    symbols = {name: at(name) for name in ("weft_parallel", *half.EXPORTS)}
    return Runtime(machine, pool, runner, allocator, symbols, code, calls)


def native_text(machine: Machine, futex: bool = True) -> str:
    """LLVM IR of the runtime for a machine's system."""
    return runtime_ir(machine.target.triple, futex=futex, python=direct.AVAILABLE)


_opening = threading.Lock()
_process_runtime: list[Runtime] = []


def open_runtime(
    build: Builder = compiled, threads: int | None = None, machine: Machine | None = None
) -> Runtime:
    """The process' one runtime; the first call opens it, and only its arguments count.

    `threads` defaults to one per usable physical core, `machine` to the host as it is.
    """
    with _opening:
        if not _process_runtime:
            runtime = load_runtime(machine or host(), build)
            runtime.set_threads(runtime.machine.cores if threads is None else threads)
            _process_runtime.append(runtime)
        return _process_runtime[0]


def _system_symbols() -> dict[str, int]:
    """Addresses of system functions that a search of this process may miss."""
    if sys.platform != "win32":
        return {}
    library = ctypes.WinDLL("api-ms-win-core-synch-l1-2-0")
    names = ("WaitOnAddress", "WakeByAddressAll")
    return {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names}
