"""Modules that hold modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, cast, overload

from weft.core.tensor import Tensor
from weft.errors import DTypeError
from weft.nn.module import Module, Parameter


def _module(container: type[Module], module: object) -> Module:
    """The module, or a DTypeError for what is none."""
    if not isinstance(module, Module):
        raise DTypeError(f"{container.__name__}: expected modules, got {module!r}")
    return module


class _Numbered(Module):
    """Children under the names "0", "1", ..."""

    def _add(self, modules: Iterable[Module]) -> None:
        for module in modules:
            setattr(self, str(len(self)), _module(type(self), module))

    def _place(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{type(self).__name__}: index {index} is out of range for {len(self)} modules")
        return str(index % len(self))

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __reversed__(self) -> Iterator[Module]:
        return reversed(list(self.children()))

    def __setitem__(self, index: int, module: Module) -> None:
        self._place(index)
        setattr(self, [name for name, _ in self.named_children()][index], module)

    def __delitem__(self, index: int | slice) -> None:
        kept = list(self.children())
        del kept[index]
        self._become(kept)

    def _become(self, modules: Iterable[Module]) -> None:
        """Hold these modules, numbered anew."""
        new = list(modules)
        for name in [name for name, _ in self.named_children()]:
            delattr(self, name)
        self._add(new)

    def insert(self, index: int, module: Module) -> Self:
        """Put a module before another."""
        now = list(self.children())
        now.insert(index, module)
        self._become(now)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end."""
        self._add(modules)
        return self

    def pop(self, index: int = -1) -> Module:
        """Take a module out."""
        self._place(index)
        found = list(self.children())[index]
        del self[index]
        return found

    def __iadd__(self, other: Iterable[Module]) -> Self:
        return self.extend(other)

    def __add__(self, other: Iterable[Module]) -> Self:
        joined = type(self)()
        joined._add([*self.children(), *other])
        return joined


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


class ModuleDict(Module):
    """A dict of modules, for use in a `forward` of one's own."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add modules under their names."""
        for name, module in dict(modules).items():
            self[name] = module

    def pop(self, name: str) -> Module:
        """Take a module out."""
        found = self[name]
        del self[name]
        return found

    def clear(self) -> None:
        """Take all modules out."""
        for name in self.keys():
            del self[name]

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


class ParameterList(Module):
    """A list of parameters, for use in a `forward` of one's own. Tensors that are added become parameters."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.extend(values)

    def _items(self) -> list[Any]:
        return [vars(self)[str(k)] for k in range(len(self))]

    def __len__(self) -> int:
        return sum(1 for name in vars(self) if name.isdigit())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items())

    def _place(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"ParameterList: index {index} is out of range for {len(self)} parameters")
        return str(index % len(self))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return ParameterList(self._items()[index])
        return vars(self)[self._place(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._place(index), _learned(value))

    def append(self, value: Any) -> ParameterList:
        """Add a parameter at the end."""
        setattr(self, str(len(self)), _learned(value))
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add parameters at the end."""
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return ", ".join(f"({k}): {tuple(p.shape)}" for k, p in enumerate(self))


class ParameterDict(Module):
    """A dict of parameters, for use in a `forward` of one's own. Tensors that are added become parameters."""

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> None:
        self._names: list[str] = []
        self.update(parameters or {})

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add parameters under their names."""
        for name, value in dict(parameters).items():
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return vars(self)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._names and (hasattr(self, name) or "." in name):
            raise KeyError(f"ParameterDict: a parameter cannot be called {name!r}")
        if name not in self._names:
            self._names.append(name)
        setattr(self, name, _learned(value))

    def __delitem__(self, name: str) -> None:
        self[name]
        self._names.remove(name)
        delattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def keys(self) -> list[str]:
        """The names."""
        return list(self._names)

    def values(self) -> list[Any]:
        """The parameters."""
        return [self[name] for name in self._names]

    def items(self) -> list[tuple[str, Any]]:
        """Names and parameters."""
        return [(name, self[name]) for name in self._names]

    def get(self, name: str, default: Any = None) -> Any:
        """The parameter of a name, or the default."""
        return self[name] if name in self._names else default

    def pop(self, name: str) -> Any:
        """Take a parameter out."""
        found = self[name]
        del self[name]
        return found

    def extra_repr(self) -> str:
        return ", ".join(f"({name}): {tuple(p.shape)}" for name, p in self.items())


def _learned(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value
