"""Products summed over shared dimensions, in one form: both sides expanded to (..., m, n, k), MUL, SUM over k."""
# Tests: tests/core/test_against_torch.py

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from weft.autograd.context import grad_mode
from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis
from weft.core.args.handle import Handle, Number, describe, value_of, wrap
from weft.core.args.requirements import at_most_dims, needs, one_dtype
from weft.core.composed.autocast import lowers
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.layout.movement import diagonal, permute
from weft.core.views import views
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import accumulator, bool_, int64, promote
from weft.ir.graph import Axes, ProductAxes, Shape, elements
from weft.ir.index import Int
from weft.ir.numerics import pinned
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def _pair(op: str, x: Tensor, y: Tensor) -> tuple[Value, Value]:
    """Both values; they must be on one device and of one dtype (torch does not promote here either)."""
    a, b = value_of(op, x), value_of(op, y)
    if a.dtype is not b.dtype:
        raise DTypeError(
            f"{op}: both tensors must have one dtype, got {a.dtype.name} and {b.dtype.name}; convert one with .to(...)"
        )
    if a.dtype is bool_:
        raise DTypeError(f"{op}: not defined on bool; convert both with .to(...)")
    bc.same_device(op, (a, b))
    return a, b


def _contract(a: Value, b: Value, over: int) -> Value:
    """SUM of MUL over the last `over` axes; a and b broadcast. Narrow floats are rounded once, at the end."""
    shape = bc.broadcast_shape("matmul", (a.shape, b.shape))
    wide = accumulator(a.dtype)
    over_axes = tuple(range(len(shape) - over, len(shape)))
    return bc.cast(_summed(bc.cast(a, wide), bc.cast(b, wide), shape, over_axes), a.dtype)


def _summed(a: Value, b: Value, shape: Shape, over: tuple[int, ...]) -> Value:
    """The sum over the axes `over` of a * b, both expanded to `shape`. In the mode "same" its gradients are sums of
    products, too, which say so: one rounding for each term."""
    if not pinned():
        return apply(Op.SUM, (apply(Op.MUL, (bc.expand(a, shape), bc.expand(b, shape))),), Axes(over))
    a, b = (bc.reshape(v, (*(1 for _ in shape[len(v.shape) :]), *v.shape)) for v in (a, b))
    with grad_mode(False):
        total = apply(Op.SUM, (apply(Op.MUL, (bc.expand(a, shape), bc.expand(b, shape))),), ProductAxes(over))
    kept = tuple(1 if k in over else n for k, n in enumerate(shape))

    def grads(g: Value, _out: Value, a: Value, b: Value) -> tuple[Value, Value]:
        g = bc.reshape(g, kept)
        return _gradient(g, b, a.shape, shape), _gradient(g, a, b.shape, shape)

    return composed(total.node, (a, b), grads)


def _gradient(g: Value, other: Value, own: Shape, shape: Shape) -> Value:
    """The gradient of a factor of shape `own`: g times the other factor, summed where it was expanded."""
    over = tuple(k for k, (n, m) in enumerate(zip(own, shape, strict=True)) if n != m)
    if not over:
        return apply(Op.MUL, (bc.expand(g, shape), bc.expand(other, shape)))
    return bc.reshape(_summed(g, other, shape, over), own)


def _swap_last(v: Value) -> Value:
    rank = len(v.shape)
    return apply(Op.PERMUTE, (v,), Axes((*range(rank - 2), rank - 1, rank - 2)))


