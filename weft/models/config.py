"""config.json as a dataclass: every field is honoured or refused by its name, never overlooked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, ClassVar, Self

import weft.nn.functional as F
from weft import Tensor
from weft.errors import ArgumentError

NEUTRAL = frozenset({
    "_attn_implementation_autoset", "_name_or_path", "_sliding_window_pattern", "architectures",
    "auto_map", "bos_token_id", "cache_implementation", "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label",
    "initializer_range", "is_encoder_decoder", "label2id", "max_window_layers", "model_type", "output_attentions",
    "output_hidden_states", "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "sliding_window_pattern",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "task_specific_params", "torch_dtype", "transformers_version", "use_cache", "original_max_position_embeddings",
    "embd_pdrop", "resid_pdrop", "attn_pdrop", "attention_dropout", "gradient_checkpointing", "n_ctx",
})  # fmt: skip
"""Fields that change nothing in what a model computes when it is not trained."""


class Config:
    """The base of configurations: dataclasses with the fields of config.json under their names.

    `only`: fields that are honoured at these values alone, which are what their absence means. `aliases`: other names.
    `neutral`: fields that, besides `NEUTRAL`, change nothing.
    """

    neutral: ClassVar[frozenset[str]] = frozenset()
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    aliases: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The configuration that a file's values describe. ArgumentError naming each field that cannot be honoured."""
        given = {cls.aliases.get(k, k): v for k, v in values.items()}
        known = {f.name: f for f in fields(cls)}  # pyright: ignore[reportArgumentType]  # subclasses are dataclasses
        wrong = [
            f"{k}={given[k]!r} is not supported (only {_either(o)})"
            for k, o in cls.only.items()
            if k in given and given[k] not in o
        ]
        wrong += [
            f"{k}={v!r} is unknown"
            for k, v in given.items()
            if k not in known and k not in cls.only and k not in NEUTRAL | cls.neutral
        ]
        wrong += [f"{k} is missing" for k, f in known.items() if k not in given and f.default is MISSING]
        if wrong:
            raise ArgumentError(f"{cls.__name__}: " + "; ".join(wrong))
        return cls(**{k: v for k, v in given.items() if k in known})

    def refuse(self, field: str, unknown: set[Any]) -> None:
        """ArgumentError for values of a field that mean nothing here."""
        if unknown:
            raise ArgumentError(
                f"{type(self).__name__}: {field} has {_either(tuple(sorted(unknown)))}, not supported"
            )


_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"), "relu": F.relu, "silu": F.silu, "swish": F.silu,
}  # fmt: skip


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function that configurations have this name for. ArgumentError for one that weft does not know."""
    if name not in _ACTIVATIONS:
        raise ArgumentError(f"the activation {name!r} is not supported (only {_either(tuple(_ACTIVATIONS))})")
    return _ACTIVATIONS[name]


def _either(options: tuple[Any, ...]) -> str:
    return " or ".join([repr(o) for o in options])
