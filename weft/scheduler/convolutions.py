"""The sums of products that are convolutions by 3 x 3 taps, or gradients of the weights of these, and pay in tiles."""
# Tests: tests/scheduler/test_winograd.py

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir import movement
from weft.ir.dtypes import float32
from weft.ir.graph import Axes, Node, toposort
from weft.ir.index import Guard, Int, Var, ceildiv, high, in_range, low, variables
from weft.ir.loops import LoopKind
from weft.ir.numerics import pinned
from weft.ir.ops import MOVEMENT, Op
from weft.scheduler.panels import image_lane, panel_width, weight_factor
from weft.scheduler.winograd import SPAN, TAPS, TILE, Channels, Line, TiledConvolution, TiledGradient

IMAGE_CYCLES, RESULT_CYCLES, PRODUCT_CYCLES = 22.0, 67.0, 1.2
"""Cycles for a vector of the image's side, one of results, and one of products (decision 175)."""

STORED_LINE_CYCLES = 12.0
"""Cycles to write a line and to read it again, where all of them do not stay in the second cache (decision 175)."""

SUMMED_LINE_CYCLES = 24.0
"""The same where a sum over tiles reads it, one after the other (decision 181)."""

WEIGHT_LINE_CYCLES = 16.0
"""Cycles to read a line of a weight, at least (decision 175)."""

WEIGHT_CYCLES, STORED_RESULT_CYCLES = 50.0, 25.0
"""Cycles for a vector of what is made of a weight that does not stay, and to store one of results (decision 181)."""

GAIN = 0.9
"""The share of the sum's cycles that tiles may take at most to be worth it."""


def convolutions(
    outputs: Sequence[Node], weights: Collection[Node], info: DeviceInfo, stay: bool = True
) -> Iterator[tuple[Node, TiledConvolution]]:
    """The sums of products below `outputs` that are to be computed in tiles. `stay`: the weights do, from call to
    call."""
    if info.task_kind is LoopKind.PARALLEL and not pinned():
        asked = _Asked(outputs)
        for n in toposort(outputs):
            if image_lane(n, weights, info) is None:
                continue
            if (tiles := _tiles_of(n, weights, info, stay, asked)) is not None:
                yield n, tiles


class _Asked:
    """The parts of values that are asked for by what is computed of them."""

    def __init__(self, outputs: Sequence[Node]) -> None:
        self._outputs = frozenset(outputs)

    @cached_property
    def _users(self) -> dict[Node, list[Node]]:
        users: dict[Node, list[Node]] = {}
        for n in toposort(list(self._outputs)):
            for i in n.inputs:
                users.setdefault(i, []).append(n)
        return users

    def of(self, n: Node) -> list[tuple[int, int]]:
        """The first and the last index along each axis of a value that is read as a whole, or as one view."""
        views = [n]
        while views[-1] not in self._outputs and len(users := self._users.get(views[-1], [])) == 1:
            if users[0].op not in MOVEMENT or users[0].storage is not None:
                break
            views.append(users[0])
        shape = [x for x in views[-1].shape if isinstance(x, int)]
        if len(shape) != len(views[-1].shape):
            shape, views = _sizes(n), [n]
        index: tuple[Int, ...] = tuple([Var(f"i{k}", 0, max(x - 1, 0)) for k, x in enumerate(shape)])
        for view in views[:0:-1]:
            index = movement.source(view, index).index
        return [(max(low(i), 0), min(high(i), _sizes(n)[a] - 1)) for a, i in enumerate(index)]


def _tiles_of(
    total: Node, weights: Collection[Node], info: DeviceInfo, stay: bool, asked: _Asked
) -> TiledConvolution | None:
    """A sum of products as a convolution in tiles; None where it is no convolution by 3 x 3 taps one after the other
    with one of `weights`, or the sum of all taps is as fast."""
    if total.op is not Op.SUM or total.inputs[0].op is not Op.MUL:
        return None
    if type(total.attrs) is not Axes or total.dtype is not float32:
        return None
    a, b = total.inputs[0].inputs
    for factor, other in ((a, b), (b, a)):
        found = _recognised(total, factor, other, weights, info, stay, asked)
        if found is not None:
            return found if saved(found, info) > 0 else None
    return None


