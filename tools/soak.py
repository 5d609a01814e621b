"""A soak: programs of many kinds, with new structures all the time, and what the process holds as it goes on.

    python tools/soak.py --minutes 20            # with the bounds as they are
    python tools/soak.py --seconds 15 --small    # with small ones, which are reached at once

Each round trains (eagerly and compiled), computes with a new shape and a new number, sorts, writes through views, makes
reference cycles, saves and loads, differentiates twice, compiles a new function, counts without ever reading, and has a
step refused for want of memory. Now and then a row is printed: resident memory, Python's objects, the size of every
table that `manuals/caches.md` lists. At the end the exit status is 1 where a table exceeds its bound, or where
memory or objects still grow once the bounds are reached: by more than `--growth` per cent from the third quarter of the
rounds to the last.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import nn
from weft.autograd import repeated
from weft.autograd import value as tape
from weft.backends.cpu import llvm
from weft.core.args import handle
from weft.core.compile import compiled_function as compiling
from weft.core.compile.compiled_function import CompiledFunction
from weft.core.composed import composite, templates
from weft.core.execute import changes, pending, watched, writes
from weft.core.views import views
from weft.ir import graph, index, interning, movement
from weft.scheduler import disk_cache, families, outline, programs, realize, repeats

LRU = {
    "index._sum": index._sum, "index._mod_const": index._mod_const,
    "index._floordiv_const": index._floordiv_const, "movement.reshape_index": movement.reshape_index,
    "templates._template": templates._template,
}  # fmt: skip

SMALL: dict[tuple[Any, str], int] = {
    (realize, "PLANS_KEPT"): 24,
    (realize, "STEPS_KEPT"): 400,
    (families, "FAMILIES_KEPT"): 24,
    (outline, "WALKS_KEPT"): 24,
    (programs, "PROGRAMS_KEPT"): 64,
    (disk_cache, "IMAGES_KEPT"): 24,
    (composite, "KEPT"): 24,
    (llvm, "OBJECTS_PER_LINKER"): 16,
    (compiling, "TRACES_KEPT"): 4,
    (repeats, "SEGMENTS_KEPT"): 64,
    (repeats, "ENDS_KEPT"): 4,
}
"""Bounds that are reached within a few rounds."""


def tables() -> dict[str, tuple[int, int]]:
    """Each table's size and bound. Weak tables hold dead entries until they are swept, at twice the living."""
    steps = sum(k.steps for k in list(realize._plans.values()))
    found = {
        "plans": (len(realize._plans), realize.PLANS_KEPT),
        "steps of plans": (steps, realize.STEPS_KEPT),
        "families": (len(families._families), families.FAMILIES_KEPT),
        "first of families": (len(families._met), families.FAMILIES_KEPT),
        "families by numbers": (len(families._alike), families.FAMILIES_KEPT),
        "walks": (len(outline._walks), outline.WALKS_KEPT),
        "programs": (len(programs._compiled), programs.PROGRAMS_KEPT),
        "images": (len(disk_cache._images), disk_cache.IMAGES_KEPT),
        "segments": (len(realize._memory.segments), repeats.SEGMENTS_KEPT),
        "ends": (len(realize._memory.ends), repeats.ENDS_KEPT),
        "kinds of programs": (len(realize._memory.programs), repeats.PROGRAMS_KEPT),
        "composites": (len(composite._entries), composite.KEPT),
        "copies of views": (len(views._copied), views.COPIES_KEPT),
        "backward passes": (len(repeated._known), repeated.KEPT),
        "tapes seen": (len(repeated._seen), repeated.SEEN),
        "scalars": (len(tape._numbers), tape.NUMBERS_KEPT),
        "changed": (len(changes.mine.changed), changes.CHANGES_KEPT),
        "recent": (len(handle.recent_tensors.tensors), handle.RECENT),
        "noted": (len(pending.mine.noted), pending.MANY),
        "watched": (len(watched.tensors), 1000),
        "ranges": (len(writes.known_ranges), 1000),
        "nodes": (len(graph._nodes), graph._sweep_at + 1),
        "interned": (len(interning._known), interning._sweep_at + 1),
    }
    for name, f in LRU.items():
        info = f.cache_info()
        found[name] = (info.currsize, info.maxsize or 0)
    return found


