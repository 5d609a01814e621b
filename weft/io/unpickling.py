"""Pickles read without running them: a machine that makes plain values, and what a table of names stands for.

Python's own machine calls whatever a pickle names, makes room for whatever it announces, and follows it into any depth.
This one calls only functions of the table, charges what is copied against a bound, and checks each step. Protocols 0
to 5 but for the few codes that name objects by other means.
Format: the opcodes as Lib/pickletools.py of CPython describes them.
"""
# Tests: tests/io/test_torch_files.py, tests/io/test_malformed.py

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol, cast

from weft.errors import WeftError

_MAX_DEPTH = 100  # of tuples in keys, which are hashed without asking how deep they are
_MAX_PARTS = 10_000  # of such a tuple: one that holds itself twice, and so on, has no end
_FREE = 1 << 20  # bytes that copies may take in any file


class Malformed(ValueError):  # noqa: N818  (what becomes a FileFormatError)
    """A pickle makes no sense; the text says where."""


def shown(x: object) -> str:
    """A few words on something that a file gave: its text could be without end, or ask for what is not there yet."""
    if isinstance(x, str | bytes):
        return repr(x[:80])
    if x is None or isinstance(x, bool | float) or (isinstance(x, int) and x.bit_length() < 200):
        return repr(x)
    if type(x) is tuple and len(cast("tuple[Any, ...]", x)) < 65:
        parts = cast("tuple[Any, ...]", x)
        return f"({', '.join(shown(p) if isinstance(p, int | str) else type(p).__name__ for p in parts)})"
    kind: type[Any] = cast("Any", x).__class__
    return f"a {kind.__name__:.80}"


class Reads(Protocol):
    """A source that a pickle is read from."""

    def read(self, count: int, /) -> bytes:
        """The next bytes, fewer at the end."""
        ...

    def readline(self) -> bytes:
        """The bytes to the next end of a line."""
        ...


_COPIED = (str, bytes, bytearray, list, tuple, dict, set, frozenset, range)


class _Mark:
    """The mark on the stack where the items of a container begin."""


_MARK = _Mark()
_CONSTANTS: dict[int, Any] = {ord("N"): None, 0x88: True, 0x89: False, ord(")"): ()}
_EMPTY: dict[int, Callable[[], Any]] = {ord("]"): list, ord("}"): dict, 0x8F: set}
_NUMBERS = {ord("K"): "<B", ord("M"): "<H", ord("J"): "<i", ord("G"): ">d"}
_LENGTHS: dict[int, tuple[str, str]] = {
    ord("X"): ("<I", "text"), 0x8C: ("<B", "text"), 0x8D: ("<Q", "text"),
    ord("B"): ("<I", "bytes"), ord("C"): ("<B", "bytes"), 0x8E: ("<Q", "bytes"), 0x96: ("<Q", "bytearray"),
    ord("T"): ("<i", "old text"), ord("U"): ("<B", "old text"),
    0x8A: ("<B", "long"), 0x8B: ("<i", "long"),
}  # fmt: skip


class Host(Protocol):
    """The questions of a machine about the names in a pickle."""

    def find(self, module: str, name: str) -> Any:
        """The object that a name stands for; raises for one that is not known."""
        ...

    def persistent(self, saved: Any) -> Any:
        """The object elsewhere in the file that a pickle refers to."""
        ...

    def function(self, found: Any) -> Callable[..., Any] | None:
        """The function to call for what a name stood for; None where that is not to be called."""
        ...

    def is_made(self, kind: type) -> bool:
        """True where objects of a class may be made by its `__new__`."""
        ...

    def build(self, x: Any, state: Any) -> None:
        """Give an object its state; raises where it is to have none."""
        ...