def _recognised(
    total: Node,
    factor: Node,
    other: Node,
    weights: Collection[Node],
    info: DeviceInfo,
    stay: bool,
    asked: _Asked,
) -> TiledConvolution | None:
    """The convolution by `factor`."""
    found, axes = weight_factor(total, factor, other, weights), total.attrs
    if found is None or not isinstance(axes, Axes) or len(found.weight.shape) != 4:
        return None
    place = {i: d for d, i in enumerate(found.index) if isinstance(i, Var)}
    summed = [found.at[k] for k in axes.axes if found.at[k].hi > 0]
    taps = [v for v in summed if v.hi == TAPS - 1]
    if len(place) != 4 or set(place) != {found.at[found.lane], *summed}:
        return None
    free = {
        v: n
        for n, (k, v) in enumerate((k, v) for k, v in enumerate(found.at) if k not in axes.axes)
        if k != found.lane and v.hi > 0
    }
    seen = _image(other, found.at, list(free), summed)
    if seen is None:
        return None
    image, of_axis = seen
    rows, columns = list(free)[-2:]
    parts = asked.of(total)
    lines = [_line(v, parts[free[v]], taps, of_axis) for v in (rows, columns)]
    if lines[0] is None or lines[1] is None:
        return None
    (row_axis, down, of_rows), (column_axis, across, of_columns) = lines[0], lines[1]
    (channel,) = [v for v in summed if v not in (down, across)] or [None]
    slides = sum(len(variables(i)) > 1 for i in of_axis.values())
    if channel is None or down is across or len(summed) != 3 or slides != 2:
        return None
    axis_of = _in_channels_order(image, of_axis, list(free)[:-2], channel, row_axis, column_axis)
    if axis_of is None:
        return None
    of = found.at[found.lane].hi + 1
    count = prod(v.hi + 1 for v in list(free)[:-2])
    every = count * prod(ceildiv(x.results, TILE) for x in (of_rows, of_columns))
    width = panel_width(of, every, info, total.dtype)
    if width is None:
        return None
    order = place[down], place[across], place[channel], place[found.at[found.lane]]
    return TiledConvolution(
        image, axis_of, found.weight, order, count, of_rows, of_columns, width, stay
    )  # fmt: skip


def _line(
    place: Var, part: tuple[int, int], taps: Sequence[Var], of_axis: Mapping[int, Int]
) -> tuple[int, Var, Line] | None:
    """The image's axis along which the results at `place` are of taps side by side, the axis of these, and the results
    of which `part` is asked for; None where there is no such axis."""
    (first, last), reach = part, TAPS - 1
    for axis, i in of_axis.items():
        for t in taps:
            for back in (False, True):
                at = i - place + t if back else i - place - t
                if isinstance(at, int):
                    start = at + first - reach if back else at + first
                    return axis, t, Line(last - first + 1, place.hi + 1, first, start, back)
    return None


def _image(
    other: Node, at: tuple[Var, ...], free: Sequence[Var], summed: Sequence[Var]
) -> tuple[Node, dict[int, Int]] | None:
    """The image of which `other` is a view with windows that slide over rows and columns, zeros around it, and the
    index into it."""
    n, index = other, tuple[Int, ...](at)
    used = {*free, *summed}
    inside: Guard = ()
    if len(free) < 2:
        return None
    while n.op in MOVEMENT and n.storage is None:
        source = movement.source(n, index)
        if source.fill != 0 or not all(isinstance(x, int) for x in n.inputs[0].shape):
            return None
        n, index, inside = n.inputs[0], source.index, (*inside, *source.guard)
        names = [v for i in index for v in variables(i)]
        slides = sum(len(variables(i)) > 1 for i in index) == 2  # rows with taps, and columns with taps
        if slides and len(names) == len(used) and set(names) == used:
            whole = {in_range(i, 0, size) for i, size in zip(index, n.shape, strict=True)}
            return (n, dict(enumerate(index))) if all((g,) in whole for g in inside) else None
    return None


def saved(t: TiledConvolution, info: DeviceInfo) -> float:
    """The cycles that tiles save of those of the sum of all taps, less a share of these that makes sure of it."""
    (summed, of), lanes, itemsize = t.channels, info.lanes(t.leaf.dtype), t.leaf.dtype.itemsize
    line = info.costs.line_bytes / itemsize

    def product(rows: float, weight: int) -> float:
        lines = weight / line if weight * itemsize > info.l2_bytes else 0.0
        return max(PRODUCT_CYCLES * rows * summed * of / lanes, lines * WEIGHT_LINE_CYCLES)

    def stored(count: int) -> float:
        return count / line * STORED_LINE_CYCLES if count * itemsize > info.l2_bytes else 0.0

    every, results = t.batch * prod(t.tiles), t.batch * prod(t.results)
    sums = product(results * TAPS * TAPS, summed * of * TAPS * TAPS)
    products = product(every * SPAN * SPAN, summed * of * SPAN * SPAN)
    spread, made = every * SPAN * SPAN * summed, every * SPAN * SPAN * of
    around = (IMAGE_CYCLES * spread + RESULT_CYCLES * results * of) / lanes
    if not t.stays:
        around += (STORED_RESULT_CYCLES * results * of + WEIGHT_CYCLES * SPAN * SPAN * summed * of) / lanes
    return GAIN * sums - (products + around + stored(spread) + stored(made))


def gradients(outputs: Sequence[Node], info: DeviceInfo) -> Iterator[tuple[Node, TiledGradient]]:
    """The sums of products below `outputs` that are gradients of weights, to be computed in tiles."""
    if info.task_kind is LoopKind.PARALLEL and not pinned():
        for n in toposort(outputs):
            if n.op is Op.SUM and n.inputs[0].op is Op.MUL and type(n.attrs) is Axes and n.dtype is float32:
                a, b = n.inputs[0].inputs
                found = _gradient(n, a, b) or _gradient(n, b, a)
                if found is not None and saved_by_gradient(found, info) > 0:
                    yield n, found


