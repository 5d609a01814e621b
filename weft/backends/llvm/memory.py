"""Reading and writing elements: contiguous, broadcast, reversed, strided or anywhere, with guards and masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from weft.backends.llvm.convert import splat
from weft.backends.llvm.frame import Condition, Frame, Place, RegisterValue, Term
from weft.backends.llvm.index import Affine, lane_bounds, lane_part, shared
from weft.backends.llvm.types import constant_mask, memory_type, register_type, suffix, vector
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.loops import LINE, Scope

MAX_RUNS = 4
"""Up to so many whole vectors are read and shuffled to get at elements that are apart; beyond, a gather."""

STREAMED = 16
"""Bytes that a store must be aligned to for going past the caches: the narrowest instruction's width."""

ALIGNMENT = 64
"""The alignment of every buffer's base, in bytes."""


def load(frame: Frame, place: Place, offset: Affine, when: Condition, ahead: int = 1) -> RegisterValue:
    """The elements at `offset`, zero where the guard fails; nothing is read there.

    `ahead`: so many elements from there on may be read, and will be asked for.
    """
    dtype = place.buffer.dtype
    if when.never:
        return RegisterValue(zero(dtype))
    offset = _in_lane(frame, place, offset)
    if offset.uniform:
        return _load_one(frame, place, offset, when)
    mask = frame.both_masks(when.mask, frame.now.mask)
    stride = offset.stride
    n = frame.now.lanes
    if stride == 1:
        got = _load_run(frame, place, offset, when.shared, mask)
    elif stride == -1:
        backward = _reverse(frame, mask) if mask else None
        got = _backward(frame, dtype, _load_run(frame, place, _moved(offset, 1 - n), when.shared, backward))
    elif near := _near(offset, mask):
        got = _load_near(frame, place, offset, when, near)
    elif stride is not None and when == Condition() and frame.now.mask is None:
        got = _load_block(frame, place, offset, stride, ahead)
    else:
        got = _gather(frame, place, offset, when.shared, mask)
    return RegisterValue(from_memory(frame, dtype, n, got), n)


def store(frame: Frame, place: Place, offset: Affine, value: RegisterValue, stream: bool = False) -> None:
    """Write `value` in the active lanes. Lanes that hit the same element write in order."""
    dtype = place.buffer.dtype
    mask = frame.now.mask
    offset = _in_lane(frame, place, offset)
    scalar = register_type(dtype)
    n = frame.now.lanes
    if offset.uniform:
        _store_one(frame, place, offset, value, mask)
        return
    stride = offset.stride
    every = frame.broadcast(value, scalar, n)
    memory = memory_type(dtype, n)
    raw = to_memory(frame, dtype, n, every)
    if stride is not None and abs(stride) == 1:
        start = offset
        if stride < 0:
            start = _moved(offset, 1 - n)
            raw = _backward(frame, dtype, raw)
            mask = _reverse(frame, mask) if mask else None
        at = address(frame, place, start)
        if mask is None:
            align, hint = _known_alignment(frame, place, start), ""
            known = min(alignment(place, start), n * dtype.itemsize)
            if stream and known >= STREAMED:
                align, hint = known, ", !nontemporal !0"
            frame.f.do(f"store {memory} {raw}, ptr {at}, align {align}{hint}")
        elif place.buffer.scope is Scope.REGISTER:
            old = frame.f.emit(f"load {memory}, ptr {at}, align {dtype.itemsize}")
            new = frame.f.emit(f"select {vector('i1', n)} {mask}, {memory} {raw}, {memory} {old}")
            frame.f.do(f"store {memory} {new}, ptr {at}, align {dtype.itemsize}")
        elif (lane := _only_lane(mask)) is not None:
            one = frame.f.emit(f"extractelement {memory} {raw}, i32 {lane}")
            to = frame.f.emit(f"getelementptr i8, ptr {at}, i64 {lane * dtype.itemsize}")
            frame.f.do(f"store {memory_type(dtype)} {one}, ptr {to}, align {dtype.itemsize}")
        else:
            _masked(
                frame,
                "void",
                "store",
                f"{_suffix(dtype, n)}.p0",
                [(memory, raw), (f"ptr align {dtype.itemsize}", at), (vector("i1", n), mask)],
            )
        return
    pointers = _addresses(frame, place, offset)
    _masked(
        frame,
        "void",
        "scatter",
        f"{_suffix(dtype, n)}.{suffix('ptr', n)}",
        [
            (memory, raw),
            (f"{vector('ptr', n)} align {dtype.itemsize}", pointers),
            (vector("i1", n), mask or "splat (i1 true)"),
        ],
    )


