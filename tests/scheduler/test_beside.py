"""The worker: a process beside the program, what it is asked for and answers, and how it ends."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.backends.registry import open_device
from weft.ir.template import GraphTemplate
from weft.scheduler import disk_cache, programs
from weft.scheduler.basic import beside, worker
from weft.scheduler.basic.beside import Task
from weft.scheduler.pickles import pickled
from weft.scheduler.signature import signature


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process with a cache of its own, in which nothing was compiled yet, and whose worker ends with the test."""
    monkeypatch.setenv("WEFT_VERIFY", "0")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    programs._compiled.clear()
    yield
    beside.stop()
    programs._compiled.clear()


def model() -> Tensor:
    x = weft.tensor(np.random.default_rng(3).standard_normal((6, 8)).astype(np.float32))
    return F.layer_norm((x @ x.T).softmax(-1) @ x, (8,))


def a_task() -> Task:
    return Task(signature([model().value.node]).key.rows, "cpu:0", "name")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_processors_are_those_that_the_program_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for allowed in ({3}, {0, 1}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, allowed=allowed: allowed, raising=False)
        assert beside.has_processor() is (len(allowed) > 1)
    monkeypatch.delattr(os, "sched_getaffinity")
    for count in (1, 8, None):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert beside.has_processor() is (count == 8)


def test_who_stops_the_worker_is_told_what_it_did_not_build() -> None:
    answers: list[bool | None] = []
    task = a_task()
    assert beside.ask(task, answers.append)
    beside.stop()
    assert answers in ([None], [False]) and not beside._state


def test_a_worker_for_another_device_builds_nothing() -> None:
    task = a_task()
    assert not worker.run(pickle.loads(pickled(task)))


def test_what_a_worker_compiled_before_its_end_is_there_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("cpu:0")
    sig = signature([model().value.node])
    task = Task(sig.key.rows, "cpu:0", disk_cache.key_of(sig, {}, device))
    asked, compile_all = list[int](), type(device).compile

    def compile_one_part(self: object, some: Any) -> Any:
        asked.append(len(some))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return compile_all(device, some)

    monkeypatch.setattr(type(device), "compile", compile_one_part)
    monkeypatch.setattr(worker, "PROGRAMS_AT_ONCE", 1)
    with pytest.raises(KeyboardInterrupt):
        worker.run(task)
    programs._compiled.clear()  # another process
    assert asked == [1, 1] and worker.run(task)
    whole = disk_cache.load(task.name or "", device, sig.results(), ())
    assert whole is not None and len(asked) - 2 == len(whole.codes) - 1 > 0


def test_a_worker_that_dies_fails_what_waits() -> None:
    answers: list[bool] = []
    task = a_task()
    assert beside.ask(task, answers.append)
    process = beside._state[0].process
    process.kill()
    wait_for(lambda: bool(answers))
    assert answers == [False]
    wait_for(lambda: not beside._state)
    assert process.returncode is not None  # no zombie


def test_a_worker_is_in_a_group_of_its_own_in_this_session() -> None:
    """Ctrl-C is not for it; and Linux weighs niceness among the processes of a session only."""
    assert beside.ask(Task((), "cpu:0", None), lambda ok: None)
    pid = beside._state[0].process.pid
    assert os.getpgid(pid) == pid != os.getpgid(0)
    assert os.getsid(pid) == os.getsid(0)


def test_a_worker_gives_way_before_it_begins() -> None:
    """To begin, Python takes longer than many steps of the program."""
    assert beside.ask(Task((), "cpu:0", None), lambda ok: None)
    assert os.getpriority(os.PRIO_PROCESS, beside._state[0].process.pid) == 19


def test_a_worker_answers_what_it_cannot_build() -> None:
    answers: list[bool] = []
    assert beside.ask(Task(((), "nonsense"), "cpu:0", "name"), answers.append)
    wait_for(lambda: bool(answers))
    assert answers == [False] and beside._state


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "JOBS_WAITING", 1)
    task = a_task()
    assert beside.ask(task, lambda ok: None)
    assert not beside.ask(task, lambda ok: None)


def test_the_worker_ends_with_its_parent() -> None:
    code = (
        "import os\n"
        "from weft.scheduler.basic import beside\n"
        "beside.ask(beside.Task((), 'cpu:0', None), lambda ok: None)\n"
        "print(beside._state[0].process.pid, flush=True)\n"
        "os._exit(0)\n"  # nothing is tidied up
    )
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    pid = int(done.stdout)
    wait_for(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return "weft.scheduler.basic.worker" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_builds_for_itself() -> None:
    answers: list[bool] = []
    task = a_task()
    assert beside.ask(task, answers.append)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if answers == [False] and not beside._state else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert beside._state or answers


def whole(rows: tuple[Any, ...]) -> list[Any]:
    """Rows with templates that are one object where they are equal."""
    return [tuple([x.whole if isinstance(x, GraphTemplate) else x for x in r]) for r in rows]


def test_a_task_survives_packing() -> None:
    """Also one with templates whose rows nobody has looked at yet."""
    results = [F.gelu(model()), *(F.gelu(weft.tensor(np.ones((n, 7), np.float32))) for n in (9, 21, 33, 27))]
    for y in results:
        sig = signature([y.value.node])
        back = pickle.loads(pickled(Task(sig.key.rows, "cpu:0", "name")))
        assert whole(back.rows) == whole(sig.key.rows)
        assert back.signature().digest() == sig.digest()
