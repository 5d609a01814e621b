"""einsum with lists of labels, and qr, in the forms that torch takes."""

from __future__ import annotations

import pytest

import weft


def test_einsum_with_lists_of_labels() -> None:
    a, b = weft.arange(6.0).reshape(2, 3), weft.arange(12.0).reshape(3, 4)
    assert weft.einsum(a, [0, 1], b, [1, 2], [2, 0]).tolist() == (a @ b).T.tolist()
    assert weft.einsum(a, [0, 51], b, [51, 2]).tolist() == (a @ b).tolist()
    batch = weft.ones(5, 2, 3)
    assert weft.einsum(batch, [..., 0, 1], b, [1, 2], [..., 2, 0]).shape == (5, 4, 2)
    for labels, message in (([0, 52], "from 0 to 51"), (3, "list of its labels")):
        with pytest.raises(weft.ArgumentError, match=message):
            weft.einsum(a, labels)
    q, r = weft.ones(3, 2).qr(some=False)
    assert q.shape == (3, 3) and r.shape == (3, 2)
