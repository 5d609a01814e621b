"""torch.library and torch.ops: operations of one's own, which are the functions that implement them.

>>> @custom_op("mine::twice", mutates_args=())
... def twice(x: Tensor) -> Tensor:
...     return x * 2
>>> ops.mine.twice(weft.ones(1)).item()
2.0

A function is called as it is: weft traces, fuses and differentiates what it does, unless `register_autograd` says how.
What a program says about shapes (`register_fake`) is not needed. Libraries in C++ are refused.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from weft.as_torch.kinds import refused
from weft.as_torch.record import record
from weft.core.grad.function import Function
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, FileError

__all__ = [
    "CustomOpDef", "HigherOrderOperator", "Library", "OpOverload", "OpOverloadPacket", "custom_op", "define",
    "fallthrough_kernel", "get_ctx", "impl", "impl_abstract", "infer_schema", "ops", "register_autocast",
    "register_autograd", "register_fake", "register_kernel", "register_torch_dispatch", "register_vmap", "triton_op",
    "wrap_triton",
]  # fmt: skip


class CustomOpDef:
    """An operation "namespace::name" and what implements it."""

    def __init__(self, name: str, function: Callable[..., Any] | None = None) -> None:
        self._qualname = name
        self._namespace, _, self._name = name.partition("::")
        self.__name__ = self._name
        self.function = function
        self._backward: Callable[..., Any] | None = None
        self._setup: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise NotImplementedError(
                f"{self._qualname}: has no implementation; register one by torch.library.impl"
            )
        if self._backward is None:
            return self.function(*args, **kwargs)
        return self._differentiated(*args, **kwargs)

    def _differentiated(self, *args: Any, **kwargs: Any) -> Any:
        function, backward, setup = self.function, self._backward, self._setup
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)  # pyright: ignore[reportArgumentType]
            bound.apply_defaults()
            args = bound.args
        except ValueError:
            pass

        class Op(Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                result = function(*inputs)  # pyright: ignore[reportOptionalCall]
                if setup is not None:
                    setup(ctx, inputs, result)
                return result

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return backward(ctx, *grads)  # pyright: ignore[reportOptionalCall]

        return Op.apply(*args)

    @property
    def default(self) -> CustomOpDef:
        """The operation: it has one form."""
        return self

    _opoverload = default

    def overloads(self) -> list[str]:
        """The forms."""
        return ["default"]

    def register_kernel(self, device_types: Any = None, func: Any = None, /) -> Any:
        """A decorator: the function implements the operation on these devices, so on all."""
        return _registered(self, func)

    def register_fake(self, func: Any, /) -> Any:
        """The function as it is: results have shapes here."""
        return func

    register_vmap = register_torch_dispatch = register_fake

    def register_autograd(self, backward: Callable[..., Any], /, *, setup_context: Any = None) -> None:
        """Have gradients be those of backward(ctx, *grads), with what setup_context(ctx, inputs, output) keeps."""
        self._backward, self._setup = backward, setup_context

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._qualname})>"


OpOverload = OpOverloadPacket = CustomOpDef


class HigherOrderOperator:
    """An operation on functions, for programs that subclass it."""

    def __init__(self, name: str, *, cacheable: bool = False) -> None:
        self._name = name


_OPS: dict[str, CustomOpDef] = {}
"""The operations that programs have defined, by "namespace::name"."""


class _Namespace:
    """torch.ops.NAME: the operations of one library. Of torch's own, `aten`, weft's functions of the name."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.name = name

    def __getattr__(self, name: str) -> Any:
        found = _OPS.get(f"{self.name}::{name}")
        if found is None and self.name in ("aten", "prims") and not name.startswith("__"):
            found = _own(name)
        if found is None:
            if not name.startswith("__"):
                record.missing[f"torch.ops.{self.name}.{name}"] += 1
            raise AttributeError(f"'_OpNamespace' '{self.name}' object has no attribute '{name}'")
        return found


class _Aten(CustomOpDef):
    """A function of weft as an operation; its forms (`.default`, `.Tensor`, `.dim` ...) are the same function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "overload":
            raise AttributeError(name)
        return self


_NAMED_ONLY = frozenset((
    "_assert_scalar", "_assert_tensor_metadata", "_efficient_attention_forward", "_fft_c2c", "_fft_c2r",
    "_fft_r2c", "_flash_attention_forward", "_local_scalar_dense", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward", "_scaled_mm", "_to_copy", "_unsafe_view", "alias",
    "convolution", "convolution_backward", "native_batch_norm", "native_group_norm", "native_layer_norm",
    "slice", "sym_numel", "sym_size", "sym_stride", "upsample_bilinear2d", "upsample_nearest2d",
))  # fmt: skip
"""Operations of torch's that programs have in tables, and weft does not have as functions."""


def _own(name: str) -> CustomOpDef | None:
    for module in ("torch", "torch.nn.functional"):
        function = getattr(importlib.import_module(module), name, None)
        if callable(function) and not inspect.isclass(function):
            return _Aten(f"aten::{name}", function)
    method = getattr(Tensor, name, None)
    if callable(method):
        return _Aten(f"aten::{name}", method)
    if name in _NAMED_ONLY or name.startswith("_foreach_"):
        return _Aten(
            f"aten::{name}", refused(f"torch.ops.aten.{name}", "call the function that it is part of")
        )
    return None


