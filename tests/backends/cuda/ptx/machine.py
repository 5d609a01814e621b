"""Runs a launch: all threads of many blocks at once, one array element per thread, a basic block at a time.

Threads that stand at the same place run together; of those that may run, the ones furthest back in the text go first,
so that what a branch parted meets again where the branches join.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arithmetic, warpgroups, warps
from .arithmetic import TYPES
from .memory import GARBAGE, LOCAL, SHARED, Global, Races
from .profile import Profile
from .text import WAITS, Instruction, Kernel, Module, PtxError, Variable

Array = NDArray[Any]
Step = Callable[["Machine", Any], None]

LANES = 1 << 15
"""Threads that run at once, at most (but for one block's)."""

STEPS = 1 << 22
"""Basic blocks after which a launch is taken for endless."""

BASES = {16: np.uint16, 32: np.uint32, 64: np.uint64}

UNSIGNED = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}


def launch(
    module: Module,
    name: str,
    blocks: int,
    threads: int,
    dynamic_bytes: int,
    words: Sequence[int],
    allocations: Mapping[int, Array],
    races: bool = False,
    profile: Profile | None = None,
    only: Sequence[int] = (),
) -> None:
    """Run `name` with 64-bit arguments `words` on the allocations (their bytes, by address); of its blocks `only`
    these, if any are named, and note in `profile` what they do."""
    kernel = module.kernels[name]
    if threads > kernel.threads:
        raise PtxError(f"{name} is made for {kernel.threads} threads, not {threads}")
    constants = {v.name: _constant(v) for v in module.constants}
    memory = Global({**allocations, **{a.ctypes.data: a for a in constants.values()}})
    symbols = {n: a.ctypes.data for n, a in constants.items()}
    at = 0
    static = [v for v in (*module.shared, *kernel.shared) if v.size is not None]
    for v in static:
        at = -(-at // v.align) * v.align
        symbols[v.name], at = at, at + (v.size or 0)
    if at > 48 << 10:
        raise PtxError(f"{name} declares {at} bytes of shared memory, more than a kernel may")
    at = -(-at // 1024) * 1024 if dynamic_bytes else at
    symbols.update({v.name: at for v in (*module.shared, *kernel.shared) if v.size is None})
    local = 0
    for v in kernel.local:
        local = -(-local // v.align) * v.align
        symbols[v.name], local = local, local + (v.size or 0)
    arguments = dict(zip(kernel.params, words, strict=True))
    many = max(1, LANES // threads)
    program = _decoded(kernel)
    for first in only or range(0, blocks, many):
        count = 1 if only else min(many, blocks - first)
        m = Machine(
            kernel, first, count, blocks, threads, memory, symbols, arguments, at + dynamic_bytes, local
        )
        m.races = Races(count * m.shared_bytes) if races else None
        m.profile = profile
        m.run(program)


def _constant(v: Variable) -> Array:
    out = np.zeros((v.size or 0) + 256, np.uint8)
    start = -out.ctypes.data % max(v.align, 16)
    out = out[start : start + (v.size or 0)]
    out[: len(v.data)] = np.frombuffer(v.data, np.uint8)
    return out


class Machine:
    """`count` blocks from `first` on, of `threads` threads each."""

    def __init__(
        self,
        kernel: Kernel,
        first: int,
        count: int,
        blocks: int,
        threads: int,
        memory: Global,
        symbols: Mapping[str, int],
        arguments: Mapping[str, int],
        shared_bytes: int,
        local_bytes: int,
    ) -> None:
        self.kernel, self.count, self.threads = kernel, count, threads
        n = self.n = count * threads
        self.memory, self.symbols, self.arguments = memory, symbols, arguments
        self.thread = np.tile(np.arange(threads, dtype="u4"), count)
        self.block = np.repeat(np.arange(count, dtype="i8"), threads)
        special = {
            "%tid.x": self.thread,
            "%ctaid.x": (self.block + first).astype("u4"),
            "%ntid.x": np.full(n, threads, "u4"),
            "%nctaid.x": np.full(n, blocks, "u4"),
            "%laneid": self.thread % np.uint32(32),
        }
        special.update({f"%{r}.{d}": np.zeros(n, "u4") for r in ("tid", "ctaid") for d in "yz"})
        self.shared_bytes = max(128, -(-shared_bytes // 128) * 128)
        self.shared = np.full(count * self.shared_bytes, GARBAGE, np.uint8)
        self.local_bytes = max(16, -(-local_bytes // 16) * 16)
        self.local = np.full(n * self.local_bytes, GARBAGE, np.uint8)
        self.registers: dict[str, Array] = {
            r: np.zeros(n, np.bool_)
            if bits == 1
            else np.full(n, 0xDEADBEEFDEADBEEF & ((1 << bits) - 1), BASES[bits])
            for r, bits in kernel.registers.items()
            if bits in BASES or bits == 1
        }
        self.registers.update(special)
        self.pc = np.zeros(n, "i4")
        self.parted = True
        """Whether threads may stand at different places."""
        self.waits = np.zeros(n, np.bool_)
        self.exited = np.zeros(n, np.bool_)
        self.held = np.zeros(n, np.bool_)
        """Who waits for the rest of the warp."""
        first = [b[0] if b else None for b in kernel.blocks]
        self.of_warps = [i is not None and i.op[0] in WAITS and i.guard is None for i in first]
        self.epoch = np.zeros(n, "i4")
        self.races: Races | None = None
        self.profile: Profile | None = None
        self.copies = warps.Copies(self)
        self.groups = warpgroups.Groups(self)
        self.proxies = any(i.op[0] == "wgmma" for b in kernel.blocks for i in b)

    def run(self, program: Sequence[Sequence[Step]]) -> None:
        """All threads, to their end."""
        with np.errstate(all="ignore"):
            self._run(program)

    def _run(self, program: Sequence[Sequence[Step]]) -> None:
        everything: Any = slice(None)
        for _ in range(STEPS):
            if not self.parted:
                now, idx = int(self.pc[0]), everything
            else:
                ready = ~(self.waits | self.exited | self.held)
                if not ready.any():
                    if self.exited.all():
                        self.copies.check_done()
                        return
                    raise PtxError(f"{self.kernel.name}: some threads wait for ever at a barrier")
                now = int(self.pc[ready].min())
                lanes = ready & (self.pc == now)
                if self.of_warps[now]:
                    lanes = self.together(now, lanes)
                    if not lanes.any():
                        continue
                idx = everything if lanes.all() else np.flatnonzero(lanes)
                self.parted = not isinstance(idx, slice)
            self.pc[idx] = now + 1
            if now >= len(program):
                raise PtxError(f"{self.kernel.name} runs off its end")
            at = 0
            try:
                if self.profile is not None:
                    self.profile.ran(now, len(program[now]), len(np.unique(self.numbers(idx) // 32)))
                for at, step in enumerate(program[now]):
                    if self.profile is not None:
                        self.profile.here = now, at
                    step(self, idx)
            except PtxError as error:
                raise PtxError(f"{error} ({self.kernel.name}: {self.kernel.blocks[now][at].text})") from None
        raise PtxError(f"{self.kernel.name} does not end")

    def together(self, now: int, arrived: Array) -> Array:
        """Those at this place whose whole warp is there; the others of the `arrived` are held until it is."""
        here = (self.pc == now) & ~(self.exited | self.waits)
        if self.threads % 32:
            return arrived
        whole = here & np.repeat((here | self.exited).reshape(-1, 32).all(1), 32)
        self.held = (self.held | arrived) & ~whole
        return whole

    def meet(self, idx: Any) -> None:
        """Threads arrive at their block's barrier."""
        if isinstance(idx, slice):
            self.epoch += 1
            return
        self.waits[idx], self.parted = True, True
        here = self.waits.reshape(self.count, -1)
        gone = self.exited.reshape(self.count, -1)
        free = np.repeat((here | gone).all(1), self.threads)
        self.waits[free] = False
        self.epoch[free] += 1

    # operands

    def get(self, operand: str, kind: str, idx: Any) -> Array:
        """An operand as numbers of type `kind`: an array per lane, or one number for all."""
        found = self.registers.get(operand)
        if found is None:
            if operand in self.symbols:
                return np.array([self.symbols[operand]], "u8")
            return immediate(operand, kind)
        t = TYPES[kind]
        a = found if isinstance(idx, slice) else found[idx]
        if a.dtype == t:
            return a
        if a.dtype.itemsize != t.itemsize:
            a = a.astype(UNSIGNED[t.itemsize])
        return a.view(t)

    def put(self, operand: str, idx: Any, value: Array) -> None:
        """Set a register in these lanes; a narrower value is extended by its own sign."""
        if operand == "_":
            return
        register = self.registers[operand]
        if value.dtype.kind == "f":
            value = value.view(UNSIGNED[value.dtype.itemsize])
        register[idx] = value

    def address(self, operand: str, idx: Any) -> Array:
        """`[base + offset]` for each lane."""
        base, _, offset = operand[1:-1].partition("+")
        base = base.strip()
        kind = "u32" if base in self.registers and self.registers[base].dtype == np.uint32 else "u64"
        at = self.get(base, kind, idx).astype("u8") + np.uint64(int(offset or "0", 0) % (1 << 64))
        return np.broadcast_to(at, self.lanes(idx)) if at.size == 1 else at

    def lanes(self, idx: Any) -> int:
        return self.n if isinstance(idx, slice) else len(idx)

    def numbers(self, idx: Any) -> Array:
        return np.arange(self.n) if isinstance(idx, slice) else idx

    # memory

    def spans(
        self, space: str, at: Array, idx: Any, nbytes: int, store: bool
    ) -> list[tuple[Any, Array, Array]]:
        """(lanes, bytes, offsets) of an access of `nbytes` per lane in a state space ("" is generic)."""
        if (at & np.uint64(nbytes - 1)).any():
            raise PtxError(
                f"misaligned access of {nbytes} bytes at {int(at[(at % np.uint64(nbytes)) != 0][0]):#x}"
            )
        if space == "":
            region = at >> np.uint64(60)
            out: list[tuple[Any, Array, Array]] = []
            numbers = self.numbers(idx)
            for tag, name in ((0, "global"), (1, "shared"), (2, "local")):
                own = np.flatnonzero(region == tag)
                if len(own):
                    inner = self.spans(name, at[own] & np.uint64((1 << 60) - 1), numbers[own], nbytes, store)
                    out += [(own[lanes], array, offsets) for lanes, array, offsets in inner]
            return out
        if self.profile is not None:
            self.profile.access(space, at, self.numbers(idx), nbytes, store)
        if space == "shared":
            if int(at.max()) + nbytes > self.shared_bytes:
                raise PtxError(f"access of shared memory at byte {int(at.max())} of {self.shared_bytes}")
            flat = at.astype("i8") + self.block[idx] * self.shared_bytes
            if self.races is not None:
                self.races.check(flat, nbytes, self.thread[idx].astype("i4"), self.epoch[idx], store)
            return [(slice(None), self.shared, flat)]
        if space == "local":
            if int(at.max()) + nbytes > self.local_bytes:
                raise PtxError(f"access of local memory at byte {int(at.max())} of {self.local_bytes}")
            return [(slice(None), self.local, at.astype("i8") + self.numbers(idx) * self.local_bytes)]
        return self.memory.places(at, nbytes)

    def load(self, space: str, at: Array, idx: Any, kind: str, count: int) -> list[Array]:
        t = TYPES[kind]
        out = [np.empty(len(at), t) for _ in range(count)]
        for lanes, array, offsets in self.spans(space, at, idx, t.itemsize * count, False):
            whole = array[: len(array) // t.itemsize * t.itemsize].view(t)
            first = offsets // t.itemsize
            for k in range(count):
                out[k][lanes] = whole[first + first.dtype.type(k)]
        return out

    def store(self, space: str, at: Array, idx: Any, kind: str, values: Sequence[Array]) -> None:
        t = TYPES[kind]
        for lanes, array, offsets in self.spans(space, at, idx, t.itemsize * len(values), True):
            whole = array[: len(array) // t.itemsize * t.itemsize].view(t)
            first = offsets // t.itemsize
            for k, v in enumerate(values):
                whole[first + first.dtype.type(k)] = v[lanes] if v.size > 1 else v
            if array is self.shared:
                self.wrote(offsets.astype("i8"), t.itemsize * len(values), self.numbers(idx)[lanes])

    def wrote(self, flat: Array, nbytes: int, lanes: Array) -> None:
        """Threads stored to shared memory, which only ordinary accesses see so far."""
        if self.proxies:
            self.groups.wrote(flat, nbytes, lanes)


@cache
def immediate(text: str, kind: str) -> Array:
    """A constant as written."""
    t = TYPES[kind]
    if m := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
        return np.array([int(m.group(1), 16)], "u4").view("f4").astype(t if t.kind == "f" else "f4").view(t)
    if m := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
        return np.array([int(m.group(1), 16)], "u8").view("f8").view(t)
    try:
        number = int(text.rstrip("U"), 0)
    except ValueError:
        raise PtxError(f"unknown operand {text}") from None
    if t == np.bool_:
        return np.array([bool(number)])
    return np.array([number % (1 << (8 * t.itemsize))], "u8").astype(f"u{t.itemsize}").view(t)


_programs: dict[int, tuple[Kernel, list[list[Step]]]] = {}


def _decoded(kernel: Kernel) -> list[list[Step]]:
    found = _programs.get(id(kernel))
    if found is None or found[0] is not kernel:
        if len(_programs) > 256:
            _programs.clear()
        steps = [[_step(kernel, i) for i in block] for block in kernel.blocks]
        found = _programs[id(kernel)] = (kernel, steps)
    return found[1]


def _step(kernel: Kernel, i: Instruction) -> Step:
    try:
        run = warps.decode(i) or warpgroups.decode(i) or _decode(kernel, i)
    except PtxError:
        raise
    except (KeyError, IndexError, ValueError) as error:
        raise PtxError(f"cannot read: {i.text} ({error!r})") from error
    guard, negated = i.guard, i.negated
    if guard is None:
        return run

    def step(m: Machine, idx: Any) -> None:
        when = m.registers[guard][idx]
        on = np.flatnonzero(~when if negated else when)
        if len(on):
            run(m, on if isinstance(idx, slice) else idx[on])

    return step


def _vector(operand: str) -> list[str]:
    return [x.strip() for x in operand[1:-1].split(",")] if operand.startswith("{") else [operand]


def _decode(kernel: Kernel, i: Instruction) -> Step:
    op, a = i.op, i.operands
    kind = op[-1]
    match op[0]:
        case "bra":
            target = kernel.labels[a[0]]

            def branch(m: Machine, idx: Any) -> None:
                m.pc[idx] = target
                m.parted = m.parted or not isinstance(idx, slice)

            return branch
        case "ret" | "exit":

            def leave(m: Machine, idx: Any) -> None:
                m.exited[idx], m.parted = True, True
                m.meet(np.empty(0, "i8"))

            return leave
        case "bar" | "barrier":
            if len(a) != 1 or a[0] != "0":
                raise PtxError(f"a barrier that is not all threads': {i.text}")
            return lambda m, idx: m.meet(idx)
        case "ld":
            return _load(i, kind)
        case "st":
            space, kind = _space(op), kind
            parts = _vector(a[1])

            def store(m: Machine, idx: Any) -> None:
                m.store(space, m.address(a[0], idx), idx, kind, [m.get(p, kind, idx) for p in parts])

            return store
        case "mov":
            return _move(i, kind)
        case "cvta":
            to = "to" in op
            base = {"shared": SHARED, "local": LOCAL}.get(op[2] if to else op[1], 0)
            change = np.uint64((-base if to else base) % (1 << 64))
            return lambda m, idx: m.put(a[0], idx, m.get(a[1], "u64", idx) + change)
        case "cvt":
            return _convert(i)
        case "setp":
            compare = arithmetic.COMPARE[op[1]]
            names = a[0].split("|")
            if kind.endswith("x2"):
                half = TYPES[kind[:-2]]

                def test_both(m: Machine, idx: Any) -> None:
                    x, y = (
                        np.ascontiguousarray(m.get(v, "u32", idx)).view(half).reshape(-1, 2) for v in a[1:]
                    )
                    out = compare(x, y)
                    m.put(names[0], idx, out[:, 0])
                    m.put(names[1], idx, out[:, 1])

                return test_both
            combine = op[2] if op[2] in ("and", "or", "xor") else None

            def test(m: Machine, idx: Any) -> None:
                out = np.asarray(compare(m.get(a[1], kind, idx), m.get(a[2], kind, idx)))
                if combine:
                    out = arithmetic.BINARY[combine](out, m.get(a[3].lstrip("!"), "pred", idx))
                m.put(names[0], idx, out)

            return test
        case "testp":
            prove = arithmetic.TESTS[op[1]]
            return lambda m, idx: m.put(a[0], idx, prove(m.get(a[1], kind, idx)))
        case "selp":
            return lambda m, idx: m.put(
                a[0], idx, np.where(m.get(a[3], "pred", idx), m.get(a[1], kind, idx), m.get(a[2], kind, idx))
            )
        case "shl" | "shr":
            return lambda m, idx: m.put(
                a[0], idx, arithmetic.shift(op[0], m.get(a[1], kind, idx), m.get(a[2], "u32", idx))
            )
        case "bfe":
            extract = arithmetic.function(op, kind)
            return lambda m, idx: m.put(
                a[0], idx, extract(m.get(a[1], kind, idx), m.get(a[2], "u32", idx), m.get(a[3], "u32", idx))
            )
        case _:
            return _compute(i, kind)


def _space(op: tuple[str, ...]) -> str:
    return next((s for s in ("global", "shared", "local", "param", "const") if s in op), "")


def _load(i: Instruction, kind: str) -> Step:
    space, parts, at = _space(i.op), _vector(i.operands[0]), i.operands[1]
    if space == "param":
        name, _, offset = at[1:-1].partition("+")
        if offset:
            raise PtxError(f"a parameter of several words: {i.text}")
        return lambda m, idx: m.put(parts[0], idx, np.array([m.arguments[name]], "u8").astype(TYPES[kind]))

    def load(m: Machine, idx: Any) -> None:
        found = m.load("global" if space == "const" else space, m.address(at, idx), idx, kind, len(parts))
        for p, value in zip(parts, found, strict=True):
            m.put(p, idx, value)

    return load


def _move(i: Instruction, kind: str) -> Step:
    d, s = i.operands
    if d.startswith("{"):
        parts = _vector(d)
        width = int(kind[1:]) // len(parts)

        def unpack(m: Machine, idx: Any) -> None:
            whole = m.get(s, f"u{kind[1:]}", idx)
            for k, p in enumerate(parts):
                m.put(p, idx, (whole >> whole.dtype.type(k * width)).astype(BASES[width]))

        return unpack
    if s.startswith("{"):
        pieces = _vector(s)
        width = int(kind[1:]) // len(pieces)

        def pack(m: Machine, idx: Any) -> None:
            whole = np.zeros(1, f"u{int(kind[1:]) // 8}")
            for k, p in enumerate(pieces):
                piece = m.get(p, f"u{width}", idx).astype(whole.dtype)
                whole = whole | (piece << whole.dtype.type(k * width))
            m.put(d, idx, whole)

        return pack
    return lambda m, idx: m.put(d, idx, m.get(s, kind, idx))


def _convert(i: Instruction) -> Step:
    op, a = i.op, i.operands
    source, target = op[-1], op[-2]
    rounding = next((x for x in op[1:-2] if x in arithmetic.ROUND or x in ("rn", "rz", "rna")), None)
    if target == "tf32":

        def tensor_float(m: Machine, idx: Any) -> None:
            bits = m.get(a[1], "u32", idx)
            away = bits + np.uint32(0x1000)
            m.put(
                a[0],
                idx,
                np.where((bits & np.uint32(0x7F800000)) == 0x7F800000, bits, away) & np.uint32(0xFFFFE000),
            )

        return tensor_float
    if target.endswith("x2"):

        def both(m: Machine, idx: Any) -> None:
            parts = [
                arithmetic.converted(m.get(x, source, idx), source, target[:-2], rounding) for x in a[1:]
            ]
            high, low = (np.ascontiguousarray(p).view("u2").astype("u4") for p in parts)
            m.put(a[0], idx, (high << np.uint32(16)) | low)

        return both

    def one(m: Machine, idx: Any) -> None:
        given = m.get(a[1], "u16" if source == "bf16" else source, idx)
        m.put(a[0], idx, arithmetic.converted(given, source, target, rounding))

    return one


def _compute(i: Instruction, kind: str) -> Step:
    op, a = i.op, i.operands
    if kind == "pred" and op[0] == "not":
        return lambda m, idx: m.put(a[0], idx, ~m.get(a[1], "pred", idx))
    if kind in ("bf16", "bf16x2"):
        raise PtxError(f"unknown instruction {i.text}")
    if kind.endswith("x2"):
        half = kind[:-2]
        f = arithmetic.function((*op[:-1], half), half)

        def pairs(m: Machine, idx: Any) -> None:
            halves = [
                np.ascontiguousarray(m.get(x, "u32", idx)).view(TYPES[half]).reshape(-1, 2) for x in a[1:]
            ]
            m.put(a[0], idx, np.ascontiguousarray(f(*halves)).view("u4")[:, 0])

        return pairs
    f = arithmetic.function(op, kind)
    kinds = [kind] * (len(a) - 1)
    if "wide" in op and op[0] == "mad":
        kinds[2] = f"{kind[0]}{2 * int(kind[1:])}"

    def compute(m: Machine, idx: Any) -> None:
        m.put(a[0], idx, f(*(m.get(x, k, idx) for x, k in zip(a[1:], kinds, strict=True))))

    return compute
