"""Subclasses of Tensor, `__torch_function__`, modes, storages and histories, as programs for torch use them."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import operator
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import overrides
from weft.core.surface import overrides as mechanism

HAVE_TORCH = importlib.util.find_spec("torch") is not None
LOG: list[Any] = []


class Logged(weft.Tensor):
    """Takes every call over, and leaves it as it is."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append((func, types))
        return super().__torch_function__(func, types, args, kwargs or {})


class Plain(weft.Tensor):
    """Has the default `__torch_function__`."""


class Named(weft.Tensor):
    """Made in torch's way, with more than its elements."""

    @staticmethod
    def __new__(cls, data: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls, data, *args, **kwargs)

    def __init__(self, data: Any, name: str) -> None:
        self.name = name


mechanism.uninstall()  # the definitions above installed it; other modules' tests are of plain programs


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    mechanism.install()
    yield
    mechanism.uninstall()


def test_results_are_of_the_subclass() -> None:
    t, i = weft.ones(3), weft.tensor([0, 1])
    for cls in (Logged, Plain):
        d = t.as_subclass(cls)
        made = [
            d + 1, 1 - d, t + d, t.add(d), weft.add(t, d), weft.exp(d), d.sum(), d[0], d[i], weft.cat([t, d]), d.T, -d,
            weft.nn.functional.relu(d), weft.nn.functional.linear(d, weft.ones(2, 3)), d > 0, weft.stack((d, d)),
            d.clone(), d.detach(), d.to(weft.float64), weft.linalg.norm(d), weft.where(t > 0, t, d), d.view(3, 1),
            weft.zeros_like(d), d.sort().values, weft.max(d, 0).indices, d.data, weft.special.expit(d),
            weft.einsum("i,i->", d, d), d @ t,
        ]  # fmt: skip
        assert [type(x) for x in made] == [cls] * len(made)
        assert d.add_(1) is d and type(d) is cls and t.tolist()[0] == d.tolist()[0]
        assert (d.shape, d.sum().item(), bool(weft.equal(d, d))) == (
            (3,),
            d.detach().as_subclass(cls).sum().item(),
            True,
        )
    assert type(weft.nn.Parameter(t) + 1) is weft.Tensor and type(t + 1) is weft.Tensor


def test_who_takes_over_sees_the_functions_that_programs_name() -> None:
    d = weft.ones(2).as_subclass(Logged)
    cases = {
        weft.exp: lambda: weft.exp(d), weft.Tensor.add: lambda: d + 1, weft.cat: lambda: weft.cat([d, d]),
        weft.nn.functional.gelu: lambda: weft.nn.functional.gelu(d), weft.Tensor.__getitem__: lambda: d[0],
        weft.Tensor.T.__get__: lambda: d.T, weft.Tensor.item: lambda: d.sum().item(),
        weft.median: lambda: weft.median(d),
        weft.Tensor.exp_: lambda: d.exp_(), weft.linalg.norm: lambda: weft.linalg.norm(d),
    }  # fmt: skip
    for function, call in cases.items():
        LOG.clear()
        call()
        assert LOG[-1] == (function, (Logged,)), function
    assert (
        weft.Tensor.__getitem__.__name__ == "__getitem__"
        and "dim" in inspect.signature(weft.Tensor.sum).parameters
    )
    with overrides.DisableTorchFunctionSubclass():
        LOG.clear()
        assert type(d + 1) is weft.Tensor and not LOG


def test_made_in_torchs_way() -> None:
    n = Named([1.0, 2.0], "n")
    assert (n.name, n.tolist(), type(n * 2), type(n)) == ("n", [1.0, 2.0], Named, Named)
    m = weft.Tensor._make_subclass(Named, weft.ones(2), True)
    assert type(m) is Named and m.requires_grad and m.is_leaf
    (m * 3).sum().backward()
    assert m.grad is not None and m.grad.tolist() == [3.0, 3.0]

    class Weight(weft.nn.Parameter):
        def __new__(cls, data: Any, bits: int = 8, requires_grad: bool = True) -> Any:
            self = weft.Tensor._make_subclass(cls, data, requires_grad)
            self.bits = bits
            return self

    w = Weight(weft.ones(2), bits=4)
    assert w.bits == 4 and isinstance(w, weft.nn.Parameter) and type(w + 1) is weft.Tensor
    assert copy.deepcopy(w).bits == 4 and w.requires_grad
    base = weft.ones(3, requires_grad=True)
    (base.as_subclass(Plain) * 2).sum().backward()
    assert base.grad is not None and base.grad.tolist() == [2.0] * 3


