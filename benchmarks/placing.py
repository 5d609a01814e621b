"""What choosing layouts and orders takes, and how good the answers are: problems of networks' shapes, without data.

python -m benchmarks.placing                    all
python -m benchmarks.placing --layers 32,96     other depths
python -m benchmarks.placing --graphs 50        fewer random problems; --orders: fewer random DAGs

A training step of a GPT is einsums: each has an option per assignment of the axes of the mesh to its letters. A letter
of the result shards it, one that is summed makes it partial, and operands are laid out alike; edges are the routes
between what one einsum gives and the next one takes. Weights are blocks of their own, as are Adam's updates of them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft
import weft.nn.functional as F
from weft.autograd.value import Value
from weft.core.args.handle import wrap
from weft.ir.calls import expand_calls
from weft.ir.dtypes import float32
from weft.ir.graph import Node, buffer, toposort
from weft.ir.placement import Layout, Mesh, Partial, Replicate, Shard
from weft.scheduler.placing.clusters import classes, solve_alike
from weft.scheduler.placing.layouts import Rates, choose
from weft.scheduler.placing.links import Links
from weft.scheduler.placing.order import heft, peft, schedule
from weft.scheduler.placing.problem import Block, Choice, Edge, Problem
from weft.scheduler.placing.routes import Routes
from weft.scheduler.placing.search import solve
from weft.scheduler.placing.tasks import Machine, Task

FLOPS_PER_NS = 100e3
BYTES_PER_NS = 2e3
LAUNCH_NS = 3000.0


@dataclass
class Step:
    """The einsums of a training step, while they are built."""

    routes: Routes
    sizes: dict[str, int]
    blocks: list[Block] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    options: list[list[tuple[str, ...]]] = field(default_factory=list)
    known: dict[Any, Any] = field(default_factory=dict)

    def einsum(
        self,
        name: str,
        spec: str,
        operands: Sequence[tuple[int, str]],
        kept: int = 0,
        summed: str | None = None,
    ) -> tuple[int, str]:
        """A block `spec` (as "bsd,df->bsf") over operands; `kept`: bytes per element of the result that stay."""
        inputs, result = spec.split("->")
        letters = "".join(dict.fromkeys(inputs.replace(",", "") + result))
        options = self._options(letters)
        key = letters, result, kept
        if key not in self.known:
            work = math.prod(self.sizes[x] for x in letters)
            shares = np.array([self._share(o, letters) for o in options])
            stored = np.array([self._share(o, result) for o in options])
            nbytes = math.prod(self.sizes[x] for x in result)
            flops = 2 * work if len(letters) > len(result) else 0
            ns = LAUNCH_NS + np.maximum(flops * shares / FLOPS_PER_NS, 2 * nbytes * stored / BYTES_PER_NS)
            self.known[key] = ns, (np.ceil(nbytes * stored).astype(np.int64) * kept)[:, None]
        block = len(self.blocks)
        self.blocks.append(Block(name, *self.known[key], key=spec))
        self.options.append(options)
        for (source, has), wanted in zip(operands, inputs.split(","), strict=False):
            self.connect(source, has, block, wanted)
        return block, result

    def connect(self, source: int, has: str, target: int, wanted: str) -> None:
        """An edge from a block's result to the operand of another."""
        key = tuple(self.options[source]), has, tuple(self.options[target]), wanted
        if key not in self.known:
            shape = [self.sizes[x] for x in has]
            one = [self._layout(o, has, summed=True) for o in self.options[source]]
            other = [self._layout(o, wanted, summed=False) for o in self.options[target]]
            self.known[key] = self.routes.distances(shape, 2, one, other)
        self.edges.append(Edge(source, target, self.known[key]))

    def _options(self, letters: str) -> list[tuple[str, ...]]:
        return list(itertools.product(("", *letters), repeat=len(self.routes.mesh.shape)))

    def _share(self, option: tuple[str, ...], letters: str) -> float:
        grid = self.routes.mesh.shape
        return 1 / math.prod(n for n, x in zip(grid, option, strict=True) if x and x in letters)

    def _layout(self, option: tuple[str, ...], tensor: str, summed: bool) -> Layout:
        none = Partial() if summed else Replicate()
        return tuple(
            Shard(tensor.index(x)) if x and x in tensor else none if x else Replicate() for x in option
        )


