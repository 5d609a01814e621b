"""Tokenizers from the vocabulary in a GGUF file.

    "llama"    SentencePiece's pairs: of two neighbours the pair whose token has the best score is joined first; what no
               token spells is spelled in bytes (<0x00> ...)
    "gpt2"     byte pairs by the file's merges, within the words that a pattern cuts a text into

The package tokenizers normalizes a text, finds tokens that are no text, and cuts the rest into words and these into
letters. To have it join letters it would have to be given the whole vocabulary, as strings and dicts; a text meets a
few of its pairs, so they are looked up in the file's bytes (`TextIndex`) and joined here, in the package's order.

Source: Kudo & Richardson 2018, arXiv:1808.06226; Sennrich et al. 2016, arXiv:1508.07909; the patterns are those that
the models' own tokenizers publish.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import numpy as np

from weft.errors import FileFormatError
from weft.io.texts import Texts
from weft.models.pairs import Found, Joiner
from weft.models.text_index import TextIndex, rests_of

_CONTROL, _OWN = 3, 4
"""Types of tokens: those that are no text, and those that are found before others."""
_SPACE = "\u2581"
LETTERS_KEPT = 1 << 12
"""Letters that a tokenizer knows besides those of its text; then it begins anew."""

_DIGITS_BY_THREE = r"\p{N}{1,3}"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS: Mapping[str, str | None] = {
    "gpt-2": None, "default": None, "llama-bpe": _WORDS % _DIGITS_BY_THREE, "qwen2": _WORDS % r"\p{N}",
}  # fmt: skip
"""The words that texts are cut into; None: as GPT-2 does, which the package has."""


def tokenizer_of(metadata: Mapping[str, Any], path: object) -> FileTokenizer:
    """The tokenizer that the entries of a file describe, arrays of texts being `Texts`. FileFormatError for one that
    weft does not know."""
    kind = metadata.get("tokenizer.ggml.model")
    made = _MODELS.get(str(kind))
    if made is None or not isinstance(metadata.get("tokenizer.ggml.tokens"), Texts):
        raise FileFormatError(
            f"Tokenizer: {path} has a tokenizer {kind!r}; weft knows {' and '.join(_MODELS)}"
        )
    return made(metadata, path)


def ends_of(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end a text."""
    found = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return [i for i in dict.fromkeys(found) if isinstance(i, int)]


def _numbers(metadata: Mapping[str, Any], name: str) -> np.ndarray[Any, Any]:
    """An array of numbers; none where the entry is something else."""
    found = metadata.get(f"tokenizer.ggml.{name}")
    return cast("Any", found) if isinstance(found, np.ndarray) else np.zeros(0, np.int32)


