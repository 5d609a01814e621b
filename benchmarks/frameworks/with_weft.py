"""weft, through its public names: compiled functions, and plain lazy use where that is what is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks.run import Array, Run, arrays, channels_first, plain
from benchmarks.inference import LEARNED, NETS, made, rows
from benchmarks.networks import Network, depthwise, residual
from benchmarks.workloads import HEADS, TOKENS, WIDTH


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


class Weft:
    """See `benchmarks.frameworks`."""

    def __init__(self, threads: int) -> None:
        import weft

        self.weft, self.F = weft, weft.nn.functional
        weft.set_num_threads(threads)

    def versions(self) -> dict[str, str]:
        return {"weft": self.weft.__version__}

    def limits(self) -> Any:
        """What the machine does at best, measured now."""
        from weft.backends.cpu.roofline import measure
        from weft.backends.registry import open_device

        device: Any = open_device("cpu:0")
        return measure(device.runtime)

    def tensor(self, array: Array) -> Any:
        return self.weft.tensor(np.ascontiguousarray(array)).realize()

    def compiled(
        self, f: Callable[..., Any], *inputs: Any, results: Callable[[Any], Sequence[Array]] = arrays
    ) -> Run:
        """`f` compiled, on tensors of the arrays among `inputs`."""
        g, wait = self.weft.compile(f), self.weft.synchronize
        own = [self.tensor(x) if isinstance(x, np.ndarray) else x for x in inputs]

        def call() -> Any:
            out = g(*own)
            wait()
            return out

        return Run(call, results)

    # --- products, memory

    def matmul(self, a: Array, b: Array) -> Run:
        return self.compiled(lambda a, b: a @ b, a, b)

    def product(self, a: Array, b: Array, a_turned: bool, b_turned: bool) -> Run:
        def f(a: Any, b: Any) -> Any:
            return (a.transpose(-2, -1) if a_turned else a) @ (b.transpose(-2, -1) if b_turned else b)

        return self.compiled(f, a, b)

    def chain(self, a: Array, b: Array, c: Array, d: Array) -> Run:
        return self.compiled(lambda a, b, c, d: (a * b + c).relu() * 0.5 - d, a, b, c, d)

    def chain_reused(self, a: Array, b: Array, c: Array, d: Array) -> Run:
        y = self.weft.zeros(*a.shape).realize()
        return self.compiled(lambda a, b, c, d: y.copy_((a * b + c).relu() * 0.5 - d), a, b, c, d)

    def sum(self, x: Array, dim: int | None = None) -> Run:
        return self.compiled(lambda x: x.sum() if dim is None else x.sum(dim), x)

    def softmax(self, x: Array) -> Run:
        return self.compiled(lambda x: x.softmax(-1), x)

    def softmax_reused(self, x: Array) -> Run:
        y = self.weft.zeros(*x.shape).realize()
        return self.compiled(lambda x: y.copy_(x.softmax(-1)), x)

    def layer_norm(self, x: Array, g: Array, b: Array) -> Run:
        return self.compiled(lambda x, g, b: self.F.layer_norm(x, (x.shape[-1],), g, b), x, g, b)

    # --- attention, convolution

    def attention(self, q: Array, k: Array, v: Array, mask: Array) -> Run:
        def f(q: Any, k: Any, v: Any, mask: Any) -> Any:
            return (q @ k.transpose(-2, -1) * 0.125 + mask).softmax(-1) @ v

        return self.compiled(f, q, k, v, mask)

    def causal_attention(self, q: Array, k: Array, v: Array) -> Run:
        return self.compiled(
            lambda q, k, v: self.F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v
        )

    def conv2d(self, x: Array, w: Array) -> Run:
        return self.compiled(lambda x, w: self.F.conv2d(x, w, padding=1), x, w)

    def conv2d_nhwc(self, x: Array, w: Array) -> Run:
        def f(x: Any, w: Any) -> Any:
            return self.F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), padding=1).permute(0, 2, 3, 1)

        return self.compiled(f, x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1), results=channels_first)

    def conv2d_gradients(self, x: Array, w: Array, dy: Array) -> Run:
        def f(x: Any, w: Any, dy: Any) -> Any:
            return self.weft.grad(lambda x, w: (self.F.conv2d(x, w, padding=1) * dy).sum(), (0, 1))(x, w)

        return self.compiled(f, x, w, dy)

    def conv2d_gradients_nhwc(self, x: Array, w: Array, dy: Array) -> Run:
        def loss(x: Any, w: Any, dy: Any) -> Any:
            y = self.F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), padding=1)
            return (y.permute(0, 2, 3, 1) * dy).sum()

        turned = [a.transpose(0, 2, 3, 1) for a in (x, w, dy)]
        return self.compiled(self.weft.grad(loss, (0, 1)), *turned, results=channels_first)

    # --- training

    def mlp_step(self, weights: list[Array], biases: list[Array], x: Array, y: Array) -> Run:
        nn = self.weft.nn
        net = nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        pairs = zip(weights, biases, strict=True)
        state = {
            f"{2 * k}.{n}": a for k, (w, b) in enumerate(pairs) for n, a in (("weight", w.T), ("bias", b))
        }
        net.load_state_dict({n: self.tensor(a) for n, a in state.items()})
        return self._training(net, x, y)

    def convnet_step(self, weights: list[Array], x: Array, y: Array) -> Run:
        nn = self.weft.nn
        net = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(4096, 10, bias=False),
        )  # fmt: skip
        net.load_state_dict({f"{k}.weight": self.tensor(w) for k, w in zip((0, 3, 7), weights, strict=True)})
        return self._training(net, x, y)

    def lstm_step(self, weights: list[Array], x: Array, y: Array) -> Run:
        nn = self.weft.nn
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
        ops = _Operations(self.weft)

        class Net(self.weft.nn.Module):
            def forward(self, x: Any) -> Any:
                return network(ops, list(self.own), x)

        net = Net()
        net.own = self.weft.nn.ParameterList([self.tensor(w) for w in weights])
        return self._training(net, x, y)

    def _training(self, net: Any, x: Array, y: Array) -> Run:
        optimizer = self.weft.optim.Adam(net.parameters(), lr=1e-3)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = self.F.cross_entropy(rows(net(x)), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return self.compiled(step, x, y)

    def network_step(self, name: str) -> Run:
        net = NETS[name]
        return self._training(made(self.weft, name).train(), net.inputs(LEARNED), net.labels(LEARNED))

    def adam_step(self, parameters: list[Array], gradients: list[Array]) -> Run:
        own = [self.tensor(p).requires_grad_() for p in parameters]
        optimizer = self.weft.optim.Adam(own, lr=1e-3)

        def step(*gradients: Any) -> None:
            for p, g in zip(own, gradients, strict=True):
                p.grad = g
            optimizer.step()

        run = self.compiled(step, *gradients)
        return Run(run.call, lambda _: [plain(p.detach()) for p in own])

    # --- models

    def _parameters(self, p: dict[str, Any]) -> dict[str, Any]:
        def own(name: str, a: Array) -> Any:
            return self.tensor(a.T if name.endswith("_w") else a)

        layers = [{n: own(n, a) for n, a in layer.items()} for layer in p["layers"]]
        return {n: own(n, a) for n, a in p.items() if n != "layers"} | {"layers": layers}

    def _layer(self, x: Any, w: dict[str, Any], attend: Callable[[Any, Any, Any], Any]) -> Any:
        F, t = self.F, x.shape[1]
        h = F.linear(F.layer_norm(x, (WIDTH,), w["ln1_g"], w["ln1_b"]), w["qkv_w"], w["qkv_b"])
        q, k, v = (u.reshape(1, t, HEADS, -1).transpose(1, 2) for u in h.split(WIDTH, 2))
        x = x + F.linear(attend(q, k, v).transpose(1, 2).reshape(1, t, WIDTH), w["o_w"], w["o_b"])
        h = F.linear(F.layer_norm(x, (WIDTH,), w["ln2_g"], w["ln2_b"]), w["fc_w"], w["fc_b"])
        return x + F.linear(F.gelu(h, approximate="tanh"), w["pr_w"], w["pr_b"])

    def gpt_forward(self, parameters: dict[str, Any], tokens: Array) -> Run:
        p = self._parameters(parameters)

        def attend(q: Any, k: Any, v: Any) -> Any:
            return self.F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def f(tokens: Any) -> Any:
            x = p["wte"][tokens] + p["wpe"][:TOKENS]
            for w in p["layers"]:
                x = self._layer(x, w, attend)
            return self.F.linear(self.F.layer_norm(x, (WIDTH,), p["lnf_g"], p["lnf_b"]), p["wte"])

        return self.compiled(f, tokens)

    def gpt_decode(self, parameters: dict[str, Any], token: Array, cache: Array) -> Run:
        p, last = self._parameters(parameters), TOKENS - 1
        caches = [self.tensor(c) for c in cache]

        def f(token: Any) -> Any:
            x = p["wte"][token] + p["wpe"][last:TOKENS]
            for w, c in zip(p["layers"], caches, strict=True):

                def attend(q: Any, k: Any, v: Any, c: Any = c) -> Any:
                    c[0, :, :, last:] = k
                    c[1, :, :, last:] = v
                    return self.F.scaled_dot_product_attention(q, c[0], c[1])

                x = self._layer(x, w, attend)
            return self.F.linear(self.F.layer_norm(x, (WIDTH,), p["lnf_g"], p["lnf_b"]), p["wte"])

        return self.compiled(f, token)

    def inference(self, name: str) -> Run:
        with self.weft.no_grad():
            net = made(self.weft, name)

        def f(x: Any) -> Any:
            with self.weft.no_grad():
                return net(x)

        return self.compiled(f, NETS[name].inputs(1))

    # --- overhead

    def _repeated(self, x: Array, count: int, f: Callable[[Any], Any]) -> Run:
        start, wait = self.tensor(x), self.weft.synchronize

        def call() -> Any:
            y = start
            for _ in range(count):
                y = f(y)
            y.realize()
            wait()
            return y

        return Run(call)

    def lazy_adds(self, x: Array) -> Run:
        return self._repeated(x, 10_000, lambda y: y + 1)

    def single_adds(self, x: Array) -> Run:
        return self._repeated(x, 1000, lambda y: (y + 1).realize())

    def compiled_adds(self, x: Array) -> Run:
        return self._repeated(x, 1000, self.weft.compile(lambda y: y + 1))

    def replayed_adds(self, x: Array) -> Run:
        """contiguous() keeps every addition a kernel of its own."""

        def f(x: Any) -> Any:
            for _ in range(100):
                x = (x + 1).contiguous()
            return x

        return self.compiled(f, x)

    def replayed_products(self, x: Array, w: Array) -> Run:
        def f(x: Any, w: Any) -> Any:
            for _ in range(100):
                x = (x @ w).contiguous()
            return x

        return self.compiled(f, x, w)
