"""The allocator: alignment, recycling, limits, accounting, threads."""

import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.backends.cpu.allocator import (
    ALIGNMENT,
    HUGE_BYTES,
    SMALL_BYTES,
    Allocator,
    OutOfMemoryError,
    as_numpy,
    size_class,
)


@given(st.integers(0, 1 << 40))
def test_size_classes_hold_the_request_and_waste_little(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= max(nbytes, ALIGNMENT)
    assert size % ALIGNMENT == 0
    assert size_class(size) == size
    assert size - nbytes <= max(ALIGNMENT, 4096, nbytes // 8)
    assert size_class(nbytes + 1) >= size


@pytest.mark.parametrize("nbytes", [0, 1, 64, 1000, SMALL_BYTES, SMALL_BYTES + 1, HUGE_BYTES, HUGE_BYTES + 1])
def test_blocks_are_aligned_and_writable_to_the_end(nbytes: int) -> None:
    blocks = [Allocator().allocate(nbytes) for _ in range(3)]
    for block in blocks:
        assert block.nbytes == nbytes
        assert block.address % (HUGE_BYTES if nbytes >= HUGE_BYTES else ALIGNMENT) == 0
        as_numpy(block, np.uint8, (nbytes,))[:] = 255


@pytest.mark.parametrize("nbytes", [1, 1000, SMALL_BYTES, 100_000, 3 << 20])
def test_a_dead_block_is_recycled(nbytes: int) -> None:
    allocator = Allocator()
    block = allocator.allocate(nbytes)
    address = block.address
    del block
    assert allocator.allocate(nbytes).address == address


def test_living_blocks_never_overlap() -> None:
    allocator = Allocator()
    generator = np.random.default_rng(1)
    blocks = []
    for _ in range(3000):
        blocks.append(allocator.allocate(int(generator.integers(0, 1 << int(generator.integers(1, 20))))))
        if generator.random() < 0.4:
            blocks.pop(int(generator.integers(len(blocks))))
    ranges = sorted((block.address, block.address + block.nbytes) for block in blocks)
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))


def test_pages_of_carved_blocks_go_back_and_their_addresses_are_used_again() -> None:
    allocator = Allocator(idle_limit=0)
    neighbours = [allocator.allocate(300_000) for _ in range(3)]
    for block in neighbours:
        as_numpy(block, np.uint8, (300_000,))[:] = 7
    address = neighbours[1].address
    del neighbours[1]
    assert allocator.use().mapped == 2 * size_class(300_000)
    again = allocator.allocate(300_000)
    if again.address == address:  # a region's; elsewhere each block has a mapping
        assert not as_numpy(again, np.uint8, (300_000,)).any()
    assert all(as_numpy(block, np.uint8, (300_000,)).min() == 7 for block in neighbours)


def test_regions_follow_each_other() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(1 << 20) for _ in range(70)]  # more than two regions hold
    for k, block in enumerate(blocks):
        as_numpy(block, np.uint8, (1 << 20,))[:] = k
    assert [int(as_numpy(block, np.uint8, (1 << 20,)).max()) for block in blocks] == list(range(70))
    assert allocator.use().mapped == 70 << 20


def test_accounting() -> None:
    allocator = Allocator()
    first, second = allocator.allocate(1 << 20), allocator.allocate(2 << 20)
    assert allocator.use().live == 3 << 20
    del second
    use = allocator.use()
    assert (use.live, use.peak, use.idle, use.mapped) == (1 << 20, 3 << 20, 2 << 20, 3 << 20)
    allocator.reset_peak()
    assert allocator.use().peak == 1 << 20
    allocator.trim()
    assert allocator.use().idle == 0
    del first
    assert allocator.use().live == 0


def test_idle_memory_is_bounded_and_the_longest_idle_goes_first() -> None:
    allocator = Allocator(idle_limit=5 << 20)
    old, young = allocator.allocate(4 << 20), allocator.allocate(3 << 20)
    young_address = young.address
    del old
    del young
    assert allocator.use().idle == 3 << 20
    assert allocator.allocate(3 << 20).address == young_address


def test_the_longest_idle_goes_first_whatever_its_size() -> None:
    allocator = Allocator(idle_limit=9 << 20)
    first, second, other, last = (allocator.allocate(n << 20) for n in (2, 2, 3, 4))
    del first
    del other
    del second
    del last  # eleven MiB idle: the first, of two, has to go
    assert allocator.use().idle == 9 << 20


def test_small_blocks_fill_their_slab() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(SMALL_BYTES) for _ in range(32)]
    assert allocator.use().mapped == 2 << 20
    blocks.append(allocator.allocate(SMALL_BYTES))
    assert allocator.use().mapped == 4 << 20


def test_a_gibibyte_may_idle_where_nothing_is_said() -> None:
    allocator = Allocator()
    allocator.allocate(1 << 30)  # dead at once, and never touched, so it takes no memory
    assert allocator.use().idle == 1 << 30
    allocator.allocate((1 << 30) + 1)
    assert allocator.use().idle == 0


@pytest.mark.parametrize(("nbytes", "mapped"), [(SMALL_BYTES, 2 << 20), (SMALL_BYTES + 1, 72 << 10)])
def test_blocks_up_to_the_small_size_are_carved_from_a_slab(nbytes: int, mapped: int) -> None:
    allocator = Allocator()
    block = allocator.allocate(nbytes)
    assert (block.size, allocator.use().mapped) == (size_class(nbytes), mapped)


