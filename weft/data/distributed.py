"""Examples shared out to processes, in torch's order."""
# Tests: tests/distributed/test_processes.py

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.data.dataset import size_of
from weft.data.sampler import Sampler
from weft.errors import ArgumentError


def _permutation(n: int, seed: int) -> list[int]:
    """The torch.randperm(n) of a generator of this seed: exchanges drawn from MT19937's 32-bit numbers."""
    drawn = (
        np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 2**32, max(n - 1, 0), dtype=np.uint32).tolist()
    )
    order = list(range(n))
    for k, number in enumerate(drawn):
        other = k + number % (n - k)
        order[k], order[other] = order[other], order[k]
    return order


class DistributedSampler(Sampler[int]):
    """The examples of one of `num_replicas` processes: every num_replicas-th, from `rank` on, of an order that follows
    from seed + epoch with shuffle. It is torch's order, so processes of both can share one data set.

    Without drop_last the order is repeated from its start until it divides; call set_epoch before each epoch.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        from weft import distributed

        self.num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
        self.rank = distributed.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError(
                f"DistributedSampler: Invalid rank {self.rank}, rank should be in the interval [0, "
                f"{self.num_replicas - 1}]"
            )
        self.dataset, self.shuffle, self.seed, self.drop_last = dataset, shuffle, seed, drop_last
        self.epoch = 0
        size = size_of(dataset)
        self.num_samples = math.ceil(
            (size - self.num_replicas) / self.num_replicas
            if drop_last and size % self.num_replicas
            else size / self.num_replicas
        )
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        size = size_of(self.dataset)
        order = _permutation(size, self.seed + self.epoch) if self.shuffle else list(range(size))
        if not self.drop_last and order:
            order *= math.ceil(self.total_size / len(order))
        return iter(order[: self.total_size][self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Have the next order be that of another epoch."""
        self.epoch = epoch
