"""Random models in sessions, with random edits of all that they read: see tools/session_sequences.py.

`make test` tries a few, `make fuzz` as many as WEFT_FUZZ_EXAMPLES says; `tools/session_campaigns.py models` goes on.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from session_models import LAYERS, random_model
from session_sequences import DRAWS, Sequence

import weft

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))


@pytest.mark.parametrize(("device", "examples"), [("cpu:0", 20), ("dummy:0", 6)])
def test_edits_of_models_give_the_bits_of_a_session_that_starts_anew(device: str, examples: int) -> None:
    with weft.device(device):
        for turn in range(EXAMPLES or examples):
            weft.manual_seed(DRAWS)
            Sequence(Random(turn), random_model(Random(turn), device)).run(5)


def test_each_layer_comes_in_some_model() -> None:
    found = {name for turn in range(60) for name in random_model(Random(turn), "cpu:0").names}
    assert found == LAYERS.keys()
