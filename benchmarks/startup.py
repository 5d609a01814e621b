"""Fresh processes: what an import costs, and the first training step with cold and with warm caches on disk."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.results import ROOT, say
from benchmarks.runner import processors
from benchmarks.variants import VARIANTS, Variant

_WEFT = """
import weft
from weft import nn
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = weft.optim.Adam(net.parameters())
x, y = weft.randn(32, 64), weft.randint(0, 10, (32,))
loss = nn.functional.cross_entropy(net(x), y)
loss.backward()
optimizer.step()
print(loss.item())
"""

_TORCH = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(net.parameters())
x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
loss = nn.functional.cross_entropy(net(x), y)
loss.backward()
optimizer.step()
print(loss.item())
"""

_JAX = """
import jax, jax.numpy as jnp, numpy as np
each = jax.tree_util.tree_map
rng = np.random.default_rng(0)
normal = lambda *shape: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
parameters = [normal(64, 128), np.zeros(128, np.float32), normal(128, 10), np.zeros(10, np.float32)]
zeros = [np.zeros_like(p) for p in parameters]
x, y = normal(32, 64), rng.integers(0, 10, 32)

def loss(p, x, y):
    chances = jax.nn.log_softmax(jax.nn.relu(x @ p[0] + p[1]) @ p[2] + p[3])
    return -jnp.take_along_axis(chances, y[:, None], 1).mean()

@jax.jit
def step(p, m, v, t, x, y):
    value, g = jax.value_and_grad(loss)(p, x, y)
    m = each(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = each(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
    new = lambda p, m, v: p - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return each(new, p, m, v), m, v, value

print(float(step(parameters, zeros, zeros, 1.0, x, y)[3]))
"""


_LSTM = """
import {0}
from {0} import nn
net, head = nn.LSTM(256, 256), nn.Linear(256, 10)
optimizer = {0}.optim.Adam([*net.parameters(), *head.parameters()])
x, y = {0}.randn(500, 32, 256), {0}.randint(0, 10, (32,))
loss = nn.functional.cross_entropy(head(net(x)[0][-1]), y)
loss.backward()
optimizer.step()
print(loss.item())
"""


@dataclass(frozen=True, slots=True)
class Start:
    """A program to time in a fresh process: as whose environment, and whether caches on disk are there already."""

    what: str
    name: str
    variant: Variant
    code: str
    warm: bool


def starts() -> Iterator[Start]:
    """What can be run here."""
    modules = {
        "weft": "weft",
        "numpy": "numpy",
        "torch": "torch",
        "jax": "jax, jax.numpy",
        "onnxruntime": "onnxruntime",
    }
    for name, module in modules.items():
        if not VARIANTS[name].missing():
            yield Start("import", name, VARIANTS[name], f"import {module}", True)
    for name, code in (("weft", _WEFT), ("torch", _TORCH), ("jax", _JAX)):
        if not VARIANTS[name].missing():
            yield Start("first step, cold", name, VARIANTS[name], code, False)
            yield Start("first step, warm", name, VARIANTS[name], code, True)
    for name in ("weft", "torch"):
        if not VARIANTS[name].missing():
            yield Start("LSTM of 500 steps, cold", name, VARIANTS[name], _LSTM.format(name), False)
            yield Start("LSTM of 500 steps, warm", name, VARIANTS[name], _LSTM.format(name), True)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Seconds of each start, all of them in turn; what kept its caches ran once before. The interpreter is included."""
    found = list(starts())
    seconds: dict[int, list[float]] = {k: [] for k in range(len(found))}
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as kept:
        for n in range(rounds + 1):
            for k, s in enumerate(found):
                if s.warm:
                    taken = _run(s, kept)
                else:
                    with tempfile.TemporaryDirectory(prefix="weft-bench-") as fresh:
                        taken = _run(s, fresh)
                if n:  # the first only brings files to memory
                    seconds[k].append(taken)
    rows = [{"what": s.what, "name": s.name, "seconds": seconds[k]} for k, s in enumerate(found)]
    for r in rows:
        say(f"{r['what']}, {r['name']}: {min(r['seconds']):.3f} s")
    return rows


def _run(s: Start, folder: str) -> float:
    """Seconds of one process, whose caches are in `folder`."""
    names = {"WEFT_CACHE_DIR": "weft", "JAX_COMPILATION_CACHE_DIR": "jax", "XDG_CACHE_HOME": "xdg"}
    environment = s.variant.environ(1) | {n: f"{folder}/{part}" for n, part in names.items()}
    # JAX keeps only what took long to compile, unless told otherwise
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONPATH": str(ROOT)}
    pinned = processors(1)
    code = f"import os; os.sched_setaffinity(0, {pinned}); del os\n{s.code}" if pinned else s.code
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    taken = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{s.what}, {s.name}: {done.stderr[-500:]}")
    return taken
