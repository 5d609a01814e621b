"""Operators on meshes, or another device: torch's own samples beside the default device.

Each sample is computed on a mesh of 2, 3, 4 and 7 simulated devices for every placement of one operand along one axis,
the others being on all devices, and so is the gradient of a weighted sum of the results. They are compared with those
of one device.

    python -m tools.placed_samples                          # all operators, two samples of each
    python -m tools.placed_samples --samples 0 linalg.      # all samples of operators whose names begin so
    python -m tools.placed_samples --device dummy:1         # all operands on that device, where results have to be, too
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import weft
from tools.torch_samples import (
    ADAPTED,
    Translation,
    array,
    function_of,
    operators,
    samples,
    tensors,
    text,
    weighted,
)
from weft.distributed import DeviceMesh, init_device_mesh
from weft.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from weft.testing import farm

WORLDS = (2, 3, 4, 7)
TOLERANCES = {1: 0.2, 2: 2e-2, 4: 1e-5, 8: 1e-10}
"""Relative differences by the bytes of the narrowest floats: sums may be added in another order."""


@dataclass
class Tally:
    """What became of an operator's samples."""

    name: str
    placements: int = 0
    wrong: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])


Computed = tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any] | None]]
Function = Callable[..., Any]


def computed(
    function: Function, args: Any, kwargs: Any, leaves: Sequence[weft.Tensor], grad: bool
) -> Computed:
    """Results, and the gradients of the leaves."""
    weft.manual_seed(0)
    results = tensors(function(*args, **kwargs), weft.Tensor)
    homes = {kind(t) for t in leaves} - {"cpu"}
    away = {
        kind(t) for t in results if t.value.node.device is not None
    } - homes  # constants are at home anywhere
    if homes and away:
        raise RuntimeError(f"a result is on {', '.join(sorted(away))}")
    values = [array(whole(t)) for t in results]
    floats = [t for t in results if t.requires_grad and t.is_floating_point()]
    asked = [t for t in leaves if t.requires_grad and t.is_leaf]
    if not grad or not floats or not asked:
        return values, []
    try:
        found = weft.autograd.grad(total(floats), asked, allow_unused=True)
    except NotImplementedError:
        return values, []
    return values, [None if t is None else array(whole(t)) for t in found]


def kind(t: weft.Tensor) -> str:
    """The kind of a tensor's device."""
    return str(t.device).partition(":")[0]


def whole(t: weft.Tensor) -> weft.Tensor:
    """All of it, on the default device."""
    return t.full_tensor() if str(t.device).startswith("mesh") else t.to("cpu")


def total(results: Sequence[weft.Tensor]) -> Any:
    """The sum of all results, each element with a weight of its own."""
    return weighted([whole(t) for t in results], weft)


@dataclass(frozen=True)
class Place:
    """Where operands are: a name for it, and what puts one there."""

    name: str
    put: Callable[[weft.Tensor], weft.Tensor]


def moved(x: Any, place: Place, made: dict[int, weft.Tensor]) -> Any:
    """Arguments with tensors in another place."""
    match x:
        case weft.Tensor():
            if id(x) not in made:
                made[id(x)] = place.put(x.detach()).realize().requires_grad_(x.requires_grad)
            return made[id(x)]
        case dict():
            return {k: moved(v, place, made) for k, v in x.items()}
        case list():
            return [moved(v, place, made) for v in x]
        case tuple():
            return tuple(moved(v, place, made) for v in x)
        case _:
            return x


def differ(a: np.ndarray[Any, Any] | None, b: np.ndarray[Any, Any] | None, narrowest: int) -> bool:
    """Two arrays differ by more than another order of sums may make, of floats of so many bytes."""
    if a is None or b is None:
        return (a is None) != (b is None)
    if a.shape != b.shape or a.dtype != b.dtype:
        return True
    if a.dtype.kind in "iub":
        return not np.array_equal(a, b)
    narrow = TOLERANCES[min(a.dtype.itemsize, narrowest)]
    finite = np.abs(a[np.isfinite(a)])
    scale = float(finite.max()) if finite.size else 0.0
    return not np.isclose(b, a, rtol=narrow, atol=narrow * max(1e-3, scale), equal_nan=True).all()


def judge(
    op: Any, limit: int, dtype: str, places: Callable[[list[weft.Tensor]], Iterator[Place]]
) -> Tally | None:
    """What becomes of an operator's samples; None for one that weft has not."""
    tally = Tally(f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name)
    function = function_of(op.name)
    if function is None:
        return None
    if tally.name in ADAPTED:
        function = ADAPTED[tally.name](function)
    try:
        every = list(samples(op, limit, dtype))
    except Exception:  # noqa: BLE001  (whatever torch's samples need)
        return None
    for sample in every:
        translate = Translation()
        try:
            args, kwargs = translate([sample.input, *sample.args]), translate(dict(sample.kwargs))
            given = tensors([args, kwargs], weft.Tensor)
            one = computed(function, args, kwargs, given, op.supports_autograd)
        except Exception:  # noqa: BLE001  (what one device refuses, others may)
            continue
        if any(math.prod(t.shape) > 1 << 16 for t in given):
            continue
        for place in places(given):
            judge_one(tally, sample, function, (args, kwargs), place, one, op.supports_autograd)
    return tally