@composite(autocast=lowers, rounds_once=False)
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product over the last two dimensions; those before broadcast. Vectors count as a row or a column.

    Shapes: (..., m, k) @ (..., k, n) -> (..., m, n); (k) @ (k) -> (). 16-bit floats accumulate in float32.
    """
    a, b = _pair("matmul", input, other)
    if not a.shape or not b.shape:
        raise ShapeError(
            f"matmul: both tensors need at least 1 dimension, got {tuple(a.shape)} and {tuple(b.shape)}; "
            "use * for scalars"
        )
    k_other = b.shape[0] if len(b.shape) == 1 else b.shape[-2]
    if a.shape[-1] != k_other:
        raise ShapeError(
            f"matmul: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit: the last dimension of the first is "
            f"{a.shape[-1]}, and the {'only' if len(b.shape) == 1 else 'second last'} one of the second {k_other}"
        )
    return wrap(_matmul(a, b))


def _matmul(a: Value, b: Value) -> Value:
    k = a.shape[-1]
    if len(a.shape) == 1 and len(b.shape) == 1:
        return _contract(a, b, 1)
    if len(b.shape) == 1:
        return _contract(a, b, 1)
    columns = _swap_last(b)
    if len(a.shape) == 1:
        return _contract(a, columns, 1)
    rows = bc.reshape(a, (*a.shape[:-1], 1, k))
    columns = bc.reshape(columns, (*columns.shape[:-2], 1, *columns.shape[-2:]))
    return _contract(rows, columns, 1)


def rmatmul(input: Tensor, other: Tensor) -> Tensor:
    """other @ input."""
    return matmul(other, input)


def _ranks(op: str, x: Tensor, y: Tensor, ranks: tuple[int, int]) -> None:
    a, b = value_of(op, x).shape, value_of(op, y).shape
    if (len(a), len(b)) != ranks:
        raise ShapeError(
            f"{op}: needs tensors of {ranks[0]} and {ranks[1]} dimensions, got shapes {tuple(a)} and {tuple(b)}; "
            f"matmul takes any"
        )
    if a[-1] != b[-2 if ranks[1] > 1 else -1] or (len(a) == 3 and a[0] != b[0]):
        raise ShapeError(f"{op}: shapes {tuple(a)} and {tuple(b)} do not fit")


@lowers
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices."""
    _ranks("mm", input, mat2, (2, 2))
    return matmul(input, mat2)


@lowers
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two batches of matrices: (b, m, k), (b, k, n) -> (b, m, n)."""
    _ranks("bmm", input, mat2, (3, 3))
    return matmul(input, mat2)


@lowers
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector."""
    _ranks("mv", input, vec, (2, 1))
    return matmul(input, vec)


def dot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors."""
    _ranks("dot", input, other, (1, 1))
    return matmul(input, other)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The products of all elements of one vector with all of another."""
    a, b = value_of("outer", input), value_of("outer", vec2)
    if len(a.shape) != 1 or len(b.shape) != 1:
        raise ShapeError(f"outer: needs two vectors, got shapes {tuple(a.shape)} and {tuple(b.shape)}")
    return wrap(bc.reshape(a, (a.shape[0], 1))) * wrap(bc.reshape(b, (1, b.shape[0])))


def mul_scaled(input: Tensor, product: Tensor, beta: Number, alpha: Number) -> Tensor:
    """beta * input + alpha * product, in float32 for 16-bit floats; what is times 0 is not looked at.

    Integers take only the whole part of alpha and beta, bools whether they are zero, as in torch.
    """
    v, p = value_of("addmm", input), product.value
    dtype = promote(v.dtype, p.dtype)
    if dtype is bool_:
        scaled = product if alpha else wrap(bc.scalar(False, bool_, p.shape))
        return scaled | input if beta else scaled
    if not dtype.is_float:
        alpha, beta = int(alpha), int(beta)
    wide = wrap(widened(bc.cast(p, dtype)))
    scaled = wide if alpha == 1 else wide * alpha
    if beta:
        start = wrap(widened(bc.cast(v, dtype)))
        scaled = (start if beta == 1 else start * beta) + scaled
    return wrap(bc.cast(scaled.value, dtype))


@composite(autocast=lowers)
@needs(one_dtype("input", "mat1", "mat2"), at_most_dims("input", 2))
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2)."""
    _ranks("addmm", mat1, mat2, (2, 2))
    return mul_scaled(input, matmul(mat1, mat2), beta, alpha)


@composite(autocast=lowers)
@needs(one_dtype("input", "batch1", "batch2"), at_most_dims("input", 3))
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2)."""
    _ranks("baddbmm", batch1, batch2, (3, 3))
    return mul_scaled(input, matmul(batch1, batch2), beta, alpha)


