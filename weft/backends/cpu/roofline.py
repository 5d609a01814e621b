"""Measures what this machine's cores and memory do at best, with loops that do nothing else.

They are written in LLVM IR, as wide as the machine's vectors, and run on the runtime's own threads:

    flops    24 (12 with few registers) independent chains of multiply-adds in registers: float32, float64, int32
    read     8 vectors at a time, combined by xor
    copy     4 vectors at a time
    stream   the same with stores that go past the caches, for memory

A measurement is the best of several runs, since whatever disturbs one makes it slower. The loops on a cache work on
half of it: that much stays there beside whatever else a program touches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.backends.roofline import Level, Limits, Peak
from weft.lazy_dataclass import dataclass

from .llvm import compile_ir
from .machine import Machine
from .objects import load_object
from .runner import Instruction
from .runtime import Runtime
from .targets import Optimization, Target

REPETITIONS = 7
CHAIN_STEPS = 100_000
"""Steps of all chains in one run: about a millisecond."""

CACHED_BYTES = 16 << 20
"""Bytes that each thread moves in one run on data that stays in a cache."""

MEMORY_BYTES = 64 << 20
"""At least so much is moved in a run on memory, and twice the last cache, but never more than LARGEST_BYTES."""

LARGEST_BYTES = 512 << 20

CHAINS = {"float32": ("float", 4), "float64": ("double", 8), "int32": ("i32", 4)}
"""Dtypes whose multiply-adds are measured: LLVM's type and its bytes."""

COMPUTED_IN = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}
"""Dtypes that this backend computes in another: what they can reach is that one's peak."""

NAMES = (*(f"limit_{name}" for name in CHAINS), "limit_read", "limit_copy", "limit_stream")