def test_classes_that_are_no_tensors() -> None:
    class Diagonal:
        def __init__(self, n: int, value: float) -> None:
            self.n, self.value = n, value

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func not in HANDLED or not all(issubclass(t, weft.Tensor | Diagonal) for t in types):
                return NotImplemented
            return HANDLED[func](*args, **(kwargs or {}))

    HANDLED = {
        weft.mean: lambda d: d.value / d.n,
        weft.add: lambda a, b: "sum",
        weft.nn.functional.relu: lambda d: "relu",
        weft.stack: lambda ds: len(ds),
    }
    d, t = Diagonal(5, 2.0), weft.ones(2)
    assert weft.mean(d) == 0.4 and weft.add(t, d) == "sum" and weft.nn.functional.relu(d) == "relu"
    assert weft.stack([d, t, d]) == 3 and overrides.is_tensor_like(d) and overrides.has_torch_function((t, d))
    with pytest.raises(TypeError, match="exp: no implementation for Diagonal"):
        weft.exp(d)

    def public(x: Any) -> Any:
        if overrides.has_torch_function_unary(x):
            return overrides.handle_torch_function(public, (x,), x)
        return "plain"

    HANDLED[public] = lambda x: "taken over"
    assert public(d) == "taken over" and public(t) == "plain"


@pytest.mark.skipif(not HAVE_TORCH, reason="PyTorch is not installed")
def test_tensors_of_pytorch_take_nothing_over() -> None:
    import torch

    class Theirs(torch.Tensor):
        pass

    assert Plain([1.0]).sum().item() == 1  # from here on calls may be taken over
    x = torch.arange(3.0)
    assert weft.from_torch(x).tolist() == weft.from_torch(x.as_subclass(Theirs)).tolist() == [0, 1, 2]


