"""ONNX graphs of the Qwen3 shape that `benchmarks.decoders` measures, from the weights of a GGUF file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.llama_cpp import FEATURES, HEADS, KEYS

BLOCK = 32
"""Weights that share a scale in MatMulNBits."""


def weights(path: Path) -> dict[str, Any]:
    """The tensors of a file of floats, as float32 arrays."""
    weft: Any = import_module("weft")
    return {n: t.float().numpy() for n, t in weft.io.load_gguf(path).items()}


def layers(w: dict[str, Any]) -> int:
    """The number of layers."""
    return sum(n.endswith("attn_q.weight") for n in w)


def angles(room: int) -> tuple[Any, Any]:
    """Cosines and sines of positions, (room, features / 2), float32."""
    base = 1e6 ** (-np.arange(0, FEATURES, 2, dtype=np.float64) / FEATURES)
    at = np.arange(room)[:, None] * base
    return np.cos(at).astype(np.float32), np.sin(at).astype(np.float32)


class Graph:
    """Nodes and constants of a graph to be."""

    def __init__(self, kind: str) -> None:
        onnx: Any = import_module("onnx")
        self.helper, self.types, self.arrays = onnx.helper, onnx.TensorProto, onnx.numpy_helper
        self.kind = kind
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def constant(self, name: str, value: Any) -> str:
        """The name of a constant."""
        if all(c.name != name for c in self.constants):
            self.constants.append(self.arrays.from_array(np.ascontiguousarray(value), name))
        return name

    def op(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        """A node; the names of its outputs, or the name of its only one."""
        names = [f"{op}_{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(self.helper.make_node(op, list(inputs), names, domain=domain, **attrs))
        return names[0] if outputs == 1 else names

    def shaped(self, x: str, *shape: int) -> str:
        """A reshape."""
        return self.op("Reshape", x, self.constant("shape_" + "_".join(map(str, shape)), np.array(shape)))

    def input(self, name: str, dtype: int, *shape: Any) -> str:
        """An input of the graph."""
        self.inputs.append(self.helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, x: str, name: str, *shape: Any) -> None:
        """An output of the graph, float32."""
        self.nodes.append(self.helper.make_node("Identity", [x], [name]))
        self.outputs.append(self.helper.make_tensor_value_info(name, self.types.FLOAT, list(shape)))

    def norm(self, x: str, name: str, w: Any) -> str:
        """x / sqrt(mean(x^2) + eps) * w."""
        weight = self.constant(name, w)
        return self.op("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=1e-6)

    def linear(self, x: str, name: str, w: Any) -> str:
        """x @ w.T, in the numbers of the graph's kind."""
        rows, columns = w.shape
        if self.kind == "float32":
            return self.op("MatMul", x, self.constant(name + ".T", w.T))
        bits = int(self.kind.removeprefix("int"))
        blocks = w.reshape(rows, -1, BLOCK)
        zero = 1 << (bits - 1)
        scale = np.abs(blocks).max(-1) / (zero - 1)
        q: Any = cast("Any", np.round(blocks / scale[..., None]) + zero).astype(np.uint8)
        if bits == 4:
            q = q[..., ::2] | (q[..., 1::2] << 4)
        how = {"K": columns, "N": rows, "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
        parts = self.constant(name, q), self.constant(name + ".scale", scale.astype(np.float32))
        return self.op("MatMulNBits", x, *parts, domain="com.microsoft", **how)

    def model(self) -> Any:
        """The model."""
        made = self.helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.constants)
        sets = [self.helper.make_opsetid("", 21), self.helper.make_opsetid("com.microsoft", 1)]
        return self.helper.make_model(made, opset_imports=sets, ir_version=10)


class Plain(Graph):
    """A graph of standard ops only."""

    def norm(self, x: str, name: str, w: Any) -> str:
        square = self.op("Mul", x, x)
        mean = self.op("ReduceMean", square, self.constant("last", np.array([-1])), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.constant("eps", np.float32(1e-6))))
        return self.op("Mul", self.op("Div", x, root), self.constant(name, w))

    def linear(self, x: str, name: str, w: Any) -> str:
        if self.kind == "float32":
            return super().linear(x, name, w)
        scale = (np.abs(w).max(1) / 127).astype(np.float32)
        q: Any = cast("Any", np.round(w / scale[:, None])).astype(np.int8)
        parts = self.constant(name, q.T), self.constant(name + ".scale", scale)
        return self.op("MatMul", x, self.op("DequantizeLinear", *parts, axis=1))


def fused(w: dict[str, Any], kind: str) -> Any:
    """A graph of onnxruntime's own ops: inputs ids, seen, total and past keys and values, in buffers of one size."""
    g = Graph(kind)
    g.input("ids", g.types.INT64, 1, "t")
    g.input("seen", g.types.INT32, 1)
    g.input("total", g.types.INT32)
    cos, sin = (g.constant(n, x) for n, x in zip(("cos", "sin"), angles(4096), strict=True))

    def attention(k: int, q: str, key: str, value: str) -> str:
        kept = [g.input(f"past_{n}_{k}", g.types.FLOAT, 1, KEYS, "p", FEATURES) for n in ("key", "value")]
        given = q, key, value, *kept, "seen", "total", cos, sin
        how = {"num_heads": HEADS, "kv_num_heads": KEYS, "do_rotary": 1}
        out = g.op("GroupQueryAttention", *given, outputs=3, domain="com.microsoft", **how)[0]
        for at, n in enumerate(("key", "value"), 1):
            g.nodes[-1].output[at] = f"present_{n}_{k}"  # as they are, with no copy behind them
            shape = [1, KEYS, "p", FEATURES]
            g.outputs.append(g.helper.make_tensor_value_info(f"present_{n}_{k}", g.types.FLOAT, shape))
        return out

    return _decoder(g, w, attention)


