"""weft.compile: the compiled form of a function, as its arguments ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

from weft.core.args.handle import describe
from weft.core.compile.compiled_function import CompiledFunction, compiled, living, name_of
from weft.core.compile.in_memory import InMemory
from weft.core.compile.over_devices import OverDevices
from weft.errors import ArgumentError, DTypeError

if TYPE_CHECKING:
    from weft.core.sharding.device_mesh import DeviceMesh

P = ParamSpec("P")
R = TypeVar("R")


@overload
def compile(
    fn: Callable[P, R],
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: Any = ...,
    mode: str | None = ...,
    options: Any = ...,
    disable: bool = ...,
    numerics: Literal["free", "same"] | None = ...,
    devices: Any = ...,
    memory: int | Mapping[str, int] | None = ...,
) -> CompiledFunction[P, R]: ...
@overload
def compile(
    fn: None = None,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: Any = ...,
    mode: str | None = ...,
    options: Any = ...,
    disable: bool = ...,
    numerics: Literal["free", "same"] | None = ...,
    devices: Any = ...,
    memory: int | Mapping[str, int] | None = ...,
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...
def compile(
    fn: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "",
    mode: str | None = None,
    options: Any = None,
    disable: bool = False,
    numerics: Literal["free", "same"] | None = None,
    devices: DeviceMesh | Sequence[str] | str | None = None,
    memory: int | Mapping[str, int] | None = None,
) -> Any:
    """The function `fn`, traced once per distinct input structure, then replayed as one plan.

    The arguments' structure (tuples, lists, dicts, dataclasses), Python values, and the shape, dtype, device and
    requires_grad of tensors are checked on every call; what differs is traced again, and up to 64 traces are kept. So
    is the grad mode. Tensors that the function uses without taking them as arguments (parameters, optimizer moments)
    are read at every call, and those that it rebinds (x += 1, copy_, .grad) are rebound after every call, in place
    where nobody else holds the old values. Results belong to the caller. A call that is refused for want of memory,
    fails or is interrupted has rebound all of them or none.

    So are the attributes of modules that the function reads, called or not (parameters, layers, hooks, `forward`, flags
    such as `training`): where one is another object, or another number or text, the function is traced again, as it is
    at each call that changes a flag or object which it reads. Numbers that it sets itself (counters) and what it sets
    before it reads it are its own. So are the globals and the variables of functions around that its code names, in it
    and in the functions that it reaches by them, and what is in lists, dicts and objects there, and in those that
    attributes stand for. Not what is in NumPy arrays, in containers of more than 256 entries, or in installed packages.
    Everything else in Python happens once, while tracing.

    A function that asks for the value of a tensor (`if x.sum() > 0`, item, print, a mask as index), or calls what is
    computed on the host, cannot be one plan: such a call goes on as an uncompiled one from there, in segments that end
    where values are read, and later calls of the same structure run the function as it is. `weft.explain(f, x)` says
    where (its `breaks`); with `fullgraph=True` it is an ArgumentError instead.

    Where a result requires grad, calling gives tensors computed lazily, as calling `fn` would, so that gradients flow
    through; a function that calls backward() itself, or whose results are detached, runs as one plan.

    Each shape is traced, but not planned: from the second size on, one plan serves all sizes, until a size has come so
    often that a plan of its own pays (`weft.explain(f, x)` says which it is). With `dynamic=False` each size has a plan
    of its own at once. With `dynamic=True` the first plan is for all sizes of the arguments that can be others (the
    function is recorded with these as well, up to six times), and where axes are marked by `weft.mark_dynamic`, for
    all sizes of these.

    With `numerics`, calls are made in that mode, and their results computed in it: see `weft.numerics`.

    With `memory` (bytes that may be in use on the default device, or on each device by name), calls keep within that as
    in `weft.memory_limit`: values that do not fit are computed again, or spilled, and state that only this function
    replaces (moments, then parameters) rests in the host's memory, or in a file, between calls. Not with `devices`.

    With `devices` (names, a DeviceMesh, or all of a kind such as "cuda:*") the function is spread over them, without
    any annotation: once a call has been traced that makes no new state, on the device where everything is, layouts of
    its arguments and of the state that it uses are chosen by what computing and exchanging takes (`memory`: bytes that
    each device may take for them), the state moves to the devices, and stays there. Results come back whole. With
    `numerics="same"` no sum is split. See manuals/sharding.md.

    The other arguments are torch's, and change nothing but for `disable`, with which the function stays as it is. A
    module's compiled form is a module (nn/compiled.py) that has the original as `_orig_mod`.
    """
    if fn is None:
        return partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, disable=disable, numerics=numerics, devices=devices,
            memory=memory,
        )  # fmt: skip
    if disable:
        return fn
    if not callable(fn):
        raise DTypeError(f"compile: expected a function, got {describe(fn)}")
    already = _compiled_of(fn)
    if already is not None:
        _refuse_other_wishes(already, devices, memory, numerics)
        return fn
    made: CompiledFunction[..., Any]
    if devices is not None:
        made = OverDevices(fn, devices, memory, numerics, fullgraph, dynamic)
    elif memory is not None:
        made = InMemory(fn, memory, numerics, fullgraph, dynamic)
    else:
        made = compiled(fn, fullgraph, dynamic, numerics)
    form: Any = getattr(fn, "_compiled_form", None)
    return made if form is None else form(made)


def _compiled_of(fn: Any) -> CompiledFunction[..., Any] | None:
    """The compiled function that `fn` is, or that calls of a compiled module go to."""
    for found in (fn, getattr(fn, "_compiled", None)):
        if isinstance(found, CompiledFunction):
            return cast("CompiledFunction[..., Any]", found)
    return None


def _refuse_other_wishes(
    already: CompiledFunction[..., Any],
    devices: Any,
    memory: int | Mapping[str, int] | None,
    numerics: Literal["free", "same"] | None,
) -> None:
    """Raise an ArgumentError for what a function that is compiled already would have to be compiled anew for."""
    have = already.asked
    asked = {"devices": devices, "memory": memory, "numerics": numerics}
    for name, value in asked.items():
        if value is not None and value != have.get(name):
            raise ArgumentError(
                f"compile: {name_of(already.fn)} is compiled already, with {name}={have.get(name)!r}, and cannot be "
                f"with {name}={value!r} besides; compile what it was made of, which is its .fn"
            )


def reset() -> None:
    """Have every compiled function trace anew."""
    for function in living():
        function.forget()
