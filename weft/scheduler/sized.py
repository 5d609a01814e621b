"""Templates for all sizes, learned from recordings of one function at several sizes.

    recorded at n = 4, 39, 76    rows of (4, 64) (1, 64), (39, 64) (1, 64), ...    learned    (n, 64) (1, 64)

A size of the rows, or a number, that differs between the recordings must be a polynomial of the sizes that differ, or,
of sizes, a half of one, and all else the same; otherwise nothing is learned. What is made for other sizes
(`SizedTemplate.at`) is what a recording there would give, so none is made where sizes coincide that differed in the
recordings: rules simplify by that.
"""
# Tests: tests/core/composed/test_sized.py

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from weft.ir.compiled_index import compiled, picker
from weft.ir.dtypes import DType
from weft.ir.expr import Scalar, bits, normalize
from weft.ir.graph import Attrs, Fill, Shape
from weft.ir.index import Index, Int, Var, ceildiv, evaluate, substitute
from weft.ir.ops import Op
from weft.ir.template import GraphTemplate, LateTemplate, Row
from weft.lazy_dataclass import dataclass
from weft.scheduler.formulas import COUNTS, HALVES, POLYNOMIALS, Column, expressed
from weft.scheduler.outline import Outline, OutlineKey, inside, is_plain, put_together, taken_apart


