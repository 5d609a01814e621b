"""The environment variables that weft reads, all of them, here and nowhere else.

| variable           | meaning                                                      | default              |
|--------------------|--------------------------------------------------------------|----------------------|
| `WEFT_VERIFY`      | 1: check every intermediate form after every step            | 0                    |
| `WEFT_CACHE_DIR`   | where compiled programs are kept; empty: keep none on disk   | the user's cache dir |
| `WEFT_DEVICE`      | the default device, such as `cpu` or `dummy:1`               | `cpu`                |
| `WEFT_NUM_THREADS` | how many threads the CPU backend runs                        | one per usable core  |
| `WEFT_CPU_LEVEL`   | generate for an older x86-64: `x86-64-v3` is AVX2            | what the machine has |
| `WEFT_TF32`        | 1: GPUs may round the factors of float32 products to TF32    | 0                    |
| `WEFT_WGMMA`       | 0, 1: whether Hopper GPUs multiply by groups of four warps   | if a trial is right  |
| `WEFT_DETERMINISTIC` | 1: each size has a plan of its own, see `use_deterministic_algorithms` | 0              |
| `WEFT_TIERS`       | 0: new graphs wait for their fused kernels, see `manuals/caches.md` | 1             |
| `WORLD_SIZE`, `RANK`, `TORCHELASTIC_RUN_ID` | what launchers of several processes set | one process |
| `ROCM_PATH`        | where the libraries of AMD GPUs are installed                | `/opt/rocm`          |

They are read at each call, `WEFT_TF32` and `WEFT_WGMMA` when a device is opened, so a program may set them in
`os.environ` before it uses weft.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def verify() -> bool:
    """True when every intermediate form is to be checked."""
    return os.environ.get("WEFT_VERIFY", "0").strip().lower() not in ("", "0", "false", "no", "off")


def cache_dir() -> Path | None:
    """The folder of the on-disk caches (it need not exist yet); None when they are switched off."""
    chosen = os.environ.get("WEFT_CACHE_DIR")
    if chosen is not None:
        from pathlib import Path

        return Path(chosen).expanduser() if chosen.strip() else None
    from platformdirs import user_cache_path

    return user_cache_path("weft", appauthor=False)


def device() -> str:
    """The name of the default device."""
    return os.environ.get("WEFT_DEVICE", "").strip() or "cpu"


def num_threads() -> int | None:
    """The number of threads of the CPU backend, None for one per core; ValueError for no positive integer."""
    chosen = os.environ.get("WEFT_NUM_THREADS", "").strip()
    if not chosen:
        return None
    if not chosen.isdecimal() or int(chosen) < 1:
        raise ValueError(f"WEFT_NUM_THREADS must be a positive integer, not {chosen!r}")
    return int(chosen)


def cpu_level() -> str | None:
    """The instruction set that the CPU backend generates for, as the psABI names it; None for all that there is."""
    return os.environ.get("WEFT_CPU_LEVEL", "").strip() or None


def tf32() -> bool:
    """True where factors of float32 products may be rounded to TF32 (10 bits of mantissa), for matrix units."""
    return os.environ.get("WEFT_TF32", "0").strip().lower() not in ("", "0", "false", "no", "off")


def allow_tf32(allow: bool) -> None:
    """Set `WEFT_TF32`, for devices that are opened afterwards."""
    os.environ["WEFT_TF32"] = str(int(allow))


def deterministic() -> bool:
    """True where what a graph gives is to depend on nothing that was computed before, to the last bit."""
    return os.environ.get("WEFT_DETERMINISTIC", "0").strip().lower() not in ("", "0", "false", "no", "off")


def set_deterministic(mode: bool) -> None:
    """Set `WEFT_DETERMINISTIC`."""
    os.environ["WEFT_DETERMINISTIC"] = str(int(mode))


def tiers() -> bool:
    """True where a graph that was never seen may run on basic kernels until its plan is there."""
    return os.environ.get("WEFT_TIERS", "1").strip().lower() not in ("", "0", "false", "no", "off")


def wgmma() -> bool | None:
    """True where products run by groups of four warps (`wgmma`) on GPUs that have them; None: where a trial
    shows that they are right."""
    given = os.environ.get("WEFT_WGMMA", "").strip().lower()
    return None if not given else given not in ("0", "false", "no", "off")


def world_size() -> int:
    """The number of processes that a launcher has started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process among them."""
    return int(os.environ.get("RANK", "0"))


def launched_by_torchrun() -> bool:
    """True where the launcher is torch's."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def rocm_path() -> str:
    """The folder where ROCm is installed, as its own tools are told."""
    return os.environ.get("ROCM_PATH", "").strip() or "/opt/rocm"


@contextmanager
def runtime_folder() -> Generator[None]:
    """A value for XDG_RUNTIME_DIR where there is none: some drivers look for a display there, and complain on the
    terminal if they cannot look."""
    name = "XDG_RUNTIME_DIR"
    if name in os.environ or not sys.platform.startswith("linux"):
        yield
        return
    from tempfile import TemporaryDirectory

    # one of our own: a display that waits in the folder of everybody's temporary files could be anybody's
    with TemporaryDirectory(prefix="weft-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]
