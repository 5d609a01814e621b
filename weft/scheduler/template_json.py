"""Recorded calls as JSON: graphs over placeholders, and those learned for all sizes.

    placeholders [[[9, 64], "float32"]], rows [["MAX", [0], ["axes", [1]], [9, 1], "float32"], ...], results [5]

What is read refers to nothing that is not there: it is a ValueError or the like otherwise. Whoever keeps a record does
so under a name from which the graph follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir import dtypes
from weft.ir.calls import Given, GraphCall
from weft.ir.expr import Scalar, bits
from weft.ir.graph import (
    Along,
    Attrs,
    Axes,
    Box,
    Fill,
    Padding,
    ProductAxes,
    ScatterCombine,
    Window,
)
from weft.ir.index import Index, Int, Var
from weft.ir.ops import Op
from weft.ir.template import GraphTemplate, Row
from weft.scheduler.outline import outline_of
from weft.scheduler.size_json import decoded, encoded
from weft.scheduler.sized import Count, SizedTemplate


class UntoldError(ValueError):
    """A graph has something in it that is not kept."""


def written_call(call: GraphCall | Given | None) -> Any:
    """A call as JSON has it. UntoldError for one of a loop or the like."""
    match call:
        case None:
            return None
        case Given(number):
            return number
        case GraphCall():
            return [_written(call.template), call.uses]


def read_call(record: Any) -> GraphCall | Given | None:
    """The call that was written."""
    match record:
        case None:
            return None
        case int():
            return Given(record)
        case _:
            template, uses = _read(record[0]), _ints(record[1])
            if len(uses) != len(template.placeholders):
                raise ValueError("a call on other inputs")
            return GraphCall(template, uses)


def written_sized(template: SizedTemplate, variables: Sequence[Var]) -> Any:
    """A template for all values of the variables as JSON has it; sizes are numbers, or refer to expressions."""
    number = {v: k for k, v in enumerate(variables)}
    table: dict[Index, list[int]] = {}

    def size(s: Int) -> Any:
        return s if isinstance(s, int) else table.setdefault(s, [len(table)])

    sizes = [size(s) for s in template.sizes]
    placeholders = [[[size(s) for s in shape], dtype.name] for shape, dtype in template.placeholders]
    numbers = [
        ["count", encoded(x.count, number), x.less, x.inverse] if isinstance(x, Count) else x
        for x in template.numbers
    ]
    return {
        "rows": [_written_row(r) for r in template.rows],
        "results": template.results,
        "placeholders": placeholders,
        "sizes": sizes,
        "numbers": numbers,
        "expressions": [encoded(e, number) for e in table],
    }


def read_sized(record: Any, variables: Sequence[Var]) -> SizedTemplate:
    """The template that was written. ValueError where its sizes are not those of its rows."""
    expressions = [decoded(e, variables) for e in record["expressions"]]

    def size(s: Any) -> Int:
        return s if isinstance(s, int) else expressions[int(s[0])]

    given = tuple([(tuple(map(size, shape)), dtypes.by_name(name)) for shape, name in record["placeholders"]])
    rows, results = _rows(record["rows"], record["results"], len(given))
    own = outline_of(len(given), rows, results)
    sizes = tuple(map(size, record["sizes"]))
    numbers = tuple([_number(x, variables) for x in record["numbers"]])
    if len(sizes) != len(own.sizes) or len(numbers) != len(own.numbers):
        raise ValueError("sizes of other rows")
    return SizedTemplate.of(rows, results, given, sizes, numbers, variables, own.key)


def _number(record: Any, variables: Sequence[Var]) -> Scalar | Count:
    if isinstance(record, bool | int | float):
        return record
    _, count, less, inverse = record
    found = decoded(count, variables)
    if isinstance(found, int):
        raise ValueError("a count that follows from no size")
    return Count(found, int(less), bool(inverse))


def _written(template: GraphTemplate) -> Any:
    """A template: its placeholders, rows and results."""
    given = [[_known(shape), dtype.name] for shape, dtype in template.placeholders]
    return [given, [_written_row(r) for r in template.rows], template.results]


def _read(record: Any) -> GraphTemplate:
    placeholders, rows, results = record
    given = tuple([(_shape(shape), dtypes.by_name(name)) for shape, name in placeholders])
    return GraphTemplate(given, *_rows(rows, results, len(given)))


def _written_row(row: Row) -> list[Any]:
    return [row.op.name, row.inputs, _written_attrs(row.attrs), _known(row.shape), row.dtype.name]


def _rows(record: Any, results: Any, given: int) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """The rows, each of what is before it, and the numbers of the results."""
    rows: list[Row] = []
    for op, inputs, attrs, shape, dtype in record:
        over = tuple(map(int, inputs))
        kind = Op[op]
        if kind.info.arity not in (None, len(over)) or not all(0 <= k < given + len(rows) for k in over):
            raise ValueError("a row of what is not there")
        rows.append(Row(kind, over, _read_attrs(attrs), _shape(shape), dtypes.by_name(dtype)))
    ends = tuple(map(int, results))
    if not rows or not all(0 <= k < given + len(rows) for k in ends):
        raise ValueError("a result that is not there")
    return tuple(rows), ends


def _known(sizes: Sequence[Int]) -> list[int]:
    """Sizes that are numbers. UntoldError for others."""
    known = [s for s in sizes if isinstance(s, int)]
    if len(known) < len(sizes):
        raise UntoldError("a size that is known when it runs")
    return known


def _shape(record: Any) -> tuple[int, ...]:
    sizes = tuple(map(int, record))
    if any(s < 0 for s in sizes):
        raise ValueError("a negative size")
    return sizes


def _written_attrs(attrs: Attrs) -> list[Any] | None:
    """The attributes of a row. UntoldError for those of loops, calls and copies, and leaves."""
    match attrs:
        case None:
            return None
        case Fill(value=value):
            return ["fill", _told(value)]
        case ProductAxes(axes):
            return ["product", axes]
        case Axes(axes):
            return ["axes", axes]
        case Padding(low, high, interior, fill):
            return ["pad", _known(low), _known(high), interior, _told(fill)]
        case Box(start, step):
            return ["box", _known(start), step]
        case Window(axis, window, stride, dilation):
            return ["window", axis, window, stride, dilation]
        case Along(axis):
            return ["along", axis]
        case ScatterCombine(axis, op):
            return ["scatter", axis, None if op is None else op.name]
        case _:
            raise UntoldError(f"{attrs.__class__.__name__}")


def _told(value: Scalar) -> Scalar:
    """A number that JSON has: all but NaNs other than the common one."""
    if value != value and bits(value) != bits(float("nan")):
        raise UntoldError("a NaN of its own")
    return value


def _read_attrs(record: Any) -> Attrs:
    match record:
        case None:
            return None
        case ["fill", value]:
            found = _scalar(value)
            return Fill(bits(found), found)
        case ["product", axes]:
            return ProductAxes(_ints(axes))
        case ["axes", axes]:
            return Axes(_ints(axes))
        case ["pad", low, high, interior, fill]:
            return Padding(_ints(low), _ints(high), _ints(interior), _scalar(fill))
        case ["box", start, step]:
            return Box(_ints(start), _ints(step))
        case ["window", *fields]:
            return Window(*_ints(fields))
        case ["along", axis]:
            return Along(int(axis))
        case ["scatter", axis, op]:
            return ScatterCombine(int(axis), None if op is None else Op[op])
        case _:
            raise ValueError("attributes of no kind")


def _scalar(value: Any) -> Scalar:
    if not isinstance(value, bool | int | float):
        raise ValueError(f"{value!r} is no number")
    return value


def _ints(record: Any) -> tuple[int, ...]:
    return tuple(map(int, record))
