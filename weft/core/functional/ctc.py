"""Connectionist temporal classification."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.autograd.value import Value, apply
from weft.core.args import broadcast as bc
from weft.core.args.axes import known_sizes
from weft.core.args.handle import Handle, value_of, wrap
from weft.core.composed.autocast import widens
from weft.core.composed.precision import widened
from weft.core.execute import run
from weft.core.functional.losses import how_reduced, reduced
from weft.core.functions.reductions import mean, sum
from weft.core.grad.scan import scan
from weft.core.layout.creation import place, tensor
from weft.core.layout.gather import gather, index_value
from weft.core.layout.movement import box, pad_value, positions
from weft.core.pointwise.elementwise import clamp, eq, exp, gt, log, logical_and, lt, maximum, ne, where
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import int64
from weft.ir.graph import Along, Axes
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_NEVER = -1e30
"""The logarithm of a probability of 0: finite, so that differences of two are no NaN."""


@widens
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the probability that log_probs, with repetitions merged and blanks dropped, spell the targets.

    Shapes: log_probs (T, n, classes) or (T, classes), from log_softmax; targets (n, S), or all of them one after the
    other (sum of target_lengths); lengths (n). "mean" divides each loss by its target's length. Lengths of targets
    that stand in one row must be known now. As torch's, the gradient is that for log_probs of one distribution.
    Source: Graves et al., ICML 2006.
    """
    how = how_reduced("ctc_loss", None, None, reduction)
    v = value_of("ctc_loss", log_probs)
    if len(v.shape) not in (2, 3) or not v.dtype.is_float:
        raise ShapeError(
            f"ctc_loss: log_probs must be floats (T, n, classes) or (T, classes), got {v.dtype.name} {tuple(v.shape)}"
        )
    single = len(v.shape) == 2
    x = widened(bc.reshape(v, (v.shape[0], 1, v.shape[1])) if single else v)
    steps, n, classes = known_sizes("ctc_loss", x.shape)
    if not 0 <= blank < classes:
        raise ArgumentError(f"ctc_loss: blank must be a class from 0 to {classes - 1}, got {blank}")
    long, lengths = (
        _lengths(name, given, n)
        for name, given in (("input_lengths", input_lengths), ("target_lengths", target_lengths))
    )
    _within("input_lengths", long, steps)
    labels = _padded_targets(targets, lengths, n, single)
    home = x.node.device or labels.node.device
    if home is not None:  # as in torch, lengths may be on the CPU
        long, lengths = (place(t, home) for t in (long, lengths))
    loss = _loss(x, labels, long, lengths, blank)
    none = gt(loss, -_NEVER / 10)
    loss = where(none, 0.0 if zero_infinity else math.inf, loss)
    if how == "mean":
        loss = mean(loss / clamp(wrap(bc.cast(lengths, x.dtype)), min=1.0))
    else:
        loss = reduced(loss, how)
    out = loss.value
    return wrap(bc.cast(bc.reshape(out, ()) if single and how == "none" else out, v.dtype))


def _lengths(name: str, given: Tensor | Sequence[int], n: int) -> Value:
    v = index_value("ctc_loss", given if isinstance(given, Handle) else tensor(np.asarray(given, np.int64)))
    if v.shape not in ((n,), ()) or (v.shape == () and n != 1):
        raise ShapeError(f"ctc_loss: {name} must be {n} integers, got shape {tuple(v.shape)}")
    return bc.cast(bc.reshape(v, (n,)), int64)


def _within(name: str, lengths: Value, most: int) -> None:
    known = run.host_array(lengths.node)
    if known is not None and known.size and not (known.min() >= 0 and known.max() <= most):
        raise ArgumentError(f"ctc_loss: {name} must be from 0 to {most}, got {known.tolist()}")


