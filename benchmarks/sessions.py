"""Measures sessions by the eight marks that they were built for, each beside what does without one.

python -m benchmarks.sessions                    all marks, all cores: some minutes; a Markdown table
python -m benchmarks.sessions --only 1,2 --threads 1
python -m benchmarks.sessions --busy             others use the machine: processor time, for one thread

What is compared takes turns, run by run, so that both meet the machine in the same state; ratios are of medians.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.marks import Row, Work, clock, table, turns
from benchmarks.results import ROOT


def example(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def decoding(rounds: int) -> Iterator[Row]:
    """Mark 1: a token of a model without a cache, beside caches by hand, at the end of the buffer."""
    yield from _gpt(512, rounds)
    yield from _gpt(2048, rounds)
    yield from _gemma(rounds)


def _gpt(context: int, rounds: int) -> Iterator[Row]:
    import weft

    gpt = example("session_gpt")
    c = gpt.Config(context=context)
    weft.manual_seed(0)
    model = gpt.GPT(c).eval()
    start = context - rounds - 4
    ids = weft.tensor([7 * k % c.alphabet for k in range(context)])
    session = weft.session(lambda ids, t: model(ids)[t], ids, weft.Variable("t", 0, context - 1))
    cached, whole = gpt.Cached(model, c), weft.compile(model)
    with weft.no_grad():
        session(ids, start - 1).numpy()
        _filled(model, cached, ids)
        whole(ids).numpy()

        def through_session(k: int) -> object:
            ids[start + k] = k % c.alphabet
            return session(ids, start + k).numpy()

        def by_hand(k: int) -> object:
            return cached.step(weft.tensor([k % c.alphabet]), weft.tensor([start + k])).numpy()

        works: list[Work] = [through_session, by_hand]
        if find_spec("torch"):
            token = _torch_token(gpt, model, c, cached)
            works.append(lambda k: token(k % c.alphabet, start + k))
        times = turns(works, rounds)
        _agree([work(0) for work in works])
        (full,) = turns([lambda k: whole(ids).numpy()], 3, 0)
    name = f"token of a GPT, {context} positions"
    yield Row(1, f"{name} / cache by hand", times[0] / times[1], most=1.25)
    if len(times) > 2:
        yield Row(1, f"{name} / torch with its cache", times[0] / times[2], most=1.0)
    yield Row(1, f"{name} / everything", times[0] / full, most=0.03 if context == 2048 else None)
    yield from _kept_for_decoding(context, rounds, session, through_session, by_hand)


def _agree(scores: Sequence[Any]) -> None:
    """Nothing that is compared may compute something else."""
    for other in scores[1:]:
        np.testing.assert_allclose(np.ravel(other), np.ravel(scores[0]), rtol=1e-3, atol=1e-3)


def _kept_for_decoding(
    context: int, rounds: int, session: Any, through_session: Work, by_hand: Work
) -> Iterator[Row]:
    """The same once the session has chosen what to keep."""
    import weft

    kept = session.stats().kept_bytes
    session.optimize(seconds=5)
    with weft.no_grad():
        times = turns([through_session, by_hand], rounds)
        _agree([through_session(0), by_hand(0)])
    name = f"token of a GPT, {context} positions"
    yield Row(1, f"{name}, after optimize / cache by hand", times[0] / times[1], most=1.25)
    yield Row(1, f"{name}, bytes kept after optimize / before", session.stats().kept_bytes / kept)


def _filled(model: Any, cached: Any, ids: Any) -> None:
    """Fill a cache with the keys and values of all positions."""
    import weft.nn.functional as F

    x = model.tokens(ids) + model.places.weight
    for n, block in enumerate(model.blocks):
        q, k, v = block.split(x)
        cached.keys[n], cached.values[n] = k.realize(), v.realize()
        x = block.joined(x, F.scaled_dot_product_attention(q, k, v, is_causal=True)).realize()


def _torch_token(gpt: ModuleType, model: Any, c: Any, cached: Any) -> Callable[[int, int], Any]:
    """A token in torch, with the same keys and values."""
    import torch

    second = gpt.InTorch(model, c)
    for mine, theirs in ((second.keys, cached.keys), (second.values, cached.values)):
        mine[:] = [torch.from_numpy(np.array(t.numpy())) for t in theirs]

    @torch.no_grad()
    def token(token: int, t: int) -> Any:
        return second.step(token, t).numpy()

    return token


def _gemma(rounds: int) -> Iterator[Row]:
    """Mark 1: a model of gemma-3-270m's shape, whose cache weft has."""
    import weft
    from weft.models.gemma3 import Gemma3, Gemma3Config

    c = Gemma3Config(
        vocab_size=262_144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, sliding_window=512,
    )  # fmt: skip
    weft.manual_seed(0)
    model, context = Gemma3(c).eval(), 512
    start = context - rounds - 5
    ids = weft.tensor([[7 * k % 1000 for k in range(context)]])
    session = weft.session(lambda ids, t: model(ids)[0, t], ids, weft.Variable("t", 0, context - 1))
    cache = model.cache(1, context)
    step = weft.compile(lambda ids: model(ids, cache, last=True)[:, 0])
    with weft.no_grad():
        session(ids, start - 1).numpy()
        step(ids[:, :start]).numpy()

        def through_session(k: int) -> object:
            ids[0, start + k] = k
            return session(ids, start + k).numpy()

        _agree([through_session(0), step(weft.tensor([[0]])).numpy()])
        times = turns([through_session, lambda k: step(weft.tensor([[k]])).numpy()], rounds)
    yield Row(
        1, "token of gemma-3-270m's shape, 512 positions / weft's cache", times[0] / times[1], most=1.25
    )


