"""Parameters that are functions of other parameters.

`register_parametrization` moves a parameter into `module.parametrizations` and has the attribute compute it from there
each time it is read, so that optimizers, state dicts and compiled functions see the original.
"""

# Modules have members under torch's names, with underscores.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.nn.containers import ModuleDict, ModuleList
from weft.nn.module import Module, Parameter


class ParametrizationList(ModuleList):
    """The functions of one parameter, and the original tensors that the first takes."""

    def __init__(self, modules: Sequence[Module], original: Tensor) -> None:
        super().__init__(modules)
        found: Any = original
        for module in reversed(modules):
            inverse = getattr(module, "right_inverse", None)
            if inverse is not None:
                found = inverse(found)
        self.names = (
            ["original"] if isinstance(found, Tensor) else [f"original{k}" for k in range(len(found))]
        )
        for name, x in zip(self.names, [found] if isinstance(found, Tensor) else found, strict=True):
            x = x.detach()
            if isinstance(original, Parameter):
                setattr(self, name, Parameter(x))
            else:
                self.register_buffer(name, x)

    def forward(self) -> Tensor:
        """The parameter."""
        first, *rest = list(self.children())
        x = first(*(getattr(self, name) for name in self.names))
        for module in rest:
            x = module(x)
        return x


def computed(module: Module, name: str, get: Any) -> None:
    """Have reading the attribute `name` of this one module call `get(module)`."""
    cls = type(module)
    base = cls.__mro__[1] if cls.__dict__.get("_computes") else cls
    properties = dict(cls.__dict__.get("_computes", {}))
    properties[name] = property(get)
    owner: Any = module
    owner.__class__ = type(
        base.__name__, (base,), {**properties, "_computes": properties, "__module__": base.__module__}
    )


def not_computed(module: Module, name: str) -> None:
    """Undo `computed`."""
    cls = type(module)
    base, properties = cls.__mro__[1], dict(cls.__dict__["_computes"])
    del properties[name]
    owner: Any = module
    owner.__class__ = (
        type(base.__name__, (base,), {**properties, "_computes": properties, "__module__": base.__module__})
        if properties
        else base
    )


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Have module.tensor_name be parametrization(original). More of them are applied one after the other.

    A parametrization with `right_inverse` says what the original is for the present value.

    >>> register_parametrization(linear, "weight", Symmetric())
    """
    lists: Any = module._modules.get("parametrizations")
    if lists is not None and tensor_name in lists:
        lists[tensor_name].append(parametrization)
        return module
    original = vars(module).get(tensor_name)
    if not isinstance(original, Tensor):
        raise ArgumentError(
            f"register_parametrization: {type(module).__name__} has no tensor {tensor_name!r}"
        )
    if lists is None:
        module.parametrizations = lists = ModuleDict()  # pyright: ignore[reportAttributeAccessIssue]  (a module takes any)
    found = ParametrizationList([parametrization], original)
    value = found()
    if not unsafe and (value.shape != original.shape or value.dtype is not original.dtype):
        raise ArgumentError(
            f"register_parametrization: gives shape {tuple(value.shape)} and {value.dtype.name} for {tensor_name!r} of "
            f"shape {tuple(original.shape)} and {original.dtype.name}; pass unsafe=True if that is meant"
        )
    lists[tensor_name] = found
    delattr(module, tensor_name)

    def get(self: Module) -> Tensor:
        return vars(self)["parametrizations"][tensor_name]()

    computed(module, tensor_name, get)
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """True where the module has parametrizations, of this tensor if one is named."""
    lists: Any = module._modules.get("parametrizations")
    return lists is not None and (len(lists) > 0 if tensor_name is None else tensor_name in lists)


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make a plain parameter of it again: with its present value, or with leave_parametrized false the original's."""
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(
            f"remove_parametrizations: {tensor_name!r} of {type(module).__name__} is not parametrized"
        )
    lists: Any = module._modules["parametrizations"]
    found = lists[tensor_name]
    if not leave_parametrized and len(found.names) > 1:
        raise ArgumentError(
            "remove_parametrizations: there are several original tensors; leave it parametrized"
        )
    value = found() if leave_parametrized else getattr(found, found.names[0])
    learned = isinstance(getattr(found, found.names[0]), Parameter)
    not_computed(module, tensor_name)
    del lists[tensor_name]
    if not len(lists):
        delattr(module, "parametrizations")
    setattr(module, tensor_name, Parameter(value.detach()) if learned else value.detach())
    return module
