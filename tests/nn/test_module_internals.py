"""What programs written for torch read, write and override of modules: run in both libraries, with equal outcomes."""

from __future__ import annotations

import copy
import importlib
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")


def plain(x: Any) -> Any:
    """What is compared: tensors as lists, rounded."""
    if hasattr(x, "detach"):
        return np.round(x.detach().numpy().astype(np.float64), 5).tolist()
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    return x


def linear(lib: Any, n: int = 3, m: int = 2, bias: bool = True) -> Any:
    layer = lib.nn.Linear(n, m, bias=bias)
    with lib.no_grad():
        for p in layer.parameters():
            p.copy_(
                lib.tensor(
                    np.linspace(-1, 1.3, int(np.prod(p.shape)), dtype=np.float32).reshape(tuple(p.shape))
                )
            )
    return layer


def both(run: Callable[[Any], Any]) -> Any:
    found: list[Any] = []
    for lib in (weft, torch):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(plain(run(lib)))
    assert found[0] == found[1]
    return found[0]


# ---------------------------------------------------------------------------------------------- members


def test_members_are_dicts_to_read_and_write() -> None:
    def run(lib: Any) -> list[Any]:
        m = linear(lib)
        out: list[Any] = [
            list(m._parameters),
            list(m._buffers),
            list(m._modules),
            sorted(vars(m)["_parameters"]),
        ]
        w = m._parameters["weight"]
        del m._parameters["weight"]
        out += [hasattr(m, "weight"), [n for n, _ in m.named_parameters()]]
        m.weight = w * 2  # a plain attribute now, as weight norm sets it
        out += [m(lib.ones(1, 3)), list(m.state_dict())]
        del m.weight
        m._parameters["weight"] = w
        out += [m.weight is w, list(m._parameters), m(lib.ones(1, 3))]
        m._buffers["seen"] = lib.ones(2)
        m._modules["inner"] = linear(lib)
        out += [
            m.seen,
            list(m.state_dict()),
            [n for n, _ in m.named_modules()],
            m.inner is m._modules["inner"],
        ]
        out += [m._modules.pop("inner") is not None, hasattr(m, "inner"), m._parameters.pop("bias").shape[0]]
        m.bias = None
        m._parameters["bias"] = None
        out += [m.bias, list(m._parameters), m(lib.ones(1, 3))]
        m._parameters = OrderedDict(weight=w)
        out += [list(m._parameters)]
        m._parameters.clear()
        return [*out, hasattr(m, "weight"), list(m.parameters())]

    both(run)


def test_layers_keep_places_of_parameters_that_are_not_there() -> None:
    def run(lib: Any) -> list[Any]:
        nn = lib.nn
        layers = [
            nn.Linear(2, 2, bias=False), nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm1d(2, affine=False),
            nn.BatchNorm2d(2, track_running_stats=False), nn.LayerNorm(2, elementwise_affine=False),
            nn.LayerNorm(2, bias=False), nn.GroupNorm(1, 2, affine=False), nn.InstanceNorm1d(2),
            nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2, bias=False, kdim=3, vdim=2), nn.LSTM(2, 3, 2),
            nn.ConvTranspose1d(1, 1, 1, bias=False), nn.Embedding(2, 2), nn.RNNCell(2, 2, bias=False),
        ]  # fmt: skip
        return [
            [
                (k, None if v is None else tuple(v.shape))
                for k, v in (*m._parameters.items(), *m._buffers.items())
            ]
            for m in layers
        ]

    both(run)


def test_members_before_init_are_refused() -> None:
    def attempts(lib: Any) -> list[Any]:
        nn = lib.nn

        class A(nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self, what: Callable[[Any], Any]) -> None:
                what(self)
                super().__init__()

        out: list[Any] = []
        for what in (
            lambda m: setattr(m, "w", nn.Parameter(lib.ones(1))),
            lambda m: setattr(m, "l", nn.Linear(1, 1)),
            lambda m: m.register_buffer("b", lib.ones(1)),
            lambda m: m.register_parameter("b", None),
        ):
            with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
                A(what)
            out.append(True)
        A(lambda m: setattr(m, "x", 3))
        return out

    both(attempts)


