"""A hash of an algorithm, or of what else is made of such parts, that is the same in every process: code, and kernels
of forms, are found on disk by it.

Expressions are DAGs whose text may be exponentially longer, so each distinct one is numbered when all inside it are,
and stands for itself by its number afterwards. Nothing is left out: names, dtypes, the bits of constants, bounds.
"""
# Tests: tests/scheduler/test_kernel_cache.py

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any

from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, bits
from weft.ir.forks import forkable
from weft.ir.index import Index
from weft.ir.kernel.algorithm import Algorithm
from weft.naming import own_name

DIGESTS_KEPT = 2048
"""Digests of algorithms in memory; the one made longest ago goes first."""

_lock = forkable(threading.Lock())
_digests: dict[Algorithm, str] = {}
"""Written to with the lock: plans are made with one of their own, and programs with another."""


def digest(algorithm: Algorithm) -> str:
    """SHA-256 of everything that makes `algorithm` equal to another one, in hexadecimal."""
    found = _digests.get(algorithm)
    if found is None:
        found = digest_of(algorithm)
        remember(algorithm, found)
    return found


def remember(algorithm: Algorithm, digest: str) -> None:
    """Have `digest` know that of an algorithm."""
    with _lock:
        _digests[algorithm] = digest
        if len(_digests) > DIGESTS_KEPT:
            del _digests[next(iter(_digests))]


@own_name()
def digest_of(value: Any) -> str:
    """SHA-256 of a value that is made of tuples, dataclasses, expressions, dtypes and ops, in hexadecimal."""
    return _Digest().of(value)


_PLAIN = frozenset({int, str, float, bool, bytes, type(None)})


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """The names of a dataclass's fields. TypeError for another class: its text may be that of several objects."""
    return tuple([f.name for f in fields(kind)])


class _Digest:
    def __init__(self) -> None:
        self.numbers: dict[Expr | Index, str] = {}
        self.hash = hashlib.sha256()

    def of(self, value: Any) -> str:
        missing: list[Expr | Index] = []
        text = self.text(value, missing)
        if missing:
            self.number(missing)
            text = self.text(value, missing)
        self.hash.update(text.encode())
        return self.hash.hexdigest()

    def number(self, roots: Sequence[Expr | Index]) -> None:
        """Number and hash all expressions under `roots`, operands before users; without recursion over depth."""
        numbers = self.numbers
        stack = list(reversed(roots))
        while stack:
            node = stack[-1]
            if node in numbers:
                stack.pop()
                continue
            missing: list[Expr | Index] = []
            text = self.text(_parts(node), missing)
            if missing:
                missing.reverse()
                stack += missing
                continue
            stack.pop()
            numbers[node] = f"#{len(numbers)}"
            self.hash.update(f"{node.__class__.__name__}{text};".encode())

    def text(self, x: Any, missing: list[Expr | Index]) -> str:
        """The text of `x`; expressions by their number, those without one are added to `missing`."""
        kind = x.__class__
        if kind is tuple:
            return f"({','.join([self.text(y, missing) for y in x])})"
        if kind in _PLAIN:
            return repr(x)
        if isinstance(x, Expr | Index):
            number = self.numbers.get(x)
            if number is None:
                missing.append(x)
                return ""
            return number
        if isinstance(x, DType | Enum):
            return f"{kind.__name__}.{x.name}"
        parts = [self.text(getattr(x, name), missing) for name in _names(kind)]
        return f"{kind.__name__}({','.join(parts)})"


def _parts(node: Expr | Index) -> tuple[Any, ...]:
    """The parts of a node."""
    return (node.dtype, bits(node.value)) if isinstance(node, Const) else node.fields()
