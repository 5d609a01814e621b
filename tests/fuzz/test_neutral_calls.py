"""Calls that happen to do nothing, by every public function: what comes out is as independent as torch's.

Every function that torch has too is called on tensors of sizes 0, 1 and 2 with arguments that often change nothing
(roll by 0, pad by 0, a dimension of size 1). Whether the result is a leaf, requires grad, may be written to, and
whether a write to it reaches the input, is torch's answer. Nothing is computed. Without the knob: few shapes and
arguments, and no methods, which are the same functions.
"""

from __future__ import annotations

import itertools
import os
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import weft

torch = pytest.importorskip("torch")

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
SIZES = (0, 1, 2) if EXAMPLES else (1, 2)
SHAPES = [s for rank in range(4) for s in itertools.product(SIZES, repeat=rank)]
if not EXAMPLES:
    SHAPES = [(2, 1)]

_RANDOM = """
    rand dropout bernoulli multinomial normal poisson binomial gumbel rrelu fractional empty uniform exponential cauchy
    geometric init bessel polynomial airy
"""
_LEFT_OUT = """
    tensor as_tensor asarray from_numpy save load compile numpy tolist item backward set_printoptions manual_seed
    nonzero unique unique_consecutive masked_select argwhere bincount histc histogram histogramdd combinations
    is_nonzero equal allclose repeat_interleave isin set_default_dtype set_num_threads set_grad_enabled storage
    untyped_storage register_hook retain_grad type nonzero_static one_hot cuda resize set_default_device
    embedding_bag embedding vmap cond pca_lowrank svd_lowrank lobpcg igamma igammac gammainc gammaincc polygamma
    mvlgamma zeta

    contiguous unsafe_chunk unsafe_split unsafe_split_with_sizes data_ptr real imag stft istft from_dlpack to_dlpack

    diff geqrf median nanmedian meshgrid select select_copy topk trapezoid trapz triangular_solve unfold_copy
    vander view_copy lstsq
"""
RANDOM, LEFT_OUT = tuple(_RANDOM.split()), frozenset(_LEFT_OUT.split())
"""What makes no tensor of a tensor or looks at values (or takes long); what shares nothing, or more, in weft, which has
no storage (manuals/from_torch.md); and what differs where there are no elements, or requires grad where torch's has no
derivative."""

UNREDUCED = frozenset({"binary_cross_entropy_with_logits", "hinge_embedding_loss", "kl_div"})
"""Losses that torch has without documentation beside `nn.functional`, too, where they are not reduced."""


def functions() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """The name, weft's function and torch's."""
    places: list[tuple[str, Any, Any]] = [
        ("", weft, torch),
        ("Tensor.", weft.Tensor, torch.Tensor),
        ("nn.functional.", weft.nn.functional, torch.nn.functional),
        ("linalg.", weft.linalg, torch.linalg),
        ("special.", weft.special, torch.special),
    ]
    for prefix, ours, theirs in places if EXAMPLES else places[:1] + places[2:]:
        for name in sorted(set(dir(ours)) | set(getattr(ours, "__all__", ()))):
            if (
                name.startswith("_")
                or name in LEFT_OUT
                or (not prefix and name in UNREDUCED)
                or any(r in name for r in RANDOM)
                or name.endswith("_")
            ):
                continue
            f, g = getattr(ours, name, None), getattr(theirs, name, None)
            if (
                isinstance(f, (type, types.ModuleType))
                or isinstance(g, type)
                or not (callable(f) and callable(g))
            ):
                continue
            yield prefix + name, f, g


