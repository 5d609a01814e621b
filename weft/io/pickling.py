"""Pickles written without importing what they name: torch's functions need not be there to be written down.

Protocol 2, which is what torch writes. Containers, numbers and texts are written as Python does; other objects as they
say themselves (`__reduce_ex__`), except those for which `special` gives the bytes: tensors, whose places in the file
are known only when all have been met, so that what is given for them may be filled in later.
"""
# Tests: tests/io/test_torch_files.py

from __future__ import annotations

import copyreg
import functools
import pickle
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast

from weft.errors import ArgumentError

Chunk: TypeAlias = "bytes | Callable[[], bytes]"
"""Bytes of a pickle, or what gives them at the end. They leave one object on the stack."""

_BATCH = 1000  # items that are set at once, as Python does


class Pickler:
    """Writes one object. `special` gives the chunk of an object that is not written as Python would, else None."""

    def __init__(self, special: Callable[[Any], Chunk | None]) -> None:
        self.special = special
        self.chunks: list[Chunk] = [b"\x80\x02"]
        self.memo: dict[int, int] = {}
        self.texts: dict[str, int] = {}
        self.kept: list[Any] = []  # what is known by identity has to live
        self.count = 0
        self.around: list[str] = []

    def save_all(self, x: Any) -> None:
        """Go through the object. ArgumentError, saying where it stands, for what cannot be written."""
        try:
            self.save(x)
        except RecursionError:
            raise ArgumentError("save: the object is nested too deeply") from None

    def finished(self) -> bytes:
        """The pickle, once all that is filled in later is known."""
        return b"".join([c if isinstance(c, bytes) else c() for c in self.chunks]) + b"."

    def place(self) -> str:
        """A phrase for the place of the object that is written."""
        return f"the entry {'.'.join(self.around)!r}" if self.around else "the object"

    def put(self, x: Any) -> None:
        """Remember the object that was written."""
        self.memo[id(x)] = self.count
        self.kept.append(x)
        self._number(b"q", b"r", self.count)
        self.count += 1

    def _number(self, short: bytes, long: bytes, n: int) -> None:
        self.chunks.append(short + bytes((n,)) if n < 256 else long + struct.pack("<I", n))

    def save(self, x: Any) -> None:
        """Write an object."""
        kind = cast("type[Any]", type(x))
        plain = _PLAIN.get(kind)
        if plain is not None:
            self.chunks.append(plain(x))
            return
        if kind is str:
            self._text(x)
            return
        known = self.memo.get(id(x))
        if known is not None:
            self._number(b"h", b"j", known)
            return
        chunk = self.special(x)
        if chunk is not None:
            self.chunks.append(chunk)
            self.put(x)
            return
        own = _OWN.get(kind)
        if own is not None:
            own(self, x)
        elif issubclass(kind, type) or kind in _FUNCTIONS:
            self._global(x)
        else:
            self._reduced(x)

    def _text(self, x: str) -> None:
        known = self.texts.get(x)
        if known is not None:
            self._number(b"h", b"j", known)
            return
        data = x.encode("utf-8", "surrogatepass")
        self.chunks.append(b"X" + struct.pack("<I", len(data)) + data)
        self.texts[x] = self.count
        self.put(x)

    def _entry(self, key: object, x: Any) -> None:
        self.around.append(str(key))
        self.save(x)
        self.around.pop()

    def plain_tuple(self, x: tuple[Any, ...]) -> None:
        """A tuple, which may hold itself by way of a list."""
        if not x:
            self.chunks.append(b")")
            return
        few = len(x) < 4
        if not few:
            self.chunks.append(b"(")
        for k, item in enumerate(x):
            self._entry(k, item)
        if id(x) in self.memo:
            self.chunks.append(b"0" * len(x) if few else b"1")
            self._number(b"h", b"j", self.memo[id(x)])
            return
        self.chunks.append(b"\x85\x86\x87"[len(x) - 1 : len(x)] if few else b"t")
        self.put(x)

    def plain_list(self, x: list[Any]) -> None:
        """A list."""
        self.chunks.append(b"]")
        self.put(x)
        self._append(x)

    def plain_dict(self, x: dict[Any, Any]) -> None:
        """A dict."""
        self.chunks.append(b"}")
        self.put(x)
        self._set_items(x.items())

    def _append(self, items: Iterable[Any]) -> None:
        found = list(items)
        for at in range(0, len(found), _BATCH):
            self.chunks.append(b"(")
            for k, item in enumerate(found[at : at + _BATCH], at):
                self._entry(k, item)
            self.chunks.append(b"e")

    def _set_items(self, items: Iterable[Any]) -> None:
        found = list(items)
        for at in range(0, len(found), _BATCH):
            self.chunks.append(b"(")
            for key, value in found[at : at + _BATCH]:
                self.save(key)
                self._entry(key, value)
            self.chunks.append(b"u")

    def call(self, module: str, name: str, args: tuple[Any, ...]) -> None:
        """A call of a function by its name."""
        self.chunks.append(named(module, name))
        self.save(args)
        self.chunks.append(b"R")

    def plain_set(self, x: Any) -> None:
        """A set, by way of a list."""
        self.call("__builtin__", type(x).__name__, (list(x),))
        self.put(x)

    def old_bytes(self, x: bytes) -> None:
        """Bytes, which protocol 2 has as a text."""
        self.call("_codecs", "encode", (x.decode("latin1"), "latin1"))
        self.put(x)

    def byte_array(self, x: bytearray) -> None:
        """Bytes that can be changed."""
        self.call("__builtin__", "bytearray", (x.decode("latin1"), "latin-1"))
        self.put(x)

    def _global(self, x: Any) -> None:
        """A class or a function by its name, under which it has to be found again."""
        name = getattr(x, "__qualname__", None) or x.__name__
        module: str = _whichmodule(x, name)
        found: Any = sys.modules.get(module)
        owner = found
        for part in name.split("."):
            owner, found = found, getattr(found, part, None)
        if found is not x:
            raise ArgumentError(
                f"save: {self.place()} is {x!r:.80}, which is not found by its name ({module}.{name}); save what it "
                "can be made from, such as a state_dict"
            )
        if "." in name:
            self.call("__builtin__", "getattr", (owner, name.rpartition(".")[2]))
        else:
            self.chunks.append(named("__builtin__" if module == "builtins" else module, name))
        self.put(x)

    def _reduced(self, x: Any) -> None:
        """An object as it says how it is made."""
        reduce = copyreg.dispatch_table.get(cast("type[Any]", type(x)))
        try:
            form: Any = reduce(x) if reduce is not None else x.__reduce_ex__(2)
        except (TypeError, pickle.PicklingError) as error:
            raise ArgumentError(
                f"save: {self.place()} is a {type(x).__name__}, which cannot be written ({error}); save its "
                "state_dict, or what it can be made from"
            ) from error
        if isinstance(form, str):
            self._global(x)
            return
        function, args, *rest = form
        state, items, pairs = (*rest, None, None, None)[:3]
        if getattr(function, "__name__", "") == "__newobj_ex__":
            cls, positional, names = args
            function, args = functools.partial(cls.__new__, cls, *positional, **names), tuple[Any, ...]()
        if getattr(function, "__name__", "") == "__newobj__":
            self.save(args[0])
            self.save(tuple(args[1:]))
            self.chunks.append(b"\x81")
        else:
            self.save(function)
            self.save(args)
            self.chunks.append(b"R")
        if id(x) in self.memo:  # it holds itself
            self.chunks.append(b"0")
            self._number(b"h", b"j", self.memo[id(x)])
            return
        self.put(x)
        if items is not None:
            self._append(items)
        if pairs is not None:
            self._set_items(pairs)
        if state is not None:
            self.save(state)
            self.chunks.append(b"b")


