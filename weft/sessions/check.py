"""Sessions against references, as another framework gives them: the first value that is another one.

s.check([(ids, logits)])                         results
s.check([(ids, {"layers.0": h, "": logits})])    outputs of modules by name, in the order of calls
"""
# Tests: tests/sessions/test_plans.py

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from weft.core.args.handle import Handle
from weft.core.args.modes import no_grad
from weft.core.args.structure import flatten
from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first value that is another one than the reference: of which pair, its name, the place of the largest error
    and the two values there. `whole`: the function alone, without a session, has it, too."""

    pair: int
    name: str
    index: tuple[int, ...]
    found: float
    expected: float
    whole: bool

    def __str__(self) -> str:
        where = "" if not self.index else f" at {list(self.index)}"
        whose = "the function's own, with or without a session" if self.whole else "the session's alone"
        return f"pair {self.pair}: {self.name} is {self.found:g}{where}, not {self.expected:g}; {whose}"


def checked(
    run: Callable[..., Any],
    fn: Callable[..., Any],
    references: Sequence[tuple[Any, Any]],
    atol: float,
    rtol: float,
) -> Deviation | None:
    """The first deviation of `run`, a session of `fn`, from pairs of inputs and outputs, in their order."""
    for k, (inputs, outputs) in enumerate(references):
        args = cast("tuple[Any, ...]", inputs if isinstance(inputs, tuple) else (inputs,))
        named = cast("Mapping[str, Any]", outputs) if isinstance(outputs, Mapping) else None
        got = run(*args)
        if named is not None:
            found = _of_modules(fn, args, k, {n: x for n, x in named.items() if n}, atol, rtol)
            if found is not None or "" not in named:
                if found is not None:
                    return found
                continue
            outputs = named[""]
        wrong = _first(got, outputs, atol, rtol)
        if wrong is not None:
            with no_grad():
                alone = _first(fn(*args), outputs, atol, rtol)
            name, index, a, b = wrong
            return Deviation(k, name, index, a, b, alone is not None)
    return None


def _of_modules(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    pair: int,
    named: Mapping[str, Any],
    atol: float,
    rtol: float,
) -> Deviation | None:
    """The first module whose output is another one than its reference, in the order of calls."""
    if not named:
        return None
    list_modules: Callable[[], Iterable[tuple[str, Any]]] | None = getattr(fn, "named_modules", None)
    if list_modules is None:
        raise ArgumentError("check: names of modules are given, and the session is of a function")
    modules = dict(list_modules())
    missing = [n for n in named if n not in modules]
    if missing:
        raise ArgumentError(
            f"check: there is no module {missing[0]!r}; some are {', '.join(list(modules)[1:6])}"
        )
    outputs: list[tuple[str, Any]] = []

    def noting(name: str) -> Callable[..., None]:
        return lambda *args: outputs.append((name, args[-1]))

    handles = [modules[name].register_forward_hook(noting(name)) for name in named]
    try:
        with no_grad():
            fn(*args)
    finally:
        for handle in handles:
            handle.remove()
    for name, out in outputs:
        wrong = _first(out, named[name], atol, rtol)
        if wrong is not None:
            _, index, a, b = wrong
            return Deviation(pair, name, index, a, b, True)
    return None


def _first(
    got: Any, wanted: Any, atol: float, rtol: float
) -> tuple[str, tuple[int, ...], float, float] | None:
    """The name, the place, the value and the reference of the first of several results that is another one."""
    tensors: list[Any] = []
    flatten(got, tensors, {})
    references = list(_leaves(wanted))
    if len(tensors) != len(references):
        raise ArgumentError(f"check: {len(tensors)} results have {len(references)} references")
    for k, (t, reference) in enumerate(zip(tensors, references, strict=True)):
        a, b = np.asarray(t.numpy()), np.asarray(reference)
        name = f"result {k}" if len(tensors) > 1 else "the result"
        if a.shape != b.shape:
            raise ArgumentError(f"check: {name} has the shape {a.shape}, and its reference {b.shape}")
        same = np.isclose(a, b, atol=atol, rtol=rtol, equal_nan=True)
        if not same.all():
            wide = [x.astype(np.complex128 if np.iscomplexobj(x) else np.float64) for x in (a, b)]
            error = np.where(same, 0.0, np.nan_to_num(np.abs(wide[0] - wide[1]), nan=np.inf, posinf=np.inf))
            at = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
            return name, at, float(a[at].real), float(b[at].real)
    return None


def _leaves(tree: Any) -> list[Any]:
    """The arrays of nested lists, tuples and dicts, in their order."""
    match tree:
        case Handle():
            return [cast("Any", tree).numpy()]
        case dict():
            return [x for part in cast("dict[Any, Any]", tree).values() for x in _leaves(part)]
        case list() | tuple() if not all(isinstance(x, int | float) for x in cast("Sequence[Any]", tree)):
            return [x for part in cast("Sequence[Any]", tree) for x in _leaves(part)]
        case _:
            return [tree]
