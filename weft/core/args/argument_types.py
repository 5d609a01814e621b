"""Types of arguments, read from a function's annotations: `keepdim: bool` takes no 2, `eps: float` no text.

A flag of another type would pass in silence, since everything is true or false, and a number of another type fail deep
inside, under the name of a helper. So what a signature says is checked around the functions that users call, in one
place. Tensors, dimensions and dtypes are not looked at here: the functions that read them say more about them.
"""
# Tests: tests/core/args/test_argument_types.py, tests/core/test_torch_samples.py

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, cast

import numpy as np

from weft.core.args.handle import Handle, describe
from weft.errors import DTypeError, wraps_calls
from weft.ir.index import Index
from weft.lazy_dataclass import dataclass

wraps_calls(__file__)


@dataclass(frozen=True, slots=True)
class Kind:
    """A parameter's type: its `words` in messages, the classes that fit as they are, a test for others."""

    words: str
    exact: frozenset[type]
    fits: Callable[[Any], bool]


def _known(x: Any) -> bool:
    """An integer, or what stands for one: NumPy's, a tensor of one integer."""
    if isinstance(x, Handle):
        return not x.value.dtype.is_float and all(n == 1 for n in x.value.shape)
    return not isinstance(x, (bool, np.bool_)) and isinstance(x, (int, np.integer))


def _whole(x: Any) -> bool:
    """The same, or one known at run time."""
    return isinstance(x, Index) or _known(x)


def _number(x: Any) -> bool:
    if isinstance(x, Handle):
        return all(n == 1 for n in x.value.shape)
    return isinstance(x, (int, float, np.number, np.bool_))


def _flag(x: Any) -> bool:
    return isinstance(x, (bool, np.bool_)) or (isinstance(x, Handle) and x.value.dtype.name == "bool")


