"""A slice of a result from slices of its inputs is the result's slice, for every op and axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.ir.index import Var, variables
from weft.ir.ops import MOVEMENT, STRUCTURE, Op
from weft.scheduler.realize import evaluate
from weft.scheduler.stream.slices import Slice, Slicer, UnevenError, pushed

Make = Callable[[weft.Tensor, weft.Tensor], weft.Tensor]

# from a (6, 4, 5) tensor and a (4, 5) one
EXPRESSIONS: dict[str, Make] = {
    "elementwise": lambda x, y: weft.where(x > 0, x * 2 + y, y.exp()).to(weft.float64),
    "sum": lambda x, y: x.sum((0, 2)) + y.amax(1),
    "first axis": lambda x, y: x.prod(0),
    "permute": lambda x, y: x.permute(2, 0, 1) * 3,
    "reshape merged": lambda x, y: (x + 1).reshape(24, 5) * 2,
    "reshape split": lambda x, y: (x + 1).reshape(2, 3, 2, 2, 5) * 2,
    "reshape flat": lambda x, y: (x * y).reshape(-1) + 1,
    "ones": lambda x, y: (x + 1).reshape(1, 6, 1, 20).expand(3, 6, 2, 20) * 2,
    "pad": lambda x, y: F.pad(x + 1, (1, 2)) * 2,
    "pad first": lambda x, y: F.pad(x + 1, (0, 0, 0, 0, 1, 1)) * 2,
    "shifted": lambda x, y: x[1:] * x[:-1],
    "steps": lambda x, y: (x[::2] + 1)[:, 1::2] * (x + y)[1::2, 1::2],
    "flip": lambda x, y: (x + 1).flip(0, 2) * 2,
    "windows": lambda x, y: (x + 1).unfold(1, 2, 2) * 2,
    "convolution": lambda x, y: F.conv1d(x, y.reshape(5, 4, 1).expand(5, 4, 2)),
    "its gradient": lambda x, y: F.conv_transpose1d(x, y.reshape(4, 5, 1).expand(4, 5, 2), stride=2),
    "windows added": lambda x, y: F.fold((x + 1)[:, :, :4], (3, 3), (2, 2)) * 2,
    "gather": lambda x, y: (x * 2)[weft.tensor([5, 0, 0, 3])] + y,
    "gather within": lambda x, y: weft.gather(x + 1, 1, weft.tensor([[[3, 0, 1, 1, 2]]]).expand(6, 2, 5)),
    "scatter": lambda x, y: weft.scatter_add(x, 1, weft.zeros(6, 4, 5, dtype=weft.int64), x * 2),
    "concat": lambda x, y: weft.cat([x, x * 2], 1),
    "update": lambda x, y: weft.select_scatter(x * 2, y, 0, 3) + weft.select_scatter(x, x[:, 0] * 2, 1, 2),
    "product": lambda x, y: x @ y.T + weft.arange(4),
    "contiguous": lambda x, y: (x + 1).contiguous().softmax(-1),
    "counted": lambda x, y: x + weft.arange(30.0).reshape(6, 1, 5),
    "constant": lambda x, y: x + weft.full((6, 4, 5), 2.0),
    "random": lambda x, y: x + weft.rand(6, 4, 5),
}


def slices_of(name: str, node: Node) -> list[tuple[Slice, Node]]:
    """Along each axis, slices of 1, and of a larger size, that begin at a multiple of their size."""
    out: list[tuple[Slice, Node]] = []
    for axis, n in enumerate(node.shape):
        for size in {1, max(1, n // 2)}:
            part = Slice(axis, Var(f"{name}_{axis}_{size}".replace(" ", "_"), 0, n // size - 1) * size, size)
            try:
                out.append((part, Slicer().sliced(node, part)))
            except UnevenError as error:
                assert error.multiple > 1
    return out


@pytest.fixture(scope="module")
def operands() -> tuple[weft.Tensor, weft.Tensor]:
    rng = np.random.default_rng(3)
    return weft.tensor(rng.standard_normal((6, 4, 5))), weft.tensor(rng.standard_normal((4, 5)))


def test_slices_of_results(operands: tuple[weft.Tensor, weft.Tensor]) -> None:
    """All slices in one plan, run for the first piece and the last of each."""
    made = [make(*operands).value.node for make in EXPRESSIONS.values()]
    roots = dict(zip(EXPRESSIONS, expand_calls(made), strict=True))
    found = [(name, part, node) for name, root in roots.items() for part, node in slices_of(name, root)]
    whole = dict(zip(roots, evaluate(list(roots.values()), {}), strict=True))
    assert len(found) > 100
    for piece in (0, 1):
        kept = [f for f in found if f[1].start == 0 or roots[f[0]].shape[f[1].axis] // f[1].size > piece]
        numbers = {v.name: piece for _, part, _ in kept for v in variables(part.start)}
        values = evaluate([node for _, _, node in kept], numbers)
        for (name, part, _), got in zip(kept, values, strict=True):
            start = 0 if part.start == 0 else piece * part.size
            wanted = np.take(whole[name].numpy(), range(start, start + part.size), part.axis)
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12, err_msg=f"{name} {part}")


def test_the_test_has_nearly_every_op(operands: tuple[weft.Tensor, weft.Tensor]) -> None:
    made = [make(*operands).value.node for make in EXPRESSIONS.values()]
    seen = {n.op for n in toposort(expand_calls(made))}
    moving = (MOVEMENT | STRUCTURE) - {Op.COPY, Op.LOOP, Op.CALL}
    assert moving <= seen, moving - seen


def test_parts_of_computed_values_are_pushed_to_the_leaves(
    operands: tuple[weft.Tensor, weft.Tensor],
) -> None:
    x, y = operands
    makes = (
        lambda: (x.reshape(2, 3, 20)[1] * 2).sum(0),
        lambda: (x + y)[2:5, 1:3].exp()[1:],
        lambda: (x.sum(2) * 2)[3] + (x * 2).T[1][:, 2],
        lambda: x.softmax(0)[1:2],
        lambda: weft.cat([x, x * 2])[5:8],
    )
    roots = expand_calls([make().value.node for make in makes])
    found = [pushed(n) for n in roots]
    for n in toposort(found[:2]):
        assert n.op is not Op.SHRINK or not n.inputs[0].inputs
    for a, b in zip(evaluate(roots, {}), evaluate(found, {}), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


def test_what_is_needed_whole_is_named(operands: tuple[weft.Tensor, weft.Tensor]) -> None:
    x, _ = operands
    mean = x.mean(0)
    (centred,) = expand_calls([(x - mean).value.node])
    slicer = Slicer()
    slicer.sliced(centred, Slice(0, 2, 2))
    assert [n.shape for n in slicer.whole] == [(1, 4, 5)]
    slicer = Slicer()
    slicer.sliced(centred, Slice(1, 2, 2))
    assert not slicer.whole


def test_the_only_piece_of_its_size_is_a_slice_like_any_other(
    operands: tuple[weft.Tensor, weft.Tensor],
) -> None:
    """Its number is a variable that can only be 0: five rows of six, before a last piece of one."""
    x, _ = operands
    (root,) = expand_calls([((x * 2).permute(1, 0, 2) * 3).value.node])
    slicer = Slicer()
    piece = slicer.sliced(root, Slice(1, Var("only", 0, 0) * 5, 5))
    assert not slicer.whole
    np.testing.assert_allclose(
        evaluate([piece], {})[0].numpy(), evaluate([root], {})[0].numpy()[:, :5], rtol=1e-12
    )


def test_uneven_slices_say_of_which_their_size_is_a_multiple(
    operands: tuple[weft.Tensor, weft.Tensor],
) -> None:
    x, _ = operands  # (6, 4, 5)
    number = Var("number", 0, 5)
    for shape, axis, multiple in (((24, 5), 0, 4), ((120,), 0, 20), ((12, 10), 0, 2)):
        (root,) = expand_calls([(x + 1).reshape(shape).value.node])
        with pytest.raises(UnevenError) as error:
            Slicer().sliced(root, Slice(axis, number, 1))
        assert error.value.multiple == multiple
    (root,) = expand_calls([(x + 1).reshape(6, 2, 10).value.node])
    slicer = Slicer()
    slicer.sliced(root, Slice(2, number, 1))
    assert [n.shape for n in slicer.whole] == [(6, 2, 10)]  # no size of pieces is a slice of x
