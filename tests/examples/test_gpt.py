"""examples/gpt.py: it learns, writes, and goes on bit for bit where it was stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

gpt = pytest.importorskip("gpt")

TINY = gpt.Config(
    context=16, layers=1, heads=2, width=16, batch=4, steps=30, warmup=5, rate=1e-2, save_every=10
)


@pytest.fixture(scope="module")
def text() -> object:
    return gpt.Text.load()


def test_text_goes_to_numbers_and_back(text: gpt.Text) -> None:
    assert text.decode(text.encode("Go to the ant, thou sluggard")) == "Go to the ant, thou sluggard"
    assert text.decode(text.encode("no € here")) == "no  here"
    assert len(text.held_out) == pytest.approx(len(text.train) / 9, abs=1)


def test_a_run_that_was_stopped_goes_on_bit_for_bit(text: gpt.Text, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole.safetensors", tmp_path / "stopped.safetensors"
    run = gpt.Run.start(TINY, text)
    run.train(whole)
    first = gpt.Run.start(TINY, text)
    first.train(stopped, until=25)  # saved at 20: five steps are lost
    again = gpt.Run.resume(stopped, TINY, text)
    assert len(again.losses) == 20
    again.train(stopped)
    assert again.losses == run.losses
    assert again.held_out == run.held_out
    for ours, theirs in zip(again.model.parameters(), run.model.parameters(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert again.write("My son, ", 20) == run.write("My son, ", 20)
    assert np.mean(run.losses[-5:]) < np.mean(run.losses[:5]) - 0.5, "it learns"


def test_a_run_with_other_settings_is_refused(text: gpt.Text, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    gpt.Run.start(TINY, text).save(path)
    with pytest.raises(SystemExit, match="other settings"):
        gpt.Run.resume(path, gpt.Config(), text)
