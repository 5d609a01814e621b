"""A contraction on thread blocks: which of its axes are tiled."""
# Tests: tests/scheduler/test_golden.py, tests/scheduler/optimize/test_gpu_matrix.py

from __future__ import annotations

from math import prod

from weft.ir.expr import Expr
from weft.ir.index import ceildiv, coefficient, high
from weft.ir.kernel.algorithm import Axis
from weft.ir.kernel.schedule import Kernel
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.contraction_form import Contraction


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction whose `rows` and `columns` are tiled (the columns are of its factor `side`), and whose longest
    summed axis, `depth`, is taken in steps."""

    kernel: Kernel
    contraction: Contraction
    rows: Axis
    columns: Axis
    side: int
    depth: Axis

    @property
    def factors(self) -> tuple[Expr, Expr]:
        """The factors that go along rows and along columns."""
        return self.contraction.factors[1 - self.side], self.contraction.factors[self.side]

    @property
    def others(self) -> int:
        """Results for each row and column."""
        return prod(high(a.extent) for a in self.contraction.value.axes if a not in (self.rows, self.columns))

    def blocks(self, rows: int, columns: int) -> int:
        """Blocks with tiles of so many rows and columns."""
        return (
            ceildiv(high(self.rows.extent), rows) * ceildiv(high(self.columns.extent), columns) * self.others
        )

    def loops(self, k: Kernel) -> tuple[str, str]:
        """The output's loops over rows and columns."""
        return self.contraction.loop_of(k, self.rows), self.contraction.loop_of(k, self.columns)

    def runs(self, k: Kernel, loop: str, axis: Axis) -> bool:
        """The value's loop runs along the axis."""
        nest = k.nests[self.contraction.value.name]
        spec = nest.loop(loop)
        return spec is not None and coefficient(nest.bind[axis.var], spec.var) == 1
