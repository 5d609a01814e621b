"""ELF object files of x86-64, linked into this process: no LLVM where compiled code is on disk already.

    code   sections that are not written to, then a slot for each symbol far away:   read and executed
    data   sections that are written to                                              read and written

A slot is an address and a jump to it: objects reach what they call, or load an address from, within 2 GiB of
themselves, and a library may lie anywhere. Source: System V ABI, chapters 4 and 5, and its supplement for AMD64,
section 4.4 (relocation).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from platform import machine
from typing import NamedTuple

from weft.lazy_dataclass import dataclass

from .targets import CodeMemoryError, LLVMError

AVAILABLE = sys.platform == "linux" and machine() == "x86_64" and struct.calcsize("P") == 8
"""True where this process runs such code."""

_HEADER = struct.Struct("<16s2HI3QI6H")
_SECTION = struct.Struct("<2I4Q2I2Q")
_SYMBOL = struct.Struct("<I2BH2Q")
_RELOCATION = struct.Struct("<QIIq")
_INT32, _ADDRESS = struct.Struct("<i"), struct.Struct("<Q")

_IDENTITY = b"\x7fELF\x02\x01"
"""64 bits, the least significant byte first."""
_RELOCATABLE, _X86_64 = 1, 62

# kinds of sections
_PROGRAM, _SYMBOLS, _ADDENDS, _NO_BITS, _UNWINDING = 1, 2, 4, 8, 0x70000001
_HARMLESS = frozenset((0, 2, 3))
"""Kinds that are not loaded: none, symbols, texts."""
_RUN_FIRST_OR_LAST = (b".ctors", b".dtors", b".init", b".fini", b".preinit")
"""Names that sections of functions begin with that whoever loads them is to call."""
_WRITTEN, _LOADED, _THREAD_LOCAL = 1, 2, 0x400

_UNDEFINED, _RESERVED, _ABSOLUTE = 0, 0xFF00, 0xFFF1
_LOCAL, _GLOBAL = 0, 1
_DATA_OR_CODE = frozenset((0, 1, 2, 3))
"""Kinds of symbols: none, object, function, section."""

# kinds of relocation: S the symbol, A the addend, P the place, G the slot
_S, _S_RELATIVE, _CALL, _S_RELATIVE_64 = 1, 2, 4, 24
_G_RELATIVE = frozenset((9, 41, 42))

_JUMP = b"\xff\x25"
"""`jmp *displacement(%rip)`."""
_SLOT = 16
_FROM_JUMP = -(8 + len(_JUMP) + 4)
"""From the end of a slot's jump back to its address."""

_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


class UnsupportedObjectError(ValueError):
    """An object that is damaged, lacks a symbol, or has something in it that is not linked here."""


class _Pages:
    """Memory of linked code, unmapped when nobody has this object any more.

    The end of the process does not unmap it: threads may be in it still, which nobody could wait for.
    """

    __slots__ = ("__weakref__", "_memory")

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():
            self._memory.close()
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._memory))


class LinkedCode:
    """Object code in this process. Its addresses hold until `release`, or until this object is dropped; longer where it
    was linked with others."""

    __slots__ = ("__weakref__", "_addresses", "_pages")

    def __init__(self, pages: _Pages, addresses: Mapping[str, int]) -> None:
        self._pages: _Pages | None = pages
        self._addresses = addresses

    def address(self, symbol: str) -> int:
        """The address of an exported symbol. Raises KeyError for a symbol not named when loading."""
        if self._pages is None:
            raise LLVMError(f"{symbol}: the object has been released")
        return self._addresses[symbol]

    def release(self) -> None:
        """Give up the code now. Calling into it afterwards is undefined."""
        self._pages = None


def link(objects: Iterable[bytes], exports: Sequence[str], imports: Mapping[str, int]) -> LinkedCode:
    """Link object files, as one library, into this process; see `link_all`."""
    (made,) = link_all([(objects, exports)], imports)
    return made


def link_all(
    libraries: Sequence[tuple[Iterable[bytes], Sequence[str]]], imports: Mapping[str, int]
) -> list[LinkedCode]:
    """Link the object files of several libraries, with the symbols that each exports, into this process: for many small
    ones in a third of the time that one after the other takes.

    `imports` gives addresses for undefined symbols; what it lacks is looked for in this process. Raises
    UnsupportedObjectError, and CodeMemoryError where there is no memory, or none that may be executed.
    """
    try:
        read = [[_Image.read(data) for data in objects] for objects, _ in libraries]
    except (struct.error, IndexError, ValueError) as error:
        raise UnsupportedObjectError(f"no object file of x86-64 that is linked here: {error}") from None
    arranged: list[tuple[dict[tuple[int, int], int], int]] = []  # where sections start, and the slots
    end = 0
    for images in read:
        size, starts = _arranged(images, end)
        arranged.append((starts, size))
        end = size + _SLOT * sum(image.slots_at_most for image in images)
    code = _pages(end)
    end = code
    for images, (starts, _) in zip(read, arranged, strict=True):
        end, data_starts = _arranged(images, end, written=True)
        starts |= data_starts
    nbytes = _pages(end)
    if not nbytes or not all(starts for starts, _ in arranged):
        raise UnsupportedObjectError("objects without code")
    try:
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        raise CodeMemoryError(
            f"there is no memory left in this process for {nbytes:,} bytes of code"
        ) from None
    base = _address(memory)
    found: list[dict[str, int]] = []
    try:
        for images, (starts, slots), (_, exports) in zip(read, arranged, libraries, strict=True):
            linker = _Linker(images, memory, base, starts, slots, imports)
            found.append({name: linker.exported(name) for name in exports})
            linker.write()
        _executable(base, code)
    except BaseException:
        memory.close()
        raise
    pages = _Pages(memory)
    return [LinkedCode(pages, addresses) for addresses in found]


