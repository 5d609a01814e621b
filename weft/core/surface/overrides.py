"""`__torch_function__`: classes that take over what functions and methods do to their objects.

Nothing of this is there while programs use plain tensors. When the first class is defined that may take over (a
subclass of Tensor, a mode), every public function gets a body that looks at its arguments first (`intercept`): the
function objects stay what they are, so tables by function, made before or after, find them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from types import CodeType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from weft.autograd.context import change, context, enter, switched
from weft.core.args.handle import Handle, own, tensor_class
from weft.core.views import views
from weft.errors import DTypeError, wraps_calls

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

wraps_calls(__file__)


_lock = threading.Lock()
_intercepted: dict[int, tuple[FunctionType, FunctionType]] = {}
"""Functions by identity, each with what it was."""

_installed = False


def disabled(func: Any = None, *args: Any, **kwargs: Any) -> Any:
    """As `__torch_function__` of a class: it takes nothing over, and results are plain tensors. DTypeError for
    PyTorch's own functions."""
    refuse_pytorchs(func, "tensor")
    return NotImplemented


def refuse_pytorchs(func: Any, what: str) -> None:
    """DTypeError for a function or method of PyTorch itself, compiled ones included: it asks a tensor that is not its
    own what to do."""
    home = getattr(func, "__module__", None) or getattr(
        getattr(func, "__objclass__", None), "__module__", None
    )
    if str(home).partition(".")[0] == "torch":
        name = getattr(func, "__name__", str(func))
        raise DTypeError(
            f"{name}: PyTorch's function was called with a {what} of weft; call weft's own, or give PyTorch a tensor "
            "of its kind: torch.from_dlpack(x)"
        )


class DisableTorchFunctionSubclass(switched):
    """A context within which functions do to subclasses what they do to plain tensors."""

    def __init__(self) -> None:
        super().__init__(plain_subclasses=True)


class DisableTorchFunction(switched):
    """The same, within which modes are passed over, too."""

    def __init__(self) -> None:
        super().__init__(plain_subclasses=True, function_modes=())


class TorchFunctionMode:
    """A context whose `__torch_function__` sees every call of a public function within the block."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: define __torch_function__")

    def __enter__(self) -> Self:
        install()
        enter(function_modes=(*context().function_modes, self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        change(function_modes=context().function_modes[:-1])


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that calls the function."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


# ------------------------------------------------------------------------------------------------ who takes over


@lru_cache(4096)
def overrides(kind: type) -> bool:
    """True where objects of a class take calls over. PyTorch's own tensors do so for PyTorch's functions only."""
    handler = getattr(kind, "__torch_function__", None)
    if handler is None or handler is disabled or kind is tensor_class():
        return False
    return issubclass(kind, Handle) or all(c.__module__.partition(".")[0] != "torch" for c in kind.__mro__)


def _type(x: Any) -> Any:
    return x.__class__


def _candidates(args: Iterable[Any], kwargs: Mapping[str, Any] | None) -> Iterator[Any]:
    for a in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(a, list | tuple):
            yield from cast("Sequence[Any]", a)
        else:
            yield a


def overloaded(args: Iterable[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
    """The arguments, or elements of lists among them, that take calls over: one of each class, subclasses first."""
    found: list[Any] = []
    for a in _candidates(args, kwargs):
        kind = _type(a)
        if overrides(kind) and all(_type(f) is not kind for f in found):
            place = next((k for k, f in enumerate(found) if issubclass(kind, _type(f))), len(found))
            found.insert(place, a)
    if context().plain_subclasses:
        found = [f for f in found if not isinstance(f, Handle)]
    return found


def handled(func: Any, relevant: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of the first relevant argument that does not decline; the function's own result without any.
    DTypeError where all decline."""
    if not relevant:
        return func(*args, **kwargs)
    kinds = tuple([_type(x) for x in relevant])
    for x in relevant:
        result = x.__torch_function__(func, kinds, args, kwargs)
        if result is not NotImplemented:
            return result
    name = getattr(func, "__name__", str(func))
    raise DTypeError(
        f"{name}: no implementation for {', '.join(k.__name__ for k in kinds)}, whose __torch_function__ declines"
    )