MISTAKES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "tensor over parameter": (lambda lib, m: setattr(m, "weight", lib.ones(2, 3)), "as parameter 'weight'"),
    "number over parameter": (lambda lib, m: setattr(m, "weight", 3), "as parameter 'weight'"),
    "tensor over module": (lambda lib, m: setattr(m, "inner", lib.ones(1)), "as child module 'inner'"),
    "number over buffer": (lambda lib, m: setattr(m, "seen", 3), "as buffer 'seen'"),
    "taken": (lambda lib, m: m.register_buffer("forward", None), "attribute 'forward' already exists"),
    "taken parameter": (
        lambda lib, m: m.register_parameter("inner", None),
        "attribute 'inner' already exists",
    ),
    "taken module": (lambda lib, m: m.add_module("weight", None), "attribute 'weight' already exists"),
    "dot": (lambda lib, m: m.register_buffer("a.b", None), 'can.*t contain "."'),
    "dot module": (lambda lib, m: m.add_module("a.b", None), 'can.*t contain "."'),
    "empty": (lambda lib, m: m.register_parameter("", None), "can.*t be empty string"),
    "name": (lambda lib, m: m.add_module(3, None), "name should be a string"),
    "no module": (lambda lib, m: m.add_module("x", 3), "is not a Module subclass"),
    "no buffer": (lambda lib, m: m.register_buffer("x", 3), "torch Tensor or None required"),
    "no parameter": (
        lambda lib, m: m.register_parameter("x", lib.ones(1)),
        "torch.nn.Parameter or None required",
    ),
    "no attribute": (lambda lib, m: m.nothing, "object has no attribute 'nothing'"),
    "no submodule": (lambda lib, m: m.get_submodule("x"), "has no attribute `x`"),
    "no such parameter": (lambda lib, m: m.get_parameter("seen"), "`seen` is not an nn.Parameter"),
    "no such buffer": (lambda lib, m: m.get_buffer("weight"), "`weight` is not a buffer"),
    "mode": (lambda lib, m: m.train(1), "training mode is expected to be boolean"),
    "dtype": (lambda lib, m: m.to(lib.int32), "only accepts floating point"),
    "not a dict": (lambda lib, m: m.load_state_dict([1]), "Expected state_dict to be dict-like"),
    "missing": (
        lambda lib, m: m.load_state_dict({}),
        'Missing key\\(s\\) in state_dict: "weight", "bias", "seen", ',
    ),
    "unexpected": (
        lambda lib, m: m.load_state_dict({**m.state_dict(), "other": lib.ones(1)}),
        'Unexpected key\\(s\\) in state_dict: "other"',
    ),
    "size": (
        lambda lib, m: m.load_state_dict({**m.state_dict(), "weight": lib.ones(1, 3)}),
        "size mismatch for weight: copying a param with shape .* from checkpoint, the shape in current model is",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_of_the_kinds_and_words_of_torch(name: str) -> None:
    act, words = MISTAKES[name]
    kinds: list[type[BaseException]] = []
    for lib in (weft, torch):
        m = linear(lib)
        m.register_buffer("seen", lib.ones(1))
        m.inner = linear(lib)
        with pytest.raises(Exception, match=words) as caught:
            act(lib, m)
        kinds.append(type(caught.value))
        assert plain(m.weight) == plain(linear(lib).weight)
    assert issubclass(kinds[0], kinds[1])


def test_overrides_are_called_as_torch_calls_them() -> None:
    def run(lib: Any) -> list[Any]:
        log: list[Any] = []

        class Odd(lib.nn.Module):  # type: ignore[misc, name-defined]
            _version = 3

            def __init__(self) -> None:
                super().__init__()
                self.w = lib.nn.Parameter(lib.zeros(2))

            def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
                log.append(("save", prefix, keep_vars))
                super()._save_to_state_dict(destination, prefix, keep_vars)
                destination[prefix + "more"] = lib.ones(1)

            def _load_from_state_dict(
                self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing: Any,
                unexpected: Any, errors: Any,
            ) -> None:  # fmt: skip
                log.append(
                    ("load", prefix, sorted(state_dict), local_metadata.get("version"), strict, list(missing))
                )
                more = state_dict.pop(prefix + "more", None)
                super()._load_from_state_dict(
                    state_dict, prefix, local_metadata, strict, missing, unexpected, errors
                )
                log.append(("loaded", self.w, more, list(missing), list(unexpected)))

            def train(self, mode: bool = True) -> Any:
                log.append(("train", mode))
                return super().train(False)

            def _apply(self, fn: Any, recurse: bool = True) -> Any:
                log.append("apply")
                return super()._apply(fn)

        net = lib.nn.Sequential(OrderedDict(a=linear(lib), b=Odd()))
        net.b._register_load_state_dict_pre_hook(lambda *a: log.append(("pre", len(a), a[1])))
        net.b._register_load_state_dict_pre_hook(
            lambda *a: log.append(("pre", len(a), a[2])), with_module=True
        )
        net.b.register_load_state_dict_post_hook(
            lambda m, keys: log.append(("post", m.w, list(keys.missing_keys)))
        )
        net._register_state_dict_hook(
            lambda m, state, prefix, meta: log.append((prefix, sorted(meta), len(state)))
        )
        net.register_state_dict_pre_hook(lambda m, prefix, keep: log.append(("before", prefix, keep)))
        state = net.state_dict()
        log += [list(state), dict(state._metadata), type(state) is OrderedDict]
        state["b.w"] = lib.ones(2)
        log.append(str(net.load_state_dict(state)))
        log.append(str(net.load_state_dict({"a.weight": lib.zeros(2, 3), "x": lib.ones(1)}, strict=False)))
        log += [net.a.weight, net.train().b.training, net.a.training]
        net.double()
        net.to(lib.float32)
        return log

    assert "<All keys matched successfully>" in both(run)


def test_assign_puts_tensors_in_place() -> None:
    def run(lib: Any) -> list[Any]:
        m = lib.nn.BatchNorm1d(2)
        w, mean = lib.nn.Parameter(lib.ones(2) * 3), lib.ones(2) * 4
        frozen = m.bias.requires_grad_(False)
        state = {**m.state_dict(), "weight": w, "running_mean": mean, "bias": lib.ones(2).double()}
        m.load_state_dict(state, assign=True)
        return [
            m.weight is w, m.running_mean is mean, m.bias is frozen, m.bias.requires_grad,
            m.bias.dtype == lib.float64, isinstance(m.bias, lib.nn.Parameter), m.weight.requires_grad,
        ]  # fmt: skip

    both(run)


def test_old_batch_norms_load_without_a_count() -> None:
    def run(lib: Any) -> list[Any]:
        m = lib.nn.BatchNorm1d(2)
        state = dict(m.state_dict())
        del state["num_batches_tracked"]
        return [
            str(m.load_state_dict(state)),
            isinstance(lib.nn.InstanceNorm1d(2), lib.nn.modules.batchnorm._BatchNorm),
        ]

    both(run)


def test_copies_and_pickles_have_members_of_their_own() -> None:
    class Net(weft.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = linear(weft)
            self.register_buffer("b", weft.ones(1), persistent=False)

    net = Net()
    net.l.register_forward_hook(print)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net.l))):
        layer = other.l if isinstance(other, Net) else other
        layer._parameters["weight"] = weft.nn.Parameter(weft.zeros(2, 3))
        assert layer.weight.tolist() == [[0.0] * 3] * 2 and net.l.weight.tolist() != layer.weight.tolist()
        assert list(layer._forward_hooks.values()) == [print]
    shallow = copy.copy(net.l)
    shallow._parameters = shallow._parameters.copy()
    shallow._parameters["weight"] = weft.nn.Parameter(weft.zeros(2, 3))
    assert shallow.weight.tolist() == [[0.0] * 3] * 2 != net.l.weight.tolist()
    assert "b" not in copy.deepcopy(net).state_dict()


