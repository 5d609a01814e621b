"""What is computed along with what is asked for: plans, graphs and memory of a user's own loops do not grow."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import Tensor, nn
from weft.core.execute import holding, pending, realization
from weft.ir.graph import live_nodes, toposort
from weft.ir.ops import Op
from weft.scheduler import realize as engine
from weft.scheduler import shortcuts

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "24"))


class Counts:
    """The plans that run, the rows of their graphs, and the different graphs among them."""

    def __init__(self) -> None:
        self.runs, self.rows = 0, 0
        self.graphs: set[Any] = set()

    def clear(self) -> None:
        self.runs = self.rows = 0


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    found = Counts()
    planned = engine.planned

    def counting(sig: Any, *rest: Any) -> Any:
        found.runs += 1
        found.rows += len(sig.key.rows)
        found.graphs.add(sig.key)
        return planned(sig, *rest)

    taken = shortcuts.taken

    def counting_shortcuts(at: shortcuts.Look, node: Any) -> Any:
        value = taken(at, node)
        if value is not None:
            found.runs += 1
            found.rows += len(toposort([node]))
        return value

    monkeypatch.setattr(engine, "planned", counting)
    monkeypatch.setattr(shortcuts, "taken", counting_shortcuts)
    return found


@pytest.fixture(autouse=True)
def as_in_a_thread_of_its_own() -> Iterator[None]:
    pending.mine.__init__()
    holding.mine.__init__()
    yield
    pending.mine.__init__()
    holding.mine.__init__()


def parameters() -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [weft.tensor(rng.standard_normal((4, 4)).astype(np.float32), requires_grad=True) for _ in range(2)]


def rows(k: int) -> Tensor:
    return weft.tensor(np.random.default_rng(100 + k).standard_normal((3, 4)).astype(np.float32))


def grad(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


State = dict[Any, Any]
Update = Callable[[list[Tensor], State], "list[Tensor] | None"]


def zeros(ps: list[Tensor], state: State, name: str) -> list[Tensor]:
    return state.setdefault(name, [weft.zeros_like(p.detach()) for p in ps])


def sgd(ps: list[Tensor], state: State) -> None:
    with weft.no_grad():
        for p in ps:
            p -= 0.1 * grad(p)


def sgd_of_data(ps: list[Tensor], state: State) -> None:
    for p in ps:
        p.data -= 0.1 * grad(p)


def sgd_by_copy(ps: list[Tensor], state: State) -> None:
    with weft.no_grad():
        for p in ps:
            p.copy_(p - 0.1 * grad(p))


def sgd_in_a_list(ps: list[Tensor], state: State) -> list[Tensor]:
    with weft.no_grad():
        return [(p - 0.1 * grad(p)).requires_grad_() for p in ps]


def momentum(ps: list[Tensor], state: State) -> None:
    with weft.no_grad():
        for p, v in zip(ps, zeros(ps, state, "v"), strict=True):
            v.mul_(0.9).add_(grad(p))
            p.sub_(0.1 * v)


def momentum_by_name(ps: list[Tensor], state: State) -> None:
    with weft.no_grad():
        for k, p in enumerate(ps):
            state[k] = 0.9 * state.get(k, 0) + grad(p)
            p.sub_(0.1 * state[k])


def nesterov(ps: list[Tensor], state: State) -> None:
    with weft.no_grad():
        for p, v in zip(ps, zeros(ps, state, "v"), strict=True):
            v.mul_(0.9).add_(grad(p))
            p.sub_(0.1 * (grad(p) + 0.9 * v))


def lion(ps: list[Tensor], state: State) -> None:
    with weft.no_grad():
        for p, m in zip(ps, zeros(ps, state, "m"), strict=True):
            p.sub_(0.01 * (0.9 * m + 0.1 * grad(p)).sign())
            m.mul_(0.99).add_(grad(p), alpha=0.01)


def adabelief(ps: list[Tensor], state: State) -> None:
    with weft.no_grad():
        for p, m, s in zip(ps, zeros(ps, state, "m"), zeros(ps, state, "s"), strict=True):
            m.lerp_(grad(p), 0.1)
            s.mul_(0.99).add_((grad(p) - m).square(), alpha=0.01).add_(1e-8)
            p.sub_(0.01 * m / (s.sqrt() + 1e-6))


def rmsprop(ps: list[Tensor], state: State) -> None:
    with weft.no_grad():
        for p, s in zip(ps, zeros(ps, state, "s"), strict=True):
            s.mul_(0.9).addcmul_(grad(p), grad(p), value=0.1)
            p.addcdiv_(grad(p), s.sqrt().add_(1e-6), value=-0.01)


def averaged(ps: list[Tensor], state: State) -> None:
    sgd(ps, state)
    with weft.no_grad():
        for p, a in zip(ps, zeros(ps, state, "a"), strict=True):
            a.mul_(0.9).add_(p, alpha=0.1)


def counted(ps: list[Tensor], state: State) -> None:
    sgd(ps, state)
    if "count" not in state:
        state["count"] = weft.tensor(np.zeros(3, np.float32))
    state["count"] += 1


UPDATES: list[Update] = [
    sgd, sgd_of_data, sgd_by_copy, sgd_in_a_list, momentum, momentum_by_name, nesterov, lion, adabelief, rmsprop,
    averaged, counted,
]  # fmt: skip


class Training:
    """A loop that updates its parameters by hand. `realized`: with everything computed after each step."""

    def __init__(
        self, update: Update, zero: str = "none", read: str = "after", realized: bool = False
    ) -> None:
        self.update, self.zero, self.read, self.realized = update, zero, read, realized
        self.ps, self.state, self.losses = parameters(), State(), list[float]()

    def step(self, k: int) -> None:
        for p in self.ps:
            if self.zero == "none" or p.grad is None:
                p.grad = None
            else:
                p.grad.zero_()
        loss = ((rows(k) @ self.ps[0]).tanh() @ self.ps[1]).square().mean()
        loss.backward()
        if self.read == "before":
            self.losses.append(loss.item())
        new = self.update(self.ps, self.state)
        self.ps = self.ps if new is None else new
        if self.read == "after":
            self.losses.append(loss.item())
        if self.realized:
            weft.realize(*self.held())

    def held(self) -> list[Tensor]:
        found = [*self.ps]
        for v in self.state.values():
            found += v if isinstance(v, list) else [v]
        return found


@pytest.mark.parametrize("zero", ["none", "zero_"])
@pytest.mark.parametrize("read", ["before", "after"])
@pytest.mark.parametrize("update", UPDATES, ids=lambda f: f.__name__)
def test_a_loop_that_updates_by_hand_is_flat(update: Update, read: str, zero: str, counts: Counts) -> None:
    earlier = WeakSet(live_nodes())  # what other tests left, which may die meanwhile
    training = Training(update, zero, read)
    seen: list[tuple[int, int, int]] = []
    nodes: list[int] = []
    for k in range(40):
        counts.clear()
        training.step(k)
        gc.collect() if k in (5, 39) else None
        seen.append((counts.runs, counts.rows, len(counts.graphs)))
        if k in (5, 39):
            nodes.append(sum(1 for n in live_nodes() if n not in earlier))
    assert set(seen[4:]) == {seen[4]}, seen
    assert abs(nodes[1] - nodes[0]) < 10
    assert seen[4][0] <= 3


@pytest.mark.parametrize("update", UPDATES, ids=lambda f: f.__name__)
def test_a_loop_that_updates_by_hand_has_the_bits_of_one_that_computes_each_step(update: Update) -> None:
    one, other = Training(update), Training(update, realized=True)
    for k in range(12):
        one.step(k)
        other.step(k)
    assert one.losses == other.losses
    for a, b in zip(one.held(), other.held(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_what_is_carried_by_name_is_computed_from_the_third_time_on(counts: Counts) -> None:
    rng = np.random.default_rng(0)
    matrix = weft.tensor(rng.standard_normal((8, 8)).astype(np.float32))
    v, expected = weft.tensor(np.ones(8, np.float32)), np.ones(8)
    sizes: list[int] = []
    for _ in range(12):
        u = matrix @ v
        value = (u * v).sum()
        v = u / u.square().sum().sqrt()
        del u
        counts.clear()
        found = value.item()
        sizes.append(counts.rows)
        product = matrix.numpy() @ expected
        assert found == pytest.approx(product @ expected, rel=1e-4)
        expected = product / np.sqrt(np.square(product).sum())
    assert set(sizes[4:]) == {sizes[4]}
    assert v.value.node.op is Op.BUFFER


# ------------------------------------------------------------------------------------------------ gradients


def many(n: int) -> tuple[list[Tensor], Tensor]:
    ps = [weft.tensor(np.full((4, 4), 0.1 * (k + 1), np.float32), requires_grad=True) for k in range(n)]
    h = rows(0)
    for p in ps:
        h = (h @ p).tanh()
    return ps, h.square().sum()


@pytest.mark.parametrize("step", [False, True], ids=["before the step", "after it"])
def test_the_first_gradient_that_is_looked_at_brings_the_others(step: bool, counts: Counts) -> None:
    ps, loss = many(6)
    optimizer = weft.optim.SGD(ps, lr=0.1, momentum=0.9)
    loss.backward()
    if step:
        optimizer.step()
    counts.clear()
    grad(ps[3]).numpy()
    assert all(grad(p).value.node.op is Op.BUFFER for p in ps)
    assert counts.runs == 1


@pytest.mark.parametrize("step", [False, True], ids=["before the step", "after it"])
def test_the_first_gradient_that_is_read_brings_the_others(step: bool, counts: Counts) -> None:
    ps, loss = many(6)
    optimizer = weft.optim.SGD(ps, lr=0.1)
    loss.backward()
    if step:
        optimizer.step()
    counts.clear()
    norms = [grad(p).norm().item() for p in ps]
    backward = counts.rows
    assert all(grad(p).value.node.op is Op.BUFFER for p in ps)
    assert counts.runs == 6
    again, loss = many(6)
    loss.backward()
    counts.clear()
    together = weft.stack([grad(p).norm() for p in again])
    np.testing.assert_allclose(together.numpy(), norms, rtol=1e-5)
    assert backward < counts.rows * 1.3


def test_an_optimizer_does_not_store_gradients() -> None:
    ps, loss = many(3)
    optimizer = weft.optim.SGD(ps, lr=0.1)
    loss.backward()
    optimizer.step()
    assert all(grad(p).value.node.storage is None for p in ps)
    assert loss.value.node.storage is not None


def test_gradients_that_are_read_after_updates_are_computed_along_with_them() -> None:
    stored, norms = list[bool](), list[list[float]]()
    for read in (True, False):
        pending.mine.__init__()
        ps, _ = many(3)
        optimizer, x = weft.optim.SGD(ps, lr=0.01, momentum=0.9), rows(1)
        for _ in range(pending.OFTEN + 2):
            optimizer.zero_grad()
            sum(((x @ p).tanh().square().sum() for p in ps), weft.zeros(())).backward()
            optimizer.step()
            stored.append(all(grad(p).value.node.storage is not None for p in ps))
            if read:
                norms.append([grad(p).norm().item() for p in ps])
    assert stored == [False] * pending.OFTEN + [True] * 2 + [False] * (pending.OFTEN + 2)
    falls = [a > b for old, new in pairwise(norms) for a, b in zip(old, new, strict=True)]
    assert all(falls) and len(falls) == 3 * (pending.OFTEN + 1)


def test_gradients_that_are_not_shared_are_left_alone() -> None:
    ps, loss = many(2)
    loss.backward()
    loss.item()  # computes them along
    assert all(grad(p).value.node.op is Op.BUFFER for p in ps)
    ps, loss = many(2)
    loss.backward()
    del loss
    (rows(3) * 2).sum().item()
    assert all(grad(p).value.node.storage is None for p in ps)


def test_gradients_that_are_added_up_are_computed_one_pass_after_the_other(counts: Counts) -> None:
    (p, q), graphs, nodes = parameters(), list[int](), list[int]()
    for k in range(12):
        ((rows(k) @ p).tanh() @ q).square().sum().backward()
        graphs.append(len(counts.graphs))
        nodes.append(len(toposort([grad(p).value.node, grad(q).value.node])))
    assert set(graphs[3:]) == {graphs[3]}
    assert set(nodes[2:]) == {nodes[2]}
    found = [grad(p).numpy(), grad(q).numpy()]
    p.grad = q.grad = None
    total = sum((((rows(k) @ p).tanh() @ q).square().sum() for k in range(12)), weft.zeros(()))
    total.backward()
    np.testing.assert_allclose(found[0], grad(p).numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], grad(q).numpy(), rtol=1e-4, atol=1e-4)


def test_statistics_that_move_on_do_not_compute_a_forward_pass_before_its_gradients(counts: Counts) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    means = [net[k].running_mean for k in (1, 3)]
    for k in range(3):
        net(rows(k)).square().sum().backward()
        assert counts.runs == k
        assert all(grad(p).value.node.storage is None for p in net.parameters())
        assert all(m.value.node.storage is None for m in means)
    found = [p.numpy() for p in (*map(grad, net.parameters()), *means)]
    assert len(counts.graphs) == 3  # of the first pass, of others, and of the last one
    net.zero_grad()
    for m in means:
        m.zero_()
    for k in range(3):
        net(rows(k)).square().sum().backward()
        weft.realize(*[grad(p) for p in net.parameters()], *means)
    for x, t in zip(found, (*map(grad, net.parameters()), *means), strict=True):
        np.testing.assert_array_equal(x, t.numpy())


def test_statistics_of_two_forward_passes_before_a_backward_pass_wait_for_it(counts: Counts) -> None:
    norm = nn.BatchNorm1d(4)
    p, _ = parameters()
    (norm(rows(0) @ p) + norm(rows(1) @ p)).square().sum().backward()
    norm(rows(2)).sum()  # of another graph: what went backward is done
    assert counts.runs == 1
    assert grad(p).value.node.storage is not None


def test_statistics_that_move_on_leave_other_gradients_alone(counts: Counts) -> None:
    norm, (p, q) = nn.BatchNorm1d(4), parameters()
    norm(rows(0) @ p).square().sum().backward()
    (rows(1) @ q).square().sum().backward()
    norm(rows(2)).sum()
    assert grad(p).value.node.storage is not None and grad(q).value.node.storage is None


def test_statistics_that_move_on_in_a_backward_pass_compute_nothing(counts: Counts) -> None:
    norm, (p, _) = nn.BatchNorm1d(4), parameters()
    norm(rows(0) @ p).square().sum().backward()
    with pending.postponed():
        norm(rows(1))
    assert counts.runs == 0
    norm(rows(2))
    assert counts.runs == 1


def test_statistics_of_each_example_move_on_alike(counts: Counts) -> None:
    norm, (p, _) = nn.InstanceNorm1d(4, track_running_stats=True), parameters()
    for k in range(3):
        norm((rows(k) @ p).reshape(1, 4, -1)).square().sum().backward()
        assert counts.runs == k and norm.running_mean.value.node.storage is None


def test_two_backward_passes_from_one_forward_pass_stay_one_graph(counts: Counts) -> None:
    p, q = parameters()
    h = (rows(0) @ p).tanh()
    h.sum().backward()
    (h @ q).sum().backward()
    assert counts.runs == 0
    assert grad(p).shape == (4, 4)


def test_zeroed_gradients_forget_what_they_were() -> None:
    p, _ = parameters()
    (rows(0) @ p).sum().backward()
    optimizer = weft.optim.SGD([p], lr=0.1)
    optimizer.zero_grad(set_to_none=False)
    assert not grad(p).value.node.inputs
    p.grad = weft.full((4, 4), float("nan"))
    optimizer.zero_grad(set_to_none=False)
    np.testing.assert_array_equal(grad(p).numpy(), np.zeros((4, 4)))


# ------------------------------------------------------------------------------------------------ bounds


def test_what_nobody_asks_for_is_bounded(monkeypatch: pytest.MonkeyPatch, counts: Counts) -> None:
    monkeypatch.setattr(realization, "MAX_PENDING", 400)
    weft.ir.graph.watch_after(1)
    y = rows(0)
    x, expected = rows(1), rows(1).numpy().astype(np.float64)
    most = 0
    for k in range(4000):
        x = x * 0.99 + y
        expected = expected * 0.99 + y.numpy()
        most = max(most, len(toposort([x.value.node])) if not k % 10 else 0)
    assert most < 500
    assert counts.runs >= 15
    assert len(counts.graphs) <= counts.runs // 4  # a dead entry of the table may put off a look
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_what_is_computed_early_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    y, found = rows(0), list[Any]()
    for most in (1 << 14, 300):
        monkeypatch.setattr(realization, "MAX_PENDING", most)
        weft.ir.graph.watch_after(1)
        x = rows(1)
        for _ in range(1000):
            x = x * 0.99 + y
        found.append(x.numpy())
    np.testing.assert_array_equal(found[0], found[1])


def test_leaves_are_not_held_for_ever_by_what_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.core.execute import run

    monkeypatch.setattr(run, "PINNED_BYTES", 10 * 4096)
    total = weft.zeros(()).exp()
    sizes: list[int] = []
    for k in range(60):
        total = total + weft.tensor(np.full(1024, k, np.float32)).sum()
        sizes.append(sum(n.op is Op.BUFFER for n in toposort([total.value.node])))
    assert max(sizes) <= 12
    assert total.item() == 1 + 1024 * sum(range(60))


def test_nothing_is_computed_early_in_a_backward_pass(
    monkeypatch: pytest.MonkeyPatch, counts: Counts
) -> None:
    ps, loss = many(40)
    monkeypatch.setattr(realization, "MAX_PENDING", 10)
    weft.ir.graph.watch_after(1)
    loss.backward()
    assert counts.runs == 0
    (rows(0) + 1).sum()
    assert counts.runs >= 1
    assert all(grad(p).value.node.op is Op.BUFFER for p in ps)


@pytest.mark.parametrize("by", ["a hook", "a trace"])
def test_a_look_that_comes_at_a_wrong_time_is_put_off(
    by: str, monkeypatch: pytest.MonkeyPatch, counts: Counts
) -> None:
    ps, loss = many(40)
    monkeypatch.setattr(realization, "MAX_PENDING", 10)
    if by == "a hook":  # its tensor is made within the backward pass
        ps[-2].register_hook(lambda g: g * 2)
        weft.ir.graph.watch_after(1)
        loss.backward()
    else:
        loss.backward()
        weft.ir.graph.watch_after(1)
        weft.vmap(lambda row: (row * 2).softmax(-1).tanh())(ps[0].detach())
    (rows(0) + 1).sum()
    assert counts.runs >= 1
    assert all(grad(p).value.node.op is Op.BUFFER for p in ps)


# ------------------------------------------------------------------------------------------------ what else holds


def test_what_shares_no_work_has_a_plan_of_its_own(counts: Counts) -> None:
    x, y, w, n = rows(0), rows(1), rows(2), rows(3)
    w += x
    w *= 2
    n += 1
    (y * 2).sum().item()
    assert counts.runs == 3
    assert w.value.node.op is n.value.node.op is Op.BUFFER
    w += x
    (y * 2).sum().item()
    assert counts.runs == 5


def test_a_companion_that_cannot_be_computed_does_not_harm_what_is_asked_for(counts: Counts) -> None:
    x = rows(0)
    column = weft.tensor(np.ones((4096, 1), np.float32)).exp()
    shared = x * 2
    state = rows(1)
    state += shared
    state += (column * column.T).cumsum(0)[5, :4] * 0
    with weft.memory_limit(4 << 20):
        assert shared.sum().item() == pytest.approx(float(x.numpy().sum() * 2), rel=1e-5)
        assert state.value.node.storage is None
        runs = counts.runs
        (shared + 1).sum().item()
        assert counts.runs == runs + 1  # it is not tried again
        with pytest.raises(MemoryError):
            state.numpy()
    np.testing.assert_array_equal(state.numpy(), rows(1).numpy() + x.numpy() * 2)


def test_a_thread_computes_along_what_it_has_changed_itself() -> None:
    x, y = rows(0), rows(1)
    x += 1
    thread = threading.Thread(target=lambda: (y.add_(1), (rows(2) * 2).sum().item()))
    thread.start()
    thread.join()
    assert x.value.node.storage is None
    assert y.value.node.op is Op.BUFFER


def test_explain_says_what_is_computed_along_and_why() -> None:
    p, q = parameters()
    other = rows(5)
    loss = ((rows(0) @ p).tanh() @ q).sum()
    loss.backward()
    with weft.no_grad():
        p -= grad(p)
    other += 1
    text = [str(a) for a in weft.explain(loss * 2).along]
    assert text == [
        "along: f32[], the loss of a backward pass, or a running statistic",
        "along: f32[4, 4], a gradient of a backward pass",
        "along: f32[4, 4], changed in place",
        "afterwards: f32[3, 4], changed in place",
    ]
    assert p.value.node.storage is None and other.value.node.storage is None
    assert "along: f32[4, 4], changed in place" in str(weft.explain(loss * 2))
    loss.item()
    assert not weft.explain(rows(0) + 1).along


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 30))
def test_random_loops_compute_what_numpy_does(seed: int) -> None:
    """In-place writes, views, names that are bound anew, handles that are dropped, reads at random moments. Values are
    small whole numbers, so every order of computing them gives the same bits."""
    rng = random.Random(seed)
    arrays = [np.arange(4, dtype=np.float32) + k for k in range(4)]
    tensors: list[Tensor | None] = [weft.tensor(a) for a in arrays]
    views: list[tuple[Tensor, int, slice]] = []
    for _ in range(rng.randrange(20, 60)):
        i, j = rng.randrange(4), rng.randrange(4)
        t, u = tensors[i], tensors[j]
        assert t is not None and u is not None
        match rng.choice(["add", "set", "clip", "name", "view", "write", "copy", "read", "sum", "drop"]):
            case "add":
                t += u
                arrays[i] += arrays[j]
            case "set":
                k = rng.randrange(4)
                t[k] = float(k)
                arrays[i][k] = k
            case "clip":
                t.clamp_(-50, 50)
                np.clip(arrays[i], -50, 50, out=arrays[i])
            case "name":
                views = [v for v in views if v[1] != i]
                tensors[i] = t - u
                arrays[i] = arrays[i] - arrays[j]
            case "view":
                part = slice(rng.randrange(2), 4)
                views.append((t[part], i, part))
            case "write" if views:
                v, k, part = rng.choice(views)
                v.mul_(-1)
                arrays[k][part] *= -1
            case "copy":
                t.copy_(u)
                arrays[i][:] = arrays[j]
            case "read":
                np.testing.assert_array_equal(t.numpy(), arrays[i])
            case "sum":
                assert (t + u).sum().item() == (arrays[i] + arrays[j]).sum()
            case "drop":
                views = views[1:]
            case _:
                pass
    for t, a in zip(tensors, arrays, strict=True):
        assert t is not None
        np.testing.assert_array_equal(t.numpy(), a)
    for v, k, part in views:
        np.testing.assert_array_equal(v.numpy(), arrays[k][part])


def test_a_look_at_what_is_pending_is_not_repeated_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realization, "MAX_PENDING", 400)
    looks: list[int] = []
    count = holding.count
    monkeypatch.setattr(holding, "count", lambda *given: (looks.append(0), count(*given))[1])
    x, y = rows(0), rows(1)
    for _ in range(170):
        x = x * 0.99 + y  # nearly as many as may be
    weft.ir.graph.watch_after(1)
    for k in range(1000):
        y + k
    assert 1 <= len(looks) < 60
    assert x.value.node.storage is None


def _in_a_scan(x: Tensor) -> Tensor:
    return weft.scan(lambda h, row: ((h + row).tanh(), h * 2), x[0], x)[1]


def _gradient(x: Tensor) -> Tensor:
    w = weft.ones(4, requires_grad=True)
    weft.utils.checkpoint.checkpoint(lambda t: (t * x).tanh().softmax(-1), w).square().sum().backward()
    return grad(w)


def _steps(x: Tensor) -> Tensor:
    weft.manual_seed(0)
    model = weft.nn.Sequential(weft.nn.Linear(4, 4), weft.nn.BatchNorm1d(4), weft.nn.Linear(4, 2))
    optimizer = weft.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(-1).values, lambda x: x.flatten().kthvalue(5).values, lambda x: x.cumsum(0).median(0).values,
        lambda x: weft.vmap(lambda row: (row * 2).softmax(-1) + x.sum())(x), _in_a_scan, _gradient, _steps,
        lambda x: weft.compile(lambda t: (t @ t.T).softmax(-1) + t.mean())(x + 1),
    ],
)  # fmt: skip
def test_anything_may_be_computed_at_any_time(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    want = function(rows(0)).detach().numpy()
    monkeypatch.setattr(realization, "MAX_PENDING", 0)
    runs: list[int] = []
    bound = realization.bound
    monkeypatch.setattr("weft.core.args.handle._bounds", [lambda t: (runs.append(0), bound(t))])
    weft.ir.graph.watch_after(1)
    found = function(rows(0)).detach().numpy()
    monkeypatch.undo()
    weft.ir.graph.watch_after(weft.ir.graph.GROWTH)
    assert runs
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_each_pass_that_adds_to_gradients_is_computed_by_itself_in_every_step() -> None:
    weft.manual_seed(0)
    net = nn.Linear(4, 3)
    optimizer = weft.optim.SGD(net.parameters(), lr=0.1)
    parts = [weft.randn(5, 4).realize() for _ in range(3)]
    for _ in range(3):
        optimizer.zero_grad()
        for k, x in enumerate(parts):
            before = net.weight.grad
            net(x).square().mean().backward()
            assert k == 0 or before.value.node.storage is not None
        optimizer.step()


def test_constants_that_were_written_by_each_other_are_computed_together(counts: Counts) -> None:
    """One by one, each would be computed from the first write on: as many plans, each of a longer graph."""
    x = weft.zeros(200, 2)
    views = [x[i : i + 2] for i in range(199)]
    for v in views:
        v += 1.0
    assert x.sum().item() == 4 * 199
    assert counts.runs <= 2
    assert views[7].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_constants_that_share_no_write_are_computed_apart(counts: Counts) -> None:
    a, b, c = weft.zeros(4), weft.zeros(4), weft.ones(3)
    a[1:3] = 5.0
    a[:2] += 1.0
    b[0] = 7.0
    due = pending.due([(c * weft.tensor([1.0, 2.0, 3.0])).value.node])
    assert sorted(len(group) for group in due.apart) == [1, 1]
    assert a.tolist() == [1.0, 6.0, 5.0, 0.0]
    assert b.tolist() == [7.0, 0.0, 0.0, 0.0]
