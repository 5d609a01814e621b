"""Values and gradients of torch's own samples of its operators, beside torch's: `make samples`.

torch keeps, for its own tests, a list of operators with samples of arguments. Each sample is computed by torch and by
weft in 64-bit floats, results are compared, and so are the gradients of a weighted sum of them. What weft has not, or
cannot take (complex numbers, sparse layouts), is counted apart. A failure that `KNOWN` does not explain is an error.

    python -m tools.torch_samples                    # all operators, a few samples of each
    python -m tools.torch_samples --samples 0 linalg.   # all samples of operators whose names begin so
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import multiprocessing
import sys
import types
import unittest.mock
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft

RANDOM = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform"),
    *("rand_like", "randint", "randint_like", "randn", "randn_like", "torch.ops.aten._safe_softmax.default"),
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *(
        f"nn.functional.{name}"
        for name in (
            "dropout", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu", "gumbel_softmax",
            "fractional_max_pool2d", "fractional_max_pool3d", "multi_head_attention_forward",
        )
    ),
}  # fmt: skip
"""Operators whose values are drawn, or are none: only dtypes and sizes of results are compared."""

NOT_UNIQUE = {
    "svd", "linalg.svd", "linalg.eigh", "linalg.eig", "qr", "linalg.qr", "geqrf", "ormqr", "lobpcg", "svd_lowrank",
    "linalg.householder_product", "pca_lowrank",
}  # fmt: skip
"""Decompositions that are right in several signs or orders: only dtypes and sizes are compared; tests/core/
linear_algebra multiplies their factors."""

TOLERANCES = {1: 0.2, 2: 2e-2, 4: 1e-5, 8: 1e-9}
"""Relative differences of values by the bytes of the narrowest floats that go in; of gradients, a hundred times it."""

Function = Callable[..., Any]

ADAPTED: dict[str, Callable[[Function], Function]] = {
    "normal.in_place": lambda f: weft.Tensor.normal_,
    "einsum": lambda f: lambda parts, equation: f(equation, *parts),
    "linalg.lstsq.grad_oriented": lambda f: lambda a, b, driver: f(a, b, driver=driver)[:2],
    "linalg.pinv.singular": lambda f: lambda a, b: f(a @ b.mT),
    "nn.functional.embedding": lambda f: lambda weight, indices, **k: f(indices, weight, **k),
    "nn.functional.embedding_bag": lambda f: lambda weight, indices, **k: f(indices, weight, **k),
    "pca_lowrank": lambda f: lambda a, b, **k: f(a @ b.mT, **k),
    "svd_lowrank": lambda f: lambda a, b, **k: f(a @ b.mT, **k),
    "where": lambda f: lambda a, condition, b: f(condition, a, b),
    "zero_": lambda f: lambda x: f(x.clone()),
}
"""How torch's list calls functions whose samples are in another order, or only parts of the arguments."""

KNOWN = {
    "as_strided.partial_views": "storages are not shared with what a view leaves out",
    "as_strided_scatter": "torch's gradient of the input is that of the part overwritten",
    "nn.functional.batch_norm": "inputs have channels, samples without are refused",
    "nn.functional.triplet_margin_with_distance_loss": "the distance is a module of torch, for its tensors",
    **dict.fromkeys(
        [
            "special.airy_ai",
            "special.bessel_j0",
            "special.bessel_j1",
            "special.bessel_y0",
            "special.bessel_y1",
        ],
        "torch's 64-bit values are those of 32 bits, weft's are SciPy's to 1e-12",
    ),
}
"""Operators, as written in reports, and why weft's results or gradients are not torch's."""


class UntranslatableError(Exception):
    """An argument that weft has no kind for: complex numbers, other layouts and devices."""


@dataclass
class Tally:
    """What became of an operator's samples."""

    name: str
    passed: int = 0
    untranslatable: int = 0
    missing: bool = False
    failures: list[str] = field(default_factory=list[str])


def operators(patch: Callable[[Any, str, Any], Any] = setattr) -> list[Any]:
    """torch's list of operators. Its module asks for a package that only torch's tests need, and looks for its own test
    in the sources of all callers for each sample, which would be nine tenths of the time."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    common = importlib.import_module("torch.testing._internal.common_methods_invocations")
    for module in ("common_utils", "opinfo.core"):
        patch(importlib.import_module(f"torch.testing._internal.{module}"), "extract_test_fn", lambda: None)
    return list(common.op_db)


def function_of(name: str) -> Callable[..., Any] | None:
    """weft's function of an operator's name: of a namespace, or a method."""
    found: Any = weft
    for part in name.split("."):
        found = getattr(found, part, None)
        if not callable(found) and not isinstance(found, types.ModuleType):
            found = getattr(weft.Tensor, name, None)
            return found.fget if isinstance(found, property) else found
    return found


class Translation:
    """torch's arguments as weft's, and which tensor became which."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.dtypes = {
            getattr(torch, d.name): d for d in weft.ir.dtypes.DTYPES.values() if hasattr(torch, d.name)
        }
        self.pairs: list[tuple[Any, weft.Tensor]] = []

    def __call__(self, x: Any) -> Any:
        torch = self.torch
        match x:
            case torch.Tensor():
                return self.tensor(x)
            case torch.dtype():
                if x not in self.dtypes:
                    raise UntranslatableError
                return self.dtypes[x]
            case torch.device():
                return x.type
            case torch.layout() | torch.memory_format() | complex():
                raise UntranslatableError
            case torch.Generator():
                return weft.Generator()
            case dict():
                return {k: self(v) for k, v in x.items()}
            case list():
                return [self(i) for i in x]
            case tuple():
                return tuple(self(i) for i in x)
            case _:
                return x

    def tensor(self, x: Any) -> weft.Tensor:
        if (
            x.layout != self.torch.strided
            or x.dtype not in self.dtypes
            or x.device.type != "cpu"
            or x.dim() > 60
        ):
            raise UntranslatableError
        for theirs, ours in self.pairs:
            if theirs is x:
                return ours
        ours = weft.from_torch(x.detach(), requires_grad=x.requires_grad)
        self.pairs.append((x, ours))
        return ours


