"""The memory plan: no two tensors that live at the same time share a byte, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.scheduler.memory import ALIGNMENT, Request, plan

requests = st.lists(
    st.builds(
        lambda nbytes, first, span: Request(nbytes, first, first + span),
        st.integers(0, 5000),
        st.integers(0, 12),
        st.integers(0, 6),
    ),
    max_size=14,
)


@given(requests)
def test_no_byte_is_shared_by_two_living_tensors(wanted: list[Request]) -> None:
    layout = plan(wanted)
    for step in range(20):
        taken: set[int] = set()
        for r, offset in zip(wanted, layout.offsets, strict=True):
            if r.first <= step <= r.last:
                bytes_of = set(range(offset, offset + r.nbytes))
                assert not bytes_of & taken
                taken |= bytes_of
    for r, offset in zip(wanted, layout.offsets, strict=True):
        assert offset % ALIGNMENT == 0 and offset + r.nbytes <= max(
            layout.nbytes, offset if not r.nbytes else 0
        )


@given(requests)
def test_never_more_than_side_by_side_nor_less_than_at_once(wanted: list[Request]) -> None:
    sizes = [-(-r.nbytes // ALIGNMENT) * ALIGNMENT for r in wanted]
    alive = [sum(s for s, r in zip(sizes, wanted, strict=True) if r.first <= k <= r.last) for k in range(20)]
    assert max(alive) <= plan(wanted).nbytes <= sum(sizes)


def test_a_chain_needs_two_places() -> None:
    chain = [Request(1 << 20, k, k + 1) for k in range(100)]
    assert plan(chain).nbytes == 2 << 20


def test_ten_thousand_tensors_at_once() -> None:
    layout = plan([Request(ALIGNMENT // 2 + k % 7, k, k + 3) for k in range(10_000)])
    assert layout.nbytes <= 8 * ALIGNMENT
