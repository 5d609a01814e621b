"""Loops on matrix units -> `mma.sync`, with fragments by `ldmatrix`.

    unroll i, j: matrix k in 16: c[..] += a[..] * b[..]      ->      ldmatrix a; ldmatrix b; mma c, a, b, c

What the loops say is what each thread computes: its elements of c, over all terms. The instructions compute the same
for a warp, if the threads' shares are those of the unit; that is checked here, from the offsets themselves. The places
of elements in registers are those of the PTX ISA, "Matrix fragments for mma.m16n8k16" and ".m16n8k8".
"""
# Tests: tests/backends/cuda/test_kernels.py, tests/backends/cuda/test_assemble.py

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from weft.backends.llvm import memory
from weft.backends.llvm.body import Body
from weft.backends.llvm.frame import Place
from weft.backends.llvm.index import affine
from weft.ir import dtypes
from weft.ir.errors import IRError
from weft.ir.expr import Expr, Load, ScalarCall, walk
from weft.ir.index import Int, Var, coefficient, floordiv, mod, substitute
from weft.ir.loops import Accumulate, Buffer, Loop, LoopKind, Scope
from weft.ir.matrix import LayoutFactor, MatrixUnit, Role
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

WARP = 32
_ROWS = (LayoutFactor(Role.ELEMENT, 2), LayoutFactor(Role.LANE, 8))
_COLUMNS = (LayoutFactor(Role.LANE, 4), LayoutFactor(Role.ELEMENT, 2))

UNITS: tuple[MatrixUnit, ...] = tuple(
    MatrixUnit(16, 8, k, operand, dtypes.float32, _ROWS, _COLUMNS)
    for k, operand in ((16, dtypes.bfloat16), (16, dtypes.float16), (8, dtypes.float32))
)
"""From compute capability 8.0 on."""

_INSTRUCTION = {
    dtypes.bfloat16: ("llvm.nvvm.mma.m16n8k16.row.col.bf16", "i32"),
    dtypes.float16: ("llvm.nvvm.mma.m16n8k16.row.col.f32.f32", "<2 x half>"),
    dtypes.float32: ("llvm.nvvm.mma.m16n8k8.row.col.tf32", "i32"),
}
"""By operand: LLVM's name, and its type of an operand's register."""