def editing(rounds: int) -> Iterator[Row]:
    """Mark 2: an edit in the middle of 1,024 tokens, and one that reaches an encoder's last layer only."""
    yield from _edits(256, rounds)
    yield from _edits(512, rounds)
    yield _late_edit(6, rounds)


def _edits(width: int, rounds: int) -> Iterator[Row]:
    import weft

    gpt = example("session_gpt")
    c = gpt.Config(context=1024, layers=4, width=width)
    weft.manual_seed(0)
    model = gpt.GPT(c).eval()
    ids = weft.tensor([7 * k % c.alphabet for k in range(c.context)])
    session, whole = weft.session(model, ids), weft.compile(model, numerics="same")
    with weft.no_grad():
        session(ids).numpy()

        def edit(k: int) -> object:
            ids[c.context // 2] = k % c.alphabet
            return session(ids).numpy()

        name = f"edit in the middle of 1,024 tokens, width {width}"
        times = turns([edit, lambda k: whole(ids).numpy()], rounds)
        yield Row(2, f"{name} / everything", times[0] / times[1], most=0.6)
        kept = session.stats().kept_bytes
        session.optimize(seconds=5)
        times = turns([edit, lambda k: whole(ids).numpy()], rounds)
        yield Row(2, f"{name}, after optimize / everything", times[0] / times[1], most=0.6)
        yield Row(2, f"{name}, bytes kept after optimize / before", session.stats().kept_bytes / kept)


def _late_edit(layers: int, rounds: int) -> Row:
    import weft

    gpt = example("session_gpt")
    c = gpt.Config(context=512, layers=layers, width=256)
    weft.manual_seed(0)
    model = gpt.GPT(c).eval()

    def encoder(ids: weft.Tensor, late: weft.Tensor) -> weft.Tensor:
        x = model.tokens(ids) + model.places.weight
        for block in list(model.blocks)[:-1]:
            x = block(x)
        return model.blocks[layers - 1](x + late)

    ids, late = weft.tensor([k % 256 for k in range(c.context)]), weft.zeros(c.context, c.width)
    session, last = weft.session(encoder, ids, late), weft.compile(model.blocks[layers - 1], numerics="same")
    with weft.no_grad():
        session(ids, late).numpy()

        def edit_late(k: int) -> None:
            late[:] = k / 100
            session(ids, late).numpy()

        times = turns([edit_late, lambda k: last(late).numpy()], rounds)
    return Row(2, f"edit that reaches the last of {layers} layers / that layer alone", times[0] / times[1])


def painting(rounds: int) -> Iterator[Row]:
    """Mark 3: a patch of an image, by the example."""
    paint = example("session_paint")
    frames = paint.paint(paint.Config(strokes=rounds + 1))
    assert all(f.same for f in frames), "a frame has other bits than the whole picture"
    ratio = statistics.median(f.seconds for f in frames) / statistics.median(f.whole for f in frames)
    yield Row(3, "32 x 32 patch of 512 x 512, U-Net / everything", ratio, most=0.15)


def overheads(rounds: int) -> Iterator[Row]:
    """Mark 4: runs without a change, known and compared, and what a session adds to a compiled plan."""
    import weft

    x = weft.rand(2048, 1024).realize()
    session = weft.session(lambda x: (x * 2 + 1).sum(1), x)
    session(x).numpy()
    (same,) = turns([lambda k: session(x)], max(200, rounds))
    yield Row(4, "identical input, its changes known", 1e6 * same, most=20, unit="us")

    for megabytes in (8, 32):
        data = np.random.default_rng(0).standard_normal((256 * megabytes, 1024)).astype(np.float32)
        works = [partial(_compared, session, data), partial(bytes_equal, data, data.copy())]
        compared, memcmp = turns(works, max(30, rounds))
        yield Row(4, f"identical array of {megabytes} MB, compared / memcmp", compared / memcmp, most=1.2)

    few, many = _beyond_kernels(2, max(300, rounds)), _beyond_kernels(16, max(300, rounds))
    yield Row(
        4, f"a step of {many[1]} kernels, besides these, beyond one of {few[1]}, by kernel",
        1e6 * (many[0] - few[0]) / (many[1] - few[1]), most=0.3, unit="us",
    )  # fmt: skip
    yield Row(4, f"a step of {few[1]} kernels, besides these", 1e6 * few[0], unit="us")


def _beyond_kernels(layers: int, rounds: int) -> tuple[float, int]:
    """The median seconds of a session's step besides its kernels, of which there are so many."""
    import weft
    from weft.scheduler.plan import Plan

    gpt = example("session_gpt")
    c = gpt.Config(context=64, layers=layers, heads=2, width=16)
    model = gpt.GPT(c).eval()
    ids = weft.tensor(list(range(c.context)))
    session = weft.session(lambda ids, t: model(ids)[t], ids, weft.Variable("t", 0, c.context - 1))
    started, inside = Plan.start_again, [0.0]

    def timed(self: Plan, *args: Any) -> Any:
        begin = clock[0]()
        try:
            return started(self, *args)
        finally:
            inside[0] += clock[0]() - begin

    found: list[float] = []
    Plan.start_again = timed
    try:
        with weft.no_grad():
            for k in range(rounds + 40):
                ids[31 + k % 32] = k % 256
                ids.realize()
                inside[0], begin = 0.0, clock[0]()
                session(ids, 31 + k % 32)
                found.append(clock[0]() - begin - inside[0])
    finally:
        Plan.start_again = started
    return statistics.median(found[40:]), max(len(s.kernels) for s in session.explain().steps)


def _compared(session: Any, data: np.ndarray[Any, Any], _: int) -> object:
    return session(data)


def bytes_equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], _: int = 0) -> bool:
    """memcmp."""
    import ctypes

    compare = ctypes.CDLL(None).memcmp
    return not compare(
        ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(b.ctypes.data), ctypes.c_size_t(a.nbytes)
    )


