"""weft.data: what torch.utils.data does with the same data sets; workers, seeds, mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full(2, index, np.float32), "y": index * index, "name": f"n{index}"}


class Count(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, 10, step))


def test_batches() -> None:
    batches = list(DataLoader(Squares(), batch_size=4))
    assert [b["y"].tolist() for b in batches] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    assert batches[0]["x"].shape == (4, 2) and batches[2]["name"] == ["n8", "n9"]
    assert len(DataLoader(Squares(), 4)) == 3 and len(DataLoader(Squares(), 4, drop_last=True)) == 2
    assert [b["y"].tolist() for b in DataLoader(Squares(), 4, drop_last=True)][-1] == [16, 25, 36, 49]
    single = list(DataLoader(Squares(), batch_size=None))
    assert len(single) == 10 and single[3]["y"] == 9 and single[3]["x"].shape == (2,)
    given = DataLoader(Squares(), batch_sampler=[[1, 2], [5]])
    assert [b["y"].tolist() for b in given] == [[1, 4], [25]] and len(given) == 2


@pytest.mark.parametrize("options", [{}, {"multiprocessing_context": "spawn"}])
def test_workers_give_the_same_in_order(options: dict[str, Any]) -> None:
    loader = DataLoader(Squares(), 3, num_workers=2, **options)
    plain = [b["y"].tolist() for b in DataLoader(Squares(), 3)]
    assert [b["y"].tolist() for b in loader] == plain
    if not options:
        assert [b["y"].tolist() for b in loader] == plain  # a second epoch


def test_workers_know_who_they_are_and_errors_arrive() -> None:
    class Ids(Squares):
        def __getitem__(self, index: int) -> Any:
            info = get_worker_info()
            assert info is not None and info.num_workers == 2
            if index == 7:
                raise ValueError("no seventh")
            return info.id

    seen: list[int] = []
    loader = DataLoader(Ids(), 1, num_workers=2, worker_init_fn=seen.append)
    with pytest.raises(ValueError, match="no seventh"):
        list(loader)
    assert set(seen) <= {0, 1} and get_worker_info() is None


def test_shuffling_is_seeded() -> None:
    def orders() -> list[list[int]]:
        weft.manual_seed(3)
        loader = DataLoader(Squares(), 5, shuffle=True)
        return [[y for b in loader for y in b["y"].tolist()] for _ in range(2)]

    first, second = orders()
    assert sorted(first) == [i * i for i in range(10)] and first != second and orders() == [first, second]
    own = [list(RandomSampler(range(10), generator=weft.Generator(5))) for _ in range(2)]
    assert own[0] == own[1]


def test_streams() -> None:
    assert [b.tolist() for b in DataLoader(Count(), 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    by_two = [b.tolist() for b in DataLoader(Count(), 3, num_workers=2)]
    assert by_two == [[0, 2, 4], [1, 3, 5], [6, 8], [7, 9]]
    assert list(ChainDataset([Count(), Count()])) == [*range(10), *range(10)]


def test_data_sets() -> None:
    x, y = weft.arange(12.0).reshape(6, 2), weft.arange(6)
    data = TensorDataset(x, y)
    a, b = next(iter(DataLoader(data, 4)))
    assert a.tolist() == x[:4].tolist() and b.tolist() == [0, 1, 2, 3] and len(data) == 6
    assert data[5][1].item() == 5
    joined = ConcatDataset([data, Subset(data, [3, 1])])
    assert len(joined) == 8 and joined[7][1].item() == 1 and joined[-2][1].item() == 3
    assert len(data + data) == 12
    pairs = StackDataset(range(3), "abc")
    assert pairs[1] == (1, "b") and len(pairs) == 3
    parts = random_split(Squares(), [0.5, 0.3, 0.2], weft.Generator(0))
    assert [len(p) for p in parts] == [5, 3, 2]
    assert sorted(i for p in parts for i in p.indices) == list(range(10))
    weights = next(iter(DataLoader(Subset(data, [5, 0]), 2)))[1]
    assert weights.tolist() == [5, 0]


def test_samplers() -> None:
    assert list(BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]]
    assert len(BatchSampler(range(5), 2, True)) == 2
    assert sorted(SubsetRandomSampler([3, 5, 8])) == [3, 5, 8]
    generator = weft.Generator(1)
    drawn = Counter(WeightedRandomSampler([1.0, 0.0, 3.0], 4000, generator=generator))
    assert drawn[1] == 0 and 2.6 < drawn[2] / drawn[0] < 3.5
    assert sorted(WeightedRandomSampler([1.0, 0.0, 3.0], 2, False)) == [0, 2]
    assert len(list(RandomSampler(range(4), num_samples=9))) == 9
    assert set(RandomSampler(range(3), replacement=True, num_samples=50, generator=generator)) == {0, 1, 2}


def test_collating_is_torchs() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    from torch.utils.data import default_collate as theirs

    batch = [
        (1, 2.0, np.ones(2, np.float32), {"k": np.float64(3)}, "s"),
        (2, 3.0, np.zeros(2, np.float32), {"k": np.float64(4)}, "t"),
    ]
    a, b = default_collate(batch), theirs(batch)
    for x, y in zip(a, b, strict=True):
        x, y = (x["k"], y["k"]) if isinstance(x, dict) else (x, y)
        if isinstance(y, torch.Tensor):
            assert x.tolist() == y.tolist() and x.dtype.name == str(y.dtype).removeprefix("torch.")
        else:
            assert x == list(y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DataLoader(Squares(), 0), "DataLoader: batch_size must be at least 1, got 0"),
        (lambda: DataLoader(Count(), shuffle=True), "DataLoader: a stream comes in its own order"),
        (lambda: DataLoader(Squares(), shuffle=True, sampler=[1]), "DataLoader: give a sampler or shuffle"),
        (lambda: DataLoader(Squares(), 2, batch_sampler=[[1]]), "DataLoader: a batch_sampler decides"),
        (
            lambda: DataLoader(Squares(), prefetch_factor=2),
            "prefetch_factor must be at least 1, and needs num_workers",
        ),
        (
            lambda: TensorDataset(weft.zeros(2), weft.zeros(3)),
            "TensorDataset: tensors must agree in their first size",
        ),
        (lambda: random_split(Squares(), [3, 3]), "do not add up to the 10 examples"),
        (lambda: ConcatDataset([Count()]), "ConcatDataset: streams have no index"),
        (lambda: default_collate([object()]), "default_collate: an example holds a object"),
        (lambda: default_collate([[1], [1, 2]]), "sequences of several lengths"),
        (lambda: len(DataLoader(Count())), "Count: has no length"),
        (lambda: WeightedRandomSampler([1.0, -1.0], 2), "weights must be numbers >= 0"),
    ],
)
def test_mistakes(call: Any, message: str) -> None:
    with pytest.raises(weft.WeftError, match=message):
        call()


def test_what_other_libraries_read_of_loaders_and_samplers_to_make_their_own() -> None:
    data = TensorDataset(weft.arange(4))
    assert DataLoader(data).prefetch_factor is None and DataLoader(data, num_workers=1).prefetch_factor == 2
    assert RandomSampler(data)._num_samples is None and RandomSampler(data, num_samples=2)._num_samples == 2