def units(capability: tuple[int, int], tf32: bool = False) -> tuple[MatrixUnit, ...]:
    """The units of an architecture; that of float32, which rounds its operands to TF32, only where that is allowed."""
    if capability < (8, 0):
        return ()
    return tuple(u for u in UNITS if tf32 or u.operand is not dtypes.float32)


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor: its panel, and the steps along its own axis (rows of a, columns of b) and along the terms."""

    buffer: Buffer
    offset: Int
    along: int
    deep: int


@dataclass(frozen=True, slots=True)
class MatrixLoops:
    """The loops around the sum, outermost first, and the sum."""

    loops: tuple[Loop, ...]
    sum: Accumulate


def chain(loop: Loop) -> MatrixLoops | None:
    """Unrolled loops, each the only statement of the one around it, down to one on matrix units."""
    loops: list[Loop] = []
    at = loop
    while at.kind in (LoopKind.UNROLL, LoopKind.MATRIX) and len(at.body) == 1:
        loops.append(at)
        inner = at.body[0]
        if at.kind is LoopKind.MATRIX:
            return MatrixLoops(tuple(loops), inner) if isinstance(inner, Accumulate) else None
        if not isinstance(inner, Loop):
            return None
        at = inner
    return None


def multiply(body: Body, found: MatrixLoops, thread: Loop | None) -> None:
    """The instructions of a chain. IRError where it is not what a unit computes."""
    names = [e.source for e in walk([found.sum.value]) if isinstance(e, Load)]
    buffers = {n: body.frame.place(n).buffer for n in names}
    _Rendering(body, Product(found, thread, buffers)).render()


class Product:
    """A product as the loops of a chain share it out among threads. IRError where it is not as a unit does."""

    def __init__(self, found: MatrixLoops, thread: Loop | None, buffers: Mapping[str, Buffer]) -> None:
        self.sum, self.loops = found.sum, found.loops[:-1]
        self.term = found.loops[-1]
        factors = self._factors()
        operand = factors[0].dtype
        unit = next((u for u in UNITS if u.operand is operand and u.k == self.term.extent), None)
        if thread is None or not isinstance(thread.extent, int) or thread.extent % WARP:
            raise self.fail("it does not run on whole warps")
        if unit is None or factors[1].dtype is not operand:
            raise self.fail("there is no unit for it")
        self.unit, self.operand, self.thread = unit, operand, thread.var
        self.threads = thread.extent
        self.warp = Var(f"{thread.var.name}_warp", 0, thread.extent // WARP - 1)
        self.a, self.b = self._operands(*factors, buffers)
        self._roles()

    def fail(self, why: str) -> IRError:
        return IRError(f"the loop {self.term.var.name} cannot run on matrix units: {why}")

    # what the loops compute

    def _factors(self) -> tuple[Load, Load]:
        s = self.sum
        if s.op is not Op.ADD or s.guard or not isinstance(s.value, ScalarCall) or s.value.op is not Op.MUL:
            raise self.fail("it is no plain sum of products")
        out: list[Load] = []
        for e in s.value.args:
            inner: Expr = e.args[0] if isinstance(e, ScalarCall) and e.op is Op.CAST else e
            if not isinstance(inner, Load) or inner.guard:
                raise self.fail("a factor is no plain element of a panel")
            out.append(inner)
        return out[0], out[1]

    def lane(self, offset: Int, number: Int) -> Int:
        """An offset as thread `number` of the warp has it."""
        return substitute(offset, {self.thread: self.warp * WARP + number})

    def step(self, offset: Int, number: int) -> int:
        """The distance of lane `number` from lane 0."""
        far = self.lane(offset, number) - self.lane(offset, 0)
        if not isinstance(far, int):
            raise self.fail("the threads of a warp do not step evenly")
        return far

    def _operands(self, x: Load, y: Load, buffers: Mapping[str, Buffer]) -> tuple[Operand, Operand]:
        """The factors as a and b: the one that differs from row lane to row lane, and the other."""
        a, b = (x, y) if self.step(x.index[0], 4) else (y, x)
        out: list[Operand] = []
        for load, one in ((a, 4), (b, 1)):
            offset = load.index[0]
            along = self.step(offset, one) // (1 if load is a else 2)
            deep = coefficient(offset, self.term.var)
            even = all(
                self.step(offset, n) == along * (n // 4 if load is a else 2 * (n % 4)) for n in range(WARP)
            )
            buffer = buffers[load.source]
            if not even or not along or not deep or buffer.scope is not Scope.LOCAL:
                raise self.fail(f"{load.source} is not shared out as the unit's operands are")
            out.append(Operand(buffer, offset, along, deep))
        return out[0], out[1]

    def _roles(self) -> None:
        """Sort the loops into steps of the sum, tiles of rows and columns, and elements of one lane."""
        self.deep: list[Loop] = []
        self.rows: list[tuple[Loop, int]] = []
        self.columns: list[tuple[Loop, int]] = []
        self.elements: dict[str, Var] = {}
        for loop in self.loops:
            steps = [coefficient(o.offset, loop.var) for o in (self.a, self.b)]
            if None in steps or not isinstance(loop.extent, int):
                raise self.fail(f"{loop.var.name} is no even step")
            a, b = (s or 0 for s in steps)
            if a and b:
                self.deep.append(loop)
            elif a == 8 * self.a.along and loop.extent == 2 and "row" not in self.elements:
                self.elements["row"] = loop.var
            elif b == self.b.along and loop.extent == 2 and "column" not in self.elements:
                self.elements["column"] = loop.var
            elif a and a % (self.unit.m * self.a.along) == 0:
                self.rows.append((loop, a))
            elif b and b % (self.unit.n * self.b.along) == 0:
                self.columns.append((loop, b))
            else:
                raise self.fail(f"{loop.var.name} counts nothing that the unit has")
        if len(self.elements) != 2:
            raise self.fail("a thread does not have the unit's share of the results")

    def runs(self, loops: list[Loop]) -> list[dict[Var, int]]:
        """Every combination of the loops' iterations."""
        ranges = [range(x.extent) for x in loops if isinstance(x.extent, int)]
        return [dict(zip((x.var for x in loops), values, strict=True)) for values in product(*ranges)]

    def base(self, o: Operand, at: Mapping[Var, Int]) -> Int:
        """The tile's first element: lane 0, element 0, term 0."""
        zeros = {self.term.var: 0, **dict.fromkeys(self.elements.values(), 0)}
        return substitute(self.lane(o.offset, 0), {**zeros, **at})