class Machine:
    """Reads one pickle. What is copied may take `bound` bytes."""

    def __init__(self, file: Reads, host: Host, bound: float) -> None:
        self.file, self.host = file, host
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left = bound + _FREE
        self.at = 0

    def load(self) -> Any:
        """The object. `Malformed` for what is none, and what `find`, `persistent` and what is called raise."""
        try:
            while True:
                code = self.take(1)[0]
                if code == ord("."):
                    return self.pop()
                self.step(code)
        except WeftError:
            raise
        except (
            struct.error,
            IndexError,
            KeyError,
            UnicodeError,
            OverflowError,
            TypeError,
            AttributeError,
        ) as error:
            raise Malformed(f"at byte {self.at}: {error or type(error).__name__}") from error
        except Malformed:
            raise
        except ValueError as error:
            if type(error) is ValueError:
                raise Malformed(f"at byte {self.at}: {error}") from error
            raise

    # --- reading

    def take(self, count: int) -> bytes:
        """The next bytes, exactly so many."""
        if count < 0:
            raise Malformed(f"at byte {self.at}: a negative length")
        data = self.file.read(count)
        self.at += count
        if len(data) != count:
            raise Malformed(f"it is cut short: {count:,} bytes are announced after byte {self.at - count}")
        return data

    def line(self) -> bytes:
        """The next bytes to the end of a line, without it."""
        data = self.file.readline()
        self.at += len(data)
        if not data.endswith(b"\n"):
            raise Malformed("it is cut short within a line")
        return data[:-1]

    def unpack(self, kind: str) -> Any:
        """The next number."""
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def pop(self) -> Any:
        """The object on top."""
        x = self.stack.pop()
        if x is _MARK:
            raise Malformed(f"at byte {self.at}: a mark where an object is expected")
        return x

    def top(self) -> Any:
        """The object on top, which stays there."""
        x = self.stack[-1]
        if x is _MARK:
            raise Malformed(f"at byte {self.at}: a mark where an object is expected")
        return x

    def items(self) -> list[Any]:
        """Take the items above the last mark off the stack, and the mark."""
        stack = self.stack
        for k in range(len(stack) - 1, -1, -1):
            if stack[k] is _MARK:
                found = stack[k + 1 :]
                del stack[k:]
                return found
        raise Malformed(f"at byte {self.at}: items without a mark")

    def charge(self, nbytes: int) -> None:
        """Pay for what is copied."""
        self.left -= nbytes
        if self.left < 0:
            raise Malformed("it makes more than a file of its size may; if you trust it, say max_expansion=")

    # --- the codes

    def step(self, code: int) -> None:
        """Execute one code."""
        push = self.stack.append
        if code in _LENGTHS:
            push(self.sized(*_LENGTHS[code]))
        elif code in _NUMBERS:
            push(self.unpack(_NUMBERS[code]))
        elif code in _CONSTANTS:
            push(_CONSTANTS[code])
        elif code in _EMPTY:
            push(_EMPTY[code]())
        elif code in _STEPS:
            _STEPS[code](self)
        else:
            raise Malformed(f"at byte {self.at - 1}: the code {code:#x} is not one of a checkpoint")

    def sized(self, kind: str, what: str) -> Any:
        """A text, bytes or a large number, after its length."""
        data = self.take(self.unpack(kind))
        match what:
            case "text":
                return data.decode("utf-8", "surrogatepass")
            case "old text":
                return data.decode("utf-8")
            case "bytes":
                return data
            case "bytearray":
                return bytearray(data)
            case _:
                return int.from_bytes(data, "little", signed=True)

    def protocol(self) -> None:
        """PROTO."""
        if self.take(1)[0] > 5:
            raise Malformed("it is of a protocol that is not known")

    def frame(self) -> None:
        """FRAME: only says how much to read at once."""
        self.take(8)

    def mark(self) -> None:
        """MARK."""
        self.stack.append(_MARK)

    def drop(self) -> None:
        """POP, also of a mark."""
        self.stack.pop()

    def repeat(self) -> None:
        """DUP."""
        self.stack.append(self.top())

    def old_int(self) -> None:
        """INT: a line of digits, or "00" and "01" for the bools."""
        data = self.line()
        self.stack.append({b"00": False, b"01": True}[data] if data in (b"00", b"01") else _integer(data))

    def old_long(self) -> None:
        """LONG: digits and an "L"."""
        self.stack.append(_integer(self.line().removesuffix(b"L")))

    def old_float(self) -> None:
        """FLOAT."""
        self.stack.append(float(self.line()))

    def old_unicode(self) -> None:
        """UNICODE."""
        self.stack.append(self.line().decode("raw-unicode-escape"))

    def tuple_of(self, count: int) -> None:
        """TUPLE1 to TUPLE3."""
        found = tuple([self.pop() for _ in range(count)][::-1])
        self.stack.append(found)

    def put(self, key: int) -> None:
        """Remember the object on top."""
        if key < 0:
            raise Malformed(f"at byte {self.at}: a negative number of a memory")
        self.memo[key] = self.top()

    def get(self, key: int) -> None:
        """Push what was remembered."""
        self.stack.append(self.memo[key])

    def append(self, items: list[Any]) -> None:
        """Add items to the list on top."""
        target = self.top()
        if not isinstance(target, list) and not hasattr(cast("type[Any]", type(target)), "loads_items"):
            raise Malformed(f"at byte {self.at}: items for a {type(target).__name__}")
        cast("list[Any]", target).extend(items)

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values to the mapping on top."""
        target = self.top()
        if not isinstance(target, dict) and not hasattr(cast("type[Any]", type(target)), "loads_items"):
            raise Malformed(f"at byte {self.at}: entries for a {type(target).__name__}")
        if len(items) % 2:
            raise Malformed(f"at byte {self.at}: a key without a value")
        for k in range(0, len(items), 2):
            _check_key(items[k])
            cast("dict[Any, Any]", target)[items[k]] = items[k + 1]

    def add_items(self, items: list[Any]) -> None:
        """Add items to the set on top."""
        target = self.top()
        if type(target) is not set:
            raise Malformed(f"at byte {self.at}: items for a {type(target).__name__}")
        for x in items:
            _check_key(x)
        cast("set[Any]", target).update(items)

    def whole_dict(self) -> None:
        """DICT."""
        items = self.items()
        self.stack.append({})
        self.set_items(items)

    def frozen(self) -> None:
        """FROZENSET."""
        items = self.items()
        for x in items:
            _check_key(x)
        self.stack.append(frozenset(items))

    def pair(self) -> list[Any]:
        """A key and its value."""
        value = self.pop()
        return [self.pop(), value]

    def named(self) -> None:
        """GLOBAL."""
        module, name = self.line().decode("utf-8"), self.line().decode("utf-8")
        self.stack.append(self.host.find(module, name))

    def named_by_stack(self) -> None:
        """STACK_GLOBAL."""
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise Malformed(f"at byte {self.at}: a name that is no text")
        self.stack.append(self.host.find(module, name))

    def call(self, function: Any, args: Any) -> None:
        """REDUCE."""
        call = self.host.function(function)
        if call is None:
            raise Malformed(f"at byte {self.at}: it would call {shown(function)}")
        if type(args) is not tuple:
            raise Malformed(f"at byte {self.at}: arguments that are a {type(args).__name__}")
        given = cast("tuple[Any, ...]", args)
        self.charge(sum(8 * len(cast("list[Any]", a)) for a in given if isinstance(a, _COPIED)))
        self.stack.append(call(*given))

    def reduce(self) -> None:
        """REDUCE."""
        args = self.pop()
        self.call(self.pop(), args)

    def new(self, with_names: bool) -> None:
        """NEWOBJ, NEWOBJ_EX: as a call of the class without its __init__."""
        kwargs: Any = self.pop() if with_names else {}
        args, cls = self.pop(), self.pop()
        if (
            not isinstance(cls, type)
            or not self.host.is_made(cast("type[Any]", cls))
            or type(args) is not tuple
        ):
            raise Malformed(f"at byte {self.at}: it would make a {shown(cls)}")
        kind = cast("type[Any]", cls)
        self.stack.append(kind.__new__(kind, *cast("tuple[Any, ...]", args), **kwargs))

    def build(self) -> None:
        """BUILD."""
        state = self.pop()
        self.host.build(self.top(), state)

    def stored(self) -> None:
        """BINPERSID."""
        self.stack.append(self.host.persistent(self.pop()))


def _integer(digits: bytes) -> int:
    """A number as Python 2 wrote it. ValueError for more digits than Python takes."""
    return int(digits)


def _check_key(key: object) -> None:
    """`Malformed` for a key that cannot be hashed, or is too deep to be."""
    level = [key]
    for _ in range(_MAX_DEPTH):
        level = [x for t in level if isinstance(t, tuple | frozenset) for x in cast("tuple[Any, ...]", t)]
        if len(level) > _MAX_PARTS:
            raise Malformed("a key in it has too many parts")
        if not level:
            break
    else:
        raise Malformed("a key in it is nested too deeply")
    hash(key)


_STEPS: dict[int, Callable[[Machine], object]] = {
    0x80: Machine.protocol, 0x95: Machine.frame, ord("("): Machine.mark, ord("0"): Machine.drop,
    ord("1"): Machine.items, ord("2"): Machine.repeat,
    ord("I"): Machine.old_int, ord("L"): Machine.old_long, ord("F"): Machine.old_float,
    ord("V"): Machine.old_unicode,
    ord("t"): lambda m: m.stack.append(tuple(m.items())), ord("l"): lambda m: m.stack.append(m.items()),
    0x85: lambda m: m.tuple_of(1), 0x86: lambda m: m.tuple_of(2), 0x87: lambda m: m.tuple_of(3),
    ord("q"): lambda m: m.put(m.take(1)[0]), ord("r"): lambda m: m.put(m.unpack("<I")),
    ord("p"): lambda m: m.put(_integer(m.line())), 0x94: lambda m: m.put(len(m.memo)),
    ord("h"): lambda m: m.get(m.take(1)[0]), ord("j"): lambda m: m.get(m.unpack("<I")),
    ord("g"): lambda m: m.get(_integer(m.line())),
    ord("a"): lambda m: m.append([m.pop()]), ord("e"): lambda m: m.append(m.items()),
    ord("s"): lambda m: m.set_items(m.pair()), ord("u"): lambda m: m.set_items(m.items()),
    ord("d"): Machine.whole_dict, 0x90: lambda m: m.add_items(m.items()), 0x91: Machine.frozen,
    ord("c"): Machine.named, 0x93: Machine.named_by_stack,
    ord("R"): Machine.reduce, 0x81: lambda m: m.new(False), 0x92: lambda m: m.new(True),
    ord("b"): Machine.build, ord("Q"): Machine.stored,
}  # fmt: skip
