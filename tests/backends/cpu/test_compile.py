"""Modules that LLVM compiles beside the lowering of the next: the same code, errors and forks included."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from weft.backends.cpu import compile as compiling
from weft.backends.cpu import device as devices
from weft.backends.cpu import runtime
from weft.backends.cpu.compile import compile_parts
from weft.backends.cpu.device import CpuDevice, joined, parts
from weft.backends.cpu.render import render_parts
from weft.backends.cpu.runner import Instruction
from weft.backends.cpu.targets import LLVMError
from weft.backends.registry import open_device
from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Const, Load
from weft.ir.index import Var
from weft.ir.loops import Buffer, Loop, Program, Scope, Store
from weft.ir.ops import Op

F, COUNT, SIZE = dtypes.float32, 12, 7


def times(k: int) -> Program:
    i = Var("i", 0, SIZE - 1)
    x, y = Buffer("x", F, SIZE, Scope.GLOBAL), Buffer("y", F, SIZE, Scope.GLOBAL)
    value = ex.call(Op.MUL, Load(F, "x", (i,)), Const(F, k))
    return Program(f"times_{k}", (x, y), frozenset("y"), (), (Loop(i, SIZE, (Store("y", i, value),)),))


@pytest.fixture
def few_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that end after two or three programs, and a processor for the thread beside."""
    monkeypatch.setattr(compiling, "render_parts", lambda p, t: render_parts(p, t, 2500))
    monkeypatch.setattr(compiling, "usable_threads", lambda: (0, 1))


def cpu() -> CpuDevice:
    found = open_device("cpu:0")
    assert isinstance(found, CpuDevice)
    return found


def result(code: devices.CpuCode) -> list[float]:
    arrays = np.arange(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
    plan = runtime.open_runtime().plan([Instruction(code.address, (0, 1))], externals=2)
    plan.run([a.ctypes.data for a in arrays])
    return arrays[1].tolist()


@pytest.mark.usefixtures("few_characters")
def test_parts_that_are_compiled_beside_are_those_that_are_compiled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = cpu().runtime.machine.target
    threads: set[int] = set()
    original = compiling.compile_text

    def noted(text: str, target: compiling.Target) -> bytes:
        threads.add(threading.get_ident())
        return original(text, target)

    monkeypatch.setattr(compiling, "compile_text", noted)
    interval = sys.getswitchinterval()
    beside = compile_parts(map(times, range(COUNT)), target)
    assert threading.get_ident() not in threads and len(threads) == 1
    assert sys.getswitchinterval() == interval
    assert len(beside) > 3
    assert [n for part, _ in beside for n in part.names] == [f"times_{k}" for k in range(COUNT)]
    monkeypatch.setattr(compiling, "usable_threads", lambda: (0,))
    threads.clear()
    assert compile_parts(map(times, range(COUNT)), target) == beside
    assert threads == {threading.get_ident()}


@pytest.mark.usefixtures("few_characters")
def test_programs_are_made_while_the_first_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    first, original = threading.Event(), compiling.compile_text

    def noted(text: str, target: compiling.Target) -> bytes:
        first.set()
        return original(text, target)

    def programs() -> Iterator[Program]:
        yield from map(times, range(COUNT))
        assert first.wait(30)  # LLVM has begun before the last program is there
        yield times(COUNT)

    monkeypatch.setattr(compiling, "compile_text", noted)
    compile_parts(programs(), cpu().runtime.machine.target)


@pytest.mark.usefixtures("few_characters")
def test_code_runs_from_many_objects_and_from_their_image() -> None:
    codes, image = cpu().compile(map(times, range(COUNT)))
    names = [f"times_{k}" for k in range(COUNT)]
    assert len(parts(image)) > 3
    for made in (codes, cpu().load(image, names)):
        assert [result(c) for c in made] == [[float(k * i) for i in range(SIZE)] for k in range(COUNT)]
    assert "times_3" in codes[3].source and "times_11" not in codes[3].source


@pytest.mark.usefixtures("few_characters")
def test_an_error_of_the_maker_or_of_llvm_ends_the_work_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    def programs() -> Iterator[Program]:
        yield from map(times, range(COUNT))
        raise KeyboardInterrupt

    target, interval = cpu().runtime.machine.target, sys.getswitchinterval()
    with pytest.raises(KeyboardInterrupt):
        compile_parts(programs(), target)
    monkeypatch.setattr(compiling, "PASSES", ("nonsense",))
    with pytest.raises(LLVMError, match="nonsense"):
        compile_parts(map(times, range(COUNT)), target)
    assert sys.getswitchinterval() == interval
    assert not any(t.name.startswith("weft-llvm") for t in threading.enumerate())
    assert not compiling._beside.locked()


@pytest.mark.usefixtures("few_characters")
def test_an_interpreter_that_is_ending_compiles_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    target = cpu().runtime.machine.target
    want = compile_parts(map(times, range(COUNT)), target)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    assert compile_parts(map(times, range(COUNT)), target) == want


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.usefixtures("few_characters")
def test_a_process_forked_while_a_thread_compiles_beside_compiles_too() -> None:
    def programs() -> Iterator[Program]:
        yield from map(times, range(COUNT))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                made, _ = cpu().compile(map(times, range(COUNT)))
                code = int([result(c)[1] for c in made] != list(range(COUNT)))
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    assert len(compile_parts(programs(), cpu().runtime.machine.target)) > 3


def test_an_image_is_taken_apart_as_it_was_joined() -> None:
    objects = [b"one", b"", b"three"]
    assert parts(joined(objects)) == objects
    for broken in (b"", b"weft", joined(objects)[:-1], joined(objects) + b"!", b"x" + joined(objects)):
        with pytest.raises(ValueError, match="not an image"):
            parts(broken)


AT_THE_END = """
import atexit
import weft
from weft.backends.cpu import compile as compiling
from weft.backends.cpu.runner import Instruction

render = compiling.render_parts
compiling.render_parts, compiling.usable_threads = lambda p, t: render(p, t, 1), lambda: (0, 1)

def last():
    x = weft.arange(12).to(weft.float32).reshape(3, 4)
    print((x @ (x.T @ x).sort(0).values).sum().item())

atexit.register(last)
"""


def test_programs_are_compiled_when_the_interpreter_is_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "WEFT_CACHE_DIR": ""},
    )  # fmt: skip
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert float(done.stdout) == (x @ np.sort(x.T @ x, 0)).sum() and not done.stderr
