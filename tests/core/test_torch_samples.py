"""torch's own samples: values and gradients are torch's, and what it refuses is refused here, at the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch_samples import KNOWN, Translation, UntranslatableError, function_of, judge, operators

import weft

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

ACCEPTED = {
    r"atan2 copysign eq fmax fmin fmod ge gt hypot gcd igamma igammac lcm ldexp le logical_and logical_or logical_xor "
    r"lt maximum minimum ne rsub __radd__ __rand__ __rmul__ __ror__ __rxor__": "numbers are tensors without dimensions",
    r"bernoulli cat gather index_select kthvalue masked_select take": "`out` stands for the result: it may be anything "
    "of the right dtype, the input included",
    r"signal": "windows of 16-bit floats are computed",
}
"""Functions, and why they take some of what torch refuses: see manuals/from_torch.md."""


PARTS = 12
"""Tests that share torch's list; `make samples` compares more samples of each operator."""


def wrong_uses(ops: list[Any]) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any], str]]:
    """An operator's name, torch's call, weft's, and torch's arguments as text."""
    for op in ops:
        function, translate = function_of(op.name), Translation()
        if not op.error_inputs_func or function is None:
            continue
        for wrong in op.error_inputs("cpu"):
            s = wrong.sample_input
            try:
                args, kwargs = translate([s.input, *s.args]), translate(dict(s.kwargs))
            except UntranslatableError:
                continue
            theirs = lambda op=op, s=s: op.op(s.input, *s.args, **s.kwargs)  # noqa: E731
            ours = lambda f=function, a=args, k=kwargs: f(*a, **k)  # noqa: E731
            yield op.name, theirs, ours, f"{s.args} {s.kwargs}"


@pytest.mark.parametrize("part", range(PARTS))
def test_values_and_gradients_are_torchs(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tallies = [judge(op, 1, "float64") for op in operators(monkeypatch.setattr)[part::PARTS]]
    assert sum(t.passed for t in tallies) > 40
    assert {t.name: t.failures for t in tallies if t.failures and t.name not in KNOWN} == {}


def test_what_torch_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = {name for names in ACCEPTED for name in names.split()}
    taken: list[str] = []
    raw: list[str] = []
    refused = 0
    for name, theirs, ours, text in wrong_uses(operators(monkeypatch.setattr)):
        try:
            theirs()
        except Exception as error:  # noqa: BLE001  (whatever torch says)
            said = str(error)
        else:
            continue
        refused += 1
        try:
            ours()
        except weft.WeftError:
            continue
        except TypeError as error:  # a call that Python itself refuses
            if "argument" not in str(error) and "descriptor" not in str(error):
                raw.append(f"{name} {text}: {error}")
        else:
            if name.partition(".")[0] not in accepted:
                taken.append(f"{name} {text}: {said}")
    assert refused > 500
    assert taken == []
    assert raw == []


def spd(module: Any) -> Any:
    return module.tensor([[4.0, 1.0], [1.0, 3.0]])


NAMED: dict[str, Callable[[Any], Any]] = {
    "aminmax": lambda m: m.aminmax(spd(m)),
    "max": lambda m: m.max(spd(m), 1),
    "min": lambda m: m.min(spd(m), 1),
    "median": lambda m: m.median(spd(m), 1),
    "nanmedian": lambda m: m.nanmedian(spd(m), 1),
    "mode": lambda m: m.mode(spd(m), 1),
    "kthvalue": lambda m: m.kthvalue(spd(m), 1),
    "topk": lambda m: m.topk(spd(m), 1),
    "sort": lambda m: m.sort(spd(m)),
    "cummax": lambda m: m.cummax(spd(m), 0),
    "cummin": lambda m: m.cummin(spd(m), 0),
    "frexp": lambda m: m.frexp(spd(m)),
    "geqrf": lambda m: m.geqrf(spd(m)),
    "qr": lambda m: m.qr(spd(m)),
    "svd": lambda m: m.svd(spd(m)),
    "slogdet": lambda m: m.slogdet(spd(m)),
    "lu with infos": lambda m: m.lu(spd(m), get_infos=True),
    "lu_unpack": lambda m: m.lu_unpack(*m.linalg.lu_factor(spd(m))),
    "triangular_solve": lambda m: m.triangular_solve(spd(m), spd(m)),
    "histogram": lambda m: m.histogram(spd(m), 3),
    "histogramdd": lambda m: m.histogramdd(spd(m), 3),
    **{
        f"linalg.{name}": lambda m, name=name: getattr(m.linalg, name)(spd(m))
        for name in (
            "cholesky_ex", "eigh", "inv_ex", "ldl_factor", "ldl_factor_ex", "lu", "lu_factor", "lu_factor_ex", "qr",
            "slogdet", "svd",
        )
    },
    "linalg.lstsq": lambda m: m.linalg.lstsq(spd(m), spd(m)),
    "linalg.solve_ex": lambda m: m.linalg.solve_ex(spd(m), spd(m)),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_named_results(name: str) -> None:
    theirs, ours = NAMED[name](torch), NAMED[name](weft)
    others = {"count", "index", "n_fields", "n_sequence_fields", "n_unnamed_fields"}
    fields = {f for f in dir(theirs) if not f.startswith("_")} - others
    assert fields == set(ours._fields) and len(theirs) == len(ours)
    for field in fields:
        want, found = getattr(theirs, field), getattr(ours, field)
        for k, part in enumerate(ours):
            assert part is not found or theirs[k] is want or torch.equal(theirs[k], want)


def test_named_results_with_out() -> None:
    low, high = weft.empty(0), weft.empty(0)
    found = weft.aminmax(weft.tensor([3.0, 1.0]), out=(low, high))
    assert (found.min.item(), found.max.item(), low.item()) == (1.0, 3.0, 1.0)


CASTS = (
    "bfloat16", "bool", "byte", "char", "clone", "contiguous", "cpu", "double", "float", "half", "int", "long", "short",
)  # fmt: skip


@pytest.mark.parametrize("name", CASTS)
def test_memory_formats(name: str) -> None:
    x, image = weft.ones(2, 3), weft.ones(1, 2, 3, 3)
    plain = getattr(x, name)(memory_format=weft.contiguous_format)
    assert plain.dtype is getattr(x, name)().dtype and plain.shape == (2, 3)
    assert getattr(image, name)(memory_format=weft.channels_last).shape == (1, 2, 3, 3)
    with pytest.raises(weft.ArgumentError, match="channels_last is for tensors of 4 dimensions, got 2"):
        getattr(x, name)(memory_format=weft.channels_last)
    with pytest.raises(weft.DTypeError, match="memory_format must be one such as"):
        getattr(x, name)(memory_format="channels_last")


def test_memory_formats_of_new_tensors() -> None:
    x = weft.ones(2, 3)
    assert weft.empty_like(x, memory_format=weft.preserve_format).shape == (2, 3)
    assert x.to(weft.float64, memory_format=weft.contiguous_format).dtype is weft.float64
    for act in (
        lambda: weft.zeros_like(x, memory_format=3),
        lambda: x.to(weft.float64, memory_format="a"),
        lambda: x.is_contiguous(memory_format=1),
    ):
        with pytest.raises(weft.DTypeError, match="memory_format must be one such as"):
            act()
    with pytest.raises(weft.ArgumentError, match="preserve_format is for copies"):
        x.contiguous(memory_format=weft.preserve_format)