def prefetch(frame: Frame, place: Place, offset: Affine, asked: list[int], ahead: int = 1) -> None:
    """Ask for the lines of a run of elements, into the second-level cache. What lies apart is left to the hardware, but
    where `ahead` says that neighbours of each element will be asked for: those are rows, read at once.

    `asked`: bytes from the same place on whose lines were asked for just before; they are not again.
    """
    size, stride = place.buffer.dtype.itemsize, offset.stride
    if offset.uniform or stride == 1:
        starts = range(0, size * (1 if offset.uniform else frame.now.lanes), LINE)
    elif stride is not None and ahead > 1:
        starts = range(0, size * stride * frame.now.lanes, size * stride)
    else:
        return
    at = address(frame, place, offset)
    for k in starts:
        byte = offset.const * size + k
        if any(0 <= byte - before < LINE for before in asked):
            continue
        asked.append(byte)
        line = frame.f.emit(f"getelementptr i8, ptr {at}, i64 {k}") if k else at
        frame.f.call("llvm.prefetch.p0", "void", [("ptr", line), ("i32", "0"), ("i32", "2"), ("i32", "1")])


def _only_lane(mask: str) -> int | None:
    """The lane of a mask that is known to have just one. LLVM 22 makes a masked store of <n x i16> cut from
    <n x i32> one store of 32 bits there (AVX-512), over the element behind."""
    known = constant_mask(mask)
    return known.index(True) if known is not None and sum(known) == 1 else None


def _in_lane(frame: Frame, place: Place, offset: Affine) -> Affine:
    """The offset among the elements of all lanes, if each has its own buffer."""
    n = place.private
    if not n:
        return offset
    steps = tuple(n * (offset.steps[k] if offset.steps else 0) + k for k in range(frame.now.lanes))
    terms = tuple((t, n * c) for t, c in offset.terms)
    varying = tuple((v, n * c) for v, c in offset.varying)
    return Affine(n * offset.const + frame.now.start, terms, steps, varying)


def address(frame: Frame, place: Place, offset: Affine) -> str:
    """The address of the element that `offset` has in lane 0. What each loop adds is added where it is known, and
    constants become a displacement.
    """
    base, size = place.base, place.buffer.dtype.itemsize
    if offset.terms:
        key = (base, size, offset.terms)
        found = frame.shared.get(key)
        if found is None:
            found = _moving(frame, base, size, offset.terms)
            frame.remember(frame.shared, key, found, found.level)
        base = found.name
    if offset.const == 0:
        return base
    return frame.f.emit(f"getelementptr i8, ptr {base}, i64 {offset.const * size}")


def _moving(frame: Frame, base: str, size: int, terms: tuple[tuple[Term, int], ...]) -> Term:
    """The address that is so many elements of `size` bytes after `base`: first what loops further outside add."""
    found = Term(base, 0)
    while terms:
        level, count = terms[0][0].level, 1
        while count < len(terms) and terms[count][0].level == level:
            count += 1
        moving, terms = shared(frame, Affine(0, terms[:count])), terms[count:]
        assert not isinstance(moving, int)
        instruction = f"getelementptr i{8 * size}, ptr {found.name}, i64 {moving.name}"
        found = frame.derived(instruction, found, moving)
    return found


def alignment(place: Place, offset: Affine) -> int:
    """Bytes that the address is known to be a multiple of."""
    size = place.buffer.dtype.itemsize
    return gcd(ALIGNMENT, size * offset.const, *(size * c for _, c in offset.terms))


def _known_alignment(frame: Frame, place: Place, start: Affine) -> int:
    """The alignment to promise for a run of elements."""
    size = place.buffer.dtype.itemsize
    return max(size, alignment(place, start)) if frame.f.module.gpu else size


def zero(dtype: DType) -> str:
    """The literal of zero in registers."""
    if dtype is dtypes.bool_:
        return "false"
    return "0x0000000000000000" if register_type(dtype) in ("float", "double") else "0"


def from_memory(frame: Frame, dtype: DType, lanes: int, x: str) -> str:
    """The loaded value, as it is in registers."""
    if dtype is not dtypes.bool_:
        return x
    return frame.f.emit(f"icmp ne {vector('i8', lanes)} {x}, {splat('i8', 0, lanes)}")


