"""JAX: jitted functions on XLA's CPU backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks.run import Array, Run, arrays, channels_first, plain
from benchmarks.networks import Network, depthwise, residual
from benchmarks.workloads import HEADS, TOKENS, WIDTH


class _Operations:
    """See `benchmarks.networks`."""

    def __init__(self, jax: Any) -> None:
        self.jax, self.np = jax, jax.numpy
        self.relu, self.sigmoid = jax.nn.relu, jax.nn.sigmoid

    def conv(self, x: Any, w: Any, stride: int, groups: int) -> Any:
        side = w.shape[-1] // 2
        return self.jax.lax.conv_general_dilated(
            x, w, (stride, stride), ((side, side), (side, side)), dimension_numbers=("NCHW", "OIHW", "NCHW"),
            feature_group_count=groups,
        )  # fmt: skip

    def norm(self, x: Any, scale: Any, shift: Any) -> Any:
        mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        each = (1, -1, 1, 1)
        x = (x - mean) * self.jax.lax.rsqrt(variance + 1e-5)
        return x * scale.reshape(each) + shift.reshape(each)

    def mean(self, x: Any) -> Any:
        return x.mean((2, 3), keepdims=True)


class Jax:
    """See `benchmarks.frameworks`."""

    def __init__(self, threads: int) -> None:
        import jax
        import jax.numpy as jnp

        self.jax, self.np = jax, jnp

    def versions(self) -> dict[str, str]:
        import jaxlib

        return {"jax": self.jax.__version__, "jaxlib": jaxlib.__version__}

    def array(self, a: Array) -> Any:
        if a.dtype == np.int64:
            a = a.astype(np.int32)
        return self.jax.device_put(np.ascontiguousarray(a))

    def jitted(
        self, f: Callable[..., Any], *inputs: Any, results: Callable[[Any], Sequence[Array]] = arrays
    ) -> Run:
        g = self.jax.jit(f)
        own = [self.array(x) if isinstance(x, np.ndarray) else x for x in inputs]
        return Run(lambda: self.jax.block_until_ready(g(*own)), results)

    # --- products, memory

    def matmul(self, a: Array, b: Array) -> Run:
        return self.jitted(lambda a, b: a @ b, a, b)

    def product(self, a: Array, b: Array, a_turned: bool, b_turned: bool) -> Run | None:
        if a.dtype == np.float64:  # needs a switch for the whole process
            return None

        def f(a: Any, b: Any) -> Any:
            return (a.swapaxes(-2, -1) if a_turned else a) @ (b.swapaxes(-2, -1) if b_turned else b)

        return self.jitted(f, a, b)

    def chain(self, a: Array, b: Array, c: Array, d: Array) -> Run:
        return self.jitted(lambda a, b, c, d: self.jax.nn.relu(a * b + c) * 0.5 - d, a, b, c, d)

    def _donated(self, f: Callable[..., Any], shape: tuple[int, ...], *inputs: Array) -> Run:
        """`f` with its last result's memory given back to it."""
        g = self.jax.jit(lambda y, *x: f(*x), donate_argnums=0, keep_unused=True)
        own, last = [self.array(x) for x in inputs], [self.np.zeros(shape)]

        def call() -> Any:
            last[0] = g(last[0], *own)
            return last[0].block_until_ready()

        return Run(call, lambda y: [np.array(y)])

    def chain_reused(self, a: Array, b: Array, c: Array, d: Array) -> Run:
        return self._donated(lambda a, b, c, d: self.jax.nn.relu(a * b + c) * 0.5 - d, a.shape, a, b, c, d)

    def sum(self, x: Array, dim: int | None = None) -> Run:
        return self.jitted(lambda x: x.sum(dim), x)

    def softmax(self, x: Array) -> Run:
        return self.jitted(lambda x: self.jax.nn.softmax(x, -1), x)

    def softmax_reused(self, x: Array) -> Run:
        return self._donated(lambda x: self.jax.nn.softmax(x, -1), x.shape, x)

    def layer_norm(self, x: Array, g: Array, b: Array) -> Run:
        return self.jitted(self._norm, x, g, b)

    def _norm(self, x: Any, g: Any, b: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) * self.jax.lax.rsqrt(variance + 1e-5) * g + b

    # --- attention, convolution

    def attention(self, q: Array, k: Array, v: Array, mask: Array) -> Run:
        def f(q: Any, k: Any, v: Any, mask: Any) -> Any:
            return self.jax.nn.softmax(q @ k.swapaxes(-2, -1) * 0.125 + mask, -1) @ v

        return self.jitted(f, q, k, v, mask)

    def causal_attention(self, q: Array, k: Array, v: Array) -> Run:
        """jax.nn's takes (batch, token, head, width)."""
        turned = [a.transpose(0, 2, 1, 3) for a in (q, k, v)]
        f = self.jax.nn.dot_product_attention
        return self.jitted(
            lambda q, k, v: f(q, k, v, is_causal=True),
            *turned,
            results=lambda y: [plain(y).transpose(0, 2, 1, 3)],
        )

    def _conv(self, layouts: tuple[str, str, str]) -> Callable[[Any, Any], Any]:
        sides = ((1, 1), (1, 1))
        return lambda x, w: self.jax.lax.conv_general_dilated(x, w, (1, 1), sides, dimension_numbers=layouts)

    def conv2d(self, x: Array, w: Array) -> Run:
        return self.jitted(self._conv(("NCHW", "OIHW", "NCHW")), x, w)

    def conv2d_nhwc(self, x: Array, w: Array) -> Run:
        turned = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)
        return self.jitted(self._conv(("NHWC", "HWIO", "NHWC")), *turned, results=channels_first)

    def _gradients(self, conv: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        return lambda x, w, dy: self.jax.vjp(conv, x, w)[1](dy)

    def conv2d_gradients(self, x: Array, w: Array, dy: Array) -> Run:
        return self.jitted(self._gradients(self._conv(("NCHW", "OIHW", "NCHW"))), x, w, dy)

    def conv2d_gradients_nhwc(self, x: Array, w: Array, dy: Array) -> Run:
        turned = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), dy.transpose(0, 2, 3, 1)

        def results(out: Any) -> list[Array]:
            dx, dw = arrays(out)
            return [dx.transpose(0, 3, 1, 2), dw.transpose(3, 2, 0, 1)]

        return self.jitted(self._gradients(self._conv(("NHWC", "HWIO", "NHWC"))), *turned, results=results)

    # --- training

    def _loss(self, logits: Any, y: Any) -> Any:
        chances = self.jax.nn.log_softmax(logits)
        return -self.np.take_along_axis(chances, y[:, None], 1).mean()

    def _adam(self, p: Any, m: Any, v: Any, t: Any, g: Any) -> tuple[Any, Any, Any]:
        each = self.jax.tree_util.tree_map
        m = each(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = each(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        first, second = 1 - 0.9**t, 1 - 0.999**t
        p = each(lambda p, m, v: p - 1e-3 * (m / first) / (self.np.sqrt(v / second) + 1e-8), p, m, v)
        return p, m, v

    def _training(self, parameters: Any, loss: Callable[..., Any], x: Array, y: Array) -> Run:
        each, zeros = self.jax.tree_util.tree_map, self.np.zeros_like
        images, labels = self.array(x), self.array(y)
        state = [parameters, each(zeros, parameters), each(zeros, parameters), self.np.float32(0)]

        def step(p: Any, m: Any, v: Any, t: Any, x: Any, y: Any) -> Any:
            value, g = self.jax.value_and_grad(loss)(p, x, y)
            t = t + 1
            return *self._adam(p, m, v, t, g), t, value

        f = self.jax.jit(step, donate_argnums=(0, 1, 2, 3))

        def call() -> Any:
            *state[:], value = f(*state, images, labels)
            self.jax.block_until_ready(state)
            return value

        return Run(call)

    def mlp_step(self, weights: list[Array], biases: list[Array], x: Array, y: Array) -> Run:
        parameters = [(self.array(w), self.array(b)) for w, b in zip(weights, biases, strict=True)]

        def loss(p: Any, x: Any, y: Any) -> Any:
            for k, (w, b) in enumerate(p):
                x = x @ w + b
                x = self.jax.nn.relu(x) if k < 2 else x
            return self._loss(x, y)

        return self._training(parameters, loss, x, y)

    def convnet_step(self, weights: list[Array], x: Array, y: Array) -> Run:
        conv, lax = self._conv(("NCHW", "OIHW", "NCHW")), self.jax.lax

        def loss(p: Any, x: Any, y: Any) -> Any:
            for w in p[:2]:
                x = self.jax.nn.relu(conv(x, w))
                x = lax.reduce_window(x, -self.np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
            return self._loss(x.reshape(len(x), -1) @ p[2].T, y)

        return self._training([self.array(w) for w in weights], loss, x, y)

    def residual_step(self, weights: list[Array], x: Array, y: Array) -> Run:
        return self._network(residual, weights, x, y)

    def depthwise_step(self, weights: list[Array], x: Array, y: Array) -> Run:
        return self._network(depthwise, weights, x, y)

    def _network(self, network: Network, weights: list[Array], x: Array, y: Array) -> Run:
        ops = _Operations(self.jax)
        return self._training(
            [self.array(w) for w in weights], lambda p, x, y: self._loss(network(ops, p, x), y), x, y
        )

    def adam_step(self, parameters: list[Array], gradients: list[Array]) -> Run:
        p, zeros = [self.array(a) for a in parameters], self.np.zeros_like
        state = [p, [zeros(a) for a in p], [zeros(a) for a in p], self.np.float32(0)]
        g = [self.array(a) for a in gradients]
        f = self.jax.jit(
            lambda p, m, v, t, g: (*self._adam(p, m, v, t + 1, g), t + 1), donate_argnums=(0, 1, 2, 3)
        )

        def call() -> None:
            state[:] = f(*state, g)
            self.jax.block_until_ready(state)

        return Run(call, lambda _: [np.array(a) for a in state[0]])

    # --- models

    def _parameters(self, p: dict[str, Any]) -> Any:
        return self.jax.tree_util.tree_map(self.np.asarray, p)

    def _layer(self, x: Any, w: dict[str, Any], attend: Callable[[Any, Any, Any], Any]) -> Any:
        t = x.shape[0]
        h = self._norm(x, w["ln1_g"], w["ln1_b"]) @ w["qkv_w"] + w["qkv_b"]
        q, k, v = h.reshape(t, 3, HEADS, WIDTH // HEADS).transpose(1, 2, 0, 3)
        x = x + attend(q, k, v).transpose(1, 0, 2).reshape(t, WIDTH) @ w["o_w"] + w["o_b"]
        h = self.jax.nn.gelu(self._norm(x, w["ln2_g"], w["ln2_b"]) @ w["fc_w"] + w["fc_b"])
        return x + h @ w["pr_w"] + w["pr_b"]

    def _attention(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return self.jax.nn.softmax(self.np.where(mask, q @ k.swapaxes(1, 2) * 0.125, -1e9)) @ v

    def gpt_forward(self, parameters: dict[str, Any], tokens: Array) -> Run:
        def f(p: Any, tokens: Any) -> Any:
            x = p["wte"][tokens] + p["wpe"][:TOKENS]
            mask = self.np.tril(self.np.ones((TOKENS, TOKENS), bool))
            for w in p["layers"]:
                x = self._layer(x, w, lambda q, k, v: self._attention(q, k, v, mask))
            return self._norm(x, p["lnf_g"], p["lnf_b"]) @ p["wte"].T

        g, p, own = self.jax.jit(f), self._parameters(parameters), self.array(tokens[0])
        return Run(lambda: g(p, own).block_until_ready(), lambda y: [plain(y)[None]])

    def gpt_decode(self, parameters: dict[str, Any], token: Array, cache: Array) -> Run:
        update = self.jax.lax.dynamic_update_slice

        def f(p: Any, token: Any, caches: Any, at: Any) -> Any:
            x = p["wte"][token] + self.jax.lax.dynamic_slice(p["wpe"], (at, 0), (1, WIDTH))
            mask, kept = self.np.arange(TOKENS) <= at, []
            for w, (keys, values) in zip(p["layers"], caches, strict=True):

                def attend(q: Any, k: Any, v: Any, keys: Any = keys, values: Any = values) -> Any:
                    kept.append(
                        (update(keys, k[None], (0, 0, at, 0)), update(values, v[None], (0, 0, at, 0)))
                    )
                    return self._attention(q, kept[-1][0][0], kept[-1][1][0], mask)

                x = self._layer(x, w, attend)
            return self._norm(x, p["lnf_g"], p["lnf_b"]) @ p["wte"].T, kept

        g, p, own = self.jax.jit(f, donate_argnums=2), self._parameters(parameters), self.array(token[0])
        state, at = [[tuple(map(self.array, c)) for c in cache]], self.np.int32(TOKENS - 1)

        def call() -> Any:
            y, state[0] = g(p, own, state[0], at)
            self.jax.block_until_ready(state[0])
            return y.block_until_ready()

        return Run(call, lambda y: [plain(y)[None]])

    # --- overhead

    def _repeated(self, x: Array, count: int, f: Callable[[Any], Any]) -> Run:
        start = self.array(x)

        def call() -> Any:
            y = start
            for _ in range(count):
                y = f(y)
            return y.block_until_ready()

        return Run(call)

    def lazy_adds(self, x: Array) -> Run:
        return self._repeated(x, 10_000, lambda y: y + 1)

    def single_adds(self, x: Array) -> Run:
        return self._repeated(x, 1000, lambda y: y + 1)

    def compiled_adds(self, x: Array) -> Run:
        return self._repeated(x, 1000, self.jax.jit(lambda y: y + 1))

    def replayed_products(self, x: Array, w: Array) -> Run:
        def f(x: Any, w: Any) -> Any:
            for _ in range(100):
                x = x @ w
            return x

        return self.jitted(f, x, w)


class JaxUnfused(Jax):
    """With XLA's fusion switched off: for kernels that others keep apart."""

    def replayed_adds(self, x: Array) -> Run:
        def f(x: Any) -> Any:
            for _ in range(100):
                x = self.jax.lax.optimization_barrier(x + 1)
            return x

        text = self.jax.jit(f).lower(self.array(x)).compile().as_text()
        kernels = text.split("ENTRY")[1].count(" fusion(%")
        if kernels < 100:
            raise RuntimeError(f"XLA made {kernels} kernels of 100 additions")
        return self.jitted(f, x)
