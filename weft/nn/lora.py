"""Fine-tuning with few weights: adapters of low rank over layers whose own weights stay as they are.

    y = layer(x) + alpha / rank * (x @ A.T) @ B.T          A: (rank, in), B: (out, rank), B zero at first

    adapters = weft.nn.lora.add(model, ["q_proj", "v_proj"], rank=8)       # all else is frozen
    optimizer = weft.optim.AdamW(adapters, lr=2e-4, state_bits=8)
    weft.save(weft.nn.lora.state_dict(model), "adapters.wt")
    weft.nn.lora.merge(model)                                              # as fast as without

The layer may be `Linear`, or `QuantizedLinear` or `BlockLinear`, whose weights are few bits (QLoRA).
Source: Hu et al. 2021, arXiv:2106.09685; Dettmers et al. 2023, arXiv:2305.14314.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from weft.core.args.modes import no_grad
from weft.core.functional.quantization import known
from weft.core.functions.random import rand
from weft.core.layout.creation import zeros
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import float32
from weft.nn import functional as F
from weft.nn.linear import Linear
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.quantized import BlockLinear, QuantizedLinear

__all__ = ["LoRA", "add", "fold", "load_state_dict", "merge", "remove", "state_dict", "unmerge"]

Layer = Linear | QuantizedLinear | BlockLinear
_PREFIX, _DEFAULT = "base_model.model.", ".default."
"""The words that peft's files have in front of names, and within them."""


class LoRA(Module):
    """y = base(x) + scale * (dropout(x) @ lora_A.T) @ lora_B.T.   Shapes: as the base's.

    `scale` is alpha / rank. The base's weights are frozen; those of few bits are widened as products read them.
    """

    lora_A: Parameter  # noqa: N815  (the papers', and peft's name)
    lora_B: Parameter  # noqa: N815

    def __init__(self, base: Layer, rank: int = 8, alpha: float = 16.0, dropout: float = 0.0) -> None:
        super().__init__()
        if rank < 1:
            raise ArgumentError(f"LoRA: rank must be at least 1, got {rank}")
        if not 0 <= dropout < 1:
            raise ArgumentError(f"LoRA: dropout must be from 0 to below 1, got {dropout}")
        outputs, inputs = (
            (base.rows, base.columns)
            if isinstance(base, BlockLinear)
            else (base.out_features, base.in_features)
        )
        dtype = base.weight.dtype if isinstance(base, Linear) else float32
        device = str(next(t for t in (*base.parameters(), *base.buffers())).device)
        self.rank, self.scale, self.dropout = rank, alpha / rank, dropout
        self.base = base.requires_grad_(False)
        bound = 1 / math.sqrt(inputs)  # as a Linear of this many inputs begins
        first = (rand(rank, inputs, device=device) * 2 - 1) * bound
        self.lora_A = Parameter(first.to(dtype))
        self.lora_B = Parameter(zeros(outputs, rank, dtype=dtype, device=device))
        self.merged: Linear | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.merged is not None:
            return self.merged(x)
        a, b = self.lora_A.to(x.dtype), self.lora_B.to(x.dtype)
        low = F.linear(F.dropout(x, self.dropout, self.training) if self.dropout else x, a)
        return self.base(x) + F.linear(low, b) * self.scale

    @no_grad()
    def whole(self) -> Linear:
        """A Linear that computes what this does without dropout: the base's weight, widened, plus scale * B @ A."""
        base = self.base
        match base:
            case Linear():
                weight = base.weight
            case QuantizedLinear():
                weight = base.quantized().dequantize()
            case BlockLinear():
                weight = base.weight_of(base.blocks, float32)
        total = weight.float() + self.scale * (self.lora_B.float() @ self.lora_A.float())
        outputs, inputs = known(weight.shape)
        layer = Linear(inputs, outputs, bias=False, device="meta")
        layer.weight = Parameter(total.to(weight.dtype).realize(), requires_grad=False)
        layer.bias = base.bias
        return layer

    def extra_repr(self) -> str:
        return f"rank={self.rank}, scale={self.scale:g}" + (", merged" if self.merged is not None else "")


