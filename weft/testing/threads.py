"""Many Python threads at once on shared and separate tensors, every value compared with NumPy's: an attack on races.

    python -m weft.testing.threads --seconds 600 --threads 8 --interval 1e-5

Each scene makes what the threads share, has all of them begin at one barrier, and says what each must find; some say
what must hold when all are done. `run` plays scenes in random order until the time is up and counts what went wrong.
Sums are of small integers, so that values are exact whatever the order.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import weft
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]

Check: TypeAlias = bool
"""True where a value was what it had to be."""


@dataclass(frozen=True, slots=True)
class Scene:
    """`work(k)` is what thread number k does; `after` is asked when all are done."""

    work: Callable[[int], Sequence[Check]]
    after: Callable[[], Check] = lambda: True


@dataclass(slots=True)
class Report:
    """The numbers of values that were compared, and that were wrong, by scene; the texts of exceptions."""

    compared: dict[str, int] = field(default_factory=dict[str, int])
    wrong: dict[str, int] = field(default_factory=dict[str, int])
    errors: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        """Nothing was wrong and nothing was raised."""
        return not self.wrong and not self.errors

    def add(self, name: str, checks: Sequence[Check]) -> None:
        """Count the checks of one thread."""
        self.compared[name] = self.compared.get(name, 0) + len(checks)
        bad = sum(not c for c in checks)
        if bad:
            self.wrong[name] = self.wrong.get(name, 0) + bad

    def __str__(self) -> str:
        rows = [
            f"{name:24} {n:10,} compared {self.wrong.get(name, 0):8,} wrong"
            for name, n in sorted(self.compared.items())
        ]
        total = (
            f"{'in all':24} {sum(self.compared.values()):10,} compared {sum(self.wrong.values()):8,} wrong"
        )
        kinds = [f"{self.errors.count(e)} x {e}" for e in dict.fromkeys(self.errors)]
        return "\n".join([*rows, f"{total}, {len(self.errors):,} errors", *kinds])


def _integers(rng: random.Random, *shape: int) -> Array:
    return np.random.default_rng(rng.randrange(1 << 30)).integers(-3, 4, shape).astype(np.float32)


def _equal(t: weft.Tensor, want: Array | float) -> Check:
    return bool(np.array_equal(t.numpy(), np.asarray(want, np.float32)))


def lazy_sum(rng: random.Random, threads: int) -> Scene:
    """All read what depends on one long lazy graph, which the first of them computes."""
    a, n = _integers(rng, 16, 16), rng.choice([4, 16])
    x = weft.from_numpy(a)
    y = x * 0
    want = np.zeros_like(a[0])
    for i in range(n):
        y, want = y + x[i] * (i % 7), want + a[i] * (i % 7)
    total = 16 * float(want.sum())

    def work(k: int) -> Sequence[Check]:
        return [
            float((y * 1.0).sum()) == total,
            float((y + k).sum()) == total + 256 * k,
            float(y.sum()) == total,
        ]

    return Scene(work)


def lazy_rows(rng: random.Random, threads: int) -> Scene:
    """Each thread starts at another of several lazy tensors that are made of each other."""
    a = _integers(rng, 8, 8)
    tensors, wants = [weft.from_numpy(a)], [a]
    for i in range(6):
        tensors.append(tensors[-1] + tensors[i // 2] * (i % 3))
        wants.append(wants[-1] + wants[i // 2] * (i % 3))

    def work(k: int) -> Sequence[Check]:
        order = [(k + i) % len(tensors) for i in range(len(tensors))]
        return [_equal(tensors[i], wants[i]) for i in order] + [float(tensors[-1][0, 0]) == wants[-1][0, 0]]

    return Scene(work)


def constants(rng: random.Random, threads: int) -> Scene:
    """Nothing is shared by hand; equal constants are one node for all."""
    n = rng.randrange(3, 40)

    def work(k: int) -> Sequence[Check]:
        ones = weft.ones(n)
        row = weft.arange(n)
        return [
            float((weft.ones(n) + k % 3).sum()) == n * (1 + k % 3),
            _equal(ones, np.ones(n)),
            int((row * 2)[n - 1]) == 2 * n - 2,
            row.tolist() == list(range(n)),
            float(weft.full((n,), 2.0).sum() + ones.sum()) == 3 * n,
        ]

    return Scene(work)


def added_in_place(rng: random.Random, threads: int) -> Scene:
    """All add to one tensor, and to rows of another by views: nothing is lost."""
    x, m = weft.zeros(3), weft.zeros(threads, 4)

    def work(k: int) -> Sequence[Check]:
        row = m[k]
        for i in range(6):
            x.add_(1)
            row.add_(i)
            m[k, 0] += 1
            if i % 3 == 2:
                float(x.sum())
        return [_equal(row[1:], np.full(3, 15.0)), float(row[0]) == 21.0]

    def after() -> Check:
        want = np.full((threads, 4), 15.0, np.float32)
        want[:, 0] = 21
        return _equal(x, np.full(3, 6.0 * threads)) and _equal(m, want)

    return Scene(work, after)


def gradients(rng: random.Random, threads: int) -> Scene:
    """Gradients of one parameter from all threads add up; those of own graphs over it are right."""
    a = _integers(rng, 4, 4)
    w = weft.tensor(a, requires_grad=True)

    def work(k: int) -> Sequence[Check]:
        (w * (k + 1)).sum().backward()
        (g,) = weft.autograd.grad((w * w).sum(), [w])
        own = weft.tensor(a, requires_grad=True)
        (own.relu() * 2).sum().backward()
        assert g is not None and own.grad is not None
        return [_equal(g, 2 * a), _equal(own.grad, 2.0 * (a > 0))]

    def after() -> Check:
        return w.grad is not None and _equal(w.grad, np.full((4, 4), threads * (threads + 1) / 2))

    return Scene(work, after)


def compiled_state(rng: random.Random, threads: int) -> Scene:
    """One compiled step updates state for all threads, in shapes of each; readers never see half of an update."""
    state, count = weft.zeros(2048), weft.zeros(2048)

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        state.add_(1)
        count.copy_(count + x.sum() * 0 + 2)
        return x * 2

    def work(k: int) -> Sequence[Check]:
        x = weft.ones(k % 3 + 1)
        checks: list[Check] = []
        for _ in range(4):
            checks.append(_equal(step(x), np.full(k % 3 + 1, 2.0)))
            seen = state.numpy() if k % 2 else (count * 1.0).numpy()
            checks.append(bool((seen == seen[0]).all()))
        return checks

    def after() -> Check:
        return _equal(state, np.full(2048, 4.0 * threads)) and _equal(count, np.full(2048, 8.0 * threads))

    return Scene(work, after)


def compiled_alike(rng: random.Random, threads: int) -> Scene:
    """The same function compiled by each thread, and one that all call first at once."""
    a, n = _integers(rng, 5, 5), rng.randrange(2, 9)
    x = weft.from_numpy(a)

    def formula(t: weft.Tensor) -> weft.Tensor:
        return (t * n + 1).sum(0)

    shared = weft.compile(formula)

    def work(k: int) -> Sequence[Check]:
        own = weft.compile(formula)
        want = (a * n + 1).sum(0)
        return [_equal(f(x), want) for f in (shared, own, shared, own)]

    return Scene(work)


def model(rng: random.Random, threads: int) -> Scene:
    """One model with parameters that are not computed yet, on inputs of each thread; functions that are calls."""
    layer = weft.nn.Linear(6, 6, bias=False)
    with weft.no_grad():
        weight = _integers(rng, 6, 6)
        layer.weight.copy_(weft.tensor(weight) * 1)
    a = _integers(rng, 3, 6)
    x = weft.from_numpy(a)
    soft = x.softmax(-1)
    e = np.exp(a - a.max(-1, keepdims=True))
    likely = e / e.sum(-1, keepdims=True)

    def work(k: int) -> Sequence[Check]:
        own = weft.from_numpy(a + k)
        return [
            _equal(layer(own).relu(), np.maximum((a + k) @ weight.T, 0)),
            bool(np.allclose(soft.numpy(), likely, atol=1e-6)),
            bool(np.allclose((soft * 2).sum(0).numpy(), 2 * likely.sum(0), atol=1e-5)),
            bool(np.allclose(x.log_softmax(-1).exp().numpy(), likely, atol=1e-6)),
        ]

    return Scene(work)


def modes(rng: random.Random, threads: int) -> Scene:
    """Devices, dtypes and modes are each thread's own."""

    def work(k: int) -> Sequence[Check]:
        checks: list[Check] = []
        if threading.current_thread() is not threading.main_thread():
            weft.set_default_dtype(weft.float64 if k % 2 else weft.float32)
        x = weft.ones(2, requires_grad=True)
        with weft.device("dummy:0" if k % 2 else "cpu"), weft.set_grad_enabled(k % 3 == 0):
            y = weft.zeros(3)
            checks.append(y.device == ("dummy:0" if k % 2 else "cpu:0"))
            checks.append((x * 2).requires_grad is (k % 3 == 0))
            checks.append(weft.tensor([1.5]).dtype is (weft.float64 if k % 2 else weft.float32))
            checks.append(y.sum().item() == 0)
        return checks

    return Scene(work)


