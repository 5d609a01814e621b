"""Basic plans: pieces of a graph, their forms, and the kernels that pieces of one form share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.backends.registry import open_device
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, elements
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.ops import Op
from weft.scheduler.assembly import Job
from weft.scheduler.basic import form_kernels, loops, unfold
from weft.scheduler.basic.cut import MAX_CALLS, MAX_POSITIONAL_CALLS, pieces
from weft.scheduler.basic.form import formed
from weft.scheduler.basic.plan import basic, draft
from weft.scheduler.basic.sizes import SizedForm, sized
from weft.scheduler.realize import memory_on
from weft.scheduler.signature import signature, snapshot
from weft.testing.reference import evaluate
from weft.testing.tolerance import allowed, difference


@pytest.fixture(autouse=True)
def no_forms() -> Iterator[None]:
    form_kernels._forms.clear()
    yield
    form_kernels._forms.clear()


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def leaf(*shape: int) -> Tensor:
    return weft.tensor(array(*shape)).realize()


def job_of(*tensors: Tensor) -> Job:
    own = snapshot(signature([t.value.node for t in tensors]))
    return Job(tuple(expand_calls(own.outputs)), own.leaves, (), {})


def ops(*tensors: Tensor) -> list[Op]:
    """The ops of the graph's pieces."""
    found = pieces(job_of(*tensors).outputs)
    assert found is not None
    return [p.root.op for p in found.pieces]


def algorithms(t: Tensor) -> list[Algorithm]:
    """What is to be compiled for the tensor's basic plan."""
    made = basic(job_of(t), open_device("cpu:0"))
    assert made is not None
    return made.algorithms


def value(t: Tensor) -> np.ndarray:
    """The tensor by its basic plan."""
    node: Node = t.value.node
    sig, device = signature([node]), open_device("cpu:0")
    own = snapshot(sig)
    made = basic(Job(own.outputs, own.leaves, (), {}), device)
    assert made is not None
    plan = made.plan(device)[0].plan({})
    (out,) = plan.run([memory_on(n, s, device) for n, s in zip(sig.leaves, sig.storages, strict=True)])
    return out.numpy()


def test_what_is_read_several_times_or_at_other_axes_is_a_piece() -> None:
    x, w = leaf(4, 8), leaf(8, 3)
    assert ops((x + 1).exp()) == [Op.EXP]
    y = x.cos()
    assert ops(y.exp(), y.sin()) == [Op.COS, Op.EXP, Op.SIN]
    assert ops(y.exp() * y.sin()) == [Op.MUL]
    assert ops(y, y.exp()) == [Op.COS, Op.EXP]
    assert ops(x.T + 1) == [Op.ADD]
    assert ops((x + 1).T + 1) == [Op.ADD, Op.ADD]
    assert ops(x * (x.sum(1, keepdim=True) + 1)) == [Op.SUM, Op.ADD, Op.MUL]
    assert ops(x @ w) == [Op.SUM]
    assert ops((x + 1) @ w) == [Op.ADD, Op.SUM]
    assert ops((x * x).sum(1)) == [Op.SUM]


def test_what_numbers_and_statistics_make_of_one_tensor_is_computed_again() -> None:
    """Rather than stored, where several pieces read it: they read the tensor in its place."""
    x, z, w = leaf(4, 16), leaf(4, 16), leaf(16, 3)
    for y in (x + 1, 2 * x, -x, x - x.mean(1, keepdim=True), x * z[:, :1]):
        before = ops(y)[:-1]
        assert ops(y.exp(), y.sin()) == [*before, Op.EXP, Op.SIN]
        assert ops(y, y.exp()) == [*ops(y), Op.EXP], "a result is stored"
        assert ops(y @ w, y.sin())[-3] is ops(y)[-1], "and what a product reads"
    for y in (x + z, x.exp(), x * leaf(4, 4).repeat(1, 4)):
        assert ops(y.exp(), y.sin()) == [*ops(y), Op.EXP, Op.SIN]
    z = x.cos()
    y = z * 2
    assert ops(y.exp(), y.sin()) == [Op.COS, Op.EXP, Op.SIN]
    y = x * 2 - 1  # the last of several: what it is computed from is stored
    assert ops(y.exp(), y.sin()) == [Op.MUL, Op.EXP, Op.SIN]


