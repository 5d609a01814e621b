"""Steps that rest between two calls of `generate`: nothing is recorded again, and nothing of the last call is left."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import weft
from tests.models.test_decoders import IDS, made
from weft import models
from weft.models.decoder import Decoder
from weft.models.resting import KEPT

PROMPTS = [IDS[0].tolist(), IDS[1, :4].tolist()]


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens in each pass of a model that Python ran: compiled functions run none but those that are recorded."""
    found: list[int] = []
    forward = Decoder.forward

    def noted(self: Decoder, ids: weft.Tensor, *rest: Any, **how: Any) -> weft.Tensor:
        found.append(int(ids.shape[1]))
        return forward(self, ids, *rest, **how)

    monkeypatch.setattr(Decoder, "forward", noted)
    return found


def text(model: Any, prompts: list[list[int]] = PROMPTS, count: int = 9, **how: Any) -> list[Any]:
    return list(models.generate(model, prompts, count, **how))


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "drawn": {"sampling": models.Sampling(temperature=2.0, top_k=9), "seed": 3},
    "penalty": {"sampling": models.Sampling(repetition_penalty=1.7)},
    "lookup": {"draft": "lookup"},
}


@pytest.mark.parametrize("way", [*WAYS, "model"])
def test_a_second_call_records_nothing_and_gives_the_same(way: str, traces: list[int]) -> None:
    model = made("llama")
    how = WAYS.get(way) or {"draft": made("llama")} if way != "plain" else {}
    first = text(model, **how)
    count = len(traces)
    assert count
    assert text(model, **how) == first
    assert len(traces) == count
    others = [PROMPTS[1], PROMPTS[0]]
    assert text(model, others, **how) == text(made("llama"), others, **how), "as a model that nobody used"


def test_prompts_of_another_length_are_recorded_and_the_step_is_not(traces: list[int]) -> None:
    model = made("llama")
    text(model, PROMPTS[:1])
    del traces[:]
    assert text(model, [PROMPTS[0][:3]]) == text(made("llama"), [PROMPTS[0][:3]])
    assert traces == [3, 3, 1], "the model's prompt, then the other one's and its step"


def test_keys_and_values_let_go_of_their_memory() -> None:
    model = made("llama")
    text(model)
    ((_, steps),) = model.resting._kept
    cache = steps.work.cache
    assert all(x.value.node.storage is None for x in (*cache.keys, *cache.values, cache.length))


def test_what_was_not_finite_is_not_seen_by_the_next_call() -> None:
    model, clean = made("llama"), text(made("llama"))
    weight = next(p for n, p in model.named_parameters() if "v_proj" in n)
    before = weight.detach().clone().realize()
    with weft.no_grad():
        weight.fill_(math.nan)
        text(model)
        weight.copy_(before)
    assert text(model) == clean


def test_a_model_that_was_edited_is_recorded_anew(traces: list[int]) -> None:
    model, other = made("llama"), made("llama")
    text(model)
    for m in (model, other):
        weft.manual_seed(1)
        m.lm_head = weft.nn.Linear(m.lm_head.in_features, m.lm_head.out_features, bias=False)
    del traces[:]
    assert text(model) == text(other)
    assert traces == [len(PROMPTS[0]), 1] * 2, "both models' prompts and steps"


def test_calls_side_by_side_do_not_meet() -> None:
    model = made("llama")
    text(model)
    both: list[Iterator[Any]] = [models.generate(model, [p], 9) for p in PROMPTS]
    found = list(zip(*both, strict=True))
    assert [f[0] for f in found] == text(made("llama"), PROMPTS[:1])
    assert [f[1] for f in found] == text(made("llama"), PROMPTS[1:])


def test_a_call_that_is_given_up_leaves_its_steps_and_one_that_fails_does_not() -> None:
    model = made("llama")
    given_up = models.generate(model, PROMPTS, 9)
    next(given_up)
    assert len(model.resting) == 0
    del given_up
    assert len(model.resting) == 1
    failing: Any = models.generate(model, PROMPTS, 9)
    next(failing)
    with pytest.raises(KeyboardInterrupt):
        failing.throw(KeyboardInterrupt)
    assert len(model.resting) == 0


def test_a_program_that_ends_amid_a_call_says_nothing() -> None:
    program = (
        "from tests.models.test_decoders import IDS, made\nfrom weft import models\n"
        "model = made('llama')\ntokens = models.generate(model, IDS.tolist(), 9)\nprint(next(tokens))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("[") and not ended.stderr


def test_few_steps_rest_and_copies_have_none() -> None:
    model = made("llama")
    for batch in range(1, KEPT + 3):
        text(model, PROMPTS[:1] * batch, 2)
    assert len(model.resting) == KEPT
    assert len(copy.deepcopy(model).resting) == 0
    assert len(pickle.loads(pickle.dumps(model)).resting) == 0
