"""The disk: a memory pool without a device.

A tensor may stay in a file, mapped into this process. It has no home among the devices: what is computed from it runs
where the other operands are, else on the device that the settings name. A device whose memory is the host's reads the
mapped file itself; for others it is copied at each use. Values too large for a device's memory are computed in pieces,
see `weft.scheduler.stream`. The files are safetensors, a header and plain bytes, so others can read them too.

    file.py      a mapped file, and that it stays what it was
    pool.py      the pool as the storage of tensors sees it
    format.py    the header of safetensors files
    writing.py   files that appear whole or not at all
    drafts.py    where they are until then, and what killed processes left
    ahead.py     reading one piece while another is computed from
    behind.py    writing one piece while the next is computed
    pages.py     what the system is told of the pages in its cache
"""
# Tests: tests/core/execute/test_files.py, tests/backends/disk/test_writing.py
