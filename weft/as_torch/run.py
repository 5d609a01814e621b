"""`python -m weft run PROGRAM [ARGS]`: a program written for torch, as it is, with weft in torch's place."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from weft import as_torch
from weft.core.execute import host_operations

USAGE = "usage: python -m weft run PROGRAM [ARGS ...]   or   python -m weft run -m MODULE [ARGS ...]"


def run(arguments: Sequence[str]) -> None:
    """Run a program as `__main__`, `sys.argv` being its own; at the end, list on stderr what it missed.

    What the program raises is raised after that, so it ends as it would by itself.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{USAGE}\n\n{__doc__}")
        return
    by_name = arguments[0] == "-m"
    if by_name and len(arguments) < 2:
        sys.exit(USAGE)
    program, *rest = arguments[1:] if by_name else arguments
    if not by_name and not Path(program).exists():
        sys.exit(f"weft run: there is no file {program}")
    as_torch.install()
    host_operations.watch(_count)
    sys.argv = [program, *rest]
    try:
        if by_name:
            sys.path.insert(0, "")
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program).resolve().parent))
            runpy.run_path(program, run_name="__main__")
    finally:
        sys.stdout.flush()
        print(*as_torch.record.lines(), sep="\n", file=sys.stderr)


def _count(op: str) -> None:
    as_torch.record.on_host[op] += 1