def test_pieces_do_not_get_long_by_what_they_compute_again() -> None:
    x = leaf(4, 8)
    y = x * 3
    chains = [y, y]
    for _ in range(MAX_CALLS - 1):
        chains = [chains[0].sin(), chains[1].cos()]
    assert ops(*chains) == [Op.SIN, Op.COS]
    assert ops(*(c.exp() for c in chains)) == [Op.MUL, Op.EXP, Op.EXP]


def test_a_chain_is_cut_where_it_gets_long() -> None:
    x = leaf(4, 8)
    for _ in range(3 * MAX_CALLS):
        x = x.sin()
    assert ops(x) == [Op.SIN] * 3
    y = leaf(4, 8)
    for _ in range(20):
        y = y * y  # a tree of a million leaves, were it one
    found = pieces(job_of(y).outputs)
    assert found is not None and len(found.pieces) > 4
    np.testing.assert_array_equal(value(leaf(4, 8).sin().sin().cos()), leaf(4, 8).sin().sin().cos().numpy())


def test_convolutions_of_slices_read_copies() -> None:
    x, w = leaf(1, 8, 12), leaf(3, 2, 3)

    def sliced(start: int) -> list[Algorithm]:
        return algorithms(F.conv1d(x[:, start : start + 2], w))

    assert ops(F.conv1d(x[:, 2:4], w)) == [Op.SHRINK, Op.SUM]
    assert ops(F.conv1d(x[:, :2].relu(), w)) == [Op.WHERE, Op.SUM]
    assert sliced(2) == sliced(5)
    np.testing.assert_allclose(
        value(F.conv1d(x[:, 2:4], w)), F.conv1d(x[:, 2:4], w).numpy(), rtol=1e-5, atol=1e-6
    )


def test_convolutions_are_products_of_windows_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    def convolved(n: int, c: int, o: int, size: int) -> Tensor:
        return F.conv2d(leaf(n, c, size, size), leaf(o, c, 3, 3), padding=1)

    def is_copied(t: Tensor) -> bool:
        found = draft(job_of(t))
        assert found is not None
        return [p.root.op for p in found.cut.pieces] == [Op.CONTIGUOUS, Op.SUM]

    assert is_copied(convolved(2, 3, 4, 6))
    assert algorithms(convolved(2, 3, 4, 6)) == algorithms(convolved(3, 5, 7, 7))
    monkeypatch.setattr(unfold, "MOST_BYTES", 2 * 9 * 3 * 36 * 4 - 1)
    assert not is_copied(convolved(2, 3, 4, 6))


