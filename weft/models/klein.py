"""Flux 2 klein: an image of a text. A Qwen3 reads the text, a transformer leads noise to latents, a decoder draws them.

    x -= (s_k - s_(k+1)) * velocity(x, text, s_k)        for falling times s, from noise at 1 to an image at 0

Source: Lipman et al. 2022, arXiv:2210.02747 (flow matching); Esser et al. 2024, arXiv:2403.03206 (shifted times);
folders as diffusers' Flux2KleinPipeline saves them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import weft
from weft import Tensor
from weft.errors import ArgumentError, FileFormatError, ShapeError
from weft.lazy_dataclass import dataclass
from weft.models.cache import Positions
from weft.models.config import Config
from weft.models.flux2 import Flux2, turns
from weft.models.flux2_vae import Flux2VAE
from weft.models.pretrained import read_config, read_model
from weft.models.pretrained_module import sizes
from weft.models.qwen3 import Qwen3
from weft.models.text import Tokenizer

_LAYERS = (9, 18, 27)
_TEXT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""Qwen3's form of a conversation, without thoughts."""
_PAD = "<|endoftext|>"


@dataclass(frozen=True)
class Schedule(Config):
    """The times of steps: evenly spaced from 1, then shifted towards 1 where images are large.

    `dynamic`: shifted by the number of tokens and steps, else by the constant `shift`.
    """

    num_train_timesteps: int = 1000
    shift: float = 1.0
    use_dynamic_shifting: bool = False
    shift_terminal: float | None = None
    time_shift_type: str = "exponential"

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "invert_sigmas": (False,), "stochastic_sampling": (False,), "use_beta_sigmas": (False, None),
        "use_exponential_sigmas": (False, None), "use_karras_sigmas": (False, None),
    }  # fmt: skip
    neutral: ClassVar[frozenset[str]] = frozenset({
        "_class_name", "_diffusers_version", "base_image_seq_len", "base_shift", "max_image_seq_len", "max_shift",
    })  # fmt: skip

    def __post_init__(self) -> None:
        self.refuse("time_shift_type", {self.time_shift_type} - {"exponential", "linear"})

    def times(self, steps: int, tokens: int) -> np.ndarray[Any, Any]:
        """The times of steps and of the end, 0: (steps + 1,), float32, falling."""
        s = np.linspace(1.0, 1 / steps, steps).astype(np.float32)
        if self.use_dynamic_shifting:
            mu = _mu(tokens, steps)
            by = math.exp(mu) if self.time_shift_type == "exponential" else mu
            s = by / (by + (1 / s - 1))
        else:
            s = self.shift * s / (1 + (self.shift - 1) * s)
        if self.shift_terminal:
            s = 1 - (1 - s) * (1 - self.shift_terminal) / (1 - s[-1])
        return np.append(s, 0).astype(np.float32)


def _mu(tokens: int, steps: int) -> float:
    """The shift of times, found by trial for Flux 2."""
    many = 0.00016927 * tokens + 0.45666666
    if tokens > 4300:
        return many
    few = 8.73809524e-05 * tokens + 1.89833333
    slope = (many - few) / 190
    return slope * steps + many - 200 * slope


@dataclass(frozen=True)
class _Padded(Positions):
    """Positions of texts that are filled up behind: what fills them is not seen. `real`: (b, t) of bool."""

    real: Tensor | None = None

    def mask(self, window: int | None = None) -> Tensor | None:
        assert self.real is not None
        behind = self.at[:, :, None] - self.at[:, None]
        return ((behind >= 0) & self.real[:, None])[:, None]