def measure(runtime: Runtime) -> Limits:
    """The limits of the threads that `runtime` runs on now. Takes about a fifth of a second."""
    machine, threads = runtime.machine, runtime.pool.threads
    code = load_object(
        compile_ir(_module(machine), machine.target, Optimization(level=0)), NAMES, runtime.symbols
    )
    runs = {
        name: runtime.plan([Instruction(code.address(name), ())], externals=2, variables=3, keep=code)
        for name in NAMES
    }
    largest = max(MEMORY_BYTES, 2 * machine.l3_bytes)
    total = min(largest, LARGEST_BYTES, machine.memory_bytes // 16)
    source, target = (runtime.allocator.allocate(total + 4096) for _ in range(2))

    def rate(name: str, region: int, repeats: int, work: float) -> float:
        """`work` per second, by each thread on a region of its own, `repeats` times over."""
        region = max(1024, region // 1024 * 1024)
        where, values = (source.address, target.address), (threads, region, repeats)
        runs[name].run(where, values)
        best = min(runs[name].run_timed(where, values)[0] for _ in range(REPETITIONS))
        return work / max(best, 1) * 1e9

    def level(name: str, capacity: float, share: int, copy: str) -> Level:
        """A level on which each thread works on `share` bytes."""
        again = max(1, CACHED_BYTES // share) if name != "memory" else 1
        moved = float(threads * (share // 1024 * 1024) * again)
        read = rate("limit_read", share, again, moved)
        copied = max(rate(c, share // 2, again, moved) for c in {"limit_copy", copy})
        return Level(name, capacity, read, copied)

    # first touches of fresh pages are no bandwidth, and pages never written are all one page of zeros
    for a, b in ((source, target), (target, source)):
        runs["limit_copy"].run((a.address, b.address), (threads, total // threads // 1024 * 1024, 1))
    # memory first: it takes long enough for the threads to have found cores of their own
    memory = level("memory", float("inf"), total // threads, "limit_stream")
    levels = [level("L2", machine.l2_bytes // 2 * threads, machine.l2_bytes // 2, "limit_copy")]
    part = machine.l3_bytes // 2 // max(1, min(threads, machine.l3_cores))
    if part > machine.l2_bytes:
        levels.append(level("L3", machine.l3_bytes // 2, part, "limit_copy"))
    levels.append(memory)
    peaks = {
        name: rate(f"limit_{name}", 0, CHAIN_STEPS, _operations(machine, size) * CHAIN_STEPS * threads)
        for name, (_, size) in CHAINS.items()
    }
    known = [Peak(name, per_second, "measured") for name, per_second in peaks.items()]
    known += [
        Peak(name, peaks[by], f"that of {by}, which it is computed in") for name, by in COMPUTED_IN.items()
    ]
    return Limits(peaks["float32"], tuple(levels), threads, True, tuple(known))


# --- the loops


@dataclass(frozen=True, slots=True)
class _Shape:
    """The lanes of a vector of `element`, and the number of chains of multiply-adds."""

    element: str
    lanes: int
    chains: int
    fused: bool


def _shape(machine: Machine, element: str, size: int) -> _Shape:
    fused = machine.has("fma") or not machine.target.triple.startswith(("x86_64", "amd64"))
    chains = 24 if machine.vector_registers >= 32 else 12
    return _Shape(element, machine.vector_bytes // size, chains, fused and element != "i32")


def _operations(machine: Machine, size: int) -> float:
    """Operations of one step of all chains."""
    shape = _shape(machine, "", size)
    return 2.0 * shape.lanes * shape.chains


def _module(machine: Machine) -> str:
    shapes = {name: _shape(machine, *kind) for name, kind in CHAINS.items()}
    vector = machine.vector_bytes
    bodies = {
        **{f"limit_{name}": _chains(shape, vector) for name, shape in shapes.items()},
        "limit_read": _moving(vector, 8, None),
        "limit_copy": _moving(vector, 4, ""),
        "limit_stream": _moving(vector, 4, ", !nontemporal !0"),
    }
    return "\n".join(_lines(machine.target, [s for s in shapes.values() if s.fused], bodies))


def _lines(target: Target, fused: Sequence[_Shape], bodies: dict[str, list[str]]) -> Iterator[str]:
    yield f'target triple = "{target.triple}"'
    yield "declare void @weft_parallel(ptr, ptr, i64, i64)"
    for shape in fused:
        v = f"<{shape.lanes} x {shape.element}>"
        yield f"declare {v} @{_fma(shape)}({v}, {v}, {v})"
    for name, body in bodies.items():
        yield from _kernel(name)
        yield f"define internal void @{name}.task(ptr %ctx, i64 %begin, i64 %end) #0 {{"
        yield from body
        yield "}"
    wide = ' "prefer-vector-width"="512"' if "+avx512f" in target.features.split(",") else ""
    yield f"attributes #0 = {{ nounwind{wide} }}"
    yield "!0 = !{i32 1}"


def _kernel(name: str) -> Iterator[str]:
    """The kernel: puts (source, target, region, repeats) where its tasks find them. One task a thread."""
    yield f"define void @{name}(ptr %table, ptr %slots, ptr %vars) #0 {{"
    yield "  %ctx = alloca [6 x i64], align 64"
    yield "  %source = load i64, ptr %table, align 8"
    yield "  store i64 %source, ptr %ctx, align 8"
    for k, (base, at) in enumerate((("table", 8), ("vars", 8), ("vars", 16)), 1):
        yield f"  %from{k} = getelementptr i8, ptr %{base}, i64 {at}"
        yield f"  %value{k} = load i64, ptr %from{k}, align 8"
        yield f"  %to{k} = getelementptr i8, ptr %ctx, i64 {8 * k}"
        yield f"  store i64 %value{k}, ptr %to{k}, align 8"
    yield "  %tasks = load i64, ptr %vars, align 8"
    yield f"  call void @weft_parallel(ptr @{name}.task, ptr %ctx, i64 %tasks, i64 1)"
    yield "  ret void"
    yield "}"


_GIVEN = [
    "entry:",
    "  %source = load ptr, ptr %ctx, align 8",
    "  %target_at = getelementptr i8, ptr %ctx, i64 8",
    "  %target = load ptr, ptr %target_at, align 8",
    "  %region_at = getelementptr i8, ptr %ctx, i64 16",
    "  %region = load i64, ptr %region_at, align 8",
    "  %repeats_at = getelementptr i8, ptr %ctx, i64 24",
    "  %repeats = load i64, ptr %repeats_at, align 8",
    "  br label %task",
    "task:",
    "  %t = phi i64 [ %begin, %entry ], [ %t1, %after ]",
]

_NEXT = [
    "after:",
    "  %t1 = add i64 %t, 1",
    "  %tasks_left = icmp slt i64 %t1, %end",
    "  br i1 %tasks_left, label %task, label %done",
    "done:",
    "  ret void",
]


def _fma(shape: _Shape) -> str:
    return f"llvm.fma.v{shape.lanes}f{8 * (4 if shape.element == 'float' else 8)}"


def _chains(shape: _Shape, vector: int) -> list[str]:
    """c[k] = c[k] * a + b, for chains k that start at different numbers, or LLVM would find them equal."""
    v, n = f"<{shape.lanes} x {shape.element}>", shape.chains
    multiply, add = ("mul", "add") if shape.element == "i32" else ("fmul", "fadd")
    out = [*_GIVEN, f"  %a = load {v}, ptr %source, align 64"]
    out += [
        f"  %b_at = getelementptr i8, ptr %source, i64 {vector}",
        f"  %b = load {v}, ptr %b_at, align 64",
    ]
    for k in range(n):
        out += [f"  %s{k}_at = getelementptr i8, ptr %source, i64 {64 * (k + 2)}"]
        out += [f"  %s{k} = load {v}, ptr %s{k}_at, align 64"]
    out += ["  br label %step", "step:", "  %i = phi i64 [ 0, %task ], [ %i1, %step ]"]
    out += [f"  %c{k} = phi {v} [ %s{k}, %task ], [ %d{k}, %step ]" for k in range(n)]
    for k in range(n):
        if shape.fused:
            out += [f"  %d{k} = call {v} @{_fma(shape)}({v} %c{k}, {v} %a, {v} %b)"]
        else:
            out += [f"  %p{k} = {multiply} {v} %c{k}, %a", f"  %d{k} = {add} {v} %p{k}, %b"]
    out += [
        "  %i1 = add i64 %i, 1",
        "  %more = icmp slt i64 %i1, %repeats",
        "  br i1 %more, label %step, label %keep",
    ]
    out += ["keep:"]
    for k in range(n):
        # a line of its own for each chain and task, in memory that nobody reads
        out += [
            f"  %o{k} = getelementptr i8, ptr %target, i64 {64 * k}",
            f"  store {v} %d{k}, ptr %o{k}, align 64",
        ]
    return [*out, "  br label %after", *_NEXT]


def _moving(vector: int, count: int, store: str | None) -> list[str]:
    """`repeats` passes over the task's region, `count` vectors at a time; stored with the metadata `store`, or read
    only."""
    v = f"<{vector // 4} x i32>"
    out = [*_GIVEN, "  %base = mul i64 %t, %region", "  br label %pass"]
    out += ["pass:", "  %r = phi i64 [ 0, %task ], [ %r1, %passed ]"]
    sums = range(count) if store is None else range(0)
    out += [f"  %sum{k} = phi {v} [ zeroinitializer, %task ], [ %x{k}, %passed ]" for k in sums]
    out += ["  br label %step", "step:", "  %i = phi i64 [ 0, %pass ], [ %i1, %step ]"]
    out += [f"  %c{k} = phi {v} [ %sum{k}, %pass ], [ %x{k}, %step ]" for k in sums]
    out += ["  %at = add i64 %base, %i"]
    for k in range(count):
        out += [
            f"  %here{k} = add i64 %at, {k * vector}",
            f"  %p{k} = getelementptr i8, ptr %source, i64 %here{k}",
        ]
        out += [f"  %v{k} = load {v}, ptr %p{k}, align {vector}"]
        if store is None:
            out += [f"  %x{k} = xor {v} %c{k}, %v{k}"]
        else:
            out += [f"  %q{k} = getelementptr i8, ptr %target, i64 %here{k}"]
            out += [f"  store {v} %v{k}, ptr %q{k}, align {vector}{store}"]
    out += [f"  %i1 = add i64 %i, {count * vector}", "  %more = icmp slt i64 %i1, %region"]
    out += ["  br i1 %more, label %step, label %passed", "passed:", "  %r1 = add i64 %r, 1"]
    out += ["  %again = icmp slt i64 %r1, %repeats", "  br i1 %again, label %pass, label %keep", "keep:"]
    out += [f"  store {v} %x{k}, ptr %target, align {vector}" for k in sums]
    if store:
        out += ["  fence seq_cst"]
    return [*out, "  br label %after", *_NEXT]
