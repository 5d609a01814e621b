"""Object files in this process: linked here where they are simple, as all of weft's are, else by LLVM."""
# Tests: tests/backends/cpu/test_elf.py, tests/backends/cpu/test_llvm.py

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from . import elf


class Loaded(Protocol):
    """Object code in this process. Its addresses hold until `release`, or until this object is dropped."""

    def address(self, symbol: str) -> int:
        """The address of an exported symbol. KeyError for one not named when loading, LLVMError after `release`."""
        ...

    def release(self) -> None:
        """Unmap the code now. Calling into it afterwards is undefined."""
        ...


def load_object(data: bytes, exports: Sequence[str], imports: Mapping[str, int] | None = None) -> Loaded:
    """Link one object file into this process; see `load_objects`."""
    return load_objects((data,), exports, imports)


def load_objects(
    objects: Iterable[bytes], exports: Sequence[str], imports: Mapping[str, int] | None = None
) -> Loaded:
    """Link object files, as one library, into this process.

    `exports` are the symbols whose addresses are wanted. `imports` gives addresses for undefined symbols; what
    it lacks is looked for among the libraries of this process (memcpy, memset ...). Raises LLVMError where a
    symbol is missing or the bytes are no object file for this machine, CodeMemoryError where there is no memory.
    """
    (made,) = load_libraries([(tuple(objects), exports)], imports)
    return made


def load_libraries(
    libraries: Sequence[tuple[Sequence[bytes], Sequence[str]]], imports: Mapping[str, int] | None = None
) -> Sequence[Loaded]:
    """Link several libraries into this process, each of object files, with its exports; see `load_objects`."""
    if elf.AVAILABLE:
        try:
            return elf.link_all(libraries, imports or {})
        except elf.UnsupportedObjectError as error:
            from weft.logs import logger

            log = logger(__name__)
            log.debug("LLVM links an object: %s", error)  # and says what is wrong with it, if anything is
    if len(libraries) > 1:
        return [load_objects(objects, exports, imports) for objects, exports in libraries]
    from . import llvm

    return [llvm.link(objects, exports, imports or {}) for objects, exports in libraries]
