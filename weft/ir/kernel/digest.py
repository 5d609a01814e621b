"""A hash of an algorithm that is the same in every process: by it, code is found on disk.

Expressions are DAGs whose text may be exponentially longer, so each distinct one is numbered when all inside it are,
and stands for itself by its number afterwards. Nothing is left out: names, dtypes, the bits of constants, bounds.
"""
# Tests: tests/scheduler/test_kernel_cache.py

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, bits
from weft.ir.index import Index
from weft.ir.kernel.algorithm import Algorithm
from weft.naming import own_name


@own_name()
def digest(algorithm: Algorithm) -> str:
    """SHA-256 of everything that makes `algorithm` equal to another one, in hexadecimal."""
    return _Digest().of(algorithm)


class _Digest:
    def __init__(self) -> None:
        self.numbers: dict[Expr | Index, str] = {}
        self.hash = hashlib.sha256()

    def of(self, algorithm: Algorithm) -> str:
        missing: list[Expr | Index] = []
        self.text(algorithm, missing)
        self.number(missing)
        self.hash.update(self.text(algorithm, missing).encode())
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
        if kind is int:
            return repr(x)
        if isinstance(x, Expr | Index):
            number = self.numbers.get(x)
            if number is None:
                missing.append(x)
                return ""
            return number
        if isinstance(x, DType | Enum):
            return f"{kind.__name__}.{x.name}"
        if is_dataclass(x):
            parts = [self.text(getattr(x, f.name), missing) for f in fields(x)]
            return f"{kind.__name__}({','.join(parts)})"
        return repr(x)


def _parts(node: Expr | Index) -> tuple[Any, ...]:
    """The parts of a node."""
    return (node.dtype, bits(node.value)) if isinstance(node, Const) else node.fields()