@dataclass(frozen=True, slots=True)
class Count:
    """A number that follows from sizes: as many elements as something has, or so many `less`, or one by that, as means
    have it."""

    count: Index
    less: int
    inverse: bool

    def at(self, env: Mapping[str, int], dtype: DType) -> Fill:
        """The number as a constant."""
        n = evaluate(self.count, env) - self.less
        return _filled(1 / n if self.inverse else n, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class SizedTemplate:
    """The rows of a recording, and their sizes and numbers, in the order of an outline, by runtime variables."""

    rows: tuple[Row, ...]
    results: tuple[int, ...]
    placeholders: tuple[tuple[tuple[Int, ...], DType], ...]
    sizes: tuple[Int, ...]
    numbers: tuple[Scalar | Count, ...]
    variables: tuple[Var, ...]
    expressions: tuple[Index, ...]
    """All that sizes are, but for those that are known."""
    known: frozenset[int]
    key: OutlineKey
    """The outline that all of the templates have."""
    counts: tuple[tuple[Count, DType], ...] = field(init=False)
    """The numbers that follow from sizes."""
    _values: Callable[[Sequence[int]], tuple[int, ...]] = field(init=False)
    """Gives the values of the expressions by those of the variables."""
    shape: tuple[Int, ...] = field(init=False)
    """The shape of the last row."""
    _root: Callable[[tuple[int, ...]], Shape] = field(init=False)
    """Takes that shape out of the values of the expressions, and of sizes that are known."""
    _pick: Callable[[tuple[int, ...]], tuple[int, ...]] = field(init=False)
    """Takes the sizes out of these."""
    _forms: _Forms | None = field(init=False)
    """The forms of rows, once somebody looks at these."""

    def __post_init__(self) -> None:
        counts: list[tuple[Count, DType]] = []
        if any(isinstance(x, Count) for x in self.numbers):
            dtypes = _dtypes(self.rows)
            counts += [(x, d) for x, d in zip(self.numbers, dtypes, strict=True) if isinstance(x, Count)]
        last = self.rows[-1]
        own = len(self.sizes) - _size_of_attrs(last)
        root = self.sizes[own - len(last.shape) : own]
        object.__setattr__(self, "counts", tuple(counts))
        object.__setattr__(self, "_values", compiled(self.expressions, self.variables))
        object.__setattr__(self, "shape", root)
        object.__setattr__(self, "_root", _picking(root, self.expressions))
        object.__setattr__(self, "_pick", _picking(self.sizes, self.expressions))
        object.__setattr__(self, "_forms", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return SizedTemplate, (
            self.rows, self.results, self.placeholders, self.sizes, self.numbers, self.variables,
            self.expressions, self.known, self.key,
        )  # fmt: skip

    def _formed(self) -> _Forms:
        """The forms of rows, made once."""
        if self._forms is not None:
            return self._forms
        shapes: dict[tuple[Int, ...], int] = {}
        forms: list[_Form | None] = []
        at = met = 0
        for r in self.rows:
            shape, at = self.sizes[at : at + len(r.shape)], at + len(r.shape)
            count = _size_of_attrs(r)
            own, at = self.sizes[at : at + count], at + count
            number = None
            if isinstance(r.attrs, Fill) and not is_plain(r.attrs.value, r.dtype):
                number, met = self.numbers[met], met + 1
            number = number if isinstance(number, Count) else None
            varies = number is not None or any(isinstance(s, Index) for s in (*shape, *own))
            forms.append(_Form(shapes.setdefault(shape, len(shapes)), own, number) if varies else None)
        found = _Forms(tuple(shapes), tuple(forms))
        object.__setattr__(self, "_forms", found)
        return found

    @staticmethod
    def of(
        rows: tuple[Row, ...],
        results: tuple[int, ...],
        placeholders: tuple[tuple[tuple[Int, ...], DType], ...],
        sizes: tuple[Int, ...],
        numbers: tuple[Scalar | Count, ...],
        variables: Sequence[Var],
        key: OutlineKey,
    ) -> SizedTemplate:
        """The template with these sizes, by these variables."""
        distinct = dict.fromkeys([*sizes, *(s for shape, _ in placeholders for s in shape), *variables])
        return SizedTemplate(
            rows,
            results,
            placeholders,
            sizes,
            numbers,
            tuple(variables),
            tuple([e for e in distinct if isinstance(e, Index)]),
            frozenset([s for s in distinct if isinstance(s, int)]),
            key,
        )

    def at(self, variables: Sequence[int]) -> GraphTemplate | None:
        """The template for these values of the variables; None where sizes coincide."""
        values = self._values(variables)
        found = set(values)
        if len(found) < len(values) or min(found, default=2) < 2 or not found.isdisjoint(self.known):
            return None
        if self.counts and any(is_plain(x, dtype) for x, dtype in self._fills(values)):
            return None
        return LateTemplate(self, values)

    def root(self, values: tuple[int, ...]) -> tuple[Shape, DType]:
        """The shape and dtype of the last row."""
        return self._root(values), self.rows[-1].dtype

    def outline(self, values: tuple[int, ...]) -> Outline:
        """The outline of the rows for these values of the expressions."""
        numbers: tuple[Any, ...] = self.numbers
        if self.counts:
            counts = iter(self._fills(values))
            numbers = tuple([next(counts)[0] if isinstance(x, Count) else x for x in numbers])
        return Outline(self.key, self._pick(values), numbers)

    def _fills(self, values: tuple[int, ...]) -> list[tuple[Scalar, DType]]:
        """The numbers that follow from sizes."""
        env = self._env(values)
        return [(count.at(env, dtype).value, dtype) for count, dtype in self.counts]

    def _env(self, values: tuple[int, ...]) -> dict[str, int]:
        """The values of the variables, which are expressions as well, by name."""
        return {e.name: n for e, n in zip(self.expressions, values, strict=True) if isinstance(e, Var)}

    def _known(self, values: tuple[int, ...]) -> Callable[[tuple[Int, ...]], tuple[int, ...]]:
        value = dict(zip(self.expressions, values, strict=True))

        def known(sizes: tuple[Int, ...]) -> tuple[int, ...]:
            return tuple([s if isinstance(s, int) else value[s] for s in sizes])

        return known

    def parts(
        self, values: tuple[int, ...]
    ) -> tuple[tuple[tuple[Shape, DType], ...], tuple[Row, ...], tuple[int, ...]]:
        """The placeholders, rows and results for these values of the expressions."""
        known, found = self._known(values), self._formed()
        shapes = list(map(known, found.shapes))
        env = self._env(values)
        rows: list[Row] = []
        for r, form in zip(self.rows, found.forms, strict=True):
            if form is None:
                rows.append(r)
                continue
            attrs: Attrs = r.attrs
            if form.number is not None:
                attrs = form.number.at(env, r.dtype)
            elif form.own:
                attrs = put_together(attrs, known(form.own))
            rows.append(Row(r.op, r.inputs, attrs, shapes[form.shape], r.dtype))
        placeholders = tuple([(known(shape), dtype) for shape, dtype in self.placeholders])
        return placeholders, tuple(rows), self.results


def _picking(
    sizes: tuple[Int, ...], expressions: tuple[Index, ...]
) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """A function that takes the sizes out of the values of the expressions."""
    known = tuple(dict.fromkeys([s for s in sizes if isinstance(s, int)]))
    place = {s: k for k, s in enumerate((*expressions, *known))}
    take = picker([place[s] for s in sizes])
    return lambda values: take((*values, *known))


@dataclass(frozen=True, slots=True)
class _Form:
    """The part of a row that sizes have a say in: the number of its shape, sizes of its attributes, a number."""

    shape: int
    own: tuple[Int, ...]
    number: Count | None


@dataclass(frozen=True, slots=True)
class _Forms:
    """The different shapes of rows, and the form of each row that sizes have a say in."""

    shapes: tuple[tuple[Int, ...], ...]
    forms: tuple[_Form | None, ...]


def _size_of_attrs(row: Row) -> int:
    """The number of sizes among a row's attributes."""
    return 0 if isinstance(row.attrs, Fill) else len(taken_apart(row.attrs)[1])


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks that an axis is filled up to: the variable's number, and elements in a block."""

    variable: int
    length: int


LEAST_BLOCK = 8
"""The elements of a block from which on one is looked for: what a few sizes have in common with less may be chance."""


def blocks_in(templates: Sequence[GraphTemplate], columns: Sequence[Column]) -> list[Blocks]:
    """Blocks of a known length that an axis is filled up to in all of these, by how much is added to it."""
    outlines = [inside(t) for t in templates]
    if any(o.key != outlines[0].key for o in outlines):
        return []
    sizes = dict.fromkeys(zip(*[o.sizes for o in outlines], strict=True))
    lengths = sorted({c[0] for c in sizes if c[0] >= LEAST_BLOCK and all(n == c[0] for n in c)})
    return [
        Blocks(k, length)
        for k, column in enumerate(columns)
        for length in lengths
        if (added := tuple([-n % length for n in column])) in sizes and any(n != added[0] for n in added)
    ]


def learned(
    templates: Sequence[GraphTemplate],
    variables: Sequence[tuple[Column, Var]],
    halves: bool = False,
    blocks: Blocks | None = None,
) -> SizedTemplate | None:
    """The template of which these are those for the values of the variables; None where there is none. `halves`: sizes
    may be halves of these, rounded; with `blocks`, they may follow from their number."""
    sizes_of = HALVES if halves else POLYNOMIALS
    known, given = list(variables), dict[Var, Int]()
    if blocks is not None:
        column, v = variables[blocks.variable]
        for name, factor in (("blocks", 1), ("filled", blocks.length)):
            whole = tuple([ceildiv(n, blocks.length) * factor for n in column])
            stands = Var(name, 0, max(whole))
            known.append((whole, stands))
            given[stands] = ceildiv(v, blocks.length) * factor
    outlines = [inside(t) for t in templates]
    first, own = templates[0], outlines[0]
    if any(o.key != own.key for o in outlines):
        return None
    forms: dict[Column, Int | None] = {}

    def size(column: Column) -> Int:
        if column not in forms:
            same = all(x == column[0] for x in column)
            e = column[0] if same else expressed(column, known, sizes_of)
            forms[column] = None if e is None else substitute(e, given)
        found = forms[column]
        if found is None:
            raise _NoFormError
        return found

    try:
        sizes = tuple(map(size, zip(*[o.sizes for o in outlines], strict=True)))
        placeholders = tuple([
            (tuple(map(size, zip(*[t.placeholders[k][0] for t in templates], strict=True))), dtype)
            for k, (_, dtype) in enumerate(first.placeholders)
        ])  # fmt: skip
        columns = list(zip(*[o.numbers for o in outlines], strict=True))
        numbers = tuple([_number(c, d, variables) for c, d in zip(columns, _dtypes(first.rows), strict=True)])
    except _NoFormError:
        return None
    by = [v for _, v in variables]
    return SizedTemplate.of(first.rows, first.results, placeholders, sizes, numbers, by, own.key)


class _NoFormError(Exception):
    """A size or a number is no polynomial of the sizes that vary."""


def _dtypes(rows: Sequence[Row]) -> Iterator[DType]:
    """The dtype of each of the numbers."""
    for r in rows:
        if r.op is Op.CONST and isinstance(r.attrs, Fill) and not is_plain(r.attrs.value, r.dtype):
            yield r.dtype


def _number(
    column: tuple[Scalar, ...], dtype: DType, variables: Sequence[tuple[Column, Var]]
) -> Scalar | Count:
    """The number, or how it follows from sizes."""
    fills = [_filled(x, dtype) for x in column]
    if all(f == fills[0] for f in fills):
        return column[0]
    envs = [{v.name: c[k] for c, v in variables} for k in range(len(column))]
    for inverse in (False, True):
        counts = [round(1 / x if inverse else x) for x in column]
        for less in (0, 1):  # as unbiased estimates have it
            e = expressed(tuple([n + less for n in counts]), variables, COUNTS)
            if isinstance(e, Index):
                found = Count(e, less, inverse)
                if all(found.at(env, dtype) == f for env, f in zip(envs, fills, strict=True)):
                    return found
    raise _NoFormError


def _filled(value: Scalar, dtype: DType) -> Fill:
    value = normalize(dtype, value)
    return Fill(bits(value), value)