def arguments(shape: tuple[int, ...]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What may follow the tensor; functions of a module stand for tensors of it."""
    rank = len(shape)

    def same(m: Any) -> Any:
        return m.ones(shape)

    def where_zero(m: Any) -> Any:
        return m.zeros(shape, dtype=m.int64)

    def nowhere(m: Any) -> Any:
        return m.zeros(shape, dtype=m.bool)

    def everywhere(m: Any) -> Any:
        return m.ones(shape, dtype=m.bool)

    def nothing(m: Any) -> Any:
        return m.zeros(0, dtype=m.int64)

    def kind(m: Any) -> Any:
        return m.float32

    positional: list[tuple[Any, ...]] = [
        (), (0,), (1,), (2,), (-1,), (0, 0), (0, 1), (1, 0), (1.0,), (0.0, 1.0), (-9.0, 9.0), (None,), (shape,), ([0],),
        ([],), ([1] * rank,), ([1] * (rank + 1),), ([0, 0],), ([0] * (2 * rank),), (list(range(rank)),), ([0], [0]),
        (same,), (same, 0), (0, same), (0, where_zero), (0, where_zero, same), (nowhere, 0.0), (nowhere, same),
        (everywhere, same), (nothing, 0), (0, nothing), (kind,), ("cpu",), (shape[-1:],), (1, 1), (0, 0, 1),
        (shape[2:],), (same, same), (0, 0, shape[0] if shape else 0),
    ]  # fmt: skip
    named: list[dict[str, Any]] = [
        {"training": False}, {"p": 0.0}, {"min": -9.0}, {"max": 9.0}, {"size": shape[2:]}, {"scale_factor": 1.0},
        {"dim": 0}, {"dim": 0, "keepdim": True}, {"dim": ()}, {"dim": []}, {"n": 0}, {"shifts": 0}, {"dims": ()},
        {"dims": (0,)}, {"copy": False}, {"copy": True, "dtype": kind}, {"weight": None}, {"start_dim": 0},
        {"decimals": 0}, {"alpha": 0, "other": same}, {"kernel_size": 1}, {"normalized_shape": ()},
    ]  # fmt: skip
    every = [(a, {}) for a in positional] + [((), k) for k in named]
    return every if EXAMPLES else every[:8] + every[13:16] + every[20:22] + every[44:50]


def made(m: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    def one(a: Any) -> Any:
        return a(m) if isinstance(a, types.FunctionType) else a

    return [one(a) for a in args], {k: one(a) for k, a in kwargs.items()}


REFUSED = (
    RuntimeError,
    IndexError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    KeyError,
)


def works(do: Callable[[], object]) -> bool:
    try:
        do()
    except (RuntimeError, IndexError, ValueError, TypeError):
        return False
    return True


def tensors(m: Any, y: Any) -> list[Any]:
    if isinstance(y, m.Tensor):
        return [y]
    return [t for t in y if isinstance(t, m.Tensor)] if isinstance(y, (list, tuple)) else []


def held(x: Any) -> Any:
    """What tells whether a tensor was written to."""
    return x.value if isinstance(x, weft.Tensor) else x._version  # pyright: ignore[reportPrivateUsage]


def answers(
    m: Any, f: Callable[..., Any], shape: tuple[int, ...], args: Any, kwargs: Any
) -> list[Any] | None:
    """How a call on a leaf, on a constant and on a result behave; None where it raises or gives no float tensors."""
    found: list[Any] = []

    def call(x: Any) -> list[Any]:
        more, named = made(m, args, kwargs)
        return [t for t in tensors(m, f(x, *more, **named)) if t.is_floating_point()]

    try:
        leaf = m.ones(shape).requires_grad_()
        count = len(call(leaf))
    except REFUSED:  # that is other tests' business
        return None
    for k in range(min(count, 2)):
        y = call(leaf)[k]
        found.append((y is leaf, y.is_leaf, y.requires_grad, works(lambda y=y: y.add_(1))))
        y = call(leaf)[k]
        if tuple(y.shape)[:1] not in ((), (0,)):
            found.append(works(lambda y=y: y[0].fill_(3)))
        plain = m.ones(shape)
        before = held(plain)
        y = call(plain)[k]
        found.append((y is plain, y.is_leaf))
        if 0 not in (*shape, *y.shape):
            with m.no_grad():
                found.append(works(lambda y=y: y.add_(1)) and held(plain) != before)
        result = m.ones(shape).requires_grad_() * 1
        y = call(result)[k]
        if y.requires_grad:
            found.append((y is result, not y.is_leaf and hooks_reach(y, result)))
    return found


def hooks_reach(y: Any, x: Any) -> bool:
    """Whether a hook on the result sees what flows past it into the input."""
    seen: list[int] = []
    y.register_hook(lambda g: seen.append(1))
    (x * 2).sum().backward()
    return bool(seen)


def differences(name: str, ours: Any, theirs: Any) -> list[str]:
    found: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shape in SHAPES:
            for args, kwargs in arguments(shape):
                want = answers(torch, theirs, shape, args, kwargs)
                if not want:
                    continue
                got = answers(weft, ours, shape, args, kwargs)
                if got is not None and got != want:
                    shown, named = made(torch, args, kwargs)
                    found.append(f"{name} {shape} {shown} {named}: weft {got}, torch {want}")
    return found


@pytest.mark.parametrize("part", range(4))
def test_calls_that_do_nothing(part: int) -> None:
    wrong = [
        d for k, (name, f, g) in enumerate(functions()) if k % 4 == part for d in differences(name, f, g)
    ]
    assert not wrong, "\n".join(wrong)
