"""Statements of lowered loops -> instructions. What differs between targets is behind `Hooks`."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Protocol

from weft.backends.llvm import memory, scalar
from weft.backends.llvm.frame import Condition, Frame, Group, Place, RegisterValue, Term, groups_of
from weft.backends.llvm.index import Affine, affine, condition, materialize, ref, uniform
from weft.backends.llvm.memory import ALIGNMENT
from weft.backends.llvm.turn import turned
from weft.backends.llvm.types import constant_mask, literal, memory_type, register_type, suffix, vector
from weft.backends.llvm.writer import Lines
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall, Temp, Test, indices, opaque_values, walk
from weft.ir.index import Guard, Int, Sum, Var, atoms, coefficient, low, variables
from weft.ir.loops import (
    LINE,
    Accumulate,
    Alloc,
    Barrier,
    Block,
    Combine,
    If,
    Let,
    Loop,
    LoopKind,
    Prefetch,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_names import body_of, every, roots, stmt_indices
from weft.ir.ops import Op

MAX_WRITTEN_OUT = 4
MAX_COPIES = 24
FEW_COPIES = 8
MAX_VECTORS = 64
LANES_OF_A_VECTOR = 16
"""Limits, in iterations, statements and the vectors that these read, for writing a loop out that nobody asks for."""


_RUNS = nullcontext(True)


class Own(Stmt):
    """A statement of a target's own, which it adds after all passes."""

    __slots__ = ()

    def render(self, body: Body) -> None:
        """Its instructions."""
        raise AssertionError


class Hooks(Protocol):
    """The parts that a target adds. It also defines `%local`, memory for `Frame.local_bytes` of LOCAL buffers."""

    def spread(self, body: Body, loop: Loop) -> None:
        """A PARALLEL, BLOCK or THREAD loop."""
        ...

    def barrier(self, body: Body) -> None:
        """Order the LOCAL accesses of a block's threads."""
        ...

    def exchanged(self, body: Body, word: str, distance: int) -> str:
        """The 32-bit word of the thread whose number differs from each thread's in the bit of value `distance`."""
        ...

    def multiply(self, body: Body, loop: Loop) -> bool:
        """Loops that end in one on matrix units, by instructions for them; False where there are none."""
        ...


def identity(op: Op, dtype: DType) -> str:
    """The literal that `op` leaves every value as it is with."""
    match op:
        case Op.ADD:
            return literal(dtype, -0.0 if dtype.is_float else 0)
        case Op.MUL:
            return literal(dtype, 1)
        case Op.MAX:
            return literal(dtype, dtype.min)
        case Op.MIN:
            return literal(dtype, dtype.max)
        case _:
            raise ValueError(f"cannot accumulate with {op.symbol}")


