"""Perplexity by format: its arithmetic, and where the table goes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
from benchmarks.perplexity import (
    BEGIN,
    END,
    PAGE,
    WINDOW,
    Format,
    divergence,
    perplexity,
    predictions,
    table,
    with_table,
)
from weft.models.llama import Llama, LlamaConfig


def test_equal_chances_among_n_characters_have_perplexity_n() -> None:
    chances = np.full((6, 4), math.log(1 / 4))
    assert perplexity(chances, np.arange(6) % 4) == pytest.approx(4)
    sure = np.log(np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]]))
    assert perplexity(sure, np.array([1, 0])) == pytest.approx((4 * 8) ** 0.5)


def test_the_divergence_is_that_of_predictions_from_the_first() -> None:
    p, q = np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])
    assert divergence(np.log(p), np.log(p)) == 0
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert divergence(np.log(p), np.log(q)) == pytest.approx(expected)


def test_each_character_is_predicted_from_those_before_it() -> None:
    weft.manual_seed(0)
    model = Llama(LlamaConfig(5, 16, 16, 1, 2, max_position_embeddings=WINDOW)).eval()
    codes = np.random.default_rng(0).integers(0, 5, WINDOW // 2 * 9 + 1)
    chances, following = predictions(model, codes)
    np.testing.assert_array_equal(following, codes[WINDOW // 2 + 1 :])
    with weft.no_grad():
        whole = model(weft.tensor(codes[None, :WINDOW])).log_softmax(-1).numpy()[0, WINDOW // 2 :]
    np.testing.assert_allclose(chances[: WINDOW // 2], whole, rtol=1e-4, atol=1e-5)
    told = table(model, codes, [Format("all", 32, lambda m: m)]).splitlines()
    assert told[2] == f"| all | 32 | {perplexity(chances, following):.4f} | +0.00 % | 0 |"


def test_the_page_has_a_place_for_the_table_at_its_end_or_elsewhere() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    for after in ("", "more\n"):
        once = with_table(f"text\n{BEGIN}old\n{END}{after}", "| new |\n")
        assert once == f"text\n{BEGIN}\n| new |\n\n{END}{after}" == with_table(once, "| new |\n")
    with pytest.raises(ValueError, match="no place"):
        with_table("text", "| new |\n")