def _padded_targets(targets: Tensor, lengths: Value, n: int, single: bool) -> Value:
    """The targets as (n, S)."""
    y = index_value("ctc_loss", targets)
    if len(y.shape) == 2:
        if y.shape[0] != n:
            raise ShapeError(f"ctc_loss: targets of shape {tuple(y.shape)} need {n} rows")
        _within("target_lengths", lengths, known_sizes("ctc_loss", y.shape)[1])
        return bc.cast(y, int64)
    if len(y.shape) != 1:
        raise ShapeError(f"ctc_loss: targets must be (n, S) or one row, got shape {tuple(y.shape)}")
    if single:
        return bc.cast(bc.reshape(y, (1, *y.shape)), int64)
    counts = run.to_numpy(lengths.node)
    total = known_sizes("ctc_loss", y.shape)[0]
    if int(counts.sum()) != total:
        raise ArgumentError(
            f"ctc_loss: target_lengths {counts.tolist()} do not add up to the {total} targets"
        )
    most = int(counts.max(initial=0))
    start = np.cumsum(counts) - counts
    at = np.minimum(start[:, None] + np.arange(most), max(total - 1, 0))
    if not total:
        return bc.scalar(0, int64, (n, 0))
    flat = wrap(bc.cast(y, int64))
    return flat.index_select(0, tensor(at.reshape(-1), device=y.node.device)).reshape((n, most)).value


def _loss(x: Value, labels: Value, long: Value, lengths: Value, blank: int) -> Tensor:
    """Forward variables over blank, y1, blank, y2, ... blank, step by step; the loss of each example."""
    steps, n, classes = known_sizes("ctc_loss", x.shape)
    size = 2 * known_sizes("ctc_loss", labels.shape)[1] + 1
    # the labels with blanks between, before and after
    fill = bc.scalar(blank, int64, (n, labels.shape[1], 1))
    between = apply(Op.CONCAT, (fill, bc.reshape(labels, (*labels.shape, 1))), Along(2))
    wide = wrap(
        apply(Op.CONCAT, (bc.reshape(between, (n, size - 1)), bc.scalar(blank, int64, (n, 1))), Along(1))
    )
    # a skip over the blank between different labels
    before = wrap(_shifted(wide.value, 2, blank))
    skips = logical_and(ne(wide, blank), ne(wide, before))
    emitted = wrap(apply(Op.PERMUTE, (x,), Axes((1, 0, 2))))
    table = wrap(bc.expand(bc.reshape(wide.value, (n, 1, size)), (n, steps, size)))
    scores = gather(emitted, 2, table) if classes else emitted
    scores = maximum(scores, _NEVER)
    start = lt(wrap(positions((n, size), 1, int64)), 2)
    until = wrap(bc.reshape(long, (n, 1)))
    alpha = (
        where(start, scores[:, 0], _NEVER)
        if steps
        else where(start, 0.0, wrap(bc.scalar(_NEVER, x.dtype, (n, size))))
    )

    def step(alpha: Tensor, row: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        score, t = row
        one, two = (wrap(_shifted(alpha.value, k, _NEVER)) for k in (1, 2))
        after = maximum(_log_sum(alpha, one, where(skips, two, _NEVER)) + score, _NEVER)
        return where(gt(until, t), after, alpha), None

    if steps > 1:
        later = wrap(apply(Op.PERMUTE, (scores.value,), Axes((1, 0, 2))))[1:]
        alpha, _ = scan(step, alpha, (later, wrap(positions((steps - 1,), 0, int64)) + 1))
    last = wrap(bc.reshape(lengths, (n, 1))) * 2
    ends = wrap(bc.cast(bc.expand(last.value, (n, 1)), int64))
    final = gather(alpha, 1, ends)
    other = where(eq(last, 0), _NEVER, gather(alpha, 1, clamp(ends - 1, min=0)))
    loss = -_log_sum(final, other).reshape((n,))
    return loss + _of_one_distribution(x, long)


def _of_one_distribution(x: Value, long: Value) -> Tensor:
    """Zero, with the gradient exp(x) in the steps that count: torch's gradient is that after log_softmax."""
    n = long.shape[0]
    at = wrap(positions((x.shape[0], n, 1), 0, int64))
    counted = lt(at, wrap(bc.reshape(long, (1, n, 1))))
    total = sum(where(counted, exp(wrap(x)), 0.0), (0, 2))
    return total - wrap(Value(total.value.node))


def _log_sum(*terms: Tensor) -> Tensor:
    """log(exp(a) + exp(b) + ...)"""
    top = terms[0]
    for x in terms[1:]:
        top = maximum(top, x)
    top = wrap(Value(top.value.node))
    total = exp(terms[0] - top)
    for x in terms[1:]:
        total = total + exp(x - top)
    return log(total) + top


def _shifted(v: Value, by: int, fill: float) -> Value:
    """Row elements moved right by `by`."""
    return box(pad_value(v, (0, by), (0, 0), fill), (0, 0), v.shape)
