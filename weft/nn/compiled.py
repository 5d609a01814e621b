"""The compiled form of a module: a module that has the original as `_orig_mod`, as torch's."""
# Tests: tests/nn/test_module_internals.py

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from weft.core.compile.compile import compile
from weft.core.compile.compiled_function import CompiledFunction
from weft.nn.module import Module

if TYPE_CHECKING:
    from weft.core.execute.explanation import Explanation, Profile

_OWN = frozenset({"training"})


class OptimizedModule(Module):
    """The result of `weft.compile(module)`: calls replay plans, everything else is the original's.

    The original is `_orig_mod`, whose name the keys of `state_dict()` begin with; attributes that are read or set are
    the original's, so that training one trains the other.
    """

    _orig_mod: Module

    def __init__(self, module: Module, made: CompiledFunction[..., Any]) -> None:
        super().__init__()
        self._orig_mod = module
        self._compiled = made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """The kernels of a call, as of a compiled function."""
        return self._compiled.explain(*args, **kwargs)

    def profile(self, *args: Any, **kwargs: Any) -> Profile:
        """The times of a call, as of a compiled function."""
        return self._compiled.profile(*args, **kwargs)

    if not TYPE_CHECKING:  # to a type checker it is the attribute

        @property
        def training(self):
            """True where the original is in training mode."""
            module = self.__dict__.get("_orig_mod") or getattr(self, "_orig_mod", None)
            return True if module is None else module.training

        @training.setter
        def training(self, mode):
            module = self.__dict__.get("_orig_mod") or getattr(self, "_orig_mod", None)
            if module is not None:
                module.training = mode

    def __getattr__(self, name: str) -> Any:
        inherited = getattr(super(), "__getattr__", None)
        if inherited is not None:
            try:
                return inherited(name)
            except AttributeError:
                pass
        if name.startswith("__") or name in ("_orig_mod", "_compiled"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name.startswith("_"):
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __len__(self) -> int:
        inner: Any = self._orig_mod
        return len(inner)

    def __getitem__(self, key: Any) -> Any:
        inner: Any = self._orig_mod
        return inner[key]

    def __iter__(self) -> Iterator[Any]:
        inner: Any = self._orig_mod
        return iter(inner)

    def __bool__(self) -> bool:
        return True

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModule:
        copy = memo[id(self)] = _again(deepcopy(self._orig_mod, memo), self._compiled.asked)
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._orig_mod, self._compiled.asked)


def _again(module: Module, asked: Mapping[str, Any]) -> Any:
    """The compiled form of a module, as another was asked for."""
    return compile(module, **asked)