def _sequence(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def test(x: Any) -> bool:
        if isinstance(x, np.ndarray):
            return True
        return isinstance(x, (tuple, list)) and all(fits(i) for i in cast("Sequence[Any]", x))

    return test


_INT, _SIZE = (Kind("an int", frozenset({int}), fits) for fits in (_known, _whole))
_INTS, _SIZES = (Kind("a tuple of ints", frozenset(), _sequence(fits)) for fits in (_known, _whole))
KINDS: Mapping[str, Kind] = {
    "bool": Kind("True or False", frozenset({bool}), _flag),
    "int": _INT,
    "Int": _SIZE,
    "float": Kind("a number", frozenset({float, int}), _number),
    "Number": Kind("a number", frozenset({float, int, bool}), _number),
    "str": Kind("a str", frozenset({str}), lambda x: isinstance(x, str)),
    "None": Kind("None", frozenset({type(None)}), lambda x: x is None),
    "Tensor": Kind("a Tensor", frozenset(), lambda x: isinstance(x, Handle)),
    "Sequence[int]": _INTS,
    "Sequence[Int]": _SIZES,
    "tuple[int, ...]": _INTS,
    "tuple[int, int]": _INTS,
    "Shape": _SIZES,
    "Sequence[float]": Kind("a tuple of numbers", frozenset(), _sequence(_number)),
}
"""The parts of annotations that say something here; a parameter with any other part takes what its function takes."""

_SHORT = {"PerAxis": "int | Sequence[int]", "Sizes": "int | Sequence[int]"}
_ELSEWHERE = frozenset(
    {"dim", "dims", "dim0", "dim1", "dim2", "axis", "sizes", "size", "output_size", "dtype", "device"}
)
"""Parameters that every function gives to a reader of their own, whose messages name the shape."""
_ASKED = frozenset({"dim", "dim0", "dim1", "dim2", "axis", "output_size"})
"""Parameters of many functions, whose readers refuse what is known at run time only: one call less for these."""
_INTEGERS = frozenset({"int", "Dims", "Sequence[int]", "Sequence[Sequence[int]]", "None"})
"""The parts of annotations of such parameters that take nothing that is known at run time only."""
_NOW = Kind("known", frozenset({int, type(None)}), lambda x: not any(_at_run_time(x)))


@cache
def _kind(annotation: str) -> Kind | None:
    """The kind that an annotation asks for; None where it is not checked."""
    for name, meaning in _SHORT.items():
        annotation = annotation.replace(name, meaning)
    parts = [p.strip() for p in annotation.split("|")]
    kinds = [KINDS.get(p) for p in dict.fromkeys(parts)]
    known = [k for k in kinds if k is not None]
    if len(known) < len(kinds) or parts in (["Tensor"], ["Tensor", "None"]):
        return None
    if len(known) == 1:
        return known[0]
    words = " or ".join(dict.fromkeys(k.words for k in known))
    tests = [k.fits for k in known]
    return Kind(words, frozenset([c for k in known for c in k.exact]), lambda x: any(t(x) for t in tests))


def _kind_of(parameter: str, annotation: str) -> Kind | None:
    """The kind of a parameter: of those that have readers of their own, whether it is known when the op is called."""
    if parameter not in _ELSEWHERE and annotation != "Dims":
        return _kind(annotation)
    is_asked = parameter not in _ASKED and {p.strip() for p in annotation.split("|")} <= _INTEGERS
    return _NOW if is_asked else None


def _at_run_time(x: Any) -> Iterator[Index]:
    """The parts of an argument that are known at run time only."""
    if isinstance(x, Index):
        yield x
    elif isinstance(x, (tuple, list)):
        for i in cast("Sequence[Any]", x):
            yield from _at_run_time(i)


TYPES_KEPT = 64
"""Combinations of argument types that a function remembers as fitting."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters that are checked, by position from `first` on, and by name."""

    name: str
    first: int
    by_position: tuple[Kind | None, ...]
    names: tuple[str, ...]
    by_name: Mapping[str, Kind]
    exact: set[tuple[type, ...]] = field(default_factory=set[tuple[type, ...]], compare=False)
    """Types of positional arguments of which it is known that they fit, TYPES_KEPT of them at most."""

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """DTypeError for an argument of another type than its parameter takes."""
        types = tuple(map(type, args))
        if types not in self.exact:
            self._check_positions(args, types)
        if kwargs:
            by_name = self.by_name
            for name, x in kwargs.items():
                kind = by_name.get(name)
                if kind is not None and x.__class__ not in kind.exact and not kind.fits(x):
                    self._refuse(name, kind, x)

    def _check_positions(self, args: tuple[Any, ...], types: tuple[type, ...]) -> None:
        exact = True
        for k, (kind, x) in enumerate(zip(self.by_position, args[self.first :], strict=False)):
            if kind is not None and x.__class__ not in kind.exact:
                exact = False
                if not kind.fits(x):
                    self._refuse(self.names[self.first + k], kind, x)
        if exact and len(self.exact) < TYPES_KEPT:
            self.exact.add(types)

    def _refuse(self, parameter: str, kind: Kind, x: Any) -> None:
        runtime = next(_at_run_time(x), None)
        if runtime is not None:
            raise DTypeError(
                f"{self.name}: {parameter} must be known when the op is called, got {runtime}, which is known when "
                "a variable is bound; give a number"
            )
        if isinstance(x, (tuple, list)):
            parts = ", ".join(describe(i) for i in cast("Sequence[Any]", x)[:8])
            given = f"({parts})" if isinstance(x, tuple) else f"[{parts}]"
        else:
            given = describe(x)
        raise DTypeError(f"{self.name}: {parameter} must be {kind.words}, got {given}")


def signature(function: Callable[..., Any], name: str | None = None) -> Signature | None:
    """The parameters of a function that are checked; None where there are none, or others check them."""
    inner: Any = function
    while True:
        if getattr(inner, "checked", False):
            return None
        if (wrapped := getattr(inner, "__wrapped__", None)) is None:
            break
        inner = wrapped
    code = getattr(inner, "__code__", None)
    if code is None:
        return None
    given: Mapping[str, Any] = inner.__annotations__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = {n: k for n in names if (k := _kind_of(n, str(given.get(n, "Any")))) is not None}
    if not found:
        return None
    positional = names[: code.co_argcount]
    # what stands after `*sizes` can only be given by name
    first = next((i for i, n in enumerate(positional) if n in found), len(names))
    if code.co_flags & inspect.CO_VARARGS and first < len(names):
        positional = positional[: code.co_argcount]
    kinds = tuple([found.get(n) for n in positional[first:]])
    return Signature(name or inner.__name__, first, kinds, names, found)


def taken_over(function: Any, found: Signature) -> bool:
    """Have a function that looks at the structure of its arguments anyway check their types where that is new."""
    guarded_by = getattr(function, "guarded_by", None)
    if guarded_by is None:
        return False
    guarded_by(found.first, found.check)
    function.checked = True
    return True


def checked(function: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """The function, with the types of its arguments checked; the function itself where nothing is to be checked."""
    found = signature(function, name)
    if found is None or taken_over(function, found):
        return function
    first, check = found.first, found.check

    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            if len(args) > first:
                check(args, kwargs)
            return function(*args)
        check(args, kwargs)
        return function(*args, **kwargs)

    call.__name__, call.__qualname__, call.__doc__ = (
        function.__name__,
        function.__qualname__,
        function.__doc__,
    )
    call.__module__ = function.__module__
    call.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess]  (what inspect.signature follows)
    call.checked = True  # pyright: ignore[reportFunctionMemberAccess]
    return call