def default(cls: type[Any], func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Tensor.__torch_function__: the function on plain tensors, its results as tensors of the class. DTypeError for
    PyTorch's own functions, which ask here what to do with a tensor that is not theirs."""
    refuse_pytorchs(func, cls.__name__)
    if not all(issubclass(cls, t) for t in types):
        return NotImplemented
    with DisableTorchFunctionSubclass():
        result = func(*args, **(kwargs or {}))
    return result if func in nowrap_functions() else _converted(result, cls)


@cache
def nowrap_functions() -> frozenset[Any]:
    """The functions whose results stay what they are."""
    grad: Any = vars(tensor_class())["grad"]
    return frozenset({grad.__get__})


def _converted(x: Any, cls: type[Any]) -> Any:
    if isinstance(x, Handle):
        return x if isinstance(x, cls) else same_as(x, cls)
    if isinstance(x, list | tuple):
        parts = [_converted(p, cls) for p in cast("Sequence[Any]", x)]
        kind = _type(x)
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return x


def with_history(x: Tensor) -> Tensor:
    """The same values, through which gradients flow."""
    return own(x.value)


def same_as(x: Any, cls: type[Any]) -> Any:
    """The tensor as one of the class: the same elements, and the same history."""
    out = object.__new__(cls)
    out.value = x.value
    views.make_view(x, out, views.ViewStep(with_history))
    return out


def in_mode() -> bool:
    """True where a mode is entered."""
    return bool(context().function_modes)


def taken_over(func: Any, relevant: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result that the innermost mode, or else the relevant arguments, make of a call."""
    modes = context().function_modes
    if modes:
        with switched(function_modes=modes[:-1]):
            result = modes[-1].__torch_function__(func, tuple([_type(x) for x in relevant]), args, kwargs)
        if result is not NotImplemented:
            return result
    return handled(func, relevant, args, kwargs)


# ------------------------------------------------------------------------------------------------ how calls get there


def _dispatch(func: Any, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A public function's call: `plain` unless a mode or an argument takes it over."""
    relevant = overloaded(args, kwargs)
    modes = context().function_modes
    if not relevant and not modes:
        return plain(*args, **kwargs)
    if not modes:
        return handled(func, relevant, args, kwargs)
    return taken_over(func, relevant, args, kwargs)


@cache
def _body(free: int) -> CodeType:
    """The code of a function with so many free variables that hands its arguments on."""
    names = [f"v{k}" for k in range(free)]
    lines = [
        "def outer():",
        *(f"    {n} = None" for n in names),
        "    def call(*args, _dispatch, **kwargs):",
        *(f"        if 0: {n}" for n in names),
        "        return _dispatch(args, kwargs)",
        "    return call",
    ]
    space: dict[str, Any] = {}
    exec(compile("\n".join(lines), __file__, "exec"), space)
    code: CodeType = space["outer"]().__code__
    return code


def intercept(function: Any, label: Any = None) -> None:
    """Have a function look at its arguments for who takes the call over. The object stays the same. `label` is what
    programs know it by, where that is another object."""
    if not isinstance(function, FunctionType) or id(function) in _intercepted:
        return
    plain = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    plain.__kwdefaults__ = function.__kwdefaults__
    plain.__qualname__, plain.__module__, plain.__doc__ = (
        function.__qualname__,
        function.__module__,
        function.__doc__,
    )
    plain.__dict__.update(function.__dict__)
    _intercepted[id(function)] = function, plain
    code = _body(len(function.__code__.co_freevars))
    function.__code__ = code.replace(co_name=function.__name__, co_qualname=function.__qualname__)
    function.__defaults__ = None
    function.__kwdefaults__ = {"_dispatch": partial(_dispatch, label or function, plain)}
    function.__wrapped__ = plain  # pyright: ignore[reportFunctionMemberAccess]  (what inspect.signature follows)


_NOT_METHODS = frozenset((
    "__init__", "__new__", "__init_subclass__", "__torch_function__", "__hash__", "__reduce__", "__array_ufunc__",
    "__array_namespace__", "__dlpack__", "__dlpack_device__", "as_subclass", "rebind", "become", "in_shape",
    "assign",
))  # fmt: skip
_PROPERTIES = ("T", "mT", "H", "mH", "real", "data", "grad")
_NAMESPACES = ("weft", "weft.linalg", "weft.nn.functional", "weft.special")
"""The namespaces of functions that look for who takes calls over."""
_offered: list[FunctionType] = []
"""Functions of theirs that somebody asked for."""
_NO_TENSORS = frozenset((
    "is_tensor", "is_storage", "typename", "manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state",
    "set_default_dtype", "compile", "get_default_dtype", "is_grad_enabled", "is_inference_mode_enabled",
    "synchronize", "realize", "vmap", "grad", "value_and_grad", "scan", "explain", "broadcast_shapes", "can_cast",
    "promote", "promote_types",
))  # fmt: skip


def offer(function: Any, name: str, home: str) -> None:
    """Have a function of a namespace look for who takes its calls over, as soon as anybody may."""
    if home in _NAMESPACES and name not in _NO_TENSORS and isinstance(function, FunctionType):
        with _lock:
            _offered.append(function)
            if _installed:
                intercept(function)


def namespace_functions() -> Iterator[tuple[str, FunctionType]]:
    """The public functions of tensors, with the namespace of each; all are imported."""
    for home in _NAMESPACES:
        module = sys.modules.get(home)
        names: Sequence[str] = getattr(module, "__all__", ()) if module is not None else ()
        for name in names:
            function = getattr(module, name, None)
            if isinstance(function, FunctionType) and name not in _NO_TENSORS:
                yield home, function


def methods() -> Iterator[tuple[str, FunctionType]]:
    """The methods of Tensor, by name."""
    for cls in tensor_class().__mro__[:-1]:
        for name, x in vars(cls).items():
            if isinstance(x, FunctionType) and name not in _NOT_METHODS:
                if not name.startswith("_") or name.endswith("__"):
                    yield name, x


def _properties() -> Iterator[property]:
    for name in _PROPERTIES:
        found = vars(tensor_class()).get(name)
        if isinstance(found, property):
            yield found


def install() -> None:
    """Have public functions look at their arguments from here on."""
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
        for name, function in list(methods()):
            if function.__name__ in ("getitem", "setitem"):
                function.__name__ = name  # as torch's
            named = getattr(tensor_class(), function.__name__, None) if name.startswith("__") else None
            intercept(function, named if isinstance(named, FunctionType) else None)
        for function in _offered:
            intercept(function)
        for found in _properties():
            getter: Any = found
            intercept(found.fget, getter.__get__)


def uninstall() -> None:
    """Have public functions be what they were, until the next class that may take over is defined."""
    global _installed
    with _lock:
        _installed = False
        for function, plain in _intercepted.values():
            function.__code__ = plain.__code__
            function.__defaults__, function.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
            function.__dict__.clear()
            function.__dict__.update(plain.__dict__)
        _intercepted.clear()
