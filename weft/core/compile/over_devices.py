"""Compiled functions over several devices: the layouts of what they read are chosen, and what they compute follows.

step = weft.compile(step, devices=["cuda:0", "cuda:1"])

calls 1, 2    on the device where everything is; the last of them is traced with all state that there is
then          the graph, on a mesh of the devices: a layout for each argument and each tensor of the state, by cost
from then on  the state lies on the mesh; arguments are laid out, the function is compiled for the mesh, and
              results come back whole
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from weft.autograd.value import Value
from weft.core.args.handle import wrap
from weft.core.args.modes import no_grad
from weft.core.args.structure import builder, flatten
from weft.core.compile.compiled_function import InMode
from weft.core.compile.recording import Recording
from weft.core.execute import meshes, tracing
from weft.core.sharding.device_mesh import DeviceMesh, made
from weft.core.sharding.tensors import full_tensor, laid_out
from weft.errors import ArgumentError
from weft.ir.placement import Layout, Replicate, is_mesh

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor
    from weft.ir.graph import Node
    from weft.scheduler.placing.layouts import Chosen

P = ParamSpec("P")
R = TypeVar("R")


class OverDevices(InMode[P, R]):
    """A compiled function whose work is spread over the devices of a mesh; see `compile`."""

    def __init__(
        self,
        fn: Callable[P, R],
        devices: DeviceMesh | Sequence[str] | str,
        memory: int | Mapping[str, int] | None,
        mode: Literal["free", "same"] | None,
        fullgraph: bool,
        dynamic: bool | None,
    ) -> None:
        self.mesh, self.limit = _mesh(devices), _limit(memory)
        self.chosen: Chosen | None = None
        """The decisions: layouts, with the prices of others, and a bound on what any choice could take."""
        self._arguments: list[Layout] = []
        super().__init__(fn, mode or "free", fullgraph, dynamic)

    def forget(self) -> None:
        super().forget()
        self.chosen = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if tracing.current() is not None or len(self.mesh.devices) < 2:
            return super().__call__(*args, **kwargs)
        if self.chosen is None:
            result = super().__call__(*args, **kwargs)
            if self._recent is not None:  # a trace that makes no new state
                self._decide(self._recent.recording, args, kwargs)
            return result
        call: Any = super().__call__
        moved, named = self._laid_out((args, kwargs))
        return self._whole(call(*moved, **named))

    def _decide(self, r: Recording, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Choose layouts for what was traced, and lay out the state."""
        leaves = {k: v.node for k, v in r.placeholders.items() if k < r.arguments + len(r.captured)}
        places = set(leaves.values())
        nodes = dict.fromkeys(v.node for v in r.values if v.node not in places and v.node.storage is None)
        updates: list[tuple[Node, Node]] = []
        for rebind in r.rebinds:
            old = leaves.get(rebind.target) if isinstance(rebind.target, int) else None
            new = r.values[rebind.value].node
            if old is not None and new.shape == old.shape and new not in places and new.storage is None:
                updates.append((new, old))
        same = self.numerics == "same"
        layouts, chosen = meshes.layouts_for(
            list(nodes), list(leaves.values()), updates, self.mesh.root, self.limit, not same
        )
        of = dict(zip(leaves, layouts, strict=True))
        whole: Layout = (Replicate(),) * len(self.mesh.root.shape)
        super().forget()
        with no_grad():
            for k, t in enumerate(r.captured, r.arguments):
                self._move(t, of.get(k, whole))
        self._arguments = [of.get(k, whole) for k in range(r.arguments)]
        self.chosen = chosen

    def _move(self, t: Tensor, layout: Layout) -> None:
        """Lay out a tensor of the state, and its gradient, on the mesh."""
        grad = t.grad
        if not is_mesh(t.value.node.device):
            there = wrap(laid_out(Value(t.value.node), self.mesh.root, layout)).realize()
            t.rebind(Value(there.value.node, t.value.needs_grad))
            t.look = None  # who looked at the same elements keeps those that were
        if grad is not None and not is_mesh(grad.value.node.device):
            t.grad = wrap(laid_out(Value(grad.value.node), self.mesh.root, layout)).realize()

    def _laid_out(self, tree: Any) -> Any:
        """Arguments on the mesh: as chosen for those of the traced call, in their order; others on every device."""
        tensors: list[Tensor] = []
        numbers: dict[int, int] = {}
        flatten(tree, tensors, numbers)
        known = len(tensors) == len(self._arguments)
        whole: Layout = (Replicate(),) * len(self.mesh.root.shape)
        given = [
            self._on_mesh(t, layout)
            for t, layout in zip(tensors, self._arguments if known else [whole] * len(tensors), strict=True)
        ]
        return builder(tree, lambda t: numbers[id(t)])(given)

    def _on_mesh(self, t: Tensor, layout: Layout) -> Tensor:
        return t if is_mesh(t.value.node.device) else wrap(laid_out(t.value, self.mesh.root, layout))

    def _whole(self, tree: Any) -> Any:
        """Results as they are without a mesh: on the default device."""
        tensors: list[Tensor] = []
        numbers: dict[int, int] = {}
        flatten(tree, tensors, numbers)
        captured = {id(t) for t in tensors if t.value.is_leaf and t.value.needs_grad}
        given = [
            full_tensor(t) if is_mesh(t.value.node.device) and id(t) not in captured else t for t in tensors
        ]
        return builder(tree, lambda t: numbers[id(t)])(given)


def _mesh(devices: DeviceMesh | Sequence[str] | str) -> DeviceMesh:
    """The devices in a row: a mesh as it is; "cuda:*", all of a kind."""
    if isinstance(devices, DeviceMesh):
        return devices
    if isinstance(devices, str):
        kind, _, number = devices.partition(":")
        if number != "*":
            raise ArgumentError(
                f"compile: devices is a list of names, a DeviceMesh, or all of a kind such as 'cuda:*', got {devices!r}"
            )
        devices = [f"{kind}:{k}" for k in range(meshes.count(kind))]
    names = list(devices)
    return DeviceMesh.of(made("compile", names, (len(names),), None))


def _limit(memory: int | Mapping[str, int] | None) -> int | None:
    """The bytes that each device may take: the least that is given."""
    if memory is None or isinstance(memory, int):
        return memory
    return min(memory.values(), default=None)
