"""Numbers of texts, beside a dict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft.io.texts import Texts
from weft.models import text_index
from weft.models.text_index import TextIndex, rests_of

SOME = st.lists(
    st.binary(max_size=6) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 65, b"x" * 66]), max_size=40
)


def texts_of(parts: list[bytes]) -> Texts:
    data = b"".join([len(p).to_bytes(8, "little") + p for p in parts])
    return Texts(data, np.cumsum([8 + len(p) for p in parts], dtype=np.int64))


def rest(part: bytes) -> int:
    """Zeros in front make no other number: b"" and b"\0" have one rest."""
    return int.from_bytes(part[:64], "big") % ((1 << 31) - 19)


@settings(deadline=None)
@example([b""], [b"\0"])
@given(SOME, SOME)
def test_texts_are_found_where_they_are_the_last_time(parts: list[bytes], others: list[bytes]) -> None:
    index = TextIndex(texts_of(parts))
    wanted = {p: k for k, p in enumerate(parts)}
    assert [index.find(p) for p in parts + others] == [wanted.get(p, -1) for p in parts + others]
    assert index.is_unique() == (len(wanted) == len(parts))
    asked = texts_of(others)
    rests = rests_of(np.frombuffer(asked.data, np.uint8), asked.starts(), asked.ends - asked.starts())
    told = index.may_have(rests).tolist()
    assert [t or p not in wanted for t, p in zip(told, others, strict=True)] == [True] * len(others)
    assert told == [any(rest(p) == rest(q) for q in parts) for p in others]


def test_rests_are_those_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "_AT_ONCE", 3)
    parts = [b"", b"a", bytes(range(256)), b"\xff" * 64, b"", b"\xff" * 65, b"ab"]
    t = texts_of(parts)
    found = rests_of(np.frombuffer(t.data, np.uint8), t.starts(), t.ends - t.starts())
    assert found.tolist() == [rest(p) for p in parts]


def test_texts_of_one_rest_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "_PRIME", 3)
    parts = [bytes([k]) for k in range(40)]
    index = TextIndex(texts_of(parts))
    assert [index.find(p) for p in parts] == list(range(40)) and index.find(b"\x50") == -1
    assert index.is_unique() and not TextIndex(texts_of([*parts, b"\x03"])).is_unique()
