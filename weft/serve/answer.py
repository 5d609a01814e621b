"""A sequence's tokens as text, up to where it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.lazy_dataclass import dataclass
from weft.models import Tokenizer, Writing
from weft.models.batch import End, Made
from weft.models.draw import Likelihood


@dataclass(frozen=True)
class Piece:
    """Further text, with the tokens that it is of; `end` says why it is the last, `error` what went wrong."""

    text: str = ""
    tokens: tuple[tuple[int, Likelihood | None], ...] = ()
    end: str | None = None
    error: str | None = None


class Answer:
    """A sequence that is being written, `writing`, and where its pieces go.

    `stops`: texts before which it ends. Text that may be the beginning of one waits until it is known. `give` is called
    on the engine's thread.
    """

    def __init__(
        self,
        writing: Writing,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        give: Callable[[Piece], None],
    ) -> None:
        self.writing, self._stops, self._give = writing, tuple(stops), give
        self._pieces = tokenizer.pieces()
        self._held = ""
        self._tokens: list[tuple[int, Likelihood | None]] = []
        self.is_over = False

    def take(self, made: Made) -> None:
        """The next token."""
        writing = self.writing
        if made.token is None:
            return self.fail("the model's logits are not finite")
        if writing.end is not End.STOP:
            self._held += self._pieces.add(made.token)
            self._tokens.append((made.token, made.likelihood))
        if writing.end is not None:
            self._held += self._pieces.rest()
        found = [(at, s) for s in self._stops if (at := self._held.find(s)) >= 0]
        if found:
            self._held = self._held[: min(found)[0]]
            return self._told(len(self._held), "stop")
        if writing.end is not None:
            return self._told(len(self._held), writing.end.value)
        free = len(self._held) - _beginning(self._held, self._stops)
        if free:
            self._told(free, None)
        return None

    def fail(self, why: str) -> None:
        """Ends with an error."""
        if not self.is_over:
            self.is_over = True
            self._give(Piece(error=why))

    def _told(self, count: int, end: str | None) -> None:
        self.is_over = end is not None
        piece = Piece(self._held[:count], tuple(self._tokens), end)
        self._held, self._tokens = self._held[count:], []
        self._give(piece)


def _beginning(text: str, stops: Sequence[str]) -> int:
    """The number of characters at the end of a text that begin a stop."""
    longest = max(map(len, stops), default=0)
    return next(
        (n for n in range(min(longest - 1, len(text)), 0, -1) if any(s.startswith(text[-n:]) for s in stops)),
        0,
    )
