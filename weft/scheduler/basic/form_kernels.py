"""The kernels of a form, made once: afterwards they are found in memory, on disk, or in the pack that came with weft.

    name     a digest of the form, and of how many tensors a kernel may read and write
    entry    kernels: their algorithms, with the digests of these, and the numbers of the tensors that they are on

Finding and reading an entry takes a quarter of the time that making it does, and needs none of the kernelizer.
"""
# Tests: tests/scheduler/test_form_kernels.py

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

from weft import disk_cache, pack, settings
from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import Node, Shape
from weft.ir.index import Int, Var
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.digest import digest, digest_of, remember
from weft.lazy_dataclass import dataclass
from weft.scheduler.basic.form import Form, built
from weft.scheduler.basic.sizes import SizedForm, graph_of
from weft.scheduler.kernelize.spec import KernelSpec
from weft.scheduler.pickles import NOT_PICKLED, pickled

FORMS_KEPT = 2048
"""Kernels of forms in memory; the one made longest ago goes first."""

_forms: dict[tuple[Form | SizedForm, int], FormKernels] = {}


@dataclass(frozen=True, slots=True, eq=False)
class FormKernels:
    """The kernels of a graph on leaves of its own, and the node that they compute."""

    specs: tuple[KernelSpec, ...]
    leaves: tuple[Node, ...]
    root: Node
    variables: tuple[Var, ...] = ()


@dataclass(frozen=True, slots=True)
class _KernelEntry:
    """A kernel on disk: its algorithm, with the digest of that, and the numbers of the tensors that it is on."""

    algorithm: Algorithm
    digest: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inplace: tuple[tuple[str, int], ...]
    why: tuple[str, ...]
    flops: Int
    bytes: Int


@dataclass(frozen=True, slots=True)
class _Entry:
    """A form's kernels on disk. `tensors`: shapes and dtypes, first of the `leaves`, then of the root."""

    name: str
    leaves: int
    tensors: tuple[tuple[Shape, DType], ...]
    kernels: tuple[_KernelEntry, ...]


def of_form(form: Form | SizedForm, buffers: int) -> FormKernels:
    """The kernels of a form, each on `buffers` tensors at most."""
    found = _forms.get((form, buffers))
    if found is None:
        name = _name(form, buffers)
        found = _forms[form, buffers] = _read(name, form) or _made(name, form, buffers)
        if len(_forms) > FORMS_KEPT:
            _forms.pop(next(iter(_forms)), None)
    return found


def kernels_of(root: Node, buffers: int) -> tuple[KernelSpec, ...]:
    """The kernels that compute a node."""
    # Here, since kernels that are found need no kernelizer.
    from weft.scheduler.kernelize.kernels import kernelize_all

    specs = kernelize_all([root], buffers)
    assert all(isinstance(s, KernelSpec) for s in specs)
    return tuple([s for s in specs if isinstance(s, KernelSpec)])


def entries() -> dict[tuple[str, str], bytes]:
    """The entries of a pack: all forms that this process knows."""
    named = {_name(form, buffers): known for (form, buffers), known in _forms.items()}
    return {("form", name): _encoded(name, known) for name, known in named.items()}


def _read(name: str, form: Form | SizedForm) -> FormKernels | None:
    """The kernels of a form that came with weft, or that an earlier process made; nothing while verifying."""
    if settings.verify():
        return None
    data = pack.get("form", name) or disk_cache.get("form", _key(name))
    return None if data is None else _decoded(data, name, form)


def _made(name: str, form: Form | SizedForm, buffers: int) -> FormKernels:
    """The kernels of a form, kept on disk; while verifying, they are as if read from there."""
    of_graph = built(form) if isinstance(form, Form) else graph_of(form)
    specs = kernels_of(of_graph.root, buffers)
    made = FormKernels(specs, of_graph.leaves, of_graph.root, form.variables)
    if settings.verify():
        read = _decoded(_encoded(name, made), name, form)
        assert read is not None and [s.algorithm for s in read.specs] == [s.algorithm for s in specs]
        return read
    disk_cache.put("form", _key(name), _encoded(name, made))
    return made


def _name(form: Form | SizedForm, buffers: int) -> str:
    """The name of a form in a pack, which is of these sources."""
    return digest_of((form, buffers))


def _key(name: str) -> str:
    """The name of a form on disk."""
    return disk_cache.digest(name, disk_cache.compiler())


def _encoded(name: str, made: FormKernels) -> bytes:
    """The entry of a form's kernels."""
    number = {n: k for k, n in enumerate((*made.leaves, made.root))}

    def numbers(nodes: Iterable[Node]) -> tuple[int, ...]:
        return tuple([number.setdefault(n, len(number)) for n in nodes])

    kernels = tuple([
        _KernelEntry(
            s.algorithm, digest(s.algorithm), numbers(s.reads), numbers(s.writes),
            tuple(zip(s.inplace, numbers(s.inplace.values()), strict=True)), s.why, s.flops, s.bytes,
        )
        for s in made.specs
    ])  # fmt: skip
    tensors = tuple([(n.shape, n.dtype) for n in number])
    return pickled(_Entry(name, len(made.leaves), tensors, kernels))


def _decoded(data: bytes, name: str, form: Form | SizedForm) -> FormKernels | None:
    """The kernels of a form's entry; None where something about it is wrong."""
    try:
        entry: Any = pickle.loads(data)  # as trusted as the machine code beside it
        if not isinstance(entry, _Entry) or entry.name != name:
            return None
    except NOT_PICKLED:
        return None
    nodes = [graph.buffer(shape, dtype, form.device, None) for shape, dtype in entry.tensors]

    def known(numbers: Iterable[int]) -> tuple[Node, ...]:
        return tuple([nodes[n] for n in numbers])

    specs: list[KernelSpec] = []
    for k in entry.kernels:
        remember(k.algorithm, k.digest)
        bases = {p: nodes[n] for p, n in k.inplace}
        specs.append(KernelSpec(k.algorithm, known(k.reads), known(k.writes), bases, k.why, k.flops, k.bytes))
    return FormKernels(tuple(specs), known(range(entry.leaves)), nodes[entry.leaves], form.variables)
