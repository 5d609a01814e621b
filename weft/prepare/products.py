"""Programs of products for all orders that axes may have: the programs that take longest to compile.

    out[i, j] = sum k: a[i, k] * b[k, j]      a[i, k] * b[j, k]      a[k, i] * b[k, j]      a[k, i] * b[j, k]

The same for several matrices at once, which lie side by side or row by row; for one that is multiplied by several; and
for sums over two axes, as gradients of these are. Each for small and large sizes.
"""
# Tests: tests/test_prepare.py

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from weft.backends import registry
from weft.ir.dtypes import float32
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.basic.form import (
    FREE_BOUNDS,
    PRODUCT_BOUNDS,
    REDUCED_BOUNDS,
    SMALL_BOUND,
    Call,
    Form,
    Read,
    canonical,
)
from weft.scheduler.basic.kernels import of_form
from weft.scheduler.programs import compiled

Axes = tuple[int, ...]

LARGE = FREE_BOUNDS[0]


@dataclass(frozen=True, slots=True)
class Layouts:
    """Orders of axes of two factors, the result's `own` axes counted first; `lengths`: bounds of those summed over."""

    own: int
    left: tuple[Axes, ...]
    right: tuple[Axes, ...]
    lengths: tuple[Axes, ...]

    def forms(self, device: str) -> Iterator[Form]:
        """A form of each pair of orders, for sizes of which at least one is small, but for plain matrices."""
        for a, b in product(self.left, self.right):
            tree = canonical(Call(Op.MUL, float32, (Read(0, a), Read(1, b)))).tree
            for own, lengths in product(product((SMALL_BOUND, LARGE), repeat=self.own), self.lengths):
                if self.own == 2 or SMALL_BOUND in own:
                    yield Form(tree, Op.SUM, self.own, (*own, *lengths), (float32, float32), device)


LENGTHS = tuple([(n,) for n in REDUCED_BOUNDS[:1]])

LAYOUTS = (
    Layouts(2, ((0, 2), (2, 0)), ((1, 2), (2, 1)), tuple([(n,) for n in REDUCED_BOUNDS[:2]])),
    Layouts(
        3, ((0, 1, 3), (1, 0, 3), (0, 3, 1), (3, 0, 1)), ((0, 3, 2), (3, 0, 2), (0, 2, 3), (2, 0, 3)), LENGTHS
    ),
    Layouts(3, ((1, 3), (3, 1)), ((0, 3, 2),), tuple([(n,) for n in REDUCED_BOUNDS[:2]])),
    Layouts(3, ((1, 0, 3),), ((2, 3), (3, 2)), LENGTHS),
    Layouts(3, ((0, 3, 4, 2),), ((3, 1, 4),), ((SMALL_BOUND, SMALL_BOUND), (REDUCED_BOUNDS[0], SMALL_BOUND))),
    *[
        Layouts(2, (a,), (b,), (*product(PRODUCT_BOUNDS[:2], repeat=2), (SMALL_BOUND, PRODUCT_BOUNDS[2])))
        for a, b in (
            ((2, 0, 3), (2, 1, 3)),
            ((2, 3, 0), (3, 2, 1)),
            ((2, 3, 1), (3, 2, 0)),
            ((1, 2, 3), (2, 0, 3)),
        )
    ],
)


@dataclass(frozen=True, slots=True)
class Products:
    """The programs of products in all layouts."""

    name: str = "products"
    layouts: Sequence[Layouts] = LAYOUTS

    def run(self) -> None:
        """Compile them."""
        device = registry.open_device("cpu:0")
        for layouts in self.layouts:
            for form in layouts.forms(device.info.name):
                kernels = of_form(form, device.info.bounds.parameters)
                compiled(
                    [s.algorithm for s in kernels.specs], device
                )  # one by one: what is loaded together is used so
