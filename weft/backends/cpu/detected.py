"""The processor and the compiler as LLVM names them, kept on disk: to ask LLVM, it has to be loaded first.

They are kept for a processor (as the system describes its model and features) and a library of LLVM (its version, size
and date). Where the system does not describe the processor so, LLVM is asked each time.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from weft import disk_cache
from weft.lazy_dataclass import dataclass

from .targets import Target

_PROCESSORS = Path("/proc/cpuinfo")

_TELLING = re.compile(r"^(vendor_id|cpu family|model|model name|stepping|flags)\s*:.*$", re.MULTILINE)
"""The lines of a processor that decide what it is to LLVM."""

_MOST_BYTES = 1 << 14
"""More than what is told of one processor."""

_KIND = "host"


@dataclass(frozen=True, slots=True)
class Detected:
    """`target`: the machine this process runs on. `version`: LLVM's and llvmlite's, for keys of caches."""

    target: Target
    version: str


def version() -> str:
    """LLVM's and llvmlite's version, for keys of caches."""
    return detected().version


@cache
def detected() -> Detected:
    """This machine and LLVM as LLVM describes them, asked once per process at most."""
    key = _key()
    found = None if key is None else _read(key)
    if found is None:
        from . import llvm

        found = Detected(llvm.host_target(), llvm.version())
        if key is not None:
            t = found.target
            disk_cache.put(_KIND, key, json.dumps([t.triple, t.cpu, t.features, found.version]).encode())
    return found


def _read(key: str) -> Detected | None:
    """The description that an earlier process kept."""
    data = disk_cache.get(_KIND, key)
    if data is None:
        return None
    try:
        texts: object = json.loads(data)
    except ValueError:  # it was written by nothing that this version knows
        return None
    match texts:
        case [str(triple), str(cpu), str(features), str(kept)]:
            return Detected(Target(triple, cpu, features), kept)
        case _:
            return None


def _key() -> str | None:
    """The key of this processor and library; None where the system does not tell."""
    try:
        with _PROCESSORS.open(
            "rb", buffering=0
        ) as f:  # one read: the system asks each processor that it tells of
            first, _, _ = f.read(_MOST_BYTES).decode().partition("\n\n")
        spec = find_spec("llvmlite")
        (library,) = (
            p for folder in (spec.submodule_search_locations if spec else None) or ()
            for p in Path(folder, "binding").glob("libllvmlite.*")
        )  # fmt: skip
        stat = library.stat()
    except (OSError, UnicodeError, ValueError):
        return None
    lines = [m[0] for m in _TELLING.finditer(first)]
    if not any(line.startswith("flags") for line in lines):
        return None
    return disk_cache.digest(
        sys.platform, *lines, str(library), str(stat.st_size), str(stat.st_mtime_ns), str(stat.st_ino)
    )
