"""What programs leave is freed at once: no cycle keeps tensors, files or callers' variables for Python's collector."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import weft
import weft.nn.functional as F
from weft.core.execute import ownership

nn = weft.nn
Program = Callable[[Path], Callable[[], object]]


@contextmanager
def collecting() -> Iterator[list[object]]:
    """What is found to be garbage of weft's, or frames, when the block ends."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [
            x
            for x in gc.garbage
            if isinstance(x, types.FrameType) or type(x).__module__.partition(".")[0] == "weft"
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def trained(compiled: bool) -> Callable[[], object]:
    model, x, y = small(), weft.randn(4, 6), weft.randint(0, 3, (4,))
    optimizer = weft.optim.Adam(model.parameters())

    def step() -> weft.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = weft.compile(step) if compiled else step
    return lambda: run().item()


def compiled_anew() -> object:
    model = small()
    return weft.compile(lambda x: model(x))(weft.ones(2, 6)).sum().item()


def session_anew() -> object:
    model, x = small(), weft.randn(4, 6)
    session = weft.session(lambda a: model(a), x)
    return session(x), session(x + 1)


def loaded(folder: Path) -> Callable[[], object]:
    model = small()
    weft.save(model.state_dict(), folder / "model.pt")
    return lambda: model.load_state_dict(weft.load(folder / "model.pt"))


def written_to() -> None:
    a = weft.zeros(4, 4)
    row = a[1]
    row += 1
    a.t().mul_(2)
    a.tolist()


def differentiated() -> object:
    a = weft.randn(3, requires_grad=True)
    (g,) = weft.autograd.grad((a**3).sum(), a, create_graph=True)
    g.sum().backward()
    return weft.func.vmap(weft.func.grad(lambda x: (x * x).sum()))(weft.ones(2, 3)).tolist()


PROGRAMS: dict[str, Program] = {
    "a training step": lambda _: trained(compiled=False),
    "a compiled training step": lambda _: trained(compiled=True),
    "a function that is compiled and dropped": lambda _: compiled_anew,
    "a session that is dropped": lambda _: session_anew,
    "a checkpoint that is loaded": loaded,
    "writes through views": lambda _: written_to,
    "gradients of gradients": lambda _: differentiated,
    "a chain of products": lambda _: (
        lambda: weft.linalg.multi_dot([weft.ones(2, 3), weft.ones(3, 4), weft.ones(4, 5)])
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_waits_for_the_collector(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name](tmp_path)
    for _ in range(4):
        program()
    with collecting() as found:
        program()
        program()
    assert found == []


def test_asking_for_other_threads_keeps_no_callers_variables() -> None:
    with collecting() as found:
        ownership.sole_thread()
    assert found == []
