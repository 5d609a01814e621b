"""PyTorch: eager, with torch.compile, or with matrix products forced through oneDNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.frameworks.run import Array, Run, plain
from benchmarks.inference import LEARNED, NETS, made, rows
from benchmarks.networks import Network, depthwise, residual
from benchmarks.workloads import HEADS, TOKENS, WIDTH

_ONEDNN = "_linear_pointwise"
"""Torch has no public name for a product by oneDNN."""


class _Operations:
    """See `benchmarks.networks`."""

    def __init__(self, library: Any) -> None:
        self.F = library.nn.functional

    def conv(self, x: Any, w: Any, stride: int, groups: int) -> Any:
        return self.F.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2, groups=groups)

    def norm(self, x: Any, scale: Any, shift: Any) -> Any:
        return self.F.batch_norm(x, None, None, scale, shift, training=True)

    def relu(self, x: Any) -> Any:
        return x.relu()

    def sigmoid(self, x: Any) -> Any:
        return x.sigmoid()

    def mean(self, x: Any) -> Any:
        return x.mean((2, 3), keepdim=True)


class Torch:
    """See `benchmarks.frameworks`."""

    compile = False
    onednn = False
    last = False
    """Images with their channels innermost."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        torch.set_grad_enabled(False)
        if self.compile:
            torch.compiler.config.recompile_limit = 512
        self.torch, self.F = torch, torch.nn.functional

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}

    def tensor(self, array: Array) -> Any:
        if array.dtype.name == "bfloat16":
            return self.torch.from_numpy(array.astype(np.float32)).to(self.torch.bfloat16)
        return self.torch.from_numpy(np.array(array, order="C"))

    def compiled(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return self.torch.compile(f) if self.compile else f

    def run(self, f: Callable[..., Any], *inputs: Any) -> Run:
        g, own = self.compiled(f), [self.tensor(x) if isinstance(x, np.ndarray) else x for x in inputs]
        return Run(lambda: g(*own))

    def linear(self, x: Any, w: Any, b: Any = None) -> Any:
        """x @ w.T + b."""
        if self.onednn:
            return getattr(self.torch.ops.mkldnn, _ONEDNN)(x, w, b, "none", [], "")
        return self.F.linear(x, w, b)

    # --- products, memory

    def matmul(self, a: Array, b: Array) -> Run:
        return self.run(lambda a, b: self.linear(a, b.t()) if self.onednn else a @ b, a, b)

    def product(self, a: Array, b: Array, a_turned: bool, b_turned: bool) -> Run:
        forced = self.onednn and a.ndim == 2 and a.dtype == np.float32

        def f(a: Any, b: Any) -> Any:
            x = a.transpose(-2, -1) if a_turned else a
            y = b.transpose(-2, -1) if b_turned else b
            return self.linear(x, y.transpose(-2, -1)) if forced else x @ y

        run = self.run(f, a, b)
        return Run(run.call, lambda y: [plain(y.float() if y.dtype is self.torch.bfloat16 else y)])

    def chain(self, a: Array, b: Array, c: Array, d: Array) -> Run:
        return self.run(lambda a, b, c, d: self.torch.relu(a * b + c) * 0.5 - d, a, b, c, d)

    def chain_reused(self, a: Array, b: Array, c: Array, d: Array) -> Run:
        y = self.torch.empty(a.shape)
        if self.compile:
            return self.run(
                lambda a, b, c, d, y: y.copy_(self.torch.relu(a * b + c) * 0.5 - d), a, b, c, d, y
            )

        def f(a: Any, b: Any, c: Any, d: Any) -> Any:
            self.torch.addcmul(c, a, b, out=y)
            return y.relu_().mul_(0.5).sub_(d)

        return self.run(f, a, b, c, d)

    def sum(self, x: Array, dim: int | None = None) -> Run:
        return self.run(lambda x: x.sum() if dim is None else x.sum(dim), x)

    def softmax(self, x: Array) -> Run:
        return self.run(lambda x: self.F.softmax(x, -1), x)

    def softmax_reused(self, x: Array) -> Run:
        y = self.torch.empty(x.shape)
        if self.compile:
            return self.run(lambda x, y: y.copy_(self.F.softmax(x, -1)), x, y)
        return self.run(lambda x: self.torch.softmax(x, -1, out=y), x)

    def layer_norm(self, x: Array, g: Array, b: Array) -> Run:
        return self.run(lambda x, g, b: self.F.layer_norm(x, (x.shape[-1],), g, b), x, g, b)

    # --- attention, convolution

    def attention(self, q: Array, k: Array, v: Array, mask: Array) -> Run:
        def f(q: Any, k: Any, v: Any, mask: Any) -> Any:
            return self.torch.softmax(q @ k.transpose(-2, -1) * 0.125 + mask, -1) @ v

        return self.run(f, q, k, v, mask)

    def causal_attention(self, q: Array, k: Array, v: Array) -> Run:
        return self.run(lambda q, k, v: self.F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)

    def _images(self, *arrays: Array, last: bool) -> list[Any]:
        own = [self.tensor(a) for a in arrays]
        return [t.to(memory_format=self.torch.channels_last) for t in own] if last else own

    def conv2d(self, x: Array, w: Array, last: bool = False) -> Run:
        return self.run(lambda x, w: self.F.conv2d(x, w, padding=1), *self._images(x, w, last=last))

    def conv2d_nhwc(self, x: Array, w: Array) -> Run:
        return self.conv2d(x, w, last=True)

    def conv2d_gradients(self, x: Array, w: Array, dy: Array, last: bool = False) -> Run:
        def f(x: Any, w: Any, dy: Any) -> Any:
            sides = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
            backward = self.torch.ops.aten.convolution_backward
            return backward(dy, x, w, None, *sides, [True, True, False])[:2]

        return self.run(f, *self._images(x, w, dy, last=last))

    def conv2d_gradients_nhwc(self, x: Array, w: Array, dy: Array) -> Run:
        return self.conv2d_gradients(x, w, dy, last=True)

    # --- training

    def mlp_step(self, weights: list[Array], biases: list[Array], x: Array, y: Array) -> Run:
        nn = self.torch.nn
        net = nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        for k, (w, b) in enumerate(zip(weights, biases, strict=True)):
            net[2 * k].weight.copy_(self.tensor(w.T))
            net[2 * k].bias.copy_(self.tensor(b))
        return self._training(net, x, y)

    def convnet_step(self, weights: list[Array], x: Array, y: Array) -> Run:
        nn = self.torch.nn
        net = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(4096, 10, bias=False),
        )  # fmt: skip
        for k, w in zip((0, 3, 7), weights, strict=True):
            net[k].weight.copy_(self.tensor(w))
        return self._training(net, x, y)

    def lstm_step(self, weights: list[Array], x: Array, y: Array) -> Run:
        nn = self.torch.nn
        size = weights[0].shape[1]

        class Classifier(nn.Module):
            """The class of a sequence, from the last output."""

            def __init__(self) -> None:
                super().__init__()
                self.lstm, self.head = nn.LSTM(size, size), nn.Linear(size, 10)

            def forward(self, x: Any) -> Any:
                return self.head(self.lstm(x)[0][-1])

        net = Classifier()
        net.load_state_dict(
            {n: self.tensor(a) for (n, _), a in zip(net.named_parameters(), weights, strict=True)}
        )
        return self._training(net, x, y)

    def residual_step(self, weights: list[Array], x: Array, y: Array) -> Run:
        return self._network(residual, weights, x, y)

    def depthwise_step(self, weights: list[Array], x: Array, y: Array) -> Run:
        return self._network(depthwise, weights, x, y)

    def _network(self, network: Network, weights: list[Array], x: Array, y: Array) -> Run:
        ops = _Operations(self.torch)

        class Net(self.torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return network(ops, list(self.own), x)

        net = Net()
        net.own = self.torch.nn.ParameterList([self.tensor(w) for w in weights])
        return self._training(net, x, y)

    def _training(self, net: Any, x: Array, y: Array) -> Run:
        for p in net.parameters():
            p.requires_grad_()
        optimizer = self.torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
        images, labels = self._laid(self.tensor(x)), self.tensor(y)
        forward = self.compiled(lambda x, y: self.F.cross_entropy(rows(net(x)), y))

        def step() -> Any:
            with self.torch.enable_grad():
                optimizer.zero_grad(set_to_none=True)
                loss = forward(images, labels)
                loss.backward()
            optimizer.step()
            return loss.detach()

        return Run(step)

    def network_step(self, name: str) -> Run:
        net = NETS[name]
        return self._training(
            self._laid(made(self.torch, name).train()), net.inputs(LEARNED), net.labels(LEARNED)
        )

    def _laid(self, x: Any) -> Any:
        """A network, or its input, in the layout that is measured."""
        has_channels = getattr(x, "ndim", 4) == 4
        return x.to(memory_format=self.torch.channels_last) if self.last and has_channels else x

    def adam_step(self, parameters: list[Array], gradients: list[Array]) -> Run:
        own = [self.tensor(p).requires_grad_() for p in parameters]
        for p, g in zip(own, gradients, strict=True):
            p.grad = self.tensor(g)
        optimizer = self.torch.optim.Adam(own, lr=1e-3, fused=True)
        return Run(optimizer.step, lambda _: [plain(p.detach()) for p in own])

    # --- models

    def _module(self, p: dict[str, Any]) -> Any:
        """A module that has the parameters, weights as (out, in)."""
        module = self.torch.nn.Module()
        for n, a in p.items():
            if n != "layers":
                module.register_buffer(n, self.tensor(a))
        for k, layer in enumerate(p["layers"]):
            for n, a in layer.items():
                module.register_buffer(f"{n}{k}", self.tensor(a.T if n.endswith("_w") else a))
        return module.eval()

    def _layer(self, m: Any, k: int, x: Any, cache: Any = None) -> Any:
        def w(name: str) -> Any:
            return getattr(m, f"{name}{k}")

        F, t = self.F, x.shape[1]
        h = self.linear(F.layer_norm(x, (WIDTH,), w("ln1_g"), w("ln1_b")), w("qkv_w"), w("qkv_b"))
        q, key, v = (u.view(1, t, HEADS, -1).transpose(1, 2) for u in h.split(WIDTH, 2))
        if cache is not None:
            cache[k, 0, :, :, -1:] = key
            cache[k, 1, :, :, -1:] = v
            key, v = cache[k, 0], cache[k, 1]
        a = F.scaled_dot_product_attention(q, key, v, is_causal=cache is None)
        x = x + self.linear(a.transpose(1, 2).reshape(1, t, WIDTH), w("o_w"), w("o_b"))
        h = self.linear(F.layer_norm(x, (WIDTH,), w("ln2_g"), w("ln2_b")), w("fc_w"), w("fc_b"))
        return x + self.linear(F.gelu(h, approximate="tanh"), w("pr_w"), w("pr_b"))

    def _gpt(self, parameters: dict[str, Any], tokens: Array, first: int, cache: Array | None) -> Run:
        m, layers = self._module(parameters), len(parameters["layers"])

        def f(tokens: Any, cache: Any) -> Any:
            x = m.wte[tokens] + m.wpe[first:TOKENS]
            for k in range(layers):
                x = self._layer(m, k, x, cache)
            return self.linear(self.F.layer_norm(x, (WIDTH,), m.lnf_g, m.lnf_b), m.wte)

        return self.run(f, tokens, cache)

    def gpt_forward(self, parameters: dict[str, Any], tokens: Array) -> Run:
        return self._gpt(parameters, tokens, 0, None)

    def gpt_decode(self, parameters: dict[str, Any], token: Array, cache: Array) -> Run:
        return self._gpt(parameters, token, TOKENS - 1, cache)

    def inference(self, name: str) -> Run:
        net, x = made(self.torch, name), self.torch.from_numpy(NETS[name].inputs(1))
        net, x = self._laid(net), self._laid(x)
        g = self.compiled(net)
        return Run(lambda: g(x))

    # --- overhead

    def lazy_adds(self, x: Array) -> Run | None:
        if self.compile or self.onednn:
            return None
        start = self.tensor(x)

        def call() -> Any:
            y = start
            for _ in range(10_000):
                y = y + 1
            return y

        return Run(call)

    def replayed_products(self, x: Array, w: Array) -> Run | None:
        if self.onednn:
            return None

        def f(x: Any, w: Any) -> Any:
            for _ in range(100):
                x = x @ w
            return x

        own = self.tensor(x), self.tensor(w)
        g = self.torch.compile(f) if self.compile else self.torch.jit.trace(f, own)
        return Run(lambda: g(*own))


class TorchCompile(Torch):
    """With torch.compile where it applies."""

    compile = True


class TorchChannelsLast(Torch):
    """Images with their channels innermost."""

    last = True


class TorchOneDNN(Torch):
    """Matrix products through oneDNN rather than MKL."""

    onednn = True
