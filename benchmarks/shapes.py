"""The sweep of matrix products: sizes, layouts and types that a schedule must serve, as data.

Square, tall, wide, skinny (one to sixteen rows or columns), long and short inner sizes, primes, transposed operands in
every combination, batches, and types. Sizes are such that each product takes between tens of microseconds and tens of
milliseconds on one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """c[.., m, n] = sum over k of a[.., m, k] * b[.., k, n].

    `a_turned` and `b_turned`: the operand lies in memory as (k, m), or (n, k), and is read through its transpose.
    `batch` counts the products made together (0: none, plain matrices). 16-bit floats accumulate in 32 bits.
    """

    group: str
    m: int
    n: int
    k: int
    batch: int = 0
    a_turned: bool = False
    b_turned: bool = False
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """For tables and file names: "square_512x512x512", "turned_512x512x512_nt", "dtype_256x256x256_float64"."""
        batch = f"{self.batch}x" if self.batch else ""
        turned = f"_{'t' if self.a_turned else 'n'}{'t' if self.b_turned else 'n'}"
        return (
            f"{self.group}_{batch}{self.m}x{self.n}x{self.k}"
            + (turned if self.a_turned or self.b_turned else "")
            + (f"_{self.dtype}" if self.dtype != "float32" else "")
        )

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * max(self.batch, 1) * self.m * self.n * self.k

    @property
    def elements(self) -> int:
        """Elements that must at least move: both operands once, the result once."""
        return max(self.batch, 1) * (self.m * self.k + self.k * self.n + self.m * self.n)


_SQUARE = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_PRIMES = (
    (31, 37, 41), (61, 67, 71), (127, 131, 137), (251, 257, 263), (509, 521, 503), (1009, 127, 61), (97, 1013, 211),
    (257, 263, 2053),
)  # fmt: skip
_OBLONG = (
    (4096, 64, 64), (64, 4096, 64), (64, 64, 4096), (8192, 32, 128), (128, 3072, 768), (128, 768, 3072),
    (2048, 256, 64), (64, 576, 25088), (512, 10, 784), (16384, 16, 16), (48, 48, 8192), (3000, 300, 30),
)  # fmt: skip
_SKINNY = (1, 2, 3, 4, 6, 8, 12, 16)
_BATCHES = (
    (12, 128, 128, 64), (12, 128, 64, 128), (8, 512, 512, 64), (64, 32, 32, 32), (256, 16, 16, 16), (1000, 4, 4, 4),
    (96, 50, 50, 50), (16, 1, 128, 64),
)  # fmt: skip
_TYPES = ("float64", "bfloat16", "float16", "int32", "int8")


def _products() -> Iterator[Product]:
    yield from (Product("square", n, n, n) for n in _SQUARE)
    yield from (Product("prime", *p) for p in _PRIMES)
    yield from (Product("oblong", *p) for p in _OBLONG)
    for m in _SKINNY:
        yield Product("skinny", m, 1024, 1024)
        yield Product("skinny", m, 1024, 1024, b_turned=True)
        yield Product("skinny", 1024, m, 1024)
    for a, b in ((True, False), (False, True), (True, True)):
        yield from (Product("turned", n, n, n, a_turned=a, b_turned=b) for n in (200, 512, 1024))
        yield Product("turned", 128, 768, 768, a_turned=a, b_turned=b)
    yield from (Product("batch", m, n, k, batch) for batch, m, n, k in _BATCHES)
    yield from (Product("batch", 128, 128, 64, 12, b_turned=t, a_turned=not t) for t in (True, False))
    for t in _TYPES:
        yield from (Product("dtype", n, n, n, dtype=t) for n in (128, 500))


PRODUCTS: tuple[Product, ...] = tuple(_products())
"""The sweep, in the order of its tables."""
