"""Module: a function with parameters. What is set as an attribute is part of it; there is no other registration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar, cast

import numpy as np

from weft.core import tracing
from weft.core.creation import as_tensor, empty_like, tensor
from weft.core.defaults import get_default_dtype
from weft.core.differentiate import RemovableHandle
from weft.core.function import BackwardHook
from weft.core.modes import no_grad
from weft.core.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
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


class Buffer(Tensor):
    """A tensor that is a module's state but not learned: as an attribute it is one of its buffers."""

    def __init__(self, data: Any = (), *, persistent: bool = True) -> None:
        super().__init__(data)
        self.persistent = persistent


@dataclass(slots=True)
class Hooks:
    """What is called around a module, by the number of its registration."""

    pre: dict[int, tuple[Any, bool]] = field(default_factory=dict[int, "tuple[Any, bool]"])
    forward: dict[int, tuple[Any, bool]] = field(default_factory=dict[int, "tuple[Any, bool]"])
    backward_pre: dict[int, Any] = field(default_factory=dict[int, Any])
    backward: dict[int, Any] = field(default_factory=dict[int, Any])
    state_pre: dict[int, Any] = field(default_factory=dict[int, Any])
    state_post: dict[int, Any] = field(default_factory=dict[int, Any])
    load_pre: dict[int, Any] = field(default_factory=dict[int, Any])
    load_post: dict[int, Any] = field(default_factory=dict[int, Any])

    def call(self, module: Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """module.forward between its hooks."""
        for hook, with_kwargs in list(self.pre.values()):
            if with_kwargs:
                found = hook(module, args, kwargs)
                args, kwargs = (args, kwargs) if found is None else found
            else:
                found = hook(module, args)
                args = args if found is None else _tuple(found)
        slot: list[Any] = []
        if self.backward:
            args = _watched(args, lambda grads: self._inputs_known(module, grads, slot))
        result = module.forward(*args, **kwargs)
        for hook, with_kwargs in list(self.forward.values()):
            found = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            result = result if found is None else found
        if self.backward or self.backward_pre:
            outputs = _tuple(result)
            watched = _watched(outputs, lambda grads: self._outputs_known(module, grads, slot))
            result = watched if isinstance(result, tuple) else watched[0]
        return result

    def _outputs_known(self, module: Module, grads: tuple[Any, ...], slot: list[Any]) -> tuple[Any, ...]:
        for hook in list(self.backward_pre.values()):
            found = hook(module, grads)
            grads = grads if found is None else _tuple(found)
        slot[:] = [grads]
        return grads

    def _inputs_known(self, module: Module, grads: tuple[Any, ...], slot: list[Any]) -> tuple[Any, ...]:
        for hook in list(self.backward.values()):
            found = hook(module, grads, slot[0] if slot else ())
            grads = grads if found is None else _tuple(found)
        return grads


def _tuple(x: object) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", x) if isinstance(x, tuple) else (x,)


def _watched(items: tuple[Any, ...], hook: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> tuple[Any, ...]:
    """The items, the gradients of whose tensors pass through the hook, all together."""
    places = [k for k, x in enumerate(items) if isinstance(x, Tensor) and x.requires_grad]
    if not places:
        return items
    seen = BackwardHook.apply(hook, *(items[k] for k in places))
    out = list(items)
    for k, x in zip(places, seen, strict=True):
        out[k] = x
    return tuple(out)


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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the module computes: each kind of module defines it."""
        raise NotImplementedError(
            f"{type(self).__name__} has no forward; define forward(self, ...) in its class"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracing.note_mode(self)
        hooks = self.__dict__.get("_hooks")
        return self.forward(*args, **kwargs) if hooks is None else hooks.call(self, args, kwargs)

    # --- hooks

    def _hooked(self) -> Hooks:
        return self.__dict__.setdefault("_hooks", Hooks())

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Have hook(module, args) called before forward; what it returns takes the place of args."""
        return RemovableHandle(self._hooked().pre, (hook, with_kwargs), prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Have hook(module, args, output) called after forward; what it returns takes the output's place."""
        return RemovableHandle(self._hooked().forward, (hook, with_kwargs), prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Have hook(module, grad_output) called when the gradients of the outputs are known; it may replace them."""
        return RemovableHandle(self._hooked().backward_pre, hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Have hook(module, grad_input, grad_output) called when the gradients of the inputs are known."""
        return RemovableHandle(self._hooked().backward, hook, prepend)

    register_backward_hook = register_full_backward_hook

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Have hook(module, prefix, keep_vars) called before state_dict."""
        return RemovableHandle(self._hooked().state_pre, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Have hook(module, state_dict, prefix, local_metadata) called after state_dict, which it may change."""
        return RemovableHandle(self._hooked().state_post, hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Have hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        called before load_state_dict, on a copy of the state dict that it may change."""
        return RemovableHandle(self._hooked().load_pre, hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Have hook(module, incompatible_keys) called after load_state_dict; it may change the lists."""
        return RemovableHandle(self._hooked().load_post, hook)

    def __delattr__(self, name: str) -> None:
        self._buffers.pop(name, None)
        super().__delattr__(name)

    # --- what it is made of

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Set `tensor` as an attribute that moves with the module, and is in its state dict if persistent."""
        if tensor is not None and not isinstance(tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(
                f"register_buffer: {name!r} must be a Tensor or None, got {type(tensor).__name__}"
            )
        if not name or "." in name or (name not in self._buffers and hasattr(self, name)):
            raise ArgumentError(f"register_buffer: {name!r} is no name for a buffer, or is taken")
        self._buffers[name] = persistent
        setattr(self, name, tensor)

    def add_module(self, name: str, module: Module | None) -> None:
        """The same as setting the attribute, under any name without dots."""
        if not name or "." in name:
            raise ArgumentError(f"add_module: {name!r} is no name for a module")
        setattr(self, name, module)

    register_module = add_module

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

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once (unless told otherwise), with their dotted names."""
        every = _walk(self, prefix)
        return _once(every) if remove_duplicate else every

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of this module and, with `recurse`, of all below it, each once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters with their dotted names, each once unless told otherwise."""
        every = _of_kind(self.named_tensors(prefix, recurse), Parameter)
        return _once(every) if remove_duplicate else every

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module and, with `recurse`, of all below it, each once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers with their dotted names, each once unless told otherwise."""
        every = ((name, b) for name, b in self.named_tensors(prefix, recurse) if not isinstance(b, Parameter))
        return _once(every) if remove_duplicate else every

    def named_tensors(
        self, prefix: str = "", recurse: bool = True, saved: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Parameters, then buffers (with `saved` only persistent ones), then those of submodules, shared ones again."""
        for name, x in vars(self).items():
            if isinstance(x, Parameter):
                yield _joined(prefix, name), x
        for name, x in vars(self).items():
            if isinstance(x, Buffer) and name not in self._buffers and (x.persistent or not saved):
                yield _joined(prefix, name), x
        for name, persistent in self._buffers.items():
            x = getattr(self, name, None)
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

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put a module in the place of a dotted name."""
        path, _, name = target.rpartition(".")
        if not name:
            raise ArgumentError("set_submodule: the name must not be empty")
        parent = self.get_submodule(path)
        if strict:
            parent.get_submodule(name)
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with a dotted name; AttributeError when there is none."""
        path, _, name = target.rpartition(".")
        found = vars(self.get_submodule(path)).get(name)
        if not isinstance(found, Parameter):
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with a dotted name; AttributeError when there is none."""
        found = dict(self.named_buffers()).get(target)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no buffer {target!r}")
        return found

    # --- its state

    def get_extra_state(self) -> Any:
        """State that is no tensor, for subclasses to give: saved under "_extra_state"."""
        raise NotImplementedError

    def set_extra_state(self, state: Any) -> None:
        """Take over what get_extra_state gave."""
        raise NotImplementedError

    def _extras(self, prefix: str = "") -> dict[str, Module]:
        return {
            _joined(name, "_extra_state"): module
            for name, module in self.named_modules(prefix=prefix)
            if type(module).get_extra_state is not Module.get_extra_state
        }

    def state_dict(
        self, prefix: str = "", *, destination: dict[str, Any] | None = None, keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name. As in torch they share their elements with the module's, so
        that later updates show in them: `copy.deepcopy` the dict to keep what they are now.

        keep_vars gives the parameters themselves. A prefix is put before the names; as in torch it ends with its dot.
        """
        root = prefix.removesuffix(".")
        modules = [(f"{name}." if name else "", m) for name, m in self.named_modules(prefix=root)]
        for name, module in modules:
            for hook in list(
                module.__dict__["_hooks"].state_pre.values() if "_hooks" in module.__dict__ else ()
            ):
                hook(module, name, keep_vars)
        out: dict[str, Any] = {} if destination is None else destination
        for name, x in self.named_tensors(saved=True):
            out[prefix + name] = x if keep_vars else x.detach()
        for name, module in self._extras(root).items():
            out[name] = module.get_extra_state()
        for name, module in modules:
            for hook in list(
                module.__dict__["_hooks"].state_post.values() if "_hooks" in module.__dict__ else ()
            ):
                hook(module, out, name, {})
        return out

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Take over values by name, converted to the dtype and device of what they replace.

        With `strict`, names must match exactly. With `assign`, tensors keep their own dtype and device. Nothing is
        changed if anything does not fit: ArgumentError says what.
        """
        if not isinstance(state_dict, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(f"load_state_dict: expected a dict by name, got {type(state_dict).__name__}")
        problems: list[str] = []
        given = dict(state_dict)
        missing: list[str] = []
        unexpected: list[str] = []
        for name, module in self.named_modules():
            for hook in list(
                module.__dict__["_hooks"].load_pre.values() if "_hooks" in module.__dict__ else ()
            ):
                hook(module, given, f"{name}." if name else "", {}, strict, missing, unexpected, problems)
        own, extras = dict(self.named_tensors(saved=True)), self._extras()
        missing += [k for k in (*own, *extras) if k not in given]
        unexpected += [k for k in given if k not in own and k not in extras]
        result = IncompatibleKeys(missing, unexpected)
        if strict:
            problems += [f"missing: {k}" for k in result.missing_keys]
            problems += [f"unexpected: {k}" for k in result.unexpected_keys]
        new = {k: as_tensor(v) for k, v in given.items() if k in own}
        problems += [
            f"{k}: the module has shape {tuple(own[k].shape)}, the state dict {tuple(v.shape)}"
            for k, v in new.items()
            if v.shape != own[k].shape
        ]
        if problems:
            raise ArgumentError(
                f"load_state_dict: the state does not fit {type(self).__name__}:" + _listed(problems)
            )
        with no_grad():
            for k, v in new.items():
                if assign:
                    own[k].data = v.detach()
                else:
                    own[k].copy_(v.detach())
        for k, module in extras.items():
            if k in given:
                module.set_extra_state(given[k])
        for _, module in self.named_modules():
            for hook in list(
                module.__dict__["_hooks"].load_post.values() if "_hooks" in module.__dict__ else ()
            ):
                hook(module, result)
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

    def to(
        self,
        *args: Any,
        dtype: DType | None = None,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = None,
    ) -> Self:
        """Move parameters and buffers to a device; convert the float ones to a float dtype; or as a tensor is."""
        for x in args:
            if isinstance(x, Tensor):
                dtype, device = x.dtype, x.device
            elif not isinstance(x, bool):  # non_blocking
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

    def type(self, dst_type: DType) -> Self:
        """Float parameters and buffers in another float dtype."""
        return self.to(dst_type)

    def cpu(self) -> Self:
        """Parameters and buffers on the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | str | None = None) -> Self:
        """Parameters and buffers on an NVIDIA GPU, the first one unless a number or a name is given."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device or "cuda")

    def to_empty(self, *, device: str, recurse: bool = True) -> Self:
        """Parameters and buffers on another device, whose values do not matter: zeros."""
        with no_grad():
            for x in {id(x): x for _, x in self.named_tensors()}.values():
                x.grad = None
                x.data = empty_like(x.detach(), device=device)
        return self

    def compile(self, **options: Any) -> None:
        """Have calls of this module replay a plan, as weft.compile does for functions."""
        from weft.core.compile import compile

        self.forward = compile(self.forward, **options)

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