class FileTokenizer(ABC):
    """The tokenizer of a file."""

    def __init__(self, metadata: Mapping[str, Any], path: object) -> None:
        self.path = path
        self.tokens: Texts = metadata["tokenizer.ggml.tokens"]
        self.index = TextIndex(self.tokens)
        if not self.index.is_unique():
            raise FileFormatError(f"Tokenizer: {path} has a token twice")
        self._metadata = {k: v for k, v in metadata.items() if not isinstance(v, Texts | np.ndarray)}
        kinds = _numbers(metadata, "token_type")[: len(self.tokens)]
        self._control: dict[int, None] = dict.fromkeys(np.nonzero(kinds == _CONTROL)[0].tolist())
        self._own: list[int] = np.nonzero(kinds == _OWN)[0].tolist()
        self._joiner, self._decoder = Joiner(self.pair), self.decoder()

    @abstractmethod
    def pair(self, left: int, right: int) -> Found | None:
        """The token that two in a row make, and when, in an order; None where they make none."""

    @abstractmethod
    def letters(self, text: str) -> Any:
        """The package's tokenizer that cuts this text into letters."""

    @abstractmethod
    def decoder(self) -> Any:
        """The package's decoder of tokens."""

    def encode(self, text: str, special: bool) -> list[int]:
        """The ids of a text, with those that a model wants around it if `special`."""
        letters = self.letters(text).encode(text, add_special_tokens=special)
        found: list[int] = []
        for word, pairs in groupby(zip(letters.word_ids, letters.ids, strict=True), itemgetter(0)):
            ids = [i for _, i in pairs]
            if word is None:  # around the text
                found += ids
                continue
            for part in self.parts(ids):
                found += self._joiner.joined(tuple(part))
        return found

    def parts(self, ids: list[int]) -> Iterable[list[int]]:
        """The letters of a word in parts between which nothing is joined."""
        return [ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without those that are no text."""
        count = len(self.tokens)
        return self._decoder.decode([self.tokens[i] for i in ids if i < count and i not in self._control])

    def token(self, i: int) -> str:
        """An id by itself, "" for one that is not there."""
        return self.tokens[i] if 0 <= i < len(self.tokens) else ""

    def cutter(self, letters: Iterable[str], **options: Any) -> Any:
        """A tokenizer of the package that joins nothing, and knows these letters and the tokens that are no text."""
        from tokenizers import AddedToken, Tokenizer, models

        known = {text: i for text in letters if (i := self.index.find(text.encode())) >= 0}
        control = {self.tokens[i]: i for i in self._control}
        own = {self.tokens[i]: i for i in self._own}
        inner: Any = Tokenizer(models.BPE(known | control | own, [], **options))
        inner.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
        inner.add_tokens([AddedToken(t, normalized=False) for t in own])
        return inner

    def surround(self, inner: Any) -> None:
        """Have the tokens added that a text begins and ends with."""
        from tokenizers import processors

        adds_first = self._metadata.get("tokenizer.ggml.model") == "llama"  # where a file does not say
        first, last = self._around("bos", adds_first), self._around("eos", False)
        if first or last:
            template = [*[t for t, _ in first], "$A", *[t for t, _ in last]]
            inner.post_processor = processors.TemplateProcessing(
                single=template, special_tokens=[*first, *last]
            )

    def entry(self, name: str, default: Any = None) -> Any:
        """An entry that says something of the tokenizer."""
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def _around(self, name: str, default: bool) -> list[tuple[str, int]]:
        """The token that a text begins or ends with, if one is to be added."""
        k = self.entry(f"{name}_token_id")
        wanted = self.entry(f"add_{name}_token", default)
        return [(self.tokens[k], k)] if wanted and isinstance(k, int) and 0 <= k < len(self.tokens) else []


class _Llama(FileTokenizer):
    def __init__(self, metadata: Mapping[str, Any], path: object) -> None:
        super().__init__(metadata, path)
        scores = _numbers(metadata, "scores")
        if len(scores) != len(self.tokens) or not len(scores):
            raise FileFormatError(f"Tokenizer: {path} lacks a score for each token")
        unknown = self.entry("unknown_token_id", 0)
        if not isinstance(unknown, int) or not 0 <= unknown < len(self.tokens):
            raise FileFormatError(
                f"Tokenizer: {path} has no token {unknown!r}, which stands for what it has not"
            )
        self._scores = memoryview(cast("Any", scores))
        self._unknown = self.tokens[unknown]
        self._space = self.index.find(_SPACE.encode())
        self._ends_at_spaces = not _goes_on_in_space(self.tokens)
        self._known: frozenset[str] = frozenset()
        self._cutter: Any = None

    def pair(self, left: int, right: int) -> Found | None:
        """The best score first; of one token's, in the order of its parts' ids."""
        first, second = self.tokens.raw(left), self.tokens.raw(right)
        made = self.index.find(first + second) if first and second else -1
        if made < 0:
            return None
        score = self._scores[made]
        return (score != score, 0.0 if score != score else -score, left, right), made

    def parts(self, ids: list[int]) -> Iterable[list[int]]:
        """Words with the spaces in front of them, if no token goes on from a letter to a space."""
        space, begin = self._space, 0
        if self._ends_at_spaces:
            for k in range(1, len(ids)):
                if ids[k] == space and ids[k - 1] != space:
                    yield ids[begin:k]
                    begin = k
        yield ids[begin:]

    def letters(self, text: str) -> Any:
        """One that knows what it was asked for before, too, since these are mostly the same."""
        known, cutter = self._known, self._cutter
        if cutter is None or not known.issuperset(text):
            known = (known if len(known) < LETTERS_KEPT else frozenset[str]()).union(_SPACE, text)
            self._cutter = cutter = self._made(known)
            self._known = known
        return cutter

    def _made(self, letters: Iterable[str]) -> Any:
        from tokenizers import normalizers

        spelled = [f"<0x{byte:02X}>" for byte in range(256)]
        inner = self.cutter(
            [*letters, *spelled, self._unknown], unk_token=self._unknown, fuse_unk=True, byte_fallback=True
        )
        prefix = [normalizers.Prepend(_SPACE)] if self._adds_space else []
        inner.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
        self.surround(inner)
        return inner

    @property
    def _adds_space(self) -> bool:
        return bool(self.entry("add_space_prefix", True))

    def decoder(self) -> Any:
        """Spaces as they are, bytes as characters."""
        from tokenizers import decoders

        strip = [decoders.Strip(" ", 1, 0)] if self._adds_space else []
        return decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )


def _goes_on_in_space(tokens: Texts) -> bool:
    """True if a token may have a space behind something else."""
    data = np.frombuffer(tokens.data, np.uint8)
    first, second, third = _SPACE.encode()
    is_space = (data[:-2] == first) & (data[1:-1] == second) & (data[2:] == third)
    (places,) = np.nonzero(is_space)
    behind = places[~np.isin(places, tokens.starts(), assume_unique=True)]
    return not bool(is_space[behind - 3].all())


class _BytePairs(FileTokenizer):
    def __init__(self, metadata: Mapping[str, Any], path: object) -> None:
        super().__init__(metadata, path)
        name = self.entry("pre", "default")
        if name not in _PATTERNS:
            raise FileFormatError(
                f"Tokenizer: {path} cuts words by {name!r}; weft knows {', '.join(_PATTERNS)}"
            )
        merges = metadata.get("tokenizer.ggml.merges", _NONE)
        if not isinstance(merges, Texts):
            raise FileFormatError(f"Tokenizer: {path} has merges that are no texts")
        wrong = _makes_none(merges, self.index)
        if wrong >= 0:
            raise self._no_token(merges[wrong])
        self._merges = TextIndex(merges)
        self._cutter = self._made(str(name))

    def _no_token(self, merge: str) -> FileFormatError:
        return FileFormatError(f"Tokenizer: {self.path} has merges that make no token: {merge!r}")

    def pair(self, left: int, right: int) -> Found | None:
        """The order of the file."""
        first, second = self.tokens.raw(left), self.tokens.raw(right)
        if b" " in first:  # a merge's first space is between its parts
            return None
        order = self._merges.find(first + b" " + second)
        if order < 0:
            return None
        made = self.index.find(first + second)
        if made < 0:
            raise self._no_token((first + b" " + second).decode())
        return order, made

    def letters(self, text: str) -> Any:
        """The same for all."""
        return self._cutter

    def _made(self, name: str) -> Any:
        from tokenizers import Regex, normalizers, pre_tokenizers

        inner = self.cutter(pre_tokenizers.ByteLevel.alphabet())
        pattern = _PATTERNS[name]
        if pattern is None:
            inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            inner.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ])  # fmt: skip
            if name == "qwen2":
                inner.normalizer = normalizers.NFC()
        self.surround(inner)
        return inner

    def decoder(self) -> Any:
        """Letters as bytes, and these as characters."""
        from tokenizers import decoders

        return decoders.ByteLevel()


_NONE = Texts(b"", np.zeros(0, np.int64))


def _makes_none(merges: Texts, index: TextIndex) -> int:
    """The first merge, "left right", whose whole is no token, as far as rests tell; -1 if there is none. One whose
    parts are none is never met."""
    data = np.frombuffer(merges.data, np.uint8)
    starts, ends = merges.starts(), merges.ends.astype(np.int64)
    (spaces,) = np.nonzero(data == ord(" "))
    cuts = np.append(spaces, len(data))[np.searchsorted(spaces, starts)]
    cut = cuts < ends
    if not cut.all():
        return int(np.argmin(cut))
    joined = np.ones(len(data), bool)
    joined[cuts] = False
    before = np.arange(len(starts))  # so many spaces are gone
    right = index.may_have(rests_of(data[joined], starts - before, ends - starts - 1))
    return -1 if right.all() else int(np.argmin(right))


_MODELS: Mapping[str, type[FileTokenizer]] = {"llama": _Llama, "gpt2": _BytePairs}