CONVOLUTIONS = (
    # images, channels, results, size, window, stride, padding, groups, dilation
    (2, 8, 6, 9, 3, 1, 1, 1, 1), (2, 8, 6, 9, 3, 2, 1, 2, 1), (2, 8, 6, 9, 3, 1, 2, 1, 2), (1, 8, 6, 9, 3, 1, 1, 1, 1),
    (2, 8, 1, 9, 3, 1, 1, 1, 1), (2, 1, 6, 9, 3, 1, 1, 1, 1), (2, 8, 6, 9, 2, 3, 0, 1, 1), (2, 8, 6, 5, 5, 1, 2, 1, 1),
    (4, 16, 12, 1, 3, 1, 1, 1, 1), (2, 16, 12, 2, 3, 1, 1, 4, 1), (1, 3, 8, 20, 7, 2, 3, 1, 1),
    (2, 6, 6, 7, 3, 1, 1, 6, 1), (3, 4, 5, 4, 1, 1, 0, 1, 1), (1, 1, 1, 3, 3, 1, 0, 1, 1),
)  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_and_their_gradients_are_right(case: tuple[int, ...]) -> None:
    n, c, o, size, window, stride, padding, groups, dilation = case
    x, w = leaf(n, c, size, size).requires_grad_(), leaf(o, c // groups, window, window).requires_grad_()
    y = F.conv2d(x, w, stride=stride, padding=padding, groups=groups, dilation=dilation)
    grads = [g for g in weft.autograd.grad((y * leaf(*y.shape)).sum(), [x, w]) if g is not None]
    for t in (y.detach(), *grads):
        want = t.value.node
        expected, bound = evaluate([want])[0], allowed([want])[0]
        wrong = difference(value(t), expected, bound)
        assert wrong is None, wrong


def test_products_of_slices_and_of_padded_tensors_read_copies() -> None:
    x, w = leaf(2, 5, 12), leaf(4, 3)
    assert ops(x[..., 4:8] @ w) == [Op.SHRINK, Op.SUM]
    assert ops(x[..., 4:8].transpose(0, 1) @ w) == [Op.SHRINK, Op.SUM]
    assert ops(F.pad(x, (0, 4)).reshape(2, 5, 4, 4) @ w) == [Op.PAD, Op.SUM]
    (_, product), (_, other) = algorithms(x[..., 4:8] @ w), algorithms(leaf(9, 8)[:, :6] @ leaf(6, 7))
    assert product == other == algorithms(leaf(3, 4) @ w)[0]
    np.testing.assert_allclose(value(x[..., 4:8] @ w), (x[..., 4:8] @ w).numpy(), rtol=1e-5, atol=1e-6)


FLAT: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "a slice": lambda: (leaf(6, 20)[:, 4:8].clone(), leaf(2, 3, 5, 4)[:, :, 1:2].clone()),
    "a slice of the first axis": lambda: (leaf(20)[3:6].clone(), leaf(8, 4, 3, 5)[3:6].clone()),
    "slices of two axes": lambda: (leaf(9, 20)[2:5, 4:8].exp(), leaf(8, 4, 6, 5)[3:6, :, 2:4].exp()),
    "steps": lambda: (leaf(6, 20, 4)[:, 4:8:2].exp(), leaf(2, 3, 9, 4, 5)[:, :, 1:9:2].exp()),
    "padding": lambda: (F.pad(leaf(6, 70), (10, 12)), F.pad(leaf(2, 3, 5, 2, 2), (0, 0, 0, 0, 3, 5))),
    "a flip": lambda: (leaf(6, 7).flip(1), leaf(2, 3, 7).flip(2)),
    "ends": lambda: (weft.cat([leaf(6, 8), leaf(3, 8)]), weft.cat([leaf(2, 3, 4), leaf(5, 3, 4)])),
    "reshaped before": lambda: (leaf(6, 20)[:, 4:8].exp(), leaf(10, 12).reshape(6, 20)[:, 4:8].exp()),
    "reshaped after": lambda: (leaf(6, 20)[:, 4:8].exp(), leaf(6, 20)[:, 4:8].exp().reshape(2, 12)),
    "a number": lambda: (leaf(6, 20)[:, 4:8] * 0.3, leaf(2, 3, 5, 4)[:, :, 1:2] * 0.7),
}


@pytest.mark.parametrize("case", FLAT)
def test_what_moves_along_one_axis_has_the_form_of_all_ranks(case: str) -> None:
    one, other = FLAT[case]()
    assert algorithms(one) == algorithms(other)
    for t in (one, other):
        np.testing.assert_array_equal(value(t), t.numpy())


