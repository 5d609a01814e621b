"""Random programs in sessions, with random sequences of edits: every run has the bits of a session that starts anew.

`make test` tries a few, `make fuzz` as many as WEFT_FUZZ_EXAMPLES says. A failure prints the program and the edits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import weft
from weft.autograd.value import Value
from weft.core.args.handle import wrap
from weft.errors import MemoryPlanError
from weft.ir.ops import Op
from weft.scheduler.keeping import nbytes
from weft.sessions.keeper import Choice
from weft.sessions.retention import aligned
from weft.sessions.session import Session, session
from weft.testing.programs import Array, GraphProgram
from weft.testing.strategies import choice, programs, reduction_programs, view_programs

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))

DEVICES = {"cpu:0": 20, "dummy:0": 15}
"""Device -> examples of each kind in the short profile."""

KINDS = {
    "any": programs(max_steps=8),
    "views": view_programs(),
    "reductions": reduction_programs(),
}


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of inputs before a run: what is written, and whether by a write through weft, a fresh tensor or an
    array, or said by the caller."""

    what: str
    by: str
    seed: int


EDITS = st.builds(
    Edit,
    choice(("none", "element", "rows", "columns", "boxes", "all", "two inputs")),
    choice(("write", "tensor", "array", "said")),
    st.integers(0, 2**16),
)


def some_box(rng: np.random.Generator, shape: tuple[int, ...], what: str) -> tuple[slice, ...]:
    """A box of a kind, as an index."""
    box: list[slice] = []
    for k, n in enumerate(shape):
        lo = int(rng.integers(n))
        hi = int(rng.integers(lo + 1, n + 1))
        is_whole = (
            what == "all" or (what == "rows" and k > 0) or (what == "columns" and k == 0 and len(shape) > 1)
        )
        box.append(slice(0, n) if is_whole else slice(lo, lo + 1) if what == "element" else slice(lo, hi))
    return tuple(box)


def edited(arrays: list[Array], edit: Edit) -> dict[int, list[tuple[slice, ...]]]:
    """Change the arrays; the boxes that were written, by array."""
    rng = np.random.default_rng(edit.seed)
    found: dict[int, list[tuple[slice, ...]]] = {}
    filled = [k for k, a in enumerate(arrays) if a.size]
    if edit.what == "none" or not filled:
        return found
    for k in rng.choice(filled, 2 if edit.what == "two inputs" else 1).tolist():
        for _ in range(3 if edit.what == "boxes" else 1):
            box = some_box(rng, arrays[k].shape, edit.what)
            part = arrays[k][box]
            arrays[k][box] = rng.permuted(arrays[k].ravel())[: part.size].reshape(part.shape)
            found.setdefault(k, []).append(box)
    return found


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(x.numpy()).tobytes()


def keep_some(s: Session, seed: int) -> None:
    """Have a session keep some of what kernels store, on the way to its results: by themselves, or sharing an arena
    with the scratch of runs, which takes their places."""
    rng = np.random.default_rng(seed)
    for form in s._forms.values():
        results = set(form.template.results)
        inside = [n for n in form.keeper.stored if n not in results and rng.integers(2)]
        kept = tuple(n for n in form.keeper.stored if n in results or n in inside)
        total = sum(aligned(nbytes(n)) for n in inside)
        for arena in (
            (None,) if rng.integers(3) == 0 else (total + 64 * int(rng.integers(8)), total + (1 << 20))
        ):
            at, offsets = total if arena is None else arena, dict[Any, int]()
            for k in rng.permutation(len(inside)).tolist():
                at -= aligned(nbytes(inside[k]))
                offsets[inside[k]] = at
            try:
                form.keep(Choice(kept, arena, offsets))
            except MemoryPlanError:
                continue
            break


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_runs_have_the_bits_of_a_session_that_starts_anew(kind: str, device: str) -> None:
    @settings(
        max_examples=EXAMPLES or DEVICES[device],
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(KINDS[kind], st.lists(EDITS, min_size=1, max_size=5))
    def compare(p: GraphProgram, edits: list[Edit]) -> None:
        if any(s.op is Op.COPY for s in p.steps):
            return
        note(repr(p))
        note(repr(edits))

        def fn(*leaves: weft.Tensor) -> list[weft.Tensor]:
            values = [t.value.node for t in leaves]
            for step in p.steps:
                values.append(step.apply(values))
            return [wrap(Value(values[i])) for i in p.outputs]

        with weft.device(device):
            arrays = [np.array(a) for a in p.leaves]
            tensors = [weft.tensor(a) for a in arrays]
            s = session(fn, memory=1 << 24) if edits[0].seed % 3 else session(fn)
            names = [f"x{k}" for k in range(len(arrays))]
            s._names = names
            before = s(*tensors)
            if edits[0].seed % 3:
                keep_some(s, edits[0].seed)
                before = s(*tensors)
            for edit in edits:
                boxes = edited(arrays, edit)
                given_ = list(tensors)
                said: dict[str, Any] = {}
                for k, at in boxes.items():
                    if edit.by == "write":
                        for box in at:
                            tensors[k][box] = weft.tensor(np.array(arrays[k][box]))
                        continue
                    tensors[k] = given_[k] = weft.tensor(np.array(arrays[k]))
                    if edit.by == "array":
                        given_[k] = arrays[k]
                    if edit.by == "said":
                        said[names[k]] = at
                old = [bits(y) for y in before]
                held = before if edit.seed % 2 else None
                if held is None:
                    before = None
                found = s(*(given_ if edit.by == "array" else tensors), changed=said)
                want = session(fn)(*[weft.tensor(np.array(a)) for a in arrays])
                for y, w, o in zip(found, want, old, strict=True):
                    assert bits(y) == bits(w), edit
                    if y.changed.is_empty:
                        assert bits(y) == o
                if held is not None:
                    assert [bits(y) for y in held] == old
                before = found

    compare()