def to_memory(frame: Frame, dtype: DType, lanes: int, x: str) -> str:
    """A register's value as it is stored."""
    if dtype is not dtypes.bool_:
        return x
    return frame.f.emit(f"zext {vector('i1', lanes)} {x} to {vector('i8', lanes)}")


def any_lane(frame: Frame, mask: str, lanes: int = 0) -> str:
    """The condition that any lane of the mask, of `lanes` or as many as the current group has, is set."""
    n = lanes or frame.now.lanes
    return frame.f.call(f"llvm.vector.reduce.or.v{n}i1", "i1", [(vector("i1", n), mask)])


def _load_one(frame: Frame, place: Place, offset: Affine, when: Condition) -> RegisterValue:
    """One element for all lanes."""
    dtype, f = place.buffer.dtype, frame.f
    may = when.shared
    if when.mask is not None:
        some = any_lane(frame, frame.both_masks(when.mask, frame.now.mask) or when.mask)
        may = some if may is None else f.emit(f"and i1 {may}, {some}")
    memory = memory_type(dtype)
    at = address(frame, place, offset)
    if may is not None:
        at = _or_zeros(frame, may, at, dtype.itemsize)
    got = from_memory(frame, dtype, 0, f.emit(f"load {memory}, ptr {at}, align {dtype.itemsize}"))
    if when.mask is None:
        return RegisterValue(got)
    n, t = frame.now.lanes, register_type(dtype, frame.now.lanes)
    every = frame.broadcast(RegisterValue(got), register_type(dtype), n)
    return RegisterValue(f.emit(f"select {vector('i1', n)} {when.mask}, {t} {every}, {t} zeroinitializer"), n)


def _or_zeros(frame: Frame, when: str, at: str, size: int) -> str:
    """`at` where the condition holds, else the address of zeros: a guarded load without a branch."""
    return frame.f.emit(f"select i1 {when}, ptr {at}, ptr {frame.f.module.zero_block(size)}")


def _load_run(frame: Frame, place: Place, start: Affine, when: str | None, mask: str | None) -> str:
    """As many elements in a row as there are lanes."""
    dtype, n, f = place.buffer.dtype, frame.now.lanes, frame.f
    memory = memory_type(dtype, n)
    at = address(frame, place, start)
    if when is not None:
        at = _or_zeros(frame, when, at, n * dtype.itemsize)
    if mask is None:
        return f.emit(f"load {memory}, ptr {at}, align {_known_alignment(frame, place, start)}")
    if place.buffer.scope is Scope.REGISTER:
        got = f.emit(f"load {memory}, ptr {at}, align {dtype.itemsize}")
        return f.emit(f"select {vector('i1', n)} {mask}, {memory} {got}, {memory} zeroinitializer")
    # LLVM's NVPTX target takes nothing else than poison for the other lanes
    rest = "poison" if f.module.gpu else "zeroinitializer"
    got = _masked(
        frame,
        memory,
        "load",
        f"{_suffix(dtype, n)}.p0",
        [(f"ptr align {dtype.itemsize}", at), (vector("i1", n), mask), (memory, rest)],
    )
    if rest == "poison":
        return f.emit(f"select {vector('i1', n)} {mask}, {memory} {got}, {memory} zeroinitializer")
    return got


class Near(NamedTuple):
    """The reads of elements close together: whole vectors of `width` from the first element + `begins`."""

    first: int
    width: int
    begins: list[int]
    wanted: dict[int, int]
    """Lane -> the place of its element after the first."""


def _near(offset: Affine, mask: str | None) -> Near | None:
    """None when the elements are not near each other, or it is not known here where they are."""
    n = len(offset.steps)
    active = [True] * n if mask is None else constant_mask(mask)
    if offset.varying or n < 2 or active is None or not any(active):
        return None
    at = {k: step for k, step in enumerate(offset.steps) if active[k]}
    first = min(at.values())
    span = max(at.values()) - first + 1
    width = min(n, 1 << (span.bit_length() - 1))
    wanted = {k: step - first for k, step in at.items()}
    begins: list[int] = []
    for place in sorted(set(wanted.values())):
        if not begins or place >= begins[-1] + width:
            begins.append(min(place, span - width))
    return Near(first, width, begins, wanted) if width > 1 and len(begins) <= MAX_RUNS else None