def test_operands_whose_order_does_not_matter_are_in_one() -> None:
    x, y, row = leaf(4, 6), leaf(4, 6), leaf(6)
    assert algorithms(x * row) == algorithms(row * x)
    assert algorithms(x * 0.3 + y.exp() * row) == algorithms(row * y.exp() + x * 0.3)
    assert algorithms(x.T @ y) == algorithms(y.T @ x)
    assert algorithms((row @ x.T).reshape(2, 2)) == algorithms((x @ row).reshape(2, 2))
    assert algorithms(x - row) != algorithms(row - x)
    t = row * y.exp() + x * 0.3
    np.testing.assert_allclose(value(t), t.numpy(), rtol=1e-6)
    t = 0.7 - x * 0.3 + row * (0.4 * y - x)  # only now: what is read takes along what is pending beside it
    np.testing.assert_allclose(value(t), t.numpy(), rtol=1e-6)


def test_what_follows_from_positions_alone_is_computed_where_it_is_read() -> None:
    """A mask of windows was stored once for each tap, and read by gathers."""
    x, y, n = leaf(8, 8), leaf(8, 8), weft.arange(8)
    mask = (n[:, None] >= n) & (n % 3 != 1)
    assert ops(x.where(mask, 0.0).sin().sum(0), y.where(mask, 1.0) @ x) == [Op.SUM, Op.WHERE, Op.SUM]
    assert ops(x.where(mask, 0.0), mask.float().sum(0)) == [Op.WHERE, Op.SUM]
    assert ops(mask) == [Op.AND]
    long = n.float()
    for _ in range(2 * MAX_POSITIONAL_CALLS):
        long = long.sin()
    assert ops(x + long, y + long) == [Op.SIN, Op.ADD, Op.ADD]
    np.testing.assert_array_equal(value(x.where(mask, 0.0).sum(0)), x.where(mask, 0.0).sum(0).numpy())
    np.testing.assert_array_equal(value(mask), mask.numpy())