def plain(w: dict[str, Any], kind: str) -> Any:
    """A graph of standard ops: inputs ids, positions `at`, and past keys and values, to which new ones are added."""
    g = Plain(kind)
    g.input("ids", g.types.INT64, 1, "t")
    g.input("at", g.types.INT64, "t")
    cos, sin = (
        g.op("Gather", g.constant(n, x), "at") for n, x in zip(("cos", "sin"), angles(4096), strict=True)
    )

    def heads(x: str, count: int) -> str:
        return g.op("Transpose", g.shaped(x, 1, -1, count, FEATURES), perm=[0, 2, 1, 3])

    def turned(x: str) -> str:
        half = g.constant("halves", np.array([FEATURES // 2] * 2))
        a, b = g.op("Split", x, half, outputs=2, axis=-1)
        left = g.op("Sub", g.op("Mul", a, cos), g.op("Mul", b, sin))
        right = g.op("Add", g.op("Mul", b, cos), g.op("Mul", a, sin))
        return g.op("Concat", left, right, axis=-1)

    def attention(k: int, q: str, key: str, value: str) -> str:
        now: list[str] = []
        for n, x in (("key", turned(heads(key, KEYS))), ("value", heads(value, KEYS))):
            past = g.input(f"past_{n}_{k}", g.types.FLOAT, 1, KEYS, "p", FEATURES)
            now.append(g.op("Concat", past, x, axis=2))
            g.output(now[-1], f"present_{n}_{k}", 1, KEYS, "s", FEATURES)
        grouped = g.shaped(turned(heads(q, HEADS)), 1, KEYS, HEADS // KEYS, -1, FEATURES)
        one = g.constant("axis", np.array([2]))
        key, value = (g.op("Unsqueeze", x, one) for x in now)
        scores = g.op("MatMul", grouped, g.op("Transpose", key, perm=[0, 1, 2, 4, 3]))
        scores = g.op("Mul", scores, g.constant("root", np.float32(FEATURES**-0.5)))
        places = g.op("Squeeze", g.op("Shape", now[0], start=2, end=3), g.constant("first", np.array([0])))
        steps = g.op("Range", g.constant("zero", np.int64(0)), places, g.constant("one", np.int64(1)))
        seen = g.op("LessOrEqual", steps, g.op("Unsqueeze", "at", g.constant("axis1", np.array([1]))))
        scores = g.op("Where", seen, scores, g.constant("never", np.float32(-1e30)))
        out = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
        out = g.op("Transpose", g.shaped(out, 1, HEADS, -1, FEATURES), perm=[0, 2, 1, 3])
        return g.shaped(out, 1, -1, HEADS * FEATURES)

    return _decoder(g, w, attention)


def _decoder(g: Graph, w: dict[str, Any], attention: Any) -> Any:
    """The layers around an attention."""

    def normed(x: str, name: str, count: int) -> str:
        return g.shaped(g.norm(g.shaped(x, 1, -1, count, FEATURES), name, w[name]), 1, -1, count * FEATURES)

    def linear(x: str, name: str) -> str:
        return g.linear(x, name, w[name])

    x = g.op("Gather", g.constant("table", w["token_embd.weight"]), "ids")
    for k in range(layers(w)):
        p = f"blk.{k}."
        y = g.norm(x, p + "attn_norm.weight", w[p + "attn_norm.weight"])
        q, key, value = (linear(y, f"{p}attn_{n}.weight") for n in "qkv")
        q, key = normed(q, p + "attn_q_norm.weight", HEADS), normed(key, p + "attn_k_norm.weight", KEYS)
        x = g.op("Add", x, linear(attention(k, q, key, value), p + "attn_output.weight"))
        y = g.norm(x, p + "ffn_norm.weight", w[p + "ffn_norm.weight"])
        gate = linear(y, p + "ffn_gate.weight")
        gate = g.op("Mul", gate, g.op("Sigmoid", gate))
        x = g.op("Add", x, linear(g.op("Mul", gate, linear(y, p + "ffn_up.weight")), p + "ffn_down.weight"))
    last = g.op("Gather", x, g.constant("end", np.array([-1])), axis=1)
    last = g.norm(last, "output_norm.weight", w["output_norm.weight"])
    g.output(linear(last, "token_embd.weight"), "logits", 1, 1, w["token_embd.weight"].shape[0])
    return g.model()


def saved(model: Any, folder: Path) -> Path:
    """The model in a file, its constants beside it: a message of this kind has at most 2 GiB."""
    onnx: Any = import_module("onnx")
    path = folder / "decoder.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="decoder.bin")
    return path
