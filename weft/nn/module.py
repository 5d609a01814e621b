"""Module: a function with parameters. What is set as an attribute is part of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast

import numpy as np

from weft.core.args.axes import known_sizes, new_shape
from weft.core.args.defaults import get_default_dtype
from weft.core.args.modes import no_grad
from weft.core.execute import changes, edits, modules, tracing
from weft.core.grad.differentiate import RemovableHandle
from weft.core.layout.creation import as_tensor, empty_like, tensor, zeros_like
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, MemberError, UnmadeError, WeftError
from weft.ir.dtypes import DType, bfloat16, float16, float32, float64
from weft.nn import hooks, members
from weft.nn.members import KINDS, Members, adopt

if TYPE_CHECKING:
    from weft.core.compile.compiled_function import CompiledFunction

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
    return tensor(
        np.full(known_sizes("parameter", new_shape("parameter", (shape,))), value),
        dtype=dtype or get_default_dtype(),
        device=device,
    )


class Buffer(Tensor):
    """A tensor that is a module's state but not learned: as an attribute it is one of its buffers."""

    def __init__(self, data: Any = (), *, persistent: bool = True) -> None:
        super().__init__(data)
        self.persistent = persistent


_Undo = Callable[[], object]


class IncompatibleKeys(NamedTuple):
    """The keys that a state dict lacked, and those that it had too much."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"

    __str__ = __repr__


_IncompatibleKeys = IncompatibleKeys  # torch's name


CALLED_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip
"""The dicts of what is called around a module's calls, by the number of its registration."""

