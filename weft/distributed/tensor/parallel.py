"""torch.distributed.tensor.parallel: tensor parallelism as layouts of parameters, and wishes where values pass.

    Colwise, then Rowwise: y = relu(x @ A.T) @ B.T, with the rows of A and the columns of B on several devices. Each
    computes its columns of the first product and from them a term of the second; the terms are added up at the end.

Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053. A program sees whole tensors: a layer of 16 heads has 16,
however many devices there are, and outputs stay on the mesh (torch's use_local_output has no meaning here).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, TypeVar, cast

from weft.core.args.structure import mapped
from weft.core.sharding.device_mesh import DeviceMesh
from weft.core.sharding.placements import Placement, Replicate, Shard
from weft.core.sharding.tensors import distribute_tensor
from weft.core.tensor.tensor import Tensor
from weft.distributed.tensor.modules import Module, distribute_module, lay_out
from weft.errors import ArgumentError, DTypeError

__all__ = [
    "ColwiseParallel", "ParallelStyle", "PrepareModuleInput", "PrepareModuleOutput", "RowwiseParallel",
    "SequenceParallel", "parallelize_module",
]  # fmt: skip

M = TypeVar("M")


class ParallelStyle(ABC):
    """The way in which a module is spread over the devices of one mesh dimension."""

    @abstractmethod
    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        """Spread the module."""


def _wished(x: Any, mesh: DeviceMesh, layout: Placement) -> Any:
    """Tensors laid out so over the mesh's one dimension; as they are over the others."""

    def wish(t: Tensor) -> Tensor:
        if isinstance(layout, Shard) and not -t.ndim <= layout.dim < t.ndim:
            raise ArgumentError(f"parallelize_module: a tensor of shape {tuple(t.shape)} cannot be {layout}")
        return distribute_tensor(t, mesh, [layout])

    return mapped(x, wish)


class _Weights(ParallelStyle):
    """Linear and Embedding layers: `weight` and `bias` lie along one dimension each, or are the same everywhere."""

    def __init__(
        self, input_layouts: Placement | None, output_layouts: Placement | None, use_local_output: bool
    ) -> None:
        self.input_layouts = (input_layouts or self._first[0],)
        self.output_layouts = (output_layouts or self._first[1],)
        self.use_local_output = use_local_output

    _first: tuple[Placement, Placement]
    _embedding: Mapping[str, Placement]
    _linear: Mapping[str, Placement]
    _inside: Placement | None = None

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        table = _kind(type(self).__name__, module, self._linear, self._embedding)

        def partition(name: str, submodule: Module, mesh: DeviceMesh) -> None:
            lay_out(submodule, mesh, lambda key, t: [table.get(key, Replicate())])

        def before(m: Module, inputs: Any, mesh: DeviceMesh) -> Any:
            given = _wished(inputs, mesh, self.input_layouts[0])
            return (
                given
                if self._inside is None or table is self._embedding
                else _wished(given, mesh, self._inside)
            )

        def after(m: Module, output: Any, mesh: DeviceMesh) -> Any:
            return _wished(output, mesh, self.output_layouts[0])

        return distribute_module(module, device_mesh, partition, before, after)


def _kind(
    style: str, module: Any, linear: Mapping[str, Placement], embedding: Mapping[str, Placement]
) -> Mapping[str, Placement]:
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return linear
    if hasattr(module, "embedding_dim"):
        return embedding
    raise DTypeError(f"{style}: only Linear and Embedding are known, got {type(module).__name__}")