def gpt(layers: int, mesh: Mesh, links: Links, sizes: dict[str, int], limit: int | None = None) -> Problem:
    """A training step: forward, backward, and Adam."""
    s = Step(Routes(mesh, links), sizes)
    weights: list[tuple[int, str]] = []
    updates: list[tuple[tuple[int, str], tuple[int, str]]] = []

    def weight(name: str, axes: str) -> tuple[int, str]:
        found = s.einsum(name, f"->{axes}", [], kept=16)  # with its gradient and both moments
        weights.append(found)
        return found

    def update(w: tuple[int, str], gradient: tuple[int, str]) -> None:
        new = s.einsum("adam", f"{w[1]},{w[1]}->{w[1]}", [w, gradient])
        s.connect(*new, *w)
        updates.append((w, new))

    x = s.einsum("embed", "->bsd", [], kept=2)
    saved: list[dict[str, Any]] = []
    for k in range(layers):
        w = {
            n: weight(f"{n}{k}", a) for n, a in (("qkv", "dhe"), ("out", "hed"), ("up", "df"), ("down", "fd"))
        }
        a = s.einsum("norm1", "bsd->bsd", [x], kept=2)
        q, key, v = (s.einsum(n, "bsd,dhe->bshe", [a, w["qkv"]], kept=2) for n in "qkv")
        scores = s.einsum("scores", "bshe,bthe->bhst", [q, (key[0], "bthe")])
        soft = s.einsum("softmax", "bhst->bhst", [scores], kept=2)
        mixed = s.einsum("mix", "bhst,bthe->bshe", [soft, (v[0], "bthe")], kept=2)
        o = s.einsum("out", "bshe,hed->bsd", [mixed, w["out"]])
        y = s.einsum("add1", "bsd,bsd->bsd", [o, x], kept=2)
        n = s.einsum("norm2", "bsd->bsd", [y], kept=2)
        u = s.einsum("up", "bsd,df->bsf", [n, w["up"]], kept=2)
        g = s.einsum("gelu", "bsf->bsf", [u], kept=2)
        d = s.einsum("down", "bsf,fd->bsd", [g, w["down"]])
        saved.append(
            {"w": w, "a": a, "q": q, "k": key, "v": v, "soft": soft, "mixed": mixed, "n": n, "u": u, "g": g}
        )
        x = s.einsum("add2", "bsd,bsd->bsd", [d, y], kept=2)
    dx = s.einsum("loss", "bsd->bsd", [x])
    for f in reversed(saved):
        w = f["w"]
        dg = s.einsum("dgelu", "bsd,fd->bsf", [dx, w["down"]])
        update(w["down"], s.einsum("ddown", "bsf,bsd->fd", [f["g"], dx]))
        du = s.einsum("dup_in", "bsf,bsf->bsf", [dg, f["u"]])
        update(w["up"], s.einsum("dup", "bsd,bsf->df", [f["n"], du]))
        dn = s.einsum("dnorm2", "bsf,df->bsd", [du, w["up"]])
        dy = s.einsum("dadd1", "bsd,bsd->bsd", [dn, dx])
        dm = s.einsum("dmix", "bsd,hed->bshe", [dy, w["out"]])
        update(w["out"], s.einsum("dout", "bshe,bsd->hed", [f["mixed"], dy]))
        ds = s.einsum("dsoft", "bshe,bthe->bhst", [dm, (f["v"][0], "bthe")])
        dscores = s.einsum("dscores", "bhst,bhst->bhst", [ds, f["soft"]])
        dv = s.einsum("dv", "bhst,bshe->bthe", [f["soft"], dm])
        dq = s.einsum("dq", "bhst,bthe->bshe", [dscores, (f["k"][0], "bthe")])
        dk = s.einsum("dk", "bhst,bshe->bthe", [dscores, f["q"]])
        dqkv = s.einsum("dqkv", "bshe,bshe,bshe->bshe", [dq, (dk[0], "bshe"), (dv[0], "bshe")])
        update(w["qkv"], s.einsum("dwqkv", "bsd,bshe->dhe", [f["a"], dqkv]))
        da = s.einsum("dnorm1", "bshe,dhe->bsd", [dqkv, w["qkv"]])
        dx = s.einsum("dadd2", "bsd,bsd->bsd", [da, dy])
    limits = () if limit is None else (limit,)
    blocks = s.blocks if limits else [Block(b.name, b.ns, b.nbytes[:, :0], b.key) for b in s.blocks]
    return Problem(tuple(blocks), tuple(s.edges), limits)


