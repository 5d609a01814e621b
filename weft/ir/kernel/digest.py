"""A hash of an algorithm that is the same in every process: by it, code is found on disk.

Expressions are DAGs whose text may be exponentially longer, so each distinct one is numbered when all inside it are,
and stands for itself by its number afterwards. Nothing is left out: names, dtypes, the bits of constants, bounds.
"""
# Tests: tests/scheduler/test_kernel_cache.py

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, bits
from weft.ir.index import Index
from weft.ir.kernel.algorithm import Algorithm


def digest(algorithm: Algorithm) -> str:
    """SHA-256 of everything that makes `algorithm` equal to another one, in hexadecimal."""
    return _Digest().of(algorithm)


class _Digest:
    def __init__(self) -> None:
        self.numbers: dict[Expr | Index, int] = {}
        self.hash = hashlib.sha256()

    def of(self, algorithm: Algorithm) -> str:
        self.number(algorithm)
        self.hash.update(self.text(algorithm).encode())
        return self.hash.hexdigest()

    def number(self, root: Any) -> None:
        """Number and hash all expressions inside `root`, operands before users; without recursion over depth."""
        stack: list[Any] = list(reversed(_inside(root)))
        while stack:
            node = stack[-1]
            if node in self.numbers:
                stack.pop()
                continue
            parts = _parts(node)
            missing = [x for x in _inside(parts) if x not in self.numbers]
            if missing:
                missing.reverse()
                stack += missing
                continue
            stack.pop()
            self.numbers[node] = len(self.numbers)
            self.hash.update(f"{type(node).__name__}{self.text(parts)};".encode())

    def text(self, x: Any) -> str:
        """The text of `x`; expressions by their number."""
        if isinstance(x, Expr | Index):
            return f"#{self.numbers[x]}"
        if isinstance(x, tuple):
            return f"({','.join([self.text(y) for y in x])})"  # pyright: ignore[reportUnknownVariableType]
        if isinstance(x, DType | Enum):
            return f"{type(x).__name__}.{x.name}"
        if is_dataclass(x):
            return f"{type(x).__name__}({','.join([self.text(getattr(x, f.name)) for f in fields(x)])})"
        return repr(x)


def _parts(node: Expr | Index) -> tuple[Any, ...]:
    """The parts of a node."""
    return (node.dtype, bits(node.value)) if isinstance(node, Const) else node.fields()


def _inside(x: Any) -> list[Expr | Index]:
    """The outermost expressions in a structure of tuples and dataclasses."""
    if isinstance(x, Expr | Index):
        return [x]
    if isinstance(x, tuple):
        return [e for y in x for e in _inside(y)]  # pyright: ignore[reportUnknownVariableType]
    if is_dataclass(x) and not isinstance(x, DType):
        return [e for f in fields(x) for e in _inside(getattr(x, f.name))]
    return []
