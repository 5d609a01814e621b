"""Tables about ops derive from what `weft.ir.ops` says of each, and none falls silently to a default."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

import weft
from weft.autograd.batching import BATCH
from weft.autograd.vjp import VJP
from weft.backends.clike import scalar as clike
from weft.backends.llvm import scalar as llvm
from weft.ir import dtypes, fold, ops, reference_ops, shape_rules
from weft.ir.expr import Const, ScalarCall
from weft.ir.loops_verify import call_error
from weft.ir.math import expand
from weft.ir.ops import (
    COMBINE,
    COMPARE,
    CONVERSIONS,
    ELEMENTWISE,
    EXPANDED,
    LEAVES,
    REDUCE,
    TRANSCENDENTAL,
    Op,
)
from weft.ir.regions.ops import ACCESSES
from weft.testing import reference

EVERY = frozenset(Op)
TOTAL: dict[str, tuple[Iterable[Op], frozenset[Op]]] = {
    "shape rules: RULES of weft/ir/shape_rules.py": (shape_rules.RULES, EVERY - LEAVES - {Op.FMA}),
    "derivatives: VJP of weft/autograd/vjp.py": (VJP, EVERY),
    "batching: BATCH of weft/autograd/batching.py": (BATCH, EVERY),
    "regions: ACCESSES of weft/ir/regions/ops.py": (ACCESSES, EVERY),
    "reference of graphs: REFERENCE of weft/testing/reference.py": (reference.REFERENCE, EVERY),
    "reference of calls: REFERENCE of weft/ir/reference_ops.py": (
        reference_ops.REFERENCE,
        ELEMENTWISE - CONVERSIONS - {Op.WHERE},
    ),
    "functions: FUNCTIONS of weft/ir/reference_ops.py": (reference_ops.FUNCTIONS, TRANSCENDENTAL),
    "expansions: EXPANSIONS of weft/ir/math/expand.py": (expand.EXPANSIONS, TRANSCENDENTAL),
    "combining: COMBINE of weft/ir/ops.py": (COMBINE, REDUCE),
    "instructions of LLVM: RULES of weft/backends/llvm/scalar.py": (llvm.NATIVE, ELEMENTWISE - EXPANDED),
    "operators of C: RULES of weft/backends/clike/scalar.py": (clike.NATIVE, ELEMENTWISE - EXPANDED),
}
"""What each table holds, and what it has to."""


@pytest.mark.parametrize("table", TOTAL)
def test_a_table_has_a_line_for_each_of_its_ops_and_no_other(table: str) -> None:
    """The name of a table, which a failing test shows, says where the line belongs."""
    found, wanted = TOTAL[table]
    assert set(found) == wanted, (
        f"{table}: add {sorted(wanted - set(found), key=str)}, take out {sorted(set(found) - wanted, key=str)}"
    )


def test_every_op_is_in_one_category_only() -> None:
    sets = [LEAVES, ELEMENTWISE, REDUCE, ops.MOVEMENT, ops.STRUCTURE]
    assert sum(map(len, sets)) == len(Op) and frozenset[Op]().union(*sets) == EVERY


@pytest.mark.parametrize("op", sorted(ELEMENTWISE - CONVERSIONS - {Op.WHERE}, key=str), ids=str)
def test_an_op_folds_on_the_dtypes_that_it_is_defined_on(op: Op) -> None:
    for d in dtypes.DTYPES.values():
        args, out = (Const(d, 1),) * (op.info.arity or 0), dtypes.bool_ if op in COMPARE else d
        if (
            call_error(ScalarCall(out, op, args)) is None and op is not Op.THREEFRY
        ):  # whose numbers nobody needs early
            assert fold.fold(op, out, args) is not None, f"add {op} on {d} to the tables of weft/ir/fold.py"


def test_transcendental_ops_are_listed_only_where_each_has_a_rule_of_its_own() -> None:
    lists: set[str] = set()
    for path in Path(weft.__file__).parent.rglob("*.py"):
        named = set(re.findall(r"\bOp\.(\w+)", path.read_text(encoding="utf-8")))
        if {op.name for op in TRANSCENDENTAL} <= named:
            lists.add(path.name)
    assert lists == {"vjp.py", "expand.py", "reference_ops.py", "elementwise.py"}, (
        "derive it from TRANSCENDENTAL"
    )
