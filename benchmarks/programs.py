"""Programs that change from step to step, written once, for weft and for torch.

A program is a generator function of the module `T` (weft or torch), of a seed and of its sizes. What comes before its
first `yield`, which gives nothing, is preparation; then each `yield` gives the value of a step; what it returns is
compared as well. Numbers are drawn by NumPy, so that both modules get the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from benchmarks import models

Array = np.ndarray[Any, Any]
Steps: TypeAlias = Generator[Any, None, Sequence[Array]]
Temperature: TypeAlias = Literal["empty", "prepared", "seen"]
Measure: TypeAlias = Literal["first", "second", "tenth", "steady", "whole", "peak", "grown"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What weft shall reach at a temperature: a measure of at most `least` seconds (bytes) or `times` what it is of
    `of`, whichever is more. `of` is torch, another measure of the same run, or another program."""

    temperature: Temperature
    measure: Measure
    least: float | None = None
    times: float | None = None
    of: str = "torch"


@dataclass(frozen=True, slots=True)
class Program:
    """A program, its sizes, its sizes for a try, and its marks. Differences of results are relative to the largest
    magnitude; after `compared` steps, if that is given, rounding has grown too much for it (batch norms over the few
    pixels of small images). Of a program with `new_numbers`, a run with another seed is what has been seen."""

    name: str
    run: Callable[..., Steps]
    marks: tuple[Mark, ...]
    sizes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    small: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tolerance: float = 1e-3
    compared: int | None = None
    new_numbers: bool = False

    def start(self, T: Any, seed: int, small: bool) -> Steps:
        """The program, about to begin."""
        return self.run(T, seed, **{**self.sizes, **(self.small if small else {})})


# --- training


Batch: TypeAlias = tuple[Array, Array]


def trained(T: Any, net: Any, optimizer: Any, batches: Iterable[Batch]) -> Steps:
    """The usual loop."""
    yield None
    for x, y in batches:
        optimizer.zero_grad()
        loss = T.nn.functional.cross_entropy(net(T.tensor(x)), T.tensor(y))
        loss.backward()
        optimizer.step()
        yield loss.item()
    return models.weights(net)


