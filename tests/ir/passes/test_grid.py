"""Programs as grids: threads fused, buffers in registers, barriers between parts, scratch between grids."""

from __future__ import annotations

import numpy as np

from weft.backends.dummy.interpreter import interpret
from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.dtypes import to_numpy
from weft.ir.expr import Const, Load
from weft.ir.index import Int, Var
from weft.ir.loops import Accumulate, Alloc, Buffer, Combine, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.loops_names import every
from weft.ir.loops_text import show_program
from weft.ir.loops_verify import verify
from weft.ir.ops import Op
from weft.ir.passes.grid import Launches, grid_parts, launches
from weft.ir.passes.scratch import packed

F = dtypes.float32


def v(name: str, n: int) -> Var:
    return Var(name, 0, n - 1)


def loop(var: Var, *body: Stmt, kind: LoopKind = LoopKind.SERIAL) -> Loop:
    return Loop(var, var.hi + 1, body, kind)


def thread(var: Var, *body: Stmt) -> Loop:
    return loop(var, *body, kind=LoopKind.THREAD)


def block(var: Var, *body: Stmt) -> Loop:
    return loop(var, *body, kind=LoopKind.BLOCK)


def at(name: str, i: Int) -> Load:
    return Load(F, name, (i,))


def local(name: str, size: int) -> Alloc:
    return Alloc(Buffer(name, F, size, Scope.LOCAL))


def program(params: dict[str, int], out: str, *body: Stmt) -> Program:
    buffers = tuple(Buffer(n, F, s, Scope.GLOBAL) for n, s in params.items())
    p = Program("k", buffers, frozenset({out}), (), body)
    verify(p)
    return p


def run(split: Launches, inputs: dict[str, np.ndarray], out: str, size: int) -> np.ndarray:
    buffers = {n: a.astype(np.float32) for n, a in inputs.items()} | {out: np.full(size, np.nan, np.float32)}
    buffers |= {b.name: np.full(b.size, np.nan, np.float32) for b in split.scratch}
    for grid in split.grids:
        verify(grid)
        interpret(grid, {b.name: buffers[b.name] for b in grid.params}, {}, races=True)
    return buffers[out]


def reversed_sums(tile: int = 4) -> Program:
    """y[4*b + i] = sum k: x[4*k + 3 - i] by way of a tile that all threads fill and read."""
    b, k, i, j, l, m = v("b", 2), v("k", 3), v("i", 4), v("j", 4), v("l", 4), v("m", 4)
    return program(
        {"x": 12, "y": 8},
        "y",
        block(
            b,
            local("acc", 4),
            thread(m, Store("acc", m, Const(F, 0))),
            loop(
                k,
                local("tile", tile),
                thread(i, Store("tile", i, at("x", k * 4 + i))),
                thread(j, Accumulate("acc", j, Op.ADD, at("tile", 3 - j))),
            ),
            thread(l, Store("y", b * 4 + l, at("acc", l))),
        ),
    )


def test_parts_become_one_loop_over_threads() -> None:
    split = launches(reversed_sums(), 1 << 10)
    assert show_program(split.grids[0]) == (
        "kernel k(x: f32[12], y: f32[8] out)\n"
        "  block block0 in 2:\n"
        "    alloc tile: f32[4] local\n"
        "    thread thread0 in 4:\n"
        "      alloc acc: f32[1]\n"
        "      acc[0] = 0.0\n"
        "      for k in 3:\n"
        "        barrier\n"
        "        tile[thread0] = x[4*k + thread0]\n"
        "        barrier\n"
        "        acc[0] += tile[-thread0 + 3]\n"
        "      y[4*block0 + thread0] = acc[0]"
    )
    x = np.arange(12.0)
    expected = x.reshape(3, 4)[:, ::-1].sum(0)
    np.testing.assert_array_equal(run(split, {"x": x}, "y", 8), np.tile(expected, 2))


def test_what_does_not_fit_is_scratch() -> None:
    split = launches(reversed_sums(1000), 1 << 10)
    assert [(b.name, b.size) for b in split.scratch] == [("tile", 2000)]
    x = np.arange(12.0)
    np.testing.assert_array_equal(run(split, {"x": x}, "y", 8), np.tile(x.reshape(3, 4)[:, ::-1].sum(0), 2))


def test_a_buffer_is_private_only_where_each_element_has_one_thread() -> None:
    i, j, r, s = v("i", 4), v("j", 4), v("r", 2), v("s", 2)

    def tiles(read: Int) -> Program:
        return program(
            {"x": 8, "y": 8},
            "y",
            local("t", 8),
            thread(i, loop(r, Store("t", i * 2 + r, at("x", i * 2 + r)))),
            thread(j, loop(s, Store("y", j * 2 + s, at("t", read)))),
        )

    own, other = launches(tiles(j * 2 + s), 1 << 10), launches(tiles(s * 4 + j), 1 << 10)
    assert not grid_parts(own.grids[0])[1]
    assert [b.name for b in grid_parts(other.grids[0])[1]] == ["t"]
    x = np.arange(8.0)
    np.testing.assert_array_equal(run(own, {"x": x}, "y", 8), x)
    np.testing.assert_array_equal(run(other, {"x": x}, "y", 8), x.reshape(2, 4).T.reshape(-1))


