"""Calls at sizes that never came are those that would be recorded there; what is no one graph is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.core.composed import composite, sized
from weft.ir.errors import IRError
from weft.ir.template import LateTemplate
from weft.scheduler import outline
from weft.scheduler.sized import SizedTemplate


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The first size of what is recorded, each time; nothing is recorded in advance, or to be compared."""
    found: list[int] = []
    record = composite._record

    def count(entry: Any) -> Any:
        found.append(entry.given[0].shape[0])
        return record(entry)

    monkeypatch.setattr(composite, "_record", count)
    monkeypatch.setattr(composite, "_entries", {})
    monkeypatch.setattr(composite, "_families", {})
    monkeypatch.setenv("WEFT_VERIFY", "0")
    yield found


def leaf(*shape: int) -> Tensor:
    return weft.tensor(
        np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    ).requires_grad_()


LEARNED: dict[str, Callable[[int], Tensor]] = {
    "softmax": lambda n: F.softmax(leaf(n, 64), -1),
    "softmax over rows": lambda n: F.softmax(leaf(n, 64), 0),
    "linear": lambda n: F.linear(leaf(n, 64), leaf(16, 64), leaf(16)),
    "layer norm": lambda n: F.layer_norm(leaf(7, n, 64), (64,), leaf(64), leaf(64)),
    "gelu": lambda n: F.gelu(leaf(2, n, 64)),
    "variance over rows": lambda n: leaf(n, 64).var(0),
    "standard deviation": lambda n: leaf(n, 64).std(0, correction=0),
    "cross entropy": lambda n: F.cross_entropy(leaf(n, 64), weft.arange(n) % 64),
    "mean squared error": lambda n: F.mse_loss(leaf(n, 64), leaf(n, 64)),
    "attention": lambda n: F.scaled_dot_product_attention(leaf(2, 4, n, 16), leaf(2, 4, n, 16), leaf(2, 4, n, 16)),
    "causal attention": lambda n: F.scaled_dot_product_attention(
        leaf(2, 4, n, 16), leaf(2, 4, n, 16), leaf(2, 4, n, 16), is_causal=True
    ),
    "two sizes": lambda n: leaf(n, 64) @ leaf(64, n * n % 97 + 200),
    "linear of one row": lambda n: F.linear(leaf(n), leaf(16, n), leaf(16)),
    "convolution": lambda n: F.conv1d(leaf(2, 3, n), leaf(5, 3, 3), padding=1),
    "batch norm of images": lambda n: batch_norm(n, 3, n + 7, n + 7),
    "batch norm of rows": lambda n: batch_norm(n, 70),
    "running sums": lambda n: leaf(3, 400 + n).cumsum(1),
    "running sums of columns": lambda n: leaf(400 + n, 7).cumsum(0),
    "running sums of a part": lambda n: leaf(n, 400 + n).cumsum(1),
    "pooled images": lambda n: F.max_pool2d(leaf(3, 70, n, n + 7), 2),
}  # fmt: skip