def tensors(x: Any, kind: type) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(x, kind):
        return [x]
    if isinstance(x, dict):
        return [t for v in x.values() for t in tensors(v, kind)]
    if isinstance(x, (list, tuple)):
        return [t for v in x for t in tensors(v, kind)]
    return []


def array(t: Any) -> np.ndarray[Any, Any]:
    """A tensor's values, of torch or weft, in a dtype that NumPy computes with."""
    if isinstance(t, weft.Tensor):
        t = t.detach()
        return (t.float() if t.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else t).numpy()
    return (t.float() if str(t.dtype) == "torch.bfloat16" else t).numpy(force=True)


def difference(want: Any, found: Any, tolerance: float, values: bool = True) -> str | None:
    """How two tensors differ in dtype, sizes or values; None if they do not."""
    if str(want.dtype).removeprefix("torch.") != found.dtype.name:
        return f"dtype {found.dtype.name}, not {want.dtype}"
    if tuple(want.shape) != tuple(found.shape):
        return f"shape {tuple(found.shape)}, not {tuple(want.shape)}"
    if not values:
        return None
    a, b = array(want), array(found)
    if a.dtype.kind in "iub":
        return None if np.array_equal(a, b) else f"{int((a != b).sum())} of {a.size} integers differ"
    narrow = max(tolerance, TOLERANCES[min(a.dtype.itemsize, 8)])
    finite = np.abs(a[np.isfinite(a)])
    scale = float(finite.max()) if finite.size else 0.0
    near = np.isclose(b, a, rtol=narrow, atol=narrow * max(1e-3, min(scale, 1.0)), equal_nan=True)
    if near.all():
        return None
    k = int(np.argmin(near.reshape(-1)))
    return f"{int((~near).sum())} of {a.size} values differ: {b.reshape(-1)[k]!r}, not {a.reshape(-1)[k]!r} (at {k})"


def weighted(results: Sequence[Any], module: Any) -> Any:
    """The sum of all results, each element with a weight of its own."""
    total = 0.0
    for t in results:
        weights = (np.cos(np.arange(math.prod(t.shape), dtype=np.float64)) + 1.5).reshape(tuple(t.shape))
        w = module.from_numpy(weights).to(t.dtype)
        total = total + (t * w).sum()
    return total


def compare(op: Any, sample: Any, function: Callable[..., Any]) -> str | None:
    """How weft's results or gradients for a sample differ from torch's; None if they do not."""
    import torch

    translate = Translation()
    args, kwargs = translate([sample.input, *sample.args]), translate(dict(sample.kwargs))
    torch.manual_seed(0)
    theirs = op.op(sample.input, *sample.args, **sample.kwargs)
    if any(t.is_complex() or t.layout != torch.strided for t in tensors(theirs, torch.Tensor)):
        raise UntranslatableError
    ours = function(*args, **kwargs)
    want, found = tensors(theirs, torch.Tensor), tensors(ours, weft.Tensor)
    if not want:
        return None if theirs == ours else f"{ours!r}, not {theirs!r}"
    if len(want) != len(found):
        return f"{len(found)} results, not {len(want)}"
    drawn = op.name in RANDOM or kwargs.get("dropout_p") not in (None, 0.0)
    values = not drawn and op.name not in NOT_UNIQUE
    narrow = min((a.element_size() for a, _ in translate.pairs if a.is_floating_point()), default=8)
    for k, (a, b) in enumerate(zip(want, found, strict=True)):
        said = difference(a, b, TOLERANCES[narrow], values)
        if said:
            return f"result {k}: {said}"
        if a.requires_grad != b.requires_grad:
            return f"result {k}: requires_grad {b.requires_grad}, not {a.requires_grad}"
    if not values or not op.supports_autograd:
        return None
    return gradients(
        [t for t in want if t.requires_grad and t.is_floating_point()],
        [b for t, b in zip(want, found, strict=True) if t.requires_grad and t.is_floating_point()],
        [(a, b) for a, b in translate.pairs if a.requires_grad and a.is_leaf],
        100 * TOLERANCES[narrow],
    )


