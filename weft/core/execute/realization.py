"""Computing tensors together: those asked for, and those that will surely be wanted and share their work."""
# Tests: tests/core/execute/test_pending.py, tests/core/execute/test_changes.py, tests/core/execute/test_threads.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weft.autograd import passed
from weft.autograd.context import context
from weft.backends.native_threads import others_wait
from weft.core.args.handle import recent_tensors, set_bound
from weft.core.execute import changes, holding, pending, run, tracing
from weft.core.execute.ownership import spent_leaves
from weft.core.execute.pending import Companion, Reason
from weft.ir import graph
from weft.ir.rewrite import rebuilt
from weft.scheduler.keeping import nbytes

if TYPE_CHECKING:
    from weft.backends.storage import Storage
    from weft.core.tensor.tensor import Tensor
    from weft.ir.graph import Node
    from weft.scheduler.spent import Spent


def note(t: Tensor) -> None:
    """Have the next `realize` compute `t` as well, if it is alive then.

    For state that moves on at each step (running statistics), whose graph would grow from step to step, and for the
    loss of a backward pass, whose forward computation would be done again if it were asked for later. A function that
    is being traced computes all of its state anyway.
    """
    if tracing.current() is None and t.value.node.device != run.META:
        pending.note(t, Reason.NOTED)


def note_leaf(t: Tensor) -> None:
    """Have `t`, a leaf that requires grad, computed along with what shares work with it."""
    if tracing.current() is None and pending.is_pending(t.value.node):
        pending.note(t, Reason.LEAF)


def note_statistics(t: Tensor) -> None:
    """Have `t`, which a gradient needs and one kernel alone can tell, computed along with what shares work with it."""
    if tracing.current() is None and pending.is_pending(t.value.node):
        pending.note(t, Reason.STATISTICS)


def note_grad(t: Tensor, grad: Tensor) -> None:
    """Have `grad`, the `.grad` of `t` from here on, computed along with what shares work with it."""
    if tracing.current() is None and pending.is_pending(grad.value.node):
        pending.note(t, Reason.GRADIENT)


def catch_up_gradients(output: Node, owners: Sequence[Tensor]) -> None:
    """Gradients are about to be added up in the `.grad` of the owners, by a backward pass from `output`. Those that are
    there and not computed are computed now, unless they share work with it: else all passes would be one graph, and
    what each of them reads would be held until the last."""
    if tracing.current() is None and pending.note_again(everything=True):
        grads = pending.finished_gradients(output, owners)
        if grads:
            realize(*grads)


def catch_up_state(t: Tensor) -> None:
    """State is about to move on, as a running statistic in a forward pass. Where the pass before went backward, its
    gradients are computed now, and `t` with them. Later they would be computed with what `t` stands for by then: with
    the forward pass that is about to begin, whose own gradients would need it again. Not in a backward pass."""
    if tracing.current() is not None or pending.mine.postponed or not pending.is_pending(t.value.node):
        return
    if pending.note_again(everything=True):
        grads = pending.gradients_beside(t.value.node)
        if grads:
            realize(*grads)


def realize(*tensors: Tensor, spent: Spent | None = None) -> None:
    """Compute tensors now, in one plan, and keep the results; with them what pending.py says. Nothing happens while a
    function is traced. They may be computed over leaves that are `spent`."""
    if context().trace is not None and tracing.current() is not None:
        return
    if pending.note_again() or holding.mine.carried or changes.mine.changed:
        tensors = (*tensors, *pending.take_noted())
        holding.take_in(set(map(id, tensors)))
        due = pending.due([t.value.node for t in tensors])
        if due is not pending.NONE:
            _realize(tensors, due.together, spent, due.updated)
            for group in due.apart:
                _keep(group, run.computed([c.node for c in group]) or {})
            if due.apart:
                changes.settle()
            pending.spend(due.updated)
            return
    else:
        holding.take_in(set(map(id, tensors)))
    _realize(tensors, spent=spent)


LARGE_BYTES = 64 << 20
"""The memory from which on a plan more takes less than a hundredth of what computing the values takes."""


