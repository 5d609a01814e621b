"""Write `torch.npz`: what torch gives for every case of tests/core, for machines without torch.

python tests/data/record_torch.py
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
CORE = HERE.parent / "core"


def main() -> None:
    """Record values and gradients by case, and the outcomes of the dtype tables."""
    record: dict[str, Any] = {}
    functions = runpy.run_path(str(CORE / "test_against_torch.py"))
    for name in functions["CASES"]:
        value, grads = functions["by_torch"](name)
        record[name] = value
        record.update({f"{name}/{k}": g for k, g in enumerate(grads) if g is not None})
    tables = runpy.run_path(str(CORE / "test_dtypes.py"))
    for table in tables["TABLES"]:
        record[f"dtypes {table}"] = np.array(tables["by_torch"](table))
    np.savez_compressed(HERE / "torch.npz", **record)


if __name__ == "__main__":
    main()
