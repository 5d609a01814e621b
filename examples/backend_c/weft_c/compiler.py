"""C -> a shared library -> functions of this process."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from weft.errors import DeviceError

FLAGS = (
    "-std=gnu11", "-O2", "-ftree-vectorize", "-march=native", "-shared", "-fPIC", "-w",
    "-ffp-contract=off", "-fno-strict-aliasing", "-fno-math-errno",
)  # fmt: skip
"""What the text means depends on the last line: no fused operations that nobody asked for, no guesses about types."""


@cache
def compiler() -> str:
    """The compiler's path: $CC, or the usual names. DeviceError with what to install."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found is not None:
            return found
    raise DeviceError("there is no C compiler: install gcc or clang, or name one in the variable CC")


@cache
def version() -> str:
    """The compiler's name and version, and the processor that it compiles for."""
    lines = run("--version").splitlines()
    return f"{lines[0]}, {machine()}"


def machine() -> str:
    """The processor, by its model and features where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return os.uname().machine
    return " ".join(line for line in lines if line.startswith(("model name", "flags", "Features")))


def run(*arguments: str) -> str:
    """The compiler's output. DeviceError with what it said when it fails."""
    done = subprocess.run([compiler(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(f"{compiler()} failed: {done.stderr.strip()[:2000]}")
    return done.stdout


def build(text: str) -> bytes:
    """The shared library for a C file."""
    with tempfile.TemporaryDirectory(prefix="weft-c-") as folder:
        source, target = Path(folder, "kernels.c"), Path(folder, "kernels.so")
        source.write_text(text)
        run(*FLAGS, str(source), "-o", str(target), "-lm")
        return target.read_bytes()


def load(library: bytes) -> Any:
    """The library in this process. ValueError when it is none."""
    descriptor, name = tempfile.mkstemp(prefix="weft-c-", suffix=".so")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(library)
        return ctypes.CDLL(name)
    except OSError as error:
        raise ValueError(f"not a library of this machine: {error}") from None
    finally:
        os.unlink(name)  # it stays mapped