def test_wrappers_that_pass_attributes_on() -> None:
    def run(lib: Any) -> list[Any]:
        class Wrapper(lib.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self, module: Any) -> None:
                super().__init__()
                self.module = module

            def __getattr__(self, name: str) -> Any:
                try:
                    return super().__getattr__(name)
                except AttributeError:
                    return getattr(self.module, name)

        w = Wrapper(linear(lib))
        return [w.in_features, w.weight, list(w.state_dict()), w.module.bias]

    both(run)


def test_containers() -> None:
    def run(lib: Any) -> list[Any]:
        nn = lib.nn
        a, b, c = nn.ReLU(), nn.Tanh(), nn.Identity()
        s = nn.Sequential(OrderedDict(x=a, y=b, z=c))
        out: list[Any] = [list(s[1:]._modules), list((s + nn.Sequential(a))._modules), len(s * 2), len(2 * s)]
        del s[0]
        s += nn.Sequential(a)
        s *= 2
        out += [list(s._modules), s.pop(0) is b, len(s), repr(s), a in s]
        m = nn.ModuleList([a, None, b])
        out += [len(m), m[1], [x is None for x in m], repr(m), list(m[1:]._modules), m[-1] is b]
        m.append(None).insert(0, c)
        out += [
            len(m),
            m[0] is c,
            m.pop(-1) is None,
            list(m._modules),
            repr(nn.ModuleList([nn.ReLU(), nn.ReLU(), a, b])),
        ]
        d = nn.ModuleDict([["a", a], ("b", None)])
        d.update({"c": c})
        out += [
            list(d),
            d["b"],
            list(d.keys()),
            d.pop("a") is a,
            len(d),
            "c" in d,
            repr(d),
            repr(nn.ModuleList()),
        ]
        p = nn.ParameterList([lib.ones(2), nn.Parameter(lib.zeros(1)), "text"])
        p += [lib.ones(1)]
        out += [len(p), [n for n, _ in p.named_parameters()], p[2], len(p[1:]), list(p.state_dict()), p[-1]]
        q = nn.ParameterDict({"a": lib.ones(1), "t": 3})
        q["b"] = nn.Parameter(lib.ones(2))
        r = q | nn.ParameterDict({"z": lib.ones(1)})
        out += [
            list(q),
            q["t"],
            list(r),
            q.get("none"),
            q.setdefault("c", lib.ones(1)),
            q.popitem()[0],
            "a" in q,
        ]
        out += [list(dict(q.items())), [n for n, _ in q.named_parameters()], list(reversed(q)), len(q.copy())]
        return out

    both(run)


