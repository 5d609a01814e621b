"""Whether anybody but one tensor can see its memory: then, and only then, it may be written over."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from weft.autograd.value import Value
from weft.backends.storage import Storage
from weft.core import differentiate
from weft.core.handle import Handle
from weft.ir import graph
from weft.ir.dtypes import uint32
from weft.ir.graph import Node


def rebind(t: Any, node: Node, needs_grad: bool) -> None:
    """`t` stands for `node`. Where only `t` holds its value, that is kept, and with it who watches for gradients."""
    v, own = t.value, t.__dict__
    own["_writes"] = own.get("_writes", 0) + 1
    if getrefcount(v) == _ALONE[0] and v.needs_grad is needs_grad and v.is_leaf:
        v.node = node
        return
    del v
    t.value = Value(node, needs_grad)
    if needs_grad:
        differentiate.watch(t)


def _holders(t: Any) -> tuple[int, int, int, int]:
    """How many references there are to what `t` stands for, its node, its storage and its memory."""
    v = t.value
    n = v.node
    s = n.storage
    return getrefcount(v), getrefcount(n), getrefcount(s), getrefcount(s.memory)


class _Probe:
    nbytes = 0


def _fresh_holders() -> tuple[int, int, int, int]:
    """What `_holders` gives for a tensor that nobody shares: the interpreter's own references differ by version."""
    t = Handle.__new__(Handle)
    device: Any = None
    probe: Any = _Probe()
    storage = Storage(device, probe, uint32, ())
    del probe
    t.value = Value(graph.buffer((), uint32, "", storage))
    del storage
    return _holders(t)


_ALONE = _fresh_holders()


def alone(t: Any) -> bool:
    """Whether only `t` can see the memory it stands for, so that writing over it changes nothing for anybody else."""
    return _holders(t) == _ALONE