SIZES = {"b": 64, "s": 2048, "t": 2048, "d": 4096, "h": 32, "e": 128, "f": 16384}
SQUARE = Mesh("mesh", tuple(f"sim:{k}" for k in range(64)), (8, 8))
SQUARE_LINKS = Links.islands([8] * 8, (3000, 200e9), (8000, 25e9))
LARGE = Mesh("mesh", tuple(f"sim:{k}" for k in range(1000)), (125, 8))
LARGE_LINKS = Links.islands([8] * 125, (3000, 200e9), (8000, 25e9))


def planned(
    name: str, layers: int, mesh: Mesh, links: Links, sizes: dict[str, int], limit: int | None
) -> str:
    """A row of the table: blocks, decisions, seconds, the gap."""
    began = time.process_time()
    p = gpt(layers, mesh, links, sizes, limit)
    built = time.process_time()
    choice: Choice = solve_alike(p)
    done = time.process_time()
    row = f"{name:32} {layers:4} {len(p.blocks):6} {max(classes(p)) + 1:6} {built - began:8.2f} {done - built:8.2f}"
    used = f"{choice.nbytes[0] / 2**30:8.1f}" if limit else " " * 8
    return f"{row} {choice.ns / 1e6:10.1f} {used} {100 * choice.gap:8.4f} %"


def rows(layers: Sequence[int]) -> Iterator[str]:
    """The table."""
    names = f"{'':32} {'deep':>4} {'blocks':>6} {'free':>6} {'tables s':>8} {'choice s':>8}"
    yield f"{names} {'step ms':>10} {'GiB':>8} {'gap':>8}"
    for n in layers:
        yield planned("GPT, 8 x 8", n, SQUARE, SQUARE_LINKS, SIZES, None)
    for limit in (160, 80, 40):
        yield planned(f"GPT, 8 x 8, {limit} GiB", 32, SQUARE, SQUARE_LINKS, SIZES, limit << 30)
    yield planned("GPT, 125 x 8", 32, LARGE, LARGE_LINKS, SIZES | {"b": 1000}, None)


def stored(*shape: int) -> weft.Tensor:
    """A leaf without data, whose device is the mesh."""
    return wrap(Value(buffer(shape, float32, "cpu:0", object())))


