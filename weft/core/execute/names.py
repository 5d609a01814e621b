"""Names of a traced function, and their values: its graph is that of another number, list or tensor later.

scale = 2.0                        global: the graph has it as a number
options["bias"] = 1.0              what is inside of an object counts as the function can reach it
batch = next(batches)              another tensor: the function is recorded again

The names are found in the code (code_names.py): globals, variables of functions around it, and attributes of these, in
the function and in those that it reaches by them. Installed packages and the standard library are taken not to change.
What the function sets itself is its own, as in modules.py.
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, cast

from weft.core.args.handle import Handle
from weft.core.execute.code_names import Path, Root, names_in
from weft.lazy_dataclass import dataclass

MAX_ENTRIES = 256
"""Entries of a container that are looked at: of a larger one, how many there are."""

MAX_OBJECTS = 1_000
"""Objects that are looked into for a function."""

MISSING: Any = object()
"""The value of what is not there."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SIMPLE = (*_PLAIN, Handle)
_BUILT_IN = (
    ModuleType,
    FunctionType,
    MethodType,
    BuiltinFunctionType,
    partial,
    tuple,
    list,
    dict,
    set,
    frozenset,
    deque,
)
_CALLED = ("__call__", "forward")
"""Methods that are called without being named."""
_WEFT = __name__.partition(".")[0]


class _Entry:
    """The value at a place: an entry of a dict, a variable of a function around, or an attribute without a dict."""

    __slots__ = ("before", "name", "now", "owner")

    def __init__(self, name: str, owner: Any, now: Callable[[], Any]) -> None:
        self.name, self.owner, self.now = name, owner, now
        self.before = now()


@dataclass(slots=True)
class _Contents:
    """The entries of a container, which is not looked for by name."""

    container: Any
    entries: Sequence[Any] | None
    """None of a large one."""
    count: int

    @classmethod
    def of(cls, container: Any) -> _Contents:
        count = len(container)
        return cls(container, _entries(container) if count <= MAX_ENTRIES else None, count)

    def same(self) -> bool:
        """True where the entries are the same objects, or equal numbers and texts."""
        if len(self.container) != self.count:
            return False
        if self.entries is None:
            return True
        now = _entries(self.container)
        return all(map(operator.is_, now, self.entries)) or all(map(same, now, self.entries))


