"""The rules of lowered loops, checked."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.errors import IRError
from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall, Temp, Test, indices, opaque_values
from weft.ir.index import NEVER, Guard, Int, Opaque, Sum, Var, atoms, bounds, high, in_range
from weft.ir.loops import (
    FORBIDDEN_INSIDE,
    INDEPENDENT_KINDS,
    LANE_KINDS,
    Accumulate,
    Alloc,
    Barrier,
    Block,
    Buffer,
    Combine,
    If,
    Let,
    Loop,
    LoopKind,
    Prefetch,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_names import every, guard_indices
from weft.ir.loops_text import show_head
from weft.ir.ops import COMBINE, COMPARE, ELEMENTWISE, Op, kind_error
from weft.lazy_dataclass import dataclass

_CONSTANT = LANE_KINDS | {LoopKind.UNROLL, LoopKind.MATRIX}


def verify(program: Program) -> None:
    """Raise an IRError that names the rule and the statement unless `program` is well formed."""
    _Verifier(program).program()


@dataclass(frozen=True, slots=True)
class _Place:
    """The surroundings of a statement."""

    loops: tuple[Loop, ...] = ()
    conditional: bool = False  # may be skipped: an If, a guard, or a loop that may run zero times
    uniform: bool = True  # every THREAD of the block gets here alike

    def inside(self, kind: LoopKind) -> bool:
        return any(x.kind is kind for x in self.loops)


class _Verifier:
    def __init__(self, p: Program) -> None:
        self.p = p
        self.names: dict[str, Var | Buffer | DType] = {}  # in scope: what each stands for
        self.born: dict[str, tuple[Loop, ...]] = {}  # the loops around each allocation
        self.seen: dict[Expr, None] = {}  # expressions found right in this scope
        self.stmt: Stmt | None = None
        self.place = _Place()

    def fail(self, rule: str, e: Expr | Int | None = None) -> IRError:
        where = show_head(self.stmt) if self.stmt is not None else self.p.name
        return IRError(rule + ("" if e is None else f": {e!r}"), f"loops of {self.p.name}", where)

    # names and scopes

    def declare(self, name: str, what: Var | Buffer | DType) -> None:
        if name in self.names:
            raise self.fail(f"the name {name} is bound twice")
        self.names[name] = what

    @contextmanager
    def scope(self, place: _Place) -> Generator[None]:
        """Names bound and expressions checked inside count only there."""
        names, seen, outer = len(self.names), len(self.seen), self.place
        self.place = place
        yield
        self.place = outer
        while len(self.names) > names:
            self.names.popitem()
        while len(self.seen) > seen:
            self.seen.popitem()

    def program(self) -> None:
        p = self.p
        for v in p.variables:
            self.declare(v.name, v)
        for b in p.params:
            self.declare(b.name, b)
            self.born[b.name] = ()
            if b.scope is not Scope.GLOBAL:
                raise self.fail(f"parameter {b.name} is not GLOBAL")
            self.index(b.size)
        unknown = p.writes - {b.name for b in p.params}
        if unknown:
            raise self.fail(f"writes names no parameter: {', '.join(sorted(unknown))}")
        self.unique(p)
        self.block(p.body)

    def unique(self, p: Program) -> None:
        """Names are unique in the whole program, also in blocks side by side."""
        bound = set(self.names)
        for s in every(p.body):
            name = None
            match s:
                case Loop():
                    name = s.var.name
                case Let():
                    name = s.name
                case Alloc():
                    name = s.buffer.name
                case _:
                    continue
            self.stmt = s
            if name in bound:
                raise self.fail(f"the name {name} is bound twice")
            bound.add(name)
        self.stmt = None

    # statements

    def block(self, body: Block) -> None:
        for s in body:
            self.stmt = s
            match s:
                case Loop():
                    self.loop(s)
                case If():
                    self.guard(s.guard)
                    uniform = self.place.uniform and self.same_in_threads(guard_indices(s.guard))
                    with self.scope(_Place(self.place.loops, True, uniform)):
                        self.block(s.body)
                case Let():
                    self.expr(s.value)
                    self.declare(s.name, s.value.dtype)
                case Alloc(b):
                    self.alloc(b)
                case Store() | Accumulate():
                    self.write(s)
                case Prefetch():
                    self.index(s.offset)
                    self.buffer(s.buffer)
                case Barrier():
                    self.barrier("a barrier")
                case Combine():
                    self.combine(s)
                case _:
                    raise self.fail(f"not a statement: {type(s).__name__}")

    def loop(self, s: Loop) -> None:
        kind, v = s.kind, s.var
        self.index(s.extent)
        for outer in self.place.loops:
            if kind in FORBIDDEN_INSIDE.get(outer.kind, ()):
                raise self.fail(f"a {kind.value} loop may not stand inside a {outer.kind.value} loop")
        if kind in _CONSTANT and not isinstance(s.extent, int):
            raise self.fail(f"the extent of a {kind.value} loop must be constant")
        if isinstance(s.extent, int) and s.extent < 0:
            raise self.fail("the extent is negative")
        if v.lo != 0 or v.hi != high(s.extent) - 1:
            raise self.fail(f"variable {v.name} runs over {v.lo}..{v.hi}, not over 0..{high(s.extent) - 1}")
        lanes = {x.var.name for x in self.place.loops if x.kind in LANE_KINDS}
        if lanes and not self.free_of(s.extent, lanes):
            raise self.fail("the extent of a loop inside a vector loop differs between lanes")
        uniform = self.place.uniform and self.same_in_threads([s.extent])
        maybe_empty = self.place.conditional or not isinstance(s.extent, int) or s.extent == 0
        with self.scope(_Place((*self.place.loops, s), maybe_empty, uniform)):
            self.declare(v.name, v)
            self.block(s.body)

    def free_of(self, i: Int, names: set[str]) -> bool:
        return not any(isinstance(a, Opaque) or (isinstance(a, Var) and a.name in names) for a in atoms(i))

    def same_in_threads(self, used: Iterable[Int]) -> bool:
        threads = {x.var.name for x in self.place.loops if x.kind is LoopKind.THREAD}
        return not threads or all(self.free_of(i, threads) for i in used)

    def alloc(self, b: Buffer) -> None:
        if b.scope is Scope.GLOBAL and any(x.kind in INDEPENDENT_KINDS for x in self.place.loops):
            raise self.fail("a GLOBAL buffer is shared by all tasks: allocate it outside parallel loops")
        if not isinstance(b.size, int) or b.size < 0:
            raise self.fail("the size of an allocation must be a constant")
        if b.scope is Scope.LOCAL and any(self.place.inside(k) for k in (LoopKind.THREAD, *LANE_KINDS)):
            raise self.fail(
                "a LOCAL buffer belongs to the whole block: allocate it outside thread and vector loops"
            )
        self.declare(b.name, b)
        self.born[b.name] = self.place.loops

    def write(self, s: Store | Accumulate) -> None:
        place = self.place
        with self.scope(_Place(place.loops, place.conditional or bool(s.guard), place.uniform)):
            self.guard(s.guard)
            self.index(s.offset)
            self.expr(s.value)
            b = self.buffer(s.buffer)
            if any(b is q for q in self.p.params) and b.name not in self.p.writes:
                raise self.fail(f"parameter {b.name} is not among the program's writes")
            if s.value.dtype is not b.dtype:
                raise self.fail(
                    f"a {s.value.dtype.name} value is stored to {b.name}, which is {b.dtype.name}"
                )
            self.access(b, s.offset)
            if isinstance(s, Accumulate):
                if s.op not in COMBINE.values():
                    raise self.fail(f"{s.op.symbol} cannot accumulate")
                if b.dtype.is_narrow or kind_error(s.op, b.dtype):
                    raise self.fail(f"{s.op.symbol} cannot accumulate in {b.dtype.name}")

    def barrier(self, what: str) -> None:
        if not self.place.inside(LoopKind.THREAD):
            raise self.fail(f"{what} must stand inside a thread loop")
        if any(self.place.inside(k) for k in LANE_KINDS):
            raise self.fail(f"{what} may not stand inside a vector loop")
        if not self.place.uniform:
            raise self.fail(f"{what} stands where some threads of the block may not come")

    def combine(self, s: Combine) -> None:
        self.barrier("what threads combine")
        self.index(s.offset)
        b = self.buffer(s.buffer)
        thread = max(k for k, x in enumerate(self.place.loops) if x.kind is LoopKind.THREAD)
        count = self.place.loops[thread].extent
        if b.scope is not Scope.REGISTER or len(self.born[b.name]) <= thread:
            raise self.fail(f"{b.name} is not in registers of each thread")
        if not self.same_in_threads([s.offset]):
            raise self.fail("threads combine elements at different offsets", s.offset)
        if s.group < 1 or s.group & (s.group - 1) or not isinstance(count, int) or count % s.group:
            raise self.fail(f"{count!r} threads are not groups of {s.group}, a power of two")
        if s.op not in COMBINE.values() or b.dtype.is_narrow or kind_error(s.op, b.dtype):
            raise self.fail(f"{s.op.symbol} cannot combine {b.dtype.name}")
        self.access(b, s.offset)

    # accesses

    def buffer(self, name: str) -> Buffer:
        b = self.names.get(name)
        if not isinstance(b, Buffer):
            raise self.fail(f"{name} is not a buffer in scope")
        if b.scope is not Scope.GLOBAL:
            for inner in self.place.loops[len(self.born[name]) :]:
                private = (
                    INDEPENDENT_KINDS if b.scope is Scope.REGISTER else INDEPENDENT_KINDS - {LoopKind.THREAD}
                )
                if inner.kind in private:
                    raise self.fail(f"{b.scope.value} buffer {name} is used across a {inner.kind.value} loop")
        return b

    def access(self, b: Buffer, offset: Int) -> None:
        """Complains where an element out of range is certainly accessed."""
        if self.place.conditional:
            return
        lo, hi = bounds(offset)
        outside = in_range(offset, 0, b.size) == NEVER
        if outside or (isinstance(b.size, int) and self.attained(offset) and (lo < 0 or hi >= b.size)):
            raise self.fail(f"offset in {lo}..{hi} leaves {b.name}, which has {b.size!r} elements", offset)

    def attained(self, i: Int) -> bool:
        """True where the loops around reach both bounds of `i`: an affine form of their variables."""
        used = [a for a, _ in i.terms] if isinstance(i, Sum) else [i]
        running = {x.var for x in self.place.loops}
        return all(isinstance(a, int) or (isinstance(a, Var) and a in running) for a in used)

    # expressions

    def guard(self, g: Guard) -> None:
        for i in guard_indices(g):
            self.index(i)

    def index(self, i: Int) -> None:
        if isinstance(i, int):
            return
        for a in atoms(i):
            if isinstance(a, Var):
                known = self.names.get(a.name)
                if not isinstance(known, Var):
                    raise self.fail(f"{a.name} is not an index variable in scope")
                if known != a:
                    raise self.fail(
                        f"{a.name} is used with range {a.lo}..{a.hi} but has range {known.lo}..{known.hi}"
                    )
        for v in opaque_values(i):
            self.expr(v)
            if not v.dtype.is_int:
                raise self.fail(f"an index is computed as {v.dtype.name}", v)

    def expr(self, root: Expr) -> None:
        stack = [(root, False)]
        while stack:
            e, ready = stack.pop()
            if e in self.seen:
                continue
            if ready:
                self.node(e)
                self.seen[e] = None
            else:
                stack.append((e, True))
                stack.extend((o, False) for o in e.operands())

    def node(self, e: Expr) -> None:
        for i in indices(e):
            self.index(i)
        match e:
            case Const() | Test():
                pass
            case FromIndex():
                if not e.dtype.is_int:
                    raise self.fail(f"an index has an integer dtype, not {e.dtype.name}", e)
            case Temp():
                known = self.names.get(e.name)
                if not isinstance(known, DType):
                    raise self.fail(f"{e.name} is not bound here")
                if known is not e.dtype:
                    raise self.fail(f"{e.name} is {known.name}, not {e.dtype.name}")
            case Load():
                b = self.buffer(e.source)
                if len(e.index) != 1:
                    raise self.fail("a load has one flat offset", e)
                if e.dtype is not b.dtype:
                    raise self.fail(f"{b.name} is {b.dtype.name}, not {e.dtype.name}", e)
                if not e.guard:
                    self.access(b, e.index[0])
            case ScalarCall():
                why = call_error(e)
                if why:
                    raise self.fail(why, e)
            case _:
                raise self.fail(f"not a scalar expression: {type(e).__name__}")


def call_error(e: ScalarCall) -> str | None:
    """The error in the dtypes of a call, None if there is none."""
    op, out = e.op, e.dtype
    if op not in ELEMENTWISE:
        return f"{op.symbol} is not elementwise"
    if len(e.args) != op.info.arity:
        return f"{op.symbol} takes {op.info.arity} operands, not {len(e.args)}"
    given = [a.dtype for a in e.args]
    first = given[0]
    match op:
        case Op.CAST:
            return None
        case Op.BITCAST:
            return None if first.itemsize == out.itemsize else f"{first.name} and {out.name} differ in width"
        case Op.WHERE:
            if given[0] is not dtypes.bool_:
                return f"the condition is {given[0].name}, not bool"
            given, first = given[1:], given[1]
        case _:
            pass
    listed = ", ".join(d.name for d in given)
    if any(d is not first for d in given):
        return f"{op.symbol} needs operands of one dtype, got {listed}"
    expected = dtypes.bool_ if op in COMPARE else first
    if out is not expected:
        return f"{op.symbol} of {listed} gives {expected.name}, not {out.name}"
    if first.is_narrow:
        return f"{op.symbol} on {first.name}: narrow floats are only loaded, stored and cast"
    if op is Op.THREEFRY and first is not dtypes.uint32:
        return f"threefry needs uint32, got {listed}"
    why = kind_error(op, first)
    return why and f"{op.symbol} {why}"
