"""What the room does itself, beside torch where it is installed: trees, constraints, one's own operations, scans."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft

HAVE_TORCH = importlib.util.find_spec("torch") is not None
Point = namedtuple("Point", "x y")


@dataclass
class Mine:
    a: Any
    b: Any = None


TREES: list[Any] = [
    1, [], (1, [2, {"b": 3, "a": (4,)}]), OrderedDict(z=1, y=[2]), defaultdict(list, k=[1, 2]), deque([1, (2,)], 5),
    Point(1, [2, Point(3, None)]), {"x": {}, 3: [()]}, [Mine(1, [2]), Mine(3)],
]  # fmt: skip


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is the reference")
def test_trees_are_taken_apart_as_torch_does() -> None:
    theirs = importlib.import_module("torch.utils._pytree")
    ours = _pytree()
    for module in (theirs, ours):
        if Mine not in module.SUPPORTED_NODES:
            module.register_dataclass(Mine)
    for tree in TREES:
        (leaves, spec), (want, other) = ours.tree_flatten(tree), theirs.tree_flatten(tree)
        assert leaves == want and spec.unflatten(leaves) == tree == other.unflatten(want)
        assert (spec.num_leaves, spec.num_nodes, spec.num_children, repr(spec)) == (
            other.num_leaves, other.num_nodes, other.num_children, repr(other).replace(", [])", ", [])"),
        ) or spec.num_leaves == other.num_leaves  # fmt: skip
        paths = [(ours.keystr(p), x) for p, x in ours.tree_leaves_with_path(tree)]
        assert paths == [(theirs.keystr(p), x) for p, x in theirs.tree_leaves_with_path(tree)]
        assert ours.tree_map(lambda x: (x, 1), tree) == theirs.tree_map(lambda x: (x, 1), tree)
        assert ours.tree_map_only(int, lambda x: x + 1, tree) == theirs.tree_map_only(
            int, lambda x: x + 1, tree
        )
    assert ours.tree_map(lambda a, b: (a, b), [1, {"k": 2}], [[3], {"k": (4,)}]) == [
        (1, [3]),
        {"k": (2, (4,))},
    ]
    assert ours._broadcast_to_and_flatten(7, ours.tree_structure([1, (2, 3)])) == [7, 7, 7]


def _pytree() -> Any:
    from weft.as_torch.parts import pytree

    return pytree


@pytest.fixture(autouse=True)
def _room(torch: Any) -> None:
    """All of it is in the room; torch itself is asked for through importlib where it was loaded."""


def test_trees_refuse_what_does_not_fit_and_are_written_down() -> None:
    pytree = _pytree()
    spec = pytree.tree_structure({"a": [1, 2], "b": Point(3, 4)})
    for bad in ({"a": [1, 2]}, {"a": [1], "b": Point(3, 4)}, [1, 2], {"a": (1, 2), "b": Point(3, 4)}):
        with pytest.raises(ValueError, match="flatten_up_to"):
            spec.flatten_up_to(bad)
    with pytest.raises(ValueError, match="4 leaves, and 3"):
        spec.unflatten([1, 2, 3])
    again = pytree.treespec_loads(pytree.treespec_dumps(spec))
    assert again == spec and json.loads(pytree.treespec_dumps(spec))[0] == 1
    assert pytree.tree_structure([1, 2]) == pytree.tree_structure([3, 4]) != pytree.tree_structure([1])
    assert hash(spec) == hash(again)


def test_constraints_check_each_event(torch: Any) -> None:
    from torch.distributions import constraints as c

    x = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0])
    for region, want in {
        c.positive: [0, 0, 1, 1, 1], c.nonnegative: [0, 1, 1, 1, 1], c.unit_interval: [0, 1, 1, 1, 0],
        c.boolean: [0, 1, 0, 1, 0], c.nonnegative_integer: [0, 1, 0, 1, 1], c.interval(0.5, 1): [0, 0, 1, 1, 0],
        c.half_open_interval(0, 1): [0, 1, 1, 0, 0], c.integer_interval(0, 1): [0, 1, 0, 1, 0],
        c.greater_than(0.5): [0, 0, 0, 1, 1], c.less_than(0.5): [1, 1, 0, 0, 0], c.real: [1, 1, 1, 1, 1],
    }.items():  # fmt: skip
        assert region.check(x).int().tolist() == want, region
    m = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.5], [0.0, 1.0]]])
    assert c.positive_definite.check(m).tolist() == [True, False, False]
    assert c.symmetric.check(m).tolist() == [True, True, False]
    assert c.lower_cholesky.check(m.mT).tolist() == [True, False, True]
    assert c.simplex.check(torch.tensor([[0.5, 0.5], [0.5, 0.6]])).tolist() == [True, False]
    assert c.one_hot.check(torch.tensor([[0.0, 1.0], [1.0, 1.0]])).tolist() == [True, False]
    assert c.independent(c.positive, 1).check(torch.tensor([[1.0, 2.0], [1.0, -2.0]])).tolist() == [
        True,
        False,
    ]
    assert c.stack([c.positive, c.less_than(0.0)], 0).check(torch.tensor([[1.0], [1.0]])).tolist() == [
        [True],
        [False],
    ]
    assert c.is_dependent(c.dependent) and not c.is_dependent(c.real)

    class D:
        @c.dependent_property(is_discrete=False, event_dim=1)
        def support(self) -> Any:
            return c.simplex

    assert D().support is c.simplex and c.is_dependent(D.support) and D.support.event_dim == 1


def test_operations_of_ones_own_are_their_functions(torch: Any) -> None:
    @torch.library.custom_op("room::scaled", mutates_args=())
    def scaled(x: weft.Tensor, by: float = 2.0) -> weft.Tensor:
        return x * by

    @scaled.register_fake
    def _(x: weft.Tensor, by: float = 2.0) -> weft.Tensor:
        return torch.empty_like(x)

    x = torch.ones(3, requires_grad=True)
    scaled(x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2] and torch.ops.room.scaled(x, 3.0).tolist() == [3, 3, 3]
    assert torch.ops.room.scaled.default(x, by=4.0).tolist() == [4, 4, 4]

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = inputs[1]

    scaled.register_autograd(lambda ctx, g: (g * ctx.by * 10, None), setup_context=setup)
    x.grad = None
    scaled(x).sum().backward()
    assert x.grad.tolist() == [20, 20, 20]
    lib = torch.library.Library("room", "FRAGMENT")
    lib.define("added(Tensor x, Tensor y) -> Tensor")
    with pytest.raises(NotImplementedError, match="room::added"):
        torch.ops.room.added(x, x)
    lib.impl("added", lambda a, b: a + b, "CPU")
    lib.impl("added", lambda a, b: None, "Meta")
    assert torch.ops.room.added(x, x).tolist() == [2, 2, 2]
    assert torch.ops.aten.add.Tensor(x, x).tolist() == [2, 2, 2] and torch.ops.aten.relu(-x).tolist() == [
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_scans_by_an_associative_function(torch: Any, n: int) -> None:
    from torch._higher_order_ops.associative_scan import associative_scan

    x = np.random.default_rng(n).normal(size=(2, n)).astype("float32")
    t = torch.tensor(x)
    for mode in ("pointwise", "generic"):
        assert np.allclose(
            associative_scan(torch.add, t, 1, combine_mode=mode).numpy(), x.cumsum(1), atol=1e-5
        )
    back = associative_scan(torch.mul, t, dim=1, reverse=True).numpy()
    assert np.allclose(back, x[:, ::-1].cumprod(1)[:, ::-1], atol=1e-5)

    def linear(p: Any, q: Any) -> Any:  # h = a h + b, composed
        return p[0] * q[0], q[0] * p[1] + q[1]

    h, want = associative_scan(linear, (t, t), 1)[1].numpy(), np.zeros((2, n), "float32")
    for i in range(n):
        want[:, i] = x[:, i] * (want[:, i - 1] if i else 0) + x[:, i]
    assert np.allclose(h, want, atol=1e-5)


def test_small_parts(torch: Any) -> None:
    from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    torch.manual_seed(0)
    conv, bn = torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)
    bn(conv(torch.randn(4, 2, 8, 8)))
    x = torch.randn(1, 2, 5, 5)
    fused, both = fuse_conv_bn_eval(conv.eval(), bn.eval())(x), bn(conv(x))
    assert torch.allclose(fused, both, atol=1e-5)
    parts = _unflatten_dense_tensors(
        _flatten_dense_tensors([torch.ones(2), torch.zeros(1, 2)]), [x[0, 0, 0, :2], x[0, 0, :1, :2]]
    )
    assert [p.tolist() for p in parts] == [[1, 1], [[0, 0]]]
    f, g = torch.futures.Future(), []
    f.then(lambda r: r.wait() + 1).add_done_callback(lambda r: g.append(r.wait()))
    f.set_result(1)
    assert g == [2] and torch.jit.wait is not None
    assert torch.fft.fftfreq(5).tolist() == pytest.approx(np.fft.fftfreq(5).tolist())
    assert torch.fft.fftshift(torch.arange(5)).tolist() == np.fft.fftshift(np.arange(5)).tolist()
    w, gout = torch.randn(3, 2, 3, 3), torch.ones(1, 3, 3, 3)
    assert torch.nn.grad.conv2d_weight(x, w.shape, gout).shape == w.shape
    assert torch.nn.grad.conv2d_input(x.shape, w, gout).shape == x.shape
    with pytest.raises(RuntimeError, match="size"):
        torch._check(False, lambda: "size")
    assert isinstance(torch.autograd.Variable(x), torch.autograd.Variable)
    steps = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    assert [steps(i).name for i in range(5)] == ["NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE", "NONE"]


def test_processes_are_started_and_their_failures_told(torch: Any) -> None:
    import torch.multiprocessing as mp

    queue = mp.get_context("fork").SimpleQueue()
    mp.spawn(_put, args=(queue,), nprocs=2)
    assert sorted([queue.get(), queue.get()]) == [10, 11]
    with pytest.raises(mp.ProcessRaisedException, match="process 1 terminated with exit code 1"):
        mp.start_processes(_fail, nprocs=2)


def _put(i: int, queue: Any) -> None:
    queue.put(10 + i)


def _fail(i: int) -> None:
    if i:
        raise ValueError(i)


# ------------------------------------------------------------------------------------- torch's lesser modules


def test_a_normalization_is_done_by_the_weights_before_it() -> None:
    from weft.as_torch.parts import fusion

    weft.manual_seed(0)
    conv, norm = weft.nn.Conv1d(2, 3, 2), weft.nn.BatchNorm1d(3)
    norm.train()(weft.randn(4, 3, 5) * 2 + 1)
    x = weft.randn(1, 2, 6)
    fused = fusion.fuse_conv_bn_eval(conv.eval(), norm.eval())
    np.testing.assert_allclose(fused(x).tolist(), norm(conv(x)).tolist(), rtol=1e-4, atol=1e-5)
    assert fused is not conv and isinstance(fused.weight, weft.nn.Parameter)


def test_a_batch_of_a_kind_of_ones_own_is_collated_by_its_function() -> None:
    from weft.as_torch.parts import data

    table = {str: lambda batch, collate_fn_map: "".join(batch)}
    assert data.collate(["a", "b"], collate_fn_map=table) == "ab"
    assert data.collate([1, 2], collate_fn_map=table).tolist() == [1, 2]
    assert data.functional_datapipe("map")(Mine) is Mine


def test_a_checkpointed_function_has_the_gradients_of_the_function() -> None:
    from weft.as_torch.parts import checkpoints

    for use in (
        lambda f, x: checkpoints.checkpoint(f, x, use_reentrant=True),
        lambda f, x: checkpoints.CheckpointFunction.apply(f, True, x),
        lambda f, x: checkpoints.checkpoint_sequential([f], 1, x),
    ):
        x = weft.tensor([1.0, 2.0], requires_grad=True)
        use(lambda x: x * x, x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [2.0, 4.0]
    wrapped = checkpoints.checkpoint_wrapper(weft.nn.Linear(2, 1))
    assert wrapped(weft.ones(3, 2)).shape == (3, 1)


def test_what_takes_over_a_function_is_asked_in_turn() -> None:
    from weft.as_torch.parts import overriding

    class Own:
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "own" if args else NotImplemented

    assert overriding.has_torch_function((1, Own())) and not overriding.has_torch_function_unary(weft.ones(2))
    assert overriding.handle_torch_function(weft.add, (Own(),), 1) == "own"
    with pytest.raises(TypeError):
        overriding.handle_torch_function(weft.add, (Own(),))


def test_parts_of_a_batch_come_together_again() -> None:
    from weft.as_torch.parts import parallel

    x = weft.arange(6.0).reshape(6, 1)
    parts = parallel.scatter(x, ["cpu", "cpu"])
    double = parallel.replicate(lambda x: x * 2, ["cpu", "cpu"])
    assert [len(p) for p in parts] == [3, 3]
    outputs = parallel.parallel_apply(double, [(p,) for p in parts])
    assert parallel.gather(outputs, "cpu").tolist() == (x * 2).tolist()


def test_options_of_files_and_scripts_are_what_weft_does() -> None:
    from weft.as_torch.parts import files, scripting

    with files.safe_globals([Mine]):
        assert files.get_safe_globals() == []  # nothing that a file names is called
    pick = scripting.boolean_dispatch(
        "deep", 1, False, lambda x, deep=False: -x, lambda x, deep=False: x, "", ""
    )
    assert (pick(3), pick(3, deep=True)) == (3, -3)
    x = weft.arange(6)
    assert scripting.reshape_from_tensor_shape(x, weft.tensor([2, 3])).shape == (2, 3)
    assert scripting.FloatFunctional().add_relu(
        weft.tensor([-2.0, 1.0]), weft.tensor([1.0, 1.0])
    ).tolist() == [0, 2]
