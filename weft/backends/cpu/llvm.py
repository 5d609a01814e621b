"""The one door to llvmlite: IR text in; machine code, assembly and callable addresses out.

llvmlite ships no types, so nothing else in the package imports it. Target machines and the JIT live once per
process; llvmlite serializes every call into LLVM by a lock, so all functions here may be used from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from itertools import count
from typing import Any

from weft.ir.forks import awaited

from .targets import DEFAULT_OPTIMIZATION, LLVMError, Optimization, Target, expect_room

LIBRARY_BYTES = 192 << 20
"""Addresses that the library takes, of which a quarter is read."""

expect_room(LIBRARY_BYTES, "to load the compiler")

_llvm: Any = import_module("llvmlite.binding")
_llvm.initialize_native_target()
_llvm.initialize_native_asmprinter()
# A child that was forked while a thread was inside of LLVM would find it half changed, and its lock held for ever.
awaited(_llvm.ffi.lib._lock._lock)  # noqa: SLF001  (only the lock's owner is public)

_library_number = count()


def version() -> str:
    """LLVM's and llvmlite's version, for cache keys."""
    llvm_version = ".".join(str(part) for part in _llvm.llvm_version_info)
    return f"llvm {llvm_version} llvmlite {import_module('llvmlite').__version__}"


def host_target() -> Target:
    """The machine this process runs on, as LLVM detects it."""
    return Target(
        str(_llvm.get_process_triple()),
        str(_llvm.get_host_cpu_name()),
        str(_llvm.get_host_cpu_features().flatten()),
    )


class Module:
    """One LLVM module in a context of its own, so that closing it gives all its memory back.

    A `with` closes it. What an exception's traceback keeps may be finalized in any order, and a module after its
    context crashes.
    """

    __slots__ = ("_context", "_ref")

    def __init__(self, text: str) -> None:
        """Parse and verify `text`. Raises LLVMError with LLVM's message, which names the line.

        Raises CodeMemoryError where this process lacks the memory to compile it.
        """
        expect_room(
            COMPILER_BYTES + COMPILER_BYTES_PER_BYTE * len(text), f"to compile {len(text):,} bytes of text"
        )
        self._context: Any = _llvm.create_context()
        try:
            self._ref: Any = _llvm.parse_assembly(text, self._context)
        except RuntimeError as error:
            raise LLVMError(str(error)) from None
        try:
            self.verify()
        except LLVMError:
            self.close()
            raise

    def close(self) -> None:
        """Give the memory back now; the module cannot be used any more."""
        self._ref.close()
        self._context.close()

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def text(self) -> str:
        """The module as IR text."""
        return str(self._ref)

    def verify(self) -> None:
        """Raises LLVMError where the module is not well formed."""
        try:
            self._ref.verify()
        except RuntimeError as error:
            raise LLVMError(str(error)) from None

    def optimize(self, target: Target, optimization: Optimization = DEFAULT_OPTIMIZATION) -> None:
        """Run LLVM's default pipeline of that level in place."""
        builder = _pass_builder(target, optimization)
        builder.getModulePassManager().run(self._ref, builder)

    def run_passes(self, target: Target, passes: Iterable[str]) -> None:
        """Run just the named passes in place, e.g. ("sroa", "instruction_combine", "new_gvn", "simplify_cfg").

        A name is that of llvmlite's `add_<name>_pass`. Raises LLVMError for an unknown one.
        """
        _manager(tuple(passes)).run(self._ref, _pass_builder(target, DEFAULT_OPTIMIZATION))

    def object(self, target: Target, codegen: int = 2, *, lean: bool = False) -> bytes:
        """A relocatable object file (ELF, Mach-O ...) for `target`.

        `lean` leaves out loop strength reduction and scheduling after register allocation: up to 40 % of the time, and
        of no use to loops that step their own registers on a processor that reorders. And it bounds what is quadratic
        in the accesses of a block, a tenth of the time of a network's kernels.
        """
        machine = _target_machine(target, codegen)
        try:
            with _leaner(lean):
                return bytes(machine.emit_object(self._ref))
        except RuntimeError as error:
            raise LLVMError(str(error)) from None

    def assembly(self, target: Target, codegen: int = 2, *, lean: bool = False) -> str:
        """Assembly text for `target`, as `object` makes it; for NVPTX this is PTX."""
        machine = _target_machine(target, codegen)
        try:
            with _leaner(lean):
                return str(machine.emit_assembly(self._ref))
        except RuntimeError as error:
            raise LLVMError(str(error)) from None


_managers: dict[tuple[str, ...], Any] = {}
"""The pass managers, which one thread uses at a time: a run is one call into LLVM. llvmlite (0.50) frees a manager
but not its passes, 2.5 KiB each time, and leaks 1.4 KiB for every pass builder; one builder for all modules would get
slower with each."""

MANAGERS_KEPT = 8
"""Pass managers kept; weft's own needs are one or two lists of passes."""


def _manager(passes: tuple[str, ...]) -> Any:
    """The pass manager of the named passes. LLVMError for an unknown one."""
    found = _managers.get(passes)
    if found is None:
        manager: Any = _llvm.create_new_module_pass_manager()
        for name in passes:
            add: Callable[[], None] | None = getattr(manager, f"add_{name}_pass", None)
            if add is None:
                raise LLVMError(f"llvmlite offers no pass named {name!r}")
            add()
        if len(_managers) >= MANAGERS_KEPT:
            _managers.clear()
        found = _managers[passes] = manager
    return found


