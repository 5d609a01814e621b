"""Instructions of whole warps, and copies that arrive later: shuffles, matrix fragments, asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .text import Instruction, PtxError

if TYPE_CHECKING:
    from .machine import Machine

Array = NDArray[Any]
Step = Callable[["Machine", Any], None]

LANE = np.arange(32)
GROUP, IN_GROUP = LANE // 4, LANE % 4


def decode(i: Instruction) -> Step | None:
    """What the instruction does, if it is one of these."""
    op, a = i.op, i.operands
    match op[0]:
        case "shfl":
            return _shuffle(i)
        case "mma":
            return _product(i)
        case "ldmatrix":
            return _load_matrix(i)
        case "cp" if op[1] == "async" and "commit_group" in op:
            return lambda m, idx: m.copies.commit(idx)
        case "cp" if op[1] == "async" and "wait_group" in op:
            return lambda m, idx: m.copies.wait(idx, int(a[0]))
        case "cp" if op[1] == "async" and "wait_all" in op:
            return lambda m, idx: m.copies.wait_all(idx)
        case "cp" if op[1] == "async" and op[2] in ("ca", "cg"):
            return lambda m, idx: m.copies.start(a, idx)
        case _:
            return None


def _warps(m: Machine, idx: Any) -> Array:
    """The lanes' numbers, a row per warp. PtxError when a warp is not whole."""
    lanes = m.numbers(idx)
    if len(lanes) % 32 or (lanes[::32] % 32).any() or (np.diff(lanes.reshape(-1, 32)) != 1).any():
        raise PtxError("only a part of a warp takes part")
    return lanes.reshape(-1, 32)


def _shuffle(i: Instruction) -> Step:
    mode, a = i.op[2], i.operands
    d, _, p = a[0].partition("|")

    def shuffle(m: Machine, idx: Any) -> None:
        rows = _warps(m, idx)
        value, by, clamp = (m.get(x, "u32", idx) for x in a[1:4])
        value = np.broadcast_to(value, rows.size).reshape(rows.shape)
        by = np.broadcast_to(by, rows.size).reshape(rows.shape).astype("i8") & 31
        clamp = np.broadcast_to(clamp, rows.size).reshape(rows.shape).astype("i8")
        limit, segment = clamp & 31, (clamp >> 8) & 31
        top, low = (LANE & segment) | (limit & ~segment & 31), LANE & segment
        j = {"bfly": LANE ^ by, "up": LANE - by, "down": LANE + by, "idx": low | (by & ~segment)}[mode]
        valid = j >= top if mode == "up" else j <= top
        j = np.where(valid, j, LANE)
        m.put(d, idx, np.take_along_axis(value, j, 1).ravel())
        if p:
            m.put(p, idx, valid.ravel())

    return shuffle


# matrix fragments: the element that register element e of lane l is --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """(row, column) of each element of a lane's fragments, arrays of (32, elements)."""

    a: tuple[Array, Array]
    b: tuple[Array, Array]
    c: tuple[Array, Array]
    k: int


def _each(count: int, f: Callable[[int], tuple[Array, Array]]) -> tuple[Array, Array]:
    parts = [f(e) for e in range(count)]
    return np.stack([p[0] for p in parts], 1), np.stack([p[1] for p in parts], 1)