def add(
    model: Module, names: Sequence[str], rank: int = 8, alpha: float = 16.0, dropout: float = 0.0
) -> list[Parameter]:
    """Put adapters over the layers of these names, freeze all else, and give the adapters' weights.

    `names`: patterns of whole names ("model.layers.*.self_attn.q_proj"), or of their last words ("q_proj", "*_proj").
    `alpha`: the adapters count alpha / rank times. ArgumentError for a pattern without a layer, for layers that have
    an adapter already, and for others than Linear, QuantizedLinear and BlockLinear.
    """
    found: dict[str, Layer] = {}
    for pattern in [names] if isinstance(names, str) else names:
        hits = [
            (name, m) for name, m in model.named_modules()
            if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)
        ]  # fmt: skip
        if not hits:
            raise ArgumentError(f"lora.add: no layer of the model is called {pattern!r}")
        for name, m in hits:
            if not isinstance(m, (Linear, QuantizedLinear, BlockLinear)):
                raise ArgumentError(
                    f"lora.add: {name} is a {type(m).__name__}; adapters go over Linear, QuantizedLinear, BlockLinear"
                )
            found[name] = m
    held = [n for n, _ in adapters(model)]
    again = [n for n in found if any(n == h or n.startswith(f"{h}.") for h in held)]
    if again:
        raise ArgumentError(f"lora.add: {again[0]} is of an adapter already; `remove` it first")
    model.requires_grad_(False)
    for name, m in found.items():
        layer = LoRA(m, rank, alpha, dropout).train(m.training)
        model.set_submodule(name, layer)
    weights = [w for _, layer in adapters(model) for w in (layer.lora_A, layer.lora_B)]
    for w in weights:
        w.requires_grad_(True)
    return weights


def adapters(model: Module) -> Iterator[tuple[str, LoRA]]:
    """The adapters in a model, with their names."""
    return ((name, m) for name, m in model.named_modules() if isinstance(m, LoRA))


def state_dict(model: Module) -> dict[str, Tensor]:
    """The adapters' weights alone: NAME.lora_A.weight and NAME.lora_B.weight, as peft has them behind its prefix."""
    return {
        f"{name}.{part}.weight": getattr(m, part).detach()
        for name, m in adapters(model)
        for part in ("lora_A", "lora_B")
    }


def load_state_dict(model: Module, weights: Mapping[str, Tensor]) -> None:
    """Take over adapters' weights: those of `state_dict`, or of peft's files. ArgumentError for a missing, an unknown
    or a misshapen one, and while adapters are merged."""
    given = {k.removeprefix(_PREFIX).replace(_DEFAULT, "."): t for k, t in weights.items()}
    own = {
        f"{name}.{part}.weight": getattr(m, part)
        for name, m in adapters(model)
        for part in ("lora_A", "lora_B")
    }
    wrong = [f"lacks {k}" for k in own if k not in given] + [
        f"has {k}, unknown" for k in given if k not in own
    ]
    wrong += [
        f"has {k} of shape {tuple(given[k].shape)} in place of {tuple(p.shape)}"
        for k, p in own.items() if k in given and given[k].shape != p.shape
    ]  # fmt: skip
    merged = [name for name, m in adapters(model) if m.merged is not None]
    if merged:
        raise ArgumentError(f"lora.load_state_dict: {merged[0]} is merged; `unmerge` first")
    if wrong:
        raise ArgumentError(f"lora.load_state_dict: the state {'; '.join(wrong[:4])}")
    with no_grad():
        for k, p in own.items():
            p.copy_(given[k])


def merge(model: Module) -> None:
    """Have each adapter compute by one weight, base and adapter added up. The bases are kept, for `unmerge`."""
    for _, m in adapters(model):
        m.merged = m.merged or m.whole().eval()


def unmerge(model: Module) -> None:
    """Have adapters stand beside their bases again, which are as they were, bit for bit."""
    for _, m in adapters(model):
        m.merged = None


def fold(model: Module) -> None:
    """Put plain Linear layers, base and adapter added up, in the place of adapters."""
    for name, m in list(adapters(model)):
        model.set_submodule(name, m.merged or m.whole())


def remove(model: Module) -> None:
    """Put the bases in the place of adapters, which are gone."""
    for name, m in list(adapters(model)):
        model.set_submodule(name, m.base)