_SKIPPED = (
    ("disable-lsr", "true", "false"),
    ("disable-post-ra", "true", "false"),
    # accesses of one block whose order is looked at pair by pair; LLVM's default is 1,000, squared
    ("dag-maps-huge-region", "256", "1000"),
)
"""LLVM's switches: name, value for lean code, default."""


@contextmanager
def _leaner(on: bool) -> Generator[None]:
    """LLVM has these switches once per process. A thread that compiles meanwhile gets correct code either way."""
    if not on:
        yield
        return
    for name, lean, _ in _SKIPPED:
        _llvm.set_option("weft", f"-{name}={lean}")
    try:
        yield
    finally:
        for name, _, default in _SKIPPED:
            _llvm.set_option("weft", f"-{name}={default}")


def compile_ir(text: str, target: Target, optimization: Optimization = DEFAULT_OPTIMIZATION) -> bytes:
    """IR text -> optimized object file bytes, which `objects.load_object` takes now or in a later process."""
    with Module(text) as module:
        module.optimize(target, optimization)
        return module.object(target, optimization.codegen)


def assembly_of(text: str, target: Target, optimization: Optimization = DEFAULT_OPTIMIZATION) -> str:
    """IR text -> the assembly of what `compile_ir` gives for it."""
    with Module(text) as module:
        module.optimize(target, optimization)
        return module.assembly(target, optimization.codegen)


class Loaded:
    """Object code in this process. Its addresses hold until `release`, or until this object is dropped."""

    __slots__ = ("__weakref__", "_linker", "_tracker")

    def __init__(self, tracker: Any, linker: Any) -> None:
        self._tracker, self._linker = tracker, linker

    def address(self, symbol: str) -> int:
        """The address of an exported symbol. Raises KeyError for a symbol not named when loading."""
        if self._tracker is None:
            raise LLVMError(f"{symbol}: the object has been released")
        return int(self._tracker[symbol])

    def release(self) -> None:
        """Unmap the code now. Calling into it afterwards is undefined."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.close()
        self._linker = None


def link(images: Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int]) -> Loaded:
    """Link object files, as one library, into this process; see `objects.load_objects`."""
    nbytes = sum(map(len, images))
    expect_room(LINKER_BYTES + 2 * nbytes, f"for {nbytes:,} bytes of compiled code")
    library: Any = _llvm.JITLibraryBuilder()
    for data in images:
        library.add_object_img(data)
    for name, address in imports.items():
        library.import_symbol(name, address)
    for name in exports:
        library.export_symbol(name)
    library.add_current_process()
    linker = _linkers.next()
    try:
        return Loaded(library.link(linker, f"weft.{next(_library_number)}"), linker)
    except RuntimeError as error:
        if _NOT_LINKED in str(error):
            # another thread may have taken the room meanwhile
            expect_room(LINKER_BYTES + 2 * nbytes, f"for {nbytes:,} bytes of compiled code")
        raise LLVMError(
            f"{error} (a symbol that the object imports or should export may be missing)"
        ) from None


_NOT_LINKED = "Failed to materialize symbols"

COMPILER_BYTES = 16 << 20
COMPILER_BYTES_PER_BYTE = 32
"""Memory that LLVM may ask for to compile a text, and for each byte of it: 4.8 MiB for 55 KB, 8.6 MiB for 650 KB."""

LINKER_BYTES = 4 << 20
"""Memory that the linker may ask for beside an object's bytes: a linker, pages of each kind of code, and stubs."""


def data_layout(target: Target) -> str:
    """LLVM's description of a target's types and address spaces, which a module for it states."""
    return str(_target_machine(target, DEFAULT_OPTIMIZATION.codegen).target_data)


def _pass_builder(target: Target, optimization: Optimization) -> Any:
    options = _llvm.create_pipeline_tuning_options(optimization.level)
    options.loop_vectorization = optimization.loop_vectorize
    options.loop_interleaving = optimization.loop_vectorize
    options.slp_vectorization = optimization.slp_vectorize
    options.loop_unrolling = optimization.unroll
    return _llvm.create_pass_builder(_target_machine(target, optimization.codegen), options)


@lru_cache(16)
def _target_machine(target: Target, codegen: int) -> Any:
    """Position-independent code in the small model: an object is one slab, and JITLink adds stubs for calls."""
    try:
        chosen = _llvm.Target.from_triple(target.triple)
    except RuntimeError:
        # Not this machine's: have LLVM register every target it was built with, then ask again.
        _llvm.initialize_all_targets()
        _llvm.initialize_all_asmprinters()
        try:
            chosen = _llvm.Target.from_triple(target.triple)
        except RuntimeError as error:
            raise LLVMError(str(error)) from None
    return chosen.create_target_machine(
        cpu=target.cpu, features=target.features, opt=codegen, reloc="pic", codemodel="small", jit=True
    )


class _Linkers:
    """ORC with JITLink: 0.2 ms an object, unloads objects one by one, and refuses a missing symbol politely.

    (MCJIT needs an engine per object to unload it, 1.1 ms, and aborts the process for a missing symbol.)

    ORC never forgets an object wholly, though it is unloaded (9 KiB each, measured with llvmlite 0.50). So another
    takes its place after some objects, in 2 ms; it goes when the last object that it linked does.
    """

    def __init__(self) -> None:
        self._linker: Any = None
        self._count = 0

    def next(self) -> Any:
        """The next object's linker. No lock, which a fork could copy: of two new at once, one is forgotten."""
        linker = self._linker
        if linker is None or self._count >= OBJECTS_PER_LINKER:
            linker = self._linker = _llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
            self._count = 0
        self._count += 1
        return linker


OBJECTS_PER_LINKER = 256
"""Objects linked by one ORC: 2.3 MB is what it remembers of them."""

_linkers = _Linkers()
