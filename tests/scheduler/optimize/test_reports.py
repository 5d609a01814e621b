"""What `decide` prints of five kernels: choices with what was compared, and refusals."""

from __future__ import annotations

import pytest

from weft.backends.protocol import DeviceInfo
from weft.scheduler.optimize.rules import decide
from weft.testing.kernels import Case, attention, depthwise, matmul, scaled_blocks, softmax

INFO = DeviceInfo(
    name="test:0", kind="test", description="", cores=2, vector_bytes=64, vector_registers=32,
    l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, memory_bytes=1 << 34, local_bytes=1 << 20,
    bandwidth=4e10, flops=2e11, launch_ns=20.0,
)  # fmt: skip

GOLDEN: dict[str, tuple[Case, str]] = {
    "matmul(1024, 1024, 1024)": (
        matmul(1024, 1024, 1024),
        """\
online         no: 1 reduction and 1 output; a chain has 4 and 1
contraction    chosen: tile 6x4 vectors, panel b 1024x64 in local, 80.9 M cycles (67 options; next: 5x4, +1 %)
                 contraction.axes: lanes j, rows i, 81.0 M cycles (3 options; next: lanes i, rows j moved, +8 %)
                 contraction.method: tiles, 81.0 M cycles (2 options; next: inner products, +77 %)
                 contraction.depth: whole (2 options; next: in blocks)
                 contraction.panel: packed (2 options; next: read where it lies)
                 contraction.chain: 256 (3 options; next: 128)
dots           no: 1,024 x 1,024 results; 77 % more cycles than tiles
depth          no: 1,024 products in a sum, for which a panel of the whole depth is taken
scaled_sums    not reached
blocks         not reached
windows        not reached
prefixes       not reached
taps           not reached
small_outputs  not reached
rows           not reached
scatters       no: no output combines with what is there
levels         no: no sum adds more than 128 terms, or 768 products, in sequence""",
    ),
    "softmax(4096, 4096)": (
        softmax(4096, 4096),
        """\
online         no: 2 reductions and 1 output; a chain has 4 and 1
contraction    no: top is no sum
scaled_sums    no: nothing sums products of bytes in int32
blocks         no: 2 values and 1 output; it is for one of each
windows        no: 2 values and 1 output; it is for one of each
prefixes       no: 2 values and 1 output; it is for one of each
taps           no: 2 values and 1 output; it is for one of each
small_outputs  no: 2 values and 1 output; it is for one of each
rows           chosen: lanes along what is contiguous, staged kept (2 options; next: keep nothing)
                 rows.lanes: x2 (2 options; next: y)
                 rows.vectors: 4 (4 options; next: 1)
                 tasks: 16 (5 options; next: 2)
scatters       no: no output combines with what is there
levels         no: no sum adds more than 128 terms, or 768 products, in sequence""",
    ),
    "attention(8, 1024, 64, False)": (
        attention(8, 1024, 64, False),
        """\
online         chosen: one pass over blocks of 64 columns, tile 4x4 vectors (6 options; next: 6, +3 %)
                 online.columns: 4 (4 options; next: 1)
contraction    not reached
scaled_sums    not reached
blocks         not reached
windows        not reached
prefixes       not reached
taps           not reached
small_outputs  not reached
rows           not reached
scatters       no: no output combines with what is there
levels         no: no sum adds more than 128 terms, or 768 products, in sequence""",
    ),
    "depthwise(8, 32, 56, 3, 1)": (
        depthwise(8, 32, 56, 3, 1),
        """\
online         no: 1 reduction and 1 output; a chain has 4 and 1
contraction    no: a factor of conv has no axis of its own: there is nothing to reuse
scaled_sums    no: nothing sums products of bytes in int32
blocks         no: conv is no sum over one axis
windows        chosen: tile 8x1 vectors of 16, its windows in local (10 options; next: 7x1)
                 tasks: 16 (5 options; next: 2)
prefixes       not reached
taps           not reached
small_outputs  not reached
rows           not reached
scatters       no: no output combines with what is there
levels         no: no sum adds more than 128 terms, or 768 products, in sequence""",
    ),
    "scaled_blocks(4096, 4096, 32)": (
        scaled_blocks(4096, 4096, 32),
        """\
online         no: 1 reduction and 1 output; a chain has 4 and 1
contraction    no: a factor of total has no axis of its own: there is nothing to reuse
scaled_sums    no: nothing sums products of bytes in int32
blocks         chosen: 2 blocks of 32 at a time, scaled once each
                 prefetch.bytes: 8192 (5 options; next: 0)
                 tasks: 16 (5 options; next: 2)
windows        not reached
prefixes       not reached
taps           not reached
small_outputs  not reached
rows           not reached
scatters       no: no output combines with what is there
levels         no: no sum adds more than 128 terms, or 768 products, in sequence""",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_reports(name: str) -> None:
    case, text = GOLDEN[name]
    assert str(decide(case.algorithm, INFO)) == text
