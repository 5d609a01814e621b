"""Module: a function with parameters. What is set as an attribute is part of it; there is no other registration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from weft.core import tracing
from weft.core.creation import as_tensor, tensor
from weft.core.defaults import get_default_dtype
from weft.core.modes import no_grad
from weft.core.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import DType

T = TypeVar("T")


class Parameter(Tensor):
    """A tensor that a module learns: as an attribute of a module it is one of its parameters.

    It shares the values of `data` and requires grad unless told otherwise.
    """

    def __init__(self, data: Any = (), requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad=requires_grad)


def filled(
    value: float, shape: tuple[int, ...], dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """`value` in every element, in memory of its own: state that was a constant of the graph at first would give the
    first step a plan that no other step can use."""
    return tensor(np.full(shape, value), dtype=dtype or get_default_dtype(), device=device)


class IncompatibleKeys(NamedTuple):
    """What a state dict lacked, and what it had too much."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """Base of layers and models: subclasses set parameters and other modules as attributes and define `forward`.

    >>> class Net(weft.nn.Module):
    ...     def __init__(self):
    ...         self.hidden, self.out = weft.nn.Linear(2, 8), weft.nn.Linear(8, 1)
    ...     def forward(self, x):
    ...         return self.out(self.hidden(x).relu())

    A `Parameter` attribute is a parameter, a `Module` attribute a submodule, a tensor given to `register_buffer` a
    buffer: state that is saved but not learned. Calling a module calls `forward`.
    """

    training: bool
    _buffers: dict[str, bool]  # name -> whether state_dict has it; the tensor itself is an attribute

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # here, so that a subclass need not call super().__init__()
        self = super().__new__(cls)
        self.training, self._buffers = True, {}
        return self

    forward: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracing.note_mode(self)
        return self.forward(*args, **kwargs)

    # --- what it is made of

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Set `tensor` as an attribute that moves with the module, and is in its state dict if persistent."""
        self._buffers[name] = persistent
        setattr(self, name, tensor)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """The same as setting the attribute."""
        setattr(self, name, param)

    def children(self) -> Iterator[Module]:
        """The modules directly in this one."""
        return (module for _, module in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly in this one, with the names of their attributes."""
        return ((name, x) for name, x in vars(self).items() if isinstance(x, Module))

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, with their dotted names."""
        return _once(_walk(self, prefix))

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of this module and, with `recurse`, of all below it, each once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        """The parameters with their dotted names."""
        return _once(_of_kind(self.named_tensors(prefix, recurse), Parameter))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module and, with `recurse`, of all below it, each once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """The buffers with their dotted names."""
        return _once(
            (name, b) for name, b in self.named_tensors(prefix, recurse) if not isinstance(b, Parameter)
        )

    def named_tensors(
        self, prefix: str = "", recurse: bool = True, saved: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Parameters, then buffers (with `saved` only persistent ones), then those of submodules, shared ones again."""
        for name, x in vars(self).items():
            if isinstance(x, Parameter):
                yield _joined(prefix, name), x
        for name, persistent in self._buffers.items():
            x = getattr(self, name)
            if isinstance(x, Tensor) and (persistent or not saved):
                yield _joined(prefix, name), x
        if recurse:
            for name, child in self.named_children():
                yield from child.named_tensors(_joined(prefix, name), recurse, saved)

    def get_submodule(self, target: str) -> Module:
        """The module with a dotted name; AttributeError when there is none."""
        module: Module = self
        for name in filter(None, target.split(".")):
            child = vars(module).get(name)
            if not isinstance(child, Module):
                raise AttributeError(f"{type(module).__name__} has no submodule {name!r} (in {target!r})")
            module = child
        return module

    # --- its state

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Parameters and persistent buffers by dotted name, as they are now: later updates do not change them."""
        return {name: x.detach() for name, x in self.named_tensors(prefix, saved=True)}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Take over values by name, converted to the dtype and device of what they replace.

        With `strict`, names must match exactly. Nothing is changed if anything does not fit: ArgumentError says what.
        """
        own = dict(self.named_tensors(saved=True))
        result = IncompatibleKeys(
            [k for k in own if k not in state_dict], [k for k in state_dict if k not in own]
        )
        problems: list[str] = []
        if strict:
            problems += [f"missing: {k}" for k in result.missing_keys]
            problems += [f"unexpected: {k}" for k in result.unexpected_keys]
        new = {k: as_tensor(v) for k, v in state_dict.items() if k in own}
        problems += [
            f"{k}: the module has shape {tuple(own[k].shape)}, the state dict {tuple(v.shape)}"
            for k, v in new.items()
            if v.shape != own[k].shape
        ]
        if problems:
            raise ArgumentError(
                f"load_state_dict: the state does not fit {type(self).__name__}:" + _listed(problems)
            )
        for k, v in new.items():
            own[k].data = v.detach().to(dtype=own[k].dtype, device=own[k].device)
        return result

    # --- changing all of it

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call `fn` on every submodule, then on this module."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set training mode here and below: dropout drops, batch norm uses and records batch statistics."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set evaluation mode here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Start or stop asking for gradients of all parameters."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zero."""
        for p in self.parameters():
            p.grad = None if set_to_none or p.grad is None else p.grad.detach() * 0

    def to(self, *args: DType | str, dtype: DType | None = None, device: str | None = None) -> Self:
        """Move parameters and buffers to a device; convert the float ones to a float dtype."""
        for x in args:
            dtype, device = (x, device) if isinstance(x, DType) else (dtype, x)
        if dtype is not None and not dtype.is_float:
            raise ArgumentError(f"to: a module's parameters are floats, they cannot become {dtype.name}")
        with no_grad():
            for x in {id(x): x for _, x in self.named_tensors()}.values():
                kind = dtype if x.dtype.is_float else None
                grad = x.grad
                x.grad = None
                x.data = x.detach().to(dtype=kind, device=device)
                x.grad = None if grad is None else grad.detach().to(dtype=kind, device=device)
        return self

    def half(self) -> Self:
        """Float parameters and buffers as float16."""
        from weft.ir.dtypes import float16

        return self.to(float16)

    def bfloat16(self) -> Self:
        """Float parameters and buffers as bfloat16."""
        from weft.ir.dtypes import bfloat16

        return self.to(bfloat16)

    def float(self) -> Self:
        """Float parameters and buffers as float32."""
        from weft.ir.dtypes import float32

        return self.to(float32)

    def double(self) -> Self:
        """Float parameters and buffers as float64."""
        from weft.ir.dtypes import float64

        return self.to(float64)

    # --- printing

    def extra_repr(self) -> str:
        """What to print between the parentheses: the arguments that made this layer."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        inside = self.extra_repr()
        if lines:
            inside = "".join(f"\n  {line}" for line in ([inside] if inside else []) + lines) + "\n"
        return f"{type(self).__name__}({inside})"


def _walk(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
    yield prefix, module
    for name, child in module.named_children():
        yield from _walk(child, _joined(prefix, name))


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _of_kind(pairs: Iterable[tuple[str, Any]], kind: type[T]) -> Iterator[tuple[str, T]]:
    return ((name, x) for name, x in pairs if isinstance(x, kind))


def _once(pairs: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """The pairs whose second part was not there before."""
    seen: set[int] = set()
    for name, x in pairs:
        if id(x) not in seen:
            seen.add(id(x))
            yield name, x


def _listed(problems: list[str], most: int = 20) -> str:
    more = [f"... and {len(problems) - most} more"] if len(problems) > most else []
    return "".join(f"\n  {p}" for p in problems[:most] + more)
