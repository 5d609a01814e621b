"""Requirements of a function on its arguments beyond their types, stated above it:

    @needs(floats("input"), one_dtype("input", "weight"), at_least("eps", 0))
    def batch_norm(input, ..., weight, bias, ..., eps): ...

Each requirement is a small function of the function's name and its arguments by name, that raises what is wrong, with
shapes, dtypes and the remedy. They are looked at once for each structure of the arguments.
"""
# Tests: tests/core/test_torch_samples.py

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

from weft.core.args.handle import Handle, describe
from weft.errors import ArgumentError, DTypeError, ShapeError, wraps_calls
from weft.ir.dtypes import DType, bool_, float32

wraps_calls(__file__)

P = ParamSpec("P")
R = TypeVar("R")
Given: TypeAlias = Mapping[str, Any]
"""A call's arguments by name; those that are left to their defaults are not among them."""
Requirement: TypeAlias = Callable[[str, Given], None]
Guard: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], None]
"""Looks at a call's arguments before it: see argument_types.py."""


def needs(*requirements: Requirement) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The function, whose arguments are looked at before it is run."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        op = function.__name__.removeprefix("torch_").removeprefix("_")
        names = tuple(inspect.signature(function).parameters)
        passed: set[tuple[Any, ...]] = set()
        typed: list[tuple[int, Guard]] = []

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            key = None if kwargs else _structure(args)
            if key is None or key not in passed:
                if typed and (kwargs or len(args) > typed[0][0]):
                    typed[0][1](args, kwargs)
                given = dict(zip(names, args, strict=False))
                given.update(kwargs)
                for requirement in requirements:
                    requirement(op, given)
                if key is not None:
                    if len(passed) >= PASSED:
                        passed.clear()
                    passed.add(key)
            return function(*args, **kwargs)

        def guarded_by(first: int, guard: Guard) -> None:
            """Have types looked at, by `guard`, where there are more arguments than `first` or named ones."""
            typed.append((first, guard))

        taking: Any = call
        taking.guarded_by = guarded_by
        return call

    return decorate


PASSED = 256
"""Structures of arguments of one function that are known to be right; then all are forgotten."""

_SIMPLE = frozenset({int, float, bool, str, type(None), DType})


def _structure(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The dtypes, shapes and plain values that requirements look at; None where there are other arguments."""
    key: list[Any] = []
    for a in args:
        if isinstance(a, Handle):
            n = a.value.node
            key += (n.dtype, n.shape)
        elif a.__class__ in _SIMPLE:
            key += (a.__class__, a)
        else:
            return None
    return tuple(key)


def _dtype(given: Given, name: str) -> DType | None:
    x = given.get(name)
    return x.value.dtype if isinstance(x, Handle) else None


def floats(*names: str, unless: str | None = None) -> Requirement:
    """These are float tensors, unless the argument `unless` converts them; then that is a float dtype."""

    def check(op: str, given: Given) -> None:
        to = given.get(unless) if unless is not None else None
        if isinstance(to, DType):
            if not to.is_float:
                raise DTypeError(f"{op}: {unless} must be a float dtype, got {to.name}")
            return
        for name in names:
            dtype = _dtype(given, name)
            if dtype is not None and not dtype.is_float:
                raise DTypeError(
                    f"{op}: {name} must be a float tensor, got {dtype.name}; convert it with .float()"
                )

    return check


def no_bools(*names: str) -> Requirement:
    """These are tensors of numbers."""

    def check(op: str, given: Given) -> None:
        for name in names:
            if _dtype(given, name) is bool_:
                raise DTypeError(f"{op}: not defined on bool, which {name} is; convert it with .to(...)")

    return check


def one_dtype(*names: str, mixed: bool = False) -> Requirement:
    """These, where given, have one dtype; with `mixed` the others may be float32 where the first has 16 bits."""

    def check(op: str, given: Given) -> None:
        first: tuple[str, DType] | None = None
        for name in names:
            dtype = _dtype(given, name)
            if dtype is None:
                continue
            if first is None:
                first = name, dtype
            elif dtype is not first[1]:
                if mixed and dtype is float32 and first[1].is_float and first[1].bits == 16:
                    continue
                raise DTypeError(
                    f"{op}: {first[0]} is {first[1].name} and {name} is {dtype.name}; they must have one dtype, so "
                    "convert one with .to(...)"
                )

    return check


def integers_of(name: str, *dtypes: DType) -> Requirement:
    """A tensor of one of these integer dtypes."""

    def check(op: str, given: Given) -> None:
        dtype = _dtype(given, name)
        if dtype is not None and dtype not in dtypes:
            wanted = " or ".join(d.name for d in dtypes)
            raise DTypeError(f"{op}: {name} must be {wanted}, got {dtype.name}; convert it with .to(...)")

    return check


def at_least(name: str, low: float, above: bool = False) -> Requirement:
    """A number that is `low` or more, or, with `above`, more; no NaN."""

    def check(op: str, given: Given) -> None:
        x = given.get(name)
        if isinstance(x, (int, float)) and not (x > low if above else x >= low):
            how = f"more than {low}" if above else f"{low} or more"
            raise ArgumentError(f"{op}: {name} must be {how}, got {x}")

    return check


def finite(*names: str) -> Requirement:
    """Numbers that are neither infinite nor NaN."""

    def check(op: str, given: Given) -> None:
        for name in names:
            x = given.get(name)
            if isinstance(x, float) and not abs(x) < float("inf"):
                raise ArgumentError(f"{op}: {name} must be a finite number, got {x}")

    return check


def one_of(name: str, *choices: str) -> Requirement:
    """One of these texts."""

    def check(op: str, given: Given) -> None:
        x = given.get(name, choices[0])
        if x not in choices:
            raise ArgumentError(f"{op}: {name} must be {' or '.join(map(repr, choices))}, got {describe(x)}")

    return check


def at_most_dims(name: str, most: int) -> Requirement:
    """A tensor of no more than so many dimensions."""

    def check(op: str, given: Given) -> None:
        x = given.get(name)
        if isinstance(x, Handle) and len(x.value.shape) > most:
            wanted = "one dimension" if most == 1 else f"{most} dimensions"
            raise ShapeError(
                f"{op}: {name} must have {wanted} at most, got shape {tuple(x.value.shape)}; use .reshape(...)"
            )

    return check


def filled(name: str, spatial: int) -> Requirement:
    """An image: in its channels and last `spatial` dimensions it has elements, whatever the batch has."""

    def check(op: str, given: Given) -> None:
        x = given.get(name)
        if isinstance(x, Handle):
            shape = tuple(x.value.shape)
            inner = shape[1:] if len(shape) == spatial + 2 else shape
            if 0 in inner:
                raise ShapeError(f"{op}: only the batch may be empty, got {name} of shape {shape}")

    return check


def same_lead(name: str, drop: int, of: str, of_drop: int) -> Requirement:
    """The sizes of `name` but for its last `drop` are those of `of` but for its last `of_drop`."""

    def check(op: str, given: Given) -> None:
        x, y = given.get(name), given.get(of)
        if isinstance(x, Handle) and isinstance(y, Handle):
            a, b = tuple(x.value.shape), tuple(y.value.shape)
            if a[: len(a) - drop] != b[: len(b) - of_drop]:
                raise ShapeError(
                    f"{op}: {name} of shape {a} does not fit {of} of shape {b}: it must have "
                    f"{len(b) - of_drop + drop} dimensions, of which the first are {b[: len(b) - of_drop]}"
                )

    return check