HOOKS = (
    *CALLED_HOOKS, "_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)  # fmt: skip
"""The dicts of what is called around a module and its state dict."""


class Module:
    """Base of layers and models: subclasses set parameters and other modules as attributes and define `forward`.

    >>> class Net(weft.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.hidden, self.out = weft.nn.Linear(2, 8), weft.nn.Linear(8, 1)
    ...     def forward(self, x):
    ...         return self.out(self.hidden(x).relu())

    A `Parameter` attribute is a parameter, a `Module` attribute a submodule, a tensor given to `register_buffer` a
    buffer: state that is saved but not learned. Calling a module calls `forward`. `_parameters`, `_buffers` and
    `_modules` hold them by name, and may be read and written.
    """

    dump_patches = False
    call_super_init = False
    _version: int = 1
    training: bool
    _parameters: Members
    _buffers: Members
    _modules: Members
    _non_persistent_buffers_set: set[str]
    _forward_pre_hooks: OrderedDict[int, Any]
    _forward_hooks: OrderedDict[int, Any]
    _backward_pre_hooks: OrderedDict[int, Any]
    _backward_hooks: OrderedDict[int, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not self.call_super_init and (args or kwargs):
            given = f"argument '{next(iter(kwargs))}'" if kwargs else f"{len(args) + 1} positional arguments"
            raise DTypeError(f"{type(self).__name__}.__init__() got an unexpected {given}; Module takes none")
        self._make()
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def _make(self) -> None:
        """The dicts of a module without members."""
        own = self.__dict__
        own["training"] = True
        for kind in KINDS:
            adopt(self, kind, {})
        own["_non_persistent_buffers_set"] = set[str]()
        own["_public_state_dict_hooks"] = set[int]()
        own["_is_full_backward_hook"] = None
        for name in HOOKS:
            own[name] = cast(
                "dict[int, Any]", OrderedDict()
            )  # not of a generic alias: that is pickled with it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation of a call of the module: each kind of module defines it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function; define forward(self, ...) in '
            "its class"
        )

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        tracing.note_call(self)
        own = self.__dict__
        try:
            plain = not (
                own["_forward_hooks"]
                or own["_forward_pre_hooks"]
                or own["_backward_hooks"]
                or own["_backward_pre_hooks"]
                or hooks.EVERYWHERE.called
            )
        except KeyError:
            raise self._unmade("be called") from None
        return self.forward(*args, **kwargs) if plain else hooks.call_hooked(self, args, kwargs)

    _wrapped_call_impl = _call_impl
    __call__ = _call_impl

    def _unmade(self, what: str) -> UnmadeError:
        return UnmadeError(
            f"cannot {what} before Module.__init__() call: {type(self).__name__}.__init__ must first call "
            "super().__init__()"
        )

    # --- attributes

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for kind in KINDS:
            members = own.get(kind)
            if members is not None and name in members:
                return members[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        self._assign_attribute(name, value)
        edits.modules.note()

    def _assign_attribute(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._members("_parameters", "assign parameters")
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
            return
        if isinstance(value, Module):
            modules = self._members("_modules", "assign module")
            self._forget(name, "_modules")
            modules[name] = hooks.registered(hooks.MODULE_REGISTRATION, self, name, value)
            return
        own = self.__dict__
        if name in own.get("_parameters", ()):
            if value is not None:
                raise DTypeError(
                    f"cannot assign '{_typename(value)}' as parameter '{name}' (torch.nn.Parameter or None expected); "
                    "write module.name.data = tensor, or make a Parameter of it"
                )
            self.register_parameter(name, None)
        elif name in own.get("_modules", ()):
            if value is not None:
                raise DTypeError(
                    f"cannot assign '{_typename(value)}' as child module '{name}' (torch.nn.Module or None expected)"
                )
            self._members("_modules", "assign module")[name] = None
        elif isinstance(value, Buffer) or name in own.get("_buffers", ()):
            if value is not None and not isinstance(value, Tensor):
                raise DTypeError(
                    f"cannot assign '{_typename(value)}' as buffer '{name}' (torch.nn.Buffer, torch.Tensor or None "
                    "expected)"
                )
            fleeting = name in own.get("_non_persistent_buffers_set", ())
            if name not in own.get("_buffers", ()):
                own.pop(name, None)
            self.register_buffer(name, value, value.persistent if isinstance(value, Buffer) else not fleeting)
        elif name in KINDS:
            adopt(self, name, value)
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._remove_attribute(name)
        edits.modules.note()

    def _remove_attribute(self, name: str) -> None:
        own = self.__dict__
        for kind in KINDS:
            if name in own.get(kind, ()):
                del self._members(kind, "delete attributes")[name]
                own["_non_persistent_buffers_set"].discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*dir(type(self)), *self.__dict__}
        names.update(*(self.__dict__.get(kind, ()) for kind in KINDS))
        return sorted(name for name in names if not name[:1].isdigit())

    def _members(self, kind: str, what: str) -> Members:
        """The members of a kind; UnmadeError where there are none yet."""
        found = self.__dict__.get(kind)
        if found is None:
            raise self._unmade(what)
        return found if isinstance(found, Members) else adopt(self, kind, found)

    def _forget(self, name: str, kind: str) -> None:
        """The name is none of an attribute or of a member of another kind any more."""
        own = self.__dict__
        for other in KINDS:
            if other != kind and name in own[other]:
                del self._members(other, "assign members")[name]
        if name not in own[kind]:
            own.pop(name, None)
        own["_non_persistent_buffers_set"].discard(name)

    def _check_name(self, kind: str, what: str, name: Any) -> None:
        if not isinstance(name, str):
            raise DTypeError(f"{what} name should be a string. Got {_typename(name)}")
        if "." in name:
            raise MemberError(f'{what} name can\'t contain "."; got {name!r}')
        if name == "":
            raise MemberError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[kind]:
            raise MemberError(f"attribute '{name}' already exists")

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Set `tensor` as an attribute that moves with the module, and is in its state dict if persistent."""
        buffers = self._members("_buffers", "assign buffer")
        self._check_name("_buffers", "buffer", name)
        if tensor is not None and not isinstance(tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(
                f"cannot assign '{_typename(tensor)}' object to buffer '{name}' (torch Tensor or None required)"
            )
        buffers[name] = hooks.registered(hooks.BUFFER_REGISTRATION, self, name, tensor)
        fleeting = self.__dict__["_non_persistent_buffers_set"]
        (fleeting.discard if persistent else fleeting.add)(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """The same as setting the attribute; None keeps the place of a parameter that is not there."""
        parameters = self._members("_parameters", "assign parameter")
        self._check_name("_parameters", "parameter", name)
        if param is not None and not isinstance(param, Parameter):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(
                f"cannot assign '{_typename(param)}' object to parameter '{name}' (torch.nn.Parameter or None required)"
            )
        if param is not None and param.grad_fn is not None:
            raise ArgumentError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. To "
                f"express '{name}' as a function of another Tensor, compute the value in the forward() method."
            )
        parameters[name] = hooks.registered(hooks.PARAMETER_REGISTRATION, self, name, param)

    def add_module(self, name: str, module: Module | None) -> None:
        """The same as setting the attribute, under any name without dots; None keeps a place."""
        modules = self._members("_modules", "assign module")
        if module is not None and not isinstance(module, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(f"{type(self).__name__}: {_typename(module)} is not a Module subclass")
        self._check_name("_modules", "module", name)
        modules[name] = hooks.registered(hooks.MODULE_REGISTRATION, self, name, module)

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as add_module."""
        self.add_module(name, module)

    # --- hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Have hook(module, args) called before forward; what it returns takes the place of args. With with_kwargs it
        is hook(module, args, kwargs), and returns both."""
        handle = RemovableHandle(self._forward_pre_hooks, hook, prepend)
        if with_kwargs:
            self.__dict__["_forward_pre_hooks_with_kwargs"][handle.id] = True
        return handle

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Have hook(module, args, output) called after forward; what it returns takes the output's place. With
        with_kwargs it is hook(module, args, kwargs, output); with always_call it is called after errors, too."""
        handle = RemovableHandle(self._forward_hooks, hook, prepend)
        if with_kwargs:
            self.__dict__["_forward_hooks_with_kwargs"][handle.id] = True
        if always_call:
            self.__dict__["_forward_hooks_always_called"][handle.id] = True
        return handle

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Have hook(module, grad_output) called when the gradients of the outputs are known; it may replace them."""
        return RemovableHandle(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Have hook(module, grad_input, grad_output) called when the gradients of the inputs are known; where no input
        asks for one, when those of the outputs are, with None for each input."""
        self.__dict__["_is_full_backward_hook"] = True
        return RemovableHandle(self._backward_hooks, hook, prepend)

    register_backward_hook = register_full_backward_hook

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Have hook(module, prefix, keep_vars) called before state_dict."""
        return RemovableHandle(self.__dict__["_state_dict_pre_hooks"], hook)

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Have hook(module, state_dict, prefix, local_metadata) called after state_dict; what it returns
        takes its place."""
        return RemovableHandle(self.__dict__["_state_dict_hooks"], hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Have hook(module, state_dict, prefix, local_metadata) called after state_dict, which it may change."""
        handle = self._register_state_dict_hook(hook)
        self.__dict__["_public_state_dict_hooks"].add(handle.id)
        return handle

    def _register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], with_module: bool = False
    ) -> RemovableHandle:
        """As register_load_state_dict_pre_hook; the hook is given the module only if told so."""
        called = partial(hook, self) if with_module else hook
        return RemovableHandle(self.__dict__["_load_state_dict_pre_hooks"], called)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Have hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        called before load_state_dict, on a copy of the state dict that it may change."""
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Have hook(module, incompatible_keys) called after load_state_dict; it may change the lists."""
        return RemovableHandle(self.__dict__["_load_state_dict_post_hooks"], hook)

    # --- what it is made of

    def children(self) -> Iterator[Module]:
        """The modules directly in this one."""
        return (module for _, module in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly in this one, each once, with the names of their attributes."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once (unless told otherwise), with their dotted names."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, _joined(prefix, name), remove_duplicate)

    def _named_members(
        self,
        get_members_fn: Callable[[Module], Any],
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        """The members that a function gives of each module, with dotted names, without what is None."""
        seen: set[int] = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in modules:
            for name, x in get_members_fn(module):
                if x is None or id(x) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(x))
                yield _joined(path, name), x

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of this module and, with `recurse`, of all below it, each once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters with their dotted names, each once unless told otherwise."""
        return self._named_members(lambda m: m._parameters.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module and, with `recurse`, of all below it, each once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers with their dotted names, each once unless told otherwise."""
        return self._named_members(lambda m: m._buffers.items(), prefix, recurse, remove_duplicate)

    def named_tensors(
        self, prefix: str = "", recurse: bool = True, saved: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Parameters, then buffers (with `saved` only persistent ones), then those of submodules, shared ones again."""

        def of(module: Module) -> Iterator[tuple[str, Any]]:
            yield from module._parameters.items()
            for name, x in module._buffers.items():
                if not (saved and name in module._non_persistent_buffers_set):
                    yield name, x

        return self._named_members(of, prefix, recurse, remove_duplicate=False)

    def get_submodule(self, target: str) -> Module:
        """The module with a dotted name; AttributeError when there is none."""
        module: Module = self
        for name in filter(None, target.split(".")):
            if not hasattr(module, name):
                raise AttributeError(f"{module._get_name()} has no attribute `{name}` (in {target!r})")
            child = getattr(module, name)
            if not isinstance(child, Module):
                raise AttributeError(f"`{name}` is not an nn.Module (in {target!r})")
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
        return self._found(target, "nn.Parameter", lambda m, name, x: isinstance(x, Parameter))

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with a dotted name; AttributeError when there is none."""
        return self._found(target, "buffer", lambda m, name, x: name in m._buffers)

    def _found(self, target: str, kind: str, fits: Callable[[Module, str, Any], bool]) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
        found = getattr(module, name)
        if not fits(module, name, found):
            raise AttributeError(
                f"`{name}` is not an {kind}" if kind[0] == "n" else f"`{name}` is not a {kind}"
            )
        return found

    # --- its state

    def get_extra_state(self) -> Any:
        """State that is no tensor, for subclasses to give: saved under "_extra_state"."""
        raise NotImplementedError

    def set_extra_state(self, state: Any) -> None:
        """Take over what get_extra_state gave."""
        raise NotImplementedError

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Put this module's own members, without those of modules below it, into a state dict."""
        for name, x in self.named_tensors(recurse=False, saved=True):
            destination[prefix + name] = x if keep_vars else x.detach()
        if type(self).get_extra_state is not Module.get_extra_state:
            destination[f"{prefix}_extra_state"] = self.get_extra_state()

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name. As in torch they share their elements with the module's, so
        that later updates show in them: `copy.deepcopy` the dict to keep what they are now.

        keep_vars gives the parameters themselves. A prefix is put before the names; as in torch it ends with its dot.
        `_metadata` of the dict has the version of each module by its name.
        """
        given: list[Any] = [*args, *(destination, prefix, keep_vars)[len(args) :]]
        destination, prefix, keep_vars = given
        if destination is None:
            destination = cast("OrderedDict[str, Any]", OrderedDict())
            vars(destination)["_metadata"] = OrderedDict()
        metadata: dict[str, Any] = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = metadata
        for hook in list(self.__dict__["_state_dict_pre_hooks"].values()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        public = self.__dict__["_public_state_dict_hooks"]
        for number, hook in list(self.__dict__["_state_dict_hooks"].items()):
            found = hook(self, destination, prefix, metadata)
            if found is not None and number in public:
                raise ArgumentError("state_dict post-hook must return None")
            destination = destination if found is None else found
        return destination

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Take over values by name, converted to the dtype and device of what they replace.

        With `strict`, names must match exactly. With `assign`, the given tensors themselves become the members, with
        their own dtype and device. Nothing is changed if anything does not fit: ArgumentError says what.
        """
        if not isinstance(state_dict, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(f"load_state_dict: Expected state_dict to be dict-like, got {type(state_dict)}.")
        metadata = getattr(state_dict, "_metadata", None)
        given = OrderedDict[str, Any](state_dict)
        if metadata is not None:
            vars(given)["_metadata"] = metadata
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        undo: list[_Undo] = []
        result = IncompatibleKeys(missing, unexpected)
        whole = False
        try:
            self._load(given, "", metadata, assign, result, errors, undo)
            if strict:
                for title, keys in (("Unexpected", unexpected), ("Missing", missing)):
                    if keys:
                        listed = ", ".join(f'"{k}"' for k in keys)
                        errors.insert(0, f"{title} key(s) in state_dict: {listed}. ")
            whole = not errors
        finally:
            if not whole:
                for step in reversed(undo):
                    step()
        if errors:
            raise ArgumentError(
                f"load_state_dict: Error(s) in loading state_dict for {type(self).__name__}:\n\t"
                + "\n\t".join(errors)
            )
        return result

    def _load(
        self,
        local: dict[str, Any],
        prefix: str,
        metadata: Mapping[str, Any] | None,
        assign: bool,
        result: IncompatibleKeys,
        errors: list[str],
        undo: list[_Undo],
    ) -> None:
        """Have this module, whose names begin with `prefix`, and each below it take over its members."""
        about: dict[str, Any] = {} if metadata is None else dict(metadata.get(prefix[:-1], {}))
        if assign:
            about["assign_to_params_buffers"] = True
        about["_undo"] = undo
        self._load_from_state_dict(local, prefix, about, True, *result, errors)
        for name, child in self._modules.items():
            if child is not None:
                path = f"{prefix}{name}."
                below = {k: v for k, v in local.items() if k.startswith(path)}
                child._load(below, path, metadata, assign, result, errors, undo)
        for hook in list(self.__dict__["_load_state_dict_post_hooks"].values()):
            if hook(self, result) is not None:
                raise ArgumentError(
                    "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new "
                    "values, if incompatible_keys need to be modified, it should be done inplace."
                )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take over this module's own members, without those of modules below it; what does not fit goes into the
        lists."""
        for hook in list(self.__dict__["_load_state_dict_pre_hooks"].values()):
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        own = dict(self.named_tensors(recurse=False, saved=True))
        undo: list[_Undo] = local_metadata.get("_undo", [])
        for name, x in own.items():
            key = prefix + name
            if key in state_dict:
                problem = self._take(name, x, key, state_dict[key], local_metadata, undo)
                if problem is not None:
                    error_msgs.append(problem)
            elif strict:
                missing_keys.append(key)
        extra = f"{prefix}_extra_state"
        has_extra = type(self).set_extra_state is not Module.set_extra_state
        if has_extra and extra in state_dict:
            if type(self).get_extra_state is not Module.get_extra_state:
                undo.append(partial(self.set_extra_state, self.get_extra_state()))
            self.set_extra_state(state_dict[extra])
        elif has_extra and strict:
            missing_keys.append(extra)
        if strict:
            for key in state_dict:
                if key.startswith(prefix) and (key != extra or not has_extra):
                    name, dot, _ = key[len(prefix) :].partition(".")
                    if name not in (self._modules if dot else own):
                        unexpected_keys.append(key)

    def _take(
        self, name: str, x: Tensor, key: str, given: Any, about: dict[str, Any], undo: list[_Undo]
    ) -> str | None:
        """Have a member take a value over; what is wrong with it, if anything."""
        if not isinstance(given, Tensor):
            try:
                given = as_tensor(given)
            except WeftError:
                return (
                    f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like object from '
                    f"checkpoint but received {type(given)}"
                )
        if x.ndim == 0 and given.ndim == 1 and given.shape[0] == 1:
            given = given[0]  # as torch 0.3 saved numbers
        if given.shape != x.shape:
            return (
                f"size mismatch for {key}: copying a param with shape {given.shape} from checkpoint, the shape in "
                f"current model is {x.shape}."
            )
        with no_grad():
            if about.get("assign_to_params_buffers"):
                undo.append(partial(setattr, self, name, x))
                if isinstance(x, Parameter) and not isinstance(given, Parameter):
                    given = Parameter(given, requires_grad=x.requires_grad)
                elif isinstance(x, Parameter):
                    given.requires_grad_(x.requires_grad)
                setattr(self, name, given)
                return None
            before = x.detach().clone()
            try:
                x.copy_(given.detach())
            except WeftError as e:
                return (
                    f'While copying the parameter named "{key}", whose dimensions in the model are {x.shape} and whose '
                    f"dimensions in the checkpoint are {given.shape}, an exception occurred : {e.args}."
                )
            undo.append(partial(_restore, x, before))
        return None

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = self.__dict__
        own.update(state)
        for kind in KINDS:
            adopt(self, kind, own.get(kind, {}))
        for name in HOOKS:
            own.setdefault(name, OrderedDict())
        own.setdefault("_non_persistent_buffers_set", set())
        own.setdefault("_public_state_dict_hooks", set())
        own.setdefault("_is_full_backward_hook", None)

    def _replicate_for_data_parallel(self) -> Self:
        replica = type(self).__new__(type(self))
        replica.__dict__ = self.__dict__.copy()
        for kind in KINDS:
            adopt(replica, kind, {} if kind == "_parameters" else dict(self.__dict__[kind]))
        replica.__dict__["_is_replica"] = True
        return replica

    # --- changing all of it

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call `fn` on every submodule, then on this module."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set training mode here and below: dropout drops, batch norm uses and records batch statistics."""
        if not isinstance(mode, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"train: training mode is expected to be boolean, got {mode!r}")
        self.training = mode
        for module in self.children():
            module.train(mode)
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
            p.grad = None if set_to_none or p.grad is None else zeros_like(p.grad)
        changes.let_go()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Have each parameter, its gradient and each buffer be what `fn` makes of it: they stay the same objects."""
        if recurse:
            for module in self.children():
                module._apply(fn)
        with no_grad():
            for _, x in self.named_tensors(recurse=False):
                grad = x.grad
                made = fn(x)
                changed = made is not x and made.value.node is not x.value.node
                if changed:
                    x.grad = None
                    x.data = made.detach()
                    x.grad = None if grad is None else fn(grad.detach()).detach()
        return self

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
            raise DTypeError(
                f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={dtype}"
            )
        return self._apply(lambda t: t.to(dtype=dtype if t.dtype.is_float else None, device=device))

    def type(self, dst_type: Any) -> Self:
        """Parameters and buffers in another dtype."""
        return self._apply(lambda t: t.type(dst_type))

    def cpu(self) -> Self:
        """Parameters and buffers on the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | str | None = None) -> Self:
        """Parameters and buffers on an NVIDIA GPU, the first one unless a number or a name is given."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device or "cuda")

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Parameters and buffers on another device, whose values do not matter: zeros."""
        with no_grad():
            for x in {id(x): x for x in (*self.parameters(recurse), *self.buffers(recurse))}.values():
                x.grad = None
                x.data = empty_like(x.detach(), device=device)
        return self

    def share_memory(self) -> Self:
        """The module as it is: processes that are started from this one see its values as they are then."""
        return self

    def compile(self, **options: Any) -> None:
        """Have calls of this module replay a plan, as weft.compile does for functions."""
        from weft.core.compile.compile import compile

        self.forward = compile(self.forward, **options)

    def _compiled_form(self, made: CompiledFunction[..., Any]) -> Module:
        """The module that `weft.compile` gives for this one: calls go to the function that was made of it."""
        from weft.nn.compiled import OptimizedModule

        return OptimizedModule(self, made)

    def _floats(self, dtype: DType) -> Self:
        return self._apply(lambda t: t.to(dtype) if t.dtype.is_float else t)

    def half(self) -> Self:
        """Float parameters and buffers as float16."""
        return self._floats(float16)

    def bfloat16(self) -> Self:
        """Float parameters and buffers as bfloat16."""
        return self._floats(bfloat16)

    def float(self) -> Self:
        """Float parameters and buffers as float32."""
        return self._floats(float32)

    def double(self) -> Self:
        """Float parameters and buffers as float64."""
        return self._floats(float64)

    # --- printing

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """The text to print between the parentheses: the arguments that made this layer."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr().split("\n") if self.extra_repr() else []
        below = [f"({name}): {_addindent(repr(module), 2)}" for name, module in self._modules.items()]
        if len(extra) == 1 and not below:
            return f"{self._get_name()}({extra[0]})"
        lines = [*extra, *below]
        return f"{self._get_name()}(" + ("\n  " + "\n  ".join(lines) + "\n" if lines else "") + ")"


def _restore(x: Tensor, before: Tensor) -> None:
    """Give a member the values back that it had."""
    with no_grad():
        x.copy_(before)


def _typename(x: object) -> str:
    """The class of a thing as messages of torch's name it."""
    kind = type(x)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return "torch.Tensor" if kind is Tensor else f"{kind.__module__}.{kind.__qualname__}"


def _addindent(s_: str, numSpaces: int) -> str:
    """The text with all lines but the first moved to the right."""
    return s_.replace("\n", "\n" + " " * numSpaces)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


modules.register(
    modules.ModuleClass(
        Module,
        Module.__setattr__,
        frozenset((*HOOKS, *KINDS)),
        (*CALLED_HOOKS, "training"),
        hooks.CALLED,
        frozenset((__name__, hooks.__name__, members.__name__, "weft.nn.compiled")),
    )
)

register_module_backward_hook = hooks.register_module_backward_hook
register_module_buffer_registration_hook = hooks.register_module_buffer_registration_hook
register_module_forward_hook = hooks.register_module_forward_hook
register_module_forward_pre_hook = hooks.register_module_forward_pre_hook
register_module_full_backward_hook = hooks.register_module_full_backward_hook
register_module_full_backward_pre_hook = hooks.register_module_full_backward_pre_hook
register_module_module_registration_hook = hooks.register_module_module_registration_hook
register_module_parameter_registration_hook = hooks.register_module_parameter_registration_hook
