"""Families: graphs alike but for sizes and numbers, which share a plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.backends import registry
from weft.nn.utils import rnn
from weft.scheduler import families, plan
from weft.scheduler import outline as outlines
from weft.scheduler import realize as realization


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of runtime variables of the plans that were built, in order."""
    found: list[int] = []
    make = realization._from_disk_or_built

    def count(device: Any, sig: Any, replaces: Any) -> Any:
        found.append(len(sig.variables))
        return make(device, sig, replaces)

    monkeypatch.setattr(realization, "_from_disk_or_built", count)
    for table in (realization._plans, families._families, families._met, families._alike):
        table.clear()
    yield found
    for table in (realization._plans, families._families, families._met):
        table.clear()


def array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_the_second_size_gets_a_plan_for_all(built: list[int]) -> None:
    w = array(8, 8)
    for n in (9, 21, 16, 33, 5, 64):
        x = array(n, 8)
        got = (weft.tensor(x) @ weft.tensor(w)).relu().sum(0)
        np.testing.assert_allclose(got.numpy(), np.maximum(x @ w, 0).sum(0), rtol=2e-5, atol=1e-5)
    assert built == [0, 1]


def test_a_slice_that_grows_is_scanned_in_blocks_by_few_plans(built: list[int]) -> None:
    """Three for blocks that are filled up, which a size and then a multiple says; two for those that are full."""
    x = array(700)
    for n in (*range(250, 300), 512, 544, 610):
        got = weft.tensor(x)[:n].cumsum(0)
        np.testing.assert_allclose(got.numpy(), x[:n].cumsum(), rtol=1e-4, atol=1e-4)
    assert len(built) <= 6, built


def test_a_rest_of_any_length_from_anywhere_on_has_a_plan(built: list[int]) -> None:
    for n, start in ((30, 3), (60, 11), (44, 2), (37, 20), (90, 7), (25, 21)):
        x = array(n, 4)
        assert (weft.tensor(x)[start:] * 2).numpy().tolist() == (x[start:] * 2).tolist()
    assert len(built) <= 3, built


@pytest.mark.parametrize(
    ("op", "want"),
    [
        (lambda x, k: x * (k + 0.37), lambda x, k: x * np.float32(k + 0.37)),
        (lambda x, k: x[k : k + 10], lambda x, k: x[k : k + 10]),
        (lambda x, k: x.roll(k + 2), lambda x, k: np.roll(x, k + 2)),
        (lambda x, k: x.clamp(-k - 0.3, k + 0.3), lambda x, k: x.clip(-k - 0.3, k + 0.3)),
        (lambda x, k: weft.full((7,), k + 0.3), lambda x, k: np.full(7, k + 0.3, np.float32)),
        (lambda x, k: weft.arange(k + 3) * 3, lambda x, k: np.arange(k + 3) * 3),
        (lambda x, k: F.pad(x[:10], (k + 2, k + 3)), lambda x, k: np.pad(x[:10], (k + 2, k + 3))),
        (lambda x, k: x[: 4 * k + 8].reshape(k + 2, 4).sum(1), lambda x, k: x[: 4 * k + 8].reshape(-1, 4).sum(1)),
    ],
)  # fmt: skip
def test_numbers_that_vary_are_given_to_one_plan(
    built: list[int], op: Callable[[Tensor, int], Tensor], want: Callable[[Any, int], Any]
) -> None:
    x = array(200)
    for k in range(3, 20):
        got = op(weft.tensor(x), k).numpy()
        np.testing.assert_allclose(got, want(x, k), rtol=1e-6, atol=1e-6)
    assert len(built) <= 3


def test_an_update_of_a_tensor_of_runtime_size_copies_what_there_is_and_no_more(built: list[int]) -> None:
    tensors = [weft.tensor(array(n, 8)) for n in (9, 21, 16, 12)]
    around = [weft.zeros(64).contiguous().realize() for _ in range(64)]
    for t in tensors:
        out = t.clone()
        out[3] = 5.0
        want = t.numpy().copy()
        want[3] = 5.0
        np.testing.assert_array_equal(out.numpy(), want)
    assert not any(z.numpy().any() for z in around), "memory of others was written to"
    assert built[-1], "the last of the plans is one for all sizes"


