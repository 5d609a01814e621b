"""PTX, executed without a GPU: `text` reads it, `machine` runs a launch, lane by lane, over host memory.

Every instruction that the backend's kernels contain means what the PTX ISA says, matrix fragments, asynchronous copies
and shuffles included; what it does not know, or what the ISA leaves undefined and a kernel must not rely on
(misaligned or foreign addresses, races in shared memory, warp-wide instructions run by part of a warp), is a PtxError.
"""
