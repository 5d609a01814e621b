"""torch's modules, as objects of their own: what one is asked for is found in the room's table, then in weft.

weft's own modules are never changed by it: what a program sets on a module of torch's stays there.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from weft.as_torch.record import record
from weft.as_torch.tables import TABLE

_ABSENT = object()


class TorchModule(ModuleType):
    """The module of torch's at one path. Names are looked up when first asked for, and kept."""

    def __getattr__(self, name: str) -> Any:
        try:
            found = lookup(self.__name__, name)
        except ImportError:  # another package's, which is not installed
            record.missing[f"{self.__name__}.{name}"] += 1
            raise
        if found is _ABSENT:
            if not name.startswith("__") and not _import_asks():
                record.missing[f"{self.__name__}.{name}"] += 1
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__dict__[name] = found
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it, but for a module whose place is taken: `torch.nn.utils.weight_norm` is the function."""
        if not isinstance(value, TorchModule) or name not in TABLE[self.__name__].first:
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted({*self.__dict__, *offered(self.__name__)})


def lookup(path: str, name: str) -> Any:
    """Look up a name in torch's module `path`: in what the table puts first, modules, weft, the rest."""
    names = TABLE[path]
    if name in names.first:
        return names.make(path, name)
    if name == "__all__":
        return sorted(n for n in offered(path) if not n.startswith("_") and f"{path}.{n}" not in TABLE)
    if f"{path}.{name}" in TABLE:
        return import_module(f"{path}.{name}")
    if not name.startswith("__"):
        for module in behind(path):
            found = getattr(module, name, _ABSENT)
            if found is not _ABSENT and not isinstance(found, ModuleType):
                return found
    if name in names.listed():
        return names.make(path, name)
    for other in names.also.split():
        found = lookup(other, name)
        if found is not _ABSENT:
            return found
    return _ABSENT


@cache
def behind(path: str) -> tuple[ModuleType, ...]:
    """The modules of weft behind one of torch's: those of the table, and that of the same path."""
    same = path.replace("torch", "weft", 1)
    names = dict.fromkeys((*TABLE[path].weft.split(), same))
    return tuple(import_module(name) for name in names if _exists(name))


def _exists(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent
        return False


def offered(path: str) -> set[str]:
    """The names that a module offers, and its modules."""
    names = TABLE[path]
    found = {p.rpartition(".")[2] for p in TABLE if p.rpartition(".")[0] == path} | names.listed()
    for module in behind(path):
        found |= {n for n in getattr(module, "__all__", dir(module)) if _is_name(module, n)}
    return found.union(*(offered(other) for other in names.also.split()))


def _is_name(module: ModuleType, name: str) -> bool:
    """True for a name that is for torch's programs: no module of weft's, and none that it imports."""
    if name.startswith("__") or isinstance(vars(module).get(name), ModuleType):
        return False
    return name in vars(module) or not _exists(f"{module.__name__}.{name}")


def _import_asks() -> bool:
    """True where the first look of `from torch.x import name` asks for the name: it looks again."""
    asking = (
        inspect.currentframe()
    )  # in one variable, which must not refer to the frame that it is in: a cycle
    for _ in range(2):
        asking = asking and asking.f_back
    return asking is not None and asking.f_code.co_name == "_handle_fromlist"
