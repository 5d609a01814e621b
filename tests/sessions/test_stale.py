"""What no result needed waits, and is computed before it is used."""

from __future__ import annotations

import numpy as np

import weft
import weft.nn.functional
from weft.ir.index import Var
from weft.ir.regions.boxes import Interval
from weft.ir.regions.region import NOTHING, Region
from weft.ir.regions.tables import Starts
from weft.sessions.session import Session, session
from weft.sessions.stale import Leaves, Stale, _are_aside
from weft.sessions.step import Part

rng = np.random.default_rng(0)
W = weft.tensor(rng.standard_normal((8, 8)).astype(np.float32))


def row(x: weft.Tensor, t: int) -> weft.Tensor:
    """A row of something that is kept as a whole."""
    return ((x @ W).tanh() @ W)[t]


def started() -> tuple[Session, weft.Tensor]:
    x = weft.tensor(rng.standard_normal((32, 8)).astype(np.float32))
    s = session(row, x, weft.Variable("t", 0, 31))
    s(x, 0)
    return s, x


def check(s: Session, x: weft.Tensor, t: int) -> None:
    assert np.array_equal(s(x, t).numpy(), session(row)(x, t).numpy())


def test_rows_that_were_written_and_not_needed_are_stale() -> None:
    s, x = started()
    x[7] = 1.0
    s(x, 3)
    (form,) = s._forms.values()
    stale = form._stale.known()
    assert stale and all(8 > r.boxes[0][0].lo <= 7 for r in stale.values())


def test_a_step_that_needs_what_is_stale_computes_everything() -> None:
    s, x = started()
    x[7] = 1.0
    s(x, 3)
    check(s, x, 7)
    assert s.stats().everything == 2


def test_a_step_that_computes_what_is_stale_may_run() -> None:
    s, x = started()
    x[7] = 1.0
    s(x, 3)
    x[7] = 2.0
    check(s, x, 7)


def test_steps_that_follow_each_other_are_looked_at_once() -> None:
    s, x = started()
    for t in range(1, 12):
        x[t] = float(t)
        check(s, x, t)
    (form,) = s._forms.values()
    assert form._stale.step is not None and form._stale.step._follows == {(1, 1): True}
    assert s.stats().everything == 1


def test_random_writes_and_rows_give_the_bits_of_new_runs() -> None:
    s, x = started()
    for _ in range(40):
        for _ in range(int(rng.integers(3))):
            lo = int(rng.integers(32))
            x[lo : lo + int(rng.integers(1, 5))] = float(rng.standard_normal())
        check(s, x, int(rng.integers(32)))
    assert Stale().known() == {}


def attended(x: weft.Tensor, t: int) -> weft.Tensor:
    """A row of two layers of causal attention, of which the last has rows that nobody asks for."""
    for _ in range(2):
        x = x + weft.nn.functional.scaled_dot_product_attention(x @ W, x, (x @ W).tanh(), is_causal=True)
    return x[t]


def test_what_no_later_step_needs_is_set_aside() -> None:
    x = weft.tensor(rng.standard_normal((32, 8)).astype(np.float32))
    s = session(attended, x, weft.Variable("t", 0, 31))
    s(x, 0)
    x[:9] = weft.tensor(rng.standard_normal((9, 8)).astype(np.float32))
    s(x, 8)  # leaves rows of the last layer that tokens do not
    for t in range(9, 20):
        x[t] = float(t)
        assert np.array_equal(s(x, t).numpy(), session(attended)(x, t).numpy())
    (form,) = s._forms.values()
    stale = form._stale
    assert stale.regions and stale.aside == (1, 1) and s.stats().everything == 1
    assert all(r.boxes[0][-2].lo < 9 for r in stale.regions.values())
    for t in (3, 20, 5):  # which need what was set aside, or are past it
        assert np.array_equal(s(x, t).numpy(), session(attended)(x, t).numpy())
    x[4] = 2.0
    assert np.array_equal(s(x, 20).numpy(), session(attended)(x, 20).numpy())


def test_what_was_set_aside_is_seen_when_steps_come_to_it() -> None:
    s, x = started()
    x[20] = 1.0
    s(x, 3)
    for t in range(4, 25):
        x[0] = float(t)  # reaches nothing that row t needs
        check(s, x, t)
    assert s.stats().everything == 2


def test_regions_are_aside_where_no_step_further_on_needs_them() -> None:
    t, w = Var("t", 0, 31), Var("w", 0, 31)
    rows, node = Region(((Interval(t, t + 1), Interval(0, 8)),)), weft.zeros(32, 8).value.node
    step = Leaves({node: Part(NOTHING, rows, NOTHING, NOTHING)}, (w, t), Starts({}))
    stale = {node: Region(((Interval(20, 22), Interval(2, 4)),))}
    for at in range(32):
        for way in (-1, 0, 1):
            further = [at] if not way else range(at, 32) if way > 0 else range(at + 1)
            expected = all(not 20 <= x < 22 for x in further)
            assert _are_aside(stale, step, (5, at), (1, way)) == expected
            assert _are_aside(stale, step, (5, at), (0, way)) == expected


def test_random_prompts_tokens_and_edits_give_the_bits_of_new_runs() -> None:
    x = weft.tensor(rng.standard_normal((32, 8)).astype(np.float32))
    s, t, aside = session(attended, x, weft.Variable("t", 0, 31)), 0, 0
    for _ in range(60):
        match int(rng.integers(8)):
            case 0:
                t = int(rng.integers(1, 16))
                x[:t] = weft.tensor(rng.standard_normal((t, 8)).astype(np.float32))
            case 1:
                x[int(rng.integers(t + 1))] = float(rng.standard_normal())
            case 2:
                t = int(rng.integers(32))
            case _:
                t = min(t + 1, 31)
                x[t] = float(rng.standard_normal())
        anew = session(attended, x, weft.Variable("t", 0, 31))
        assert np.array_equal(s(x, t).numpy(), anew(x, t).numpy())
        (form,) = s._forms.values()
        aside += form._stale.aside is not None
    assert aside