def test_modes_see_every_call() -> None:
    seen: list[Any] = []

    class Mode(overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Mode():
        y = weft.ones(2).exp() + 1
    assert (
        seen == ["ones", "exp", "add"]
        and weft.ones(1).item() == 1
        and len(seen) == 3
        and type(y) is weft.Tensor
    )


def test_subclasses_of_operators_below_are_refused() -> None:
    class Wrapper(weft.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any: ...

    for make in (
        lambda: weft.ones(2).as_subclass(Wrapper),
        lambda: weft.Tensor._make_wrapper_subclass(Wrapper, (2,)),
    ):
        with pytest.raises(weft.ArgumentError, match="__torch_dispatch__, which weft never calls"):
            make()


def test_plain_programs_pay_nothing() -> None:
    text = (
        "import weft, weft.nn; from weft.core.surface import overrides as o\n"
        "x = weft.nn.Linear(2, 2)(weft.ones(1, 2)).relu().sum(); x.backward()\n"
        "assert not o._installed and not o._intercepted\n"
        "assert not any(f.__kwdefaults__ and '_dispatch' in f.__kwdefaults__ for _, f in o.methods())\n"
        "class D(weft.Tensor): pass\n"
        "assert o._installed and weft.Tensor.add.__kwdefaults__"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


def test_everything_is_as_before_when_it_is_taken_away() -> None:
    before = {name: (f, f.__code__) for name, f in mechanism.methods()}
    mechanism.uninstall()
    assert inspect.signature(weft.Tensor.add) is not None and (weft.ones(2) + 1).tolist() == [2, 2]
    plain = {name: f.__code__ for name, f in mechanism.methods()}
    assert all(f is before[name][0] and plain[name] is not before[name][1] for name, f in mechanism.methods())
    assert type(weft.ones(2).as_subclass(Plain) + 1) is weft.Tensor
    mechanism.install()
    assert type(weft.ones(2).as_subclass(Plain) + 1) is Plain


def test_storages_find_tensors_that_share_elements() -> None:
    x, y = weft.randn(4, 6), weft.randn(4, 6)
    views = [x.view(-1), x[1], x.T, x.detach(), weft.nn.Parameter(x), x.as_subclass(Plain), x[:, 2:], x.data]
    assert {v.untyped_storage().data_ptr() for v in views} == {x.untyped_storage().data_ptr()}
    assert (
        x.untyped_storage().data_ptr()
        != y.untyped_storage().data_ptr()
        != x.clone().untyped_storage().data_ptr()
    )
    assert [v.data_ptr() - x.data_ptr() for v in (x[1], x[:, 2:], x[2, 3:], x.view(-1)[-1], x.T[5], x[2:][1])] == [
        24, 8, 60, 92, 20, 72,
    ]  # fmt: skip
    assert [v.storage_offset() for v in (x, x[1], x.view(-1)[-1], x.flip(0))] == [0, 6, 23, 0]
    assert x.untyped_storage().nbytes() == 96 == x[1].untyped_storage().size() and x.storage().size() == 24
    assert (
        x.data_ptr() >= 1 << 60 and weft.empty(0).data_ptr() == 0 == weft.empty(2, device="meta").data_ptr()
    )
    tied = weft.nn.Linear(3, 3)
    tied.other = tied.weight
    found = {}
    for name, p in tied.state_dict().items():
        found.setdefault((p.device, p.untyped_storage().data_ptr(), p.untyped_storage().nbytes()), []).append(
            name
        )
    assert sorted(map(sorted, found.values())) == [["bias"], ["other", "weight"]]
    before = x.data_ptr()
    x.add_(1)
    assert (
        x.data_ptr() == before
        and not x.is_shared()
        and not x.is_pinned()
        and not x.untyped_storage().is_shared()
    )


def test_versions_count_writes() -> None:
    x = weft.zeros(4)
    row = x[1:3]
    assert x._version == 0
    x.add_(1)
    row.mul_(2)
    assert x._version == 2 and x.tolist() == [1, 2, 2, 1]
    x[0] = 5
    assert x._version == 3 and (x + 1)._version == 0
    w = weft.nn.Parameter(weft.ones(3))
    optimizer = weft.optim.SGD([w], lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        (w * 2).sum().backward()
        optimizer.step()

    for run in (step, weft.compile(step)):
        for _ in range(4):
            before = w._version
            run()
            assert w._version > before


def test_the_history_can_be_walked() -> None:
    w = weft.ones(2, requires_grad=True)
    y = (w * 2).sum()
    seen, todo = [], [y.grad_fn]
    while todo:
        step = todo.pop()
        seen.append(step.name())
        todo += [f for f, _ in step.next_functions if f is not None]
        if step.name() == "AccumulateGrad":
            assert step.variable is w and step.next_functions == ()
    assert (
        seen == ["SumBackward0", "MulBackward0", "AccumulateGrad"]
        and y.grad_fn == y.grad_fn
        and w.grad_fn is None
    )
    other = (w * 2).sum()
    assert y.grad_fn != other.grad_fn and y.grad_fn != 3 and len({y.grad_fn, y.grad_fn, other.grad_fn}) == 2
    assert not y.retains_grad
    y.retain_grad()
    assert y.retains_grad and not w.retains_grad


def test_small_things() -> None:
    x = weft.ones(2).double()
    assert x.new(2, 3).shape == (2, 3) and x.new([1, 2]).dtype is weft.float64 and x.new().shape == (0,)
    assert x.long().new([1.5]).tolist() == [1] and x.new(weft.Size([3])).shape == (3,)
    weft._assert(x.sum() > 1, "fine")
    with pytest.raises(AssertionError, match="wrong"):
        weft._assert(x.sum() > 9, "wrong")
    before = weft.get_num_threads()
    try:
        weft.set_num_threads(1)
        assert weft.get_num_threads() == 1
    finally:
        weft.set_num_threads(before)
    assert weft.set_flush_denormal(False)


def test_assert_close_beside_torch() -> None:
    close = weft.testing.assert_close
    torch = pytest.importorskip("torch")
    one, off = [1.0, 2.0, 3.0], [1.0, 2.1, 3.0]
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        (lambda m: m.tensor(one), lambda m: m.tensor(off), {}), (lambda m: m.tensor(one), lambda m: m.tensor(one), {}),
        (lambda m: m.ones(3), lambda m: m.ones(2), {}), (lambda m: m.ones(3), lambda m: m.ones(3).double(), {}),
        (lambda m: m.ones(3), lambda m: m.ones(3).double(), {"check_dtype": False}),
        (lambda m: [m.ones(3), {"a": 1.0}], lambda m: [m.ones(3), {"a": 2.0}], {}),
        (lambda m: m.tensor([1, 2]), lambda m: m.tensor([1, 3]), {}), (lambda m: 1.0, lambda m: 1, {}),
        (lambda m: m.tensor(float("nan")), lambda m: m.tensor(float("nan")), {"equal_nan": True}),
        (lambda m: m.tensor([float("inf")]), lambda m: m.tensor([float("inf")]), {}),
        (lambda m: m.tensor(one), lambda m: m.tensor(off), {"rtol": 0.1, "atol": 0.0}),
        (lambda m: m.tensor(one).half(), lambda m: m.tensor(one).half() * 1.0009765625, {}),
        (lambda m: m.tensor([True]), lambda m: m.tensor([False]), {}), (lambda m: m.ones(2), lambda m: None, {}),
        (lambda m: m.tensor(one), lambda m: m.tensor(off), {"msg": lambda s: f"X {s}"}),
        (lambda m: {"a": m.ones(1)}, lambda m: {"b": m.ones(1)}, {}), (lambda m: [1], lambda m: [1, 2], {}),
    ]  # fmt: skip
    for x, y, options in cases:
        said = []
        for m, check in ((weft, close), (torch, torch.testing.assert_close)):
            try:
                check(x(m), y(m), **options)
                said.append("")
            except AssertionError as error:
                said.append(str(error).replace("weft.Size", "torch.Size").replace("weft.f", "torch.f"))
        ours, theirs = (s.splitlines()[0] if s else "" for s in said)
        assert ours.split(":")[0] == theirs.split(":")[0], said
        numbers = [s for s in said if "Mismatched" in s]
        assert len({s.splitlines()[2] for s in numbers}) <= 1, said
    with pytest.raises(ValueError, match="got no atol"):
        close(weft.ones(1), weft.ones(1), rtol=1.0)
    with pytest.raises(TypeError, match="cannot compare str with int"):
        close("a", 1)
    close(np.ones(2), weft.ones(2).double())


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("made", [lambda: weft.ones(2), lambda: weft.nn.Parameter(weft.ones(2))])
@pytest.mark.parametrize("call", ["sin", "nn.functional.relu", "nn.functional.linear", "Tensor.add", "stack"])
def test_pytorchs_functions_say_that_the_tensor_is_not_theirs(
    call: str, made: Callable[[], weft.Tensor]
) -> None:
    import torch

    function, x = operator.attrgetter(call)(torch), made()
    rest = {"nn.functional.linear": (torch.ones(2, 2),), "Tensor.add": (x,)}.get(call, ())
    first = [torch.ones(2), x] if call == "stack" else torch.ones(2) if call == "Tensor.add" else x
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(weft.DTypeError, match=r"PyTorch's function .* give PyTorch .*torch.from_dlpack"):
            function(first, *rest)


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
def test_arrays_of_other_libraries_go_by_the_librarys_name() -> None:
    import torch

    theirs = torch.ones(2)
    for call in lambda: weft.ones(2) + theirs, lambda: theirs + weft.ones(2), lambda: weft.sin(theirs):
        with pytest.raises(weft.DTypeError, match=r"(with|got) a torch\.Tensor; .*weft\.tensor"):
            call()