def draws(rng: random.Random, threads: int) -> Scene:
    """No two threads draw the same numbers."""
    found: list[float] = []

    def work(k: int) -> Sequence[Check]:
        for _ in range(3):
            found.extend(weft.rand(4, dtype=weft.float64).tolist())
        return []

    return Scene(work, lambda: len(set(found)) == 12 * threads)


def devices(rng: random.Random, threads: int) -> Scene:
    """A lazy graph that goes over two devices, read on both."""
    a = _integers(rng, 4, 4)
    x = weft.from_numpy(a)
    there = (x * 2 + 1).to("dummy:0")
    back = (there + there.sum(0)).to("cpu")
    want = (2 * a + 1) + (2 * a + 1).sum(0)

    def work(k: int) -> Sequence[Check]:
        first, second = (_equal(there, 2 * a + 1), _equal(back, want)) if k % 2 else (
            _equal(back * 1, want), _equal(there, 2 * a + 1)
        )  # fmt: skip
        return [first, second]

    return Scene(work)


SCENES: tuple[Callable[[random.Random, int], Scene], ...] = (
    lazy_sum, lazy_rows, constants, added_in_place, gradients, compiled_state, compiled_alike, model, modes, draws,
    devices,
)  # fmt: skip


def run(
    seconds: float,
    threads: int = 8,
    interval: float = 1e-5,
    seed: int = 0,
    scenes: Sequence[Callable[[random.Random, int], Scene]] = SCENES,
    rounds: int | None = None,
) -> Report:
    """Play scenes in random order for so long, or `rounds` of them, with threads that change places each `interval`
    seconds."""
    report, rng = Report(), random.Random(seed)
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    end = time.monotonic() + seconds
    try:
        with ThreadPoolExecutor(threads) as pool:
            number = 0
            while time.monotonic() < end and (rounds is None or number < rounds):
                make = scenes[number % len(scenes)] if rounds is not None else rng.choice(scenes)
                number += 1
                _play(make, rng, threads, pool, report)
    finally:
        sys.setswitchinterval(before)
    return report


def _play(
    make: Callable[[random.Random, int], Scene],
    rng: random.Random,
    threads: int,
    pool: ThreadPoolExecutor,
    report: Report,
) -> None:
    scene, start = make(rng, threads), threading.Barrier(threads)

    def one(k: int) -> Sequence[Check]:
        start.wait()
        return scene.work(k)

    errors = len(report.errors)
    for done in [pool.submit(one, k) for k in range(threads)]:
        try:
            report.add(make.__name__, done.result())
        except Exception as error:  # noqa: BLE001  (whatever is raised is a finding)
            where = traceback.extract_tb(error.__traceback__)[-1]
            report.errors.append(
                f"{make.__name__}: {type(error).__name__}: {str(error)[:200]} ({where.name}, line {where.lineno})"
            )
    if len(report.errors) == errors:
        report.add(make.__name__, [scene.after()])


def main() -> int:
    """Play from the command line; the exit status is 1 where anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--interval", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    report = run(given.seconds, given.threads, given.interval, given.seed)
    sys.stdout.write(f"seed {given.seed}\n{report}\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
