"""The context of a thread or asyncio task: whether operations are recorded, what is cast, where tensors are made.

All modes are fields of one immutable `Context` in one context variable: what is entered in one thread or task does not
show in another. A thread starts with the defaults, a task with the context of whoever made it. Data of a thread (what
it changed, what it made lately) is no mode, and stays in tables of the thread: see manuals/caches.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Self

from weft import settings
from weft.ir.dtypes import DType, float32
from weft.ir.graph import Node
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Casts:
    """The rule of `autocast`: tensors on devices of this kind, and the dtype of products."""

    kind: str
    dtype: DType


class Context(NamedTuple):
    """The modes. A named tuple: another one that differs in one field takes a tenth of a dataclass's bytecodes."""

    grad: bool = True
    """True where operations are recorded for gradients."""
    inference: bool = False
    """True where the innermost `inference_mode` is on."""
    casts: Casts | None = None
    """The rule of the innermost `autocast`."""
    dtype: DType | None = None
    """The default dtype that this thread set; None where that of the main thread holds."""
    device: str | None = None
    """The default device that this thread set, "" for the configured one; None where that of the main thread holds."""
    devices: tuple[str, ...] = ()
    """The devices of `with weft.device(...)`, the innermost last."""
    inline: bool = False
    """True where composed functions are run, rather than called as one node."""
    recording: bool = False
    """True where a composed function is run on placeholders, to be recorded."""
    stand_ins: bool = False
    """True where a function, or a rule of the tape, is run on placeholders: compiled functions are run as they are."""
    unrounded: bool = False
    """True where a function is run only for the dtypes of its results."""
    lifted: Callable[[bool | int | float, DType, str], Node | None] | None = None
    """Gives the leaf that a number is read from, in a step that is repeated; see core/compile/lifting.py."""
    plain_subclasses: bool = False
    """True where `__torch_function__` of subclasses is passed over."""
    function_modes: tuple[Any, ...] = ()
    """The torch function modes that are entered, the innermost last."""
    trace: Any = None
    """The trace that is made; see core/execute/tracing.py."""
    watch: Callable[[list[Node]], object] | None = None
    """The function that is told of nodes that are computed."""
    pinned: bool = False
    """True within `numerics("same")`; what reads no context has it in ir/numerics.py."""


_DEFAULTS = Context()
_variable: ContextVar[Context] = ContextVar("weft", default=_DEFAULTS)

context: Callable[[], Context] = _variable.get
"""The context of this thread or task."""

_set = _variable.set


_NAMES = frozenset(Context._fields)


def _replaced(now: Context, fields: Mapping[str, Any]) -> Context:
    """`now._replace(**fields)`, in fewer steps of the interpreter: fewest for recording alone, at each step."""
    alone = len(fields) == 1 and "grad" in fields
    every = (fields["grad"], *now[1:]) if alone else map(fields.get, Context._fields, now)
    return tuple.__new__(Context, every)  # pyright: ignore[reportUnknownMemberType]


def change(**fields: Any) -> None:
    """Have the context of this thread or task differ in these fields from here on."""
    _set(context()._replace(**fields))


def enter(**fields: Any) -> None:
    """As `change`, at the beginning of a block. Where Ctrl-C comes, the context is as before: there will be no end."""
    before = context()
    try:
        _set(_replaced(before, fields))
    except BaseException:  # signals are looked for when a call returns
        _set(before)
        raise


def restore(before: Context) -> None:
    """Have the modes be those of `before` again, but for the trace, which may have been left since."""
    now = context()
    _set(before._replace(trace=now.trace, watch=now.watch))


class switched:  # noqa: N801  (reads as what it does)
    """A context that differs in these fields within the block, which may be nested and entered again. At its end the
    fields have their values from before, and others are left alone: blocks may end in any order.

    No generator: one whose end is interrupted would switch back when it is collected, in the midst of something else.
    """

    __slots__ = ("_before", "_fields")

    def __init__(self, **fields: Any) -> None:
        assert fields.keys() <= _NAMES, fields
        self._fields = fields
        self._before: list[tuple[Context, Context]] = []

    def __enter__(self) -> Self:
        before = context()
        within = _replaced(before, self._fields)
        self._before.append((before, within))
        try:
            _set(within)
        except BaseException:  # as in `enter`, written out: blocks are entered at every step
            _set(before)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        now = context()
        before, within = self._before[-1]
        if now is not within:  # something else has changed, and stays so
            before = _replaced(now, {name: getattr(before, name) for name in self._fields})
        _set(before)
        self._before.pop()


# ------------------------------------------------------------------------------------------------ gradients


def grad_enabled() -> bool:
    """True where operations record how they were made: everywhere but under `no_grad`."""
    return context().grad


def grad_mode(enabled: bool) -> switched:
    """Recording switched on or off within the block."""
    return switched(grad=enabled)


# ------------------------------------------------------------------------------------------------ defaults


@dataclass(slots=True)
class MainDefaults:
    """The defaults that the main thread set, which hold in threads that set nothing."""

    dtype: DType = float32
    device: str = ""
    """Empty for the configured device."""


main = MainDefaults()


def set_default(field: str, value: Any) -> None:
    """Set the default dtype or device: for this thread or, in the main thread, for all that set none."""
    if threading.current_thread() is threading.main_thread():
        setattr(main, field, value)
        value = None
    change(**{field: value})


def configured_device() -> str:
    """The device that the environment names."""
    name = settings.device()
    return name if ":" in name else f"{name}:0"


def default_device() -> str:
    """The device on which new tensors are made: the innermost `with weft.device(...)`, else the one that was set, else
    the configured one."""
    now = context()
    if now.devices:
        return now.devices[-1]
    return (main.device if now.device is None else now.device) or configured_device()


def device_of_files() -> str | None:
    """The device of values computed from files alone, which are new tensors, too. None for the configured
    device, on which nodes without a device are computed anyway."""
    name = default_device()
    return None if name == configured_device() else name
