"""The conformance suite finds mistakes: devices with one each, and the test that has to notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, settings

from weft.backends.boxes import BoxCopy
from weft.backends.dummy.device import DummyCode, DummyDevice, DummyExecutable, describe
from weft.backends.dummy.pool import DummyMemory
from weft.backends.protocol import Code, Commands, CopyBytes, Device, Memory
from weft.ir.dtypes import float32, float64, int64
from weft.ir.errors import IRError
from weft.ir.expr import Const, Expr, ScalarCall, transform
from weft.ir.loops import Block, If, Loop, LoopKind, Program
from weft.ir.ops import ELEMENTWISE, Op
from weft.ir.passes.rewrite import index_map, map_block, with_body
from weft.testing.conformance import (
    test_copies,
    test_description,
    test_loops,
    test_memory,
    test_ops,
    test_queues,
    test_running,
    test_schedules,
)
from weft.testing.conformance.harness import Harness
from weft.testing.kernels import CASES


class Swapped(DummyDevice):
    """Computes one op in place of another."""

    pair = (Op.MAX, Op.MIN)

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        old, new = self.pair

        def expr(e: Expr) -> Expr:
            return transform(
                e,
                lambda x: (
                    ScalarCall(x.dtype, new, x.args) if isinstance(x, ScalarCall) and x.op is old else None
                ),
            )

        return super().compile([with_body(p, map_block(p.body, expr, index_map(expr))) for p in programs])


class FloorsNotTruncates(Swapped):
    pair = (Op.TRUNC, Op.FLOOR)


class ReadsFromTheStart(DummyDevice):
    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        return super().read(memory, nbytes, 0, queue)


class KeepsWhatIsFreed(DummyDevice):
    def free(self, memory: Memory) -> None:
        pass


class Leaks(DummyDevice):
    kept: list[DummyMemory]

    def allocate(self, nbytes: int) -> DummyMemory:
        memory = super().allocate(nbytes)
        self.kept = [*getattr(self, "kept", []), memory]
        return memory


class HasFewerQueues(DummyDevice):
    def queue(self, number: int = 0) -> Any:
        return super().queue(0)


class DropsTheLastStatement(DummyDevice):
    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        return super().compile([replace(p, body=p.body[:-1] or p.body) for p in programs])


class SwapsVariables(DummyDevice):
    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        return super().compile([replace(p, variables=p.variables[::-1]) for p in programs])


class DoesLaneByLane(DummyDevice):
    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        def serial(body: Block) -> Block:
            return tuple(
                replace(s, kind=LoopKind.SERIAL, body=serial(s.body)) if isinstance(s, Loop) else s
                for s in body
            )

        return super().compile([replace(p, body=serial(p.body)) for p in programs])


class TakesEveryBranch(DummyDevice):
    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        def taken(body: Block) -> Block:
            return tuple(
                replace(s, guard=())
                if isinstance(s, If)
                else replace(s, body=taken(s.body))
                if isinstance(s, Loop)
                else s
                for s in body
            )

        return super().compile([replace(p, body=taken(p.body)) for p in programs])


class RoundsTwice(DummyDevice):
    """Integers to f32 by way of f64."""

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        def expr(e: Expr) -> Expr:
            return transform(
                e, lambda x: _by_f64(x) if isinstance(x, ScalarCall) and x.op is Op.CAST else None
            )

        return super().compile([with_body(p, map_block(p.body, expr, index_map(expr))) for p in programs])


def _by_f64(x: ScalarCall) -> ScalarCall | None:
    if x.dtype is not float32 or x.args[0].dtype is not int64:
        return None
    return ScalarCall(float32, Op.CAST, (ScalarCall(float64, Op.CAST, x.args),))


class LosesTheSignOfZero(DummyDevice):
    """-x as 0 - x."""

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        def expr(e: Expr) -> Expr:
            return transform(
                e,
                lambda x: (
                    ScalarCall(x.dtype, Op.SUB, (Const(x.dtype, 0), *x.args))
                    if isinstance(x, ScalarCall) and x.op is Op.NEG
                    else None
                ),
            )

        return super().compile([with_body(p, map_block(p.body, expr, index_map(expr))) for p in programs])


class HasOnePlaceInTheWorkspace(DummyDevice):
    def link(self, codes: Sequence[Code], commands: Commands) -> DummyExecutable:
        return super().link(codes, replace(commands, offsets=(0,) * len(commands.offsets)))


class CopiesToTheEnd(DummyDevice):
    """All of a memory where a part was asked for."""

    def link(self, codes: Sequence[Code], commands: Commands) -> DummyExecutable:
        steps = [
            replace(s, nbytes=-(-s.nbytes // 4000) * 4000) if isinstance(s, CopyBytes) else s
            for s in commands.steps
        ]
        return super().link(codes, replace(commands, steps=tuple(steps)))


class KnowsCodeByName(DummyDevice):
    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        codes, image = super().compile(programs)
        self.known = {**{c.program.name: c for c in codes}, **getattr(self, "known", {})}
        return [self.known[c.program.name] for c in codes], image


class CutsVariables(DummyDevice):
    """To 32 bits."""

    def link(self, codes: Sequence[Code], commands: Commands) -> Any:
        plan = super().link(codes, commands)
        run = plan.run
        plan.run = lambda memories, variables=(), queue=0: run(  # pyright: ignore[reportAttributeAccessIssue]
            memories, [v & 0x7FFFFFFF for v in variables], queue
        )
        return plan


class FreesBeforeARunIsOver(DummyDevice):
    """What is freed is overwritten at once, though a run that was started comes later."""

    late: list[Callable[[], None]]

    def link(self, codes: Sequence[Code], commands: Commands) -> Any:
        plan = super().link(codes, commands)
        run, self.late = plan.run, []
        plan.run = lambda *given: self.late.append(lambda: run(*given))  # pyright: ignore[reportAttributeAccessIssue]
        return plan

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        while getattr(self, "late", []):
            self.late.pop(0)()
        return super().read(memory, nbytes, offset, queue)


class CopiesBoxesFromTheStart(DummyDevice):
    def copy_box(self, memory: Memory, origin: Device, source: Memory, copy: BoxCopy, queue: int = 0) -> bool:
        start = replace(copy, source=replace(copy.source, offset=0))
        return super().copy_box(memory, origin, source, start, queue)


class FillsGapsOfBoxes(DummyDevice):
    def copy_box(self, memory: Memory, origin: Device, source: Memory, copy: BoxCopy, queue: int = 0) -> bool:
        wide = copy
        if copy.counts and copy.source.strides[-1] >= (n := copy.target.strides[-1]) > copy.run_bytes:
            wide = replace(copy, run_bytes=n)
        return super().copy_box(memory, origin, source, wide, queue)


class WaitsForNothing(DummyDevice):
    def queue(self, number: int = 0) -> Any:
        queue = super().queue(number)
        return _Hasty(queue)

    def synchronize(self) -> None:
        pass


class _Hasty:
    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    def synchronize(self) -> None:
        pass


def examples(n: int) -> settings:
    return settings(max_examples=n, derandomize=True, database=None, deadline=None, phases=(Phase.generate,))


MISTAKES: dict[type[DummyDevice], Callable[[Harness], None]] = {
    Swapped: lambda h: test_ops.test_ops(h, "float32,float32"),
    FloorsNotTruncates: lambda h: test_ops.test_ops(h, "float32"),
    ReadsFromTheStart: test_copies.test_parts,
    KeepsWhatIsFreed: lambda h: test_memory.test_freed_memory_is_not_used(h.device),
    Leaks: lambda h: test_memory.test_dying_memory_goes_back(h.device),
    HasFewerQueues: lambda h: test_queues.test_queues_are_numbered(h.device, h),
    DropsTheLastStatement: lambda h: test_schedules.test_empty_schedule(h, "softmax"),
    SwapsVariables: test_running.test_variables_by_name,
    DoesLaneByLane: lambda h: test_loops.test_lanes_in_step(h, 8),
    TakesEveryBranch: test_loops.test_guards_cover_what_lies_far_outside,
    RoundsTwice: lambda h: test_ops.test_ops(h, "int64"),
    LosesTheSignOfZero: lambda h: test_ops.test_ops(h, "float32"),
    HasOnePlaceInTheWorkspace: test_running.test_places_of_the_workspace,
    CopiesToTheEnd: test_running.test_places_of_the_workspace,
    KnowsCodeByName: test_running.test_equal_names,
    CutsVariables: test_running.test_indices_have_all_their_bits,
    FreesBeforeARunIsOver: test_running.test_what_a_run_needs_may_die,
    CopiesBoxesFromTheStart: lambda h: test_copies.test_boxes(h, "dummy:0"),
    FillsGapsOfBoxes: lambda h: test_copies.test_boxes(h, "dummy:0"),
    WaitsForNothing: lambda h: test_queues.test_waiting_is_for_all_of_it(h.device, h),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_found(kind: type[DummyDevice]) -> None:
    test = MISTAKES[kind]
    test(Harness(DummyDevice(describe(0))))
    with pytest.raises((AssertionError, pytest.fail.Exception, MemoryError, ValueError, IRError)):
        test(Harness(kind(describe(0))))


def test_a_description_names_all_ops_that_are_needed() -> None:
    with pytest.raises(AssertionError, match=r"info.native lacks what no other ops make: mod\b"):
        test_description.test_dtypes_and_ops(DummyDevice(describe(0, native=ELEMENTWISE - {Op.MOD})))


@pytest.mark.parametrize("name", CASES)
def test_a_simulated_grid_conforms(name: str) -> None:
    """Schedules of blocks and threads, which no device has that is always there."""
    grid = Harness(DummyDevice(describe(0, task_kind=LoopKind.BLOCK, vector_bytes=16, warp=32)))
    test_schedules.test_schedule_of_the_rules(grid, name)
    test_loops.test_threads(grid)


def test_random_loops_find_a_wrong_op() -> None:
    """Among random programs, too."""

    class WrongSubtraction(Swapped):
        pair = (Op.SUB, Op.ADD)

    with pytest.raises(AssertionError):
        test_loops.test_random_loops(Harness(WrongSubtraction(describe(0))), examples)