@composite(autocast=lowers)
@needs(one_dtype("input", "mat", "vec"), at_most_dims("input", 1))
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec)."""
    _ranks("addmv", mat, vec, (2, 1))
    return mul_scaled(input, matmul(mat, vec), beta, alpha)


def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """The sum over pairs of dimensions: the last `dims` of a with the first of b, or the two lists given."""
    u, v = _pair("tensordot", a, b)
    if isinstance(dims, int):
        left, right = tuple(range(len(u.shape) - dims, len(u.shape))), tuple(range(dims))
    else:
        if len(dims) != 2 or len(dims[0]) != len(dims[1]):
            raise ArgumentError(f"tensordot: dims must be an int or two lists of one length, got {dims}")
        left = tuple(axis("tensordot", d, u.shape) for d in dims[0])
        right = tuple(axis("tensordot", d, v.shape) for d in dims[1])
    # as torch: a size of 1 is stretched, that is, the other side is summed first
    one_a = tuple(i for i, j in zip(left, right, strict=True) if u.shape[i] != v.shape[j] and v.shape[j] == 1)
    one_b = tuple(j for i, j in zip(left, right, strict=True) if u.shape[i] != v.shape[j] and u.shape[i] == 1)
    if one_a or one_b:
        from weft.core.functions.reductions import sum

        a = sum(a, one_a, keepdim=True, dtype=u.dtype) if one_a else a
        b = sum(b, one_b, keepdim=True, dtype=v.dtype) if one_b else b
        u, v = a.value, b.value
    if any(u.shape[i] != v.shape[j] for i, j in zip(left, right, strict=True)):
        raise ShapeError(
            f"tensordot: dimensions {left} of {tuple(u.shape)} and {right} of {tuple(v.shape)} differ in size"
        )
    free_a = tuple(k for k in range(len(u.shape)) if k not in left)
    free_b = tuple(k for k in range(len(v.shape)) if k not in right)
    k = elements(tuple(u.shape[i] for i in left))
    m_shape, n_shape = tuple(u.shape[i] for i in free_a), tuple(v.shape[i] for i in free_b)
    rows = bc.reshape(permute(a, (*free_a, *left)).value, (elements(m_shape), 1, k))
    columns = bc.reshape(permute(b, (*free_b, *right)).value, (1, elements(n_shape), k))
    return wrap(bc.reshape(_contract(rows, columns, 1), (*m_shape, *n_shape)))


# ---------------------------------------------------------------------------------------------- einsum


@lowers
def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sums of products by labels, as numpy.einsum: "ij,jk->ik" is a matrix product, "..." any dimensions.

    In place of an equation, each operand may be followed by a list of its labels, numbers 0 to 51 or ..., and all of
    them by the labels of the result.
    """
    if isinstance(equation, Handle) and operands:
        equation, operands = _as_equation(equation, *operands)
    if not isinstance(equation, str):
        raise ArgumentError(
            f"einsum: the equation must be a string such as 'ij,jk->ik' and come first, got {describe(equation)}"
        )
    tensors: list[Tensor] = []
    for x in operands:
        tensors += list(cast("Sequence[Tensor]", x)) if isinstance(x, Sequence) else [x]
    values = [value_of("einsum", x) for x in tensors]
    inputs, output = _parse(equation, [v.shape for v in values])
    _label_sizes(equation, inputs, values)
    if len(tensors) == 1 and set(output) == set(inputs[0]):
        return _rearranged(tensors[0], (inputs[0], output))
    return _contracted(",".join(inputs), output, *tensors)


@composite(rounds_once=False)
def _contracted(left: str, output: str, *operands: Tensor) -> Tensor:
    """The sum of products of operands with such labels, which fit."""
    values, inputs = [x.value for x in operands], left.split(",")
    size = _label_sizes(left, inputs, values)
    terms = [_diagonals(v, labels) for v, labels in zip(values, inputs, strict=True)]
    v, labels = terms[0]
    for i, (other, other_labels) in enumerate(terms[1:], 1):
        later = {label for _, rest in terms[i + 1 :] for label in rest} | set(output)
        v, labels = _multiply(v, labels, other, other_labels, later, output, size)
    return wrap(_finish(v, labels, output))


@views.viewing
def _rearranged(x: Tensor, labels: tuple[str, str]) -> Tensor:
    """One operand of which nothing is summed: diagonals, and axes in another order. A view, as in torch."""
    return wrap(_finish(*_diagonals(x.value, labels[0]), labels[1]))


