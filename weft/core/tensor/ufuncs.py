"""NumPy's universal functions of tensors: `np.sqrt(t)`, `array @ t`, `array += t`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from weft.core.args.handle import Handle
from weft.core.execute import host_operations
from weft.core.layout.creation import tensor
from weft.errors import GradError

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_RENAMED = {
    "equal": "eq", "fabs": "abs", "invert": "bitwise_not", "left_shift": "bitwise_left_shift", "mod": "remainder",
    "not_equal": "ne", "power": "pow", "rint": "round", "degrees": "rad2deg", "radians": "deg2rad",
    "right_shift": "bitwise_right_shift",
}  # fmt: skip
"""NumPy's function -> weft's, where the names differ."""


def array_ufunc(ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """Apply a universal function of NumPy to arguments with a tensor: as weft's function of the name, a graph
    node with gradients. What weft has no function for, NumPy computes on the host, a tensor again where it
    was called on tensors alone; with options (`out=`, `where=`) and for methods (`np.add.reduce`) the result
    is NumPy's.

    Raises GradError where NumPy would have to compute what needs a gradient.
    """
    tensors = [x for x in inputs if isinstance(x, Handle)]
    name = _RENAMED.get(ufunc.__name__, ufunc.__name__)
    if method == "__call__" and not options and tensors:
        function = getattr(importlib.import_module("weft"), name, None)
        if function is not None:
            device = cast("Tensor", tensors[0]).device
            return function(*(_operand(x, device) for x in inputs))
    for x in tensors:
        if x.value.needs_grad:
            raise GradError(
                f"numpy.{ufunc.__name__}: NumPy would compute it, and this tensor requires grad; "
                "use weft's functions, or .detach()"
            )
    host_operations.note(f"numpy.{ufunc.__name__}")
    arrays = [np.asarray(x) if isinstance(x, Handle) else x for x in inputs]
    outputs = options.pop("out", None)
    if outputs is not None:
        if any(isinstance(o, Handle) for o in outputs):
            return NotImplemented
        options["out"] = outputs
    result = getattr(ufunc, method)(*arrays, **options)
    if method != "__call__" or options or len(tensors) < len(inputs):
        return result
    device = cast("Tensor", tensors[0]).device
    if isinstance(result, tuple):
        return tuple(tensor(r, device=device) for r in cast("tuple[Any, ...]", result))
    return tensor(result, device=device)


def _operand(x: Any, device: str) -> Any:
    match x:
        case np.generic():
            return cast("Any", x).item()
        case np.ndarray():
            return tensor(cast("Any", x), device=device)
        case _:
            return x
