"""A wheel of weft with compiled programs in it, so that first steps on a new machine need no compiler.

    python tools/wheel.py dist        from what is committed; 90 seconds

The programs are in `weft/<system>-<processor>.pack` (see `weft/pack.py`). A checkout has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).parent.parent


def build(folder: Path) -> None:
    """Write the wheel to a folder."""
    with tempfile.TemporaryDirectory() as made:
        tree, cache = Path(made, "weft"), Path(made, "cache")
        cache.mkdir(mode=0o700)
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", HOME, tree], check=True)
        paths = {"PYTHONPATH": str(tree), "WEFT_CACHE_DIR": str(cache)}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
        place = [sys.executable, "-c", "from weft import pack; print(pack.place())"]
        found = subprocess.run(place, check=True, cwd=tree, env=kept | paths, capture_output=True, text=True)
        prepare = [sys.executable, "-m", "weft", "prepare", "--pack", found.stdout.strip()]
        subprocess.run(prepare, check=True, cwd=tree, env=kept | paths)
        wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, tree]
        subprocess.run(wheel, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