_whichmodule: Callable[[Any, str], str] = vars(pickle)["whichmodule"]  # where a class or function is found


def named(module: str, name: str) -> bytes:
    """A class or function by its name."""
    return f"c{module}\n{name}\n".encode()


def integer(n: int) -> bytes:
    """A number."""
    if 0 <= n < 256:
        return b"K" + bytes((n,))
    if 0 <= n < 1 << 16:
        return b"M" + struct.pack("<H", n)
    if -(1 << 31) <= n < 1 << 31:
        return b"J" + struct.pack("<i", n)
    data = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return (
        b"\x8a" + bytes((len(data),)) if len(data) < 256 else b"\x8b" + struct.pack("<i", len(data))
    ) + data


def text(x: str) -> bytes:
    """A text, which is not remembered."""
    data = x.encode()
    return b"X" + struct.pack("<I", len(data)) + data


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda x: b"N",
    bool: lambda x: b"\x88" if x else b"\x89",
    int: integer,
    float: lambda x: b"G" + struct.pack(">d", x),
}
_OWN: dict[type, Callable[[Pickler, Any], None]] = {
    tuple: Pickler.plain_tuple, list: Pickler.plain_list, dict: Pickler.plain_dict, set: Pickler.plain_set,
    frozenset: Pickler.plain_set, bytes: Pickler.old_bytes, bytearray: Pickler.byte_array,
}  # fmt: skip
_FUNCTIONS = frozenset({type(lambda: 0), type(len)})