def drawn(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal numbers."""
    return rng.standard_normal(shape, np.float32)


def labels(rng: np.random.Generator, count: int, classes: int = 10) -> Array:
    """Random classes."""
    return rng.integers(0, classes, count)


def lstm_lengths(T: Any, seed: int, steps: int, batch: int, width: int, longest: int) -> Steps:
    rng = np.random.default_rng(seed)
    net = models.recurrent(T, width)
    sequences = [
        (drawn(rng, batch, n, width), labels(rng, batch)) for n in rng.integers(5, longest + 1, steps)
    ]
    return trained(T, net, T.optim.Adam(net.parameters(), lr=1e-3), sequences)


def transformer_lengths(T: Any, seed: int, steps: int, batch: int, width: int, longest: int) -> Steps:
    rng = np.random.default_rng(seed)
    net = models.encoder(T, width, heads=4, layers=2)
    sequences = [
        (drawn(rng, batch, n, width), labels(rng, batch)) for n in rng.integers(5, longest + 1, steps)
    ]
    return trained(T, net, T.optim.SGD(net.parameters(), lr=1e-2), sequences)


def conv1d_lengths(T: Any, seed: int, steps: int, batch: int, channels: int, longest: int) -> Steps:
    rng = np.random.default_rng(seed)
    net = models.convolved(T, channels)
    sequences = [
        (drawn(rng, batch, channels, n), labels(rng, batch)) for n in rng.integers(5, longest + 1, steps)
    ]
    return trained(T, net, T.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9), sequences)


def mlp_batches(T: Any, seed: int, steps: int, width: int, most: int) -> Steps:
    rng = np.random.default_rng(seed)
    net = models.mlp(T, (width, 2 * width, 2 * width, 10))
    batches = [(drawn(rng, n, width), labels(rng, n)) for n in rng.integers(5, most + 1, steps)]
    return trained(T, net, T.optim.SGD(net.parameters(), lr=1e-2), batches)


def cnn_images(T: Any, seed: int, steps: int, channels: int, most: int, largest: int) -> Steps:
    rng = np.random.default_rng(seed)
    net = models.convnet(T, channels)
    batches = [
        (drawn(rng, n, 3, side, side), labels(rng, n))
        for n, side in zip(
            rng.integers(4, most + 1, steps), rng.integers(12, largest + 1, steps), strict=True
        )
    ]
    return trained(T, net, T.optim.SGD(net.parameters(), lr=1e-2), batches)


def images(make: Callable[[Any, int], Any]) -> Callable[..., Steps]:
    """Steps of a model on images, all of one size."""

    def run(T: Any, seed: int, steps: int, batch: int, side: int) -> Steps:
        rng, net = np.random.default_rng(seed), make(T, side)
        batches = [(drawn(rng, batch, 3, side, side), labels(rng, batch)) for _ in range(steps)]
        yield from trained(T, net, T.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9), batches)
        return [np.asarray(p.grad) for p in net.parameters()]

    return run


def mlp_steps(T: Any, seed: int, steps: int, batch: int, width: int) -> Steps:
    rng = np.random.default_rng(seed)
    net = models.mlp(T, (784, width, width, 10))
    batches = [(drawn(rng, batch, 784), labels(rng, batch)) for _ in range(steps)]
    return trained(T, net, T.optim.Adam(net.parameters(), lr=1e-4), batches)


def gpt_steps(
    T: Any, seed: int, steps: int, batch: int, tokens: int, layers: int, width: int, vocabulary: int
) -> Steps:
    rng, net = np.random.default_rng(seed), models.gpt(T, layers, width, 4, vocabulary, tokens)
    optimizer = T.optim.AdamW(net.parameters(), lr=1e-4)
    yield None
    for _ in range(steps):
        text = T.tensor(labels(rng, batch * (tokens + 1), vocabulary).reshape(batch, tokens + 1))
        logits = net(text[:, :-1])
        loss = T.nn.functional.cross_entropy(logits.reshape(-1, vocabulary), text[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
    return models.weights(net)


# --- generating


def gpt_without_cache(T: Any, seed: int, tokens: int, layers: int, width: int, vocabulary: int) -> Steps:
    rng, prompt = np.random.default_rng(seed), 4
    net = models.gpt(T, layers, width, 4, vocabulary, prompt + tokens)
    text, logits = T.tensor(labels(rng, prompt, vocabulary)[None]), T.zeros(1)
    yield None
    with T.no_grad():
        for _ in range(tokens):
            logits = net(text)[:, -1]
            text = T.cat([text, logits.argmax(-1, keepdim=True)], 1)
            yield text[0, -1].item()
    return [logits.numpy()]


def gpt_with_cache(T: Any, seed: int, tokens: int, layers: int, width: int, vocabulary: int) -> Steps:
    rng, prompt = np.random.default_rng(seed), 4
    net = models.gpt(T, layers, width, 4, vocabulary, prompt + tokens)
    text, logits = T.tensor(labels(rng, prompt, vocabulary)[None]), T.zeros(1)
    past: list[Any] = [None] * layers
    yield None
    with T.no_grad():
        for _ in range(tokens):
            logits = net(text, past)[:, -1]
            text = logits.argmax(-1, keepdim=True)
            yield text.item()
    return [logits.numpy()]


# --- by hand


def by_hand(T: Any, rng: np.random.Generator, width: int) -> tuple[list[Any], Callable[[], Any]]:
    """Parameters of two layers, and their loss."""
    shapes = ((width, width), (width,), (width, 4), (4,))
    parameters = [T.tensor(drawn(rng, *s) / np.float32(width**0.5), requires_grad=True) for s in shapes]
    x, y = T.tensor(drawn(rng, 2 * width, width)), T.tensor(drawn(rng, 2 * width, 4))
    w1, b1, w2, b2 = parameters

    def loss_of() -> Any:
        return ((T.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2).mean()

    return parameters, loss_of


def sgd_by_hand(T: Any, seed: int, steps: int, width: int) -> Steps:
    parameters, loss_of = by_hand(T, np.random.default_rng(seed), width)
    yield None
    for _ in range(steps):
        loss = loss_of()
        loss.backward()
        with T.no_grad():
            for p in parameters:
                p -= 0.01 * p.grad
                p.grad = None
        yield loss.item()
    return [p.detach().numpy() for p in parameters]


def momentum_by_hand(T: Any, seed: int, steps: int, width: int) -> Steps:
    parameters, loss_of = by_hand(T, np.random.default_rng(seed), width)
    moments = [T.zeros_like(p) for p in parameters]
    yield None
    for _ in range(steps):
        loss = loss_of()
        loss.backward()
        with T.no_grad():
            for p, m in zip(parameters, moments, strict=True):
                m.mul_(0.9).add_(p.grad)
                p -= 0.01 * m
                p.grad.zero_()
        yield loss.item()
    return [p.detach().numpy() for p in parameters]


# --- control flow


def actor_critic(T: Any, seed: int, episodes: int, longest: int, width: int) -> Steps:
    rng = np.random.default_rng(seed)
    net = models.actor_critic(T, 4, width, 2)
    optimizer = T.optim.Adam(net.parameters(), lr=1e-3)
    yield None
    for length in rng.integers(10, longest + 1, episodes):
        state, log_chances, values, rewards = drawn(rng, 4), list[Any](), list[Any](), list[float]()
        for _ in range(length):
            chances, value = net(T.tensor(state))
            action = int(rng.random() > chances[0].item())
            log_chances.append(T.log(chances[action]))
            values.append(value)
            rewards.append(float(state[0]) * (1 if action else -1))
            state = (0.9 * state + 0.3 * drawn(rng, 4)).astype(np.float32)
        returns, later = list[float](), 0.0
        for r in reversed(rewards):
            later = r + 0.95 * later
            returns.insert(0, later)
        losses = list[Any]()
        for log_chance, value, later in zip(log_chances, values, returns, strict=True):
            losses.append(-log_chance * (later - value.item()))
            losses.append(
                T.nn.functional.smooth_l1_loss(value, T.tensor([later], dtype=T.float32)).reshape(())
            )
        optimizer.zero_grad()
        loss = T.stack(losses).sum()
        loss.backward()
        optimizer.step()
        yield loss.item()
    return models.weights(net)


def random_trees(T: Any, seed: int, trees: int, most: int, width: int, vocabulary: int) -> Steps:
    rng = np.random.default_rng(seed)

    def tree(leaves: int) -> Any:
        if leaves == 1:
            return int(rng.integers(vocabulary))
        left = int(rng.integers(1, leaves))
        return tree(left), tree(leaves - left)

    net = models.tree_lstm(T, width, vocabulary)
    optimizer = T.optim.SGD(net.parameters(), lr=0.05)
    given = [(tree(int(n)), int(rng.integers(5))) for n in rng.integers(2, most + 1, trees)]
    yield None
    for one, label in given:
        optimizer.zero_grad()
        loss = T.nn.functional.cross_entropy(net(one), T.tensor([label]))
        loss.backward()
        optimizer.step()
        yield loss.item()
    return models.weights(net)


# --- numbers that change


def elementwise_rounds(T: Any, seed: int, rounds: int, size: int) -> Steps:
    rng = np.random.default_rng(seed)
    x = T.tensor(drawn(rng, size))
    total = T.zeros(size)
    yield None
    for k in range(rounds):
        c = 0.5 + k / 1024
        y = T.sin(x * c) + T.clamp(x, -c, c) ** 2 - T.exp(-x.abs() / c)
        chosen = y[y > c / 4]
        ordered, places = T.sort(y)
        begun = x[: size // 4 + k].cumsum(0)
        mixed = T.where(x > c - 1, ordered, T.roll(y, k))
        total = total + mixed * T.full((size,), c)
        yield (
            chosen.sum() / size + begun[-1] / size + mixed.mean() + ordered[k] + (places < k).sum() / size
        ).item()
    return [total.numpy()]


def one_op(f: Callable[[Any, Any, int, float], Any]) -> Callable[..., Steps]:
    """One op on `size` numbers, each time with an integer and a fraction that never came before."""

    def run(T: Any, seed: int, numbers: int, size: int) -> Steps:
        rng = np.random.default_rng(seed)
        x = T.tensor(rng.random(size, np.float32) + np.float32(0.5))
        whole = rng.permutation(np.arange(1, size - 10))[:numbers]
        yield None
        for k, c in zip(whole.tolist(), rng.uniform(0.5, 1.5, numbers).tolist(), strict=True):
            yield f(T, x, k, c).numpy()
        return []

    return run


ONE_OP: Mapping[str, Callable[[Any, Any, int, float], Any]] = {
    "x * c": lambda T, x, k, c: x * c,
    "x[k:k + 10]": lambda T, x, k, c: x[k : k + 10],
    "x ** c": lambda T, x, k, c: x**c,
    "clamp(x, -c, c)": lambda T, x, k, c: T.clamp(x, -c, c),
    "where(x > c, x, 0)": lambda T, x, k, c: T.where(x > c, x, 0.0),
    "arange(k)": lambda T, x, k, c: T.arange(k),
    "roll(x, k)": lambda T, x, k, c: T.roll(x, k),
    "full((1000,), c)": lambda T, x, k, c: T.full((1000,), c),
}


# --- gradients


def accumulated(T: Any, seed: int, steps: int, parts: int, batch: int, side: int, channels: int) -> Steps:
    rng, net = np.random.default_rng(seed), models.convnet(T, channels)
    optimizer = T.optim.SGD(net.parameters(), lr=1e-2)
    batches = [(drawn(rng, batch, 3, side, side), labels(rng, batch)) for _ in range(parts)]
    yield None
    for _ in range(steps):
        optimizer.zero_grad()
        total: Any = 0.0
        for x, y in batches:
            loss = T.nn.functional.cross_entropy(net(T.tensor(x)), T.tensor(y)) / parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        yield total.item()
    return models.weights(net)


def gradients(read: Callable[[Any, list[Any]], float]) -> Callable[..., Steps]:
    """Training that looks at its gradients before each step."""

    def run(T: Any, seed: int, steps: int, batch: int, tokens: int, width: int, layers: int) -> Steps:
        rng, net = np.random.default_rng(seed), models.encoder(T, width, heads=4, layers=layers)
        parameters = list(net.parameters())
        optimizer = T.optim.SGD(parameters, lr=1e-2)
        batches = [(drawn(rng, batch, tokens, width), labels(rng, batch)) for _ in range(steps)]
        yield None
        for x, y in batches:
            optimizer.zero_grad()
            loss = T.nn.functional.cross_entropy(net(T.tensor(x)), T.tensor(y))
            loss.backward()
            norm = read(T, parameters)
            optimizer.step()
            yield loss.item() + norm
        return models.weights(net)

    return run


NOT_READ = "gradients not read"


# --- the table


def _looped(empty: float, prepared: float, seen: float) -> tuple[Mark, ...]:
    """Seconds of the whole loop with an empty cache, and how many times as long as torch with the others."""
    return (
        Mark("empty", "whole", least=empty),
        Mark("prepared", "whole", times=prepared),
        Mark("seen", "whole", times=seen),
    )


_CHANGING = _looped(2.0, 3.0, 1.3)
_BRANCHING = _looped(2.0, 3.0, 2.0)
_BY_HAND = (
    Mark("seen", "whole", times=1.5), Mark("seen", "steady", times=1.2, of="tenth"), Mark("seen", "grown", least=4e6),
)  # fmt: skip
_MODEL = (
    Mark("empty", "first", least=1.0, times=3.0),
    Mark("seen", "first", least=0.3),
    Mark("seen", "second", times=1.5, of="first"),
    Mark("seen", "second", times=1.2, of="tenth"),
    Mark("seen", "steady", times=1.0),
    Mark("seen", "peak", times=1.0),
)
_READ = (Mark("seen", "steady", times=1.3, of=NOT_READ),)

_GENERATED = {"tokens": 60, "layers": 4, "width": 64, "vocabulary": 65}
_TRIED = {"tokens": 3, "layers": 1, "width": 16, "vocabulary": 17}
_TRANSFORMER = {"steps": 20, "batch": 4, "tokens": 16, "width": 64, "layers": 4}
_TRIED_TRANSFORMER = {"steps": 2, "batch": 2, "tokens": 4, "width": 8, "layers": 1}
_AT_A_KINK = 5e-2
"""In the second step of this seed a relu is given 6e-9 (in float64): gradients after it differ by that sign."""
_IMAGES = {"steps": 12, "batch": 4, "side": 48}
_TRIED_IMAGES = {"steps": 2}  # with fewer pixels, batch norms see too few to be compared

_ALL = (
    Program(
        "LSTM, random lengths", lstm_lengths, _CHANGING,
        {"steps": 40, "batch": 8, "width": 32, "longest": 63}, {"steps": 2, "width": 8, "longest": 6},
    ),
    Program(
        "Transformer, random lengths", transformer_lengths, _CHANGING,
        {"steps": 40, "batch": 8, "width": 32, "longest": 63}, {"steps": 2, "width": 8, "longest": 6},
    ),
    Program(
        "Conv1d, random lengths", conv1d_lengths, _CHANGING,
        {"steps": 40, "batch": 8, "channels": 32, "longest": 63}, {"steps": 2, "channels": 4, "longest": 6},
        tolerance=5e-3,
    ),
    Program(
        "MLP, random batches", mlp_batches, _CHANGING,
        {"steps": 40, "width": 64, "most": 63}, {"steps": 2, "width": 8, "most": 6},
    ),
    Program(
        "CNN, random images", cnn_images, _CHANGING,
        {"steps": 30, "channels": 16, "most": 16, "largest": 32}, {"steps": 2, "channels": 4, "largest": 13},
    ),
    Program("GPT, no cache", gpt_without_cache, _CHANGING, _GENERATED, _TRIED),
    Program("GPT, cache by cat", gpt_with_cache, _CHANGING, _GENERATED, _TRIED),
    Program("SGD by hand", sgd_by_hand, _BY_HAND, {"steps": 1000, "width": 16}, {"steps": 3}),
    Program("momentum by hand", momentum_by_hand, _BY_HAND, {"steps": 1000, "width": 16}, {"steps": 3}),
    Program(
        "actor-critic", actor_critic, _BRANCHING,
        {"episodes": 6, "longest": 60, "width": 64}, {"episodes": 1, "longest": 11, "width": 8},
    ),
    Program(
        "tree-LSTM, random trees", random_trees, _BRANCHING,
        {"trees": 15, "most": 10, "width": 32, "vocabulary": 50}, {"trees": 2, "most": 3, "width": 8},
    ),
    Program(
        "elementwise rounds", elementwise_rounds,
        (Mark("prepared", "whole", times=3.0), Mark("seen", "whole", times=1.3)),
        {"rounds": 300, "size": 1000}, {"rounds": 2},
    ),
    *(
        Program(
            name, one_op(f), (Mark("seen", "steady", least=50e-6),),
            {"numbers": 60, "size": 1000}, {"numbers": 3}, new_numbers=True,
        )
        for name, f in ONE_OP.items()
    ),
    Program(
        "32 micro-batches", accumulated, (Mark("seen", "whole", times=0.9), Mark("seen", "peak", times=1.0)),
        {"steps": 3, "parts": 32, "batch": 8, "side": 32, "channels": 16},
        {"steps": 2, "parts": 2, "batch": 2, "side": 8, "channels": 4},
        tolerance=5e-3,
    ),
    Program(NOT_READ, gradients(lambda T, ps: 0.0), (), _TRANSFORMER, _TRIED_TRANSFORMER, tolerance=_AT_A_KINK),
    Program(
        "gradients read one by one", gradients(lambda T, ps: sum(p.grad.norm().item() for p in ps)), _READ,
        _TRANSFORMER, _TRIED_TRANSFORMER, tolerance=_AT_A_KINK,
    ),
    Program(
        "gradients clipped", gradients(lambda T, ps: T.nn.utils.clip_grad_norm_(ps, 1.0).item()), _READ,
        _TRANSFORMER, _TRIED_TRANSFORMER, tolerance=_AT_A_KINK,
    ),
    Program(
        "steps of an MLP", mlp_steps, _MODEL,
        {"steps": 12, "batch": 128, "width": 512}, {"steps": 2, "batch": 4, "width": 8},
    ),
    Program(
        "steps of a GPT of 12 layers", gpt_steps, _MODEL,
        {"steps": 12, "batch": 2, "tokens": 64, "layers": 12, "width": 128, "vocabulary": 256},
        {"steps": 2, "batch": 1, "tokens": 4, "layers": 1, "width": 16, "vocabulary": 17},
    ),
    Program(
        "steps of ResNet-50", images(lambda T, side: models.resnet(T, (3, 4, 6, 3), 64)), _MODEL,
        _IMAGES, _TRIED_IMAGES, tolerance=1e-2, compared=2,
    ),
    Program(
        "steps of a ViT", images(lambda T, side: models.vit(T, 12, 192, 3, 8, side)), _MODEL, _IMAGES, _TRIED_IMAGES,
    ),
    Program(
        "steps of MobileNetV3", images(lambda T, side: models.mobilenet(T, models.MOBILE)), _MODEL,
        _IMAGES, _TRIED_IMAGES, tolerance=1e-2, compared=2,
    ),
    Program(
        "steps of DenseNet-121", images(lambda T, side: models.densenet(T, (6, 12, 24, 16), 32)), _MODEL,
        _IMAGES, _TRIED_IMAGES, tolerance=1e-2, compared=2,
    ),
)  # fmt: skip

PROGRAMS: Mapping[str, Program] = {p.name: p for p in _ALL}
