"""Views: who looks at the same elements sees what is written to them, as in torch."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import weft
from weft.errors import ArgumentError, GradError
from weft.testing.reference import evaluate

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))

SHAPE = (2, 3, 4)


def _fw(x: Any) -> Any:
    return weft if isinstance(x, weft.Tensor) else torch


def _like(x: Any, number: int) -> Any:
    return _fw(x).tensor(number)


VIEWS: dict[str, Callable[[Any, int, int], Any]] = {
    "row": lambda x, a, b: x[a % len(x)] if x.ndim and len(x) else x,
    "slice": lambda x, a, b: x[a % 3 :: 1 + b % 2] if x.ndim and len(x) else x,
    "last": lambda x, a, b: x[..., b % 2 :] if x.ndim else x,
    "new axis": lambda x, a, b: x[None],
    "transpose": lambda x, a, b: x.transpose(a % x.ndim, b % x.ndim) if x.ndim else x,
    "T": lambda x, a, b: x.mT if x.ndim > 1 else x,
    "permute": lambda x, a, b: x.permute(*np.roll(range(x.ndim), a)) if x.ndim else x,
    "flatten": lambda x, a, b: x.flatten()[...],
    "reshape": lambda x, a, b: x.reshape(-1, 2)[...] if x.numel() % 2 == 0 and x.numel() else x,
    "contiguous": lambda x, a, b: x.contiguous()[...],
    "unsqueeze": lambda x, a, b: x.unsqueeze(a % (x.ndim + 1)),
    "squeeze": lambda x, a, b: x.squeeze(),
    "diagonal": lambda x, a, b: x.diagonal(a % 3 - 1) if x.ndim > 1 else x,
    "narrow": lambda x, a, b: x.narrow(-1, 0, 1) if x.ndim and x.shape[-1] else x,
    "chunk": lambda x, a, b: x.chunk(2, -1)[0] if x.ndim and x.shape[-1] else x,
    "unbind": lambda x, a, b: x.unbind(0)[b % len(x)] if x.ndim and len(x) else x,
    "detach": lambda x, a, b: x.detach(),
    "picked": lambda x, a, b: x[_like(x, a % len(x))] if x.ndim and len(x) else x,
    "picked inside": lambda x, a, b: x[..., _like(x, -1), None] if x.ndim and x.shape[-1] else x,
    "windows": lambda x, a, b: x.unfold(-1, 2, 2 + a % 2) if x.ndim and x.shape[-1] > 1 else x,
    "einsum": lambda x, a, b: (
        _fw(x).einsum("ij...->ji..." if a % 2 else "ii...->i...", x)
        if x.ndim > 1 and (a % 2 or x.shape[0] == x.shape[1])
        else x
    ),
    "one of equal ones": lambda x, a, b: x[:1].expand(2, *x.shape[1:])[a % 2] if x.ndim and len(x) else x,
}
WRITES: dict[str, Callable[[Any, Any, float], Any]] = {
    "add_": lambda fw, x, c: x.add_(c),
    "mul_": lambda fw, x, c: x.mul_(c),
    "relu_": lambda fw, x, c: x.relu_(),
    "zero_": lambda fw, x, c: x.zero_(),
    "fill first": lambda fw, x, c: x.__setitem__(0, c) if x.ndim and len(x) else None,
    "augmented": lambda fw, x, c: _augmented(x, c),
    "copy_": lambda fw, x, c: x.copy_(fw.full(tuple(x.shape), c, dtype=x.dtype)),
    "data": lambda fw, x, c: x.data.mul_(c),
    "masked": lambda fw, x, c: x.masked_fill_(x > 0, c),
    "out": lambda fw, x, c: fw.mul(x.detach(), c, out=x) if not x.requires_grad else x.mul_(c),
    "unsqueeze_": lambda fw, x, c: x.unsqueeze_(0),
    "t_": lambda fw, x, c: x.transpose_(0, -1) if x.ndim else x,
}


def _augmented(x: Any, c: float) -> None:
    if x.ndim and x.shape[-1]:
        x[..., :1] *= c


STEPS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.one_of(st.sampled_from(sorted(VIEWS)), st.sampled_from(sorted(WRITES))),
        st.integers(0, 7),
        st.integers(0, 7),
        st.booleans(),
    ),
    min_size=2,
    max_size=9,
)


def _run(fw: Any, steps: Any, grads: bool, allowed: list[bool]) -> list[np.ndarray[Any, Any]]:
    """What all tensors are in the end, and the gradient of the first. `allowed` says which writes torch takes."""
    start = np.arange(24.0).reshape(SHAPE) - 11
    x = fw.tensor(start, requires_grad=grads)
    known: list[Any] = [x * 1.5]
    for k, (at, name, a, b, drop) in enumerate(steps):
        t = known[at % len(known)]
        if name in VIEWS:
            known.append(VIEWS[name](t, a, b))
            if drop and len(known) > 2:
                del known[at % len(known)]
                del t
                gc.collect(0)
        elif fw is torch:
            try:
                WRITES[name](fw, t, 0.5 + a)
                allowed[k] = True
            except RuntimeError:
                allowed[k] = False
        elif allowed[k]:
            WRITES[name](fw, t, 0.5 + a)
    if not grads:
        return _numbers(fw, known)
    total = sum((t * (1.0 + i)).sum() for i, t in enumerate(known))
    if total.requires_grad:
        total.backward()
    gradient = fw.zeros(SHAPE, dtype=fw.float64) if x.grad is None else x.grad
    return _numbers(fw, [*known, gradient])


def _numbers(fw: Any, tensors: list[Any]) -> list[np.ndarray[Any, Any]]:
    if fw is torch:
        return [t.detach().numpy() for t in tensors]
    return evaluate([t.value.node for t in tensors])


@settings(max_examples=max(EXAMPLES, 40))
@given(STEPS)
def test_programs_of_views_and_writes_are_as_in_torch(steps: Any) -> None:
    allowed = [False] * len(steps)
    wanted = _run(torch, steps, False, allowed)
    for want, got in zip(wanted, _run(weft, steps, False, allowed), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_what_a_constant_alone_has_keeps_its_gradient_where_others_are_written() -> None:
    """All elements are seen by a detached tensor only; the one written to, and another view, have their history."""
    grads: list[Any] = []
    for fw in (torch, weft):
        x = fw.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
        whole = x * 1.5
        constant, turned, row = whole[...].detach(), whole.mT, whole[1]
        del whole
        gc.collect(0)
        turned[..., :1] *= 0.5
        row.mul_(3)
        ((turned * fw.arange(2.0)).sum() + row.square().sum()).backward()
        y = fw.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
        whole = y * 1.5
        seen, part = whole.detach(), whole[:, 1:]
        del whole
        gc.collect(0)
        part[0] *= 2  # nobody with a history has all elements
        part.square().sum().backward()
        assert not constant.requires_grad
        grads.append((x.grad.numpy(), constant.numpy(), y.grad.numpy(), seen.numpy()))
    for want, got in zip(*grads, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@settings(max_examples=max(EXAMPLES, 40))
@given(STEPS)
@example([
    (0, "flatten", 0, 0, False), (1, "detach", 0, 0, False), (0, "T", 0, 0, True), (28, "T", 0, 0, True),
    (0, "T", 0, 0, True), (0, "augmented", 0, 0, False),
])  # fmt: skip
def test_gradients_through_writes_to_views_are_as_in_torch(steps: Any) -> None:
    allowed = [False] * len(steps)
    try:
        wanted = _run(torch, steps, True, allowed)
    except RuntimeError:  # a value that backward needs was written over
        return
    for want, got in zip(wanted, _run(weft, steps, True, allowed), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def _same(script: Callable[[Any], Any]) -> None:
    want, got = script(torch), script(weft)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(np.asarray(b.detach().numpy()), a.detach().numpy(), rtol=1e-6)


def _initial_values(fw: Any) -> Any:
    layer = fw.nn.Linear(3, 2)
    layer.weight.data.fill_(0.5)
    layer.bias.data[:] = 3
    layer.weight.data[:, 1].zero_()
    with fw.no_grad():
        layer.weight[0].mul_(2)
    return layer.weight, layer.bias


def _state_dict(fw: Any) -> Any:
    layer = fw.nn.BatchNorm1d(2)
    for v in layer.state_dict().values():
        if v.dtype.is_floating_point:
            v.mul_(0.25).add_(1)
    return [layer.weight, layer.bias, layer.running_var]


def _of_a_parameter(fw: Any) -> Any:
    start = fw.ones(2)
    p = fw.nn.Parameter(start)
    (p * 3).sum().backward()
    fw.optim.SGD([p], lr=0.1).step()
    p.grad.data.zero_()
    return p, start, p.grad


def _rows(fw: Any) -> Any:
    x = fw.arange(12.0).reshape(3, 4)
    for k, row in enumerate(x):
        row += k
    a, b = x.split([1, 3], dim=1)
    b[1:] *= 2
    return x, a, b


def _overlapping_views_of_what_is_gone(fw: Any) -> Any:
    x = fw.arange(6.0)
    a, b = x[:4], x[2:]
    del x
    a.add_(10)
    b[0] = -1
    return a, b


def _assigned_data(fw: Any) -> Any:
    a, b = fw.zeros(3), fw.ones(3)
    old = a[:1]
    a.data = b
    a += 1
    old.sub_(5)
    return a, b, old


def _strided_copies(fw: Any) -> Any:
    x = fw.arange(6.0).reshape(2, 3)
    copied = x.t().reshape(6)
    copied.zero_()
    shared = x.reshape(6)
    shared[0] = 9
    y = copy.deepcopy(x)
    y[0] = 7
    return x, copied, shared, y


def _target_network(fw: Any) -> Any:
    model, target = fw.nn.Linear(2, 2), fw.nn.Linear(2, 2)
    for p in model.parameters():
        p.data.fill_(1)
    target.load_state_dict(model.state_dict())
    with fw.no_grad():
        model.weight += 1
    return model.weight, target.weight, target.bias


def _of_another_shape(fw: Any) -> Any:
    x = fw.arange(12.0)
    all_of_it = x.view(3, 4)
    all_of_it.mul_(2)
    return x, all_of_it


def _permuted(fw: Any) -> Any:
    x = fw.arange(24.0).reshape(2, 3, 4)
    turned = x.permute(2, 0, 1)
    turned.mul_(fw.arange(24.0).reshape(4, 2, 3))
    turned[1:].transpose(0, 2).add_(fw.arange(18.0).reshape(3, 2, 3))
    return x, turned


def _as_another_dtype(fw: Any) -> Any:
    x = fw.arange(8.0)
    a, b, c = x[:5], x[3:].view(fw.int32), x[2:7]
    del x
    a.add_(10)
    b[1:3] = 1_000_000_000
    return a, b, c


def _offsets(fw: Any) -> Any:
    x = fw.arange(12.0).reshape(3, 4)
    other = x[1:].view(fw.int16)
    picked, mixed = x[[2, 0]], x.t()[:, 1:].reshape(-1)
    found = [x[1:], x.t()[2:], other, picked, mixed]
    return [fw.tensor([t.storage_offset(), *t.shape]) for t in found]


SCRIPTS = [
    _target_network, _of_another_shape, _permuted, _as_another_dtype, _offsets,
    _initial_values, _state_dict, _of_a_parameter, _rows, _overlapping_views_of_what_is_gone, _assigned_data,
    _strided_copies,
]  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda f: f.__name__.strip("_"))
def test_scripts_do_as_in_torch(script: Callable[[Any], Any]) -> None:
    _same(script)


def _gradients_after_writes(fw: Any) -> list[Any]:
    """What requires grad, is a leaf, and has which gradient, after writes to views, also detached ones."""
    p = fw.nn.Parameter(fw.ones(2, 3))
    with fw.no_grad():
        p[0].mul_(2)
    (p * p).sum().backward()
    out = [p.requires_grad, p.is_leaf, p.tolist(), p.grad.tolist()]
    w = fw.ones(4, requires_grad=True)
    y = w * 2
    d = y.detach()
    first, rest = d[:2], d[1:]
    first.add_(1)
    out += [t.requires_grad for t in (y, d, first, rest)] + [rest.tolist(), y.tolist()]
    y.sum().backward()
    out.append(w.grad.tolist())
    w = fw.ones(4, requires_grad=True)
    y = w * 2
    first, rest = y[:2], y[1:]
    first.mul_(3)
    rest.sum().backward()
    out += [w.grad.tolist(), y.requires_grad, y.is_leaf]
    x = fw.arange(6.0)
    even, odd, some = x[::2], x[1::2], x[2:5]
    even.zero_()
    odd.add_(10)
    return [*out, x.tolist(), some.tolist()]


def test_gradients_after_writes() -> None:
    assert _gradients_after_writes(weft) == _gradients_after_writes(torch)


def test_a_view_that_starts_at_a_runtime_variable_is_written() -> None:
    at = weft.Variable("at", 0, 3)
    x = weft.arange(6.0)
    some, first = x[at : at + 2], x[:1]
    some.add_(10)
    assert weft.bind(x, at=2).tolist() == [0, 1, 12, 13, 4, 5]
    assert weft.bind(first, at=2).tolist() == [0] and weft.bind(first, at=0).tolist() == [10]


def test_a_compiled_function_writes_through_views_and_to_them() -> None:
    table = weft.zeros(4, 2)
    row, kept = table[1], table.detach()

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        table[1].add_(x)
        return table.sum()

    for k in range(1, 4):
        assert step(weft.ones(2)).item() == 2 * k
        assert row.tolist() == [k, k]
        late = table[1:]
        assert kept[1].tolist() == late[0].tolist() == [k, k]


def test_an_augmented_assignment_writes_once() -> None:
    x = weft.zeros(3, 4).realize()
    x[1] += 2
    updates = [n for n in weft.ir.graph.toposort([x.value.node]) if n.op is weft.ir.ops.Op.UPDATE]
    assert len(updates) == 1 and x.sum().item() == 8


@pytest.mark.parametrize("pick", [
    lambda fw, x: x[fw.tensor(1), :, [0, 1]],
    lambda fw, x: x[[0, 1], :, fw.tensor(-1)],
    lambda fw, x: x[fw.tensor([1, 0], dtype=fw.uint8)],
    lambda fw, x: x[np.array(1), fw.tensor(2, dtype=fw.int32)],
])  # fmt: skip
def test_tensors_of_one_integer_pick_first(pick: Callable[[Any, Any], Any]) -> None:
    def both(fw: Any) -> Any:
        x = fw.arange(24.0).reshape(2, 3, 4)
        return [pick(fw, x)]

    _same(both)


def test_assignment_where_a_tensor_of_one_integer_says() -> None:
    def script(fw: Any) -> Any:
        x, i = fw.zeros(3, 4), fw.tensor(1)
        x[i] = 5
        x[:, i] += fw.arange(3.0)
        x[i, [0, 2]] = fw.tensor([-1.0, -2.0])
        row = x[i]
        i += 1  # which a view from before does not follow
        row += 10
        return x, row

    _same(script)


def test_a_compiled_function_gives_views_that_its_argument_picks() -> None:
    @weft.compile
    def row(x: weft.Tensor, i: weft.Tensor) -> weft.Tensor:
        return x[i]

    for k in range(3):
        x = weft.zeros(3, 2)
        row(x, weft.tensor(k)).add_(1)
        assert x.sum(1).tolist() == [2.0 * (k == j) for j in range(3)]


def test_what_changes_nothing_is_a_result_nonetheless() -> None:
    x = weft.ones(2, 2, requires_grad=True)
    for y in (x[:], x.view(2, 2), x.flip(()), weft.cat([x]), weft.squeeze_copy(x), weft.einsum("ij", x)):
        assert not y.is_leaf and y.requires_grad
    with weft.no_grad():
        assert not x[...].requires_grad
    y = x.detach().view(2, 2)
    y.unsqueeze_(0)
    assert x.shape == (2, 2)


def test_writes_that_torch_refuses() -> None:
    w = weft.ones(3, requires_grad=True)
    with pytest.raises(GradError, match="add_: this is a view of a leaf that requires grad"):
        w[0].add_(1)
    with pytest.raises(ArgumentError, match=r"add_: several elements of this view.*\.clone\(\)"):
        weft.ones(1).expand(3).add_(1)
    with pytest.raises(ArgumentError, match=r"add_: several elements of this view.*\.clone\(\)"):
        weft.ones(4).unfold(0, 2, 1).add_(1)
    with pytest.raises(ArgumentError, match=r"add_: .* another dtype of another width"):
        weft.ones(4).view(weft.int16).add_(1)
    assert w.tolist() == [1, 1, 1]


def test_views_keep_nothing_alive() -> None:
    x = weft.zeros(1000)
    for _ in range(100):
        x.view(10, 100)
    assert x.look is not None and len(x.look.shared.members) < 40


SHARED_OR_OWN: dict[str, Callable[[Any, Any], Any]] = {
    "repeat": lambda fw, x: x.repeat(1, 1),
    "flip": lambda fw, x: x.flip(0),
    "roll by nothing": lambda fw, x: x.roll(0, 0),
    "rot90 by nothing": lambda fw, x: x.rot90(0),
    "cat of one": lambda fw, x: fw.cat([x]),
    "pad by nothing": lambda fw, x: fw.nn.functional.pad(x, (0, 0)),
    "positive": lambda fw, x: +x,
    "dropout in evaluation": lambda fw, x: fw.nn.functional.dropout(x, 0.5, False),
    "alias_copy": lambda fw, x: fw.alias_copy(x),
    "detach_copy": lambda fw, x: fw.detach_copy(x),
    "view_copy": lambda fw, x: fw.view_copy(x, (3, 4)),
    "transpose_copy": lambda fw, x: fw.transpose_copy(x, 0, 1),
    "slice_copy": lambda fw, x: fw.slice_copy(x),
    "diagonal_copy": lambda fw, x: fw.diagonal_copy(x),
    "split_copy": lambda fw, x: fw.split_copy(x, 3)[0],
    "clone": lambda fw, x: x.clone(),
    "to": lambda fw, x: x.to(fw.float32),
    "to a copy": lambda fw, x: x.to(fw.float32, non_blocking=True, copy=True),
    "to a copy by position": lambda fw, x: x.to(fw.float32, False, True),
    "atleast_1d": lambda fw, x: fw.atleast_1d(x),
    "atleast_2d": lambda fw, x: fw.atleast_2d(x[0]),
    "atleast_3d": lambda fw, x: fw.atleast_3d(x),
    "broadcast_tensors": lambda fw, x: fw.broadcast_tensors(x, fw.ones(3, 4))[0],
    "meshgrid": lambda fw, x: fw.meshgrid(x[0], indexing="ij")[0],
    "as_tensor": lambda fw, x: fw.as_tensor(x),
    "Parameter": lambda fw, x: fw.nn.Parameter(x, requires_grad=False),
    "sort of one": lambda fw, x: x[:1].sort(0).values,
    "topk of one": lambda fw, x: x[:, :1].topk(1).values,
    "cumsum of one": lambda fw, x: x[:1].cumsum(0),
    "sum of one": lambda fw, x: x[:1].sum(0),
    "first power": lambda fw, x: x**1,
    "first power of a matrix": lambda fw, x: fw.linalg.matrix_power(x[:, :3], 1),
    "difference of order 0": lambda fw, x: fw.diff(x, n=0),
    "selected by integers": lambda fw, x: x[[0, 1]],
    "masked": lambda fw, x: x[x > -99],
    "hsplit": lambda fw, x: fw.hsplit(x, 2)[1],
    "Flatten": lambda fw, x: fw.nn.Flatten()(x),
    "adjoint": lambda fw, x: x.adjoint(),
    "real": lambda fw, x: x.real,
    "another dtype": lambda fw, x: x.view(fw.int32),
    "as_strided": lambda fw, x: x.as_strided((2, 2), (1, 2)),
    "split where a tensor says": lambda fw, x: fw.tensor_split(x, fw.tensor([1]))[1],
    "narrowed where a tensor says": lambda fw, x: fw.narrow(x, 1, fw.tensor(1), 2),
    "ravel of a column": lambda fw, x: x[:, 0].ravel(),
    "sum_to_size": lambda fw, x: x[:1].sum_to_size(1, 4),
}


@pytest.mark.parametrize("name", SHARED_OR_OWN)
def test_what_shares_elements_and_what_does_not(name: str) -> None:
    def changed(fw: Any) -> Any:
        x = fw.arange(12.0).reshape(3, 4).clone()
        out = SHARED_OR_OWN[name](fw, x)
        out += 1
        return x

    want, got = changed(torch), changed(weft)
    np.testing.assert_array_equal(evaluate([got.value.node])[0], want.numpy())


def test_devices_are_given_as_torch_takes_them() -> None:
    here = weft.device("cpu")
    x = weft.ones(2, device=here).to(here, non_blocking=True)
    assert x.device == "cpu:0" and weft.nn.Linear(2, 1).to(here, non_blocking=True)(x).shape == (1,)
    assert weft.nn.Linear(2, 1).to(x.double()).weight.dtype is weft.float64
    with pytest.raises(weft.DTypeError, match="expected the name of a device"):
        weft.ones(2, device=3)


EXPANDED: dict[str, Callable[[Any, Any], Any]] = {
    "fill_": lambda m, v: v.fill_(2),
    "zero_": lambda m, v: v.zero_(),
    "masked_fill_": lambda m, v: v.masked_fill_(
        m.tensor([[True, False], [False, True], [False, False]]), 2.0
    ),
    "index_fill_": lambda m, v: v.index_fill_(0, m.tensor([0]), 2.0),
    "index_fill_ keywords": lambda m, v: v.index_fill_(dim=1, index=m.tensor([1]), value=2.0),
    "index_put_": lambda m, v: v.index_put_((m.tensor([0, 1]),), m.tensor(5.0)),
    "index_put_ several": lambda m, v: v.index_put_((m.tensor([0, 1]),), m.tensor([[1.0, 2.0], [3.0, 4.0]])),
    "by tensor": lambda m, v: v.__setitem__(m.tensor([0, 2]), 7.0),
    "by mask": lambda m, v: v.__setitem__(m.tensor([True, False, True]), 7.0),
    "a part that shows each once": lambda m, v: v[:, :1].fill_(3.0),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_what_sets_elements_may_write_to_an_expanded_view(name: str) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for m in (weft, torch):
        base = m.tensor([[1.0], [2.0], [3.0]])
        view = base.expand(3, 2)
        EXPANDED[name](m, view)
        found.append((base.tolist(), view.tolist()))
    assert found[0] == found[1]


def test_what_computes_elements_may_not() -> None:
    view = weft.ones(3, 1).expand(3, 2)
    for write in (
        lambda: view.add_(1),
        lambda: view.copy_(weft.ones(3, 2)),
        lambda: view.__setitem__(0, 7.0),
    ):
        with pytest.raises(weft.ArgumentError, match="several elements"):
            write()


def test_parts_of_other_sizes_have_other_strides() -> None:
    """Whether a reshape copies is remembered by the calls that made its input: which part it is made of is one of
    them, unless the part is the input itself."""
    for _ in range(2):
        x = weft.zeros(14).realize()
        for part, is_view in zip(x.split((6, 8)), (True, False), strict=True):
            before = x.sum().item()
            part.view(2, -1).narrow(1, 0, 3).reshape(6).add_(1)
            assert (x.sum().item() == before + 6) is is_view
        y = weft.zeros(2, 9).realize()
        for part in y.split(3, 1):
            assert part.shape == (2, 3)
            part.reshape(6).add_(1)
        assert y.sum().item() == 0
        for part in y.split(3, dim=1):
            part.reshape(2, 3, 1).add_(1)
        assert y.sum().item() == 18