@pytest.mark.parametrize("shape", [(3, 500), (5, 64), (40, 33), (3, 16), (2, 1100)])
@pytest.mark.parametrize("dtype", [weft.float32, weft.int32])
def test_running_sums_store_nothing_larger_than_blocks(shape: tuple[int, int], dtype: weft.dtype) -> None:
    """What is padded has no form with the reshape of it: all terms of all sums were stored, 32 for each element."""
    x = leaf(*shape).mul(9).to(dtype).realize()
    t = x.cumsum(1)
    made = basic(job_of(t), open_device("cpu:0"))
    assert made is not None
    blocks = shape[0] * -(-shape[1] // 32) * 32
    for k in made.kernels:
        assert all(elements(n.shape) <= blocks for n in k.spec.writes)
    np.testing.assert_allclose(value(t), np.cumsum(x.numpy(), 1, x.numpy().dtype), rtol=2e-5, atol=1e-4)


def test_blocks_of_running_sums_are_part_of_their_form() -> None:
    """With known rows each element is read once for all sums of a row; other sizes are no part of a form."""

    def kept(t: Tensor) -> list[tuple[int, ...]]:
        cut = pieces(job_of(t).outputs)
        assert cut is not None
        found = [formed(p, "cpu:0") for p in cut.pieces]
        return [f.form.kept for f in found if f is not None and f.form.kept]

    assert kept(leaf(5, 32).cumsum(1)) == kept(leaf(9, 32).cumsum(1)) == [(0, 32, 32)]
    assert not kept(leaf(5, 30).cumsum(1)) and not kept(leaf(5, 32).tril()) and not kept(leaf(5, 32).sum(1))
    assert not kept(leaf(5, 32).argmax(1))
    masked = leaf(2, 32, 32).where(weft.ones(32, 32, dtype=weft.bool).tril(), -1.0)
    assert not kept(masked.amax(2)), "its elements are others for each result"
    assert algorithms(leaf(5, 32).cumsum(1)) == algorithms(leaf(9, 32).cumsum(1))


def test_a_result_that_moves_is_a_piece() -> None:
    assert ops(leaf(4, 8).T) == [Op.PERMUTE]


def test_a_result_that_is_a_reshape_is_computed_where_it_is_wanted() -> None:
    y = leaf(2, 3, 4).exp()
    assert ops(y.reshape(6, 4)) == [Op.EXP]
    assert ops(y.reshape(6, 4), y) == [Op.EXP, Op.RESHAPE]
    np.testing.assert_allclose(value((y + 1).reshape(24)), np.exp(array(2, 3, 4)).ravel() + 1, rtol=1e-6)


def test_a_reshape_that_joins_permuted_axes_reads_a_copy() -> None:
    x = leaf(2, 3, 4)
    assert ops(x.permute(1, 0, 2).reshape(6, 4).exp()) == [Op.PERMUTE, Op.EXP]
    assert ops(x.reshape(6, 4).exp()) == [Op.EXP]
    assert ops(x.permute(1, 0, 2).reshape(3, 2, 2, 2).exp()) == [Op.EXP]


FORMS: dict[str, tuple[Callable[[], Tensor], tuple[int, ...]]] = {
    "all axes are one": (lambda: leaf(2, 3, 4) + leaf(2, 3, 4), (24,)),
    "a row for all rows": (lambda: leaf(2, 3, 4) * leaf(4), (6, 4)),
    "a number a row": (lambda: leaf(2, 3, 4) * leaf(2, 3, 1), (6, 4)),
    "a transposed operand": (lambda: leaf(3, 4) + leaf(4, 3).T, (3, 4)),
    "a sum over rows": (lambda: leaf(2, 3, 4).sum((0, 1)), (4, 6)),
    "a sum over columns": (lambda: leaf(2, 3, 4).sum((1, 2)), (2, 12)),
    "a product": (lambda: leaf(2, 3, 4) @ leaf(4, 5), (6, 5, 4)),
    "a product of many": (lambda: leaf(2, 3, 4) @ leaf(2, 4, 5), (2, 3, 5, 4)),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMS)
def test_axes_that_lie_side_by_side_are_one(case: str) -> None:
    made, sizes = FORMS[case]
    cut = pieces(job_of(made()).outputs)
    assert cut is not None
    found = formed(cut.pieces[-1], "cpu:0")
    assert found is not None and found.sizes == sizes


@pytest.mark.parametrize(
    "made",
    [
        lambda: leaf(4, 8)[1:] + 1,
        lambda: F.pad(leaf(4, 8), (1, 1)) + 1,
        lambda: leaf(4, 8).flip(0) + 1,
        lambda: weft.diagonal(leaf(4, 4)) + 1,
        lambda: F.conv1d(leaf(1, 2, 8), leaf(3, 2, 3)),
    ],
)
def test_what_reads_elsewhere_has_no_form(made: Callable[[], Tensor]) -> None:
    cut = pieces(job_of(made()).outputs)
    assert cut is not None and formed(cut.pieces[-1], "cpu:0") is None


def test_graphs_of_other_sizes_and_ranks_share_kernels() -> None:
    def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return (x @ w + b).relu().softmax(-1)

    found = [
        algorithms(model(*args))
        for args in (
            (leaf(9, 5), leaf(5, 7), leaf(7)),
            (leaf(33, 17), leaf(17, 12), leaf(12)),
            (leaf(2, 3, 8), leaf(8, 6), leaf(6)),
        )
    ]
    assert found[0] == found[1] == found[2] and len(found[0]) == 6


def _picked(n: int, k: int) -> Tensor:
    return leaf(n, 6).gather(1, weft.tensor(np.arange(n * k).reshape(n, k) % 6))


SIZED: dict[str, Callable[[int, int], Tensor]] = {
    "a slice": lambda n, k: leaf(n, 6)[k : n - 1] + 1,
    "a slice under a product": lambda n, k: leaf(n, 20)[:, k : k + 9] @ leaf(9, 5),
    "a column": lambda n, k: leaf(n, 6)[:, k].exp(),
    "few elements of padding": lambda n, k: F.pad(leaf(n, k + 2), (1, 2)) * 2,
    "much padding": lambda n, k: F.pad(leaf(n, 3), (k + 10, 2 * k + 20)) + leaf(n, 3 * k + 33),
    "both ends": lambda n, k: weft.cat([leaf(n, 3), leaf(k + 1, 3)]),
    "flipped": lambda n, k: leaf(n, k + 2).flip(1) + leaf(n, k + 2),
    "picked": _picked,
    "split and joined": lambda n, k: leaf(2 * n, 4 * k).reshape(n, 2, k, 4).permute(0, 2, 1, 3).flip(3) + 1,
    "windows of a pool": lambda n, k: F.avg_pool1d(leaf(1, 2, 2 * n), 2),
    "written": lambda n, k: leaf(n, 6).index_fill(0, weft.tensor(np.arange(k)), 3.0),
}


@pytest.mark.parametrize("case", SIZED)
def test_what_reads_elsewhere_has_a_form_over_its_sizes(case: str) -> None:
    made = SIZED[case]
    assert algorithms(made(9, 2)) == algorithms(made(23, 4))
    for n, k in ((9, 2), (23, 4), (300, 5)):
        np.testing.assert_allclose(value(made(n, k)), made(n, k).numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "made",
    [
        lambda: F.conv1d(leaf(1, 2, 8), leaf(3, 2, 3)),
        lambda: leaf(6, 0).flip(0).sum(1),
        lambda: leaf(6, 4).flip(0)[weft.arange(6).flip(0)],
    ],
)
def test_what_has_no_form_has_kernels_for_its_sizes(made: Callable[[], Tensor]) -> None:
    cut = pieces(job_of(made()).outputs)
    assert cut is not None
    assert any(formed(p, "cpu:0") is None and sized(p, "cpu:0") is None for p in cut.pieces)
    np.testing.assert_allclose(value(made()), made().numpy(), rtol=1e-5, atol=1e-5)


def test_sizes_follow_from_others() -> None:
    def form(t: Tensor) -> tuple[SizedForm, tuple[int, ...]]:
        cut = pieces(job_of(t).outputs)
        assert cut is not None
        found = sized(cut.pieces[-1], "cpu:0")
        assert found is not None
        return found.form, found.sizes

    padded, sizes = form(F.pad(leaf(20, 5), (0, 0, 12, 9)) + leaf(41, 5))
    assert sorted(sizes) == [45, 60, 100]  # 205 is the sum of them
    assert len(padded.variables) == 3
    one, _ = form(leaf(7, 5)[2:] + leaf(5, 5))
    other, sizes = form(leaf(9, 8)[3:] + leaf(6, 8))
    assert one == other and sizes == (72, 48, 24)


def test_a_layer_makes_no_more_forms_than_the_first() -> None:
    x = leaf(6, 8)
    for _ in range(5):
        x = F.layer_norm(F.gelu(x @ leaf(8, 8)), (8,))
        algorithms(x)
    one = len(form_kernels._forms)
    form_kernels._forms.clear()
    y = F.layer_norm(F.gelu(leaf(6, 8) @ leaf(8, 8)), (8,))
    algorithms(y)
    assert one == len(form_kernels._forms)


def test_numbers_are_no_part_of_a_form() -> None:
    x = array(300)
    first = algorithms(leaf(300) * 0.3)
    for c in (0.3, -1.75, 1e-8, -3e38, 1e-40):
        t = leaf(300) * c
        assert algorithms(t) == first
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(value(t), x * np.float32(c))
    assert algorithms(leaf(300) * 0.5) != first  # by which rules simplify


def test_forms_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_kernels, "FORMS_KEPT", 3)
    for k in range(3, 9):
        algorithms(leaf(*[k] * k).permute(*reversed(range(k))) + 1)
    assert len(form_kernels._forms) == 3


