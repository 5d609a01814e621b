"""The names in a function's code, each with the attributes that are read of it.

def f(x):                          paths   global scale
    return x * scale + opt.rate            global opt, attribute rate
                                           local x
    y = x[0]                       loose   rate, of what an expression gives: `x[0].rate`
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache
from types import CodeType
from typing import Any

from weft.lazy_dataclass import dataclass


class Root(Enum):
    """The kind of a name."""

    GLOBAL = auto()
    AROUND = auto()
    """A variable of a function around."""
    LOCAL = auto()


@dataclass(frozen=True, slots=True)
class Path:
    """A name, and the attributes that are read one of the other."""

    root: Root
    name: str
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeNames:
    """The paths in a piece of code; and the attributes that are read of other expressions, or named by texts."""

    paths: frozenset[Path]
    loose: frozenset[str]


_ROOTS = {
    "LOAD_GLOBAL": Root.GLOBAL,
    "LOAD_NAME": Root.GLOBAL,
    "LOAD_DEREF": Root.AROUND,
    "LOAD_CLASSDEREF": Root.AROUND,
    "LOAD_FROM_DICT_OR_DEREF": Root.AROUND,
    "LOAD_FROM_DICT_OR_GLOBALS": Root.GLOBAL,
}
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_SILENT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "RESUME"})


@lru_cache(maxsize=512)
def names_in(code: CodeType) -> CodeNames:
    """The names in a piece of code, and in the functions that are made there."""
    paths, loose = set[Path](), set[str]()
    for found in _found(code):
        if isinstance(found, Path):
            paths.add(found)
        else:
            loose.add(found)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_in(constant)
            loose |= inner.loose
            for path in inner.paths:
                if path.root is Root.GLOBAL or (path.root is Root.AROUND and path.name in code.co_freevars):
                    paths.add(path)
                elif path.root is Root.AROUND and path.name in code.co_varnames:
                    paths.add(Path(Root.LOCAL, path.name, path.attributes))
                else:
                    loose.update(path.attributes)
        elif isinstance(constant, str) and constant.isidentifier():
            loose.add(constant)  # getattr(options, "bias")
    return CodeNames(frozenset(paths), frozenset(loose))


def _found(code: CodeType) -> Iterator[Path | str]:
    """The paths of the code itself, and the attributes of what is no name."""
    now: Path | None = None
    for step in dis.get_instructions(code):
        if step.opname in _SILENT:
            continue
        if step.opname in _ATTRIBUTES:
            if now is None or step.opname == "LOAD_SUPER_ATTR":
                yield step.argval
                now = None
            else:
                now = Path(now.root, now.name, (*now.attributes, step.argval))
            continue
        if now is not None:
            yield now
        now = None
        if step.opname in _ROOTS:
            root = _ROOTS[step.opname]
            is_own = root is Root.AROUND and step.argval not in code.co_freevars
            now = Path(Root.LOCAL if is_own else root, step.argval)
        elif step.opname.startswith("LOAD_FAST"):
            argument: Any = step.argval
            names: tuple[str, ...] = argument if step.opname.count("FAST") > 1 else (argument,)
            yield from (Path(Root.LOCAL, name) for name in names[:-1])
            now = Path(Root.LOCAL, names[-1])
    if now is not None:
        yield now