class _Rendering:
    """A product's instructions."""

    def __init__(self, body: Body, p: Product) -> None:
        self.p, self.frame, self.f = p, body.frame, body.frame.f
        self.fail = p.fail

    def render(self) -> None:
        accumulators = self.frame.place(self.p.sum.buffer)
        if accumulators.buffer.scope is not Scope.REGISTER:
            raise self.fail(f"{self.p.sum.buffer} is not in registers")
        rows, columns, deep = (
            self.p.runs(loops)
            for loops in ([x for x, _ in self.p.rows], [x for x, _ in self.p.columns], self.p.deep)
        )
        for at in deep:
            left = [self._fragment(self.p.a, {**at, **r}, True) for r in rows]
            right = self._column_fragments(at, columns)
            for (r, a), (c, b) in product(zip(rows, left, strict=True), zip(columns, right, strict=True)):
                self._instruction(accumulators, {**at, **r, **c}, a, b)
        self.frame.touch((self.p.sum.buffer,))

    def _address(self, o: Operand, offset: Int) -> str:
        """The address of an element, in shared memory."""
        warp = floordiv(self.p.thread, WARP)
        at = memory.address(
            self.frame,
            self.frame.place(o.buffer.name),
            affine(self.frame, substitute(offset, {self.p.warp: warp})),
        )
        return self.f.emit(f"addrspacecast ptr {at} to ptr addrspace(3)")

    @property
    def lane_number(self) -> Int:
        return mod(self.p.thread, WARP)

    def _fragment(self, o: Operand, at: Mapping[Var, Int], left: bool) -> list[str]:
        """The registers of one operand of one instruction."""
        if self.p.operand is dtypes.float32:
            return self._words(o, self.p.base(o, at), left)
        number = self.lane_number
        eight, upper, lower = mod(number, 8), mod(floordiv(number, 8), 2), floordiv(number, 16)
        base = self.p.base(o, at)
        if left and o.deep == 1:
            return self._load(o, base + mod(number, 16) * o.along + lower * 8, 4, False)
        if left:
            return self._load(o, base + (eight + lower * 8) * o.deep + upper * 8, 4, True)
        if o.deep == 1:
            return self._load(o, base + eight * o.along + upper * 8, 2, False)
        return self._load(o, base + mod(number, 16) * o.deep, 2, True)

    def _column_fragments(self, at: dict[Var, int], columns: list[dict[Var, int]]) -> list[list[str]]:
        """The fragments of b, two neighbouring tiles by one load where there are two."""
        b, number = self.p.b, self.lane_number
        if self.p.operand is dtypes.float32:
            return [self._fragment(b, {**at, **c}, False) for c in columns]
        out: list[list[str]] = []
        k = 0
        while k < len(columns):
            first = self.p.base(b, {**at, **columns[k]})
            far = self.p.base(b, {**at, **columns[k + 1]}) - first if k + 1 < len(columns) else None
            if not isinstance(far, int):
                out.append(self._fragment(b, {**at, **columns[k]}, False))
                k += 1
                continue
            eight, upper, second = mod(number, 8), mod(floordiv(number, 8), 2), floordiv(number, 16)
            if b.deep == 1:
                four = self._load(b, first + second * far + eight * b.along + upper * 8, 4, False)
            else:
                four = self._load(b, first + second * far + mod(number, 16) * b.deep, 4, True)
            out += [four[:2], four[2:]]
            k += 2
        return out

    def _load(self, o: Operand, offset: Int, count: int, turned: bool) -> list[str]:
        """`count` matrices of 8 x 8 elements, the lanes' addresses those of their rows."""
        if (o.along if turned else o.deep) != 1 or (o.deep if turned else o.along) % 8:
            raise self.fail(f"the rows of {o.buffer.name} are not aligned to 16 bytes")
        start = affine(self.frame, substitute(offset, {self.p.warp: floordiv(self.p.thread, WARP)}))
        if memory.alignment(self.frame.place(o.buffer.name), start) % 16:
            raise self.fail(f"the rows of {o.buffer.name} are not aligned to 16 bytes")
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if turned else ''}.b16.p3"
        result = f"{{ {', '.join(['i32'] * count)} }}"
        got = self.f.call(name, result, [("ptr addrspace(3)", self._address(o, offset))])
        return [self.f.emit(f"extractvalue {result} {got}, {k}") for k in range(count)]

    def _words(self, o: Operand, base: Int, left: bool) -> list[str]:
        """Elements of 32 bits, one register each, rounded to what the unit takes."""
        own, term = floordiv(self.lane_number, 4), mod(self.lane_number, 4)
        start = base + own * o.along + term * o.deep
        places = [
            (8 * (e % 2) * o.along + 4 * (e // 2) * o.deep) if left else 4 * e * o.deep
            for e in range(4 if left else 2)
        ]
        out: list[str] = []
        for p in places:
            at = self._address(o, start + p)
            x = self.f.emit(f"load float, ptr addrspace(3) {at}, align 4")
            out.append(self.f.call("llvm.nvvm.f2tf32.rna", "i32", [("float", x)]))
        return out

    def _instruction(self, acc: Place, at: Mapping[Var, Int], a: list[str], b: list[str]) -> None:
        name, t = _INSTRUCTION[self.p.operand]
        if t != "i32":
            a, b = ([self.f.emit(f"bitcast i32 {x} to {t}") for x in xs] for xs in (a, b))
        row, column = self.p.elements["row"], self.p.elements["column"]
        spots: list[str] = []
        for e in range(4):
            offset = substitute(self.p.sum.offset, {**at, row: e // 2, column: e % 2})
            spots.append(memory.address(self.frame, acc, affine(self.frame, offset)))
        olds = [self.f.emit(f"load float, ptr {x}, align 4") for x in spots]
        result = "{ float, float, float, float }"
        args = [*((t, x) for x in a), *((t, x) for x in b), *(("float", x) for x in olds)]
        got = self.f.call(name, result, args)
        for k, x in enumerate(spots):
            self.f.do(f"store float {self.f.emit(f'extractvalue {result} {got}, {k}')}, ptr {x}, align 4")
