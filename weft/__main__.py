"""The command line: `python -m weft devices | demo | explain | bench | cache | prepare | generate | serve | run`."""
# Tests: tests/test_main.py, tests/as_torch/test_run.py

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import weft
from weft import Tensor, disk_cache

if TYPE_CHECKING:
    from weft.models import Tokenizer
    from weft.models.decoder import Decoder

_SAMPLING = (
    ("temperature", float, 0.0), ("top_k", int, 0), ("top_p", float, 1.0), ("min_p", float, 0.0),
    ("repetition_penalty", float, 1.0),
)  # fmt: skip
DRAWN = frozenset({"top_k", "top_p", "min_p"})
"""Options that say among which tokens one is drawn at random."""
DRAFT_TOKENS = 4


def devices(measured: bool = False) -> None:
    """Lists the devices of every installed backend; for one that cannot be used, why, and what to install.

    `measured`: also what launches and copies take on each, and what it does at best.
    """
    from weft.backends.measure import measure
    from weft.backends.registry import open_device

    for status in weft.devices():
        print(status)
        if measured and status.info is not None:
            device = open_device(status.name)
            print(f"    {measure(device)}\n    {device.limits()}")


def explain(expression: str, time: bool = False, kernel: int | None = None, show: Sequence[str] = ()) -> None:
    """Prints the kernels that would compute a Python expression over `weft`, and why each one ends where it does;
    or, of kernel number `kernel`, counted from 1, the forms called `show`."""
    value = eval(expression, {"weft": weft, "F": weft.nn.functional})
    if not isinstance(value, Tensor):
        raise SystemExit(f"the expression is a {type(value).__name__}, not a Tensor: {expression}")
    explained = weft.explain(value, time=time)
    if kernel is None and not show:
        print(explained)
        return
    number = kernel or 1
    if not 1 <= number <= len(explained):
        raise SystemExit(f"there is no kernel {number}: the expression takes {len(explained)}")
    print(explained[number - 1].show(*show))