def test_traversals() -> None:
    def run(lib: Any) -> list[Any]:
        shared = linear(lib, 2, 2)
        net = lib.nn.Sequential(shared, shared, lib.nn.BatchNorm1d(2))
        net.again = net[2].weight
        out: list[Any] = []
        for unique in (True, False):
            out.append([n for n, _ in net.named_parameters(remove_duplicate=unique)])
            out.append([n for n, _ in net.named_modules(remove_duplicate=unique)])
            out.append([n for n, _ in net.named_buffers("p", remove_duplicate=unique)])
        out += [len(list(net.children())), len(list(net.modules())), list(net.state_dict())]
        out += [
            net.get_parameter("0.weight") is shared.weight,
            net.get_buffer("2.running_mean"),
            net._get_name(),
        ]
        order: list[str] = []
        net.apply(lambda m: order.append(type(m).__name__))
        return [*out, order, sorted(n for n in dir(net) if n in ("weight", "again", "forward")), repr(net)]

    both(run)


def test_conversions() -> None:
    def run(lib: Any) -> list[Any]:
        m = lib.nn.Sequential(linear(lib), lib.nn.BatchNorm1d(2))
        seen: list[Any] = []
        for change in (
            lambda: m.double(), lambda: m.half(), lambda: m.bfloat16(), lambda: m.float(),
            lambda: m.to(dtype=lib.float64), lambda: m.type(lib.float32), lambda: m.to(lib.ones(1).double()),
            lambda: m.to_empty(device="cpu"), lambda: m._apply(lambda t: t.float() + 1 if t.ndim else t),
        ):  # fmt: skip
            assert change() is m
            seen.append([str(x.dtype).split(".")[1] for x in (*m.parameters(), *m.buffers())])
            seen.append([p.requires_grad for p in m.parameters()])
        return seen

    both(run)


def test_sync_batch_norm_takes_the_place_of_batch_norms() -> None:
    def run(lib: Any) -> list[Any]:
        nn = lib.nn
        net = nn.Sequential(
            nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.InstanceNorm2d(2), nn.BatchNorm1d(3))
        )
        weight = net[1].weight
        out = nn.SyncBatchNorm.convert_sync_batchnorm(net.eval())
        return [
            [type(m).__name__ for m in out.modules()], out[1].weight is weight, list(out.state_dict()),
            out[1].training, type(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))).__name__,
        ]  # fmt: skip

    both(run)


def test_names_of_recurrent_and_convolution_layers() -> None:
    def run(lib: Any) -> list[Any]:
        r = lib.nn.LSTM(2, 3, 2, bidirectional=True, proj_size=1)
        out: list[Any] = [r._flat_weights_names, r._all_weights, [tuple(w.shape) for w in r._flat_weights]]
        for options in (
            {"padding": 2},
            {"padding": "same", "dilation": 2},
            {"padding": (1, 2), "padding_mode": "circular"},
        ):
            c = lib.nn.Conv2d(2, 4, 3, **options)
            out += [list(c._reversed_padding_repeated_twice), c.transposed, tuple(c.output_padding)]
            x = lib.tensor(np.linspace(-1, 1, 50, dtype=np.float32).reshape(1, 2, 5, 5))
            w = lib.tensor(np.linspace(-1, 1, 72, dtype=np.float32).reshape(4, 2, 3, 3))
            out.append(plain(c._conv_forward(x, w, None)))
        return out

    both(run)