def memory(rounds: int) -> Iterator[Row]:
    """Marks 5 and 6: half of the memory, planned to the byte, and what a log is worth in a limit."""
    import weft

    repeats = max(5, rounds // 4)
    with weft.no_grad():
        free = _limited(None)
        _decoded(free, 0)
        need = free[0].stats().planned_bytes
        half = _limited(need // 2)
        _decoded(half, 0)
        times = turns([lambda k: _decoded(free, k), lambda k: _decoded(half, k)], repeats, 1)
        yield Row(5, "half of what a session without a limit takes / its time", times[1] / times[0], most=1.6)
        half[0].optimize(seconds=5)
        times = turns([lambda k: _decoded(free, k), lambda k: _decoded(half, k)], repeats, 1)
        yield Row(5, "the same, after optimize", times[1] / times[0])
        yield Row(
            5, "bytes of its limit that it takes", half[0].stats().planned_bytes / (need // 2), most=1.0
        )
        worth = _logged(need)[0].stats().planned_bytes
        for part in (1.0, 0.8, 0.6, 0.5, 0.4):
            yield from _worth_of_a_log(int(part * worth), part, repeats)


def _worth_of_a_log(limit: int, part: float, repeats: int) -> Iterator[Row]:
    import weft

    try:
        plain, logged = _limited(limit), _logged(limit)
        for k in range(4):
            _decoded(plain, k)
    except weft.MemoryPlanError:
        return  # less than the least that would do
    times = turns([lambda k: _decoded(plain, k), lambda k: _decoded(logged, k)], repeats, 1)
    what = f"without a log / after optimize, {part:g} of what is worth keeping"
    yield Row(6, what, times[0] / times[1], least=1.3)


Limited = tuple[Any, Any]
"""A session within a limit, and the tokens that it is run on."""


def _limited(limit: int | None) -> Limited:
    import weft

    gpt = example("session_gpt")
    c = gpt.Config(context=128, layers=3, heads=4, width=64)
    weft.manual_seed(0)
    model = gpt.GPT(c).eval()
    ids = weft.zeros(c.context, dtype=weft.int64).realize()
    t = weft.Variable("t", 0, c.context - 1)
    return weft.session(lambda ids, t: model(ids)[t], ids, t, memory=limit), ids


def _logged(limit: int) -> Limited:
    """One that chose what to keep by its runs."""
    made = _limited(limit)
    for k in range(4):
        _decoded(made, k)
    made[0].optimize(seconds=5)
    _decoded(made, 5)
    return made


def _decoded(given: Limited, seed: int, prompt: int = 32, tokens: int = 60) -> None:
    """A prefill, tokens, and an edit in the middle."""
    import weft

    session, ids = given
    rng = np.random.default_rng(seed)
    ids[:prompt] = weft.tensor(rng.integers(0, 256, prompt))
    session(ids, prompt - 1).numpy()
    for k in range(prompt, prompt + tokens):
        ids[k] = int(rng.integers(256))
        session(ids, k).numpy()
    ids[prompt // 2] = int(rng.integers(256))
    session(ids, prompt + tokens - 1).numpy()


def plans(rounds: int) -> Iterator[Row]:
    """Mark 7: the plan of 24 layers."""
    import weft

    gpt = example("session_gpt")
    c = gpt.Config(context=256, layers=24, width=128)
    model = gpt.GPT(c).eval()

    def scores(ids: weft.Tensor, t: int) -> weft.Tensor:
        return model(ids)[t]

    ids, t = weft.zeros(c.context, dtype=weft.int64).realize(), weft.Variable("t", 0, c.context - 1)
    with weft.no_grad():
        session = weft.session(scores, ids, t, memory=1 << 30)
        _decoded((session, ids), 0, 8, 8)
        begin = clock[0]()
        session.optimize(seconds=0.0)
        yield Row(7, "plan for 24 layers", clock[0]() - begin, most=5, unit="s")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            session.save(path)
            yield Row(7, "its file", path.stat().st_size / 1e6, most=1, unit="MB")
            other = weft.session(scores, ids, t, memory=1 << 30)
            other(ids, 7).numpy()
            begin = clock[0]()
            other.load(path)
            yield Row(7, "loaded and verified", clock[0]() - begin, most=0.3, unit="s")


def generator(rounds: int) -> Iterator[Row]:
    """Mark 8: text encoder, transformer and decoder of an image generator in 1.1 of what the largest takes."""
    import weft

    with weft.no_grad():
        graphs = _image_generator()
        free = [session_of(f, x) for f, x in graphs]
        for s, (_, x) in zip(free, graphs, strict=True):
            s(*x).numpy()
            _edited(x, 0)
            s(*x).numpy()
        largest = max(s.stats().planned_bytes for s in free)
        together = sum(s.stats().planned_bytes for s in free)
        with weft.memory_pool(int(1.1 * largest)) as pool:
            shared = [weft.session(f, *x, pool=pool) for f, x in graphs]
            compiled = [weft.compile(f, numerics="same") for f, _ in graphs]
            times = turns(
                [partial(_edit_of_each, r, graphs) for r in (free, shared, compiled)], max(7, rounds // 2), 4
            )
            for a, b, (_, x) in zip(free, shared, graphs, strict=True):
                assert np.array_equal(a(*x).numpy(), b(*x).numpy()), "a session in a pool has other bits"
            yield Row(8, "bytes of three graphs without a limit / with one", together / pool.nbytes)
            yield Row(8, "bytes of its pool that they take", pool.used_bytes() / pool.nbytes, most=1.0)
            yield Row(8, "an edit of each in turn, in the pool / everything computed", times[1] / times[2])
            yield Row(8, "an edit of each in turn, in the pool / without a limit", times[1] / times[0])


Graph = tuple[Callable[..., Any], list[Any]]
"""A function and its arguments, of which the first is edited."""


def session_of(f: Callable[..., Any], x: Sequence[Any]) -> Any:
    """A session of a graph."""
    import weft

    return weft.session(f, *x)


def _edit_of_each(runs: Sequence[Callable[..., Any]], graphs: Sequence[Graph], k: int) -> None:
    """Edit the last part of each graph's first argument, and run it."""
    for run, (_, x) in zip(runs, graphs, strict=True):
        _edited(x, k)
        run(*x).numpy()


def _image_generator() -> list[Graph]:
    """The graphs of a small Flux 2."""
    import weft
    from weft.models.flux2 import Flux2, Flux2Config
    from weft.models.flux2 import turns as rotations
    from weft.models.flux2_vae import Flux2VAE, Flux2VAEConfig
    from weft.models.qwen3 import Qwen3, Qwen3Config

    weft.manual_seed(0)
    text = Qwen3(Qwen3Config(
        vocab_size=1000, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32,
    )).eval()  # fmt: skip
    sizes = Flux2Config(
        in_channels=32, num_layers=2, num_single_layers=4, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=128, axes_dims_rope=(8, 8, 8, 8),
    )  # fmt: skip
    transformer = Flux2(sizes).eval()
    vae = Flux2VAE(Flux2VAEConfig(
        latent_channels=8, block_out_channels=(16, 32, 32, 32), norm_num_groups=8, layers_per_block=1,
    )).eval()  # fmt: skip
    side, words = 16, 64
    places = np.array([(0, y, x, 0) for y in range(side) for x in range(side)], np.float64)
    spoken = np.array([(0, 0, 0, k) for k in range(words)], np.float64)
    turn = rotations(sizes, np.concatenate([spoken, places]), None)

    def encode(ids: weft.Tensor) -> weft.Tensor:
        return text(ids)

    def lead(x: weft.Tensor, features: weft.Tensor, at: weft.Tensor) -> weft.Tensor:
        return transformer(x, features, at, turn)

    def draw(latents: weft.Tensor) -> weft.Tensor:
        return vae(latents)

    return [
        (encode, [weft.tensor([[k % 1000 for k in range(words)]])]),
        (lead, [weft.rand(1, side * side, 32).realize(), weft.rand(1, words, 128).realize(), weft.tensor([500.0])]),
        (draw, [weft.rand(1, 32, side, side).realize()]),
    ]  # fmt: skip


def _edited(x: list[Any], k: int) -> None:
    """Edit the last part of the first argument."""
    first = x[0]
    if first.ndim == 2:
        first[0, -1] = k % 1000
    elif first.ndim == 3:
        first[0, -1] = k / 100
    else:
        first[0, :, -1, -1] = k / 100


MARKS: dict[str, Callable[[int], Iterator[Row]]] = {
    "1": decoding, "2": editing, "3": painting, "4": overheads, "5,6": memory, "7": plans, "8": generator,
}  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    table("benchmarks.sessions", __doc__, MARKS, 24, given)


if __name__ == "__main__":
    main()