def transformer(x: weft.Tensor, w: Sequence[weft.Tensor], heads: int = 8) -> weft.Tensor:
    """A layer of a transformer, with normalization first."""
    b, s, d = x.shape
    a = F.layer_norm(x, (d,))
    q, k, v = ((a @ m).reshape(b, s, heads, d // heads).transpose(1, 2) for m in w[:3])
    p = (q @ k.transpose(-1, -2) * (d // heads) ** -0.5).softmax(-1)
    y = x + (p @ v).transpose(1, 2).reshape(b, s, d) @ w[3]
    return y + F.gelu(F.layer_norm(y, (d,)) @ w[4]) @ w[5]


def training_graph(layers: int, batch: int) -> tuple[list[Node], list[tuple[Node, Node]]]:
    """A training step of a transformer: loss and new weights, and which weight each of these replaces."""
    d = 512
    x, weights = stored(batch, 512, d), list[weft.Tensor]()
    for _ in range(layers):
        w = [stored(*shape).requires_grad_() for shape in (*[(d, d)] * 4, (d, 4 * d), (4 * d, d))]
        x = transformer(x, w)
        weights += w
    loss = x.square().mean()
    loss.backward()
    new = [w.detach() - 0.1 * w.grad for w in weights]
    made = expand_calls([t.value.node for t in (loss, *new, *weights)])
    nodes = made[: 1 + len(new)]
    return nodes, list(zip(nodes[1:], made[1 + len(new) :], strict=True))


def chosen(name: str, layers: int, grid: tuple[int, int], links: Links, batch: int) -> str:
    """A row about layouts of a real graph: a training step of a transformer, regions and all."""
    nodes, updates = training_graph(layers, batch)
    count = grid[0] * grid[1]
    mesh = Mesh("cpu:0", tuple(f"sim:{k}" for k in range(count)), grid)
    began = time.process_time()
    found = choose(nodes, mesh, [Rates(100e12, 2e12, LAUNCH_NS)] * count, links, updates=updates)
    seconds = time.process_time() - began
    counts = f"{len(toposort(nodes))} nodes, {len(found.layouts)} cuts"
    return f"{name:32} {layers:4} {counts}: {seconds:.2f} s, gap {100 * found.choice.gap:.4f} %"


def networks() -> Iterator[str]:
    """Rows about real graphs."""
    for layers in (4, 32):
        yield chosen("graph, 8 x 8", layers, (8, 8), SQUARE_LINKS, 64)
    yield chosen("graph, 125 x 8", 4, (125, 8), LARGE_LINKS, 1000)


def random_problem(rng: np.random.Generator, pools: int) -> Problem:
    """A connected graph of 5 to 40 blocks; options with less memory take more time."""
    count = int(rng.integers(5, 41))
    sizes = rng.integers(2, 9, count)
    blocks: list[Block] = []
    for k, n in enumerate(sizes):
        nbytes = rng.integers(0, 100, (n, pools))
        slow = 2000 / (nbytes[:, 0] + 20) if pools else 0
        blocks.append(Block(f"b{k}", slow + rng.uniform(0, 60, n), nbytes))
    ends = [(int(rng.integers(max(0, j - 4), j)), j) for j in range(1, count)]
    ends += [tuple(rng.choice(count, 2, replace=False).tolist()) for _ in range(int(rng.integers(0, count)))]
    edges = tuple(Edge(i, j, rng.uniform(0, 60, (sizes[i], sizes[j]))) for i, j in ends)
    tight = rng.uniform(0.05, 0.9)
    least, mean = (sum(f(b.nbytes) for b in blocks) for f in (lambda n: n.min(0), lambda n: n.mean(0)))
    return Problem(tuple(blocks), edges, tuple(int(x) for x in (1 - tight) * least + tight * mean))


def graphs(count: int) -> Iterator[str]:
    """How near to the optimum the choices of random problems are, by their certificates."""
    rng = np.random.default_rng(0)
    gaps: list[float] = []
    began = time.process_time()
    for k in range(count):
        gaps.append(solve(random_problem(rng, k % 2)).gap)
    seconds = (time.process_time() - began) / count
    exact = sum(g < 1e-6 for g in gaps)
    worst = f"{100 * max(gaps):.3f} %"
    yield f"random graphs: {exact} of {count} proved the best, gap at most {worst}, {seconds:.3f} s each"


def random_tasks(rng: np.random.Generator, devices: int, sent: float) -> list[Task]:
    """A DAG of 20 to 60 tasks on unequal devices; messages take `sent` times as long as tasks."""
    count, speed = int(rng.integers(20, 61)), rng.uniform(1, 3, devices)
    tasks: list[Task] = []
    for k in range(count):
        ns = rng.uniform(10, 100) * speed * rng.uniform(0.75, 1.25, devices)
        inputs = rng.integers(max(0, k - 12), k, rng.integers(1, 4)).tolist() if k > 3 else []
        tasks.append(
            Task(f"t{k}", tuple(ns.tolist()), tuple(inputs), int(sent * 100 * rng.uniform(0.2, 1.8)))
        )
    return tasks


SENT = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""How many times as long as tasks messages take."""


def ahead(sent: float, count: int) -> list[float]:
    """The parts of the time of HEFT, or PEFT if that is shorter, that schedules of random DAGs save."""
    rng, found = np.random.default_rng(0), list[float]()
    for _ in range(count):
        devices = int(rng.integers(2, 7))
        tasks, machine = random_tasks(rng, devices, sent), Machine(Links.uniform(devices, 1, 1e9))
        rivals = [s.ns for s in (heft(tasks, machine), peft(tasks, machine)) if s is not None]
        found.append(1 - schedule(tasks, machine).ns / min(rivals))
    return found


def orders(count: int) -> Iterator[str]:
    """How much shorter schedules are than those of HEFT and PEFT, where messages are short and where they are long."""
    for sent in SENT:
        found = ahead(sent, count)
        mean, least = 100 * np.mean(found), 100 * min(found)
        yield f"orders, messages {sent:4} x tasks: {mean:5.1f} % ahead, at least {least:.1f} %"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", default="12,32,96")
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--orders", type=int, default=20)
    given = parser.parse_args()
    for line in itertools.chain(
        rows([int(n) for n in given.layers.split(",")]),
        networks(),
        graphs(given.graphs),
        orders(given.orders),
    ):
        print(line, flush=True)
