"""Products on matrix units: loops that compute the same, shared out among threads as the unit's data say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from weft.backends.dummy.interpreter import interpret
from weft.backends.protocol import DeviceInfo
from weft.ir import dtypes
from weft.ir.errors import IRError
from weft.ir.expr import Load, ScalarCall
from weft.ir.kernel.algorithm import Algorithm, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import initial
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.stage import PadRows
from weft.ir.kernel.transforms.tensorize import Tensorize
from weft.ir.loops import Loop, LoopKind, Program
from weft.ir.loops_names import every
from weft.ir.matrix import LayoutFactor, MatrixUnit, Role
from weft.ir.ops import ELEMENTWISE, Op
from weft.ir.passes.grid import launches
from weft.scheduler.lowering import optimized
from weft.scheduler.optimize import gpu_matrix
from weft.scheduler.optimize.rules import schedule
from weft.testing.kernels import axis, mul

E, L = LayoutFactor(Role.ELEMENT, 2), LayoutFactor(Role.LANE, 2)
F, H = dtypes.float32, dtypes.float16

SMALL = MatrixUnit(4, 4, 4, H, F, (E, L), (L, E))
STRIPED = MatrixUnit(8, 4, 2, H, F, (E, L, E), (LayoutFactor(Role.LANE, 4),))

INFO = DeviceInfo(
    name="gpu:0", kind="gpu", description="", cores=2, vector_bytes=16, vector_registers=255, l1_bytes=1 << 17,
    l2_bytes=1 << 22, l3_bytes=0, memory_bytes=1 << 34, local_bytes=1 << 16, bandwidth=1e12, flops=1e13,
    launch_ns=2500.0, task_kind=LoopKind.BLOCK, native=ELEMENTWISE, warp=32, matrix_units=(SMALL,),
)  # fmt: skip


def product(m: int, n: int, k: int, dtype: Any = H) -> Algorithm:
    """y = a @ b with sums in float32."""
    i, j, l = axis("i", m), axis("j", n), axis("l", k)

    def wide(name: str, *index: Any) -> Any:
        load = Load(dtype, name, index)
        return load if dtype is F else ScalarCall(F, Op.CAST, (load,))

    c = ItemValue("c", (i, j), mul(wide("a", i.var, l.var), wide("b", l.var, j.var)), Reduce(Op.ADD, (l,)))
    y, x = axis("y", m), axis("x", n)
    out = Output("out", (y, x), (StoreTo("r", (y.var, x.var), Load(F, "c", (y.var, x.var))),))
    params = (Param("a", dtype, (m, k)), Param("b", dtype, (k, n)), Param("r", F, (m, n), True))
    return Algorithm("product", params, (), (c, out))


def on_units(p: Program) -> bool:
    return any(isinstance(s, Loop) and s.kind is LoopKind.MATRIX for s in every(p.body))


def check(p: Program, m: int, n: int, k: int) -> None:
    """The grids give the product, and no two threads meet."""
    r = np.random.default_rng(0)
    a, b = (r.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    buffers = {"a": a.ravel(), "b": b.ravel(), "r": np.zeros(m * n, np.float32)}
    for g in launches(p, INFO.local_bytes).grids:
        interpret(g, {x.name: buffers[x.name] for x in g.params}, {}, races=True)
    wanted = a.astype(float) @ b.astype(float)
    np.testing.assert_allclose(buffers["r"].reshape(m, n), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("unit", [SMALL, STRIPED], ids=str)
@pytest.mark.parametrize("sizes", [(16, 16, 8), (11, 9, 16)], ids=str)
def test_products(unit: MatrixUnit, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_matrix, "TILES", (gpu_matrix.WarpTile(16, 8, 2, 1),))
    info = replace(INFO, matrix_units=(unit,))
    p = optimized(lower(schedule(product(*sizes), info)), info)
    assert on_units(p)
    check(p, *sizes)


@pytest.mark.parametrize(
    "sizes, dtype, units",
    [
        ((32, 32, 21), H, (SMALL,)),
        ((32, 32, 32), F, (SMALL,)),
        ((32, 32, 32), H, ()),
    ],
    ids=["sum of a size that no instruction divides", "other dtype", "no units"],
)
def test_what_no_unit_serves(sizes: tuple[int, int, int], dtype: Any, units: tuple[MatrixUnit, ...]) -> None:
    info = replace(INFO, matrix_units=units)
    assert not on_units(lower(schedule(product(*sizes, dtype), info)))


def test_refusals() -> None:
    k = initial(product(32, 32, 4))
    with pytest.raises(IRError, match="no product of two staged values"):
        run(k, Tensorize("l", SMALL))
    with pytest.raises(IRError, match="not the innermost loop"):
        run(k, Tensorize("i", SMALL))
    with pytest.raises(IRError, match="no padding"):
        run(k, PadRows("c", -1))
