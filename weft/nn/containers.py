"""Modules that hold modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast, overload

from weft.core.tensor import Tensor
from weft.nn.module import Module


class _Numbered(Module):
    """Children under the names "0", "1", ..."""

    def _add(self, modules: Iterable[Module]) -> None:
        for module in modules:
            setattr(self, str(len(self)), module)

    def _place(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{type(self).__name__}: index {index} is out of range for {len(self)} modules")
        return str(index % len(self))

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._place(index), module)


class Sequential(_Numbered):
    """Modules applied one after the other: y = f_n(... f_1(x)).

    >>> weft.nn.Sequential(weft.nn.Linear(4, 8), weft.nn.ReLU(), weft.nn.Linear(8, 1))
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                setattr(self, name, module)
        else:
            self._add(cast("tuple[Module, ...]", modules))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...
    def __getitem__(self, index: int | slice) -> Any:
        modules = list(self.children())
        return Sequential(*modules[index]) if isinstance(index, slice) else modules[index]

    def append(self, module: Module) -> Sequential:
        """Add a module at the end."""
        self._add((module,))
        return self

    def forward(self, x: Tensor) -> Tensor:
        for module in self.children():
            x = module(x)
        return x


class ModuleList(_Numbered):
    """A list of modules, for use in a `forward` of one's own."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._add(modules)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> ModuleList: ...
    def __getitem__(self, index: int | slice) -> Any:
        modules = list(self.children())
        return ModuleList(modules[index]) if isinstance(index, slice) else modules[index]

    def append(self, module: Module) -> ModuleList:
        """Add a module at the end."""
        self._add((module,))
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end."""
        self._add(modules)
        return self


class ModuleDict(Module):
    """A dict of modules, for use in a `forward` of one's own."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules under their names."""
        for name, module in modules.items():
            self[name] = module

    def __getitem__(self, name: str) -> Any:
        return dict(self.named_children())[name]

    def __setitem__(self, name: str, module: Module) -> None:
        if hasattr(Module, name) or name in Module.__annotations__:
            raise KeyError(f"ModuleDict: a module cannot be called {name!r}, which Module itself has")
        setattr(self, name, module)

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in dict(self.named_children())

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """The names."""
        return [name for name, _ in self.named_children()]

    def values(self) -> list[Module]:
        """The modules."""
        return list(self.children())

    def items(self) -> list[tuple[str, Module]]:
        """Names and modules."""
        return list(self.named_children())
