"""The passes in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.ir.loops import Program
from weft.ir.loops_verify import verify as check
from weft.ir.passes.barriers import place_barriers
from weft.ir.passes.clip import clip
from weft.ir.passes.cse import share
from weft.ir.passes.dead import remove_dead
from weft.ir.passes.fma import contract
from weft.ir.passes.licm import hoist
from weft.ir.passes.peel import peel
from weft.ir.passes.quotients import divide_by_products
from weft.ir.passes.simplify import simplify
from weft.ir.passes.strength import reduce_strength

Pass: TypeAlias = Callable[[Program], Program]

DEFAULT: tuple[Pass, ...] = (
    simplify,
    clip,
    peel,
    simplify,  # with the ranges of the split loops
    reduce_strength,
    divide_by_products,
    hoist,
    share,
    remove_dead,
    contract,
    place_barriers,
)


def run(program: Program, passes: Sequence[Pass] = DEFAULT, verify: bool | None = None) -> Program:
    """`program` after the passes; verified before, between and after them if asked (by default, as settings say)."""
    from weft import settings

    checked = settings.verify() if verify is None else verify
    if checked:
        check(program)
    left: dict[Pass, Program] = {}  # what each pass returned last: it would find nothing more to do there
    for step in passes:
        if left.get(step) is program:
            continue
        before = program
        program = left[step] = step(before)
        if checked and program is not before:
            check(program)
    return program
