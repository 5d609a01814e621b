"""Measures what small things cost outside of kernels: an op built, an op computed, a compiled call, a training step.

python -m benchmarks.latency                              this weft, beside what else is installed (torch, jax)
python -m benchmarks.latency --beside /path/to/another    this weft and another checkout of it, in turns
python -m benchmarks.latency --only update,mlp --rounds 30

Each state is a process of its own that stays open; in each round all of them measure the same case, one after the
other, and in the next round in another order. Counted is processor time of one thread; the least of all rounds stands
for a state, and the median of the rounds' ratios says what one costs beside the first. Cases of `build` compute
nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

TURN = 0.02
"""Seconds of processor time that one turn takes, about."""

CHECKED = 3
"""Calls before a case is measured: traces of compiled functions, plans of their own."""

BUILT = 100
"""Ops of one call, where many are built."""

DEPTH = 50
"""Layers of the deep network, of width 8."""

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """A thing to do over and over: `make` prepares it in a framework. `each`: how many things one call does."""

    name: str
    make: Callable[[Any], Step]
    frameworks: tuple[str, ...] = ("weft", "torch")
    each: int = 1


CASES: dict[str, Case] = {}


def _case(
    name: str, *frameworks: str, each: int = 1
) -> Callable[[Callable[[Any], Step]], Callable[[Any], Step]]:
    def register(make: Callable[[Any], Step]) -> Callable[[Any], Step]:
        CASES[name] = Case(name, make, frameworks or ("weft", "torch"), each)
        return make

    return register


def _data(T: Any, *shape: int) -> Any:
    """Elements in memory, which no rule knows."""
    values = T.tensor([0.01 * k for k in range(math.prod(shape))])
    found = values.reshape(shape).clone()
    _compute(T)(found)
    return found


def _compute(T: Any) -> Callable[[Any], Any]:
    """Has a result be there."""
    return T.realize if T.__name__ == "weft" else lambda t: t


# ---------------------------------------------------------------------------------------- ops that are built


def _built(name: str, op: Callable[[Any, Any], Any]) -> None:
    """A case for an op of a matrix, which computes nothing where ops are lazy."""

    def make(T: Any) -> Step:
        x = _data(T, 8, 8)
        return lambda: op(T, x)

    CASES[f"build {name}"] = Case(f"build {name}", make)


_built("x + 1", lambda T, x: x + 1)
_built("x + x", lambda T, x: x + x)
_built("relu", lambda T, x: x.relu())
_built("exp", lambda T, x: x.exp())
_built("sum", lambda T, x: x.sum())
_built("sum(-1)", lambda T, x: x.sum(-1))
_built("matmul", lambda T, x: x @ x)
_built("where", lambda T, x: T.where(x > 0, x, x))
_built("x[0]", lambda T, x: x[0])
_built("x[:, 1:5]", lambda T, x: x[:, 1:5])
_built("x[..., None]", lambda T, x: x[..., None])
_built("reshape", lambda T, x: x.reshape(4, 16))
_built("view", lambda T, x: x.view(64))
_built("transpose", lambda T, x: x.transpose(0, 1))
_built("permute", lambda T, x: x.permute(1, 0))
_built("unsqueeze", lambda T, x: x.unsqueeze(0))
_built("expand", lambda T, x: x.expand(3, 8, 8))
_built("chunk", lambda T, x: x.chunk(2))
_built("cat", lambda T, x: T.cat([x, x]))
_built("softmax", lambda T, x: x.softmax(-1))
_built("layer_norm", lambda T, x: T.nn.functional.layer_norm(x, (8,)))


@_case("built in a batch: x + 1, computed", each=BUILT)
def _batch(T: Any) -> Step:
    x, compute = _data(T, 8, 8), _compute(T)

    def step() -> object:
        y = x
        for _ in range(BUILT):
            y = y + 1
        return compute(y)

    return step


# -------------------------------------------------------------------------------------- ops that are computed


def _computed(name: str, op: Callable[[Any, Any], Any], jax: Callable[[Any, Any], Any] | None = None) -> None:
    def make(T: Any) -> Step:
        if T.__name__ == "jax.numpy":
            assert jax is not None
            x, call = T.ones((8, 8), "float32"), jax
            return lambda: call(T, x)
        x, compute = _data(T, 8, 8), _compute(T)
        return lambda: compute(op(T, x))

    frameworks = ("weft", "torch", "jax") if jax is not None else ("weft", "torch")
    CASES[f"eager {name}"] = Case(f"eager {name}", make, frameworks)


_computed("x + 1", lambda T, x: x + 1, lambda T, x: x + 1)
_computed("x + x", lambda T, x: x + x, lambda T, x: x + x)
_computed("relu", lambda T, x: x.relu())
_computed("sum", lambda T, x: x.sum(), lambda T, x: x.sum())
_computed("matmul", lambda T, x: x @ x, lambda T, x: x @ x)
_computed("x[0]", lambda T, x: x[0], lambda T, x: x[0])
_computed("softmax", lambda T, x: x.softmax(-1))


@_case("eager add_")
def _add_(T: Any) -> Step:
    x, compute = _data(T, 8, 8), _compute(T)
    return lambda: compute(x.add_(1))


# --------------------------------------------------------------------------------------------- compiled calls


@_case("compiled x + 1", "weft", "jax")
def _compiled_add(T: Any) -> Step:
    if T.__name__ == "jax.numpy":
        import jax

        x, f = T.ones((8, 8), "float32"), jax.jit(lambda x: x + 1)
        return lambda: f(x)
    x, f = _data(T, 8, 8), T.compile(lambda x: x + 1)
    return lambda: f(x)


@_case("compiled, two results", "weft")
def _compiled_two(T: Any) -> Step:
    x, f = _data(T, 8, 8), T.compile(lambda x: (x + 1, x * 2))
    return lambda: f(x)


@_case("compiled, a dict and a number", "weft")
def _compiled_dict(T: Any) -> Step:
    x, f = _data(T, 8, 8), T.compile(lambda d, k: d["x"] * k)
    given = {"x": x}
    return lambda: f(given, k=3)


@_case("compiled Linear", "weft")
def _compiled_linear(T: Any) -> Step:
    x, layer = _data(T, 8, 8), T.nn.Linear(8, 8)
    f = T.compile(layer)

    def step() -> object:
        with T.no_grad():
            return f(x)

    return step


@_case("compiled update of what is captured", "weft")
def _update(T: Any) -> Step:
    x = _data(T, 8, 8)

    @T.compile
    def f() -> None:
        x.add_(1)

    return f


@_case("compiled update of an argument", "weft")
def _update_argument(T: Any) -> Step:
    x = _data(T, 8, 8)

    @T.compile
    def f(x: Any) -> None:
        x.add_(1)

    return lambda: f(x)


@_case("compiled update of a parameter", "weft")
def _update_parameter(T: Any) -> Step:
    w, g = T.nn.Parameter(_data(T, 8, 8)), _data(T, 8, 8)

    @T.compile
    def f(g: Any) -> None:
        with T.no_grad():
            w.sub_(g * 0.1)

    return lambda: f(g)


@_case("compiled update with a result", "weft")
def _update_result(T: Any) -> Step:
    x, g = _data(T, 8, 8), _data(T, 8, 8)

    @T.compile
    def f(g: Any) -> Any:
        x.add_(g)
        return x.sum()

    return lambda: f(g)


@_case("compiled update of 16 tensors", "weft")
def _update_many(T: Any) -> Step:
    xs = [_data(T, 8) for _ in range(16)]

    @T.compile
    def f() -> None:
        for x in xs:
            x.add_(1)

    return f


# ------------------------------------------------------------------------------------------------- networks


def _mlp(T: Any) -> Any:
    nn = T.nn
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


def _training(T: Any, kind: str) -> Step:
    net = _mlp(T)
    optimizer = getattr(T.optim, kind)(net.parameters(), lr=1e-4)
    x, y = _data(T, 4, 8), _data(T, 4, 1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    f = T.compile(step) if T.__name__ == "weft" else step
    return lambda: f(x, y)


@_case("compiled training step, mlp, sgd")
def _sgd(T: Any) -> Step:
    return _training(T, "SGD")


@_case("compiled training step, mlp, adam")
def _adam(T: Any) -> Step:
    return _training(T, "Adam")


@_case("eager training step, mlp, sgd")
def _eager_sgd(T: Any) -> Step:
    net = _mlp(T)
    optimizer = T.optim.SGD(net.parameters(), lr=1e-4)
    x, y = _data(T, 4, 8), _data(T, 4, 1)

    def step() -> object:
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _deep(T: Any) -> Any:
    return T.nn.Sequential(*[T.nn.Linear(8, 8) for _ in range(DEPTH)])


@_case("deep mlp, built", each=DEPTH)
def _deep_built(T: Any) -> Step:
    net, x = _deep(T), _data(T, 1, 8)
    return lambda: net(x)


@_case("deep mlp, computed", each=DEPTH)
def _deep_eager(T: Any) -> Step:
    net, x, compute = _deep(T), _data(T, 1, 8), _compute(T)
    return lambda: compute(net(x))


@_case("deep mlp without gradients, built", each=DEPTH)
def _deep_no_grad_built(T: Any) -> Step:
    net, x = _deep(T), _data(T, 1, 8)

    def step() -> object:
        with T.no_grad():
            return net(x)

    return step


@_case("deep mlp without gradients, computed", each=DEPTH)
def _deep_no_grad(T: Any) -> Step:
    net, x, compute = _deep(T), _data(T, 1, 8), _compute(T)

    def step() -> object:
        with T.no_grad():
            return compute(net(x))

    return step


@_case("deep mlp without gradients, compiled", each=DEPTH)
def _deep_compiled(T: Any) -> Step:
    net, x = _deep(T), _data(T, 1, 8)
    f = T.compile(net) if T.__name__ == "weft" else net  # torch's compiler is not what is measured here

    def step() -> object:
        with T.no_grad():
            return f(x)

    return step


# ------------------------------------------------------------------------------------------------ the workers


def _opened(framework: str) -> Any:
    if framework == "jax":
        import jax.numpy

        return jax.numpy
    if framework == "torch":
        import torch

        torch.set_num_threads(1)
        weight = torch.nn.Parameter(torch.zeros(4, 4))
        torch.optim.SGD([weight]).step()  # the first optimizer imports torch's compiler
        return torch
    import weft
    import weft.nn
    import weft.optim

    return weft


def _timed(step: Step, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        step()
    return time.process_time() - start


def work(framework: str, threads: int) -> None:
    """A worker: for each line, the name of a case, a line with the seconds of one thing that it does."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is no answer
    T = _opened(framework)
    if threads > 1:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    steps: dict[str, tuple[Step, int]] = {}
    for line in sys.stdin:
        case = CASES[line.strip()]
        if case.name not in steps:
            step = case.make(T)
            for _ in range(CHECKED):
                step()
            count = 1
            while (taken := _timed(step, count)) < TURN / 4:
                count *= 2
            steps[case.name] = step, max(1, round(count * TURN / max(taken, 1e-9)))
        step, count = steps[case.name]
        answers.write(json.dumps(_timed(step, count) / count / case.each) + "\n")
        answers.flush()