def batch_norm(*shape: int) -> Tensor:
    mean, var = (weft.tensor(np.full(shape[1], x, np.float32)) for x in (0.0, 1.0))
    out = F.batch_norm(leaf(*shape), mean, var, training=True)
    assert mean.isfinite().all() and var.isfinite().all()
    return out


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_made_for_a_size_is_what_is_recorded_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the functions compare themselves, where forms are verified."""
    made: list[Any] = []
    make = composite._make
    monkeypatch.setattr(composite, "_make", lambda *args: (made.append(args[1]), make(*args)))
    monkeypatch.setattr(composite, "_entries", {})  # what other tests tried is not held against it
    monkeypatch.setattr(composite, "_families", {})
    for n in (9, 21, 33, 42, 27, 50):
        LEARNED[name](n).sum().backward()
    assert made, "nothing was learned"
    assert all(known.known for known in made[0].backward.values()), "no gradient was learned"


def test_after_a_few_sizes_nothing_is_recorded(recorded: list[int]) -> None:
    for n in (9, 21):
        F.gelu(leaf(n, 64)).sum().backward()
    assert recorded == [9, 21]
    F.gelu(leaf(33, 64)).sum().backward()
    learned = len(recorded)
    for n in (34, 12, 17, 80, 128):
        x = leaf(n, 64)
        want = leaf(n, 64)
        F.gelu(x).sum().backward()
        composite.without_calls(F.gelu)(want).sum().backward()
        assert x.grad is not None and want.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), want.grad.numpy())
    assert len(recorded) == learned


def test_a_function_that_refuses_small_sizes_is_learned_from_those_that_came(recorded: list[int]) -> None:
    """There are no 18 windows of 4 elements; that is nobody's mistake."""

    @composite.composite()
    def windows(x: Tensor, count: int) -> Tensor:
        return weft.stack([x[k : x.shape[0] - count + k] for k in range(0, count, 6)]) * 2

    def doubled(n: int) -> Tensor:
        return windows(weft.arange(n).float(), 18)

    for n in (40, 50, 60):
        assert doubled(n).tolist() == [[2.0 * (k + i) for i in range(n - 18)] for k in (0, 6, 12)]
    count = len(recorded)
    assert doubled(70).shape == (3, 52)
    assert len(recorded) == count, "learned"


def test_sizes_that_graphs_cannot_have_are_no_error() -> None:
    x = weft.arange(350).float().reshape(70, 5)
    for n in (40, 50, 60, 70):
        assert weft.topk(x[:n], 18, 0)[0][-1].tolist() == x[n - 18].tolist()


def test_what_outgrows_its_bounds_is_learned_again(recorded: list[int]) -> None:
    sizes = (9, 21, 33, 1000, 700, 800)
    outs = [F.gelu(leaf(n, 64)).shape[0] for n in sizes]
    assert outs == list(sizes)
    assert 700 not in recorded and 800 not in recorded


def test_a_layer_as_wide_as_it_is_long_is_learned_beside_others(recorded: list[int]) -> None:
    for n in (9, 21, 33, 27, 50, 11, 29):
        for wide, long in ((16, 64), (64, 64), (64, 24)):
            F.linear(leaf(n, wide), leaf(long, wide), leaf(long)).sum().backward()
        if n == 33:
            recorded.clear()
    assert not recorded


def test_what_is_made_for_a_size_comes_with_its_outline(recorded: list[int]) -> None:
    made: list[Any] = []
    make = composite._make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composite, "_make", lambda *args: (made.append(args[2]), make(*args)))
        for name in ("layer norm", "variance over rows", "cross entropy", "convolution"):
            for n in (9, 21, 33, 42, 27):
                LEARNED[name](n)
    templates = [call.template for calls in made for call in calls]
    assert len(templates) > 8
    for t in templates:
        assert isinstance(t, LateTemplate)
        walked = outline.outline((
            *((r.op, r.attrs, r.dtype, r.shape, *r.inputs) for r in t.rows), (len(t.placeholders), *t.results)
        ))  # fmt: skip
        found = outline.inside(t)
        assert (found.key, found.sizes, found.numbers) == (walked.key, walked.sizes, walked.numbers)