def test_fusion_and_pruning() -> None:
    importlib.import_module("torch.nn.utils.prune")

    def run(lib: Any) -> list[Any]:
        nn = lib.nn
        x = lib.tensor(np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4))
        conv, bn = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        with lib.no_grad():
            for k, p in enumerate([*conv.parameters(), *bn.parameters(), bn.running_mean, bn.running_var]):
                n = int(np.prod(p.shape))
                p.copy_(lib.tensor((np.arange(n, dtype=np.float32) / n + 0.1 * k).reshape(tuple(p.shape))))
        fused = nn.utils.fusion.fuse_conv_bn_eval(conv.eval(), bn.eval())
        out: list[Any] = [fused(x), bn(conv(x))]
        prune, layer = nn.utils.prune, linear(lib, 4, 3)
        prune.l1_unstructured(layer, "weight", 0.3)
        out += [layer.weight, list(layer.state_dict()), layer(lib.ones(1, 4)), prune.is_pruned(layer)]
        prune.ln_structured(layer, "weight", 1, 2, dim=0)
        out += [layer.weight_mask, len(layer._forward_pre_hooks)]
        layer(lib.ones(1, 4)).sum().backward()
        out.append(layer.weight_orig.grad)
        prune.remove(layer, "weight")
        out += [list(layer.state_dict()), layer.weight, prune.is_pruned(layer)]
        pair = [linear(lib, 4, 3), linear(lib, 3, 2)]
        prune.global_unstructured([(m, "weight") for m in pair], prune.L1Unstructured, amount=5)
        prune.custom_from_mask(pair[0], "bias", lib.tensor([1.0, 0.0, 1.0]))
        return [*out, *(m.weight for m in pair), pair[0].bias]

    both(run)


# ---------------------------------------------------------------------------------------------- hooks


def test_order_of_hooks() -> None:
    def run(lib: Any) -> list[Any]:
        log: list[Any] = []
        m, x = linear(lib), lib.ones(1, 3)
        everywhere = lib.nn.modules.module
        handles = [
            everywhere.register_module_forward_pre_hook(lambda mod, a: log.append("global pre")),
            everywhere.register_module_forward_hook(lambda mod, a, o: log.append("global")),
            everywhere.register_module_full_backward_pre_hook(
                lambda mod, g: log.append("global backward pre")
            ),
            everywhere.register_module_full_backward_hook(lambda mod, i, o: log.append("global backward")),
            m.register_forward_pre_hook(lambda mod, a: log.append(("pre 1", a))),
            m.register_forward_pre_hook(
                lambda mod, a, k: log.append(("pre 2", k)), with_kwargs=True, prepend=True
            ),
            m.register_forward_pre_hook(lambda mod, a: a[0] * 2),
            m.register_forward_pre_hook(lambda mod, a, k: ((a[0] + 1,), {}), with_kwargs=True),
            m.register_forward_hook(lambda mod, a, o: log.append(("after", a, o))),
            m.register_forward_hook(lambda mod, a, o: o * 3, prepend=True),
            m.register_forward_hook(lambda mod, a, k, o: log.append(("kwargs", k)), with_kwargs=True),
            m.register_full_backward_pre_hook(lambda mod, g: (g[0] * 2,)),
            m.register_full_backward_pre_hook(lambda mod, g: log.append(("backward pre", g))),
            m.register_full_backward_hook(lambda mod, i, o: log.append(("backward", i, o))),
        ]
        m(x).sum().backward()
        log += [m.weight.grad.clone(), len(m._forward_hooks), len(m._forward_pre_hooks)]
        y = lib.ones(1, 3, requires_grad=True)
        m(y).sum().backward()
        log.append(y.grad)
        for h in handles:
            h.remove()
        m(y)
        return [*log, len(m._forward_hooks)]

    assert len(both(run)) > 20


