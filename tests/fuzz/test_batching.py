"""The batching transform on random programs: each example of the batched program is the program of that example."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from weft.autograd.batching import BATCH, batched, placeholder, spread
from weft.autograd.ops import full
from weft.autograd.reverse import gradients
from weft.autograd.value import Value, apply
from weft.ir import dtypes
from weft.ir.ops import Op
from weft.testing.programs import GraphProgram, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import programs

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))


def test_every_op_has_a_rule() -> None:
    assert set(BATCH) == set(Op)


def run(p: GraphProgram, leaves: list[Value]) -> Value:
    values = list(leaves)
    for s in p.steps:
        if s.op in (Op.CONST, Op.RANGE):
            values.append(Value(s.apply([])))
        else:
            values.append(apply(s.op, tuple(values[i] for i in s.inputs), s.attrs, s.shape, s.dtype))
    return values[p.outputs[0]]


def with_gradients(out: Value, leaves: list[Value]) -> list[Value]:
    """The value, and the gradient of its sum by each float leaf (by none if it depends on none)."""
    if not out.needs_grad:
        return [out]
    wanted = [v for v in leaves if v.needs_grad]
    found = gradients([out], [full(1, out.shape, out.dtype)], wanted, True)
    return [out, *(found[v] for v in wanted if v in found)]


def test_batched_programs_compute_every_example() -> None:
    @settings(
        max_examples=EXAMPLES or 150,
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(
        programs(max_steps=7, allowed=(dtypes.float32, dtypes.float64, dtypes.int32, dtypes.bool_)),
        st.integers(0, 2**16),
    )
    def compare(p: GraphProgram, seed: int) -> None:
        assume(not any(s.op is Op.COPY for s in p.steps))
        note(repr(p))
        rng = np.random.default_rng(seed)
        size = 3
        sliced = [bool(rng.random() < 0.7) for _ in p.leaves]
        stacks = [
            np.stack([a, *(rng.permuted(a.ravel()).reshape(a.shape) for _ in range(size - 1))]) if s else a
            for a, s in zip(p.leaves, sliced, strict=True)
        ]

        def value(a: Any) -> Value:
            node = numpy_leaf(a)
            return Value(node, node.dtype.is_float)

        whole = [value(a) for a in stacks]
        one = [
            placeholder(v.shape[1:], v.dtype, v.node.device, v.needs_grad) if s else v
            for v, s in zip(whole, sliced, strict=True)
        ]
        given = {o: v for o, v, s in zip(one, whole, sliced, strict=True) if s}
        if not given:
            return
        # gradients taken inside and batched, and gradients of what was batched
        inner = with_gradients(run(p, one), one)
        done = [v if has else spread(v, size) for v, has in batched(inner, given, size)]
        outer = with_gradients(done[0], [v for v, s in zip(whole, sliced, strict=True) if s])
        single = [
            with_gradients(run(p, leaves), leaves)
            for b in range(size)
            for leaves in [[value(a[b]) if s else value(a) for a, s in zip(stacks, sliced, strict=True)]]
        ]
        with np.errstate(all="ignore"):
            results = evaluate([v.node for v in (*done, *outer, *(v for s in single for v in s))])
        first, second, rest = (
            results[: len(done)],
            results[len(done) : len(done) + len(outer)],
            results[len(done) + len(outer) :],
        )
        expected = [np.stack(rest[k :: len(done)]) for k in range(len(done))]
        for k, (got, want) in enumerate(zip(first, expected, strict=True)):
            np.testing.assert_allclose(
                got.astype("f8"), want.astype("f8"), rtol=1e-5, atol=1e-6, err_msg=f"output {k}"
            )
        np.testing.assert_array_equal(second[0], first[0])
        if len(outer) == 1 + sum(s and v.needs_grad for v, s in zip(whole, sliced, strict=True)) and len(
            done
        ) == 1 + sum(v.needs_grad for v in whole):
            picked = [s for v, s in zip(whole, sliced, strict=True) if v.needs_grad]
            inside = [g for g, s in zip(first[1:], picked, strict=True) if s]
            for got, want in zip(second[1:], inside, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

    compare()
