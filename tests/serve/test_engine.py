"""The engine's thread: what happens when a step fails, and when it stops."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest

from tests.models.test_decoders import made
from tests.models.test_text import tokenizer
from weft.models import Batch, Tokenizer, Writing
from weft.serve.answer import Answer, Piece
from weft.serve.engine import Engine
from weft.serve.limits import RequestError


def answer(place: Path, count: int) -> tuple[Answer, queue.Queue[Piece]]:
    pieces: queue.Queue[Piece] = queue.Queue()
    return Answer(Writing([1, 2], count), Tokenizer(place), [], pieces.put), pieces


def test_a_step_that_fails_is_told_to_those_in_it_and_the_next_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer(tmp_path)
    batch = Batch(made("gpt2"), rows=2, size=20, chunk=8)
    engine = Engine(batch, waiting=0)
    engine.start()
    one, told = answer(tmp_path, 4)
    with monkeypatch.context() as patch:
        patch.setattr(batch, "step", lambda: 1 // 0)
        engine.submit([one])
        assert "ZeroDivisionError" in str(told.get(timeout=20).error)
    other, pieces = answer(tmp_path, 4)
    engine.submit([other])
    while (piece := pieces.get(timeout=60)).end is None:
        assert piece.error is None
    assert engine.running == 0 and engine.tokens == 4
    engine.stop()


def test_stopping_tells_those_that_run(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    engine = Engine(Batch(made("gpt2"), rows=1, size=1000, chunk=8), waiting=2)
    one, first = answer(tmp_path, 900)
    waits, second = answer(tmp_path, 900)
    with pytest.raises(RequestError, match="stopping"):
        engine.submit([one])
    engine.start()
    with pytest.raises(RequestError, match="too many"):
        engine.submit([one] * 4)
    engine.submit([one, waits])
    assert first.get(timeout=60).error is None
    engine.stop()
    assert second.get(timeout=5).error == "the server is stopping"
    while (piece := first.get(timeout=5)).error is None:
        pass
    assert piece.error == "the server is stopping" and not engine.is_alive and engine.running == 0


def test_who_is_dropped_leaves_at_once(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    engine = Engine(Batch(made("gpt2"), rows=1, size=1000, chunk=8), waiting=2)
    engine.start()
    one, told = answer(tmp_path, 900)
    engine.submit([one])
    told.get(timeout=60)
    engine.drop([one])
    for _ in range(500):
        if not engine.running:
            break
        time.sleep(0.01)
    assert engine.running == 0 and not engine.batch.is_busy
    engine.stop()
