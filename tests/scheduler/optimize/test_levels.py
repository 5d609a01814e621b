"""No kernel adds many float terms one after the other, whatever rule made its schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

import weft
from weft import Tensor, nn
from weft.autograd.value import Value
from weft.backends.cuda.matrix import units
from weft.backends.llvm import scalar
from weft.backends.protocol import DeviceInfo
from weft.core.args.handle import wrap
from weft.ir import graph
from weft.ir.expr import Load
from weft.ir.kernel.algorithm import Algorithm, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.transforms.base import Refusal, run
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split import Split
from weft.ir.loops import LoopKind
from weft.ir.ops import ELEMENTWISE, Op
from weft.scheduler.generalize import generalize
from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.kernelize.kernels import kernelize_all, kernels
from weft.scheduler.optimize import levels
from weft.scheduler.optimize.levels import BLOCK_PRODUCT_CHAIN, PRODUCT_CHAIN, SUM_CHAIN
from weft.scheduler.optimize.rule import Chosen
from weft.scheduler.optimize.rules import schedule
from weft.testing.chains import chains
from weft.testing.kernels import axis, matmul, total

F = weft.nn.functional
M = 1_000_000


def described(vector_bytes: int, cores: int, task_kind: LoopKind = LoopKind.PARALLEL) -> DeviceInfo:
    return DeviceInfo(
        name="test:0", kind="test", description="", cores=cores, vector_bytes=vector_bytes, vector_registers=32,
        l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, memory_bytes=1 << 37, local_bytes=64 << 10,
        bandwidth=4e10, flops=2e11, launch_ns=20.0, task_kind=task_kind, native=ELEMENTWISE & scalar.NATIVE,
    )  # fmt: skip


DESCRIPTIONS = {
    "avx512, 2 cores": described(64, 2),
    "avx2, 16 cores": described(32, 16),
    "scalar": described(4, 1),
    "threads": described(16, 16, LoopKind.BLOCK),
    "matrix units": replace(
        described(16, 132, LoopKind.BLOCK), warp=32, shuffles=True, matrix_units=units((9, 0)), local_bytes=227 << 10
    ),
    "no scratchpad": replace(described(16, 16, LoopKind.BLOCK), scratchpad=False),
}  # fmt: skip


def leaf(*shape: int, dtype: weft.DType = weft.float32) -> Tensor:
    """A tensor of which nothing but the shape exists."""
    return wrap(Value(graph.buffer(shape, dtype, "cpu:0", object())))


def gradients(f: Callable[..., Tensor], *shapes: tuple[int, ...]) -> list[Tensor]:
    given = [leaf(*s).requires_grad_() for s in shapes]
    out = f(*given)
    (out * out).sum().backward()
    return [out, *(x.grad for x in given if x.grad is not None)]


def trained(layer: nn.Module, *shape: int) -> list[Tensor]:
    x = leaf(*shape).requires_grad_()
    out = layer(x)
    (out * out).sum().backward()
    return [x.grad, *(p.grad for p in layer.parameters())]


def attention(t: int, rows: int) -> list[Tensor]:
    return [F.scaled_dot_product_attention(leaf(1, 2, rows, 32), leaf(1, 2, t, 32), leaf(1, 2, t, 32))]


N = weft.Variable("n", 1, M)

GRAPHS: dict[str, Callable[[], Sequence[Tensor]]] = {
    "var of columns": lambda: [leaf(M, 8).var(0)],
    "var of rows": lambda: [leaf(8, M).var(1)],
    "var of all": lambda: [leaf(3 * M + 1).var()],
    "var over two axes": lambda: [leaf(300, 7, 3001).var((0, 2))],
    "var of short axes": lambda: [leaf(30, 40, 50, 61).var((0, 2)), leaf(17, 131, 257).var(1)],
    "sums over several": lambda: [leaf(M, 3, 5).sum((0, 2)), leaf(1009, 2, 1000, 2).sum((1, 3, 0))],
    "float16": lambda: [leaf(M, 8, dtype=weft.float16).std(0)],
    "logsumexp": lambda: [leaf(100_000, 64).logsumexp(0)],
    "nested": lambda: [(leaf(1000, 1000) * leaf(1000, 1000).sum(0)).sum()],
    "softmax down": lambda: [leaf(50_000, 7).softmax(0), leaf(4, 3000, 70).log_softmax(1)],
    "softmax": lambda: gradients(lambda x: x.softmax(-1), (100, 50_000)),
    "batch norm": lambda: trained(nn.BatchNorm1d(8), M, 8),
    "group norm": lambda: trained(nn.GroupNorm(2, 8), 4, 8, 300, 300),
    "layer norm": lambda: trained(nn.LayerNorm(64), M, 64),
    "linear": lambda: trained(nn.Linear(2, 3), M, 2),
    "convolution": lambda: trained(nn.Conv2d(3, 16, 3, padding=1), 64, 3, 64, 64),
    "depthwise": lambda: trained(nn.Conv2d(16, 16, 3, padding=1, groups=16), 64, 16, 64, 64),
    "long products": lambda: [leaf(M, 64).T @ leaf(M, 64), leaf(5, M) @ leaf(7, M).T],
    "one vector": lambda: [leaf(10, M) @ leaf(M), leaf(M) @ leaf(M, 10), leaf(M) @ leaf(M)],
    "einsum": lambda: [weft.einsum("abc,abd->cd", leaf(1000, 1000, 4), leaf(1000, 1000, 5))],
    "attention": lambda: attention(100_000, 16),
    "attention of one": lambda: attention(100_000, 1),
    "pooling": lambda: [F.avg_pool2d(leaf(1, 3, 600, 600), 300)],
    "runtime length": lambda: [leaf(M, 8)[:N].sum(0), leaf(M)[:N].sum(), (leaf(M, 8)[:N] - leaf(8)).exp().sum(0)],
}  # fmt: skip


def longest(tensors: Sequence[Tensor], info: DeviceInfo, by: Callable[..., object] = schedule) -> list[str]:
    """The accumulators of the tensors' kernels that add more terms in sequence than is promised."""
    found: list[str] = []
    specs = kernels(kernelize_all([t.value.node for t in tensors], NO_LIMIT))
    blocks = info.task_kind is LoopKind.BLOCK
    for g in dict.fromkeys(g.algorithm for g in generalize([s.algorithm for s in specs])):
        for c in chains(lower(by(g, info))):
            limit = (BLOCK_PRODUCT_CHAIN if blocks else PRODUCT_CHAIN) if c.products else 2 * SUM_CHAIN
            if c.length > limit and not c.memory and not (blocks and g.name.startswith("product_max")):
                found.append(f"{g.name}: {c}")
    return found