def realize_large(tensors: Sequence[Tensor]) -> None:
    """Compute tensors now if they take LARGE_BYTES together, and leave them as they are otherwise, or where some have
    no values: on the device "meta", in functions that are traced or batched."""
    nodes = [t.value.node for t in tensors]
    if sum(map(nbytes, nodes)) >= LARGE_BYTES and pending.have_values(nodes):
        realize(*tensors)


def spent_by_step(tensors: Sequence[Tensor]) -> Spent | None:
    """The memory that the next values of these tensors may be written to: where nobody else can see it, and no other
    thread might be about to. None where there is none, and while a function is traced. Histories that a backward pass
    went through hold it no longer."""
    if tracing.current() is not None:
        return None
    if passed.any_is_held():
        passed.written_over([t.value for t in tensors])
    if not others_wait():
        return None
    leaves = spent_leaves(tensors)
    if not leaves:
        return None
    from weft.scheduler.spent import Spent

    return Spent(leaves, ())


def _realize(
    tensors: Sequence[Tensor], companions: Sequence[Companion] = (), spent: Spent | None = None,
    updated: Sequence[Tensor] = (),
) -> None:  # fmt: skip
    """Compute tensors and their companions in one plan, and with them what is held and computed on the way, but for
    gradients that are near, by which their tensors are `updated`."""
    if len(tensors) == 1 and not companions and not holding.mine.waiting:
        value = tensors[0].value
        run.realize_value(value, run.realize([value.node], spent=spent))
        return
    nodes = [t.value.node for t in tensors]
    along = [c.node for c in companions]
    held = holding.Among(updated) if holding.mine.waiting else None
    constants = run.realize(nodes, held, along, spent)
    for t in tensors:
        run.realize_value(t.value, constants)
    _keep(companions, constants)
    if held is not None:
        holding.settle((*nodes, *along, *held.met), constants)


def bound(newest: Tensor | None) -> None:
    """Compute what this thread's tensors stand for, if that is some MAX_PENDING nodes, or reads so many new leaves
    that they should not be held any longer. Called now and then when a tensor was made: `newest`.

    The newest is not computed, nor what it was made of if that does: a product is not parted from the sum that it is
    rounded with. They are computed from what is in memory from here on.
    """
    now = context()
    if now.trace is not None or now.recording or pending.mine.postponed:
        recent_tensors.look()  # at the next tensor, then
        return
    reads_much, recent_tensors.reads_much = recent_tensors.reads_much, False
    newest_node = None if newest is None else newest.value.node
    work = [] if newest_node is None else [newest_node]
    everything = [c for c in pending.everything() if c.node is not newest_node]
    size = holding.count([*work, *(c.node for c in everything)])
    if (
        not reads_much and size < MAX_PENDING - MAX_PENDING // 8
    ):  # not looked at soon again: a look walks them all
        graph.watch_after(MAX_PENDING - size)
        return
    young = set(work).union(*(n.inputs for n in work))
    older = [c for c in everything if c.node not in young]
    if holding.count(work, {c.node for c in older}) > MAX_PENDING // 2:
        older = everything
    compute_apart(older)
    made = {c.node: c.value.node for c in older if c.value.node is not c.node}
    for c in everything if newest is None else [*everything, pending.companion(newest, Reason.HELD)]:
        if c.node not in made and c.value.is_leaf and c.value.node is c.node and c.node.storage is None:
            (c.value.node,) = rebuilt([c.node], made)
    graph.watch_after(MAX_PENDING)


def compute_apart(companions: Sequence[Companion]) -> None:
    """Compute those that can be computed and take little memory, a plan for each group that shares work."""
    for group in pending.shared(companions):
        _keep(group, run.computed([c.node for c in group]) or {})
    changes.settle()


MAX_PENDING = 1 << 14
"""The number of nodes that are left uncomputed, about: from seven eighths of it on they are computed when they are
looked at. Common models take some hundred to some thousand for a step; a plan for so many is made in half a second."""

set_bound(bound)


def _keep(companions: Sequence[Companion], constants: Mapping[Node, Storage]) -> None:
    """Have the tensors stand for what was computed. What could not be computed is not tried again."""
    for c in companions:
        if c.node.storage is None and c.node not in constants:
            pending.refuse(c.node)
        else:
            run.realize_value(c.value, constants)