def _load_near(frame: Frame, place: Place, offset: Affine, when: Condition, near: Near) -> str:
    """Whole vectors, of which none reaches beyond the elements that are wanted, shuffled."""
    dtype, n, f = place.buffer.dtype, frame.now.lanes, frame.f
    t, narrow = memory_type(dtype, n), memory_type(dtype, near.width)
    result = ""
    for begin in near.begins:
        at = address(frame, place, _moved(offset, near.first + begin))
        if when.shared is not None:
            at = _or_zeros(frame, when.shared, at, near.width * dtype.itemsize)
        run = f.emit(f"load {narrow}, ptr {at}, align {dtype.itemsize}")
        inside = {k: p - begin for k, p in near.wanted.items() if 0 <= p - begin < near.width}
        spread = _order(tuple([inside.get(k, -1) for k in range(n)]))
        part = f.emit(f"shufflevector {narrow} {run}, {narrow} poison, <{n} x i32> <{spread}>")
        if result:
            picks = [n + k if k in inside else k for k in range(n)]
            part = _shuffle(frame, dtype, n, result, part, picks)
        result = part
    if when.mask is None:
        return result
    return f.emit(f"select {vector('i1', n)} {when.mask}, {t} {result}, {t} zeroinitializer")


def _load_block(frame: Frame, place: Place, offset: Affine, stride: int, ahead: int) -> str:
    """A gather whose neighbours the next iterations want: rows are read whole and transposed in registers."""
    dtype, n = place.buffer.dtype, frame.now.lanes
    version = frame.versions.get(place.buffer.name, 0)
    key = (place.base, version, offset)
    found = frame.blocks.get(key)
    if found is not None:
        return found
    size = min(16, n, 1 << (ahead.bit_length() - 1))
    if size < 4:
        return _gather(frame, place, offset, None, None)
    parts: list[list[str]] = []
    for first in range(0, n, size):
        ats = [address(frame, place, _moved(offset, lane * stride)) for lane in range(first, first + size)]
        parts.append(_transposed(frame, dtype, ats))
    for k in range(size):
        whole = _joined(frame, memory_type(dtype), [p[k] for p in parts], size)
        frame.remember(frame.blocks, (place.base, version, _moved(offset, k)), whole)
    return frame.blocks[key]


def _transposed(frame: Frame, dtype: DType, rows: list[str]) -> list[str]:
    """The columns of a square whose rows begin at these addresses, as vectors; 4 of them, 8 or 16.

    Four elements of every fourth row are loaded as one vector. Then the fours are transposed by pairs of neighbours,
    which processors interleave in one instruction (a is row 0, b row 1 ..., e row 4):

        a0 a1 a2 a3 e0 ..  b0 b1 b2 b3 f0 ..    ->    a0 b0 a1 b1 e0 f0 ..    ->    a0 b0 c0 d0 e0 f0 ..
    """
    n, f = len(rows), frame.f
    four, t = memory_type(dtype, 4), memory_type(dtype, n)

    def interleaved(a: str, b: str, width: int) -> Iterator[str]:
        for start in (0, 2):
            pair = (start, n + start, start + 1, n + start + 1)
            if width == 2:
                pair = (start, start + 1, n + start, n + start + 1)
            order = _order(tuple([k + lane for k in range(0, n, 4) for lane in pair]))
            yield f.emit(f"shufflevector {t} {a}, {t} {b}, <{n} x i32> <{order}>")

    def column(first: int, at: int) -> str:
        where = [
            f.emit(f"getelementptr i8, ptr {p}, i64 {at * dtype.itemsize}") if at else p
            for p in rows[first::4]
        ]
        pieces = [f.emit(f"load {four}, ptr {p}, align {dtype.itemsize}") for p in where]
        return _joined(frame, memory_type(dtype), pieces, 4)

    columns: list[str] = []
    for at in range(0, n, 4):
        a, b, c, d = (column(first, at) for first in range(4))
        for ab, cd in zip(interleaved(a, b, 1), interleaved(c, d, 1), strict=True):
            columns += interleaved(ab, cd, 2)
    return columns


