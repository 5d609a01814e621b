"""Text to ids and back, by the tokenizer of a model's folder or GGUF file (the package tokenizers does the work)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from weft.errors import FileFormatError
from weft.io.gguf import metadata_with_texts
from weft.models.gguf_text import FileTokenizer, ends_of, tokenizer_of

_LONGEST = 8
"""Tokens that may be one character's: behind that many, bytes are none."""


class Tokenizer:
    """The tokenizer of a folder, its tokenizer.json, or of a GGUF file. `ends`: the ids that end a text, as these name.

    ImportError without the package tokenizers (`pip install weft[models]`); FileNotFoundError for a folder that has no
    tokenizer.json; FileError for one that is damaged, or of a kind that weft does not know.

    >>> tokenizer = weft.models.Tokenizer("Qwen3-0.6B")
    >>> ids = tokenizer.encode("The capital of France is")
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        is_gguf = Path(folder).is_file()
        path = Path(folder) if is_gguf else Path(folder) / "tokenizer.json"
        if not path.is_file():
            other = next(iter(sorted(Path(folder).glob("*.gguf"))), None)
            hint = "" if other is None else f"; the folder holds {other}, which may be given instead"
            raise FileNotFoundError(
                f"Tokenizer: there is no {path if Path(folder).is_dir() else folder}{hint}"
            )
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(
                'Tokenizer: needs the package tokenizers: pip install "weft[models]"'
            ) from error
        self._inner: FileTokenizer | _Package
        if is_gguf:
            metadata = metadata_with_texts(path)
            self._inner, self.ends = tokenizer_of(metadata, path), ends_of(metadata)
            return
        try:
            self._inner = _Package(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # noqa: BLE001  (the package raises no other kind)
            raise FileFormatError(f"Tokenizer: {path} is damaged: {error}") from None
        self.ends = _ends(Path(folder))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of a text, with those that a model wants in front unless `special` is false."""
        return self._inner.encode(text, special)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without those that are no text."""
        return self._inner.decode(ids)

    def token(self, i: int) -> str:
        """An id by itself, as the vocabulary has it; "" for one that is not there."""
        return self._inner.token(i)

    def pieces(self) -> Pieces:
        """A new `Pieces`, for ids that come one by one."""
        return Pieces(self)

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of ids piece by piece, as they come; a character of several tokens comes with its last."""
        pieces = Pieces(self)
        for i in ids:
            text = pieces.add(i)
            if text:
                yield text
        rest = pieces.rest()
        if rest:
            yield rest


class _Package:
    """A tokenizer of the package tokenizers."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def encode(self, text: str, special: bool) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Iterable[int]) -> str:
        return self._inner.decode(list(ids))

    def token(self, i: int) -> str:
        return self._inner.id_to_token(i) or ""


class Pieces:
    """The text of ids that come one by one. Only the last few are decoded each time: what a token adds may depend on
    the piece before it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._told = 0  # of these, how many belong to pieces that were given

    def add(self, i: int) -> str:
        """The text that another id adds; "" in the middle of a character."""
        self._ids.append(i)
        text = self._text()
        if text.endswith("\ufffd") and len(self._ids) - self._told < _LONGEST:
            return ""
        self._ids, self._told = self._ids[self._told :], len(self._ids) - self._told
        return text

    def rest(self) -> str:
        """The text that is left when no more ids come."""
        return self._text()

    def _text(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._told])
        return self._tokenizer.decode(self._ids)[len(before) :]


def _ends(folder: Path) -> list[int]:
    """The ids that end a text: of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        try:
            values: Any = json.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        found = cast("dict[str, Any]", values).get("eos_token_id") if isinstance(values, dict) else None
        if isinstance(found, int):
            return [found]
        if isinstance(found, list) and found:
            return [i for i in cast("list[Any]", found) if isinstance(i, int)]
    return []