class Names:
    """The values of a function's names, as they were before the function ran, to be compared with what they are later.

    `noted_elsewhere`: the class of objects whose own attributes somebody else looks at.
    """

    def __init__(self, noted_elsewhere: type | None = None) -> None:
        self._elsewhere = noted_elsewhere
        self._entries: dict[tuple[int, str], _Entry] = {}
        self._contents: dict[int, _Contents] = {}
        self._seen: dict[int, Any] = {}
        """Objects that were looked into; by identity, so they live as long."""
        self._whole: list[Any] = []
        """The user's objects that code has as a whole: it may read any attribute of them."""
        self._functions: set[tuple[FunctionType, int]] = set()
        self._loose: set[str] = set()
        """The attributes that are read of what code does not tell."""
        self._known = 0
        self._todo: list[Any] = []
        self.is_for_once = False
        """True where the function changed what it read, so that the next call is another one."""
        self._checks: list[tuple[Callable[[], Any], Any]] = []

    # in a trace -----------------------------------------------------------------------------------------------------

    def enter(self, called: Any, args: Sequence[Any] = ()) -> None:
        """Look at the names of what is called, as they are now; what was looked at before stays as it was."""
        if isinstance(called, MethodType):
            called, args = called.__func__, (called.__self__, *args)
        while isinstance(called, FunctionType):
            self._enter_function(called, args)
            called = _own(called).get("__wrapped__")
        self._todo += [called, *args]
        self._look()

    def look_into(self, x: Any) -> None:
        """Look at what is inside of an object that the function reads."""
        if not isinstance(x, _SIMPLE):
            self._todo.append(x)
            self._look()

    def _look(self) -> None:
        while self._todo or len(self._loose) != self._known:
            if not self._todo:
                self._known = len(self._loose)
                for x in self._whole[:]:  # more attributes may be read of what was seen before
                    self._look_at_attributes(x)
                continue
            x = self._todo.pop()
            if isinstance(x, _SIMPLE) or id(x) in self._seen or len(self._seen) >= MAX_OBJECTS:
                continue
            self._seen[id(x)] = x
            self._todo += self._inside(x)
            if not isinstance(x, _BUILT_IN) and is_of_the_user(x if isinstance(x, type) else type(x)):
                self._whole.append(x)
                self._look_at_attributes(x)

    def _inside(self, x: Any) -> Iterable[Any]:
        """The objects that are in one."""
        match x:
            case FunctionType():
                self._enter_function(x, ())
            case MethodType():
                self._enter_function(x.__func__, (x.__self__,))
                return (x.__self__,)
            case partial():
                return (cast("Any", x.func), x.args, x.keywords)
            case tuple() | frozenset():
                return cast("tuple[Any, ...]", x)
            case list() | dict() | set() | deque():
                contents = self._contents[id(cast("Any", x))] = _Contents.of(x)
                return contents.entries or ()
            case _:
                pass
        return (_own(x).get("__wrapped__"),)

    def _enter_function(self, f: Any, args: Sequence[Any]) -> None:
        """Note what the names in a function's code stand for; `args` are its first arguments, where they are known."""
        key = f, id(args[0]) if args else 0
        if not isinstance(f, FunctionType) or key in self._functions or is_installed(f.__module__):
            return
        self._functions.add(key)
        code, around = f.__code__, f.__globals__
        cells = dict(zip(code.co_freevars, f.__closure__ or (), strict=False))
        given = dict(zip(code.co_varnames[: code.co_argcount], args, strict=False))
        found = names_in(code)
        self._loose |= found.loose
        for path in found.paths:
            match path.root:
                case Root.GLOBAL if path.name in around or path.name not in vars(builtins):
                    x = self._note((id(around), path.name), around, partial(around.get, path.name, MISSING))
                case Root.AROUND if path.name in cells:
                    cell = cells[path.name]
                    x = self._note((id(cell), path.name), cell, partial(_cell_value, cell))
                case Root.LOCAL if path.name in given:
                    x = given[path.name]
                case _:
                    self._loose.update(path.attributes)
                    continue
            self._follow(x, path)
        self._todo += [f.__defaults__, f.__kwdefaults__]

    def _follow(self, x: Any, path: Path) -> None:
        """Note what a path of attributes leads to from `x` on."""
        for k, name in enumerate(path.attributes):
            if isinstance(x, Handle) or (self._elsewhere is not None and isinstance(x, self._elsewhere)):
                self._loose.update(path.attributes[k:])
                break
            x = self._attribute(x, name)
        if not (path.attributes and isinstance(x, ModuleType | BuiltinFunctionType)):
            self._todo.append(x)

    def _look_at_attributes(self, x: Any) -> None:
        """Note the attributes of an object that is seen as a whole: those that are read of anything."""
        for name in self._loose.union(_CALLED):
            self._todo.append(self._attribute(x, name))

    def _attribute(self, x: Any, name: str) -> Any:
        """An attribute of an object of the user's, noted; None where there is none that may change."""
        if isinstance(x, ModuleType):
            if is_installed(x.__name__):
                return None
            return self._note((id(x), name), x, partial(vars(x).get, name, MISSING))
        kind = x if isinstance(x, type) else type(x)
        if isinstance(x, _BUILT_IN) or not is_of_the_user(kind):
            return None
        own, is_noted = _own(x), self._elsewhere is None or not isinstance(x, self._elsewhere)
        if name in own and not isinstance(x, type):
            return self._note((id(own), name), x, partial(own.get, name, MISSING)) if is_noted else None
        for cls in kind.__mro__:
            if name in vars(cls):
                if own and is_noted and not isinstance(x, type):  # where it may come to have one of its own
                    self._note((id(own), name), x, partial(own.get, name, MISSING))
                return None if is_installed(cls.__module__) else self._of_class(x, cls, name)
        return None

    def _of_class(self, x: Any, cls: type, name: str) -> Any:
        """The attribute of a class, noted where it is a value; the code of a method is looked at."""
        found = vars(cls)[name]
        f = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if isinstance(f, FunctionType):
            self._enter_function(f, () if isinstance(found, staticmethod) else (x,))
            return None
        if isinstance(found, MemberDescriptorType):
            return self._note((id(x), name), x, partial(getattr, x, name, MISSING))
        return self._note((id(cls), name), cls, partial(vars(cls).get, name, MISSING))

    def _note(self, key: tuple[int, str], owner: Any, now: Callable[[], Any]) -> Any:
        """The value there, noted."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key[1], owner, now)
        return entry.before

    def end(self) -> None:
        """The function has returned: numbers that it changed are its own; by a flag or an object it is another one."""
        kept: dict[tuple[int, str], _Entry] = {}
        for key, entry in self._entries.items():
            now = entry.now()
            if same(now, entry.before):
                if not isinstance(now, ModuleType):
                    kept[key] = entry
            elif not is_counter(entry.before, now):
                self.is_for_once = True
        self._entries = kept
        self._checks = [(e.now, e.before) for e in kept.values()]
        self._contents = {key: c for key, c in self._contents.items() if c.same()}
        self._seen.clear()
        self._whole.clear()
        self._functions.clear()
        self._loose.clear()

    # later ----------------------------------------------------------------------------------------------------------

    @property
    def are_none(self) -> bool:
        """True where no name stands for anything that may change."""
        return not (self._entries or self._contents)

    def are_as_they_were(self) -> bool:
        """True where names stand for the same objects, or equal numbers and texts, with the same inside."""
        for now, before in self._checks:
            if now() is not before:
                return self._are_equal()
        return not self._contents or all(map(_Contents.same, self._contents.values()))

    def _are_equal(self) -> bool:
        """The same where some stand for other objects, which are then compared by identity from here on."""
        for entry in self._entries.values():
            now = entry.now()
            if not same(now, entry.before):
                return False
            entry.before = now
        self._checks = [(e.now, e.before) for e in self._entries.values()]
        return all(map(_Contents.same, self._contents.values()))

    def changed(self) -> str:
        """The first name that stands for something else, or whose object has something else inside; empty if none."""
        for entry in self._entries.values():
            if not same(entry.now(), entry.before):
                return entry.name
        for c in self._contents.values():
            if not c.same():
                return f"an entry of a {type(c.container).__name__}"
        return ""

    def are_gone(self) -> bool:
        """True where another object took the place of one: it may well never return."""
        return any(not is_plain(e.before) and not same(e.now(), e.before) for e in self._entries.values())


def _entries(container: Any) -> list[Any]:
    """The entries of a container, in an order of its own."""
    if isinstance(container, dict):
        found = cast("dict[Any, Any]", container)
        return [*found, *found.values()]
    return list(container)


def _cell_value(cell: CellType) -> Any:
    """The value of a variable of a function around, which may not have one yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _own(x: Any) -> dict[str, Any]:
    """The dict of an object, which reading it does not count as read; an empty one where there is none."""
    try:
        return object.__getattribute__(x, "__dict__")
    except AttributeError:
        return {}


