"""Random programs over several devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import weft
from weft import Tensor


def program(seed: int, devices: Sequence[str], steps: int = 14) -> list[Tensor]:
    """Results of a random program: integers as floats, so that every order of additions gives the same. With one
    device it is the same program there."""
    rng = np.random.default_rng(seed)

    def anywhere() -> str:
        return devices[int(rng.integers(1 << 20)) % len(devices)]

    tensors = [
        weft.tensor(rng.integers(-4, 5, (6, 8)).astype(np.float32), device=anywhere()) for _ in range(3)
    ]
    for _ in range(steps):
        kind = int(rng.integers(9))
        x, y = (tensors[int(k)] for k in rng.integers(len(tensors), size=2))
        there, low, size = anywhere(), int(rng.integers(4)), int(rng.integers(1, 5))
        if kind <= 2:
            z = x.to(there)
        elif kind == 3:
            part = x[low % 3 : low % 3 + 3, low : low + size].to(there)
            z = x.to(there) + part.sum()
        elif kind == 4:
            halves = [x[:3].to(there), y[3:].to(there)]
            z = weft.cat(halves, 0)
        elif kind == 5:
            z = (x.to(there) @ y.to(there).T)[:, :1].expand(6, 8) % 13
        elif kind == 6:
            z = x.reshape(8, 6)[low : low + 4, size:].to(there).sum() + y.to(there).T.reshape(6, 8)
        elif kind == 7:
            z = x.sum(0, keepdim=True).to(there).expand(6, 8) - y.to(there)
        else:
            z = (x * 2 - y.to(x.device)) % 11
        tensors.append(z)
    wanted = [int(k) for k in rng.choice(len(tensors), 3, replace=False)]
    return [tensors[k] for k in (*wanted, -1)]