def test_threads_of_nested_loops_and_of_shorter_ones() -> None:
    i, j, l = v("i", 3), v("j", 4), v("l", 5)
    p = program(
        {"x": 12, "y": 12},
        "y",
        local("t", 12),
        thread(i, thread(j, Store("t", i * 4 + j, at("x", i * 4 + j)))),
        thread(l, Store("t", l, ex.call(Op.MUL, at("t", l), Const(F, 2)))),
        thread(v("m", 12), Store("y", v("m", 12), at("t", 11 - v("m", 12)))),
    )
    split = launches(p, 1 << 10)
    assert grid_parts(split.grids[0])[2].extent == 12
    x = np.arange(12.0)
    expected = np.concatenate([x[:5] * 2, x[5:]])[::-1]
    np.testing.assert_array_equal(run(split, {"x": x}, "y", 12), expected)


def test_grids_share_scratch_and_follow_one_another() -> None:
    b, i, k, l = v("b", 3), v("i", 4), v("k", 3), v("l", 3)
    p = program(
        {"x": 12, "y": 3},
        "y",
        Alloc(Buffer("part", F, 3, Scope.GLOBAL)),
        block(b, Store("part", b, Const(F, 0)), loop(i, Accumulate("part", b, Op.ADD, at("x", b * 4 + i)))),
        Alloc(Buffer("total", F, 1, Scope.GLOBAL)),
        Store("total", 0, Const(F, 0)),
        loop(k, Accumulate("total", 0, Op.ADD, at("part", k))),
        block(l, Store("y", l, ex.call(Op.DIV, at("part", l), at("total", 0)))),
    )  # fmt: skip
    split = launches(p, 1 << 10)
    assert [g.name for g in split.grids] == ["k", "k_1", "k_2"]
    assert {b.name for b in split.scratch} == {"part", "total"}
    x = np.arange(12.0)
    sums = x.reshape(3, 4).sum(1)
    np.testing.assert_allclose(run(split, {"x": x}, "y", 3), sums / sums.sum(), rtol=1e-6)


def test_a_fill_and_the_updates_after_it_are_ordered() -> None:
    i, k, j = v("i", 8), v("k", 2), v("j", 4)
    p = program(
        {"x": 8, "y": 8},
        "y",
        thread(i, Store("y", i, Const(F, 1))),
        loop(k, thread(j, Accumulate("y", k * 4 + j, Op.ADD, at("x", k * 4 + j)))),
    )
    split = launches(p, 1 << 10)
    assert "barrier" in show_program(split.grids[0])
    x = np.arange(8.0)
    np.testing.assert_array_equal(run(split, {"x": x}, "y", 8), x + 1)


def test_a_fill_and_what_replaces_it_are_ordered() -> None:
    i, j = v("i", 8), v("j", 4)
    replaced = loop(j, Store("y", 2 * j, at("x", j)))
    split = launches(program({"x": 8, "y": 8}, "y", thread(i, Store("y", i, Const(F, 1))), replaced), 1 << 10)
    assert "barrier" in show_program(split.grids[0])
    x = np.arange(8.0)
    np.testing.assert_array_equal(run(split, {"x": x}, "y", 8), [0, 1, 1, 1, 2, 1, 3, 1])


def row_maxima(rows: int, n: int, read: int = 1) -> Program:
    """y[i, j] = the maximum of x[i, :], by threads that each have one element."""
    i, j, k, r, l, m = v("i", rows), v("j", n), v("k", rows), v("r", n), v("l", rows), v("m", n)
    return program(
        {"x": rows * n, "y": rows * n},
        "y",
        local("part", rows * n),
        local("top", rows),
        thread(i, thread(j, Store("part", i * n + j, at("x", i * n + j)))),
        thread(
            k,
            Store("top", k, Const(F, -np.inf)),
            loop(r, Accumulate("top", k, Op.MAX, at("part", k * n + r)), kind=LoopKind.ACROSS),
        ),
        thread(l, thread(m, Store("y", l * n + m, at("top", l * read + (1 - read) * (rows - 1))))),
    )


