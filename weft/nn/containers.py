"""Modules that hold modules, or parameters."""
# Tests: tests/nn/test_module.py, tests/nn/test_hooks.py

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Self, cast, overload

from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.nn.members import adopt
from weft.nn.module import Module, Parameter


class _Numbered(Module):
    """Children under the names "0", "1", ..."""

    def _add(self, modules: Iterable[Any]) -> None:
        for module in modules:
            self.add_module(str(len(self)), module)

    def _names(self) -> list[str]:
        return list(self._modules)

    def _place(self, index: int) -> str:
        at = int(index.__index__())
        if not -len(self) <= at < len(self):
            raise IndexError(f"{type(self).__name__}: index {at} is out of range for {len(self)} modules")
        return self._names()[at]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._modules.values()))

    def __reversed__(self) -> Iterator[Any]:
        return reversed(list(self._modules.values()))

    def __setitem__(self, index: int, module: Any) -> None:
        setattr(self, self._place(index), module)

    def __delitem__(self, index: int | slice) -> None:
        names = self._names()
        for name in names[index] if isinstance(index, slice) else [self._place(index)]:
            delattr(self, name)
        self._become(self._modules.values())

    def _become(self, modules: Iterable[Any]) -> None:
        """Hold these modules, numbered anew."""
        adopt(self, "_modules", OrderedDict((str(k), m) for k, m in enumerate(list(modules))))

    def insert(self, index: int, module: Any) -> Self:
        """Put a module before another."""
        if module is not None and not isinstance(module, Module):
            raise DTypeError(f"{type(self).__name__}: {type(module).__name__} is not a Module subclass")
        now = list(self._modules.values())
        if not -len(now) <= index <= len(now):
            raise IndexError(f"{type(self).__name__}: index {index} is out of range for {len(now)} modules")
        now.insert(index, module)
        self._become(now)
        return self

    def extend(self, modules: Iterable[Any]) -> Self:
        """Add modules at the end."""
        if not isinstance(modules, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(
                f"{type(self).__name__}.extend should be called with an iterable, but got {type(modules).__name__}"
            )
        self._add(list(modules))
        return self

    def append(self, module: Any) -> Self:
        """Add a module at the end."""
        self._add((module,))
        return self

    def pop(self, index: int | slice = -1) -> Any:
        """Take a module out."""
        found: Any = cast("Any", self)[index]
        del self[index]
        return found

    def __iadd__(self, other: Iterable[Any]) -> Self:
        return self.extend(other)

    def __add__(self, other: Iterable[Any]) -> Self:
        joined = type(self)()
        joined._add([*self, *other])
        return joined


class Sequential(_Numbered):
    """Modules applied one after the other: y = f_n(... f_1(x)).

    >>> weft.nn.Sequential(weft.nn.Linear(4, 8), weft.nn.ReLU(), weft.nn.Linear(8, 1))
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self._add(cast("tuple[Module, ...]", modules))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(OrderedDict(list(self._modules.items())[index]))
        return self._modules[self._place(index)]

    def __iadd__(self, other: Any) -> Self:
        self._sequential("+=", other)
        return self.extend(other)

    def __add__(self, other: Any) -> Sequential:  # pyright: ignore[reportIncompatibleMethodOverride]  (torch's)
        self._sequential("+", other)
        return Sequential(*self, *other)

    def _sequential(self, op: str, other: object) -> None:
        if not isinstance(other, Sequential):
            raise ArgumentError(f"{op} operator supports only objects of Sequential class, got {type(other)}")

    def _times(self, times: Any) -> int:
        if not isinstance(times, int):
            raise DTypeError(
                f"unsupported operand type(s) for *: {type(self).__name__} and {type(times).__name__}"
            )
        if times <= 0:
            raise ArgumentError(f"Non-positive multiplication factor {times} for {type(self).__name__}")
        return times

    def __mul__(self, other: int) -> Sequential:
        return Sequential(*(list(self) * self._times(other)))

    __rmul__ = __mul__

    def __imul__(self, other: int) -> Self:
        return self.extend(list(self) * (self._times(other) - 1))

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_Numbered):
    """A list of modules, for use in a `forward` of one's own. An entry may be None."""

    def __init__(self, modules: Iterable[Module | None] | None = None) -> None:
        super().__init__()
        self._add(modules or ())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self._modules.values())[index])
        return self._modules[self._place(index)]

    def __add__(self, other: Iterable[Any]) -> ModuleList:  # pyright: ignore[reportIncompatibleMethodOverride]  (torch's)
        return ModuleList(chain(self, other))

    def __repr__(self) -> str:
        """As torch prints it: equal entries one after the other once, with their numbers."""
        entries = [repr(module) for module in self]
        if not entries:
            return f"{self._get_name()}()"
        runs: list[tuple[int, int, str]] = []
        for k, text in enumerate(entries):
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], k, text)
            else:
                runs.append((k, k, text))
        lines = [f"({a}): {text}" if a == b else f"({a}-{b}): {b - a + 1} x {text}" for a, b, text in runs]
        return f"{self._get_name()}(\n  " + "\n  ".join(line.replace("\n", "\n  ") for line in lines) + "\n)"


