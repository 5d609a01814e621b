"""Targets of compiled code, how much it is optimized, and what compiling or loading it raises, or asks for first."""
# Tests: tests/backends/cpu/test_llvm.py

from __future__ import annotations

import mmap

from weft.lazy_dataclass import dataclass


class LLVMError(RuntimeError):
    """LLVM refused the text, the module or the object; the message is LLVM's own."""


class CodeMemoryError(MemoryError):
    """There is no memory to compile a text, or to hold the code of an object."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of code. `cpu` and `features` are LLVM's names, e.g. "znver4" and "+avx2,-avx512f"."""

    triple: str
    cpu: str = ""
    features: str = ""


@dataclass(frozen=True, slots=True)
class Optimization:
    """LLVM's default pipeline at `level` 0..3, with its loop and vector passes on or off.

    `codegen` 0..3 is the effort of instruction selection, scheduling and register allocation.
    """

    level: int = 2
    loop_vectorize: bool = False
    slp_vectorize: bool = False
    unroll: bool = False
    codegen: int = 2


DEFAULT_OPTIMIZATION = Optimization()


def expect_room(nbytes: int, purpose: str) -> None:
    """Refuse work that the system has no memory for: LLVM aborts the process where a `malloc` of its own fails."""
    try:
        mmap.mmap(-1, nbytes).close()
    except OSError:
        raise CodeMemoryError(f"there is no memory left in this process {purpose}") from None