def _gradient(total: Node, windows: Node, other: Node) -> TiledGradient | None:
    """The gradient of a weight, of windows of an image and the gradient of results."""
    axes, shape = total.attrs, [x for x in windows.shape if isinstance(x, int)]
    if not isinstance(axes, Axes) or len(shape) != len(windows.shape) or 0 in shape:
        return None
    at = tuple([Var(f"i{k}", 0, n - 1) for k, n in enumerate(shape)])
    summed = [at[k] for k in axes.axes if shape[k] > 1]
    place = {v: a for a, v in enumerate(v for k, v in enumerate(at) if k not in axes.axes) if v.hi > 0}
    seen = _plain(other, at)
    if seen is None or len(place) != 4 or not 2 <= len(summed) <= 3:
        return None
    results, result_index = seen
    of = [v for v in result_index.values() if isinstance(v, Var) and v in place]
    if len(of) != 1 or len({*result_index.values()} - {0}) != len(summed) + 1:
        return None
    found = _image(windows, at, [v for v in place if v not in of], summed)
    if found is None:
        return None
    image, index = found
    taps = [v for v in place if v.hi == TAPS - 1 and v not in of]
    slides = [(v, x) for v in summed if (x := _line(v, (0, v.hi), taps, index)) is not None]
    if len(slides) != 2:
        return None
    (rows, (row_axis, down, of_rows)), (columns, (column_axis, across, of_columns)) = slides
    batch = [v for v in summed if v not in (rows, columns)]
    channel = [v for v in place if v not in (*of, down, across)]
    if len(channel) != 1 or of_rows.back or of_columns.back:
        return None
    image_axes = _in_channels_order(image, index, batch, channel[0], row_axis, column_axis)
    lines = [next((d for d, i in result_index.items() if i is v), None) for v in (rows, columns)]
    if image_axes is None or lines[0] is None or lines[1] is None:
        return None
    result_axes = _in_channels_order(results, result_index, batch, of[0], lines[0], lines[1])
    if result_axes is None:
        return None
    count = prod(v.hi + 1 for v in batch)
    return TiledGradient(
        image, image_axes, results, result_axes, count, of_rows, of_columns,
        (place[down], place[across]), place[channel[0]], place[of[0]],
    )  # fmt: skip


def _in_channels_order(
    n: Node, index: Mapping[int, Int], batch: Sequence[Var], channel: Var, rows: int, columns: int
) -> Channels | None:
    """A value's axes in the order batch, rows, columns, channels; None where it has others, or is not read as a whole
    along those of batch and channels."""
    channels = next((d for d, i in index.items() if i is channel), None)
    others = tuple([d for d in sorted(index) if d not in (rows, columns, channels)])
    if channels is None or [i for d in others if (i := index[d]) != 0] != list(batch):
        return None
    whole = {d: i.hi + 1 if isinstance(i, Var) else 1 for d, i in index.items() if d in (*others, channels)}
    if any(n.shape[d] != size for d, size in whole.items()):
        return None
    return others, rows, columns, channels


def _plain(n: Node, at: tuple[Var, ...]) -> tuple[Node, dict[int, Int]] | None:
    """The value of which `n` has each element in several places, and the index into it: variables, each of all
    elements along an axis, and zeros."""
    index = tuple[Int, ...](at)
    views = [(n, index)]
    while n.op in MOVEMENT and n.storage is None:
        source = movement.source(n, index)
        if source.guard or not all(isinstance(x, int) for x in n.inputs[0].shape):
            break
        n, index = n.inputs[0], source.index
        views.append((n, index))
    needed = {v for i in index for v in variables(i)}
    for view, index in views:
        names = [v for i in index for v in variables(i)]
        if (
            len(names) == len(needed) == len({*names} & needed)
            and all(isinstance(i, Var) or i == 0 for i in index)
            and all(i == 0 or view.shape[d] == high(i) + 1 for d, i in enumerate(index))
        ):
            return view, dict(enumerate(index))
    return None


def saved_by_gradient(t: TiledGradient, info: DeviceInfo) -> float:
    """The same of a gradient of a weight."""
    (summed, of), lanes, itemsize = t.channels, info.lanes(t.image.dtype), t.image.dtype.itemsize
    if min(summed, of) < lanes:
        return 0.0
    every = t.batch * prod(t.tiles) * SPAN * SPAN
    terms = t.batch * t.rows.results * t.columns.results * TAPS * TAPS
    sums, products = (PRODUCT_CYCLES * n * summed * of / lanes for n in (terms, every))
    spread = every * (summed + of)
    far = spread * itemsize > info.l2_bytes
    lines = spread * itemsize / info.costs.line_bytes if far else 0.0
    return GAIN * sums - (products + IMAGE_CYCLES * spread / lanes + SUMMED_LINE_CYCLES * lines)


def _sizes(n: Node) -> list[int]:
    sizes = [x for x in n.shape if isinstance(x, int)]
    assert len(sizes) == len(n.shape)
    return sizes