def gradients(
    want: list[Any], found: list[Any], leaves: list[tuple[Any, weft.Tensor]], tolerance: float
) -> str | None:
    """How the gradients of the leaves differ; None where they do not, or torch has none."""
    import torch

    if not want or not leaves:
        return None
    try:
        theirs = torch.autograd.grad(weighted(want, torch), [a for a, _ in leaves], allow_unused=True)
    except (RuntimeError, NotImplementedError):
        return None
    ours = weft.autograd.grad(weighted(found, weft), [b for _, b in leaves], allow_unused=True)
    for k, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        if a is None or b is None:
            other = a if b is None else b
            if other is not None and array(other).any():
                return f"gradient {k}: {'none' if b is None else 'some'}, torch has {'some' if b is None else 'none'}"
            continue
        said = difference(a, b, tolerance)
        if said:
            return f"gradient {k}: {said}"
    return None


def samples(op: Any, limit: int, dtype_name: str) -> Iterator[Any]:
    """An operator's samples, at most `limit` of them, spread over the list; all if it is 0."""
    import torch

    choices = [getattr(torch, dtype_name), torch.float64, torch.float32, torch.int64, torch.bool]
    dtype = next((d for d in choices if d in op.dtypes), None)
    if dtype is None:
        return
    grad = bool(op.supports_autograd and dtype.is_floating_point)
    every = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    step = max(1, len(every) / limit) if limit else 1
    chosen = sorted({int(k * step) for k in range(len(every)) if int(k * step) < len(every)})
    yield from (every[k] for k in chosen)


def text(sample: Any) -> str:
    """A sample's arguments in a line, tensors by dtype and sizes."""
    import torch

    def short(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(map(short, x)) + "]"
        return repr(x)

    named = [f"{k}={short(v)}" for k, v in sample.kwargs.items()]
    return ", ".join([short(sample.input), *map(short, sample.args), *named])


@contextmanager
def seeds_of_the_host() -> Iterator[None]:
    """Within, torch's seeds are those of the host alone: to note them for devices that are not there takes a walk up
    the stack each time, a third of all that comparing one sample takes."""
    import torch

    with ExitStack() as stack:
        for device in (torch.cuda, torch.mtia, torch.xpu):
            stack.enter_context(unittest.mock.patch.object(device, "manual_seed_all", lambda seed: None))
        yield


@seeds_of_the_host()
def judge(op: Any, limit: int, dtype: str) -> Tally:
    """What becomes of an operator's samples."""
    tally = Tally(f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name)
    function = function_of(op.name)
    if function is not None and tally.name in ADAPTED:
        function = ADAPTED[tally.name](function)
    if function is None:
        tally.missing = True
        return tally
    try:
        every = list(samples(op, limit, dtype))
    except Exception as error:  # noqa: BLE001  (whatever torch's samples need)
        tally.failures.append(f"no samples: {type(error).__name__}: {error}")
        return tally
    for sample in every:
        try:
            said = compare(op, sample, function)
        except UntranslatableError:
            tally.untranslatable += 1
            continue
        except Exception as error:  # noqa: BLE001  (whatever is raised is the finding)
            said = f"{type(error).__name__}: {error}".splitlines()[0]
        if said:
            tally.failures.append(f"({text(sample)}): {said}")
        else:
            tally.passed += 1
    return tally


def part(arguments: tuple[int, int, int, str, list[str]]) -> list[Tally]:
    """The tallies of every n-th operator."""
    first, step, limit, dtype, names = arguments
    warnings.simplefilter("ignore")
    chosen = [op for op in operators() if not names or any(op.name.startswith(n) for n in names)]
    found: list[Tally] = []
    for op in chosen[first::step]:
        found.append(judge(op, limit, dtype))
        report(found[-1])
    return found


def report(tally: Tally) -> None:
    """Print what failed, and whether that is known."""
    if tally.failures:
        total = tally.passed + len(tally.failures)
        why = f"  known: {KNOWN[tally.name]}" if tally.name in KNOWN else ""
        print(f"{tally.name}: {len(tally.failures)} of {total} fail{why}", flush=True)
        for line in tally.failures if not why else ():
            print(f"    {line[:300]}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print what failed, and return 1 if something failed that nobody explains."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="how the operators' names begin")
    parser.add_argument("--samples", type=int, default=6, help="samples of each operator; 0 for all")
    parser.add_argument(
        "--dtype", default="float64", help="what the samples hold, where the operator takes it"
    )
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    work = [(k, given.processes, given.samples, given.dtype, given.names) for k in range(given.processes)]
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        tallies = [t for found in pool.map(part, work) for t in found]
    have = [t for t in tallies if not t.missing]
    unexplained = [t for t in have if t.failures and t.name not in KNOWN]
    whole = sum(not t.failures for t in have)
    missing = len(tallies) - len(have)
    print(
        f"{whole} of {len(have)} operators pass, {len(unexplained)} fail unexplained; {missing} are missing:"
    )
    print("    " + " ".join(sorted({t.name for t in tallies if t.missing})))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
