"""Storages, by which programs find tensors that share elements: torch's `untyped_storage()` and `data_ptr()`.

weft computes values when they are needed, and a view may have memory of its own; so a storage here is what tensors that
look at the same elements have in common (views.py), and its pointer a number that tells it from all others. The
numbers are above every address that a process may use: equal, ordered and apart as torch's are, but nothing is to be
read there. `np.asarray(tensor)` and DLPack give memory.
"""
# Tests: tests/core/surface/test_overrides.py, tests/core/views/test_strides.py

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from weft.core.execute import edits, run
from weft.core.views.strides import offset_of
from weft.core.views.views import Elements, ViewOf
from weft.ir.dtypes import DType
from weft.ir.graph import elements
from weft.ir.index import high

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_FIRST = 1 << 60
_ALIGNED = 512

_pointers: WeakKeyDictionary[Elements, int] = WeakKeyDictionary()
_ends = [_FIRST]


def _shared(t: Tensor) -> Elements:
    look = t.look
    if look is None:
        node = t.value.node
        look = ViewOf(Elements(node.shape, node.dtype, node.device, [ref(t)]), ())
        edits.share(t, look)
    return look.shared


def _nbytes(shared: Elements) -> int:
    return int(high(elements(shared.shape))) * shared.dtype.itemsize


def _pointer(shared: Elements) -> int:
    """A number that no other storage has, nor one in whose bytes it would be. 0 for a storage without values."""
    size = _nbytes(shared)
    if not size or shared.device == run.META:
        return 0
    found = _pointers.get(shared)
    if found is None:
        found = _pointers[shared] = _ends[0]
        _ends[0] += -(-size // _ALIGNED) * _ALIGNED
    return found


def data_ptr(t: Tensor) -> int:
    """The pointer of the storage, and so many bytes on as the tensor begins behind its start."""
    shared = _shared(t)
    first = _pointer(shared)
    if not first or not t.numel():
        return 0
    return first + storage_offset(t) * t.dtype.itemsize


def storage_offset(t: Tensor) -> int:
    """The tensor's offset in elements from the start of the storage, as torch's would be."""
    look = t.look
    if look is None or not look.steps:
        return 0
    return offset_of(look.shared.shape, look.route) * look.shared.dtype.itemsize // t.dtype.itemsize


class UntypedStorage:
    """The storage that tensors that look at the same elements have in common, in bytes."""

    def __init__(self, t: Tensor) -> None:
        self._elements = _shared(t)
        self._dtype = t.dtype
        self._device = t.device

    def data_ptr(self) -> int:
        """A number that only this storage has; no address."""
        return _pointer(self._elements)

    _cdata = property(data_ptr)

    def nbytes(self) -> int:
        """The size in bytes."""
        return _nbytes(self._elements)

    def size(self) -> int:
        """The size in bytes; of a typed storage in elements."""
        return self.nbytes() // self.element_size()

    def __len__(self) -> int:
        return self.size()

    def element_size(self) -> int:
        """1."""
        return 1

    @property
    def device(self) -> Any:
        """The device of the tensor that was asked."""
        return self._device

    def is_shared(self) -> bool:
        """False: memory is of one process."""
        return False

    def is_pinned(self, device: Any = None) -> bool:
        """False."""
        return False

    def untyped(self) -> UntypedStorage:
        """The storage in bytes."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UntypedStorage) and other._elements is self._elements

    def __hash__(self) -> int:
        return id(self._elements)


class TypedStorage(UntypedStorage):
    """The same in elements of the tensor's dtype."""

    def __init__(self, t: Tensor) -> None:
        super().__init__(t)
        self._untyped_storage = UntypedStorage(t)

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self._dtype

    def element_size(self) -> int:
        """The size of an element in bytes."""
        return self._dtype.itemsize

    def untyped(self) -> UntypedStorage:
        return self._untyped_storage
