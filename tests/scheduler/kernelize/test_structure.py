"""What kernels look like: stable text, merged axes, updates in place, reasons, order, bounded sizes, runtime sizes."""

from __future__ import annotations

import importlib
from collections import OrderedDict

import numpy as np
import pytest

from tests.growth import best_ratio
from weft.ir import dtypes, graph
from weft.ir.errors import IRError
from weft.ir.graph import Along, Axes, Box, Node, ScatterCombine, Shape, apply
from weft.ir.index import Var
from weft.ir.kernel.algorithm import Output
from weft.ir.kernel.text import show_algorithm
from weft.ir.ops import Op
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.kernelize.spec import KernelSpec
from weft.scheduler.kernelize.structure import structure
from weft.scheduler.kernelize.text import show_specs
from weft.testing.kernelized import execute
from weft.testing.reference import evaluate


def leaf(*shape: int, dtype: type = np.float32, top: int = 5) -> Node:
    rng = np.random.default_rng(sum(shape))
    values = rng.integers(0, top, shape) if dtype is np.int64 else rng.standard_normal(shape)
    array = values.astype(dtype)
    return graph.buffer(shape, dtypes.from_numpy(array.dtype), "cpu:0", array)


def unary(op: Op, x: Node) -> Node:
    return apply(op, (x,))


def add(x: Node, y: Node | float) -> Node:
    other = y if isinstance(y, Node) else graph.const(y, x.dtype, x.shape)
    return apply(Op.ADD, (x, other))


def total(x: Node, *axes: int) -> Node:
    return apply(Op.SUM, (x,), Axes(axes))


def broadcast(x: Node, shape: Shape) -> Node:
    x = apply(Op.RESHAPE, (x,), None, (1,) * (len(shape) - len(x.shape)) + x.shape)
    return apply(Op.EXPAND, (x,), None, shape)


def matmul(a: Node, b: Node) -> Node:
    (m, k), n = a.shape, b.shape[1]
    left = broadcast_to(a, (m, 1, k), (m, n, k))
    right = broadcast_to(apply(Op.PERMUTE, (b,), Axes((1, 0))), (1, n, k), (m, n, k))
    return total(apply(Op.MUL, (left, right)), 2)


def broadcast_to(x: Node, middle: Shape, shape: Shape) -> Node:
    return apply(Op.EXPAND, (apply(Op.RESHAPE, (x,), None, middle),), None, shape)