class Klein:
    """A pipeline of Flux 2 klein: `klein("a cat")` is an image.

    `layers`: the hidden states of the text encoder that make up a text's features. `distilled`: trained to need few
    steps and no guidance.
    """

    def __init__(
        self,
        transformer: Flux2,
        vae: Flux2VAE,
        text_encoder: Qwen3,
        schedule: Schedule,
        tokenizer: Tokenizer | None = None,
        *,
        distilled: bool = True,
        layers: Sequence[int] = _LAYERS,
    ) -> None:
        self.transformer, self.vae, self.text_encoder = transformer, vae, text_encoder
        self.schedule, self.tokenizer, self.distilled, self.layers = schedule, tokenizer, distilled, layers

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], dtype: weft.DType | None = None, device: str | None = None
    ) -> Klein:
        """The pipeline in a folder with model_index.json. Errors as `weft.models.from_pretrained`'s."""
        place = Path(folder)
        index = read_config(place / "model_index.json")
        if index.get("_class_name") != "Flux2KleinPipeline":
            raise FileFormatError(
                f"Klein: {place / 'model_index.json'} is of {index.get('_class_name')!r}, not Flux2KleinPipeline"
            )
        return cls(
            read_model(place / "transformer", (Flux2,), dtype, device),
            read_model(place / "vae", (Flux2VAE,), dtype, device),
            read_model(place / "text_encoder", (Qwen3,), dtype, device),
            Schedule.of(read_config(place / "scheduler" / "scheduler_config.json")),
            Tokenizer(place / "tokenizer") if (place / "tokenizer" / "tokenizer.json").is_file() else None,
            distilled=bool(index.get("is_distilled", False)),
        )

    def text(self, prompts: str | Sequence[str], length: int = 512) -> Tensor:
        """The features of texts, cut or filled up to `length` tokens: (b, length, features). ArgumentError without a
        tokenizer."""
        if self.tokenizer is None:
            raise ArgumentError("Klein: the folder has no tokenizer; give features of the text instead")
        (pad,) = self.tokenizer.encode(_PAD)
        texts = [prompts] if isinstance(prompts, str) else prompts
        rows = [self.tokenizer.encode(_TEXT.format(t))[:length] for t in texts]
        return self.features([row + [pad] * (length - len(row)) for row in rows], [len(row) for row in rows])

    @weft.no_grad()
    def features(self, ids: Sequence[Sequence[int]], lengths: Sequence[int]) -> Tensor:
        """The features of ids, (b, t), of which so many are the text's: hidden states of `layers`, side by side."""
        trunk = self.text_encoder.model
        device = trunk.embed_tokens.weight.device
        rows = weft.tensor([list(row) for row in ids], device=device)
        slots = weft.arange(sizes(rows)[1], device=device)
        real = slots < weft.tensor(list(lengths), device=device)[:, None]
        positions = _Padded(slots[None], sizes(rows)[1], real=real)
        states = [trunk.embed_tokens(rows)]
        for layer in list(trunk.layers)[: max(self.layers)]:
            states.append(layer(states[-1], positions, None))
        return weft.cat([states[k] for k in self.layers], -1).realize()

    @weft.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | Tensor,
        *,
        height: int = 1024,
        width: int = 1024,
        steps: int = 4,
        guidance: float = 1.0,
        negative: str | Tensor = "",
        noise: Tensor | None = None,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Images of texts, or of the features of texts, (b, t, e): (b, 3, height, width), float, from 0 to 1.

        `guidance`, above 1: so much further from `negative` towards the text; nothing for a distilled model. `noise`,
        (b, channels, h, w) of patches, in place of what `seed` gives. `progress(step, steps)` is called after each.
        ArgumentError for sizes that are no multiples of a patch's.
        """
        text = prompt if isinstance(prompt, Tensor) else self.text(prompt)
        x, (h, w) = self._noise(sizes(text)[0], height, width, noise, seed, text)
        at = np.concatenate([_places(1, 1, sizes(text)[1]), _places(h, w, 1)])
        turn = turns(self.transformer.sizes, at, x.device)
        against: Tensor | None = None
        if guidance > 1 and not self.distilled:
            against = negative if isinstance(negative, Tensor) else self.text([negative] * sizes(text)[0])

        def step(x: Tensor, now: Tensor, then: Tensor) -> Tensor:
            time = (now * 1000).expand(x.shape[0])
            velocity = self.transformer(x.to(text.dtype), text, time, turn)
            if against is not None:
                other = self.transformer(x.to(text.dtype), against, time, turn)
                velocity = other + guidance * (velocity - other)
            return (x.float() + (then - now) * velocity).to(x.dtype)

        compiled = weft.compile(step)
        times = weft.tensor(self.schedule.times(steps, h * w), device=x.device)
        for k in range(steps):
            x = compiled(x, times[k], times[k + 1])
            if progress is not None:
                x.realize()
                progress(k + 1, steps)
        latents = x.transpose(1, 2).reshape(x.shape[0], -1, h, w)
        return (self.vae(latents) / 2 + 0.5).clamp(0, 1).realize()

    def _noise(
        self, count: int, height: int, width: int, noise: Tensor | None, seed: int | None, text: Tensor
    ) -> tuple[Tensor, tuple[int, int]]:
        """Tokens of noise, (b, t, c), and how many rows and columns they are."""
        side = self.vae.scale
        if height < side or width < side or height % side or width % side:
            raise ArgumentError(
                f"Klein: height and width must be multiples of {side}, got {height} and {width}"
            )
        shape = (count, self.transformer.sizes.in_channels, height // side, width // side)
        if noise is None:
            generator = weft.Generator(str(text.device))
            if seed is not None:
                generator.manual_seed(seed)
            else:
                generator.manual_seed(int(weft.randint(0, 1 << 62, ()).item()))
            noise = weft.randn(shape, generator=generator, device=str(text.device))
        if tuple(noise.shape) != shape:
            raise ShapeError(f"Klein: needs noise of shape {shape}, got {tuple(noise.shape)}")
        return noise.to(text.dtype).flatten(2).transpose(1, 2).realize(), shape[2:]


def _places(rows: int, columns: int, words: int) -> np.ndarray[Any, Any]:
    """Coordinates of tokens: (time, row, column, place in the text), (rows * columns * words, 4)."""
    grid = np.meshgrid(0, np.arange(rows), np.arange(columns), np.arange(words), indexing="ij")
    return np.stack(grid, -1).reshape(-1, 4).astype(np.float64)
