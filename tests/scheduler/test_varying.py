"""Patterns: sizes as expressions of a few that vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from weft.ir.index import at_least
from weft.scheduler.formulas import Column
from weft.scheduler.outline import Follows, Padded, Role, Share, Total
from weft.scheduler.varying import NO_RULES, VARIABLES, Pattern, patterns

L, C, S, P, D = Role.LEAF, Role.CHOSEN, Role.START, Role.PADDING, Role.DERIVED


def first(roles: Sequence[Role], *samples: Column, follows: Mapping[int, Follows] = NO_RULES) -> Pattern:
    return next(patterns(roles, samples, (4, 1), follows))


def every(roles: Sequence[Role], *samples: Column, follows: Mapping[int, Follows] = NO_RULES) -> list[str]:
    return [repr(p.sizes) for p in patterns(roles, samples, (4,), follows)]


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [
        (((17, 17), (42, 42)), "(size0, size0)"),
        (((17, 64), (42, 64)), "(size0, 64)"),
        (((17, 2176), (42, 5376)), "(size0, 128*size0)"),
        (((17, 19), (42, 44)), "(size0, size0 + 2)"),
        (((17, 35), (42, 85)), "(size0, 2*size0 + 1)"),
        (((32, 16), (48, 24), (33, 17)), "(size0, (size0 + 1)//2)"),
        (((250, 8), (251, 8), (257, 9)), "(size0, (size0 + 31)//32)"),
        (((17, 289), (42, 1764)), "(size0, size0*size0)"),
    ],
)
def test_sizes_that_follow_from_others_are_found(samples: tuple[Column, ...], sizes: str) -> None:
    assert repr(first((L, D), *samples).sizes) == sizes


def test_sizes_that_follow_from_two_are_found() -> None:
    p = first((L, L, D), (3, 5, 8), (4, 9, 13), (7, 2, 9))
    assert [v.name for v in p.variables] == ["size0", "size1"]
    assert p.bind((10, 20, 30)) == (10, 20)
    assert p.bind((10, 20, 31)) is None


def test_a_graph_fits_only_where_each_size_is_as_the_pattern_says() -> None:
    p = first((L, D, D), (17, 34, 5), (42, 84, 5))
    assert p.bind((20, 40, 5)) == (20,)
    assert p.bind((20, 41, 5)) is None
    assert p.bind((20, 40, 6)) is None
    assert p.bind((1, 2, 5)) is None, "an axis of one element is another structure"


def test_variables_have_room_for_four_times_what_was_seen_and_then_for_less() -> None:
    rooms = [p.variables[0].hi for p in patterns((L,), ((17,), (40,)), (4, 1))]
    assert rooms == [256, 64]


def test_where_something_begins_follows_from_no_formula_that_fits_by_chance() -> None:
    p = first((L, S), (9, 3), (21, 5))
    assert len(p.variables) == 2
    assert p.variables[1].lo == 0


def test_the_smaller_size_is_tried_as_the_variable_where_the_larger_is_chosen() -> None:
    found = [repr(p.sizes) for p in patterns((C, D), ((8, 2), (12, 3)), (4,))]
    assert "(4*size0, size0)" in found


def test_more_sizes_than_variables_have_no_pattern() -> None:
    many = VARIABLES + 1
    samples = np.random.default_rng(0).integers(10**4, 10**6, (4, many)).tolist()
    assert list(patterns([L] * (many - 1), [tuple(s[1:]) for s in samples], (4, 1)))
    assert not list(patterns([L] * many, [tuple(s) for s in samples], (4, 1)))


def test_with_many_variables_a_few_graphs_tell_what_is_likely_and_no_more() -> None:
    samples = [tuple(s) for s in np.random.default_rng(2).integers(40, 90, (4, 20)).tolist()]
    made = [(*s, s[0] + s[7], 3 * s[11], (s[2] + 1) // 2 + 3) for s in samples]
    three = first([*[L] * 20, D, D, D], *made[:3])
    assert [repr(e) for e in three.sizes[19:]] == ["size19", "size0 + size7", "3*size11", "size20"]
    assert repr(first([*[L] * 20, D, D, D], *made).sizes[22]) == "(size2 + 1)//2 + 3"


def test_what_a_few_are_made_of_is_found_with_some_more() -> None:
    samples = [(17, 29, 35), (42, 11, 15), (23, 40, 49)]
    assert repr(first((L, D, D), *[(a, b, (a + 1) // 2 + 3) for a, b, _ in samples]).sizes) == (
        "(size0, size1, (size0 + 1)//2 + 3)"
    )
    far = [(a, b, (a + 1) // 2 + 40) for a, b, _ in samples]
    assert repr(first((L, D, D), *far).sizes[2]) == "(size0 + 1)//2 + 40"
    assert len(first((L, D, D), *far[:2]).variables) == 3, "by two graphs, that may be chance"


ROWS: dict[int, Follows] = {
    **{3 + 2 * k: Padded((1 + k,)) for k in range(2)},
    **{4 + 2 * k: Total((1 + k, 3 + 2 * k)) for k in range(2)},
}
"""x: (n,), of which two parts were cut, whose gradients are filled up to it."""


def test_what_several_are_filled_up_to_limits_them() -> None:
    samples = [
        (n, a, b, n - a, n, n - b, n) for n, a, b in ((30, 7, 21), (50, 33, 12), (41, 11, 40), (60, 52, 58))
    ]
    roles = (L, C, C, P, D, P, D)
    limited = next(p for p in patterns(roles, samples, (4,), ROWS) if "min" in repr(p.sizes))
    assert "(size0, min(size1, size0), min(size2, size0), -min(size1, size0) + size0, size0, " in repr(
        limited.sizes
    )
    assert all(at_least(e) >= 0 for e in limited.sizes)
    assert limited.bind((100, 30, 99, 70, 100, 1, 100)) == (100, 30, 99)
    assert limited.bind((20, 30, 10, -10, 20, 10, 20)) is None


def test_limits_have_limits() -> None:
    """Of a length from a place on, with others between its elements: neither is negative, nor what is behind it."""
    samples = [
        (n, a, m, n - a - 3 * m + 2)
        for n, a, m in ((30, 4, 9), (43, 1, 14), (52, 7, 15), (61, 3, 19), (35, 11, 8))
    ]
    follows: dict[int, Follows] = {3: Padded((2, 1), 3)}
    found = list(patterns((D, S, C, P), samples, (4,), follows))
    assert any(all(at_least(e) >= low for e, low in zip(p.sizes, (2, 0, 2, 0), strict=True)) for p in found)


BLOCKS: dict[int, Follows] = {1: Padded((0,)), 2: Total((0, 1)), 3: Share((2,), (4,))}
"""x: (n,), padded, in blocks of 32."""


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [
        (((250, 6, 256, 8, 32), (251, 5, 256, 8, 32)), "(size0, -size0 + 256, 256, 8, 32)"),
        (
            ((37, 27, 64, 2, 32), (250, 6, 256, 8, 32)),
            "(size0, 32*((size0 + 31)//32) - size0, 32*((size0 + 31)//32), (size0 + 31)//32, 32)",
        ),
        (
            ((70, 58, 128, 2, 64), (250, 6, 256, 4, 64)),
            "(size0, 64*((size0 + 63)//64) - size0, 64*((size0 + 63)//64), (size0 + 63)//64, 64)",
        ),
        (
            ((37, 91, 128, 4, 32), (130, 94, 224, 7, 32)),
            "(size0, size1, size0 + size1, (size0 + size1)//32, 32)",
        ),
    ],
    ids=["to a size", "to a multiple", "to a multiple that something is fixed to", "by any number"],
)
def test_what_is_added_follows_from_what_it_is_added_to(samples: tuple[Column, ...], sizes: str) -> None:
    assert repr(first((L, P, D, D, D), *samples, follows=BLOCKS).sizes) == sizes


def test_what_is_added_up_to_a_size_that_varies_follows_from_that() -> None:
    """96 elements in a row of 96 n, then in one of 96 n + 192, which is made of something else."""
    samples = ((22, 2112, 192, 2304, 2016, 2208), (15, 1440, 192, 1632, 1344, 1536))
    rules: dict[int, Follows] = {3: Total((1, 2)), 4: Padded((6,)), 5: Padded((6,))}
    p = first((L, D, D, D, P, P, D), *[(*s, 96) for s in samples], follows=rules)
    assert len(p.variables) == 1
    assert repr(p.sizes) == "(size0, 96*size0, 192, 96*size0 + 192, 96*size0 - 96, 96*size0 + 96, 96)"


def test_what_follows_is_looked_for_until_nothing_more_does() -> None:
    """A padding up to a size that is made of one that is made of another, each listed before what it follows from."""
    samples = ((22, 2208, 2304, 96, 192, 2112, 96), (15, 1536, 1632, 96, 192, 1440, 96))
    rules: dict[int, Follows] = {1: Padded((3,)), 2: Total((5, 4)), 5: Share((0, 6), ())}
    p = first((L, P, D, D, D, D, D), *samples, follows=rules)
    assert repr(p.sizes[1]) == "96*size0 + 96" and len(p.variables) == 1


def test_what_is_added_behind_elements_apart_follows_from_their_places() -> None:
    """Every other of n rows: 2 m - 1 places, and one more where n is even."""
    samples = ((17, 9, 0, 0, 17), (24, 12, 0, 1, 24), (31, 16, 0, 0, 31), (20, 10, 0, 1, 20))
    rules: dict[int, Follows] = {2: Padded((1,), 2), 3: Padded((1, 2), 2), 4: Total((1, 2, 3), 2)}
    p = first((L, D, P, P, D), *samples, follows=rules)
    assert len(p.variables) == 1
    assert p.bind((41, 21, 0, 0, 41)) == (41,) and p.bind((41, 21, 0, 1, 42)) is None


def test_a_size_is_bounded_so_that_no_other_is_negative() -> None:
    p = first((L, P, D), (250, 6, 256), (251, 5, 256), follows={1: Padded((0,)), 2: Total((0, 1))})
    assert (p.variables[0].lo, p.variables[0].hi) == (2, 256)
    assert p.bind((256, 0, 256)) == (256,)
    assert p.bind((257, 31, 288)) is None
    shorter = first((L, D), (253, 3), (254, 4))
    assert shorter.variables[0].lo == 252, "an axis of one element is another structure"


def test_a_size_may_be_another_one_and_some() -> None:
    samples = ((37, 64, 27, 63), (70, 96, 26, 95))
    p = first((L, D, P, D), *samples, follows={2: Padded((0,)), 1: Total((0, 2))})
    assert repr(p.sizes[3]) == "32*((size0 + 31)//32) - 1"


def test_an_axis_is_what_is_left_of_it_and_where_that_begins_where_nothing_else_does() -> None:
    assert "(size0 + size1, size0, size1)" in every((L, S, D), (30, 3, 27), (60, 11, 49))


def test_what_the_program_says_may_follow_from_what_is_added() -> None:
    rules: dict[int, Follows] = {2: Padded((0,)), 3: Total((0, 2))}
    sizes = every((L, C, P, D), (30, 36, 6, 36), (61, 77, 16, 77), (50, 59, 9, 59), follows=rules)
    assert "(size0, size1, -size0 + size1, size1)" in sizes, "which may be negative"
    assert "(size0, size0 + size1, size1, size0 + size1)" in sizes