def test_threads_of_a_group_combine_what_they_have() -> None:
    split = launches(row_maxima(2, 4), 1 << 10, warp=4)
    assert show_program(split.grids[0]) == (
        "kernel k(x: f32[8], y: f32[8] out)\n"
        "  block block0 in 1:\n"
        "    thread thread0 in 8:\n"
        "      alloc top: f32[1]\n"
        "      alloc part: f32[1]\n"
        "      part[0] = x[thread0]\n"
        "      top[0]  = -inf\n"
        "      alloc top_lane0: f32[1]\n"
        "      top_lane0[0] = -inf\n"
        "      top_lane0[0] = part[0]\n"
        "      combine top_lane0[0] max= of 4 threads\n"
        "      top[0]     max= top_lane0[0]\n"
        "      y[thread0]    = top[0]"
    )


def test_groups_of_every_size() -> None:
    """Rows that a warp divides and others; fewer rows than threads; sums that other threads read, from memory."""
    r = np.random.default_rng(0)
    for rows, n, read, warp, combined in [
        (2, 4, 1, 8, True), (3, 4, 1, 8, True), (5, 8, 1, 8, True), (3, 1, 1, 8, False), (4, 16, 1, 8, False),
        (4, 6, 1, 8, False), (3, 4, 0, 8, True), (5, 2, 1, 4, True), (3, 4, 1, 1, False),
    ]:  # fmt: skip
        split = launches(row_maxima(rows, n, read), 1 << 10, warp=warp)
        assert any(isinstance(s, Combine) for s in every(split.grids[0].body)) == combined
        assert not combined or grid_parts(split.grids[0])[2].extent % warp == 0
        x = r.standard_normal((rows, n)).astype(np.float32)
        top = np.repeat(x.max(1) if read else x.max(1)[[-1] * rows], n)
        np.testing.assert_array_equal(run(split, {"x": x.reshape(-1)}, "y", rows * n), top)


def test_too_many_threads_run_in_order() -> None:
    i, j = v("i", 3), v("j", 512)
    p = program(
        {"x": 1536, "y": 1536}, "y", thread(i, thread(j, Store("y", i * 512 + j, at("x", i * 512 + j))))
    )
    split = launches(p, 1 << 10)
    assert grid_parts(split.grids[0])[2].extent == 512
    x = np.arange(1536.0)
    np.testing.assert_array_equal(run(split, {"x": x}, "y", 1536), x)


def test_scratch_buffers_of_one_dtype_share_one() -> None:
    """Four scratch buffers of two dtypes, where a launch may have four buffers."""
    b, t, i = v("b", 2), v("t", 4), v("i", 4)
    kept = [
        Alloc(Buffer(n, d, 8, Scope.GLOBAL)) for n, d in (("one", F), ("two", F), ("count", dtypes.int32))
    ]
    number = Load(dtypes.int32, "count", (4 * b + i,))
    fill = (
        Store("one", 4 * b + t, at("x", 4 * b + t)),
        Store("two", 4 * b + t, ex.call(Op.MUL, at("x", 4 * b + t), Const(F, 2))),
        Store("count", 4 * b + t, ex.from_index(7 - 4 * b - t, dtypes.int32)),
    )
    c, j = v("c", 2), v("j", 4)
    number = Load(dtypes.int32, "count", (4 * c + j,))
    picked = Load(F, "one", (ex.as_index(number, 0, 7),))
    use = (
        Store("y", 4 * c + j, ex.call(Op.ADD, picked, at("two", 4 * c + j))),
        Accumulate("two", 4 * c + j, Op.ADD, at("s", 0)),
    )
    d, k = v("d", 2), v("k", 4)
    last = Accumulate("y", 4 * d + k, Op.ADD, at("two", 4 * d + k))
    params = (Buffer("x", F, 8, Scope.GLOBAL), Buffer("y", F, 8, Scope.GLOBAL))
    sums = (
        Alloc(Buffer("s", F, 1, Scope.GLOBAL)),
        Store("s", 0, Const(F, 0)),
        loop(v("r", 8), Accumulate("s", 0, Op.ADD, at("x", v("r", 8)))),
    )
    body = (*kept, *sums, block(b, thread(t, *fill)), block(c, thread(j, *use)), block(d, thread(k, last)))
    p = Program("p", params, frozenset("y"), (), body)
    verify(p)
    x = np.arange(1, 9, dtype=np.float32)
    want = {"x": x, "y": np.zeros(8, np.float32)}
    interpret(p, want)
    found = launches(p, 1 << 14)
    assert len(found.scratch) == 4 and packed(found, 5) is found
    small = packed(found, 4)
    assert len(small.scratch) == 2 and max(len(g.params) for g in small.grids) <= 4
    arrays = {"x": x, "y": np.zeros(8, np.float32)}
    for s in small.scratch:
        assert isinstance(s.size, int)
        arrays[s.name] = np.zeros(s.size, to_numpy(s.dtype))
    for g in small.grids:
        verify(g)
        interpret(g, arrays)
    assert arrays["y"].tolist() == want["y"].tolist()