def test_rows_are_made_when_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a loss that a plan for all sizes computes; and then they are those that are recorded."""
    monkeypatch.setattr(composite.settings, "verify", lambda: False)
    monkeypatch.setattr(composite, "_entries", {})
    monkeypatch.setattr(composite, "_families", {})
    made: list[tuple[int, ...]] = []
    parts = SizedTemplate.parts
    monkeypatch.setattr(SizedTemplate, "parts", lambda t, v: (made.append(v), parts(t, v))[1])
    for n in (9, 21, 33, 42):
        F.layer_norm(leaf(n, 50), (50,)).sum().item()
    made.clear()
    losses = [F.layer_norm(leaf(n, 50), (50,)) for n in (27, 28, 27)]
    assert [y.shape for y in losses] == [(27, 50), (28, 50), (27, 50)]
    one, other, again = (y.value.node.attrs for y in losses)
    assert isinstance(one, LateTemplate) and one is again and one is not other
    F.layer_norm(leaf(28, 50), (50,)).sum().item()
    assert made == []
    stands = leaf(27, 50)
    plain = composite.calls_of(lambda ts: [F.layer_norm(ts[0], (50,))], [stands.value])
    assert not isinstance(plain, str)
    assert one.whole is plain[0].template and len(made) == 1
    assert one.rows and one.digest == one.whole.digest and repr(one) == repr(one.whole) and len(made) == 1
    with pytest.raises(AttributeError):
        one.nothing


def test_sizes_that_coincide_are_recorded(recorded: list[int]) -> None:
    for n in (9, 21, 33, 64, 2, 1):
        F.softmax(leaf(n, 64), -1)
    assert {64, 2, 1} <= set(recorded), "as many rows as columns"


def by_size(x: Tensor, at: Callable[[int], bool]) -> Tensor:
    y = (x * 3).exp() + 1
    return y.flip(0) * 2 if at(x.shape[0]) else y


BRANCHES: list[Callable[[int], bool]] = [
    lambda n: n > 40, lambda n: n < 5, lambda n: n % 2 == 0, lambda n: n > 120, lambda n: n % 32 == 0,
]  # fmt: skip


@pytest.mark.parametrize("branch", range(len(BRANCHES)))
def test_a_function_that_looks_at_sizes_is_recorded(branch: int) -> None:
    at = BRANCHES[branch]

    @composite.composite
    def function(x: Tensor) -> Tensor:
        return by_size(x, at)

    for n in (9, 21, 33, 42, 10, 17, 64, 130, 4, 27):
        x = leaf(n, 3)
        np.testing.assert_array_equal(function(x).detach().numpy(), by_size(x, at).detach().numpy())


def test_a_function_that_looks_at_what_no_size_that_came_was_is_recorded() -> None:
    @composite.composite
    def function(x: Tensor) -> Tensor:
        return by_size(x, lambda n: n % 2 == 0)

    for n in (10, 20, 30, 33):
        x = leaf(n, 3)
        want = by_size(x, lambda n: n % 2 == 0)
        np.testing.assert_array_equal(function(x).detach().numpy(), want.detach().numpy())


def test_small_sizes_that_came_first_keep_nothing_from_being_learned(recorded: list[int]) -> None:
    """Rules simplify what has one row."""

    @composite.composite
    def rest(x: Tensor) -> Tensor:
        return (x * 3).exp()[1:].softmax(0)

    for n in (2, 3, 9):
        rest(leaf(n, 50))
    before = len(recorded)
    for n in (4, 5, 10, 17, 33):
        assert rest(leaf(n, 50)).shape == (n - 1, 50)
    assert len(recorded) == before
    rest(leaf(2, 50)), rest(leaf(3, 50))
    assert len(recorded) == before


def test_a_size_that_came_where_others_coincide_keeps_nothing_from_being_learned(recorded: list[int]) -> None:
    @composite.composite
    def twice(x: Tensor, w: Tensor) -> Tensor:
        y = x.repeat(2, 1).exp()
        return (y * 2 if y.shape[0] == w.shape[0] else y + 1).sum(0) + w.sum(0)

    for n in (25, 21, 33):
        twice(leaf(n, 3), leaf(50, 3))
    before = len(recorded)
    for n in (40, 60, 25, 27):
        x, w = leaf(n, 3), leaf(50, 3)
        want = composite.without_calls(twice)(x, w)
        np.testing.assert_array_equal(twice(x, w).detach().numpy(), want.detach().numpy())
    assert len(recorded) == before


def test_a_size_that_is_no_polynomial_is_recorded(recorded: list[int]) -> None:
    @composite.composite
    def thirds(x: Tensor) -> Tensor:
        return (x * 3).exp()[: x.shape[0] // 3].sin()

    for n in (9, 21, 33, 42, 10, 17):
        assert thirds(leaf(n, 3)).shape == (n // 3, 3)
    assert {9, 21, 33, 42, 10, 17} <= set(recorded)


HALVES: dict[str, Callable[[int], int]] = {
    "n // 2": lambda n: n // 2, "(n + 1) // 2": lambda n: (n + 1) // 2, "n // 2 * 2": lambda n: n // 2 * 2 - 1,
    "(n + 1) // 2 + 3": lambda n: (n + 1) // 2 + 3,
}  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
def test_halves_are_learned(name: str, recorded: list[int]) -> None:
    @composite.composite
    def windows(x: Tensor) -> Tensor:
        return (x * 3).exp().repeat(2, 1)[: HALVES[name](x.shape[0])].sin()

    for n in (9, 21, 33):
        windows(leaf(n, 3))
    assert {n % 4 for n in recorded} == {0, 1, 2, 3}
    before = len(recorded)
    for n in range(10, 60):
        assert windows(leaf(n, 3)).shape == (HALVES[name](n), 3)
    assert len(recorded) == before


@pytest.mark.parametrize(
    "size",
    [lambda n: n // 4 * 2, lambda n: (n + 2) // 4 * 2, lambda n: (n + 3) // 4, lambda n: n // 2 - n % 4 // 3],
)
def test_what_is_like_a_half_at_some_sizes_is_recorded(
    size: Callable[[int], int], recorded: list[int]
) -> None:
    @composite.composite
    def windows(x: Tensor) -> Tensor:
        return (x * 3).exp()[: size(x.shape[0])].sin()

    for n in (8, 20, 32, 9, 21, 33, 42, 10, 17, 11, 23, 40, 27):
        assert windows(leaf(n, 3)).shape == (size(n), 3)


def test_sizes_that_were_alike_by_chance_are_told_apart(recorded: list[int]) -> None:
    for n, m in ((9, 9), (21, 21), (33, 33), (12, 13), (17, 50), (30, 40), (31, 45)):
        assert (leaf(n, 64) @ leaf(64, m)).shape == (n, m)


def test_what_differs_where_nobody_looked_is_said_when_forms_are_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @composite.composite
    def function(x: Tensor) -> Tensor:
        return by_size(x, lambda n: n == 43)

    for n in (9, 21, 33, 42):
        function(leaf(n, 3))
    with pytest.raises(IRError, match="what is learned for all sizes is wrong"):
        function(leaf(43, 3))


def test_gradients_of_gradients_of_what_was_made(recorded: list[int]) -> None:
    for n in (9, 21, 33, 42):
        x = leaf(n, 5)
        (g,) = weft.autograd.grad(F.gelu(x).sum(), x, create_graph=True)
        (second,) = weft.autograd.grad(g.sum(), x)
        want = leaf(n, 5)
        (g,) = weft.autograd.grad(composite.without_calls(F.gelu)(want).sum(), want, create_graph=True)
        (other,) = weft.autograd.grad(g.sum(), want)
        np.testing.assert_allclose(second.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def test_samples_are_bounded() -> None:
    calls = sized.SizedCalls()
    for n in range(100):
        calls.add((n,), ())
    assert len(calls.samples) == sized.SIZES_KEPT
    assert len(calls._alike((100,))) == sized.SAMPLES + sized.TRIES


def test_small_images_are_learned_beside_large_ones(recorded: list[int]) -> None:
    """Each size below what is learned for all by itself, from samples of it; nothing is tried while these are few."""

    def step(channels: int, size: int) -> None:
        x, want = leaf(channels, size, size), leaf(channels, size, size)
        F.gelu(x).sum().backward()
        composite.without_calls(F.gelu)(want).sum().backward()
        assert x.grad is not None and want.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), want.grad.numpy())

    for channels, size in ((64, 24), (80, 12), (96, 9)):
        step(channels, size)
    for size in (3, 1):
        recorded.clear()
        for channels in (70, 90):
            step(channels, size)
        assert recorded == [70, 90]
        for channels in (110, 75):
            step(channels, size)
        recorded.clear()
        for channels in (72, 200, 33, 128):
            step(channels, size)
        assert not recorded
    for channels, size in ((61, 17), (128, 3), (85, 11), (62, 1)):
        step(channels, size)
    assert not recorded
    (family,) = composite._families.values()
    assert len(family.calls.known) == len(family.backward[0].known) == 3


def test_running_sums_are_made_for_all_sizes_but_a_few(recorded: list[int]) -> None:
    """Those at which little is added to the last block, or sizes coincide; each is what is recorded there."""
    for n in (250, 251, 252):
        leaf(n).cumsum(0)
    before = len(recorded)
    for n in range(253, 550):
        x = leaf(n)
        np.testing.assert_array_equal(
            x.cumsum(0).detach().numpy(), composite.without_calls(weft.cumsum)(x, 0).detach().numpy()
        )
    assert len(recorded) - before < 297 // 4


@pytest.mark.parametrize("more", [0, 1, 3, 15])
@pytest.mark.parametrize("length", [8, 16, 32])
def test_what_is_not_of_whole_blocks_is_recorded(length: int, more: int) -> None:
    """Which is looked at where forms are verified."""

    @composite.composite
    def parts(x: Tensor) -> Tensor:
        n = x.shape[0]
        whole = weft.cat([x, weft.zeros(-n % length)]) * 2
        return whole.reshape(-1, length).sum(1)[: max((n + more) // length, 1)].exp()

    for n in (50, 55, 61, 63, 64, 65, 66, 70, 79, 80, 81, 95, 96, 97, 111, 113, 126, 127, 130, 200, 255, 300):
        x = leaf(n)
        np.testing.assert_array_equal(
            parts(x).detach().numpy(), composite.without_calls(parts)(x).detach().numpy()
        )


def test_what_grows_from_few_elements_is_learned_in_time(recorded: list[int]) -> None:
    """A running sum of up to 32 elements is another graph; a wide axis beside it is no reason to give up."""
    for n in range(4, 400):
        leaf(n, 500).cumsum(0)
    assert len(recorded) < 200


def test_a_function_that_is_never_learned_is_tried_a_few_times() -> None:
    calls, seen = sized.SizedCalls(), list[sized.Sizes]()
    for n in range(1, 200):
        for sizes in ((n, 4096), (0, n)):
            if calls.at(sizes, lambda s: (seen.append(s), None)[1]) is None:
                calls.add(sizes, ())
    assert calls.tries <= sized.TRIES + 20


def test_an_attempt_that_fails_leaves_what_was_known(
    recorded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (9, 21, 33):
        F.gelu(leaf(n, 64))
    monkeypatch.setattr(sized, "learned", lambda *_: None)
    F.gelu(leaf(5000, 64))
    recorded.clear()
    F.gelu(leaf(40, 64))
    assert not recorded


def test_how_often_it_was_tried_is_kept() -> None:
    calls = sized.SizedCalls()
    for n in range(5, 20):
        if calls.at((n, 8), lambda _: None) is None:
            calls.add((n, 8), (None,))
    again = sized.SizedCalls.read(calls.written(), 1)
    assert (again.tries, again.tried_at) == (calls.tries, calls.tried_at) and calls.tries >= sized.TRIES
    assert [again.at((n, 8), lambda _: None) for n in range(5, 20)] == [(None,)] * 15


def test_what_is_learned_of_blocks_serves_fewer_than_came(recorded: list[int]) -> None:
    for n in (250, 251, 252):
        leaf(n).cumsum(0)
    recorded.clear()
    x = leaf(100)
    np.testing.assert_allclose(
        x.cumsum(0).detach().numpy(), np.cumsum(x.detach().numpy()), rtol=1e-4, atol=1e-4
    )
    assert not recorded


def test_what_is_made_again_for_a_size_is_the_same_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its entry had to go meanwhile, too: a graph of it is then the one that has its plan, with its bits."""
    monkeypatch.setattr(composite.settings, "verify", lambda: False)
    monkeypatch.setattr(composite, "_entries", {})
    monkeypatch.setattr(composite, "_families", {})
    for n in (9, 21, 33, 42):
        F.gelu(leaf(n, 50))
    x = leaf(27, 50)
    one = F.gelu(x)
    composite._entries.clear()
    again = F.gelu(x)
    assert isinstance(one.value.node.attrs, LateTemplate)
    assert one.value.node is again.value.node