def test_backward_hooks_of_first_layers() -> None:
    def run(lib: Any) -> list[Any]:
        log: list[Any] = []
        m = linear(lib)
        m.register_full_backward_hook(lambda mod, i, o: log.append((i, o)))
        m(lib.ones(1, 3)).sum().backward()
        net = lib.nn.Sequential(linear(lib), lib.nn.ReLU(), linear(lib, 2, 2))
        for k, layer in enumerate(net):
            layer.register_full_backward_hook(lambda mod, i, o, k=k: log.append((k, i, o)))
        net(lib.ones(2, 3)).sum().backward()
        with lib.no_grad():
            m(lib.ones(1, 3))
        m.register_full_backward_hook(lambda mod, i, o: (None,))
        m(lib.ones(1, 3)).sum().backward()
        m.register_full_backward_hook(lambda mod, i, o: (lib.ones(1, 3),))
        try:
            m(lib.ones(1, 3)).sum().backward()
        except RuntimeError as e:
            log.append("should always return None" in str(e))
        return log

    assert both(run)[-1] is True


def test_backward_hooks_of_several_inputs_and_outputs() -> None:
    def run(lib: Any) -> list[Any]:
        log: list[Any] = []

        class Two(lib.nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any, n: int, y: Any, z: Any = None) -> Any:
                return x * n, y * 2, (x + y).detach()

        m = Two()
        m.register_full_backward_hook(lambda mod, i, o: log.append((i, o)))
        x, y = lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True)
        a, b, _ = m(x, 3, y, z=x)
        (a.sum() + (b * b).sum()).backward()
        log += [x.grad, y.grad]
        x.grad = y.grad = None
        h = m.register_full_backward_hook(lambda mod, i, o: (i[0] * 10, None, i[2] * 100))
        a, b, _ = m(x, 3, y)
        (a.sum() + b.sum()).backward()
        h.remove()
        log += [x.grad, y.grad]
        m.register_full_backward_hook(lambda mod, i, o: (i[0],))
        a, b, _ = m(x, 3, y)
        try:
            (a.sum() + b.sum()).backward()
        except RuntimeError as e:
            log.append(str(e).split(",")[0].split("\n")[0])
        return log

    both(run)


def test_hooks_that_are_always_called() -> None:
    def run(lib: Any) -> list[Any]:
        log: list[Any] = []

        class Fails(lib.nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any) -> Any:
                raise ValueError("no")

        m = Fails()
        m.register_forward_hook(lambda mod, a, o: log.append("not called"))
        m.register_forward_hook(lambda mod, a, o: log.append(("always", o)), always_call=True)
        m.register_forward_hook(lambda mod, a, k, o: 1 / 0, always_call=True, with_kwargs=True)
        m.register_forward_hook(lambda mod, a, k, o: log.append("last"), always_call=True, with_kwargs=True)
        with pytest.raises(ValueError, match="no"):
            m(lib.ones(1))
        n = linear(lib)
        n.register_forward_hook(lambda mod, a, o: 1 / 0)
        n.register_forward_hook(lambda mod, a, o: log.append("after an error"), always_call=True)
        with pytest.raises(ZeroDivisionError):
            n(lib.ones(1, 3))
        return log

    both(run)


def test_hooks_of_tensors() -> None:
    def run(lib: Any) -> list[Any]:
        log: list[Any] = []
        w = lib.ones(2, requires_grad=True)
        w.register_hook(lambda g: log.append(("leaf", g)))
        w.register_hook(lambda g: g * 2)
        w.register_post_accumulate_grad_hook(lambda p: log.append(("added", p.grad.clone())))
        y = w * 3
        y.retain_grad()
        y.register_hook(lambda g: g + 1)
        (y * y).sum().backward()
        log += [w.grad.clone(), y.grad]
        (w * 2).sum().backward()
        return [*log, w.grad]

    both(run)


def test_registrations_are_seen() -> None:
    def run(lib: Any) -> list[Any]:
        log: list[Any] = []
        everywhere = lib.nn.modules.module
        handles = [
            everywhere.register_module_parameter_registration_hook(lambda m, n, p: log.append(("p", n))),
            everywhere.register_module_module_registration_hook(lambda m, n, s: log.append(("m", n))),
            everywhere.register_module_buffer_registration_hook(lambda m, n, b: log.append(("b", n))),
        ]
        m = lib.nn.Sequential(linear(lib))
        m.register_buffer("seen", lib.ones(1))
        for h in handles:
            h.remove()
        linear(lib)
        return log

    both(run)
