"""The thread of the running batch: answers join, leave and end, while requests wait for their pieces."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from weft.models import Batch
from weft.serve.answer import Answer
from weft.serve.limits import RequestError


class Engine:
    """A batch in a thread of its own. `waiting`: how many sequences may wait for a row."""

    def __init__(self, batch: Batch, waiting: int = 64) -> None:
        self.batch, self._waiting = batch, waiting
        self._changed = threading.Condition()
        self._new: list[Answer] = []
        self._gone: list[Answer] = []
        self._answers: dict[int, Answer] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.tokens = 0

    def start(self) -> None:
        """Starts the thread."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="weft-serve", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends what runs with an error, and the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def is_alive(self) -> bool:
        """True where the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def running(self) -> int:
        """The number of answers that are being written, or wait to be."""
        with self._changed:
            return len(self._answers) + len(self._new)

    def submit(self, answers: Sequence[Answer]) -> None:
        """Lets answers be written, all or none; RequestError with 503 where too many wait."""
        with self._changed:
            if self._stopping or not self.is_alive:
                raise RequestError(503, "the server is stopping")
            if len(answers) > self._room():
                raise RequestError(503, "too many requests wait; come again later", code="overloaded")
            self._new += answers
            self._changed.notify()

    def drop(self, answers: Sequence[Answer]) -> None:
        """Ends answers that nobody reads any more."""
        with self._changed:
            self._gone += [a for a in answers if not a.is_over]
            self._changed.notify()

    def _room(self) -> int:
        return self.batch.rows + self._waiting - len(self._answers) - len(self._new)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._stopping or self._new or self._gone or self.batch.is_busy):
                    self._changed.wait()
                new, gone, self._new, self._gone = self._new, self._gone, [], []
                stopping = self._stopping
                for answer in new:
                    self._answers[id(answer.writing)] = answer
            for answer in gone if not stopping else list(self._answers.values()):
                self._end(answer)
                if stopping:
                    answer.fail("the server is stopping")
            if stopping:
                return
            self._step([answer for answer in new if answer not in gone])

    def _step(self, new: Sequence[Answer]) -> None:
        try:
            for answer in new:
                self.batch.add(answer.writing)
            made = self.batch.step()
        except Exception as error:  # noqa: BLE001  (whatever it is, requests that wait must hear of it)
            for answer in list(self._answers.values()):
                self._end(answer)
                answer.fail(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            return
        for one in made:
            self.tokens += 1
            answer = self._answers[id(one.writing)]
            answer.take(one)
            if answer.is_over:
                self._end(answer)

    def _end(self, answer: Answer) -> None:
        self.batch.drop(answer.writing)
        with self._changed:
            self._answers.pop(id(answer.writing), None)