def on_meshes(meshes: Sequence[DeviceMesh], given: list[weft.Tensor]) -> Iterator[Place]:
    """Each operand along each of its axes, the others on all devices."""

    def put(mesh: DeviceMesh, number: int, dim: int) -> Callable[[weft.Tensor], weft.Tensor]:
        at = [0]

        def one(t: weft.Tensor) -> weft.Tensor:
            where: Placement = Shard(dim) if at[0] == number else Replicate()
            at[0] += 1
            return distribute_tensor(t, mesh, [where])

        return one

    distinct = list({id(t): t for t in given}.values())
    for mesh in meshes:
        for k, x in enumerate(distinct):
            for dim in range(x.dim()):
                yield Place(f"operand {k}, Shard({dim}) of {mesh.size()}", put(mesh, k, dim))


def on_device(device: str, given: list[weft.Tensor]) -> Iterator[Place]:
    """All operands on a device."""
    if given:
        yield Place(device, lambda t: t.to(device))


def judge_one(
    tally: Tally,
    sample: Any,
    function: Function,
    arguments: tuple[Any, Any],
    place: Place,
    one: Computed,
    grad: bool,
) -> None:
    """Count a sample in a place."""
    tally.placements += 1
    made: dict[int, weft.Tensor] = {}
    label = f"({text(sample)}) {place.name}"
    try:
        args, kwargs = moved(arguments, place, made)
        given = [made[id(t)] for t in tensors(list(arguments), weft.Tensor)]
        narrowest = min([t.dtype.itemsize for t in given if t.is_floating_point()], default=8)
        values, gradients = computed(function, args, kwargs, given, grad)
    except Exception as error:  # noqa: BLE001  (whatever is raised is the finding)
        tally.refused.append(
            f"{label}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
        return
    pairs = list(zip(one[0], values, strict=False)) + list(zip(one[1], gradients, strict=False))
    if (len(values), len(gradients)) != (len(one[0]), len(one[1])):
        tally.wrong.append(f"{label}: {len(values)} results and {len(gradients)} gradients")
    elif any(differ(a, b, narrowest) for a, b in pairs):
        tally.wrong.append(label)


def part(arguments: tuple[int, int, int, str, list[str], str | None]) -> list[Tally]:
    """The tallies of every n-th operator."""
    first, step, limit, dtype, names, device = arguments
    warnings.simplefilter("ignore")
    chosen = [op for op in operators() if not names or any(op.name.startswith(n) for n in names)]
    found: list[Tally] = []
    with farm(max(WORLDS)) as f:
        if device is None:
            places = partial(on_meshes, [init_device_mesh(f.names[:n], (n,)) for n in WORLDS])
        else:
            places = partial(on_device, device)
        for op in chosen[first::step]:
            began = time.perf_counter()
            tally = judge(op, limit, dtype, places)
            if tally is None:
                continue
            seconds = time.perf_counter() - began
            print(
                f"{tally.name}: {tally.placements} placements, {seconds:.1f} s", file=sys.stderr, flush=True
            )
            found.append(tally)
            for kind, lines in (("wrong", tally.wrong), ("refused", tally.refused)):
                if lines:
                    print(f"{tally.name}: {len(lines)} of {tally.placements} {kind}", flush=True)
                    print(*(f"    {line[:300]}" for line in lines[:4]), sep="\n", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print what differs, and return 1 if something does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="how the operators' names begin")
    parser.add_argument("--samples", type=int, default=2, help="samples of each operator; 0 for all")
    parser.add_argument(
        "--dtype", default="float64", help="what the samples hold, where the operator takes it"
    )
    parser.add_argument("--device", help="all operands on this device, in place of meshes")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    work = [
        (k, given.processes, given.samples, given.dtype, given.names, given.device)
        for k in range(given.processes)
    ]
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        tallies = [t for found in pool.map(part, work) for t in found]
    count, wrong, refused = (sum(n) for n in zip(
        *((t.placements, len(t.wrong), len(t.refused)) for t in tallies), strict=True
    ))  # fmt: skip
    print(f"{len(tallies)} operators, {count} placements: {wrong} wrong, {refused} refused")
    return 1 if wrong or refused else 0


if __name__ == "__main__":
    sys.exit(main())