def test_a_size_beyond_the_bounds_gets_a_plan_with_larger_ones(built: list[int]) -> None:
    for n in (5, 6, 7, 1000, 900):
        x = array(n)
        np.testing.assert_allclose((weft.tensor(x) * 3).numpy(), 3 * x, rtol=1e-6)
    assert built == [0, 1, 1]


def test_the_plan_with_room_for_the_fewest_sizes_is_taken(built: list[int]) -> None:
    """Though the others, which were built when larger sizes came, serve as well."""
    for n in (5, 6, 1000, 7):
        (weft.tensor(array(n)) * 3).realize()
    assert built == [0, 1, 1]
    for n, most in ((8, 32), (900, 4096)):
        assert f"size0 = {n} of 2 to {most}" in str(weft.explain(weft.tensor(array(n)) * 3))


def test_what_was_run_often_gets_a_plan_of_its_own(built: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "KERNEL_SECONDS", 1.5)
    monkeypatch.setattr(families, "LAUNCH_SECONDS", 1.0)
    monkeypatch.setattr(families, "OWN_RATE", 1.0)
    for n in (9, 21, 16, 16, 16, 16, 16, 16):
        (weft.tensor(array(n, 8)).exp() + 1).realize()
    assert built == [0, 1, 0]


def test_where_the_plan_for_all_sizes_is_slow_a_graph_gets_its_own_early(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    for n in (9, 21):
        (weft.tensor(array(n, 8)).exp() + 1).realize()
    for _ in range(8):  # quick runs change nothing
        (weft.tensor(array(16, 8)).exp() + 1).realize()
    assert built == [0, 1]
    monkeypatch.setattr(plan, "perf_counter", lambda: next(clock) * families.KERNEL_SECONDS)
    for _ in range(4):
        (weft.tensor(array(16, 8)).exp() + 1).realize()
    assert built == [0, 1, 0]


def test_a_compiled_function_leaves_a_slow_plan_for_all_sizes_early(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    f = weft.compile(lambda x: (x @ x.T).tanh().sum())
    for n in (9, 21):
        f(weft.tensor(array(n, 8))).item()
    x = weft.tensor(array(13, 8))
    results = [f(x).item() for _ in range(8)]
    assert "all sizes" in str(weft.explain(f, x))
    monkeypatch.setattr(plan, "perf_counter", lambda: next(clock) * families.KERNEL_SECONDS)
    results += [f(x).item() for _ in range(4)]
    np.testing.assert_allclose(results, results[0], rtol=1e-5)
    assert "all sizes" not in str(weft.explain(f, x))


def test_what_runs_long_has_a_plan_for_each_size(built: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "LAUNCH_SECONDS", 1.0)
    for n in (9, 21, 16):
        (weft.tensor(array(n, 8)).exp() + 1).realize()
    assert built == [0, 0, 0]


def test_an_axis_of_one_element_is_no_size_of_the_family(built: list[int]) -> None:
    for n in (5, 6, 1):
        x = array(n, 4)
        np.testing.assert_allclose(weft.tensor(x).softmax(0).numpy().sum(0), np.ones(4), rtol=1e-5)
    assert built == [0, 1, 0]


def test_loops_of_any_length_share_their_kernels(built: list[int]) -> None:
    lstm = weft.nn.LSTM(4, 6, batch_first=True)
    for n in (20, 23, 31, 18):
        x = array(2, n, 4)
        got = lstm(weft.tensor(x))[0].detach().numpy()
        step = lstm(weft.tensor(x[:, :-1]))[0].detach().numpy()
        np.testing.assert_allclose(got[:, :-1], step, rtol=1e-5, atol=1e-6)
    assert built.count(0) <= 2


def test_a_compiled_function_says_which_plan_it_runs_and_gets_its_own(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    f = weft.compile(lambda x: (x @ x.T).tanh().sum())
    fixed = weft.compile(lambda x: (x @ x.T).tanh().sum(), dynamic=False)
    for n in (9, 21, 16):
        x = weft.tensor(array(n, 8))
        np.testing.assert_allclose(f(x).item(), fixed(x).item(), rtol=1e-5, atol=1e-5)
    assert "a plan for all sizes: size0 = 16 of 2 to" in str(weft.explain(f, weft.tensor(array(16, 8))))
    assert "all sizes" not in str(weft.explain(fixed, weft.tensor(array(16, 8))))
    monkeypatch.setattr(families, "KERNEL_SECONDS", 1e-9)
    monkeypatch.setattr(families, "OWN_RATE", 1e9)
    x = weft.tensor(array(13, 8))
    results = [f(x).item() for _ in range(12)]
    np.testing.assert_allclose(results, results[0], rtol=1e-5)
    assert "all sizes" not in str(weft.explain(f, x))


def test_a_compiled_step_updates_in_place_on_a_plan_for_all_sizes(built: list[int]) -> None:
    w = weft.tensor(array(8, 8))
    want = w.numpy().copy()

    @weft.compile
    def step(x: Tensor) -> Tensor:
        w.sub_(x.T @ x * 0.01)
        return w.sum()

    for n in (9, 21, 16, 30):
        x = array(n, 8)
        want -= x.T @ x * np.float32(0.01)
        assert step(weft.tensor(x)).item() == pytest.approx(want.sum(), rel=1e-4)
    np.testing.assert_allclose(w.numpy(), want, rtol=1e-4, atol=1e-5)


def test_explain_lists_the_kernels_of_the_plan_that_runs(built: list[int]) -> None:
    for n in (9, 21):
        (weft.tensor(array(n, 8)).softmax(0) * 0.3).realize()
    lazy = weft.tensor(array(13, 8)).softmax(0) * 0.3
    assert "size0 = 13" in str(weft.explain(lazy))
    assert "size0 = 13" in str(weft.explain(lazy, time=True))


def test_tables_are_bounded(built: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES_KEPT", 3)
    for k in range(6):
        for n in (4, 5):
            x = weft.tensor(array(n))
            for _ in range(k):
                x = x.exp()
            (x + 1).realize()
    for n in range(4, 10):
        for c in (0.3, 0.7, 0.9, 1.1):
            (weft.tensor(array(n)) * c).realize()
    assert len(families._families) <= 3
    assert len(families._met) <= 3
    assert len(families._alike) == 3


def test_with_deterministic_algorithms_each_size_has_a_plan_of_its_own(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DETERMINISTIC", "0")
    for n in (9, 21):
        weft.tensor(array(n, 8)).exp().sum().realize()
    weft.use_deterministic_algorithms(True)
    assert weft.are_deterministic_algorithms_enabled()
    for n in (21, 16, 9):
        weft.tensor(array(n, 8)).exp().sum().realize()
    assert built == [0, 1, 0, 0]


@pytest.mark.parametrize("compiled", [False, True])
def test_where_room_for_larger_sizes_is_too_much_a_graph_gets_its_own_plan(
    built: list[int], compiled: bool
) -> None:
    def f(x: Tensor) -> Tensor:
        y = (x @ x.T * 0.1).tanh()
        return y @ y @ x

    run = weft.compile(f) if compiled else f
    with weft.device("dummy:1"):
        for n in (9, 21):
            run(weft.tensor(array(n, 8))).realize()
        x = weft.tensor(array(24, 8))
        used: Any = registry.open_device("dummy:1")
        with weft.memory_limit(used.used_bytes() + 3 * 24 * 24 * 4 + 4096, "dummy:1"):
            got = run(x).numpy()
    y = np.tanh(x.numpy() @ x.numpy().T * np.float32(0.1))
    np.testing.assert_allclose(got, y @ y @ x.numpy(), rtol=1e-4, atol=1e-5)
    assert built[-1] == 0


def test_what_is_refused_for_larger_sizes_is_planned_for_this_one(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = realization._from_disk_or_built

    def refuse(device: Any, sig: Any, replaces: Any) -> Any:
        if sig.variables:
            raise weft.DeviceError("too large for this device")
        return make(device, sig, replaces)

    monkeypatch.setattr(realization, "_from_disk_or_built", refuse)
    for n in (9, 21, 16):
        x = array(n)
        np.testing.assert_allclose((weft.tensor(x) * 3).numpy(), 3 * x, rtol=1e-6)
    assert built == [0, 0, 0]


def test_a_number_that_was_the_same_and_is_another_now_is_the_other(built: list[int]) -> None:
    x = array(50)
    for k, c in ((0.3, 0.7), (0.4, 0.7), (0.6, 0.9), (0.4, 0.9), (0.6, 0.7)):
        got = weft.tensor(x) * np.float32(c).item() + np.float32(k).item()
        np.testing.assert_allclose(got.numpy(), x * np.float32(c) + np.float32(k), rtol=1e-6, atol=1e-6)
    assert built == [0, 0, 0]


def test_a_graph_whose_own_plan_is_gone_gets_that_again(built: list[int]) -> None:
    for _ in range(3):
        weft.tensor(array(9)).exp().realize()
        realization._plans.clear()
    weft.tensor(array(21)).exp().realize()
    assert built == [0, 0, 0, 1]


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Graphs whose sizes were looked at."""
    found: list[int] = []
    look = outlines.outline_like_before

    def count(rows: Any) -> Any:
        found.append(len(rows))
        return look(rows)

    monkeypatch.setattr(outlines, "outline_like_before", count)
    return found


def test_sizes_are_not_looked_at_where_numbers_alone_are_others(built: list[int], walked: list[int]) -> None:
    for n in (50, 70, 50):
        x = array(n)
        for c in (0.3, 0.7, 0.9):
            np.testing.assert_allclose((weft.tensor(x) * c).numpy(), x * np.float32(c), rtol=1e-6)
    (weft.tensor(x) * 0.6).realize()
    walked.clear()
    for c in (-0.2, 1.7, 3.0, 1e30, 0.25):
        np.testing.assert_allclose((weft.tensor(x) * c).numpy(), x * np.float32(c), rtol=1e-6)
    assert not walked
    for c in (1.0, 0.0, -1.0, 2.0, float("inf"), float("nan"), -0.0):  # these are of another structure
        got = (weft.tensor(x) * c).numpy()
        np.testing.assert_array_equal(got, x * np.float32(c))
        assert (np.signbit(got) == np.signbit(x * np.float32(c))).all() or c != c
    assert walked


def test_recipes_of_earlier_processes_that_do_not_fit_are_ruled_out_at_a_glance(
    built: list[int], walked: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_VERIFY", "0")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))

    def run(n: int) -> None:
        x = array(n, 3)
        np.testing.assert_allclose(weft.tensor(x).exp().numpy(), np.exp(x), rtol=1e-5)

    for n in (5, 6, 1000):
        run(n)
    assert built == [0, 1, 1]
    for table in (realization._plans, families._families, families._met):
        table.clear()
    for n in (900, 950, 1100, 1200):
        run(n)
    (family,) = families._families.values()
    assert len(family.stored) == len(family.plans) == 1  # that for few is not here yet
    walked.clear()
    for n in (700, 1300, 800):
        run(n)
    assert not walked
    run(8)
    assert len(family.plans) == 2
    assert "size0 = 9 of 2 to 32" in str(weft.explain(weft.tensor(array(9, 3)).exp()))
    assert len(built) == 3


def test_a_number_that_is_part_of_the_plan_is_looked_at(built: list[int], walked: list[int]) -> None:
    x = array(50)
    for c, k in ((0.7, 0.3), (0.9, 0.3), (1.3, 0.3), (1.1, 0.3), (1.6, 0.4), (1.7, 0.3), (1.7, 0.4)):
        got = weft.tensor(x) * c + k
        np.testing.assert_allclose(got.numpy(), x * np.float32(c) + np.float32(k), rtol=1e-6, atol=1e-6)


def test_numbers_of_calls_stay_with_their_places(built: list[int], walked: list[int]) -> None:
    x = array(6, 8)

    def f(a: float, b: float) -> Tensor:
        return F.gelu(weft.tensor(x) * a) * 0.3 + F.gelu(weft.tensor(x), approximate="tanh") * b

    def own(a: float, b: float) -> np.ndarray[Any, Any]:
        return _by_a_plan_of_its_own(lambda: [f(a, b)])

    for a, b in ((0.7, 0.4), (0.9, 0.6), (1.1, 0.8), (1.3, -0.7), (-0.4, 1.6)):
        np.testing.assert_allclose(f(a, b).numpy(), own(a, b), rtol=1e-5, atol=1e-6)
    walked.clear()
    f(0.35, 1.45).realize()
    assert not walked


def test_numbers_that_come_once_leave_no_plan(built: list[int]) -> None:
    x = weft.tensor(array(50))
    for c in (0.3, 0.7, 0.9):
        (x * c).realize()
    before = len(realization._plans)
    for k in range(40):
        (x * (k + 0.1)).realize()
    assert len(realization._plans) == before
    for k in (39, 38, 39 - families.LATEST_NUMBERS, 38):
        (x * (k + 0.1)).realize()
    assert len(realization._plans) == before + 2  # those that came back


def test_sizes_are_looked_at_again_where_the_family_has_more_plans_or_is_gone(
    built: list[int], walked: list[int]
) -> None:
    x = weft.tensor(array(50))
    for c in (0.3, 0.7, 0.9, 1.1):
        (x * c).realize()
    walked.clear()
    [family] = families._families.values()
    family.add(family.plans[0])
    (x * 1.3).realize()
    assert len(walked) == 1
    (x * 1.4).realize()
    assert len(walked) == 1
    families._families.clear()
    (x * 1.5).realize()
    assert len(walked) > 1


def _looked_at(x: Tensor, w: Tensor) -> Tensor:
    """A state that looks at all rows by turns; its gradients are put among those of the rows."""
    state, losses = weft.zeros(4, 8), list[Tensor]()
    rows, (last, _) = _reader()(x)
    for _ in range(3):
        shares = (rows @ state[:, :, None])[:, :, 0].softmax(-1)
        state = (last[0] + (shares[:, :, None] * rows).sum(1)) @ w
        losses.append(state.square().mean())
    return weft.stack(losses).sum()


def _cut(x: Tensor) -> list[Tensor]:
    """Each row up to a place of its own, of which nothing but this program knows how they hang together."""
    n = x.shape[1]
    return [x[k, : 3 + (n * n * (k + 3) + 5 * k) % (n - 3)] for k in range(4)]


@cache
def _reader() -> weft.nn.LSTM:
    layer = weft.nn.LSTM(8, 8, batch_first=True)
    weft.realize(*layer.parameters())
    return layer


@pytest.mark.parametrize(
    "loss_of",
    [
        _looked_at,
        lambda x, w: (x @ w)[0, ::2].mean() - (x @ w)[1, 1::2].square().mean(),
        lambda x, w: ((x @ w)[:, 1:] - (x @ w)[:, :-1]).square().mean(),
        lambda x, w: F.scaled_dot_product_attention(x @ w, weft.cat([x[:, -3:], x], 1), F.pad(x, (0, 0, 2, 1))).mean(),
        lambda x, w: F.pad(x @ w, (0, 0, 0, -x.shape[1] % 8)).reshape(4, -1, 8, 8).mean(2).square().mean(),
        lambda x, w: F.conv1d((x @ w).mT, w[:, :, None].expand(8, 8, 3), padding=2, dilation=2).amax(-1).mean(),
        lambda x, w: weft.zeros(7, 8).index_add(0, weft.arange(x.shape[1]) % 7, (x @ w).sum(0)).amax(0).mean(),
        lambda x, w: (x @ w).flip(1).cumsum(1).unfold(1, 5, 2).mean(-1).square().mean(),
        lambda x, w: weft.cat(_cut(x @ w)).square().mean(),
        lambda x, w: (rnn.pad_sequence(_cut(x @ w), batch_first=True, padding_value=0.5) @ w).square().mean(),
        lambda x, w: (x @ w)[0, x.shape[1] % 5 :: 2].square().mean() + (x @ w)[1, 1 + x.shape[1] % 7 : -2 : 3].mean(),
        lambda x, w: (x @ w)[:, x.shape[1] // 2 :].square().mean() + (x @ w)[:, -5:].mean(),
    ],
    ids=["state", "every other", "differences", "longer keys", "blocks", "spread", "sums by index", "windows",
         "rows cut", "rows cut and filled up", "some from anywhere on", "half and the last"],
)  # fmt: skip
def test_training_over_any_length_has_few_plans(
    loss_of: Callable[[Tensor, Tensor], Tensor], built: list[int]
) -> None:
    w = weft.tensor(array(8, 8), requires_grad=True)
    _reader()
    for n in (22, 15, 33, 19, 42, 27, 51, 38, 13, 46, 29, 35):
        x = weft.tensor(array(4, n, 8))
        loss = loss_of(x, w)
        [grad] = weft.autograd.grad(loss, [w])
        assert grad is not None
        weft.realize(loss, grad)
        same = weft.tensor(array(8, 8), requires_grad=True)
        with_own = _by_a_plan_of_its_own(lambda: weft.autograd.grad(loss_of(x, same), [same]))
        np.testing.assert_allclose(grad.numpy(), with_own, rtol=1e-3, atol=1e-6)
    assert len(built) - 12 <= 5, built


def test_images_that_are_halved_and_doubled_have_few_plans(built: list[int]) -> None:
    """Of any height and width: two are twice what others are, and elements are counted by all of them."""

    def loss_of(x: Tensor, w: Tensor) -> Tensor:
        whole = F.conv2d(x, w, padding=1).relu()
        again = F.interpolate(F.max_pool2d(whole, 2), scale_factor=2, mode="nearest")
        return F.conv2d(weft.cat([whole, again], 1)[:, 1:4], w, padding=1).square().mean()

    for h, w in ((24, 20), (28, 32), (44, 40), (16, 36), (36, 28), (40, 24), (20, 44), (32, 16)):
        x, weights = weft.tensor(array(1, 3, h, w)), weft.tensor(array(3, 3, 3, 3), requires_grad=True)
        [grad] = weft.autograd.grad(loss_of(x, weights), [weights])
        assert grad is not None
        grad.realize()
        same = weft.tensor(array(3, 3, 3, 3), requires_grad=True)
        with_own = _by_a_plan_of_its_own(lambda: weft.autograd.grad(loss_of(x, same), [same]))
        np.testing.assert_allclose(grad.numpy(), with_own, rtol=1e-3, atol=1e-5)
    assert len(built) - 8 <= 4, built


def test_boxes_of_any_size_from_anywhere_are_resized_by_few_plans(built: list[int]) -> None:
    """A gather is kept within an axis whose length nothing else of the kernel has."""
    boxes = [(3, 9, 11, 14), (7, 2, 17, 9), (1, 5, 8, 21), (9, 4, 13, 12), (2, 8, 19, 10), (5, 1, 10, 18)]
    x = weft.tensor(array(1, 2, 30, 30))
    parts = [x[:, :, i : i + h, j : j + w] for i, j, h, w in boxes]
    resized = [F.interpolate(part, size=(7, 9), mode="bilinear").numpy() for part in parts]
    assert len(built) <= 4, built
    for part, found in zip(parts, resized, strict=True):
        alone = F.interpolate(weft.tensor(part.numpy()), size=(7, 9), mode="bilinear").numpy()
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)


def _by_a_plan_of_its_own(make: Callable[[], Sequence[Tensor | None]]) -> np.ndarray[Any, Any]:
    """The first value, computed while nothing is known."""
    tables = (realization._plans, families._families, families._met, families._alike)
    kept = [dict(t) for t in tables]
    for table in tables:
        table.clear()
    [found] = make()
    assert found is not None
    value = found.numpy()
    for table, before in zip(tables, kept, strict=True):
        table.clear()
        table.update(before)
    return value
