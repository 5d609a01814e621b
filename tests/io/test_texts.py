"""Texts in a row, beside following them one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.io import texts
from weft.io.texts import Texts, ends_of

PARTS = st.lists(
    st.binary(max_size=4) | st.sampled_from([b"\0" * 9, b"a" * 300, b"\1\0\0\0\0\0\0\0b", b"", b"x" * 255, b"y" * 256]),
    max_size=60,
)  # fmt: skip


def row(parts: list[bytes]) -> bytes:
    return b"".join([len(p).to_bytes(8, "little") + p for p in parts])


@pytest.mark.parametrize("window, few", [(64, 1), (200, 3), (1 << 17, 2), (1 << 17, 256)])
def test_ends_are_where_the_lengths_say(monkeypatch: pytest.MonkeyPatch, window: int, few: int) -> None:
    monkeypatch.setattr(texts, "_WINDOW_BYTES", window)
    monkeypatch.setattr(texts, "_FEW", few)

    @settings(deadline=None)
    @given(PARTS, st.binary(max_size=12), st.integers(1, 12))
    def check(parts: list[bytes], behind: bytes, cut: int) -> None:
        data = row(parts)
        found = ends_of(memoryview(data + behind), len(parts))
        assert found is not None
        kept = Texts(data, found)
        assert [kept.raw(k) for k in range(len(kept))] == parts
        assert kept.starts().tolist() == [int(e) - len(p) for e, p in zip(found, parts, strict=True)]
        if parts:
            assert ends_of(memoryview(data)[:-cut], len(parts)) is None

    check()


def test_many_short_texts_are_found_by_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[int] = []
    follow = texts._followed

    def counted(data: memoryview, at: int, count: int) -> object:
        followed.append(count)
        return follow(data, at, count)

    monkeypatch.setattr(texts, "_followed", counted)
    parts = [b"t%d" % k for k in range(40_000)]
    parts[20_000] = b"z" * 1000
    found = ends_of(memoryview(row(parts)), len(parts))
    assert found is not None and found.tolist() == np.cumsum([8 + len(p) for p in parts]).tolist()
    assert sum(followed) < 1000


def test_rows_of_long_texts_are_followed_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    find = texts._found

    def counted(window: memoryview) -> object:
        looked.append(len(window))
        return find(window)

    monkeypatch.setattr(texts, "_found", counted)
    parts = [b""] * 200_000
    found = ends_of(memoryview(row(parts)), len(parts))
    assert found is not None and len(found) == len(parts) and len(looked) < 20


@settings(deadline=None)
@given(st.lists(st.text(max_size=4).map(str.encode) | st.binary(max_size=3), max_size=8))
def test_each_text_is_utf_8_by_itself(parts: list[bytes]) -> None:
    def good(p: bytes) -> bool:
        try:
            return isinstance(p.decode(), str)
        except UnicodeDecodeError:
            return False

    kept = Texts(row(parts), np.cumsum([8 + len(p) for p in parts], dtype=np.int64))
    if all(map(good, parts)):
        kept.check()
        assert list(kept) == [p.decode() for p in parts] == [kept[k] for k in range(len(kept))]
        return
    with pytest.raises(UnicodeDecodeError):
        kept.check()
    with pytest.raises(UnicodeDecodeError):
        list(kept)


def test_characters_do_not_go_on_in_the_next_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_TEXTS_CHECKED_AT_ONCE", 2)
    for k in range(5):
        parts = [b"ab"] * 6
        parts[k : k + 2] = [b"a\xc3", b"\xa9b"]
        with pytest.raises(UnicodeDecodeError):
            Texts(row(parts), np.cumsum([8 + len(p) for p in parts], dtype=np.int64)).check()