def checked(*outputs: Node, **bindings: int) -> list[KernelSpec]:
    for got, want in zip(execute(outputs, bindings), evaluate(outputs, bindings), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return kernelize(outputs)


def text(spec: KernelSpec) -> str:
    return show_algorithm(spec.algorithm)


def test_equal_graphs_have_equal_kernels() -> None:
    def softmax() -> Node:
        x = leaf(4, 6)
        e = unary(Op.EXP, x)
        return apply(Op.DIV, (e, broadcast_to(total(e, 1), (4, 1), (4, 6))))

    (first,), (second,) = kernelize([softmax()]), kernelize([softmax()])
    assert first.algorithm == second.algorithm
    assert hash(first.algorithm) == hash(second.algorithm)
    assert first.reads != second.reads


def test_groups_of_one_structure_have_one_algorithm() -> None:
    x, y = leaf(3, 5), leaf(3, 5)
    first, second = (kernelize([total(unary(Op.EXP, n), 1)])[0] for n in (x, y))
    assert first.algorithm is second.algorithm
    assert (first.reads, second.reads) == ((x,), (y,))
    (third,) = kernelize([total(unary(Op.SIN, x), 1)])
    assert third.algorithm != first.algorithm


@pytest.mark.parametrize("values", [(0.0, -0.0), (1.0, 2.0)])
def test_groups_of_other_constants_have_other_algorithms(values: tuple[float, float]) -> None:
    x = leaf(7)
    made = [kernelize([apply(Op.MAX, (x, graph.const(v, x.dtype, (7,))))])[0].algorithm for v in values]
    assert made[0] != made[1]


def test_groups_that_read_one_tensor_twice_are_no_groups_that_read_two() -> None:
    x, y = leaf(4, 4), leaf(4, 4)
    (twice,) = checked(add(x, apply(Op.PERMUTE, (x,), Axes((1, 0)))))
    (once,) = checked(add(x, apply(Op.PERMUTE, (y,), Axes((1, 0)))))
    assert len(twice.reads) == 1
    assert len(once.reads) == 2


def test_a_kernel_of_the_same_structure_that_is_another_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emitter = importlib.import_module("weft.scheduler.kernelize.emit")
    monkeypatch.setattr(
        emitter, "structure", lambda group, masks, far: (("same",), structure(group, masks, far)[1])
    )
    monkeypatch.setattr(emitter, "_known", OrderedDict())
    kernelize([unary(Op.EXP, leaf(7))])
    with pytest.raises(IRError, match="of the same structure is another one"):
        kernelize([unary(Op.EXP, leaf(8))])


def test_softmax_as_text() -> None:
    x = leaf(4, 6)
    top = apply(Op.REDUCE_MAX, (x,), Axes((1,)))
    e = unary(Op.EXP, apply(Op.SUB, (x, broadcast_to(top, (4, 1), (4, 6)))))
    (spec,) = checked(apply(Op.DIV, (e, broadcast_to(total(e, 1), (4, 1), (4, 6)))))
    assert text(spec) == "\n".join(
        [
            "algorithm max_sum_div(p0: f32[4, 6], y0: f32[4, 6] out)",
            "  max(i1 in 4) = max r1 in 6: p0[i1, r1]",
            "  sum(i2 in 4) = sum r2 in 6: exp(p0[i2, r2] - max[i2])",
            "  out(i in 4, j in 6):",
            "    y0[i, j] = exp(p0[i, j] - max[i]) / sum[i]",
        ]
    )


def test_contiguous_elementwise_has_one_axis() -> None:
    (spec,) = checked(add(leaf(2, 3, 4), leaf(2, 3, 4)))
    assert [a.extent for a in spec.algorithm.items[0].axes] == [24]


def test_a_row_added_to_a_batch_merges_what_it_can() -> None:
    (spec,) = checked(add(leaf(2, 3, 4), broadcast(leaf(4), (2, 3, 4))))
    assert [a.extent for a in spec.algorithm.items[0].axes] == [6, 4]


def test_positions_merge_where_they_only_count_on() -> None:
    x = apply(Op.RESHAPE, (graph.arange(24, dtypes.float32),), None, (2, 3, 4))
    (spec,) = checked(add(leaf(2, 3, 4), x))
    assert [a.extent for a in spec.algorithm.items[0].axes] == [24]


def test_reduced_axes_merge_too() -> None:
    (spec,) = checked(total(leaf(2, 3, 4, 5), 2, 3))
    assert [a.extent for a in spec.algorithm.items[0].all_axes] == [6, 20]


def test_a_reduction_needed_by_columns_and_one_by_rows_are_two_kernels() -> None:
    x = leaf(4, 6)
    rows = broadcast_to(total(x, 1), (4, 1), (4, 6))
    columns = broadcast_to(total(x, 0), (1, 6), (4, 6))
    specs = checked(add(add(x, rows), columns))
    assert len(specs) == 2
    assert "other axes" in specs[0].why[0]


def test_a_matmul_feeding_a_reduction_is_stored() -> None:
    specs = checked(total(matmul(leaf(4, 6), leaf(6, 5)), 1))
    assert len(specs) == 2
    assert "not computed inside another reduction" in specs[0].why[0]


def test_a_bias_is_added_before_the_fan_out() -> None:
    h = add(matmul(leaf(40, 60), leaf(60, 50)), broadcast(leaf(50), (40, 50)))
    zero = graph.const(0.0, h.dtype, h.shape)
    relu = apply(Op.MAX, (h, zero))
    grad = leaf(40, 50)
    masked = apply(Op.WHERE, (apply(Op.LT, (zero, h)), grad, zero))
    specs = checked(matmul(relu, leaf(50, 30)), masked)
    assert len(specs) == 2 or [n for s in specs for n in s.writes if n is h]
    assert not any(n is relu for s in specs for n in s.writes)


def test_a_long_row_ends_a_kernel() -> None:
    x = leaf(2, 70_000)
    y = apply(Op.MUL, (x, broadcast_to(total(x, 1), (2, 1), (2, 70_000))))
    assert len(kernelize([y])) == 2
    assert "long row" in kernelize([y])[0].why[0]


def test_contiguous_is_a_barrier() -> None:
    x = apply(Op.CONTIGUOUS, (add(leaf(3, 4), 1.0),))
    specs = checked(add(x, 1.0))
    assert len(specs) == 2
    assert "contiguous() asks for it" in specs[0].why[0]


def test_update_of_a_leaf_writes_only_the_box() -> None:
    x, src = leaf(10, 6), leaf(2, 3)
    node = apply(Op.UPDATE, (x, add(src, 1.0)), Box((1, 2), (4, 1)))
    (spec,) = checked(node)
    assert dict(spec.inplace) == {"y0": x}
    assert spec.reads == (src,)
    assert [a.extent for a in spec.algorithm.items[0].axes] == [2, 3]


def test_updates_of_updates_each_write_their_box() -> None:
    x = leaf(10, 6)
    for k in range(4):
        x = apply(Op.UPDATE, (x, leaf(1, 6)), Box((k, 0), (1, 1)))
    specs = checked(x)
    assert len(specs) == 4
    assert all(s.inplace["y0"] is not None for s in specs)


def test_update_inside_an_expression_is_a_choice() -> None:
    x = apply(Op.UPDATE, (add(leaf(10, 6), 1.0), leaf(2, 3)), Box((1, 2), (4, 1)))
    (spec,) = checked(add(x, 1.0))
    assert not spec.inplace


@pytest.mark.parametrize("op", [Op.ADD, Op.MAX, None])
def test_scatter_into_zeros_fills_and_scatters_in_one_kernel(op: Op | None) -> None:
    index = broadcast_to(leaf(7, dtype=np.int64), (7, 1), (7, 3))
    x = graph.const(0.0, dtypes.float32, (5, 3))
    (spec,) = checked(apply(Op.SCATTER, (x, index, leaf(7, 3)), ScatterCombine(0, op)))
    assert len(spec.algorithm.items) == 2
    assert not spec.inplace


def test_scatter_into_a_leaf_updates_a_copy() -> None:
    x, index = leaf(5, 3), broadcast_to(leaf(7, dtype=np.int64, top=8), (7, 1), (7, 3))
    (spec,) = checked(apply(Op.SCATTER, (x, index, leaf(7, 3)), ScatterCombine(0, Op.ADD)))
    assert dict(spec.inplace) == {"y0": x}


def test_scatter_of_one_element_per_row_is_a_comparison() -> None:
    x, index = graph.const(0.0, dtypes.float32, (5, 3)), leaf(5, 1, dtype=np.int64, top=3)
    one_hot = apply(Op.SCATTER, (x, index, leaf(5, 1)), ScatterCombine(1, Op.ADD))
    (spec,) = checked(add(one_hot, leaf(5, 3)))
    assert len(spec.algorithm.items) == 1


@pytest.mark.parametrize("op", [Op.ADD, None])
def test_one_element_per_row_of_a_tensor_in_memory_is_all_that_is_written_of_a_result(op: Op | None) -> None:
    x, index = leaf(5, 3), leaf(5, 1, dtype=np.int64, top=3)
    cache = apply(Op.SCATTER, (x, index, leaf(5, 1)), ScatterCombine(1, op))
    written, read = checked(cache, add(cache, leaf(5, 3)))
    assert dict(written.inplace) == {"y0": x} and cache in read.reads
    (alone,) = checked(add(cache, 1.0))  # no result: nothing keeps it
    assert not alone.inplace


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_scatter_of_narrow_floats_adds_in_f32(dtype: dtypes.DType) -> None:
    def narrow(x: Node) -> Node:
        return apply(Op.CAST, (x,), dtype=dtype)

    index = broadcast_to(leaf(7, dtype=np.int64), (7, 1), (7, 3))
    node = apply(Op.SCATTER, (narrow(leaf(5, 3)), index, narrow(leaf(7, 3))), ScatterCombine(0, Op.ADD))
    np.testing.assert_array_equal(
        execute([node])[0].astype(np.float32), evaluate([node])[0].astype(np.float32)
    )


def test_concat_writes_each_piece() -> None:
    pieces = [leaf(3, 4), add(leaf(2, 4), 1.0), leaf(1, 4)]
    (spec,) = checked(apply(Op.CONCAT, tuple(pieces), Along(0)))
    assert [isinstance(i, Output) for i in spec.algorithm.items] == [True] * 3


def test_many_pieces_inside_an_expression_are_stored_first() -> None:
    joined = apply(Op.CONCAT, tuple(leaf(k + 1, 2) for k in range(12)), Along(0))
    specs = checked(add(joined, 1.0))
    assert len(specs) == 2


def test_empty_tensors_need_no_kernel() -> None:
    x = graph.buffer((0, 3), dtypes.float32, "cpu:0", np.zeros((0, 3), np.float32))
    assert kernelize([add(x, 1.0)]) == []
    (spec,) = checked(total(x, 0))
    assert spec.reads == ()


def test_what_updates_a_tensor_runs_after_its_other_readers() -> None:
    w, x = leaf(8, 8), leaf(8, 8)
    new = apply(Op.SUB, (w, leaf(8, 8)))
    product = apply(Op.CONTIGUOUS, (matmul(x, w),))
    specs = checked(new, product)
    assert [n for s in specs for n in s.writes][-1] is new


def test_runtime_sizes_become_arguments() -> None:
    n = Var("n", 1, 9)
    for value in (1, 4, 9):
        x = graph.buffer((n, 4), dtypes.float32, "cpu:0", np.ones((value, 4), np.float32) * value)
        (spec,) = checked(matmul(x, leaf(4, 3)), n=value)
        assert spec.algorithm.variables == (n,)
        checked(add(apply(Op.SHRINK, (leaf(20, 3),), Box((n, 0), (1, 1)), (4, 3)), 1.0), n=value)
        checked(total(apply(Op.RESHAPE, (x,), None, (n * 4,)), 0), n=value)


@pytest.mark.parametrize("name", ["i", "n", "r1", "p0", "y0", "sum", "out", "i0", "index0"])
def test_runtime_variables_may_have_any_name(name: str) -> None:
    n = Var(name, 1, 9)
    x = graph.buffer((n, 4), dtypes.float32, "cpu:0", np.ones((5, 4), np.float32))
    checked(matmul(x, leaf(4, 3)), **{name: 5})
    zeros, box = graph.const(0.0, dtypes.float32, (3, 4)), Box((n, 0), (1, 1))
    (spec,) = checked(add(apply(Op.UPDATE, (add(leaf(20, 4), 1.0), zeros), box), 1.0), **{name: 5})
    assert spec.algorithm.variables == (n,)
    index = broadcast_to(leaf(7, dtype=np.int64), (7, 1), (7, 4))
    checked(apply(Op.GATHER, (x, index), Along(0)), **{name: 5})


def test_kernels_are_bounded() -> None:
    x = y = leaf(4)
    for k in range(2000):
        y = add(y, float(k % 7)) if k % 2 else apply(Op.MUL, (y, x))
    specs = checked(y)
    assert 2 <= len(specs) <= 12
    assert any("kernel size limit" in w for s in specs for w in s.why)


def test_stencils_of_stencils_do_not_explode() -> None:
    x = leaf(200)
    for _ in range(20):
        n = x.shape[0]
        assert isinstance(n, int)
        left, right = (apply(Op.SHRINK, (x,), Box((s,), (1,)), (n - 2,)) for s in (0, 2))
        x = unary(Op.TANH, add(left, right))
    assert len(checked(x)) < 20


def test_a_chain_of_20_000_nodes() -> None:
    x = leaf(4)
    for k in range(20_000):
        x = add(x, 1.0) if k % 2 else unary(Op.NEG, x)
    specs = kernelize([x])
    assert len(specs) < 100
    assert len({s.algorithm for s in specs}) <= 3


def test_a_tree_of_20_000_nodes() -> None:
    level = [leaf(2) for _ in range(10_000)]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [add(a, b) for a, b in pairs] + level[len(level) // 2 * 2 :]
    specs = kernelize(level)
    assert len(specs) < 600
    assert max(len(s.reads) for s in specs) < 100


def test_time_grows_with_the_graph() -> None:
    def made(layers: int) -> Node:
        x = leaf(16, 16)
        for _ in range(layers):
            x = unary(Op.TANH, add(matmul(x, leaf(16, 16)), broadcast(leaf(16), (16, 16))))
        return x

    assert best_ratio(made, lambda x: kernelize([x]), 20, 8) < 2.5


def test_reasons_and_costs_are_stated() -> None:
    x = leaf(40, 60)
    shown = show_specs(checked(matmul(unary(Op.TANH, x), leaf(60, 50))))
    assert "tanh: 57,600 flops, 19,200 bytes" in shown
    assert "costs more than storing it" in shown
    assert "y0 <sum f32[40, 50]> is stored: it is a result" in shown


def test_operations_are_counted_once_for_what_they_depend_on() -> None:
    """relu of an operand is computed for each of its elements, not for each product that it takes part in."""
    x, w = leaf(8, 16), leaf(16, 32)
    relu = unary(Op.ABS, x)
    (spec,) = checked(matmul(relu, w))
    assert spec.flops == 2 * 8 * 16 * 32 + 8 * 16


@pytest.mark.parametrize("buffers", [4, 8])
def test_a_device_that_binds_few_buffers_gets_more_kernels(buffers: int) -> None:
    leaves = [leaf(4, k + 1) for k in range(20)]
    parts = [total(x, 1) for x in leaves]
    whole = parts[0]
    for x in parts[1:]:
        whole = add(whole, x)
    joined = apply(Op.CONCAT, tuple(leaves), Along(1))
    (one,) = kernelize([whole])
    assert len(one.algorithm.params) == 21
    for out in (whole, joined):
        specs = kernelize([out], buffers)
        assert max(len(s.algorithm.params) for s in specs) <= buffers
        assert len(specs) >= 20 // (buffers - 1)
        np.testing.assert_allclose(execute([out], buffers=buffers)[0], evaluate([out])[0], rtol=1e-5)
    assert any("buffers on this device" in w for s in kernelize([whole], buffers) for w in s.why)


def test_pieces_that_are_computed_are_stored_by_one_loop() -> None:
    x = leaf(4, 6)
    halves = [apply(Op.SHRINK, (x,), Box((k, 0), (2, 1)), shape=(2, 6)) for k in (0, 1)]
    pieces = [add(halves[0], halves[1]), apply(Op.SUB, tuple(halves)), leaf(2, 6)]
    (spec,) = checked(apply(Op.CONCAT, tuple(pieces), Along(0)))
    stores = [len(i.stores) for i in spec.algorithm.items if isinstance(i, Output)]
    assert sorted(stores) == [1, 2], "of the same elements; what is copied has a loop of its own"
    many = [add(halves[k % 2], float(k)) for k in range(20)]
    (spec,) = checked(apply(Op.CONCAT, tuple(many), Along(0)))
    assert [len(i.stores) for i in spec.algorithm.items if isinstance(i, Output)] == [16, 4]


def test_pieces_are_stored_where_they_lie_in_what_is_asked_for() -> None:
    """Rows of two kinds, one after the other: no copy of what is joined."""
    x = leaf(3, 5)

    def interleaved() -> tuple[Node, Node]:
        pieces = [apply(Op.RESHAPE, (add(x, float(k)),), shape=(1, 3, 5)) for k in (1, 2)]
        joined = apply(Op.CONCAT, tuple(pieces), Along(0))
        turned = apply(Op.PERMUTE, (joined,), Axes((1, 0, 2)))
        return joined, apply(Op.CONTIGUOUS, (apply(Op.RESHAPE, (turned,), shape=(6, 5)),))

    joined, rows = interleaved()
    (spec,) = checked(rows)
    assert [len(i.stores) for i in spec.algorithm.items if isinstance(i, Output)] == [2]
    specs = checked(apply(Op.EXP, (rows,)), total(rows, 0))
    first = [len(i.stores) for i in specs[0].algorithm.items if isinstance(i, Output)]
    assert first == [2], "whoever reads it"
    specs = checked(rows, joined)
    assert {n for s in specs for n in s.writes} == {rows, joined}
    assert all(
        len(i.stores) == 1 or s.writes == (joined,)
        for s in specs
        for i in s.algorithm.items
        if isinstance(i, Output)
    )
    assert any(joined in s.reads for s in specs), "pieces are not computed twice"
    specs = checked(rows, apply(Op.EXP, (joined,)))
    assert all(len(i.stores) == 1 for s in specs for i in s.algorithm.items if isinstance(i, Output))
    checked(rows, apply(Op.EXP, (apply(Op.PERMUTE, (joined,), Axes((1, 0, 2))),)))