def test_sums_of_any_length_keep_to_the_bound_of_additions_in_sequence() -> None:
    for n in (3, 130, 4097, 70_001):
        x = leaf(2, n)
        exact = array(2, n).astype(np.float64).sum(1)
        error = np.abs(value(x.sum(1)) - exact) / np.abs(array(2, n)).sum(1)
        assert (error < 1e-6).all()


def test_a_write_in_place_of_what_is_read_later_copies_it_first() -> None:
    x = leaf(6, 4)
    y = x.exp()
    z = y.clone()
    z[2:4] = 7.0
    want = np.exp(array(6, 4))
    both = want.copy()
    both[2:4] = 7.0
    np.testing.assert_allclose(value(z + y), both + want, rtol=1e-6)


def test_the_pieces_of_a_loop_are_kernels_for_any_number_of_steps() -> None:
    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        now = (carry * 0.5 + x).tanh()
        return now, carry * x

    known = set[Algorithm]()
    for length, width in ((5, 3), (9, 4)):
        last, ys = weft.scan(step, leaf(width), leaf(length, width))
        assert set(ops(last, ys)) == {Op.LOOP}
        made = basic(job_of(last, ys), open_device("cpu:0"))
        assert made is not None and len(made.steps) == 1
        assert not known or known == set(made.algorithms)
        known = set(made.algorithms)
        for t in (last, ys, ys.sum(0), last.reshape(1, -1)):
            np.testing.assert_allclose(value(t), t.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("most", [0, 5, 6])
def test_loops_of_more_steps_than_programs_are_for_have_their_own(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(loops, "MOST_STEPS", most)
    monkeypatch.setattr(loops, "MOST_ROWS", most + 1)
    last, ys = weft.scan(lambda c, x: ((c * 0.5 + x).tanh(), c * x), leaf(3), leaf(6, 3))
    for t in (last, ys):
        np.testing.assert_allclose(value(t), t.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_and_their_gradients_by_basic_plans(reverse: bool) -> None:
    w, x, h = (leaf(*s).requires_grad_() for s in ((4, 4), (6, 2, 4), (2, 4)))

    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def inner(c: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            return c * 0.9 + row, c.sin()

        now = (carry @ w + x).tanh()
        last, rows = weft.scan(inner, now[0], now)
        return now + last, rows * 2

    last, ys = weft.scan(step, h, x, reverse=reverse)
    loss = (ys * ys).sum() + last.sum()
    found = [t for t in (loss, *weft.autograd.grad(loss, [w, x, h])) if t is not None]
    mine = [value(t) for t in found]
    for t, own in zip(found, mine, strict=True):
        np.testing.assert_allclose(own, t.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("of", [
    lambda x: x.sort().values, lambda x: x.sort(descending=True).indices, lambda x: x.topk(3).values,
    lambda x: x.cumsum(0), lambda x: x.cumprod(0), lambda x: x.cummax(0).values, lambda x: x.unique(),
])  # fmt: skip
def test_what_is_sorted_and_summed_up_by_basic_plans(of: Callable[[Tensor], Tensor]) -> None:
    for length in (7, 300, 5000):
        t = of(leaf(length))
        if t.value.node.op is not Op.BUFFER:
            np.testing.assert_allclose(value(t), t.numpy(), rtol=2e-5, atol=1e-5)


def test_recurrent_layers_share_programs_of_all_lengths() -> None:
    known = set[Algorithm]()
    for length in (5, 8):
        layer = nn.LSTM(4, 6, 2, batch_first=True)
        weft.realize(*layer.parameters())
        x = leaf(3, length, 4).requires_grad_()
        y, _ = layer(x)
        grads = weft.autograd.grad((y * y).sum(), [x, *layer.parameters()])
        made = basic(job_of(y, *[g for g in grads if g is not None]), open_device("cpu:0"))
        assert made is not None
        assert not known or known == set(made.algorithms)
        known = set(made.algorithms)
        np.testing.assert_allclose(value(y), y.numpy(), rtol=2e-5, atol=2e-5)