class Worker:
    """A process that measures cases in one state: `weft` from a folder, or another framework."""

    def __init__(self, name: str, framework: str, folder: Path | None, threads: int) -> None:
        self.name, self.framework = name, framework
        paths = [str(folder)] if folder is not None else []
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "WEFT_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, "1"), "JAX_PLATFORMS": "cpu"}
        environment["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--work", framework, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def seconds(self, case: Case) -> float | None:
        """One turn; None where this state has no such case."""
        if self.framework not in case.frameworks:
            return None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{case.name}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended in {case.name}")
        found: float = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()


def measure(
    workers: Sequence[Worker], cases: Sequence[Case], rounds: int
) -> Iterator[tuple[Case, list[list[float]]]]:
    """For each case the seconds of each worker in each round; none for a worker that does not have it."""
    for case in cases:
        found: list[list[float]] = [[] for _ in workers]
        for n in range(rounds):
            for k in range(len(workers)):
                at = (k + n) % len(workers)
                taken = workers[at].seconds(case)
                if taken is not None:
                    found[at].append(taken)
        yield case, found


def line_of(case: Case, seconds: Sequence[Sequence[float]]) -> str:
    """A row of the table: microseconds of each state, and what the first one's are of the others'."""
    cells: list[str] = []
    for k, s in enumerate(seconds):
        if not s:
            cells.append(f"{'':16}")
            continue
        ratio = median([a / b for a, b in zip(seconds[0], s, strict=True)]) if k and seconds[0] else 0.0
        cells.append(f"{1e6 * min(s):9.2f}{f' {ratio:5.2f}x' if k and seconds[0] else '':7}")
    return f"{case.name:42}{''.join(cells)}"


def main(given: Sequence[str]) -> None:
    """Print the table."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument(
        "--beside", type=Path, action="append", default=[], help="another checkout; may be repeated"
    )
    p.add_argument(
        "--peers", default=None, help="frameworks, comma-separated; those installed if no checkout is given"
    )
    p.add_argument("--only", default="", help="parts of names of cases; comma-separated")
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--threads", type=int, default=1, help="with 2, another Python thread waits meanwhile")
    p.add_argument("--work", default="", help=argparse.SUPPRESS)
    asked = p.parse_args(given)
    if asked.work:
        work(asked.work, asked.threads)
        return
    peers = [] if asked.beside else [n for n in ("torch", "jax") if find_spec(n) is not None]
    if asked.peers is not None:
        peers = [n for n in asked.peers.split(",") if n]
    words = [w for w in asked.only.split(",") if w]
    cases = [c for n, c in CASES.items() if not words or any(w in n for w in words)]
    workers = [Worker("weft", "weft", ROOT, asked.threads)]
    workers += [Worker(str(f), "weft", f.resolve(), asked.threads) for f in asked.beside]
    workers += [Worker(n, n, None, asked.threads) for n in peers]
    say = sys.stdout.write
    say(f"{'us of processor time, the least':42}{''.join(f'{w.name[-14:]:>9}       ' for w in workers)}\n")
    try:
        for case, seconds in measure(workers, cases, asked.rounds):
            say(f"{line_of(case, seconds)}\n")
            sys.stdout.flush()
    finally:
        for w in workers:
            w.close()


if __name__ == "__main__":
    main(sys.argv[1:])