def resident_mib() -> float:
    """Resident memory of this process."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
    except OSError:  # not on this system
        return 0.0


@dataclass
class Sample:
    """What was held after so many rounds."""

    rounds: int
    seconds: float
    mib: float
    objects: int
    tables: dict[str, tuple[int, int]]

    def row(self) -> str:
        sizes = " ".join(f"{k}={n}" for k, (n, _) in self.tables.items() if n)
        return f"{self.seconds:7.0f} s {self.rounds:6} rounds {self.mib:6.0f} MiB {self.objects:8} objects  {sizes}"

    def over(self) -> list[str]:
        return [f"{k}: {n} of {bound}" for k, (n, bound) in self.tables.items() if n > bound]


@dataclass
class Soak:
    """The jobs of a round, and what they go on with."""

    folder: Path
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        weft.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = weft.optim.Adam(self.model.parameters(), lr=1e-3)
        self.x = weft.randn(12, 8).realize()
        self.steps = weft.tensor(0)
        self.compiled: Callable[[weft.Tensor], Any] = weft.compile(lambda x: self.step(x).detach())
        self.many_shapes: CompiledFunction[Any, Any] = weft.compile(lambda x, k: (x * k).sum())
        self.many_shapes._warned = True

    def step(self, x: weft.Tensor) -> weft.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def array(self, *shape: int) -> weft.Tensor:
        return weft.from_numpy(self.rng.standard_normal(shape).astype(np.float32))

    def train(self, i: int) -> None:
        self.step(self.x).item()

    def train_compiled(self, i: int) -> None:
        self.compiled(self.x)

    def new_shape(self, i: int) -> None:
        a, b = 2 + i % 97, 1 + i % 89
        (self.array(a, b).exp().sum(0) * self.array(b)).softmax(-1).numpy()

    def new_number(self, i: int) -> None:
        (weft.ones(5) * (i + 0.5)).tolist()

    def sort(self, i: int) -> None:
        self.array(3 + i % 7, 5).sort(0)[0].tolist()

    def write_through_views(self, i: int) -> None:
        x = self.array(6, 6)
        x[i % 6].mul_(2)
        x.view(-1).view_as(weft.zeros(4, 9)).flatten()[:3].add_(1)
        x.tolist()

    def cycles(self, i: int) -> None:
        x = self.array(64, 64)
        ring: list[Any] = [x, x * 2]
        ring.append(ring)

    def save_and_load(self, i: int) -> None:
        path = self.folder / f"{i % 3}.safetensors"
        weft.io.save_safetensors(self.model.state_dict(), path)
        self.model.load_state_dict(weft.io.load_safetensors(path))

    def twice(self, i: int) -> None:
        x = self.array(5).requires_grad_()
        (g,) = weft.autograd.grad((x**3).sum(), [x], create_graph=True)
        weft.autograd.grad((g * g).sum(), [x])[0].tolist()

    def new_function(self, i: int) -> None:
        number = i / 7
        compiled = weft.compile(lambda x: x.sin() * number)
        compiled(self.x)
        self.many_shapes(self.array(1 + i % 83), weft.tensor(1.0))

    def count(self, i: int) -> None:
        self.steps += 1

    def refused(self, i: int) -> None:
        try:
            with weft.memory_limit(0):
                self.step(self.array(4096, 8)).item()
        except MemoryError:
            return
        raise AssertionError("a limit of 0 bytes was kept by a step")

    def round(self, i: int) -> None:
        """One of each."""
        for job in (
            self.train, self.train_compiled, self.new_shape, self.new_number, self.sort, self.write_through_views,
            self.cycles, self.save_and_load, self.twice, self.new_function, self.count,
        ):  # fmt: skip
            job(i)
        if i % 10 == 9:
            self.refused(i)

    def run(self, seconds: float, every: float, say: Callable[[str], object], clear: bool) -> list[Sample]:
        """Rounds for so long, and a sample every so often. `clear`: functions' own caches are not what is measured."""
        start, samples, i, due = time.monotonic(), list[Sample](), 0, 0.0
        while (now := time.monotonic() - start) < seconds or len(samples) < 5:
            self.round(i)
            i += 1
            if now >= due:
                due = now + every
                if clear:
                    for f in LRU.values():
                        f.cache_clear()
                gc.collect()
                samples.append(
                    Sample(i, now, resident_mib(), len(gc.get_objects()) + gc.get_freeze_count(), tables())
                )
                say(samples[-1].row())
        return samples


def growth(values: list[float]) -> float:
    """By how much the least of the last quarter exceeds that of the third, in per cent: the least, since weak tables
    grow to twice their size and are swept."""
    n = len(values)
    third, last = values[n // 2 : max(n // 2 + 1, 3 * n // 4)], values[3 * n // 4 :]
    return 100 * (min(last) / min(third) - 1)


def small_bounds() -> None:
    """Bounds that a few rounds reach."""
    for (module, name), value in SMALL.items():
        setattr(module, name, value)


def check(samples: list[Sample], percent: float) -> list[str]:
    """What is not bounded."""
    wrong = [f"{s.rounds} rounds: {line}" for s in samples for line in s.over()]
    for name, values in (("MiB", [s.mib for s in samples]), ("objects", [float(s.objects) for s in samples])):
        if (more := growth(values)) > percent:
            wrong.append(f"{name} grow by {more:.1f} % in the last quarter")
    return wrong


def main() -> int:
    """Soak as the command line says; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument(
        "--every", type=float, default=0.0, help="seconds between rows; a fortieth of the time"
    )
    parser.add_argument(
        "--growth", type=float, default=3.0, help="per cent that are allowed in the last quarter"
    )
    parser.add_argument("--small", action="store_true", help="small bounds, which are reached at once")
    given = parser.parse_args()
    seconds = 60 * given.minutes + given.seconds or 60.0
    if given.small:
        small_bounds()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder))
        say: Callable[[str], object] = lambda row: print(row, flush=True)  # noqa: E731
        samples = soak.run(seconds, given.every or seconds / 40, say, given.small)
    wrong = check(samples, given.growth)
    print(*(wrong or ["bounded"]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
