"""Hooks of modules, containers of parameters, parametrizations and nn.utils: what torch does, done here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def both(run: Any) -> None:
    """The same steps in both libraries give the same lists of numbers."""
    results = []
    for m in (weft, torch):
        layer = m.nn.Linear(4, 5)
        w = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
        layer.load_state_dict({"weight": m.tensor(w), "bias": m.zeros(5)})
        results.append(
            [np.asarray(t.detach().numpy()) for t in run(m, layer, m.tensor(X, requires_grad=True))]
        )
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_hooks() -> None:
    def run(m: Any, layer: Any, x: Any) -> list[Any]:
        seen: list[Any] = []
        handles = [
            layer.register_forward_pre_hook(lambda mod, args: (args[0] * 2,)),
            layer.register_forward_hook(lambda mod, args, out: out + args[0].sum()),
            layer.register_forward_hook(
                lambda mod, args, kw, out: seen.append(out), with_kwargs=True, prepend=True
            ),
            layer.register_full_backward_pre_hook(lambda mod, g: (g[0] * 3,)),
            layer.register_full_backward_hook(lambda mod, g, h: seen.extend([g[0], h[0]]) or (g[0] * 5,)),
        ]
        y = layer(x)
        (y * y).sum().backward()
        for h in handles:
            h.remove()
        return [y, x.grad, layer.weight.grad, *seen, layer(x)]

    both(run)


def test_weight_norm() -> None:
    def run(m: Any, layer: Any, x: Any) -> list[Any]:
        u = m.nn.utils
        layer = u.weight_norm(layer)
        assert sorted(layer.state_dict()) == ["bias", "weight_g", "weight_v"]
        y = layer(x)
        (y * y).sum().backward()
        out = [y, layer.weight_g, layer.weight_v.grad, layer.weight_g.grad]
        plain = u.remove_weight_norm(layer)
        assert sorted(plain.state_dict()) == ["bias", "weight"]
        layer = u.parametrizations.weight_norm(plain, dim=1)
        assert sorted(layer.state_dict())[1:] == [
            "parametrizations.weight.original0",
            "parametrizations.weight.original1",
        ]
        z = layer(x)
        u.parametrize.remove_parametrizations(layer, "weight")
        return [*out, plain.weight, z]

    both(run)


def test_spectral_norm() -> None:
    def run(m: Any, layer: Any, x: Any) -> list[Any]:
        layer = m.nn.utils.spectral_norm(layer, n_power_iterations=50)
        assert sorted(layer.state_dict()) == ["bias", "weight_orig", "weight_u", "weight_v"]
        y = layer(x)
        (y * y).sum().backward()
        return [y, layer.weight, layer.weight_orig.grad]

    both(run)
    weft.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5))
    for _ in range(20):
        layer(weft.tensor(X))
    assert abs(np.linalg.svd(layer.eval().weight.detach().numpy())[1][0] - 1) < 1e-3
    nn.utils.remove_spectral_norm(nn.utils.spectral_norm(nn.Linear(3, 2)))


class Symmetric(nn.Module):
    def forward(self, w: weft.Tensor) -> weft.Tensor:
        return w.triu() + w.triu(1).T

    def right_inverse(self, w: weft.Tensor) -> weft.Tensor:
        return w.triu()


def test_parametrizations_train_compiled() -> None:
    layer = nn.utils.parametrize.register_parametrization(nn.Linear(4, 4), "weight", Symmetric())
    assert nn.utils.parametrize.is_parametrized(layer, "weight")
    optimizer = weft.optim.SGD(layer.parameters(), lr=0.1)
    before = layer.weight.numpy()

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step(weft.tensor(X)).item() for _ in range(3)]
    w = layer.weight.numpy()
    assert losses[2] < losses[0] and (w == w.T).all() and (w != before).any()


def test_state_dict_hooks_and_extra_state() -> None:
    class Counts(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.calls = 3

        def get_extra_state(self) -> int:
            return self.calls

        def set_extra_state(self, state: int) -> None:
            self.calls = state

    model = nn.Sequential(Counts())
    model.register_state_dict_post_hook(
        lambda mod, state, prefix, meta: state.update({prefix + "version": 2})
    )
    state = model.state_dict()
    assert list(state) == ["0.weight", "0.bias", "0._extra_state", "version"] and state["0._extra_state"] == 3
    other = nn.Sequential(Counts())
    other[0].calls = 0
    other.register_load_state_dict_pre_hook(lambda mod, state, *rest: state.pop("version"))
    other.register_load_state_dict_post_hook(lambda mod, keys: keys.missing_keys.append("seen"))
    assert other.load_state_dict(state, strict=False).missing_keys == ["seen"] and other[0].calls == 3
    assert next(iter(model.state_dict(prefix="m."))) == "m.0.weight"
    assert model.state_dict(keep_vars=True)["0.weight"] is model[0].weight
    model[0].load_state_dict({"weight": weft.zeros(2, 2, dtype=weft.float64)}, strict=False, assign=True)
    assert model[0].weight.dtype is weft.float64


def test_containers() -> None:
    chain = nn.Sequential(nn.Linear(1, 2), nn.ReLU())
    chain.insert(1, nn.Tanh())
    chain.extend([nn.Linear(2, 3)])
    assert [type(m).__name__ for m in chain] == ["Linear", "Tanh", "ReLU", "Linear"]
    del chain[1:3]
    assert list(chain.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert isinstance(chain.pop(), nn.Linear) and len(chain + nn.Sequential(nn.ReLU())) == 2
    values = nn.ParameterList([weft.ones(2), weft.zeros(3)])
    values.append(weft.ones(1))
    assert len(list(values.parameters())) == 3 and values[-1].shape == (1,) and len(values[:2]) == 2
    named = nn.ParameterDict({"a": weft.ones(2)})
    named["b"] = nn.Parameter(weft.zeros(1))
    assert (
        list(named.keys()) == ["a", "b"]
        and list(named.state_dict()) == ["a", "b"]
        and named.pop("a").shape == (2,)
    )
    modules = nn.ModuleDict({"x": nn.ReLU()})
    modules.update([("y", nn.Tanh())])
    assert isinstance(modules.pop("x"), nn.ReLU) and list(modules) == ["y"]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Buffer(weft.ones(2))
            self.temporary = nn.Buffer(weft.ones(2), persistent=False)
            self.add_module("inner", nn.Linear(2, 2))

    net = Net()
    assert [n for n, _ in net.named_buffers()] == ["scale", "temporary"]
    assert (
        list(net.state_dict()) == ["inner.weight", "inner.bias", "scale"]
        or "temporary" not in net.state_dict()
    )
    assert net.get_parameter("inner.bias") is net.inner.bias and net.get_buffer("scale") is net.scale
    net.set_submodule("inner", nn.Identity())
    assert not list(net.parameters())


def test_vectors_and_stateless_calls() -> None:
    layer = nn.Linear(4, 2)
    v = nn.utils.parameters_to_vector(layer.parameters())
    assert v.shape == (10,)
    nn.utils.vector_to_parameters(weft.arange(10.0), layer.parameters())
    assert layer.bias.tolist() == [8, 9]
    x = weft.tensor(X)
    zeros = {name: weft.zeros(p.shape) for name, p in layer.named_parameters()}
    assert weft.func.functional_call(layer, zeros, (x,)).tolist() == [[0, 0]] * 3
    assert layer.bias.tolist() == [8, 9]
    models = [nn.Linear(4, 2) for _ in range(3)]
    parameters, buffers = weft.func.stack_module_state(models)
    out = weft.vmap(lambda p, b: weft.func.functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    np.testing.assert_allclose(
        out.detach().numpy(), np.stack([m(x).detach().numpy() for m in models]), rtol=1e-5
    )


def test_initial_values() -> None:
    weft.manual_seed(0)
    t = nn.init.trunc_normal_(weft.empty(20000), 1.0, 2.0, -1.0, 2.0).numpy()
    assert -1 <= t.min() < -0.99 and 1.99 < t.max() <= 2 and abs(t.mean() - 0.587) < 0.02
    q = nn.init.orthogonal_(weft.empty(3, 2, 4), gain=2.0).numpy().reshape(3, 8)
    np.testing.assert_allclose(q @ q.T, 4 * np.eye(3), atol=1e-5)
    for shape, groups in (((4, 2, 3), 2), ((3, 5, 3, 3), 1)):
        ours = nn.init.dirac_(weft.empty(*shape), groups).numpy()
        assert (ours == torch.nn.init.dirac_(torch.empty(*shape), groups).numpy()).all()
    s = nn.init.sparse_(weft.empty(10, 4), 0.35).numpy()
    assert ((s == 0).sum(0) == 4).all()
