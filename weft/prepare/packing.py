"""Basic programs for levels of processors, in the file that comes with weft: see `weft.pack`.

    packed(algorithms, levels)      entries of a pack: a kernel and its image, for each algorithm and level

They are compiled for an ordinary machine of each level, whatever machine this is.
"""
# Tests: tests/test_pack.py

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft import disk_cache
from weft.backends.cpu.compile import compile_parts
from weft.backends.cpu.device import describe, joined, packed_native
from weft.backends.cpu.llvm import compile_ir
from weft.backends.cpu.machine import described
from weft.backends.cpu.runtime import OPTIMIZATION, native_text
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.digest import digest
from weft.scheduler import kernel_cache
from weft.scheduler.disk_cache import image_entry
from weft.scheduler.lowering import program_of

Entry = tuple[tuple[str, str], bytes]
"""An entry's kind and key, and its bytes."""


def packed(algorithms: Sequence[Algorithm], levels: Sequence[str]) -> Iterator[Entry]:
    """The entries of all algorithms, and of the native runtime, for each level."""
    for level in levels:
        machine = described(level)
        text = native_text(machine)
        yield ("native", packed_native(text, level)), compile_ir(text, machine.target, OPTIMIZATION)
        for algorithm in algorithms:
            yield from _entries(algorithm, level)


def _entries(algorithm: Algorithm, level: str) -> Iterator[Entry]:
    """The image of an algorithm, and its record."""
    machine = described(level)
    program, in_place = program_of(algorithm, describe(machine))
    image = joined([data for _, data in compile_parts([program], machine.target)])
    name = disk_cache.digest(image)
    yield ("image", name), image_entry(image, [program.name])
    key = kernel_cache.packed_key(digest(algorithm), level)
    variables = [v.name for v in program.variables]
    yield ("kernel", key), kernel_cache.record(key, name, program.name, variables, in_place)