class _Ops:
    """torch.ops: libraries of operations by name."""

    __name__ = "torch.ops"
    loaded_libraries: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._namespaces: dict[str, _Namespace] = {}

    def __getattr__(self, name: str) -> _Namespace:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._namespaces.setdefault(name, _Namespace(name))

    def load_library(self, path: Any) -> NoReturn:
        """FileError, an OSError: code in C++ is built on torch itself."""
        record.refused["torch.ops.load_library"] += 1
        raise FileError(f"torch.ops.load_library: {path} is built on torch's C++, which weft is not")

    def import_module(self, module: str) -> None:
        """Import a module that registers operations."""
        importlib.import_module(module)


ops = _Ops()


def _named(op: Any) -> CustomOpDef:
    """The operation of a name "namespace::name" or "namespace::name.form", or as it is."""
    if isinstance(op, CustomOpDef):
        return op
    name = str(op).partition("(")[0].partition(".")[0].strip()
    if "::" not in name:
        raise ArgumentError(f"torch.library: expected a name like 'mine::op', got {op!r}")
    return _OPS.setdefault(name, CustomOpDef(name))


def _registered(op: CustomOpDef, func: Any) -> Any:
    """Have the function implement an operation, or a decorator that does so."""

    def register(function: Any) -> Any:
        op.function = function
        return function

    return register if func is None else register(func)


def custom_op(
    name: str,
    fn: Any = None,
    /,
    *,
    mutates_args: Any = (),
    device_types: Any = None,
    schema: Any = None,
    tags: Any = None,
) -> Any:
    """A decorator: the function is the operation `name`."""

    def make(function: Callable[..., Any]) -> CustomOpDef:
        op = _named(name)
        op.function = function
        op.__doc__ = function.__doc__
        return op

    return make if fn is None else make(fn)


triton_op = custom_op


def wrap_triton(triton_kernel: Any, /) -> Any:
    """The kernel as it is."""
    return triton_kernel


def define(qualname: str, schema: str | None = None, *, lib: Any = None, tags: Any = ()) -> Any:
    """Have an operation of that name, which `impl` implements; without a schema, a decorator."""
    op = _named(qualname)
    decorate: Callable[[Any], Any] = partial(_registered, op)
    return None if schema is not None else decorate


def impl(qualname: Any, types: Any = None, func: Any = None, *, lib: Any = None) -> Any:
    """A decorator: the function implements the operation."""
    return _registered(_named(qualname), func)


register_kernel = impl


def register_fake(
    op: Any, func: Any = None, /, *, lib: Any = None, _stacklevel: int = 1, allow_override: bool = False
) -> Any:
    """The function as it is, or a decorator that gives it so: results have shapes here."""
    return (lambda function: function) if func is None else func  # pyright: ignore[reportUnknownLambdaType,reportUnknownVariableType]


impl_abstract = register_vmap = register_torch_dispatch = register_fake


def register_autocast(op: Any, device_type: str, cast_inputs: Any, /, *, lib: Any = None) -> None:
    """Nothing: the operation gets what it is called with."""


def register_autograd(
    op: Any, backward: Callable[..., Any], /, *, setup_context: Any = None, lib: Any = None
) -> None:
    """Have gradients of an operation be those of backward(ctx, *grads)."""
    _named(op).register_autograd(backward, setup_context=setup_context)


def get_ctx() -> Any:
    """None: nothing runs without values' shapes."""


def infer_schema(prototype_function: Any, /, *, mutates_args: Any, op_name: str | None = None) -> str:
    """The function's signature as a text."""
    return f"{op_name or ''}{inspect.signature(prototype_function)}"


def fallthrough_kernel() -> NoReturn:
    """Not to be called: it stands for an operation's next implementation."""
    raise NotImplementedError("fallthrough_kernel() should never be called.")


class Library:
    """Operations in one namespace, one after the other: `define`, then `impl`."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """Have an operation "name(...) -> ..."; gives its name."""
        return _named(f"{self.ns}::{schema}").__name__

    def impl(
        self,
        op_name: Any,
        fn: Callable[..., Any],
        dispatch_key: str = "",
        *,
        with_keyset: bool = False,
        allow_override: bool = False,
    ) -> None:
        """Have a function implement an operation. What is for other purposes than values (Meta, Autograd) is left."""
        key = dispatch_key or self.dispatch_key
        if key in ("Meta", "Autograd", "AutogradCPU", "AutogradCUDA", "Functionalize", "Autocast"):
            return
        name = op_name if isinstance(op_name, str) else op_name.__name__
        _named(name if "::" in name else f"{self.ns}::{name}").function = fn

    def fallback(self, fn: Any, dispatch_key: str = "", *, with_keyset: bool = False) -> None:
        """Nothing: no operation is without an implementation."""

    def _register_fake(
        self, op_name: str, fn: Any, _stacklevel: int = 1, *, allow_override: bool = False
    ) -> None:
        pass

    def _destroy(self) -> None:
        pass
