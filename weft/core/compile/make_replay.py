"""The replay of a function: traced once, and planned in the way that fits what was recorded."""
# Tests: tests/core/compile/test_compile.py, tests/core/compile/test_over_devices.py

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft import settings
from weft.autograd.context import default_device
from weft.core.compile.aliases import Argument, may_be_captured
from weft.core.compile.lazy_replay import LazyReplay
from weft.core.compile.marked import second_recording
from weft.core.compile.mesh_replay import MeshReplay
from weft.core.compile.parts_replay import PartsReplay
from weft.core.compile.plan_replay import PlanReplay
from weft.core.compile.recorded_plans import learn, needs_pieces, wanted_nodes
from weft.core.compile.recording import Left, record
from weft.core.compile.replay import Given, Replay
from weft.core.execute import plans, run
from weft.ir.graph import toposort
from weft.ir.ops import Op
from weft.ir.placement import is_mesh

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def make_replay(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
    whole: bool,
    dynamic: bool | None,
) -> Replay | Left:
    """Run `fn` once on placeholders, and plan what it computes; unless it is to be compiled as a `whole`, it may ask
    for values, and is done then.

    There is no one plan where a gradient may be asked for through the results, where they depend on runtime variables
    that are bound later, or where they are computed in pieces from large files, or on several devices from files.
    """
    shared = may_be_captured(args, kwargs, tensors)
    r = record(fn, args, kwargs, tensors, whole)
    if isinstance(r, Left):
        return r
    positional = (
        not kwargs and len(args) == len(tensors) and all(a is t for a, t in zip(args, tensors, strict=True))
    )
    given = Given(tuple([t.__class__ for t in tensors]), positional)
    placeholders = {v.node for v in r.placeholders.values()}
    wanted = wanted_nodes(r)
    needs_tape = any(
        v.needs_grad and not v.is_leaf and v not in r.differentiated and v.node not in placeholders
        for v in r.values
    )
    order = toposort(wanted)
    devices = {n.device for n in order if n.device is not None}
    unbound = plans.is_bound_later(list(wanted))
    pieces = any(s.device.info.kind == "disk" for s in r.specs.values()) and needs_pieces(r, wanted, devices)
    replay: Replay | None = None
    meta = run.META in devices
    lazy = needs_tape or unbound or meta
    on_mesh = any(map(is_mesh, devices))
    many = len(devices) > 1 or any(n.op is Op.COPY for n in order) or on_mesh
    if lazy or pieces or many:
        kept = not (lazy or pieces)
        if kept and on_mesh and MeshReplay.serves(r, list(wanted)):
            replay = MeshReplay(r, given, list(wanted))
        elif kept and not on_mesh and (parts := plans.over_devices(list(wanted))) is not None:
            replay = PartsReplay(r, given, list(wanted), *parts)
        else:
            replay = LazyReplay(r, given, realize=not lazy)
    else:
        device = plans.open_device(devices.pop() if devices else default_device())
        if dynamic is not False and not settings.deterministic():
            other = second_recording(fn, args, kwargs, tensors, everything=dynamic is True)
            if other is not None:
                learn(other, device)
        replay = PlanReplay(r, given, device, list(wanted), dynamic is not False)
    replay.arguments = {k: Argument(t) for k, t in enumerate(tensors)}
    replay.bind({k: replay.arguments[k] for k in shared})
    return replay
