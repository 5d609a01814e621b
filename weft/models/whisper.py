"""Whisper: speech as text. An encoder of log-mel spectrograms, and a decoder that attends to what it gives.

    encoder, decoder: x = x + attention(norm(x));  x = x + mlp(norm(x))
    decoder, between: x = x + attention(norm(x), encoder(sound))

Source: Radford et al. 2022, arXiv:2212.04356; names as in transformers' WhisperForConditionalGeneration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.errors import ShapeError
from weft.lazy_dataclass import dataclass
from weft.models.attention import attend, heads, mix
from weft.models.cache import Cache, Positions
from weft.models.config import Config, activation
from weft.models.decoder import Decoder
from weft.models.pretrained_module import PretrainedModule

KeyValues = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class WhisperConfig(Config):
    """The sizes of a Whisper."""

    vocab_size: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    num_mel_bins: int = 80
    max_source_positions: int = 1500
    max_target_positions: int = 448
    activation_function: str = "gelu"
    decoder_start_token_id: int = 50257
    suppress_tokens: Sequence[int] | None = None
    begin_suppress_tokens: Sequence[int] | None = (220, 50256)
    tie_word_embeddings: bool = True

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "scale_embedding": (False,), "use_weighted_layer_sum": (False,), "forced_decoder_ids": (None,),
    }  # fmt: skip
    neutral: ClassVar[frozenset[str]] = frozenset({
        "activation_dropout", "apply_spec_augment", "classifier_proj_size", "decoder_layerdrop", "dropout",
        "encoder_layerdrop", "init_std", "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob",
        "mask_time_length", "mask_time_min_masks", "mask_time_prob", "max_length", "median_filter_width",
        "num_hidden_layers",
    })  # fmt: skip


class Attention(nn.Module):
    """out(attention(q(x), k(y), v(y))), y being x or what was heard.   Shapes: x (b, t, e) -> same."""

    def __init__(self, features: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.q_proj = nn.Linear(features, features)
        self.k_proj = nn.Linear(features, features, bias=False)
        self.v_proj = nn.Linear(features, features)
        self.out_proj = nn.Linear(features, features)

    def query(self, x: Tensor) -> Tensor:
        """q(x) in heads: (b, t, e) -> (b, h, t, e / h)."""
        return heads(self.q_proj(x), self.count)

    def keys(self, y: Tensor) -> KeyValues:
        """k(y) and v(y) in heads."""
        return heads(self.k_proj(y), self.count), heads(self.v_proj(y), self.count)

    def forward(self, x: Tensor, heard: KeyValues | None = None) -> Tensor:
        return self.out_proj(mix(self.query(x), *(heard or self.keys(x))))

    def behind(self, x: Tensor, positions: Positions, cache: Cache | None, layer: int) -> Tensor:
        """out(attention(q(x), k(x), v(x))), tokens seeing themselves and those before them."""
        return self.out_proj(attend(self.query(x), *self.keys(x), positions, cache, layer))


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + fc2(act(fc1(norm(x)))).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: WhisperConfig) -> None:
        super().__init__()
        self.act = activation(c.activation_function)
        self.self_attn = Attention(c.d_model, c.encoder_attention_heads)
        self.self_attn_layer_norm = nn.LayerNorm(c.d_model)
        self.fc1, self.fc2 = nn.Linear(c.d_model, c.encoder_ffn_dim), nn.Linear(c.encoder_ffn_dim, c.d_model)
        self.final_layer_norm = nn.LayerNorm(c.d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.fc2(self.act(self.fc1(self.final_layer_norm(x))))


class DecoderLayer(nn.Module):
    """As the encoder's, with x + attention(norm(x), heard) in between.   Shapes: (b, t, e) -> same."""

    def __init__(self, c: WhisperConfig, layer: int) -> None:
        super().__init__()
        self.act = activation(c.activation_function)
        self.layer = layer
        self.self_attn = Attention(c.d_model, c.decoder_attention_heads)
        self.self_attn_layer_norm = nn.LayerNorm(c.d_model)
        self.encoder_attn = Attention(c.d_model, c.decoder_attention_heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(c.d_model)
        self.fc1, self.fc2 = nn.Linear(c.d_model, c.decoder_ffn_dim), nn.Linear(c.decoder_ffn_dim, c.d_model)
        self.final_layer_norm = nn.LayerNorm(c.d_model)

    def forward(self, x: Tensor, heard: KeyValues, positions: Positions, cache: Cache | None) -> Tensor:
        x = x + self.self_attn.behind(self.self_attn_layer_norm(x), positions, cache, self.layer)
        x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), heard)
        return x + self.fc2(self.act(self.fc1(self.final_layer_norm(x))))