class ColwiseParallel(_Weights):
    """A layer whose outputs' last dimension lies along the mesh: rows of a Linear's weight, columns of an
    Embedding's."""

    _first = (Replicate(), Shard(-1))
    _linear: Mapping[str, Placement] = {"weight": Shard(0), "bias": Shard(0)}
    _embedding: Mapping[str, Placement] = {"weight": Shard(1)}
    _inside = Replicate()

    def __init__(
        self, *, input_layouts: Placement | None = None, output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(input_layouts, output_layouts, use_local_output)


class RowwiseParallel(_Weights):
    """A layer whose inputs' last dimension lies along the mesh: columns of a Linear's weight, rows of an Embedding's.
    Each device computes a term of the output."""

    _first = (Shard(-1), Replicate())
    _linear: Mapping[str, Placement] = {"weight": Shard(1)}
    _embedding: Mapping[str, Placement] = {"weight": Shard(0)}
    _inside = Shard(-1)

    def __init__(
        self, *, input_layouts: Placement | None = None, output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(input_layouts, output_layouts, use_local_output)

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        if hasattr(module, "embedding_dim") and self.input_layouts == (Shard(-1),):
            self.input_layouts = (Replicate(),)  # of indices, which are looked up on each device
        return super()._apply(module, device_mesh)


class SequenceParallel(ParallelStyle):
    """A layer of each position, such as a norm or dropout: positions lie along the mesh, weights are everywhere."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_dim, self.use_local_output = sequence_dim, use_local_output

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        layout = Shard(self.sequence_dim)

        def lie(m: Module, x: Any, mesh: DeviceMesh) -> Any:
            return _wished(x, mesh, layout)

        return distribute_module(module, device_mesh, None, lie, lie)


def _each(
    op: str, values: tuple[Any, ...], layouts: Sequence[Placement | None], mesh: DeviceMesh
) -> tuple[Any, ...]:
    if len(values) != len(layouts):
        raise ArgumentError(f"{op}: {len(layouts)} layouts for {len(values)} tensors")
    return tuple([x if p is None else _wished(x, mesh, p) for x, p in zip(values, layouts, strict=True)])


def _layouts(given: Any) -> Sequence[Placement | None]:
    return cast("Any", given) if isinstance(given, (list, tuple)) else (given,)


class PrepareModuleInput(ParallelStyle):
    """Inputs of a module are laid out as `desired_input_layouts` says, after they came as `input_layouts` does."""

    def __init__(
        self, *, input_layouts: Any = None, desired_input_layouts: Any = None, input_kwarg_layouts: Any = None,
        desired_input_kwarg_layouts: Any = None, use_local_output: bool = False,
    ) -> None:  # fmt: skip
        self.input_layouts = _layouts(input_layouts) if input_layouts is not None else None
        self.desired = _layouts(desired_input_layouts) if desired_input_layouts is not None else None
        self.keywords: Mapping[str, Placement] = input_kwarg_layouts or {}
        self.desired_keywords: Mapping[str, Placement] = desired_input_kwarg_layouts or {}
        if self.input_layouts is not None and len(self.input_layouts) != len(self.desired or ()):
            raise ArgumentError(
                "PrepareModuleInput: input_layouts and desired_input_layouts must have the same length"
            )

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        def before(m: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            for layouts in (self.input_layouts, self.desired):
                if layouts is not None:
                    args = _each("PrepareModuleInput", args, layouts, device_mesh)
            for wanted in (self.keywords, self.desired_keywords):
                kwargs = {
                    k: _wished(v, device_mesh, wanted[k]) if k in wanted else v for k, v in kwargs.items()
                }
            return args, kwargs

        module.register_forward_pre_hook(before, with_kwargs=True)
        return module


class PrepareModuleOutput(ParallelStyle):
    """Outputs of a module are laid out as `desired_output_layouts` says."""

    def __init__(
        self, *, output_layouts: Any, desired_output_layouts: Any, use_local_output: bool = True
    ) -> None:
        self.output_layouts, self.desired = _layouts(output_layouts), _layouts(desired_output_layouts)

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        def after(m: Module, args: tuple[Any, ...], output: Any) -> Any:
            several = isinstance(output, tuple)
            values = cast("tuple[Any, ...]", output) if several else (output,)
            out = _each("PrepareModuleOutput", values, self.desired, device_mesh)
            return out if several else out[0]

        module.register_forward_hook(after)
        return module


def parallelize_module(
    module: M,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> M:
    """The module, spread over the devices of a mesh of one dimension by a style, or by styles of its submodules:

        parallelize_module(block, mesh["tp"], {"attention.*": ColwiseParallel(), "out": RowwiseParallel()})

    Names may have wildcards for parts between dots. ArgumentError for a name that is no submodule's.
    """
    op = "parallelize_module"
    if not isinstance(device_mesh, DeviceMesh):
        raise ArgumentError(f"{op}: needs a mesh, as init_device_mesh makes, got {device_mesh!r}")
    if device_mesh.ndim != 1:
        raise ArgumentError(
            f"{op}: needs a mesh of one dimension, got {device_mesh}; give one of its dimensions, as mesh['tp']"
        )
    if parallelize_plan is None:
        return module
    if isinstance(parallelize_plan, ParallelStyle):
        return parallelize_plan._apply(module, device_mesh)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    known = dict(cast("Any", module).named_modules())
    for pattern, style in parallelize_plan.items():
        found = [m for name, m in known.items() if _matches(name, pattern)]
        if not found:
            raise ArgumentError(f"{op}: no submodule of {type(module).__name__} is called {pattern!r}")
        for m in found:
            style._apply(m, device_mesh)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return module


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(fnmatch(p, w) for p, w in zip(parts, wanted, strict=True))