class _Section(NamedTuple):
    """A section as its header says. `link`: of symbols, the section of their names; `info`: of relocations, the section
    that they are in."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int

    @property
    def is_loaded(self) -> bool:
        return bool(self.flags & _LOADED) and self.kind != _UNWINDING and self.size > 0


class _Symbol(NamedTuple):
    name: str
    binding: int
    kind: int
    section: int
    value: int


@dataclass(frozen=True, slots=True)
class _Image:
    """An object file: what is loaded of it, its symbols, and (section, offset, kind, symbol, addend) to relocate."""

    data: bytes
    loaded: dict[int, _Section]
    symbols: tuple[_Symbol, ...]
    relocations: tuple[tuple[int, int, int, int, int], ...]

    @property
    def slots_at_most(self) -> int:
        """As many slots as its relocations can need."""
        return len({r[3] for r in self.relocations if r[2] == _CALL or r[2] in _G_RELATIVE})

    @classmethod
    def read(cls, data: bytes) -> _Image:
        """The file's parts. Raises ValueError, struct.error or IndexError where it is not one that is linked here."""
        head = _HEADER.unpack_from(data)
        if not head[0].startswith(_IDENTITY) or head[1:3] != (_RELOCATABLE, _X86_64):
            raise ValueError("it is not such a file")
        at, entry, count = head[6], head[11], head[12]
        if entry != _SECTION.size or at + count * entry > len(data):
            raise ValueError("it is cut off")
        sections = [_Section._make(s) for s in _SECTION.iter_unpack(data[at : at + count * entry])]
        loaded = {k: s for k, s in enumerate(sections) if s.is_loaded}
        names = _bytes(data, sections[int(head[13])])
        for s in loaded.values():
            if names.startswith(_RUN_FIRST_OR_LAST, s.name):
                raise ValueError("it has functions that run first or last")
            if s.kind not in (_PROGRAM, _NO_BITS) or s.flags & _THREAD_LOCAL:
                raise ValueError(f"a section of kind {s.kind:#x}, flags {s.flags:#x}")
            if s.kind == _PROGRAM and s.offset + s.size > len(data):
                raise ValueError("it is cut off")
            if s.alignment > mmap.PAGESIZE or s.alignment & (s.alignment - 1):
                raise ValueError(f"an alignment of {s.alignment} bytes")
        symbols: tuple[_Symbol, ...] = ()
        relocations: list[tuple[int, int, int, int, int]] = []
        for s in sections:
            if s.kind == _SYMBOLS:
                symbols = tuple(_symbols(data, s, sections[s.link]))
            elif s.kind == _ADDENDS:
                if s.info in loaded:
                    relocations += [
                        (s.info, offset, kind, symbol, addend)
                        for offset, kind, symbol, addend in _RELOCATION.iter_unpack(_bytes(data, s))
                    ]
            elif s.kind not in _HARMLESS and s.kind not in (_PROGRAM, _NO_BITS, _UNWINDING):
                raise ValueError(f"a section of kind {s.kind:#x}")
        for k, offset, kind, symbol, _ in relocations:
            width = 8 if kind in (_S, _S_RELATIVE_64) else 4
            if offset + width > loaded[k].size or symbol >= len(symbols):
                raise ValueError("a relocation beyond its section")
        return cls(data, loaded, symbols, tuple(relocations))


def _bytes(data: bytes, s: _Section) -> bytes:
    if s.offset + s.size > len(data):
        raise ValueError("it is cut off")
    return data[s.offset : s.offset + s.size]


def _symbols(data: bytes, s: _Section, names: _Section) -> Iterator[_Symbol]:
    """The symbols of a section."""
    texts = _bytes(data, names)
    for name, info, _, section, value, _ in _SYMBOL.iter_unpack(_bytes(data, s)):
        text = texts[name : texts.index(b"\0", name)].decode() if name else ""
        yield _Symbol(text, info >> 4, info & 15, section, value)