class SoundEncoder(nn.Module):
    """norm(layers(gelu(conv2(gelu(conv1(x)))) + position)).   Shapes: (b, bins, 2 t) -> (b, t, e)."""

    def __init__(self, c: WhisperConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(c.num_mel_bins, c.d_model, 3, padding=1)
        self.conv2 = nn.Conv1d(c.d_model, c.d_model, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(c.max_source_positions, c.d_model)
        self.layers = nn.ModuleList([EncoderLayer(c) for _ in range(c.encoder_layers)])
        self.layer_norm = nn.LayerNorm(c.d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(x)))).transpose(1, 2) + self.embed_positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class TextDecoder(nn.Module):
    """norm(layers(token[ids] + position[at], heard)).   Shapes: (b, t) of int -> (b, t, e)."""

    def __init__(self, c: WhisperConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model)
        self.embed_positions = nn.Embedding(c.max_target_positions, c.d_model)
        self.layers = nn.ModuleList([DecoderLayer(c, k) for k in range(c.decoder_layers)])
        self.layer_norm = nn.LayerNorm(c.d_model)

    def forward(
        self, ids: Tensor, heard: Sequence[KeyValues], positions: Positions, cache: Cache | None
    ) -> Tensor:
        x = self.embed_tokens(ids) + self.embed_positions(positions.at)
        for layer, keys in zip(self.layers, heard, strict=True):
            x = layer(x, keys, positions, cache)
        return self.layer_norm(x)


class Trunk(nn.Module):
    """The encoder and the decoder."""

    def __init__(self, c: WhisperConfig) -> None:
        super().__init__()
        self.encoder, self.decoder = SoundEncoder(c), TextDecoder(c)


class Whisper(PretrainedModule):
    """Logits of the tokens that are said: sound (b, bins, frames) and ids (b, t) -> (b, t, vocabulary).

    >>> features = weft.models.log_mel(samples)                            # (1, 80, 3000) of 30 s at 16 kHz
    >>> for (token,) in weft.models.generate(whisper.hearing(features), [[50258]], 64, stop=[50257]):
    ...     ...
    """

    kinds = ("whisper",)
    config = WhisperConfig

    def __init__(self, c: WhisperConfig) -> None:
        super().__init__()
        self.sizes = c
        self.model = Trunk(c)
        self.proj_out = nn.Linear(c.d_model, c.vocab_size, bias=False)
        if c.tie_word_embeddings:
            self.proj_out.weight = self.model.decoder.embed_tokens.weight

    def encode(self, features: Tensor) -> Tensor:
        """The features of sounds: (b, bins, frames) -> (b, frames / 2, e). ShapeError for other sizes."""
        expected = (self.sizes.num_mel_bins, 2 * self.sizes.max_source_positions)
        if tuple(features.shape[1:]) != expected:
            raise ShapeError(
                f"Whisper: needs features of shape (batch, {expected[0]}, {expected[1]}), got {tuple(features.shape)}"
            )
        return self.model.encoder(features)

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        return self.hearing(features)(ids)

    def hearing(self, features: Tensor) -> Hearing:
        """The decoder of what is said in a sound, for `generate`. The sound is encoded once."""
        return Hearing(self, self.encode(features))


class Hearing(Decoder):
    """A Whisper's decoder with the keys and values of a sound, which all its tokens attend to.

    With a cache, and of the last token, logits are those to choose the next one by: what config.json suppresses is at
    -infinity.
    """

    def __init__(self, whisper: Whisper, sound: Tensor) -> None:
        c = whisper.sizes
        super().__init__(c.decoder_layers, c.decoder_attention_heads, c.d_model // c.decoder_attention_heads)
        self.whisper, self.vocabulary, self.longest = whisper, c.vocab_size, c.max_target_positions
        layers = whisper.model.decoder.layers
        self.heard: list[KeyValues] = [layer.encoder_attn.keys(sound) for layer in layers]
        if not weft.is_grad_enabled():
            weft.realize(*[t for pair in self.heard for t in pair])
        self.never = self._ids(c.suppress_tokens)
        self.not_first = self._ids(c.begin_suppress_tokens)

    def _ids(self, ids: Sequence[int] | None) -> Tensor | None:
        """True for those of the vocabulary's tokens: (vocabulary,)."""
        known = [i for i in ids or () if 0 <= i < self.vocabulary]
        if not known:
            return None
        table = weft.zeros(self.vocabulary, dtype=weft.bool, device=self.heard[0][0].device)
        table[weft.tensor(known, device=table.device)] = True
        return table.realize()

    @property
    def embedding(self) -> nn.Embedding:
        return self.whisper.model.decoder.embed_tokens

    def hidden(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        return self.whisper.model.decoder(ids, self.heard, positions, cache)

    def head(self, x: Tensor) -> Tensor:
        return self.whisper.proj_out(x)

    def forward(
        self,
        ids: Tensor,
        cache: Cache | None = None,
        counts: Tensor | None = None,
        first: bool = False,
        last: bool = False,
    ) -> Tensor:
        begins = True if cache is None else (cache.length == 0)[:, None, None]  # of the cache before this
        logits = super().forward(ids, cache, counts, first, last)
        if self.never is not None and (last or cache is not None):
            logits = weft.where(self.never, -weft.inf, logits)
        if self.not_first is not None and last:
            logits = weft.where(self.not_first & begins, -weft.inf, logits)
        return logits