class Body:
    """Renders blocks into the function of `frame`."""

    __slots__ = ("asked", "frame", "hooks", "streams")

    def __init__(self, frame: Frame, hooks: Hooks) -> None:
        self.frame = frame
        self.hooks = hooks
        self.streams = False
        """True where a streaming store was rendered."""
        self.asked: dict[tuple[str, str, tuple[tuple[Term, int], ...]], list[int]] = {}
        """The prefetches of a basic block: for a buffer and an offset's terms, the bytes beyond."""

    def block(self, stmts: Block) -> None:
        """All statements in order."""
        top = self.frame.local_top
        for s in stmts:
            self.statement(s)
        self.frame.local_top = top

    def statement(self, s: Stmt) -> None:
        """One statement. Raises TypeError for an unknown one."""
        match s:
            case Loop():
                self.loop(s)
            case Alloc():
                self._alloc(s)
            case Let():
                self._let(s)
            case Store():
                self._store(s)
            case Accumulate():
                self._accumulate(s)
            case If():
                self._if(s)
            case Prefetch():
                self.prefetch(s)
            case Barrier():
                self.frame.touch(self.frame.places)
                self.hooks.barrier(self)
            case Combine():
                self._among_threads(s)
            case Own():
                s.render(self)
            case _:
                raise TypeError(f"not a statement: {type(s).__name__}")

    # loops

    def loop(self, loop: Loop) -> None:
        """A loop of any kind."""
        if loop.kind is LoopKind.ACROSS:  # where these are threads', they are Combine
            loop = replace(loop, kind=LoopKind.VECTOR)
        if loop.kind not in (LoopKind.UNROLL, LoopKind.VECTOR):
            self.frame.touch(body_of(loop).written)
        if loop.kind in (LoopKind.UNROLL, LoopKind.MATRIX) and self.hooks.multiply(self, loop):
            return
        match loop.kind:
            case LoopKind.SERIAL | LoopKind.MATRIX:
                self.serial(loop)
            case LoopKind.UNROLL:
                self._unroll(loop, loop.extent)
            case LoopKind.VECTOR:
                if loop.extent == 1:
                    self._unroll(loop, 1)
                else:
                    self._vector(loop)
            case _:
                self.hooks.spread(self, loop)

    def serial(self, loop: Loop) -> None:
        """A loop with a counter in a register."""
        tiles = turned(loop)
        if tiles is not None:
            self.block(tiles)
            return
        self.expressions_of((loop.extent,))
        extent = uniform(self.frame, loop.extent)
        if isinstance(extent, int) and (extent == 1 or self._write_out(loop, extent)):
            self._unroll(loop, extent)
        elif not (isinstance(extent, int) and extent <= 0):
            self.counted(loop, "0", ref(extent), nonempty=low(loop.extent) >= 1)

    def _write_out(self, loop: Loop, extent: int) -> bool:
        """True where a short loop is better written out: there is little in it, or its variable stands in a
        division or a condition.
        """
        copies = extent * _copies(loop.body)
        if not 1 < extent <= MAX_WRITTEN_OUT or copies > MAX_COPIES:
            return False
        if extent * _vectors(loop.body) > MAX_VECTORS:
            return False
        if copies <= FEW_COPIES:
            return True
        for s in every(loop.body):
            held = [*stmt_indices(s), *(i for e in walk(roots(s)) for i in indices(e))]
            guarded = [s.guard] if isinstance(s, If | Store | Accumulate) else []
            guarded += [e.guard for e in walk(roots(s)) if isinstance(e, Load | Test)]
            if any(loop.var in variables(a) for i in held for a in atoms(i) if not isinstance(a, Var | Sum)):
                return True
            if any(loop.var in variables(i) for g in guarded for i in _guard_parts(g)):
                return True
        return False

    def counted(self, loop: Loop, first: str, last: str, *, nonempty: bool) -> None:
        """`loop` with its variable from `first` up to, not including, `last` (operands of type i64)."""
        frame, f = self.frame, self.frame.f
        top, after, counter = f.fresh("loop"), f.fresh("after"), f.fresh("%k")
        level = frame.open(is_loop=True)
        if not nonempty:
            f.do(f"br i1 {f.emit(f'icmp slt i64 {first}, {last}')}, label %{top}.pre, label %{after}")
            f.start(f"{top}.pre")
        before = f.block
        f.branch(top)
        phi: Lines = []
        f.lines.append(phi)
        frame.bindings[loop.var.name] = Term(counter, level)
        if first == "0":
            frame.scopes[level].counter = counter
        self.block(loop.body)
        multiples = frame.close().multiples
        following = f.emit(f"add nuw nsw i64 {counter}, 1")
        more = f.emit(f"icmp slt i64 {following}, {last}")
        phi.append(f"  {counter} = phi i64 [ {first}, %{before} ], [ {following}, %{f.block} ]")
        for step, name in multiples.items():
            stepped = f.emit(f"add nsw i64 {name}, {step}")
            phi.append(f"  {name} = phi i64 [ 0, %{before} ], [ {stepped}, %{f.block} ]")
        f.do(f"br i1 {more}, label %{top}, label %{after}")
        f.start(after)

    def _unroll(self, loop: Loop, extent: Int) -> None:
        if not isinstance(extent, int):
            raise ValueError(f"cannot unroll loop {loop.var!r} of unknown extent {extent!r}")
        self.frame.unrolled.append((loop.var, extent, self.frame.level))
        for k in range(extent):
            self.unrolled(loop, k)
        self.frame.unrolled.pop()

    def unrolled(self, loop: Loop, k: int) -> None:
        """One iteration, its variable a constant."""
        frame = self.frame
        frame.consts[loop.var] = k
        frame.bindings[loop.var.name] = k
        self.block(loop.body)
        del frame.consts[loop.var]
        del frame.bindings[loop.var.name]

    def _vector(self, loop: Loop) -> None:
        if not isinstance(loop.extent, int):
            raise ValueError(
                f"loop {loop.var!r} of unknown extent {loop.extent!r} cannot become vector lanes"
            )
        if loop.extent == 0:
            return
        frame = self.frame
        outer = frame.groups
        frame.lane, frame.lanes = loop.var, loop.extent
        frame.groups = groups_of(loop.extent, self._most_together(loop, loop.extent))
        frame.now = frame.groups[0]
        self.block(loop.body)
        frame.lane, frame.lanes, frame.groups = None, 0, outer
        frame.now = outer[0]

    def _most_together(self, loop: Loop, extent: int) -> int:
        """The number of lanes that go together: all, but where memory is prefetched those of a line of it.

        The hardware follows lines read in order, and LLVM reads the parts of a wider vector in any order.
        """
        ahead = [s.buffer for s in loop.body if isinstance(s, Prefetch)]
        if not ahead or self.frame.f.module.gpu:
            return extent
        return max(1, LINE // max(self.frame.place(b).buffer.dtype.itemsize for b in ahead))

    # other statements

    def _let(self, s: Let) -> None:
        self.frame.forget()
        values: dict[int, RegisterValue] = {}
        for group in self.frame.each():
            self.expressions((s.value,))
            values[group.start] = group.memo[s.value]
        self.frame.temps[s.name] = (s.value.dtype, values)

    def _alloc(self, s: Alloc) -> None:
        b = s.buffer
        if not isinstance(b.size, int):
            raise ValueError(f"buffer {b.name} of unknown size {b.size!r}")
        frame = self.frame
        size = max(1, b.size * b.dtype.itemsize * max(1, frame.lanes))
        if b.scope is Scope.REGISTER or size <= frame.f.module.own_stack:
            base = frame.f.alloca(size)
        else:
            base = frame.on_entry(f"getelementptr i8, ptr %local, i64 {frame.local_top}")
            frame.local_top += -(-size // ALIGNMENT) * ALIGNMENT
            frame.local_bytes = max(frame.local_bytes, frame.local_top)
        frame.places[b.name] = Place(base, b, frame.lanes)

    def _store(self, s: Store) -> None:
        frame, held = self.frame, (*_values(s.offset), s.value)
        with self._where(s.guard, held) if s.guard else self._anywhere() as runs:
            if runs:
                for _ in frame.each():
                    self.expressions(held)
                self.streams |= s.stream
                frame.touch((s.buffer,))
                for group in frame.each():
                    at = affine(frame, s.offset)
                    memory.store(frame, frame.place(s.buffer), at, group.memo[s.value], s.stream)

    def prefetch(self, s: Prefetch) -> None:
        """A hint, in the lanes there are."""
        frame = self.frame
        if frame.f.module.gpu:  # other threads run while one waits
            return
        self.expressions_of((s.offset,))
        for _ in frame.each():
            at = affine(frame, s.offset)
            known = self.asked.setdefault((frame.f.block, s.buffer, at.terms), [])
            memory.prefetch(frame, frame.place(s.buffer), at, known, self._ahead(s.offset))

    def _accumulate(self, s: Accumulate) -> None:
        with self._where(s.guard, (s.value, *_values(s.offset))) if s.guard else self._anywhere() as runs:
            if runs:
                self._into(s)
                self.frame.touch((s.buffer,))

    def _into(self, s: Accumulate) -> None:
        frame, e = self.frame, s.value
        place = frame.place(s.buffer)
        ats: list[Affine] = []
        for _ in frame.each():
            self.expressions(_values(s.offset))
            ats.append(affine(frame, s.offset))
        apart = all(not frame.lanes or place.private or at.stride not in (None, 0) for at in ats)
        op, parts = s.op, (e,)
        if apart and op is Op.ADD and isinstance(e, ScalarCall) and e.op is Op.MUL and e.dtype.is_float:
            op, parts = Op.FMA, e.args
        for _ in frame.each():
            self.expressions(parts)
        if not apart and ats[0].uniform and all(at == ats[0] for at in ats):
            self._together(op, place, ats[0], e, frame.groups)
            return
        for group, at in zip(frame.each(), ats, strict=True):
            values = [group.memo[p] for p in parts]
            if apart:
                self._combine(op, place, at, *values)
            elif at.uniform:
                self._together(op, place, at, e, [group])
            else:
                self._one_by_one(op, place, at, *values)

    def _together(self, op: Op, place: Place, at: Affine, e: Expr, groups: list[Group]) -> None:
        """The value of all lanes of the groups into one element."""
        frame, f, dtype = self.frame, self.frame.f, e.dtype
        scalar_type = register_type(dtype)
        totals: list[str] = []
        for group in groups:
            every = frame.broadcast(group.memo[e], scalar_type, group.lanes)
            if group.mask is not None:
                t = register_type(dtype, group.lanes)
                neutral = f"splat ({scalar_type} {identity(op, dtype)})"
                every = f.emit(f"select {vector('i1', group.lanes)} {group.mask}, {t} {every}, {t} {neutral}")
            totals.append(every)
        if op in (Op.MAX, Op.MIN) and dtype.is_float and not f.module.gpu:
            total = self._extremum(op, dtype, [g.lanes for g in groups], totals)
        else:
            trees = [self._tree(op, dtype, g.lanes, x) for g, x in zip(groups, totals, strict=True)]
            total = self._pairs(op, dtype, trees)
        mask, frame.now.mask = frame.now.mask, None
        self._combine(op, place, at, RegisterValue(total))
        frame.now.mask = mask

    def _extremum(self, op: Op, dtype: DType, lanes: list[int], groups: list[str]) -> str:
        """The largest or smallest lane of all groups. NaNs are looked for once, not at each step of the trees."""
        f = self.frame.f
        found: list[str] = []
        for n, x in zip(lanes, groups, strict=True):
            first, second = self._halves(dtype, n, x) if n > 1 else (x, x)
            half = max(1, n // 2)
            some = f.emit(f"fcmp uno {register_type(dtype, half)} {first}, {second}")
            found.append(memory.any_lane(self.frame, some, half))
        trees = [self._tree(op, dtype, n, x, ordered=True) for n, x in zip(lanes, groups, strict=True)]
        total, nan = self._pairs(op, dtype, trees), self._pairs(Op.OR, dtypes.bool_, found)
        t = register_type(dtype)
        return f.emit(f"select i1 {nan}, {t} {literal(dtype, math.nan)}, {t} {total}")

    def _combine(self, op: Op, place: Place, at: Affine, *values: RegisterValue) -> None:
        """place[at] = op(values, place[at]); the operands' order matters to no op but to a NaN's bits."""
        frame, dtype = self.frame, place.buffer.dtype
        old = memory.load(frame, place, at, Condition())
        new = self._op(op, [dtype] * (len(values) + 1), dtype, (*values, old))
        memory.store(frame, place, at, new)

    def _among_threads(self, s: Combine) -> None:
        """Each thread's element and that of the thread half a group away, then a quarter, and so on: all threads of the
        group compute the same tree, and get the same bits, because no operand's place matters."""
        frame, f = self.frame, self.frame.f
        place = frame.place(s.buffer)
        dtype = place.buffer.dtype
        self.expressions(_values(s.offset))
        at = affine(frame, s.offset)
        t = register_type(dtype)
        x = frame.broadcast(memory.load(frame, place, at, Condition()), t, 0)
        distance = s.group // 2
        while distance:
            other = self._exchanged(dtype, x, distance)
            if dtype.is_float and s.op in (Op.MAX, Op.MIN):  # which tells zeros apart by their signs
                name = f"llvm.{'maximum' if s.op is Op.MAX else 'minimum'}.{suffix(t)}"
                x = f.call(name, t, [(t, x), (t, other)])
            else:
                x = scalar.render(f, s.op, (dtype, dtype), dtype, 0, (x, other))
            distance //= 2
        memory.store(frame, place, at, RegisterValue(x))
        frame.touch((s.buffer,))

    def _exchanged(self, dtype: DType, x: str, distance: int) -> str:
        """The value that another thread has of `x`."""
        f, t, bits = self.frame.f, register_type(dtype), max(8, dtype.bits)
        if dtype.is_float:
            x = f.emit(f"bitcast {t} {x} to i{bits}")
        whole = "i1" if t == "i1" else f"i{bits}"
        if bits == 64:
            low = f.emit(f"trunc i64 {x} to i32")
            high = f.emit(f"trunc i64 {f.emit(f'lshr i64 {x}, 32')} to i32")
            low, high = (self.hooks.exchanged(self, word, distance) for word in (low, high))
            low, high = (f.emit(f"zext i32 {word} to i64") for word in (low, high))
            x = f.emit(f"or i64 {low}, {f.emit(f'shl i64 {high}, 32')}")
        else:
            word = x if bits == 32 else f.emit(f"zext {whole} {x} to i32")
            x = self.hooks.exchanged(self, word, distance)
            x = x if bits == 32 else f.emit(f"trunc i32 {x} to {whole}")
        return f.emit(f"bitcast i{bits} {x} to {t}") if dtype.is_float else x

    def _tree(self, op: Op, dtype: DType, lanes: int, x: str, *, ordered: bool = False) -> str:
        """A power of two of lanes combined: the first half with the second half, until one value is left.

        `ordered`: a maximum or minimum that need not mind NaNs.
        """
        f = self.frame.f
        while lanes > 2:
            lanes //= 2
            x = self._two(op, dtype, lanes, *self._halves(dtype, 2 * lanes, x), ordered)
        t = register_type(dtype, lanes)
        first, *second = [f.emit(f"extractelement {t} {x}, i64 {k}") for k in range(lanes)]
        return self._two(op, dtype, 0, first, second[0], ordered) if second else first

    def _two(self, op: Op, dtype: DType, lanes: int, a: str, b: str, ordered: bool) -> str:
        f, t = self.frame.f, register_type(dtype, lanes)
        if not ordered:
            return scalar.render(f, op, (dtype, dtype), dtype, lanes, (a, b))
        wins = f.emit(f"fcmp {'ogt' if op is Op.MAX else 'olt'} {t} {a}, {b}")
        return f.emit(f"select {vector('i1', lanes)} {wins}, {t} {a}, {t} {b}")

    def _halves(self, dtype: DType, lanes: int, x: str) -> tuple[str, str]:
        """The first and the second half of a vector's lanes."""
        t, half = register_type(dtype, lanes), lanes // 2
        first, second = (
            self.frame.f.emit(
                f"shufflevector {t} {x}, {t} poison, <{half} x i32> "
                f"<{', '.join(f'i32 {k}' for k in range(start, start + half))}>"
            )
            for start in (0, half)
        )
        return first, second

    def _pairs(self, op: Op, dtype: DType, left: list[str]) -> str:
        """Scalars combined in the same way; an odd last one waits."""
        while len(left) > 1:
            half = len(left) // 2
            pairs = zip(left[:half], left[half : 2 * half], strict=True)
            left = [scalar.render(self.frame.f, op, (dtype, dtype), dtype, 0, ab) for ab in pairs] + left[
                2 * half :
            ]
        return left[0]

    def _one_by_one(self, op: Op, place: Place, at: Affine, value: RegisterValue) -> None:
        """Lanes may hit the same element, so each takes its turn."""
        frame, f, dtype = self.frame, self.frame.f, place.buffer.dtype
        n, mask = frame.now.lanes, frame.now.mask
        offsets = materialize(frame, at, 64).name
        t = register_type(dtype, n)
        m = memory_type(dtype)
        for k in range(n):
            after = ""
            if mask is not None:
                take, after = f.fresh("lane"), f.fresh("next")
                mine = f.emit(f"extractelement {vector('i1', n)} {mask}, i64 {k}")
                f.do(f"br i1 {mine}, label %{take}, label %{after}")
                f.start(take)
            index = f.emit(f"extractelement {vector('i64', n)} {offsets}, i64 {k}")
            own = f.emit(f"extractelement {t} {value.ref}, i64 {k}") if value.lanes else value.ref
            where = f.emit(f"getelementptr i{8 * dtype.itemsize}, ptr {place.base}, i64 {index}")
            old = memory.from_memory(
                frame, dtype, 0, f.emit(f"load {m}, ptr {where}, align {dtype.itemsize}")
            )
            new = scalar.render(f, op, (dtype, dtype), dtype, 0, (old, own))
            f.do(f"store {m} {memory.to_memory(frame, dtype, 0, new)}, ptr {where}, align {dtype.itemsize}")
            if mask is not None:
                f.branch(after)

    def _if(self, s: If) -> None:
        with self._where(s.guard, None) as runs:
            if runs:
                self.block(s.body)

    def _anywhere(self) -> nullcontext[bool]:
        """`_where` of no guard."""
        self.frame.forget()
        return _RUNS

    @contextmanager
    def _where(self, guard: Guard, values: Iterable[Expr] | None) -> Generator[bool]:
        """Inside, the guard holds: a branch where all lanes agree on it, else a mask. Yields whether it ever holds.

        Some lane is active inside, if `values` (None: anything) need that.
        """
        frame, f = self.frame, self.frame.f
        self.expressions_of(_guard_parts(guard))
        outer = frame.groups
        found = [(group, condition(frame, guard)) for group in frame.each()]
        ever = [(group, when) for group, when in found if not when.never]
        if not ever:
            yield False
            return
        # Lanes of one group may all agree, and those of another on something else: then there is no one branch.
        agreed = {when.shared for _, when in ever}
        may = agreed.pop() if len(agreed) == 1 else None
        inside: list[Group] = []
        for group, when in ever:
            frame.now = group
            mask = frame.both_masks(group.mask, when.mask)
            if may is None and when.shared is not None:
                own = frame.broadcast(RegisterValue(when.shared), "i1", group.lanes)
                mask = frame.both_masks(mask, own)
            inside.append(replace(group, mask=mask))
        frame.groups, frame.now = inside, inside[0]
        partial = len(inside) < len(outer) or any(
            a.mask != b.mask for a, b in zip(outer, inside, strict=True)
        )
        if partial and (values is None or any(self._reads_one(e) for e in walk(values))):
            some = self._any_lane()
            if some is not None:
                may = some if may is None else f.emit(f"and i1 {may}, {some}")
        after = f.fresh("endif")
        if may is not None:
            frame.open(is_loop=False)
            then = f.fresh("then")
            f.do(f"br i1 {may}, label %{then}, label %{after}")
            f.start(then)
        yield True
        frame.groups, frame.now = outer, outer[0]
        if may is not None:
            frame.forget()
            frame.close()
            f.branch(after)

    def _any_lane(self) -> str | None:
        """The condition that any lane is active; None when one surely is."""
        frame = self.frame
        found: list[str] = []
        for group in frame.each():
            if group.mask is None or constant_mask(group.mask) is not None:
                return None
            found.append(memory.any_lane(frame, group.mask))
        return self._pairs(Op.OR, dtypes.bool_, found)

    def _reads_one(self, e: Expr) -> bool:
        """True where one element of memory, perhaps, is read for all lanes."""
        frame = self.frame
        return (
            isinstance(e, Load)
            and frame.lane not in variables(e.index[0])
            and frame.place(e.source).buffer.scope is not Scope.REGISTER
        )

    # expressions

    def expressions_of(self, indices: Iterable[Int]) -> None:
        """Begin a statement by computing what these indices depend on."""
        self.frame.forget()
        values = [v for i in indices for v in _values(i)]
        for _ in self.frame.each():
            self.expressions(values)

    def expressions(self, roots: Iterable[Expr]) -> None:
        """Compute `roots` into the memo, operands before users."""
        memo, orders, key = self.frame.now.memo, self.frame.orders, tuple(roots)
        order = orders.get(key)
        if order is None:
            order = orders[key] = list(walk(key))
        share = bool(self.frame.unrolled) or len(self.frame.groups) > 1
        for e in order:
            if e not in memo:
                memo[e] = self._shared(e) if share else self._expression(e)

    def _shared(self, e: Expr) -> RegisterValue:
        """A value that is there already, else computed: in unrolled iterations, and in one group of several."""
        frame = self.frame
        if isinstance(e, Const | Temp):
            return self._expression(e)
        key = frame.context(e)
        found = frame.values.get(key)
        if found is None:
            found = self._expression(e)
            frame.remember(frame.values, key, found)
        return found

    def _expression(self, e: Expr) -> RegisterValue:
        frame = self.frame
        match e:
            case Const():
                return RegisterValue(literal(e.dtype, e.value))
            case Temp():
                return frame.temp(e.name)
            case Load():
                at, when = affine(frame, e.index[0]), condition(frame, e.guard)
                return memory.load(frame, frame.place(e.source), at, when, self._ahead(e.index[0], e.guard))
            case ScalarCall():
                memo = frame.now.memo
                return self._op(e.op, [a.dtype for a in e.args], e.dtype, [memo[a] for a in e.args])
            case FromIndex():
                return self._from_index(e)
            case Test():
                return self._test(e.guard)
            case _:
                raise TypeError(f"not a scalar expression: {type(e).__name__}")

    def _ahead(self, offset: Int, guard: Guard = ()) -> int:
        """The number of neighbours that the next unrolled iterations surely ask for, the element included."""
        frame = self.frame
        if guard or frame.now.mask is not None:
            return 1
        for v, extent, level in reversed(frame.unrolled):
            if level == frame.level and coefficient(offset, v) == 1:
                return extent - frame.consts[v]
        return 1

    def _op(self, op: Op, src: Iterable[DType], dst: DType, args: Iterable[RegisterValue]) -> RegisterValue:
        src, args = list(src), list(args)
        lanes = max([a.lanes for a in args])
        refs = [
            a.ref if a.lanes or not lanes else self.frame.broadcast(a, register_type(d), lanes)
            for d, a in zip(src, args, strict=True)
        ]
        return RegisterValue(scalar.render(self.frame.f, op, src, dst, lanes, refs), lanes)

    def _from_index(self, e: FromIndex) -> RegisterValue:
        frame = self.frame
        a = affine(frame, e.index)
        bits = e.dtype.bits
        if a.uniform:
            value = uniform(frame, e.index)
            if isinstance(value, int):
                return RegisterValue(literal(e.dtype, value))
            if bits == 64:
                return RegisterValue(value.name)
            return RegisterValue(frame.share(value.level, f"trunc i64 {value.name} to i{bits}").name)
        return RegisterValue(materialize(frame, a, bits).name, frame.now.lanes)

    def _test(self, guard: Guard) -> RegisterValue:
        frame = self.frame
        when = condition(frame, guard)
        if when.never:
            return RegisterValue("false")
        if when.mask is None:
            return RegisterValue(when.shared or "true")
        if when.shared is None:
            return RegisterValue(when.mask, frame.now.lanes)
        every = frame.broadcast(RegisterValue(when.shared), "i1", frame.now.lanes)
        return RegisterValue(
            frame.f.emit(f"and {vector('i1', frame.now.lanes)} {when.mask}, {every}"), frame.now.lanes
        )


def _copies(block: Block) -> int:
    """The number of statements of a block, written out."""
    total = 0
    for s in block:
        inside = _copies(s.body) if isinstance(s, Loop | If) else 1
        times = s.extent if isinstance(s, Loop) and s.kind is LoopKind.UNROLL else 1
        total += inside * (times if isinstance(times, int) else 1)
    return total


def _vectors(block: Block, lanes: Loop | None = None) -> int:
    """About the number of vectors that a block reads or computes, with its short loops written out as well."""
    total = 0
    for s in block:
        match s:
            case Loop(kind=LoopKind.SERIAL) if turned(s) is not None:
                total += MAX_VECTORS  # a square has as many instructions
            case Loop(extent=int(n)):
                short = s.kind is LoopKind.UNROLL or (s.kind is LoopKind.SERIAL and n <= MAX_WRITTEN_OUT)
                inner = s if s.kind is LoopKind.VECTOR else lanes
                total += _vectors(s.body, inner) * (n if short else 1)
            case Loop() | If():
                total += _vectors(s.body, lanes)
            case _ if lanes is None or not isinstance(lanes.extent, int):
                total += 1
            case _:
                steps = [coefficient(e.index[0], lanes.var) for e in walk(roots(s)) if isinstance(e, Load)]
                apart = sum(step not in (-1, 0, 1) for step in steps)
                total += -(-lanes.extent // LANES_OF_A_VECTOR) * max(1, memory.MAX_RUNS * apart)
    return total


def _values(i: Int) -> list[Expr]:
    """The scalar values that an index depends on."""
    return [] if isinstance(i, int) or not i.computed else opaque_values(i)


def _guard_parts(guard: Guard) -> list[Int]:
    return [x for c in guard for x in (c.value, c.lo, c.hi) if x is not None]
