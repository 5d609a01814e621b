"""The modules that weft imports when it first computes something, beyond those of `import weft`.

python -m benchmarks.first_use      trains a layer for some steps, and prints them, a line each

Where imports are excluded, these are: torch's are imported by steps like these (see `once.opened`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.results import ROOT


def steps(T: Any) -> None:
    """Steps of a layer with each of the optimizers that programs have, of several sizes: where sizes vary, too."""
    for kind in (T.optim.SGD, T.optim.Adam, T.optim.AdamW):
        layer = T.nn.Linear(4, 4)
        optimizer = kind(layer.parameters())
        for n in (4, 7, 9):
            optimizer.zero_grad()
            loss = T.nn.functional.cross_entropy(layer(T.ones(n, 4)), T.zeros(n, dtype=T.int64))
            loss.backward()
            optimizer.step()
            loss.item()


def modules() -> list[str]:
    """Their names, of a process that compiles all, and of one that finds all on disk."""
    found: dict[str, None] = {}
    with tempfile.TemporaryDirectory(prefix="weft-first-use-") as folder:
        environment = os.environ | {"WEFT_CACHE_DIR": folder}
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.first_use"],
                env=environment, cwd=ROOT, capture_output=True, text=True, check=True,
            )  # fmt: skip
            found.update(dict.fromkeys(done.stdout.split()))
    return list(found)


def main() -> None:
    """Print the modules, in the order in which they are imported."""
    from benchmarks.once import opened

    T = opened("weft", 1)
    before = set(sys.modules)
    steps(T)
    for name in [*sys.modules]:
        if name not in before:
            print(name)


if __name__ == "__main__":
    main()