class ModuleDict(Module):
    """A dict of modules, for use in a `forward` of one's own. An entry may be None."""

    def __init__(
        self, modules: Mapping[str, Module | None] | Iterable[tuple[str, Any]] | None = None
    ) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def update(self, modules: Mapping[str, Module | None] | Iterable[tuple[str, Any]]) -> None:
        """Add modules under their names."""
        if not isinstance(modules, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(
                "ModuleDict.update should be called with an iterable of key/value pairs, but got "
                f"{type(modules).__name__}"
            )
        pairs = cast("Any", modules.items() if isinstance(modules, (Mapping, ModuleDict)) else modules)
        for k, pair in enumerate(pairs):
            if not isinstance(pair, (list, tuple)):
                raise DTypeError(
                    f"ModuleDict update sequence element #{k} should be Iterable; is {type(pair).__name__}"
                )
            if len(cast("tuple[Any, ...]", pair)) != 2:
                raise ArgumentError(
                    f"ModuleDict update sequence element #{k} has length {len(cast('tuple[Any, ...]', pair))}; 2 is "
                    "required"
                )
            name, module = cast("tuple[str, Any]", pair)
            self[name] = module

    def pop(self, key: str) -> Any:
        """Take a module out."""
        found = self[key]
        del self[key]
        return found

    def clear(self) -> None:
        """Take all modules out."""
        self._modules.clear()

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Any) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def items(self) -> Any:
        """Names and modules."""
        return self._modules.items()


class ParameterList(Module):
    """A list of parameters, for use in a `forward` of one's own. Tensors that are added become parameters; an entry may
    be anything else, too."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self += values

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter(self[k] for k in range(len(self)))

    def _place(self, index: int) -> str:
        at = int(index.__index__())
        if not -len(self) <= at < len(self):
            raise IndexError(f"ParameterList: index {at} is out of range for {len(self)} parameters")
        return str(at % len(self))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)([self[k] for k in range(*index.indices(len(self)))])
        return getattr(self, self._place(index))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._place(index), _learned(value))

    def append(self, value: Any) -> Self:
        """Add a parameter at the end."""
        self._size += 1
        self[-1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add parameters at the end."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(
                f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}"
            )
        for value in list(values):
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise DTypeError("ParameterList should not be called.")

    def extra_repr(self) -> str:
        return "\n".join(f"  ({k}): {_described(x)}" for k, x in enumerate(self))


class ParameterDict(Module):
    """A dict of parameters, for use in a `forward` of one's own. Tensors that are added become parameters; an entry may
    be anything else, too."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def _name(self, key: Any) -> str:
        if not isinstance(key, str):
            raise DTypeError(
                "Index given to ParameterDict cannot be used as a key as it is not a string (type is "
                f"'{type(key).__name__}')."
            )
        return key

    def update(self, parameters: Mapping[str, Any] | Iterable[Any]) -> None:
        """Add parameters under their names."""
        pairs = cast(
            "Any", parameters.items() if isinstance(parameters, (Mapping, ParameterDict)) else parameters
        )
        for name, value in pairs:
            self[name] = value

    def __getitem__(self, key: str) -> Any:
        if self._name(key) not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        name = self._name(key)
        if name not in self._keys and (hasattr(self, name) or "." in name):
            raise KeyError(f"ParameterDict: a parameter cannot be called {name!r}")
        setattr(self, name, _learned(value))
        self._keys[name] = None

    def __delitem__(self, key: str) -> None:
        if self._name(key) not in self._keys:
            raise KeyError(key)
        del self._keys[key]
        delattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys)

    def keys(self) -> Any:
        """The names."""
        return self._keys.keys()

    def values(self) -> Any:
        """The parameters."""
        return (self[name] for name in list(self._keys))

    def items(self) -> Any:
        """Names and parameters."""
        return ((name, self[name]) for name in list(self._keys))

    def get(self, key: str, default: Any = None) -> Any:
        """The parameter of a name, or the default."""
        return getattr(self, key) if key in self._keys else default

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The parameter of a name, which is the default if there is none yet."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str) -> Any:
        """Take a parameter out."""
        found = self[key]
        del self[key]
        return found

    def popitem(self) -> tuple[str, Any]:
        """Take the last parameter out, with its name."""
        name = next(reversed(self._keys))
        return name, self.pop(name)

    def clear(self) -> None:
        """Take all parameters out."""
        for name in list(self._keys):
            del self[name]

    def copy(self) -> ParameterDict:
        """A dict of the same parameters."""
        return ParameterDict(OrderedDict((name, self[name]) for name in self._keys))

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """A dict with the default under each name."""
        return ParameterDict((name, default) for name in keys)

    def __or__(self, other: ParameterDict) -> ParameterDict:
        joined = self.copy()
        joined.update(other)
        return joined

    def __ror__(self, other: ParameterDict) -> ParameterDict:
        joined = other.copy()
        joined.update(self)
        return joined

    def __ior__(self, other: ParameterDict) -> Self:
        self.update(other)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise DTypeError("ParameterDict should not be called.")

    def extra_repr(self) -> str:
        return "\n".join(f"  ({name}): {_described(x)}" for name, x in self.items())


def _learned(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _described(x: Any) -> str:
    """An entry of a container of parameters, as torch prints it."""
    if not isinstance(x, Tensor):
        return f"Object of type: {type(x).__name__}"
    kind = "Parameter" if isinstance(x, Parameter) else "Tensor"
    place = "" if str(x.device).startswith("cpu") else f" ({x.device})"
    return f"{kind} containing: [{x.dtype} of size {'x'.join(map(str, x.shape))}{place}]"