@pytest.mark.parametrize("device", DESCRIPTIONS)
def test_no_long_chains(device: str) -> None:
    for name, graphs in GRAPHS.items():
        assert not longest(graphs(), DESCRIPTIONS[device]), name


def test_no_long_chains_in_random_reductions() -> None:
    r = Random(0)
    for _ in range(40):
        shape = [r.choice((1, 3, 7, 64, 129, 1000, 4099)) for _ in range(r.randint(1, 4))]
        over = tuple(sorted(r.sample(range(len(shape)), r.randint(1, len(shape)))))
        x = leaf(*shape)
        y = leaf(*(n if r.random() < 0.5 else 1 for n in shape))
        e = r.choice(
            (x, x * y, (x - x.mean(over, keepdim=True)).square(), (x - x.amax(over, keepdim=True)).exp())
        )
        for name, info in DESCRIPTIONS.items():
            assert not longest([e.sum(over)], info), (name, shape, over)


def bounded(algorithm: Algorithm, info: DeviceInfo) -> Kernel:
    """Plain loops, with long sums in levels."""
    made = levels.RULE.schedule(initial(algorithm), info)
    return made.kernel if isinstance(made, Chosen) else initial(algorithm)


def test_any_schedule_can_be_bounded() -> None:
    """The last step needs no help of the rules before it: schedules of plain loops are bounded just as well."""
    info = DESCRIPTIONS["scalar"]
    for name in ("var of columns", "var over two axes", "softmax down", "runtime length"):
        assert longest(GRAPHS[name](), info, lambda a, _: initial(a)), name
        assert not longest(GRAPHS[name](), info, bounded), name


def test_as_accurate_as_pairwise() -> None:
    """Beside sums in float64: with additions one after the other, the errors would be from 1e-5 to 2e-2."""
    a = np.random.default_rng(0).random((400_000, 8), dtype=np.float32)
    exact, x = a.astype(np.float64), weft.tensor(a)
    scores, ones = a[:, 0] * 4, np.ones(1 << 25, np.float32)
    weights = np.exp(scores.astype(np.float64))
    cases = {
        "var": (x.var(0), exact.var(0, ddof=1)),
        "logsumexp": (x.logsumexp(0), np.log(np.exp(exact).sum(0))),
        "norm": (x.norm(dim=0), np.sqrt((exact**2).sum(0))),
        "softmax": (x.softmax(0) * 1e5, np.exp(exact) / np.exp(exact).sum(0) * 1e5),
        "products": (x.T @ x, exact.T @ exact),
        "attention": (
            F.scaled_dot_product_attention(
                weft.ones(1, 1, 16, 1), weft.tensor(scores.reshape(1, 1, -1, 1)), x.reshape(1, 1, -1, 8), scale=1.0
            )[0, 0, 3],
            (weights[:, None] * exact).sum(0) / weights.sum(),
        ),
        "ones": (weft.tensor(ones).sum(), np.float64(1 << 25)),
        "counts": (weft.histc(weft.tensor(ones), 1, 0, 2), np.float64(1 << 25)),
    }  # fmt: skip
    for name, (got, want) in cases.items():
        wrong = np.abs(got.numpy() / want - 1).max()
        assert wrong < 6e-7, (name, wrong)