_C = _each(4, lambda e: (GROUP + 8 * (e // 2), 2 * IN_GROUP + e % 2))

SHAPES: dict[tuple[str, int], Shape] = {
    ("m16n8k16", 16): Shape(
        _each(8, lambda e: (GROUP + 8 * (e // 2 % 2), 2 * IN_GROUP + e % 2 + 8 * (e // 4))),
        _each(4, lambda e: (2 * IN_GROUP + e % 2 + 8 * (e // 2), GROUP)),
        _C,
        16,
    ),
    ("m16n8k8", 16): Shape(
        _each(4, lambda e: (GROUP + 8 * (e // 2), 2 * IN_GROUP + e % 2)),
        _each(2, lambda e: (2 * IN_GROUP + e, GROUP)),
        _C,
        8,
    ),
    ("m16n8k8", 32): Shape(
        _each(4, lambda e: (GROUP + 8 * (e % 2), IN_GROUP + 4 * (e // 2))),
        _each(2, lambda e: (IN_GROUP + 4 * e, GROUP)),
        _C,
        8,
    ),
    ("m16n8k4", 32): Shape(
        _each(2, lambda e: (GROUP + 8 * e, IN_GROUP)), _each(1, lambda e: (IN_GROUP, GROUP)), _C, 4
    ),
}


def numbers(bits: Array, kind: str) -> Array:
    """The elements in registers of 32 bits (..., registers) -> (..., elements), exactly."""
    match kind:
        case "f16":
            return np.ascontiguousarray(bits).view("f2").astype("f8")
        case "bf16":
            return (
                (np.ascontiguousarray(bits).view("u2").astype("u4") << np.uint32(16)).view("f4").astype("f8")
            )
        case "tf32":
            return (bits & np.uint32(0xFFFFE000)).view("f4").astype("f8")
        case "f32":
            return bits.view("f4").astype("f8")
        case _:
            raise PtxError(f"unknown type of a matrix: {kind}")


def _product(i: Instruction) -> Step:
    op = i.op
    size, (dt, at, bt, ct) = op[3], op[-4:]
    shape = SHAPES[size, 32 if at == "tf32" else 16]
    if op[4:6] != ("row", "col") or at != bt or dt != ct:
        raise PtxError(f"unknown product {i.text}")
    d, a, b, c = ([x.strip() for x in o[1:-1].split(",")] for o in i.operands)
    for regs, (rows, _), kind in ((a, shape.a, at), (b, shape.b, bt), (c, shape.c, ct), (d, shape.c, dt)):
        if len(regs) * (2 if kind in ("f16", "bf16") else 1) != rows.shape[1]:
            raise PtxError(f"a fragment of the wrong size: {i.text}")

    def multiply(m: Machine, idx: Any) -> None:
        warps = len(_warps(m, idx))

        def whole(regs: list[str], kind: str, places: tuple[Array, Array], rows: int, columns: int) -> Array:
            bits = np.stack([m.get(r, "u32", idx).reshape(warps, 32) for r in regs], 2)
            out = np.zeros((warps, rows, columns))
            out[:, places[0], places[1]] = numbers(bits, kind)
            return out

        left, right = whole(a, at, shape.a, 16, shape.k), whole(b, bt, shape.b, shape.k, 8)
        with np.errstate(all="ignore"):
            total = (left @ right + whole(c, ct, shape.c, 16, 8))[:, shape.c[0], shape.c[1]]
            result = total.astype("f4" if dt == "f32" else "f2")
        bits = np.ascontiguousarray(result).view("u4")
        for k, r in enumerate(d):
            m.put(r, idx, bits[:, :, k].ravel())

    return multiply


def _load_matrix(i: Instruction) -> Step:
    count = int(next(x for x in i.op if x in ("x1", "x2", "x4"))[1:])
    turned = "trans" in i.op
    d = [x.strip() for x in i.operands[0][1:-1].split(",")]
    if "m8n8" not in i.op or len(d) != count:
        raise PtxError(f"unknown instruction {i.text}")

    def load(m: Machine, idx: Any) -> None:
        rows = _warps(m, idx)
        at = m.address(i.operands[1], idx).reshape(rows.shape)
        for k in range(count):
            lanes, start = rows[:, 8 * k : 8 * k + 8], at[:, 8 * k : 8 * k + 8]
            words = m.load("shared", start.ravel(), lanes.ravel(), "u32", 4)
            matrix = np.ascontiguousarray(np.stack(words, 1)).view("u2").reshape(-1, 8, 8)
            if turned:
                matrix = matrix.transpose(0, 2, 1)
            pairs = np.ascontiguousarray(matrix).view("u4")
            m.put(d[k], idx, pairs[:, GROUP, IN_GROUP].ravel())

    return load


# asynchronous copies -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pending:
    lanes: Array
    target: Array
    source: Array
    nbytes: int
    given: Array
    group: Array


class Copies:
    """`cp.async`: the bytes are read, and arrive, when their group is waited for, and not a moment earlier; until
    then the target holds garbage."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.committed = np.zeros(m.n, "i8")
        self.pending: list[_Pending] = []

    def start(self, a: tuple[str, ...], idx: Any) -> None:
        m, nbytes = self.m, int(a[2])
        if nbytes not in (4, 8, 16):
            raise PtxError(f"an asynchronous copy of {nbytes} bytes")
        target, source = m.address(a[0], idx), m.address(a[1], idx)
        given = np.broadcast_to(m.get(a[3], "u32", idx) if len(a) > 3 else np.array([nbytes]), target.shape)
        if (source % np.uint64(nbytes)).any():
            raise PtxError("an asynchronous copy from a misaligned address")
        for _, array, offsets in m.spans("shared", target, idx, nbytes, True):
            array[offsets[:, None] + np.arange(nbytes)] = 0xFF
        numbers = m.numbers(idx)
        if m.profile is not None and (some := np.flatnonzero(given > 0)).size:
            m.profile.access("global", source[some], numbers[some], nbytes, False)
        self.pending.append(_Pending(numbers, target, source, nbytes, given, self.committed[numbers].copy()))

    def commit(self, idx: Any) -> None:
        self.committed[idx] += 1

    def wait_all(self, idx: Any) -> None:
        self.commit(idx)
        self.wait(idx, 0)

    def wait(self, idx: Any, left: int) -> None:
        """All but the `left` last groups of these lanes arrive."""
        waiting = np.zeros(self.m.n, np.bool_)
        waiting[idx] = True
        rest: list[_Pending] = []
        for p in self.pending:
            done = waiting[p.lanes] & (p.group < self.committed[p.lanes] - left)
            if done.any():
                self.arrive(p, np.flatnonzero(done))
            if not done.all():
                keep = ~done
                rest.append(
                    _Pending(
                        p.lanes[keep], p.target[keep], p.source[keep], p.nbytes, p.given[keep], p.group[keep]
                    )
                )
        self.pending = rest

    def arrive(self, p: _Pending, which: Array) -> None:
        m = self.m
        flat = p.target[which].astype("i8") + m.block[p.lanes[which]] * m.shared_bytes
        data = np.zeros((len(which), p.nbytes), np.uint8)
        some = np.flatnonzero(p.given[which] > 0)
        if len(some):
            if (p.given[which][some] != p.nbytes).any():
                raise PtxError("an asynchronous copy of a part")
            for lanes, array, offsets in m.memory.places(p.source[which][some], p.nbytes):
                data[some[lanes]] = array[offsets.astype("i8")[:, None] + np.arange(p.nbytes)]
        m.shared[flat[:, None] + np.arange(p.nbytes)] = data
        m.wrote(flat, p.nbytes, p.lanes[which])

    def check_done(self) -> None:
        if self.pending:
            raise PtxError("a kernel ends with asynchronous copies on their way")