def test_the_limit_refuses_with_the_numbers() -> None:
    allocator = Allocator(limit=8 << 20)
    kept = allocator.allocate(6 << 20)
    with pytest.raises(
        MemoryError, match=r"3\.0 MiB requested with 6\.0 MiB live .*limit 8\.0 MiB"
    ) as caught:
        allocator.allocate(3 << 20)
    assert isinstance(caught.value, OutOfMemoryError)
    assert (caught.value.requested, caught.value.live, caught.value.limit) == (3 << 20, 6 << 20, 8 << 20)
    del kept
    # The idle block is given up for one of another size.
    assert allocator.allocate(7 << 20).nbytes == 7 << 20
    assert allocator.use().mapped == 7 << 20
    allocator.set_limit(None)
    assert allocator.allocate(9 << 20).nbytes == 9 << 20


def test_a_new_limit_gives_back_what_idles_beyond_it() -> None:
    allocator = Allocator()
    kept, old, young = (allocator.allocate(n << 20) for n in (4, 3, 2))
    del old
    del young
    allocator.set_limit(7 << 20)
    use = allocator.use()
    assert (use.live, use.idle, use.mapped) == (kept.nbytes, 2 << 20, 6 << 20)


def test_a_limit_below_what_lives_leaves_nothing_idle() -> None:
    allocator = Allocator()
    kept, dead = allocator.allocate(4 << 20), allocator.allocate(3 << 20)
    del dead
    allocator.set_limit(1 << 20)
    assert (allocator.use().live, allocator.use().idle) == (kept.nbytes, 0)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (1023, "1023 bytes"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (3 << 30, "3.0 GiB"), (1 << 40, "1.0 TiB"),
    ],
)  # fmt: skip
def test_sizes_in_messages_have_the_largest_unit_that_they_reach(nbytes: int, text: str) -> None:
    with pytest.raises(
        MemoryError, match=rf"^out of memory: {text} requested with 0 bytes live .*limit 64 bytes"
    ):
        Allocator(limit=64).allocate(nbytes)


def test_what_the_system_refuses_is_a_clear_error() -> None:
    for nbytes in (1 << 50, 1 << 80):
        with pytest.raises(OutOfMemoryError, match="requested with"):
            Allocator().allocate(nbytes)


def test_negative_sizes_are_refused() -> None:
    for nbytes in (-1, -100, -(1 << 40)):
        with pytest.raises(ValueError, match="cannot have"):
            Allocator().allocate(nbytes)


def test_an_array_keeps_its_block_alive() -> None:
    allocator = Allocator()
    array = as_numpy(allocator.allocate(4000), np.float32, (10, 100))
    array[:] = 7
    view = array[3:, ::2].T
    del array
    gc.collect()
    others = [as_numpy(allocator.allocate(4000), np.float32, (1000,)) for _ in range(5)]
    for other in others:
        other[:] = 0
    assert (view == 7).all()
    del view
    assert allocator.use().live == 5 * size_class(4000)


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float16, ml_dtypes.bfloat16])
def test_arrays_of_every_kind(dtype: type) -> None:
    block = Allocator().allocate(256)
    array = as_numpy(block, dtype, (3, 4), offset=64)
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.ctypes.data == block.address + 64
    assert as_numpy(block, dtype, (0, 4)).shape == (0, 4)
    assert as_numpy(block, dtype, ()).shape == ()
    assert not as_numpy(block, dtype, (4,), writable=False).flags.writeable


def test_arrays_that_do_not_fit_are_refused() -> None:
    block = Allocator().allocate(100)
    for shape, offset in (((26,), 0), ((25,), 4), ((1,), -4)):
        with pytest.raises(ValueError, match="does not fit a block of 100 bytes"):
            as_numpy(block, np.float32, shape, offset=offset)


def test_threads_share_an_allocator() -> None:
    allocator = Allocator(idle_limit=16 << 20)
    errors: list[str] = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        kept = []
        for step in range(1500):
            nbytes = int(generator.integers(1, 1 << int(generator.integers(3, 22))))
            block = allocator.allocate(nbytes)
            mark = np.uint8((seed * 31 + step) % 256)
            array = as_numpy(block, np.uint8, (nbytes,))
            array[0] = array[-1] = mark
            kept.append((array, mark))
            if len(kept) > 20:
                array, mark = kept.pop(int(generator.integers(len(kept))))
                if array[0] != mark or array[-1] != mark:
                    errors.append(f"thread {seed} step {step}")

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert not errors
    use = allocator.use()
    assert use.live == 0
    assert use.idle <= 16 << 20


def test_blocks_that_die_in_a_cycle_during_allocation_do_no_harm() -> None:
    allocator = Allocator()
    gc.collect()
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for step in range(2000):
            cycle: list[object] = [allocator.allocate(step), allocator.allocate(100_000)]
            cycle.append(cycle)
    finally:
        gc.set_threshold(*thresholds)
    del cycle
    gc.collect()
    assert allocator.use().live == 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="tells what is in memory")
@pytest.mark.parametrize("nbytes", [(2 << 20) + 1, 9 << 20, (64 << 20) + 4096])
def test_a_block_that_is_full_takes_little_more_memory_than_its_bytes(nbytes: int) -> None:
    allocator = Allocator()
    before = _resident()
    blocks = [allocator.allocate(nbytes) for _ in range(8)]
    for block in blocks:
        as_numpy(block, np.uint8, (nbytes,))[:] = 1
    assert _resident() - before <= 8 * nbytes * (1 + 1 / 32) + (2 << 20)


def _resident() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