def demo(steps: int = 300) -> None:
    """Fits a small network to two interleaved spirals through one compiled training step."""
    weft.manual_seed(0)
    turn = weft.linspace(0.5, 3.0, 200)
    arm = weft.stack([turn * (3 * turn).cos(), turn * (3 * turn).sin()], dim=1)
    x, y = weft.cat([arm, -arm]).realize(), (weft.arange(400) >= 200).long().realize()
    nn = weft.nn
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = weft.optim.Adam(model.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    with weft.no_grad():
        print("The kernels of the forward pass:\n")
        print(weft.explain(model(x)))
    compiled = weft.compile(step)
    start = time.perf_counter()
    for n in range(1, steps + 1):
        loss = compiled(x, y)
        if n % 100 == 0 or n == 1:
            print(f"step {n:4d}   loss {loss.item():.4f}   {time.perf_counter() - start:.2f} s")
    with weft.no_grad():
        right = (model(x).argmax(1) == y).sum().item()
    print(f"{right} of {len(y)} points on the right spiral")


def bench(arguments: Sequence[str]) -> None:
    """Runs the benchmarks of the source tree: that of this package, or else that of the current folder."""
    for home in (Path(weft.__file__).parents[1], Path.cwd()):
        if (home / "benchmarks" / "__main__.py").exists() and (home / "weft").is_dir():
            sys.path.insert(0, str(home))
            import_module("benchmarks.__main__").main(arguments)
            return
    sys.exit(
        "the benchmarks are in weft's source tree, not in the installed package: clone the repository, and run "
        "`make bench` there, or this command in its folder"
    )


def cache(clear: bool) -> None:
    """Says where compiled programs are kept on disk and how much they take; removes them first if asked to."""
    if clear:
        disk_cache.clear()
    used = disk_cache.usage()
    if used.folder is None:
        print("no cache on disk: WEFT_CACHE_DIR is empty")
    elif used.refused is not None:
        print(
            f"{used.folder} is not used: {used.refused}; remove it, or make it private (chmod -R go-w, chown)"
        )
    else:
        print(f"{used.folder}: {used.entries} entries, {used.nbytes:,} bytes")


def prepare(pack: str | None = None) -> None:
    """Fills the cache on disk with basic programs, and says how far it is. `pack`: a file that gets them, too."""
    from weft import prepare as basics
    from weft.backends.cpu.machine import PACKED_LEVELS

    start = time.perf_counter()
    made = basics.prepare(basics.SAMPLES) if pack is None else basics.pack_of(basics.SAMPLES, PACKED_LEVELS)
    for p in made:
        if isinstance(p, bytes):
            Path(str(pack)).write_bytes(p)
            print(f"{pack}: {len(p):,} bytes")
        else:
            print(f"{p.done} of {p.count}: {p.name} ({time.perf_counter() - start:.1f} s)", flush=True)
    cache(False)


def generate(
    folder: str,
    prompt: str,
    count: int,
    dtype: str | None,
    seed: int | None,
    draft: str | None = None,
    draft_tokens: int | None = None,
    activations: str = "float32",
    **sampling: float,
) -> None:
    """Writes a text on, with the model in a folder or GGUF file, as it comes; `draft`: "lookup", or a small model's
    folder or file, which guesses `draft_tokens` at once (4). `activations`: as `models.from_gguf` has them."""
    from weft import models

    if draft is None and draft_tokens is not None:
        raise SystemExit(
            f"--draft-tokens {draft_tokens} says how many tokens a --draft guesses: there is none"
        )

    for name, _, default in _SAMPLING:
        value = sampling.get(name, default)
        if name in DRAWN and value != default and not sampling.get("temperature"):
            option = name.replace("_", "-")
            raise SystemExit(
                f"--{option} {value} says what is drawn at random: needs a --temperature above 0"
            )
    tokenizer, model = _tokenizer_and_model(folder, dtype, activations)
    how = models.Sampling(**sampling)  # pyright: ignore[reportArgumentType]  # top_k is an int
    guess = None
    if draft is not None:
        of_draft = (None, activations) if Path(draft).is_file() else (dtype, "float32")
        guess = models.Draft(
            "lookup" if draft == "lookup" else _tokenizer_and_model(draft, *of_draft)[1],
            DRAFT_TOKENS if draft_tokens is None else draft_tokens,
        )
    ids = tokenizer.encode(prompt)
    tokens = models.generate(model, [ids], count, sampling=how, stop=tokenizer.ends, seed=seed, draft=guess)
    print(prompt, end="", flush=True)
    for piece in tokenizer.stream(t for (t,) in tokens if t is not None and t not in tokenizer.ends):
        print(piece, end="", flush=True)
    print()
    if guess is not None:
        print(guess, file=sys.stderr)


def _tokenizer_and_model(folder: str, dtype: str | None, activations: str) -> tuple[Tokenizer, Decoder]:
    from concurrent.futures import ThreadPoolExecutor

    from weft import models
    from weft.models.decoder import Decoder

    if activations != "float32" and Path(folder).is_dir():
        raise SystemExit(
            f"--activations {activations} is for GGUF files, whose weights are in blocks: {folder} is none"
        )
    if dtype is not None and Path(folder).is_file():
        raise SystemExit(
            f"--dtype {dtype} is for folders of safetensors: the weights of a GGUF file stay as they are; "
            f"convert {folder}, or leave it out"
        )
    try:
        with ThreadPoolExecutor(1) as beside:  # a tokenizer.json is read outside of Python
            reading = beside.submit(models.Tokenizer, folder)
            try:
                model = (
                    models.from_gguf(folder, activations=activations)
                    if Path(folder).is_file()
                    else models.from_pretrained(folder, None if dtype is None else getattr(weft, dtype))
                )
            finally:
                tokenizer = reading.result()
    except (OSError, ImportError) as error:
        raise SystemExit(_told(error)) from None
    if not isinstance(model, Decoder):
        raise SystemExit(f"{folder} holds a {type(model).__name__}, which writes no text by itself")
    return tokenizer, model


def _told(error: Exception) -> str:
    """An error without the line of the program that made it, which is weft's own here."""
    return f"{type(error).__name__}: {error}".partition("\n  at ")[0]


def serve(
    folder: str,
    host: str,
    port: int,
    name: str | None,
    dtype: str | None,
    rows: int,
    size: int,
    activations: str = "float32",
) -> None:
    """Serves the model in a folder or GGUF file over HTTP, until it is interrupted."""
    from weft.serve import serve as run

    _, model = _tokenizer_and_model(folder, dtype, activations)

    def ready(address: str) -> None:
        print(f"{folder} at {address}/v1 ({rows} at once); Ctrl-C stops", flush=True)

    try:
        run(model, folder, host=host, port=port, name=name, rows=rows, size=size, ready=ready)
    except (OSError, ImportError) as error:
        raise SystemExit(_told(error)) from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["run"]:  # what follows is the program's
        import_module("weft.as_torch.run").run(given[1:])
        return
    parser = argparse.ArgumentParser(prog="weft", description=__doc__)
    parser.add_argument("--version", action="version", version=weft.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("devices", help="the devices of every installed backend")
    listed.add_argument("--measure", action="store_true", help="also time launches and copies on each")
    commands.add_parser("demo", help="train a small network, and show its kernels")
    explained = commands.add_parser("explain", help="the kernels behind an expression")
    explained.add_argument("expression", help='such as "weft.randn(512, 512).softmax(-1)"')
    explained.add_argument("--time", action="store_true", help="run it, and say how long each kernel takes")
    explained.add_argument(
        "--kernel", type=int, metavar="N", help="show the forms of kernel N, counted from 1"
    )
    explained.add_argument(
        "--show", action="append", default=[], metavar="FORM",
        help="which forms: algorithm, schedule, loops, llvm, assembly, ptx (default: all)",
    )  # fmt: skip
    commands.add_parser("bench", help="weft's benchmarks, beside what else is installed", add_help=False)
    cached = commands.add_parser("cache", help="where compiled programs are kept, and how much they take")
    cached.add_argument("--clear", action="store_true", help="remove them")
    preparing = commands.add_parser(
        "prepare", help="compile what first steps of common models need, ahead of time"
    )
    preparing.add_argument(
        "--pack", metavar="FILE", help="write programs for levels of processors, for a package of weft"
    )
    writing = commands.add_parser("generate", help="a text written on by the model in a folder, or GGUF file")
    writing.add_argument("folder", help="with config.json, safetensors and tokenizer.json; or a GGUF file")
    writing.add_argument("prompt")
    writing.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    writing.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help="of a folder's weights: as they are by default",
    )
    writing.add_argument("--seed", type=int)
    writing.add_argument(
        "--draft", metavar="FOLDER|lookup", help="what guesses tokens, of which several are checked at once"
    )
    writing.add_argument(
        "--draft-tokens", type=int, metavar="N", help=f"guesses of a draft at once (default: {DRAFT_TOKENS})"
    )
    for name, kind, default in _SAMPLING:
        writing.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    serving = commands.add_parser("serve", help="the model in a folder, or GGUF file, as OpenAI's API has it")
    serving.add_argument("folder", help="as of generate")
    serving.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in")
    serving.add_argument("--port", type=int, default=8000, help="0: any that is free")
    serving.add_argument("--name", help="what requests call the model (default: the folder's name)")
    serving.add_argument("--dtype", choices=["float32", "bfloat16", "float16"])
    serving.add_argument("--rows", type=int, default=8, metavar="N", help="sequences at once")
    serving.add_argument("--size", type=int, default=2048, metavar="N", help="tokens of a sequence, at most")
    for command in (writing, serving):
        command.add_argument(
            "--activations", choices=["float32", "int8"], default="float32",
            help="of GGUF files: int8 rounds what weights in blocks are multiplied with, which is faster",
        )  # fmt: skip
    commands.add_parser("run", help="a program written for torch, with weft in its place", add_help=False)
    chosen, rest = parser.parse_known_args(given)
    if rest and chosen.command != "bench":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        match chosen.command:
            case "devices":
                devices(chosen.measure)
            case "demo":
                demo()
            case "prepare":
                prepare(chosen.pack)
            case "explain":
                explain(chosen.expression, chosen.time, chosen.kernel, chosen.show)
            case "generate":
                how = {name: getattr(chosen, name) for name, _, _ in _SAMPLING}
                given = chosen.folder, chosen.prompt, chosen.max_new_tokens, chosen.dtype, chosen.seed
                generate(*given, chosen.draft, chosen.draft_tokens, chosen.activations, **how)
            case "serve":
                c = chosen
                serve(c.folder, c.host, c.port, c.name, c.dtype, c.rows, c.size, c.activations)
            case "bench":
                bench(rest)
            case _:
                cache(chosen.clear)
    except weft.WeftError as error:
        sys.exit(_told(error))


if __name__ == "__main__":
    main()