def _arranged(
    images: Sequence[_Image], end: int, *, written: bool = False
) -> tuple[int, dict[tuple[int, int], int]]:
    """The end of the sections side by side from `end` on, and where each starts, by its image and number."""
    starts: dict[tuple[int, int], int] = {}
    for i, image in enumerate(images):
        for k, s in image.loaded.items():
            if bool(s.flags & _WRITTEN) == written:
                starts[i, k] = start = -(-end // max(s.alignment, 1)) * max(s.alignment, 1)
                end = start + s.size
    return -(-end // _SLOT) * _SLOT, starts


def _pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@cache
def _process() -> ctypes.CDLL:
    """The libraries of this process."""
    return ctypes.CDLL(None)


def _executable(base: int, nbytes: int) -> None:
    """Let pages be executed, and not written to any more."""
    if nbytes and _process().mprotect(
        ctypes.c_void_p(base), ctypes.c_size_t(nbytes), mmap.PROT_READ | mmap.PROT_EXEC
    ):
        raise CodeMemoryError(f"the system lets {nbytes:,} bytes of compiled code not be executed")


class _Linker:
    """Images whose sections have their places, and the slots for what is far away."""

    def __init__(
        self,
        images: Sequence[_Image],
        memory: mmap.mmap,
        base: int,
        placed: Mapping[tuple[int, int], int],
        slots: int,
        imports: Mapping[str, int],
    ) -> None:
        self._images, self._memory, self._base, self._placed = images, memory, base, placed
        self._imports = imports
        self._slots: dict[int, int] = {}
        self._next_slot = slots
        self._globals: dict[str, int] = {}
        for i, image in enumerate(images):
            for s in image.symbols:
                if s.binding != _LOCAL and s.section != _UNDEFINED:
                    if s.binding != _GLOBAL or s.name in self._globals:
                        raise UnsupportedObjectError(f"{s.name} is weak, or there are two")
                    self._globals[s.name] = self._defined(i, s)

    def exported(self, name: str) -> int:
        """The address of a symbol that an image defines."""
        if name not in self._globals:
            raise UnsupportedObjectError(f"no object defines {name}")
        return self._globals[name]

    def write(self) -> None:
        """Copy all sections to their places, and relocate them."""
        memory = self._memory
        for (i, k), start in self._placed.items():
            image = self._images[i]
            s = image.loaded[k]
            if s.kind == _PROGRAM:
                memory[start : start + s.size] = image.data[s.offset : s.offset + s.size]
        for i, image in enumerate(self._images):
            known: dict[int, int] = {}
            for k, offset, kind, symbol, addend in image.relocations:
                target = known.get(symbol)
                if target is None:
                    target = known[symbol] = self._resolved(i, image.symbols[symbol])
                self._relocate(self._placed[i, k] + offset, kind, target, addend)

    def _relocate(self, at: int, kind: int, target: int, addend: int) -> None:
        place = self._base + at
        if kind == _S:
            _ADDRESS.pack_into(self._memory, at, (target + addend) % (1 << 64))
            return
        if kind == _S_RELATIVE_64:
            _ADDRESS.pack_into(self._memory, at, (target + addend - place) % (1 << 64))
            return
        if kind in _G_RELATIVE:
            target = self._slot(target)
        elif kind == _CALL:
            if not _LEAST <= target + addend - place <= _MOST:
                target = self._slot(target) + 8
        elif kind != _S_RELATIVE:
            raise UnsupportedObjectError(f"a relocation of kind {kind}")
        distance = target + addend - place
        if not _LEAST <= distance <= _MOST:
            raise UnsupportedObjectError("a relocation that does not reach its symbol")
        _INT32.pack_into(self._memory, at, distance)

    def _slot(self, target: int) -> int:
        """The address of the slot for an address."""
        found = self._slots.get(target)
        if found is None:
            at, self._next_slot = self._next_slot, self._next_slot + _SLOT
            self._memory[at : at + _SLOT] = (
                _ADDRESS.pack(target) + _JUMP + _INT32.pack(_FROM_JUMP) + bytes(_SLOT - 14)
            )
            found = self._slots[target] = self._base + at
        return found

    def _resolved(self, image: int, s: _Symbol) -> int:
        """The address of a symbol that an image reads."""
        if s.section != _UNDEFINED:
            return self._defined(image, s)
        found = self._globals.get(s.name) or self._imports.get(s.name)
        return found or self._of_process(s)

    def _defined(self, image: int, s: _Symbol) -> int:
        if s.kind not in _DATA_OR_CODE:
            raise UnsupportedObjectError(f"{s.name} is a symbol of kind {s.kind}")
        if s.section == _ABSOLUTE:
            return s.value
        start = self._placed.get((image, s.section))
        if s.section >= _RESERVED or start is None or s.value > self._images[image].loaded[s.section].size:
            raise UnsupportedObjectError(f"{s.name} is in no section that is loaded")
        return self._base + start + s.value

    def _of_process(self, s: _Symbol) -> int:
        """The address of a symbol of the libraries of this process (memcpy, memset ...)."""
        if s.binding != _GLOBAL or not s.name:
            raise UnsupportedObjectError(f"{s.name!r} is not defined")
        try:
            return ctypes.cast(_process()[s.name], ctypes.c_void_p).value or 0
        except AttributeError:
            raise UnsupportedObjectError(f"{s.name} is not defined") from None