def _as_equation(*arguments: Any) -> tuple[str, tuple[Any, ...]]:
    """The equation and the operands of (operand, labels, operand, labels, ..., labels of the result if given)."""

    def letters(labels: Any) -> str:
        if not isinstance(labels, (list, tuple)):
            raise ArgumentError(
                f"einsum: each operand must be followed by a list of its labels, got {describe(labels)}"
            )
        out = ""
        for label in cast("Sequence[Any]", labels):
            if label is not Ellipsis and not (isinstance(label, int) and 0 <= label < len(_LABELS)):
                raise ArgumentError(f"einsum: a label must be a number from 0 to 51 or ..., got {label!r}")
            out += "..." if label is Ellipsis else _LABELS[label]
        return out

    pairs = len(arguments) // 2
    equation = ",".join(letters(x) for x in arguments[1 : 2 * pairs : 2])
    if len(arguments) % 2:
        equation += "->" + letters(arguments[-1])
    return equation, arguments[0 : 2 * pairs : 2]


_LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # in this order, as torch sorts them


def _parse(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, with "..." written out in upper private letters."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(shapes):
        raise ArgumentError(f"einsum: {equation!r} names {len(inputs)} operands, but got {len(shapes)}")
    ranks = [
        len(s) - len(t.replace("...", "")) if "..." in t else 0 for t, s in zip(inputs, shapes, strict=True)
    ]
    extra = max(ranks)
    dots = "".join(chr(0x100 + i) for i in range(extra))
    full: list[str] = []
    for t, rank, shape in zip(inputs, ranks, shapes, strict=True):
        labels = t.replace("...", dots[extra - rank :] if rank > 0 else "")
        if not all(c.isalpha() for c in labels) or len(labels) != len(shape):
            raise ArgumentError(
                f"einsum: {t!r} in {equation!r} does not fit an operand of shape {tuple(shape)}"
            )
        full.append(labels)
    if arrow:
        out = right.replace("...", dots)
    else:
        every = "".join(full)
        out = dots + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in dots))
    if len(set(out)) != len(out) or any(c not in "".join(full) for c in out):
        raise ArgumentError(
            f"einsum: the result {right!r} of {equation!r} must have distinct labels of the operands"
        )
    return full, out


def _label_sizes(equation: str, inputs: Sequence[str], values: Sequence[Value]) -> dict[str, Int]:
    size: dict[str, Int] = {}
    for labels, v in zip(inputs, values, strict=True):
        for label, n in zip(labels, v.shape, strict=True):
            if size.setdefault(label, n) == 1:
                size[label] = n
            elif n != 1 and n != size[label]:
                raise ShapeError(f"einsum: label {label!r} of {equation!r} has size {size[label]} and {n}")
    return size


def _diagonals(v: Value, labels: str) -> tuple[Value, str]:
    """Labels that an operand repeats name its diagonal."""
    x = wrap(v)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i, j = [k for k, c in enumerate(labels) if c == label][:2]
            x = diagonal(x, 0, i, j)
            labels = "".join(c for k, c in enumerate(labels) if k not in (i, j)) + label
    return x.value, labels


def _aligned(v: Value, labels: str, order: str) -> Value:
    """`v` with its axes in `order`, size 1 for labels it lacks."""
    present = [labels.index(c) for c in order if c in labels]
    x = v if present == list(range(len(labels))) else apply(Op.PERMUTE, (v,), Axes(tuple(present)))
    sizes = dict(zip(labels, v.shape, strict=True))
    return bc.reshape(x, tuple(sizes.get(c, 1) for c in order))


def _multiply(
    a: Value, left: str, b: Value, right: str, later: set[str], output: str, size: dict[str, Int]
) -> tuple[Value, str]:
    """The product of two terms, summed over the labels that nothing later needs."""
    _pair("einsum", wrap(a), wrap(b))
    every = dict.fromkeys(left + right)
    keep = [c for c in output if c in every] + [c for c in every if c in later and c not in output]
    gone = [c for c in every if c not in later]
    order = "".join(keep + gone)
    x, y = _aligned(a, left, order), _aligned(b, right, order)
    shape = tuple(size[c] for c in order)
    over = tuple(range(len(keep), len(order)))
    if not over:
        return apply(Op.MUL, (bc.expand(x, shape), bc.expand(y, shape))), "".join(keep)
    return bc.cast(_summed(widened(x), widened(y), shape, over), a.dtype), "".join(keep)


def _finish(v: Value, labels: str, output: str) -> Value:
    """Sum over what is left, integers and bools in int64 as `sum` does, and put the axes in the order of the result."""
    over = tuple(k for k, c in enumerate(labels) if c not in output)
    if over:
        v = apply(Op.SUM, (v if v.dtype.is_float else bc.cast(v, int64),), Axes(over))
    return _aligned(v, "".join(c for c in labels if c in output), output)