@lru_cache(maxsize=4096)
def is_installed(module: str | None) -> bool:
    """True for a module of Python's own, of an installed package or of this one: it is taken not to change."""
    if module is None:
        return True
    package = module.partition(".")[0]
    if package == "__main__":
        return False
    if package in sys.stdlib_module_names or package == _WEFT:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and file.startswith(_installed_folders())


@cache
def _installed_folders() -> tuple[str, ...]:
    """The folders of installed packages and of the standard library."""
    import sysconfig

    return tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")})


@lru_cache(maxsize=4096)
def is_of_the_user(cls: type) -> bool:
    """True for a class that is not installed, or has one below it that is not."""
    return any(not is_installed(c.__module__) for c in cls.__mro__)


def is_counter(before: Any, after: Any) -> bool:
    """True for a number that became another one."""
    return type(before) in (int, float) and type(after) in (int, float) and not same(before, after)


def is_plain(x: Any) -> bool:
    """True for what is compared by value, and what is not there: it may be so again."""
    if isinstance(x, tuple):
        return all(map(is_plain, cast("tuple[Any, ...]", x)))
    return x is MISSING or isinstance(x, _PLAIN)


def same(a: Any, b: Any) -> bool:
    """True for the same object, and for equal numbers, texts and tuples of such."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        pairs = cast("tuple[Any, ...]", a), cast("tuple[Any, ...]", b)
        return len(pairs[0]) == len(pairs[1]) and all(map(same, *pairs))
    return isinstance(a, _PLAIN) and repr(a) == repr(b)  # by text: NaN is itself, and 0.0 is not -0.0