def test_only_loops_that_reduce_count() -> None:
    """16 * 8 additions in sequence for each of many rows are left as they are."""
    k = run(initial(total(M, 128, "j").algorithm), Split("j", 8), Permute("s", ("jo", "i", "ji")))
    assert isinstance(levels.recognise(k, DESCRIPTIONS["avx2, 16 cores"]), Refusal)


@pytest.mark.parametrize(
    ("sizes", "steps", "is_long"),
    [
        ((2 * SUM_CHAIN,), 1, False),
        ((2 * SUM_CHAIN + 1,), 1, True),
        ((SUM_CHAIN,), 2, False),
        ((2, SUM_CHAIN), 2, True),
    ],
)
def test_twice_a_chain_is_left_as_it_is(sizes: Sequence[int], steps: int, is_long: bool) -> None:
    assert levels.long(tuple([axis(f"n{k}", n) for k, n in enumerate(sizes)]), steps) is is_long


@pytest.mark.parametrize(
    ("sizes", "steps", "own", "parts"),
    [
        ((300, 32), 32, (150,), (2, 32)),  # two of 32 steps each are as many as a chain
        ((301, 64), 64, (301,), (64,)),  # no divisor of 301 is: a part for each
        ((4, 64), 128, (4,), (64,)),
        ((3, 5, 64), 32, (3, 5), (64,)),
    ],
)
def test_a_sum_over_one_axis_is_set_apart_with_as_much_as_makes_no_long_chain(
    sizes: tuple[int, ...], steps: int, own: tuple[int, ...], parts: tuple[int, ...]
) -> None:
    k = initial(summed_over(*sizes))
    k, part, at = levels.apart(k, "s", f"n{len(sizes) - 1}", steps)
    assert part != "s"
    assert tuple(a.extent for a in levels.summed(k, "s")) == own
    assert tuple(a.extent for a in levels.summed(k, part)) == parts
    assert next(a.extent for a in levels.summed(k, part) if a.var.name == at) == sizes[-1]


def test_a_short_sum_stays_whole() -> None:
    k = initial(summed_over(2, 64))
    assert levels.apart(k, "s", "n1", 64) == (k, "s", "n1")


def summed_over(*sizes: int) -> Algorithm:
    """The sum of an array over all of its axes."""
    axes = tuple([axis(f"n{k}", n) for k, n in enumerate(sizes)])
    s = ItemValue("s", (), Load(weft.float32, "a", tuple([a.var for a in axes])), Reduce(Op.ADD, axes))
    out = Output("out", (), (StoreTo("r", (), Load(weft.float32, "s", ())),))
    return Algorithm(
        "sum", (Param("a", weft.float32, sizes), Param("r", weft.float32, (), True)), (), (s, out)
    )


def test_sums_of_integers_and_greatest_elements_are_not_set_aside() -> None:
    for x in (leaf(M, dtype=weft.int32).sum(dtype=weft.int32), leaf(M).amax()):
        (spec,) = kernels(kernelize_all([x.value.node], NO_LIMIT))
        assert isinstance(levels.recognise(initial(spec.algorithm), DESCRIPTIONS["scalar"]), Refusal)


def test_products_with_reuse_may_be_longer() -> None:
    product, plain = matmul(8, 8, 8).algorithm.items[0], total(8, 32, "j").algorithm.items[0]
    assert isinstance(product, ItemValue) and isinstance(plain, ItemValue)
    cores, blocks = DESCRIPTIONS["scalar"], DESCRIPTIONS["threads"]
    assert levels.most(product, cores) == (PRODUCT_CHAIN, PRODUCT_CHAIN // 2)
    assert levels.most(product, blocks) == (BLOCK_PRODUCT_CHAIN, PRODUCT_CHAIN // 2)
    assert levels.most(plain, cores) == levels.most(plain, blocks) == (2 * SUM_CHAIN, SUM_CHAIN)
