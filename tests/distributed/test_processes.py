"""torch.distributed for one process, DistributedDataParallel and DistributedSampler."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import weft
from weft import distributed as dist
from weft.nn.parallel import DistributedDataParallel


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    dist.init_process_group("gloo")
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_collectives_of_one(group: None) -> None:
    assert dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo"
    assert (dist.get_rank(), dist.get_world_size(), dist.get_process_group_ranks()) == (0, 1, [0])
    x, out = weft.arange(4.0), [weft.zeros(4)]
    work = dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True)
    assert work is not None and work.wait() and dist.broadcast(x, 0) is None
    dist.all_gather(out, x)
    assert out[0].tolist() == x.tolist() == [0.0, 1.0, 2.0, 3.0]
    whole, part = weft.zeros(2, 2), weft.zeros(4)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter(part, [x])
    dist.scatter(part, [x * 2])
    assert whole.tolist() == [[0.0, 1.0], [2.0, 3.0]] and part.tolist() == [0.0, 2.0, 4.0, 6.0]
    objects: list[object] = [None]
    dist.all_gather_object(objects, {"a": 1})
    assert objects == [{"a": 1}] and dist.new_group([0]).size() == 1
    dist.barrier()
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group("gloo")
    with pytest.raises(ValueError, match="rank 1 is not in the group"):
        dist.broadcast(x, 1)
    with pytest.raises(ValueError, match="1 entry"):
        dist.all_gather([weft.zeros(4), weft.zeros(4)], x)
    with pytest.raises(ValueError, match="same as the rank"):
        dist.send(x, 0)
    dist.destroy_process_group()
    assert not dist.is_initialized()


def test_more_than_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="one process, not as rank 0 of 2"):
        dist.init_process_group("nccl", world_size=2, rank=0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(ValueError, match="rank 3 of 4"):
        dist.init_process_group("nccl")
    with pytest.raises(ValueError, match="make sure to call init_process_group"):
        dist.all_reduce(weft.ones(1))
    assert not dist.is_initialized()


def test_data_parallel_wraps(group: None) -> None:
    layer = weft.nn.Linear(2, 1)
    model = DistributedDataParallel(layer, device_ids=None, find_unused_parameters=True)
    x = weft.ones(3, 2)
    assert model.module is layer and list(model.state_dict()) == ["module.weight", "module.bias"]
    with model.no_sync():
        assert not model.require_backward_grad_sync
        model(x).sum().backward()
    assert model.require_backward_grad_sync and layer.weight.grad is not None
    assert model(x).tolist() == layer(x).tolist() and not model.eval().module.training
    with pytest.raises(RuntimeError, match="doesn't have any parameter"):
        DistributedDataParallel(weft.nn.ReLU())


def test_samplers_give_torchs_order() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    from torch.utils.data.distributed import DistributedSampler as Theirs
    from weft.utils.data.distributed import DistributedSampler

    assert torch is not None
    for size, replicas, drop, shuffle, epoch in itertools.product(
        [1, 10, 17], [1, 3], [False, True], [False, True], [0, 3]
    ):
        for rank in range(replicas):
            mine, theirs = (
                kind(list(range(size)), replicas, rank, shuffle, 5, drop)
                for kind in (DistributedSampler, Theirs)
            )
            mine.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert list(mine) == list(theirs) and len(mine) == len(theirs)
    with pytest.raises(ValueError, match="Invalid rank"):
        DistributedSampler([1], 2, 2)
