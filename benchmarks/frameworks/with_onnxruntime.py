"""ONNX Runtime: graphs of one operator, and GPT-2 as a graph; inputs and outputs are bound, so nothing is copied."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.frameworks.run import Array, Run
from benchmarks.inference import NETS, exported
from benchmarks.workloads import HEADS, TOKENS, WIDTH

_HEAD = WIDTH // HEADS


class OnnxRuntime:
    """See `benchmarks.frameworks`. What trains is not its business."""

    def __init__(self, threads: int) -> None:
        import onnx
        import onnxruntime

        self.ort, self.onnx, self.threads = onnxruntime, onnx, threads

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": self.ort.__version__}

    def session(self, graph: Graph, plain: bool = False) -> Run:
        """The graph, with inputs and its one output bound. `plain`: nodes stay as they are."""
        options = self.options()
        if plain:
            options.graph_optimization_level = self.ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        model = graph.model(self.onnx).SerializeToString()
        return self.bound(self.opened(model, options), graph.inputs, graph.outputs)

    def options(self) -> Any:
        """Settings of a session."""
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        return options

    def opened(self, model: bytes | str, options: Any) -> Any:
        """A session of a model, or of the file that one is in."""
        return self.ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def bound(self, session: Any, inputs: dict[str, Array], names: list[str]) -> Run:
        """The session with its inputs and outputs bound."""
        values = {k: self.ort.OrtValue.ortvalue_from_numpy(v) for k, v in inputs.items()}
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        outputs = {
            name: self.ort.OrtValue.ortvalue_from_numpy(array)
            for name, array in zip(names, session.run(names, inputs), strict=True)
        }
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        first = outputs[names[0]]

        def call() -> Any:
            session.run_with_iobinding(binding)
            return values and first  # the inputs stay alive

        return Run(call)

    def one(
        self, op: str, inputs: dict[str, Array], constants: dict[str, Array] | None = None, **a: Any
    ) -> Run:
        """A graph of one node; its inputs in the order of `inputs`, then `constants`."""
        graph = Graph(inputs, constants or {})
        graph.outputs = [graph.add(op, *inputs, *(constants or {}), **a)]
        return self.session(graph)

    # --- products, memory

    def matmul(self, a: Array, b: Array) -> Run:
        return self.one("MatMul", {"a": a, "b": b})

    def product(self, a: Array, b: Array, a_turned: bool, b_turned: bool) -> Run | None:
        if a.dtype not in (np.float32, np.float64):
            return None
        graph = Graph({"a": a, "b": b}, {})
        order = [*range(a.ndim - 2), a.ndim - 1, a.ndim - 2]
        x = graph.add("Transpose", "a", perm=order) if a_turned else "a"
        y = graph.add("Transpose", "b", perm=order) if b_turned else "b"
        graph.outputs = [graph.add("MatMul", x, y)]
        return self.session(graph)

    def chain_reused(self, a: Array, b: Array, c: Array, d: Array) -> Run:
        g = Graph({"a": a, "b": b, "c": c, "d": d}, {"half": np.float32(0.5)})
        positive = g.add("Relu", g.add("Add", g.add("Mul", "a", "b"), "c"))
        g.outputs = [g.add("Sub", g.add("Mul", positive, "half"), "d")]
        return self.session(g)

    def sum(self, x: Array, dim: int | None = None) -> Run:
        axes = np.arange(x.ndim) if dim is None else np.array([dim])
        return self.one("ReduceSum", {"x": x}, {"axes": axes}, keepdims=0)

    def softmax_reused(self, x: Array) -> Run:
        return self.one("Softmax", {"x": x}, axis=-1)

    def layer_norm(self, x: Array, g: Array, b: Array) -> Run:
        return self.one("LayerNormalization", {"x": x}, {"g": g, "b": b}, epsilon=1e-5)

    # --- attention, convolution

    def attention(self, q: Array, k: Array, v: Array, mask: Array) -> Run:
        g = Graph({"q": q, "k": k, "v": v}, {"scale": np.float32(0.125), "mask": mask})
        scores = g.add("MatMul", "q", g.add("Transpose", "k", perm=[0, 1, 3, 2]))
        weights = g.add("Softmax", g.add("Add", g.add("Mul", scores, "scale"), "mask"), axis=-1)
        g.outputs = [g.add("MatMul", weights, "v")]
        return self.session(g)

    def conv2d(self, x: Array, w: Array) -> Run:
        return self.one("Conv", {"x": x}, {"w": w}, pads=[1, 1, 1, 1])

    # --- models

    def _gpt(self, p: dict[str, Any], tokens: Array, first: int, cache: Array | None) -> Run:
        """With a cache: keys and values of the tokens before are inputs, those of the last token outputs."""
        g = Graph({"tokens": tokens}, {n: p[n] for n in ("wte", "lnf_g", "lnf_b")})
        g.constants |= {"head": np.ascontiguousarray(p["wte"].T), "scale": np.float32(_HEAD**-0.5)}
        g.constants |= {
            "position": p["wpe"][first:TOKENS],
            "mask": np.triu(np.full((TOKENS, TOKENS), -1e9, "f"), 1),
        }
        g.constants |= {"split": np.array([WIDTH] * 3), "heads": np.array([1, -1, HEADS, _HEAD])}
        g.constants |= {"whole": np.array([1, -1, WIDTH])}
        if cache is not None:
            g.inputs["cache"] = np.ascontiguousarray(cache[:, :, :, :, : TOKENS - 1])
        kept: list[str] = []
        x = g.add("Add", g.add("Gather", "wte", "tokens"), "position")
        for k, layer in enumerate(p["layers"]):
            g.constants |= {f"{n}{k}": a for n, a in layer.items()}
            x = self._layer(g, k, x, kept if cache is not None else None)
        normal = g.add("LayerNormalization", x, "lnf_g", "lnf_b", epsilon=1e-5)
        g.outputs = [g.add("MatMul", normal, "head"), *kept]
        return self.session(g)

    def _layer(self, g: Graph, k: int, x: str, kept: list[str] | None) -> str:
        def norm(x: str, name: str) -> str:
            return g.add("LayerNormalization", x, f"{name}_g{k}", f"{name}_b{k}", epsilon=1e-5)

        def linear(x: str, name: str) -> str:
            return g.add("Add", g.add("MatMul", x, f"{name}_w{k}"), f"{name}_b{k}")

        q, key, value = (
            g.add("Transpose", g.add("Reshape", part, "heads"), perm=[0, 2, 1, 3])
            for part in g.several("Split", 3, linear(norm(x, "ln1"), "qkv"), "split", axis=2)
        )
        if kept is not None:
            kept += [key, value]
            g.constants |= {f"at{k}{j}": np.array(v) for j, v in enumerate((k, 0, 1)) if j == 0 or k == 0}
            mine = g.add("Gather", "cache", f"at{k}0", axis=0)
            key = g.add("Concat", g.add("Gather", mine, "at01", axis=0), key, axis=2)
            value = g.add("Concat", g.add("Gather", mine, "at02", axis=0), value, axis=2)
        scores = g.add("Mul", g.add("MatMul", q, g.add("Transpose", key, perm=[0, 1, 3, 2])), "scale")
        weights = g.add("Softmax", scores if kept is not None else g.add("Add", scores, "mask"), axis=-1)
        attended = g.add("Transpose", g.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        x = g.add("Add", x, linear(g.add("Reshape", attended, "whole"), "o"))
        return g.add("Add", x, linear(g.add("Gelu", linear(norm(x, "ln2"), "fc"), approximate="tanh"), "pr"))

    def gpt_forward(self, parameters: dict[str, Any], tokens: Array) -> Run:
        return self._gpt(parameters, tokens, 0, None)

    def gpt_decode(self, parameters: dict[str, Any], token: Array, cache: Array) -> Run:
        return self._gpt(parameters, token, TOKENS - 1, cache)

    def inference(self, name: str) -> Run:
        with TemporaryDirectory(prefix="weft-bench-") as folder:
            session = self.opened(str(exported(name, Path(folder))), self.options())
        return self.bound(session, {"x": NETS[name].inputs(1)}, ["y"])

    # --- overhead

    def _replayed(self, op: str, x: Array, w: Array) -> Run:
        g = Graph({"x": x}, {"w": w})
        y = "x"
        for _ in range(100):
            y = g.add(op, y, "w")
        g.outputs = [y]
        return self.session(g, plain=True)

    def replayed_adds(self, x: Array) -> Run:
        return self._replayed("Add", x, np.float32(1))

    def replayed_products(self, x: Array, w: Array) -> Run:
        return self._replayed("MatMul", x, w)


class Graph:
    """An ONNX graph that grows node by node."""

    def __init__(self, inputs: dict[str, Array], constants: dict[str, Any]) -> None:
        self.inputs, self.constants = dict(inputs), dict(constants)
        self.outputs: list[str] = []
        self.nodes: list[tuple[str, tuple[str, ...], list[str], dict[str, Any]]] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output; its name."""
        return self.several(op, 1, *inputs, **attributes)[0]

    def several(self, op: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node with `count` outputs."""
        names = [f"t{len(self.nodes)}_{k}" for k in range(count)]
        self.nodes.append((op, inputs, names, attributes))
        return names

    def model(self, onnx: Any) -> Any:
        """The graph as a model of operator set 20."""
        h, of = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype
        kind = of(next((a.dtype for a in self.inputs.values() if a.dtype.kind == "f"), np.dtype(np.float32)))
        return h.make_model(
            h.make_graph(
                [h.make_node(op, list(i), o, **a) for op, i, o, a in self.nodes],
                "graph",
                [h.make_tensor_value_info(k, of(v.dtype), v.shape) for k, v in self.inputs.items()],
                [h.make_tensor_value_info(o, kind, None) for o in self.outputs],
                [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in self.constants.items()],
            ),
            opset_imports=[h.make_opsetid("", 20)],
            ir_version=9,
        )
