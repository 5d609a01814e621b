"""Modules that are edited after a function was recorded: compiled functions and sessions record it again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest

import weft
from weft import nn
from weft.core.compile.direct_call import MISS
from weft.core.execute import edits, tracing
from weft.core.execute.modules import Modules
from weft.errors import DeviceError, DTypeError
from weft.nn import functional as F
from weft.sessions.session import session

rng = np.random.default_rng(3)


def floats(*shape: int) -> weft.Tensor:
    return weft.tensor(rng.standard_normal(shape).astype(np.float32))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0
        self.first, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.rest = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.shifts = nn.ParameterList([nn.Parameter(weft.ones(4))])
        self.drop = nn.Dropout(1.0)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        x = self.norm(self.first(x)) * self.scale
        for layer in self.rest:
            x = layer(x)
        return self.drop(x) + self.shifts[0]


def put(m: Any, path: str, make: Callable[[], Any]) -> None:
    owner, _, name = path.rpartition(".")
    setattr(m.get_submodule(owner), name, make())


def of_other_shapes(m: Any) -> None:
    a, b = m.rest
    a.weight.data, a.bias.data, b.weight.data = floats(2, 4), floats(2), floats(4, 2)


EDITS: dict[str, Callable[[Net], object]] = {
    "parameter": lambda m: put(m, "first.weight", lambda: nn.Parameter(floats(4, 4))),
    "no parameter": lambda m: put(m, "first.bias", lambda: None),
    "module": lambda m: put(m, "first", lambda: nn.Linear(4, 4)),
    "in a list": lambda m: m.rest.__setitem__(1, nn.Linear(4, 4)),
    "appended": lambda m: m.rest.append(nn.Linear(4, 4)),
    "deleted": lambda m: m.rest.__delitem__(1),
    "in a list of parameters": lambda m: m.shifts.__setitem__(0, nn.Parameter(floats(4))),
    "through the dict": lambda m: m.first._parameters.update(weight=nn.Parameter(floats(4, 4))),
    "attribute": lambda m: put(m, "scale", lambda: 2.0),
    "eps": lambda m: put(m, "norm.eps", lambda: 1.0),
    "training": lambda m: m.train(),
    "state dict, assigned": lambda m: m.load_state_dict(Net().state_dict(), assign=True),
    "hook": lambda m: m.first.register_forward_hook(lambda module, args, out: out + 2 * args[0]),
    "pre-hook": lambda m: m.first.register_forward_pre_hook(lambda module, args: (args[0].square(),)),
    "forward": lambda m: put(m, "first.forward", lambda: lambda x: x),
    "parametrization": lambda m: (
        nn.utils.weight_norm(m.first, dim=None)
        and put(m, "first.weight_g", lambda: nn.Parameter(weft.ones(())))
    ),
    "other shapes": of_other_shapes,
    "values": lambda m: m.load_state_dict(Net().state_dict()),
}


def functional(m: Net) -> Callable[[weft.Tensor], weft.Tensor]:
    """The net without calling any module."""

    def f(x: weft.Tensor) -> weft.Tensor:
        x = F.linear(x, m.first.weight, m.first.bias)
        x = F.layer_norm(x, (4,), m.norm.weight, m.norm.bias, m.norm.eps) * m.scale
        for layer in m.rest:
            x = F.linear(x, layer.weight, layer.bias)
        return F.dropout(x, 1.0, m.drop.training) + m.shifts[0]

    return f


WAYS: dict[str, Callable[[Net], Callable[..., Any]]] = {
    "module": lambda m: m,
    "closure": lambda m: lambda x: m(x),
    "method": lambda m: m.forward,
    "nested": lambda m: nn.Sequential(nn.Identity(), nn.Sequential(m)).eval(),
    "functional": functional,
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_function_sees_what_is_edited(way: str, name: str) -> None:
    m, x = Net().eval(), floats(3, 4)
    fn = WAYS[way](m)
    f = weft.compile(fn)
    with weft.no_grad():
        before = [f(x).numpy().copy() for _ in range(2)][-1]
        EDITS[name](m)
        for _ in range(3):
            np.testing.assert_allclose(f(x).numpy(), fn(x).numpy(), rtol=1e-4, atol=1e-5)
        calls_no_module = way == "functional" and name in ("hook", "pre-hook", "forward")
        assert np.array_equal(f(x).numpy(), before) is calls_no_module


@pytest.mark.parametrize("name", EDITS)
def test_a_session_sees_what_is_edited(name: str) -> None:
    m, x = Net().eval(), floats(3, 4)
    s = session(m)
    s(x)
    EDITS[name](m)
    for _ in range(2):
        assert np.array_equal(s(x).numpy(), session(m)(x).numpy())
    assert len(s._forms) == 1


@pytest.mark.parametrize("edit", ["parameter", "module", "attribute", "hook", "training"])
def test_a_compiled_training_step_sees_what_is_edited(edit: str) -> None:
    m, x = Net().eval(), floats(3, 4)

    @weft.compile
    def gradient(x: weft.Tensor) -> weft.Tensor:
        m.zero_grad()
        m(x).square().sum().backward()
        return m.shifts[0].grad

    for _ in range(3):
        gradient(x)
    EDITS[edit](m)
    for _ in range(3):
        got = gradient(x).numpy().copy()
        np.testing.assert_allclose(got, gradient.fn(x).numpy(), rtol=1e-4, atol=1e-5)
        assert m.first.weight.grad is not None


@pytest.mark.parametrize("make", [weft.compile, session])
def test_a_hook_of_all_modules_is_seen(make: Callable[..., Any]) -> None:
    m, x = Net().eval(), floats(3, 4)
    s = make(m)
    before = s(x).detach().numpy().copy()
    with nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 2):
        assert not np.array_equal(s(x).detach().numpy(), before)
    assert np.array_equal(s(x).detach().numpy(), before)


def test_parameters_of_another_dtype_or_device_are_refused_as_the_function_refuses_them() -> None:
    for change, error in (("half", DTypeError), ("to", DeviceError)):
        m, x = Net().eval(), floats(3, 4)
        s = session(m)
        s(x)
        m.half() if change == "half" else m.to("dummy")
        for _ in range(2):
            with pytest.raises(error):
                s(x)


def read_of(fn: Callable[[], object]) -> Modules:
    """What a function reads of modules."""
    from weft.core.compile.recording import Recording, record

    made = record(fn, (), {}, (), whole=True)
    assert isinstance(made, Recording)
    return made.modules


def test_modules_that_others_edit_are_looked_at_once() -> None:
    m, other = Net(), Net()
    modules = read_of(lambda: m.scale)
    assert modules.are_as_they_were()
    seen = edits.modules.latest()
    other.scale, m.unread = 3.0, 1
    assert edits.modules.latest() != seen and modules.are_as_they_were()
    assert modules.edit == edits.modules.latest()
    m.scale = float("nan")
    assert not modules.are_as_they_were() and not modules.are_gone()
    m.scale = 1.0
    assert modules.are_as_they_were()


def test_what_is_read_of_a_dict_or_is_not_there_is_seen() -> None:
    m = Net()
    names = read_of(lambda: list(vars(m)))
    absent = read_of(lambda: hasattr(m, "cache"))
    one = read_of(lambda: m.__dict__["scale"])
    m.scale = 2.0
    assert names.are_as_they_were() is one.are_as_they_were() is False and absent.are_as_they_were()
    m.cache = None
    assert not absent.are_as_they_were()
    assert read_of(lambda: nn.Linear(2, 2)(weft.ones(2)).shape).are_none


def test_modules_are_plain_again_after_a_trace() -> None:
    m = Net()
    before = nn.Module.__setattr__
    with pytest.raises(KeyError):
        read_of(lambda: {}[m.scale])
    assert nn.Module.__setattr__ is before and "__getattribute__" not in vars(nn.Module)
    assert tracing.current() is None


class Counted(nn.Module):
    """A module that counts how often its Python runs, under a name that is no attribute."""

    def __init__(self, forward: Callable[[Any, weft.Tensor], weft.Tensor], **given: Any) -> None:
        super().__init__()
        self.runs: list[int] = []
        self.of = forward
        for name, x in given.items():
            setattr(self, name, x)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        self.runs.append(0)
        return self.of(self, x)


def counter(m: Any, x: weft.Tensor) -> weft.Tensor:
    m.count += 1
    m.seconds += 0.5
    return x * 2


def last(m: Any, x: weft.Tensor) -> weft.Tensor:
    m.last = x * 2
    return m.last + 1


def buffer(m: Any, x: weft.Tensor) -> weft.Tensor:
    m.buffer += x.mean()
    return x + m.buffer


def cache(m: Any, x: weft.Tensor) -> weft.Tensor:
    if m.cache is None:
        m.cache = weft.arange(4.0)
    return x + m.cache


def batch_norm(m: Any, x: weft.Tensor) -> weft.Tensor:
    return m.norm(x)


OWN_EDITS: dict[str, tuple[Callable[[Any, weft.Tensor], weft.Tensor], Callable[[], dict[str, Any]]]] = {
    "counter": (counter, lambda: {"count": 0, "seconds": 0.0}),
    "last": (last, dict),
    "buffer": (buffer, lambda: {"buffer": nn.Buffer(weft.zeros(4))}),
    "cache": (cache, lambda: {"cache": None}),
    "batch norm": (batch_norm, lambda: {"norm": nn.BatchNorm1d(4)}),
}


@pytest.mark.parametrize("name", OWN_EDITS)
def test_what_a_function_edits_itself_is_not_recorded_again_at_each_call(name: str) -> None:
    of, given = OWN_EDITS[name]
    m, plain = Counted(of, **given()), Counted(of, **given())
    f = weft.compile(m)
    shapes = [(3, 4), (5, 4)]
    with weft.no_grad():
        for k in range(10):
            x = floats(*shapes[k % 2])
            np.testing.assert_allclose(f(x).numpy(), plain(x).numpy(), rtol=1e-4, atol=1e-5)
            if k == 5:
                runs = len(m.runs)
    assert len(m.runs) == runs


def test_what_a_function_does_once_by_a_flag_is_done_once() -> None:
    def once(m: Any, x: weft.Tensor) -> weft.Tensor:
        if not m.ready:
            m.ready = True
            x = x + 100
        return x * 2

    m = Counted(once, ready=False)
    f = weft.compile(m)
    assert [f(weft.ones(1)).item() for _ in range(4)] == [202.0, 2.0, 2.0, 2.0]
    assert len(m.runs) == 2
    m.ready = False  # which a call is to set again
    assert [f(weft.ones(1)).item() for _ in range(2)] == [202.0, 2.0]


def test_a_flag_that_each_call_turns_is_right() -> None:
    def turned(m: Any, x: weft.Tensor) -> weft.Tensor:
        m.up = not m.up
        return x if m.up else -x

    f = weft.compile(Counted(turned, up=False))
    assert [f(weft.ones(1)).item() for _ in range(5)] == [1.0, -1.0, 1.0, -1.0, 1.0]


def test_state_that_is_another_tensor_after_each_call_is_right() -> None:
    def step(m: Any, x: weft.Tensor) -> weft.Tensor:
        m.h = m.h * 2 + x
        return m.h

    m = Counted(step, h=weft.zeros(2))
    f = weft.compile(m)
    with weft.no_grad():
        assert [f(weft.ones(2)).tolist()[0] for _ in range(5)] == [1.0, 3.0, 7.0, 15.0, 31.0]
    m.h = weft.zeros(2)
    assert f(weft.ones(2)).tolist() == [1.0, 1.0]


def test_what_comes_back_is_not_recorded_again() -> None:
    m = Counted(lambda m, x: x * m.scale, scale=1.0, note="")
    f = weft.compile(m)
    x = weft.ones(2)
    for _ in range(3):
        for m.scale in (1.0, 2.0):
            m.note += "unread"
            assert f(x).tolist() == [m.scale] * 2
    assert len(m.runs) == 2


def test_traces_of_replaced_parameters_are_let_go_of() -> None:
    m = Net().eval()
    f = weft.compile(m)
    old = ref(m.first.weight)
    with weft.no_grad():
        for n in (3, 5):
            f(floats(n, 4))
        m.load_state_dict(Net().state_dict(), assign=True)
        f(floats(3, 4))
    gc.collect()
    assert old() is None


def test_a_functional_call_is_recorded_once() -> None:
    m = Counted(lambda m, x: m.inner(x), inner=nn.Linear(4, 4))
    given = {"inner.weight": floats(4, 4)}
    f = weft.compile(lambda w, x: weft.func.functional_call(m, w, (x,)))
    with weft.no_grad():
        for _ in range(4):
            f(given, floats(2, 4))
    assert len(m.runs) == 1


def test_a_module_without_state_of_its_own_is_called_directly() -> None:
    m = nn.Linear(4, 4)
    f, x = weft.compile(m), floats(2, 4)
    with weft.no_grad():
        f(x)
        inner = f._compiled
        assert inner._direct is not None and inner._direct((x,)) is not MISS
        m.bias = None
        assert inner._direct((x,)) is MISS
        np.testing.assert_allclose(f(x).numpy(), m(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_method_of_a_module_is_of_the_module() -> None:
    class Two(Net):
        def half_of_it(self, x: weft.Tensor) -> weft.Tensor:
            return x @ self.first.weight

    m, x = Two(), floats(3, 4)
    s, f = session(m.half_of_it), weft.compile(m.half_of_it)
    s(x), f(x)
    m.first = nn.Linear(4, 4)
    want = session(m.half_of_it)(x).numpy()
    assert np.array_equal(s(x).numpy(), want)
    np.testing.assert_allclose(f(x).detach().numpy(), want, rtol=1e-5)