def _joined(frame: Frame, scalar: str, parts: list[str], size: int) -> str:
    """Vectors of equal length, a power of two of them, end to end."""
    while len(parts) > 1:
        t = f"<{size} x {scalar}>"
        size *= 2
        order = ", ".join(f"i32 {k}" for k in range(size))
        parts = [
            frame.f.emit(f"shufflevector {t} {a}, {t} {b}, <{size} x i32> <{order}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


def _gather(frame: Frame, place: Place, offset: Affine, when: str | None, mask: str | None) -> str:
    dtype, n = place.buffer.dtype, frame.now.lanes
    memory = memory_type(dtype, n)
    if when is not None:
        mask = frame.both_masks(mask, frame.broadcast(RegisterValue(when), "i1", n))
    return _masked(
        frame,
        memory,
        "gather",
        f"{_suffix(dtype, n)}.{suffix('ptr', n)}",
        [
            (f"{vector('ptr', n)} align {dtype.itemsize}", _addresses(frame, place, offset)),
            (vector("i1", n), mask or "splat (i1 true)"),
            (memory, "zeroinitializer"),
        ],
    )


def _addresses(frame: Frame, place: Place, offset: Affine) -> str:
    """The address in each lane: one base that lanes share and a vector of offsets."""
    lo, hi = lane_bounds(offset)
    bits = 32 if lo >= -(1 << 31) and hi < 1 << 31 else 64
    own = lane_part(frame, offset, bits)
    assert own is not None
    base = address(frame, place, offset)
    n = frame.now.lanes
    element = _element(place.buffer.dtype.itemsize)
    return frame.f.emit(f"getelementptr {element}, ptr {base}, {vector(f'i{bits}', n)} {own.name}")


def _store_one(frame: Frame, place: Place, offset: Affine, value: RegisterValue, mask: str | None) -> None:
    """All lanes write one element: the last one that may, stays."""
    dtype, f, n = place.buffer.dtype, frame.f, frame.now.lanes
    memory = memory_type(dtype)
    at = address(frame, place, offset)
    if mask is None:
        last = value.ref
        if value.lanes:
            last = f.emit(f"extractelement {register_type(dtype, n)} {last}, i64 {n - 1}")
        f.do(f"store {memory} {to_memory(frame, dtype, 0, last)}, ptr {at}, align {dtype.itemsize}")
        return
    every = to_memory(frame, dtype, n, frame.broadcast(value, register_type(dtype), n))
    pointers = f.emit(f"getelementptr i8, ptr {at}, {vector('i64', n)} zeroinitializer")
    _masked(
        frame,
        "void",
        "scatter",
        f"{_suffix(dtype, n)}.{suffix('ptr', n)}",
        [
            (memory_type(dtype, n), every),
            (f"{vector('ptr', n)} align {dtype.itemsize}", pointers),
            (vector("i1", n), mask),
        ],
    )


def _masked(frame: Frame, result: str, what: str, name: str, args: list[tuple[str, str]]) -> str:
    """A call of llvm.masked.`what`; the pointer argument's type carries its alignment."""
    full = f"llvm.masked.{what}.{name}"
    frame.f.module.declare(full, result, ", ".join(t.split(" align")[0] for t, _ in args))
    text = f"call {result} @{full}({', '.join(f'{t} {v}' for t, v in args)})"
    if result != "void":
        return frame.f.emit(text)
    frame.f.do(text)
    return ""


def _suffix(dtype: DType, lanes: int) -> str:
    return suffix(memory_type(dtype), lanes)


def _element(size: int) -> str:
    return f"i{8 * size}"


def _moved(offset: Affine, by: int) -> Affine:
    """`offset` plus a constant, of lane 0."""
    return Affine(offset.const + by, offset.terms, offset.steps, offset.varying)


def _reverse(frame: Frame, mask: str) -> str:
    n = frame.now.lanes
    order = ", ".join(f"i32 {k}" for k in reversed(range(n)))
    t = vector("i1", n)
    return frame.f.emit(f"shufflevector {t} {mask}, {t} poison, <{n} x i32> <{order}>")


def _backward(frame: Frame, dtype: DType, x: str) -> str:
    return _shuffle(frame, dtype, frame.now.lanes, x, x, range(frame.now.lanes)[::-1])


def _shuffle(frame: Frame, dtype: DType, lanes: int, a: str, b: str, picks: Sequence[int]) -> str:
    t = memory_type(dtype, lanes)
    return frame.f.emit(f"shufflevector {t} {a}, {t} {b}, <{lanes} x i32> <{_order(tuple(picks))}>")


@lru_cache(256)
def _order(picks: tuple[int, ...]) -> str:
    """The lanes that a shuffle picks, -1 for any, as LLVM IR."""
    return ", ".join([f"i32 {k}" if k >= 0 else "i32 poison" for k in picks])
