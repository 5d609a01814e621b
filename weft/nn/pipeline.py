"""Pipelines: layers in stages, each on a device of its own, which work on different microbatches at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from weft.core.args.axes import is_int
from weft.core.args.handle import describe
from weft.core.compile.asked_devices import limits_of, names_of
from weft.core.execute.run import device_name
from weft.core.execute.stages import Stage, cut
from weft.core.layout.movement import cat
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.nn.containers import Sequential
from weft.nn.module import Module


class Pipeline(Module):
    """The layers one after the other, in stages on `devices`; a batch goes through them in `microbatches` parts.

        model = nn.Pipeline(nn.Sequential(...), ["cuda:0", "cuda:1"], microbatches=8, example=x)
        loss = F.cross_entropy(model(x), y)
        loss.backward()

    While one device works on a part, the others work on those before and after it, forward and backward; with m parts
    and s equal stages a step takes (m + s - 1) / m of its work over s. Layers take a tensor and give one, with rows
    along its first dimension. Parameters move to their stages' devices; they are named "module.*". The result is where
    the input was, or on `output_device`. `devices` are as for `weft.compile`.

    `example`, a batch, is what the stages are cut by: each layer is measured on each device (once for the machine), so
    unequal devices get unequal stages, and devices that would not help get none. `memory`, bytes of each device or by
    name, bounds about what a stage takes: weights, gradients, two moments, what all parts keep for the backward pass
    and what is passed on; the loss comes on top. Without `example`, and with `ends`, the layers end where that says:
    `ends=[4, 9]` has layers 0 to 3 on the first device and 4 to 8 on the second. `stages` and, where it was predicted,
    `ns`, the time of a step, say what was chosen.

    Gradients of weights are sums over the parts, in another order than of the whole batch. Batch norms use the
    statistics of each part, as in torch's pipelines.

    ArgumentError for layers of two stages that share a parameter, for `ends` that do not fit, and where neither or both
    are given; MemoryPlanError where no cut fits. Source: Huang et al. 2018, "GPipe", arXiv:1811.06965.
    """

    def __init__(
        self,
        layers: Sequential | Iterable[Module],
        devices: Sequence[Any] | str,
        microbatches: int,
        example: Tensor | None = None,
        *,
        ends: Sequence[int] | None = None,
        memory: int | Mapping[str, int] | None = None,
        output_device: Any = None,
    ) -> None:
        super().__init__()
        self.module = layers if isinstance(layers, Sequential) else Sequential(*layers)
        self.microbatches = _positive("microbatches", microbatches)
        names = [device_name(name) for name in names_of("Pipeline", devices)]
        if not len(self.module):
            raise ArgumentError("Pipeline: there are no layers: it needs one at least")
        self.output_device = None if output_device is None else device_name(output_device)
        self.ns: float | None = None
        if (ends is None) == (example is None):
            raise ArgumentError(
                "Pipeline: give example=, a batch to cut the stages by, or ends=, where they end"
            )
        limits = limits_of("Pipeline", memory, names)
        if ends is not None:
            if limits:
                raise ArgumentError(
                    "Pipeline: memory= is what stages are cut within, and ends= says where they end"
                )
            self.stages = _as_asked(ends, names, len(self.module))
        else:
            self.stages = self._cut(names, example, limits)
        self._check_shared()
        self._place()

    def _place(self) -> None:
        """Have all layers on their stages' devices."""
        for stage in self.stages:
            for layer in list(self.module)[stage.first : stage.end]:
                layer.to(stage.device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._place()  # tensors are loaded on the default device

    def forward(self, x: Tensor) -> Tensor:
        """The results of all parts, one below the other."""
        home = x.device if self.output_device is None else self.output_device
        layers = list(self.module)
        homes = [self._home(layers[s.first : s.end], s) for s in self.stages]
        results: list[Tensor] = []
        for part in x.chunk(self.microbatches, 0) if x.ndim else [x]:
            y = part
            for stage, there in zip(self.stages, homes, strict=True):
                y = y.to(there)
                for layer in layers[stage.first : stage.end]:
                    y = layer(y)
                    if not isinstance(y, Tensor):
                        raise DTypeError(
                            f"Pipeline: a {type(layer).__name__} gives {describe(y)}: layers of a pipeline take a "
                            "tensor and give one"
                        )
            results.append(y)
        whole = results[0] if len(results) == 1 else cat(results, 0)
        return whole.to(home)

    def _home(self, layers: Sequence[Module], stage: Stage) -> Any:
        """The device of a stage's layers: where they were put, unless somebody has moved them."""
        return next((p.device for layer in layers for p in layer.parameters()), stage.device)

    def extra_repr(self) -> str:
        """The stages."""
        rows = [f"layers {s.first} to {s.end - 1} on {s.device}" for s in self.stages]
        return f"{self.microbatches} microbatches; {'; '.join(rows)}"

    def _cut(self, names: list[str], example: Tensor | None, limits: Mapping[str, int]) -> tuple[Stage, ...]:
        if not isinstance(example, Tensor) or not example.ndim:
            raise DTypeError(f"Pipeline: example= is a batch, a tensor with rows, got {describe(example)}")
        layers: list[Any] = list(self.module)
        was = [(m, m.training) for m in self.module.modules()]
        self.module.eval()  # which draws nothing, and records no statistics
        try:
            found = cut(
                layers, [[t.value for t in (*m.parameters(), *m.buffers())] for m in layers],
                example[: -(-example.shape[0] // self.microbatches)].value, names, self.microbatches,
                limits,
            )  # fmt: skip
        finally:
            for module, training in was:
                module.training = training
        self.ns = found.ns
        return found.stages

    def _check_shared(self) -> None:
        """ArgumentError for a parameter of two stages: it could only be on the device of one."""
        stage_of: dict[int, tuple[int, str]] = {}
        for number, stage in enumerate(self.stages):
            for at, layer in enumerate(list(self.module)[stage.first : stage.end], stage.first):
                for name, p in layer.named_parameters():
                    known = stage_of.setdefault(id(p), (number, f"{at}.{name}"))
                    if known[0] != number:
                        raise ArgumentError(
                            f"Pipeline: {known[1]} and {at}.{name} are one parameter, in stages {known[0]} and "
                            f"{number}: keep both in one stage, with ends="
                        )


def _as_asked(ends: Sequence[int], names: Sequence[str], layers: int) -> tuple[Stage, ...]:
    if (
        isinstance(ends, str)
        or len(ends) != len(names)
        or not all(map(is_int, ends))
        or not all(a < b for a, b in pairwise((0, *ends)))
        or ends[-1] != layers
    ):
        raise ArgumentError(
            f"Pipeline: ends= says for each of {len(names)} devices the layer after its last, up to {layers}, got "
            f"{ends if isinstance(ends, str) else list(ends)!r}"
        )
    return tuple([Stage(d, a, b) for d, (a, b) in zip(names, pairwise((0, *ends)), strict=True)])


def _positive(name: str, n: int) -> int:
    if not is_int(n) or n < 1:
        raise ArgumentError(f"Pipeline: {name} is a number from 1, got {describe(n)}")
    return n
