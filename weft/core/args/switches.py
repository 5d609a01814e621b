"""Switches and names of torch that programs set or pass, and what they mean here."""
# Tests: tests/test_torch_paths.py

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from weft import settings
from weft.core.args import defaults
from weft.core.args.axes import is_int
from weft.core.args.handle import Handle, describe, tensor_class
from weft.errors import ArgumentError, DTypeError
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.naming import package

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class memory_format(Enum):  # noqa: N801  (torch's name)
    """Orders of elements in memory. weft chooses them itself, and every one that is asked for is the same to it."""

    contiguous_format = "contiguous_format"
    preserve_format = "preserve_format"
    channels_last = "channels_last"
    channels_last_3d = "channels_last_3d"

    def __repr__(self) -> str:
        return f"{package()}.{self.name}"

    __str__ = __repr__


_RANKS = {memory_format.channels_last: 4, memory_format.channels_last_3d: 5}


def check_memory_format(op: str, x: object, rank: int | None = None) -> None:
    """DTypeError for what is no order of elements; ArgumentError for one that tensors of so many dimensions lack."""
    if x is None or x is memory_format.preserve_format or x is memory_format.contiguous_format:
        return
    if not isinstance(x, memory_format):
        raise DTypeError(f"{op}: memory_format must be one such as weft.contiguous_format, got {describe(x)}")
    if rank is not None and rank != _RANKS[x]:
        raise ArgumentError(f"{op}: {x!r} is for tensors of {_RANKS[x]} dimensions, got {rank}")


class layout(Enum):  # noqa: N801  (torch's name)
    """Layouts of tensors: weft has `strided` ones, which are dense; the others are names."""

    strided = "strided"
    sparse_coo = "sparse_coo"
    sparse_csr = "sparse_csr"
    sparse_csc = "sparse_csc"
    sparse_bsr = "sparse_bsr"
    sparse_bsc = "sparse_bsc"
    jagged = "jagged"

    def __repr__(self) -> str:
        return f"{package()}.{self.name}"

    __str__ = __repr__


contiguous_format, preserve_format = memory_format.contiguous_format, memory_format.preserve_format
channels_last, channels_last_3d = memory_format.channels_last, memory_format.channels_last_3d
strided, sparse_coo, sparse_csr = layout.strided, layout.sparse_coo, layout.sparse_csr
sparse_csc, sparse_bsr, sparse_bsc, jagged = (
    layout.sparse_csc,
    layout.sparse_bsr,
    layout.sparse_bsc,
    layout.jagged,
)


class TensorType(type):
    """torch's types by dtype, as classes: `LongTensor([1, 2])` of numbers, `FloatTensor(2, 3)` of sizes (zeros here).

    `isinstance(x, weft.LongTensor)` asks for the dtype, `x.type(weft.LongTensor)` converts, and annotations take them,
    as in `weft.LongTensor | None`. No tensor is made of these classes: what they give are Tensors.
    """

    dtype: DType

    def __new__(cls, name: str, dtype: DType) -> TensorType:
        return super().__new__(
            cls, name, (), {"dtype": dtype, "__module__": "weft", "__doc__": f"{dtype.name} tensors."}
        )

    def __init__(cls, name: str, dtype: DType) -> None:
        super().__init__(name, (), {})

    def __call__(cls, *data: Any, device: Any = None) -> Tensor:
        return tensor_class()(*data, dtype=cls.dtype, device=device)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Handle) and instance.value.dtype is cls.dtype

    def __repr__(cls) -> str:
        return f"<class '{package()}.{cls.__name__}'>"


FloatTensor, DoubleTensor = (
    TensorType("FloatTensor", dtypes.float32),
    TensorType("DoubleTensor", dtypes.float64),
)
HalfTensor, BFloat16Tensor = (
    TensorType("HalfTensor", dtypes.float16),
    TensorType("BFloat16Tensor", dtypes.bfloat16),
)
ByteTensor, CharTensor = TensorType("ByteTensor", dtypes.uint8), TensorType("CharTensor", dtypes.int8)
ShortTensor, IntTensor = TensorType("ShortTensor", dtypes.int16), TensorType("IntTensor", dtypes.int32)
LongTensor, BoolTensor = TensorType("LongTensor", dtypes.int64), TensorType("BoolTensor", dtypes.bool_)


def named_type(t: object) -> DType | None:
    """The dtype of a TensorType, or of its name in torch ("torch.FloatTensor"); None for anything else."""
    if isinstance(t, str):
        t = globals().get(t.rpartition(".")[2])
    return t.dtype if isinstance(t, TensorType) else None


def type_name(dtype: DType, device: str) -> str:
    """torch's name for tensors of a dtype on a device: "weft.FloatTensor", "weft.cuda.FloatTensor"."""
    kind = device.partition(":")[0]
    place = "" if kind in ("cpu", "disk") else f".{kind}"
    name = next((t.__name__ for t in _TYPES if t.dtype is dtype), "Tensor")
    return f"{package()}{place}.{name}"


_TYPES = (
    FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor, ByteTensor, CharTensor, ShortTensor, IntTensor, LongTensor,
    BoolTensor,
)  # fmt: skip


def set_default_tensor_type(t: TensorType | str) -> None:
    """As set_default_dtype, by a type or its name."""
    dtype = named_type(t)
    if dtype is None:
        raise ArgumentError(
            f"set_default_tensor_type: expected a type such as weft.FloatTensor, got {t!r}; see set_default_dtype"
        )
    defaults.set_default_dtype(dtype)


def set_float32_matmul_precision(precision: str) -> None:
    """Set whether GPUs may round the factors of float32 products to TF32: not for "highest". It holds for
    devices that are opened afterwards."""
    if precision not in ("highest", "high", "medium"):
        raise ArgumentError(
            f"set_float32_matmul_precision: expected 'highest', 'high' or 'medium', got {precision!r}"
        )
    settings.allow_tf32(precision != "highest")


def get_float32_matmul_precision() -> str:
    """ "highest", or "high" where factors may be rounded."""
    return "high" if settings.tf32() else "highest"


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Have what a graph gives depend on nothing that was computed before, nor on time, to the last bit.

    Without `mode`, the order of sums may differ between equal computations, and with it the last bits: graphs alike but
    for sizes share a plan from the second size on, one that came often gets its own again, and one that was never seen
    runs on a basic plan until its fused kernels are built. With `mode` each graph waits for a final plan of its own.
    """
    settings.set_deterministic(bool(mode))


def are_deterministic_algorithms_enabled() -> bool:
    """True where `use_deterministic_algorithms`, or `WEFT_DETERMINISTIC`, said so."""
    return settings.deterministic()


def set_num_interop_threads(n: int) -> None:
    """Nothing: kernels run one after the other, each on `set_num_threads` threads."""
    if not is_int(n) or n < 1:
        raise ArgumentError(f"set_num_interop_threads: needs a positive int, got {n!r}")


def get_num_interop_threads() -> int:
    """1."""
    return 1


def set_flush_denormal(mode: bool) -> bool:
    """False for True: kernels keep denormal numbers, and there is nothing to switch. True for what holds anyway."""
    return not mode
