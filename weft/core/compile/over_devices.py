"""Compiled functions over several devices: the layouts of what they read are chosen, and what they compute follows.

step = weft.compile(step, devices=["cuda:0", "cuda:1"])

calls 1, 2    on the device where everything is, until a call is known that makes no new state
then          its graph, on a mesh of the devices: a layout for each tensor of the state, by cost; it moves there
from then on  arguments are copied to the mesh, and results, and what the function wrote to its arguments, back: within
              what is traced, so that it is part of the graph whose layouts are searched
now and then  a call is timed: where a device is slower for long, layouts are chosen anew (`scheduler/placing/load.py`)
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, update_wrapper
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar
from weakref import ref

from weft.autograd.context import context, default_device, switched
from weft.autograd.value import Value, apply
from weft.core.args.handle import wrap
from weft.core.args.modes import no_grad, numerics
from weft.core.args.structure import mapped, tensors_in
from weft.core.compile.asked_devices import limit_of, mesh_of
from weft.core.compile.compiled_function import CompiledFunction, name_of
from weft.core.compile.recording import Recording
from weft.core.execute import meshes, run, tracing
from weft.core.execute.changes import restored_on_error
from weft.core.layout.creation import place
from weft.core.sharding.device_mesh import DeviceMesh, made
from weft.core.sharding.tensors import laid_out
from weft.core.views import views
from weft.ir.graph import Target
from weft.ir.lines import Lines
from weft.ir.ops import Op
from weft.ir.placement import Layout, Replicate, is_mesh
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.execute.explanation import Explanation, Profile
    from weft.core.tensor.tensor import Tensor
    from weft.ir.graph import Node
    from weft.scheduler.parts.plan import Times
    from weft.scheduler.placing.layouts import Chosen
    from weft.scheduler.placing.load import Load

P = ParamSpec("P")
R = TypeVar("R")

WATCHED_EVERY = 16
"""Calls of which one is timed: each part is waited for in it, so that nothing is hidden."""


class OverDevices(CompiledFunction[P, R]):
    """A compiled function whose work is spread over the devices of a mesh; see `compile`."""

    def __init__(
        self,
        fn: Callable[P, R],
        devices: Any,
        memory: int | Mapping[str, int] | None,
        mode: Literal["free", "same"] | None,
        fullgraph: bool,
        dynamic: bool | None,
    ) -> None:
        self._devices, self._memory = devices, memory
        self.mesh = mesh_of("compile", devices)
        self.limit = limit_of("compile", memory, self.mesh)
        self.numerics = mode
        self.alone: dict[str, float] = {}
        """The measured nanoseconds of a call on each of those devices that compute on one processor: the fastest of
        them is used, since together they would take turns."""
        self.chosen: Chosen | None = None
        """The decisions: layouts, with the prices of others, and a bound on what any choice could take."""
        self.slower: tuple[float, ...] = ()
        """The times by which devices are slower than described, as the layouts assume; (): none is."""
        super().__init__(fn, fullgraph, dynamic)
        self._here, self._there = (
            CompiledFunction[P, R](_named(way, fn), fullgraph, dynamic)
            for way in (self._at_home, self._on_mesh)
        )
        self._is_spread = self._stays_home = False
        self._state: dict[int, ref[Tensor]] = {}
        self._deciding = threading.RLock()
        self._again: _Again | None = None
        self._calls = self._running = 0
        self._told = False
        self._lines = Lines()

    @property
    def asked(self) -> dict[str, Any]:
        return {**super().asked, "devices": self._devices, "memory": self._memory}

    def __repr__(self) -> str:
        return f"<weft.compile of {name_of(self.fn)} over {', '.join(self.mesh.devices)}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if tracing.current() is not None:
            return self.fn(*args, **kwargs)
        if self._stays_home:
            with self._numerics():
                return self._here.called(args, kwargs)
        with self._mode():
            if not self._is_decided(args, kwargs):
                with self._deciding:  # the state is where it was until all of it has moved
                    if not self._is_decided(args, kwargs):
                        try:
                            result = self._here.called(args, kwargs)
                            self._tell_breaks(args, kwargs)
                            return result
                        except _StateIsThereError:
                            self._is_spread = True
            return self._called_there(args, kwargs)

    def _called_there(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Call it on the mesh; some calls are timed, and then layouts may be chosen anew."""
        with self._deciding:
            self._calls, self._running = self._calls + 1, self._running + 1
            number = self._calls
        times: Times = {}
        begin = perf_counter()
        try:
            with meshes.timed(times) if number % WATCHED_EVERY == 0 else nullcontext():
                result = self._there.called(args, kwargs)
                for t in tensors_in(result):
                    # those that require grad are not computed yet, and would be in another mode
                    run.realize_value(t.value)
        finally:
            with self._deciding:
                self._running -= 1
        with self._deciding:
            if number == 1 and self._again is not None:
                self._again.took_ns += 1e9 * (perf_counter() - begin)
            if times and not self._running:  # others would share its time, or read what moves
                self._observe(times)
        return result

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """As of any compiled function; over the devices, once the layouts of its state are decided."""
        with self._mode(), self._lines.noted():
            return self._settled(args, kwargs).explain(*args, **kwargs)

    def profile(self, *args: P.args, **kwargs: P.kwargs) -> Profile:
        """As of any compiled function; no times over several devices."""
        with self._mode():
            return self._settled(args, kwargs).profile(*args, **kwargs)

    def _settled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompiledFunction[P, R]:
        self(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        with self._deciding:
            return self._there if self._is_decided(args, kwargs) else self._here

    @contextmanager
    def _mode(self) -> Generator[None]:
        """The mode of calls: layouts are searched, and sums as asked for."""
        with meshes.searched(self.limit, self.slower), self._numerics():
            yield

    def _numerics(self) -> AbstractContextManager[object]:
        return nullcontext() if self.numerics is None else numerics(self.numerics)

    # deciding ---------------------------------------------------------------------------------------------------------

    def _is_decided(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True where the state is on the mesh: it goes there once there is a trace, that fits, of such a call."""
        if not self._is_spread and not self._stays_home:
            with self._deciding:
                decided = self._is_spread or self._stays_home
                known = None if decided else self._here.recorded(args, kwargs)
                if known is not None:
                    self._decide(known)
        return self._is_spread

    def _decide(self, r: Recording) -> None:
        """Choose devices, and layouts for what was traced, and lay out the state: all of it or nothing."""
        leaves = {k: v.node for k, v in r.placeholders.items() if k < r.arguments + len(r.captured)}
        places = set(leaves.values())
        nodes = dict.fromkeys(v.node for v in r.values if v.node not in places and v.node.storage is None)
        if self._keeps_home(r, list(nodes), [leaves[k] for k in leaves if k < r.arguments]):
            return
        updates: list[tuple[Node, Node]] = []
        for rebind in r.rebinds:
            old = leaves.get(rebind.target) if isinstance(rebind.target, int) else None
            new = r.values[rebind.value].node
            if old is not None and new.shape == old.shape and new not in places and new.storage is None:
                updates.append((new, old))
        begin, mesh = perf_counter(), self.mesh.root
        choose = partial(
            meshes.layouts_for,
            list(nodes), list(leaves.values()), updates, mesh, self.limit, not context().pinned,
        )  # fmt: skip
        layouts, chosen = choose()
        state = list(zip(range(r.arguments, r.arguments + len(r.captured)), r.captured, strict=True))
        again = _Again(choose, {k: at for at, k in enumerate(leaves)}, state, meshes.load_of(mesh))
        self._move([(t, again.layout(k, layouts, self._everywhere)) for k, t in state])
        again.took_ns = 1e9 * (perf_counter() - begin)
        self.chosen, self._again, self._is_spread = chosen, again, True

    def _observe(self, times: Times) -> None:
        """Take in the times of a call; choose layouts anew where that pays, and lay out the state so."""
        again, names = self._again, self.mesh.root.devices
        if again is None or self.chosen is None:
            return
        load = again.load
        load.add(*([times.get(name, (0.0, 0.0))[k] for name in names] for k in (0, 1)))
        now = load.look()
        if now is None:
            return
        layouts, chosen = again.choose(now)
        if load.repays(now, self.chosen.choice.ns, chosen.choice.ns, again.took_ns):
            there = [(k, t) for k, t in again.state if t.value.node.device == self.mesh.name]
            self._move([(t, again.layout(k, layouts, self._everywhere)) for k, t in there], again=True)
            load.chose(now)
            self.chosen, self.slower = chosen, now

    def _keeps_home(self, r: Recording, nodes: Sequence[Node], arguments: Sequence[Node]) -> bool:
        """Leave out devices that only take turns with others: true where none but the default device remains."""
        if not isinstance(self._devices, DeviceMesh) and nodes:
            home = default_device()
            results = [r.values[k].node for k, s in zip(r.results, r.same, strict=True) if s is None]
            names, self.alone = meshes.worth_using(nodes, [*arguments, *results], self.mesh.devices, home)
            if names == [home]:
                self._stays_home = True
            elif len(names) < len(self.mesh.devices):
                self.mesh = DeviceMesh.of(made("compile", names, (len(names),), None))
        return self._stays_home

    @property
    def _everywhere(self) -> Layout:
        return (Replicate(),) * len(self.mesh.root.shape)

    def _move(self, state: Sequence[tuple[Tensor, Layout]], again: bool = False) -> None:
        """Lay out tensors, and their gradients, on the mesh: all of them or none. Those that are there stay as they
        are, but `again`."""
        mesh = self.mesh.root
        moving = [(t, layout) for t, layout in state if again or not is_mesh(t.value.node.device)]
        grads = [
            (t, laid_out(Value(g.value.node), mesh, layout))
            for t, layout in state
            if (g := t.grad) is not None and (again or not is_mesh(g.value.node.device))
        ]
        values: list[tuple[Tensor, Value]] = []
        for t, layout in moving:
            v = t.value
            if v.is_leaf:
                values.append((t, Value(laid_out(Value(v.node), mesh, layout).node, v.needs_grad)))
            else:
                values.append((t, laid_out(v, mesh, layout)))
        run.realize([v.node for _, v in (*values, *grads)])
        seen = _seen([t for t, _ in values])
        with restored_on_error([t for t, _ in values], [t for t, _ in grads]):
            for t, v in values:
                t.rebind(v)
                t.look = None  # who else looked at the same elements keeps those that were
                self._state[id(t)] = ref(t)
            for source, out, steps in seen:
                views.compose_views(source, out, steps)
            for t, v in grads:
                t.grad = wrap(v)

    def _tell_breaks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Warn, once, where no call will be known as a whole."""
        breaks = self._here.leaves(args, kwargs)
        if breaks and not self._told:
            self._told = True
            warnings.warn(
                f"weft.compile: {name_of(self.fn)} is not spread over {', '.join(self.mesh.devices)}, and stays on "
                f"{default_device()}: it asks for values, so its graph is never known as a whole. "
                f"{'; '.join(dict.fromkeys(map(str, breaks)))}",
                stacklevel=4,
            )

    def _at_home(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function where everything is; _StateIsThereError where its state is on the mesh already."""
        trace = tracing.current()
        if trace is not None:
            trace.arrives = self._turn_back
        fn: Callable[..., Any] = self.fn
        return fn(*args, **kwargs)

    def _turn_back(self, t: Tensor) -> None:
        if t.value.node.device == self.mesh.name:
            raise _StateIsThereError

    # on the mesh ------------------------------------------------------------------------------------------------------

    def _on_mesh(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with its arguments on the mesh: what is traced, or run where values are asked for. Of what
        is traced, the lines are noted for explanations."""
        trace = tracing.current()
        with nullcontext() if trace is None else self._lines.noted():
            return self._with_moved(trace, args, kwargs)

    def _with_moved(self, trace: tracing.Trace | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function with its arguments on the mesh. It has done to the arguments afterwards what it did to
        those that it got."""
        home = default_device()
        arguments: list[Tensor] = tensors_in((args, kwargs))
        if trace is not None:
            given = {id(t) for a in arguments for t in (a, a.__dict__.get("_grad"))}
            trace.arrives = lambda t: None if id(t) in given else self._arrived(t, home)
        moved = {id(t): _Moved.of(t, self.mesh.name) for t in arguments if self._moves(t)}
        for source, out, steps in _seen([m.argument for m in moved.values()]):
            views.compose_views(moved[id(source)].there, moved[id(out)].there, steps)
        there = {id(m.there): m for m in moved.values()}
        with switched(devices=(*context().devices, self.mesh.name)):
            fn: Callable[..., Any] = self.fn
            result = fn(
                *mapped(args, lambda t: moved[id(t)].there if id(t) in moved else t),
                **mapped(kwargs, lambda t: moved[id(t)].there if id(t) in moved else t),
            )
        for m in moved.values():
            m.bring_back(home)

        def back(t: Tensor) -> Tensor:
            if id(t) in there:
                return there[id(t)].argument
            if not is_mesh(t.value.node.device) or self._stays(t):
                return t
            look, out = t.look, wrap(place(t.value, home))
            known = [] if look is None else [(m, s) for m, s in views.seen_from(t, look) if id(m) in there]
            for source, steps in known[:1]:
                views.compose_views(there[id(source)].argument, out, steps)
            return out

        return mapped(result, back)

    def _moves(self, t: Tensor) -> bool:
        device = t.value.node.device
        return device != run.META and not is_mesh(device)

    def _stays(self, t: Tensor) -> bool:
        """True for a result that is state: it stays itself."""
        known = self._state.get(id(t))
        return (t.is_leaf and t.requires_grad) or (known is not None and known() is t)

    def _arrived(self, t: Tensor, home: str) -> None:
        """State that no call had read before: each device gets all of it."""
        if t.value.node.device in (None, home):
            self._move([(t, self._everywhere)])


@dataclass(slots=True, eq=False)
class _Again:
    """All that choosing layouts anew takes. `choose`: by the times by which devices are slower; `number`: which of the
    layouts is that of a placeholder; `state`: tensors by their placeholders; `took_ns`: the time of choosing, and of
    the plan."""

    choose: Callable[..., tuple[list[Layout], Chosen]]
    number: Mapping[int, int]
    state: Sequence[tuple[int, Tensor]]
    load: Load
    took_ns: float = 0.0

    def layout(self, placeholder: int, layouts: Sequence[Layout], everywhere: Layout) -> Layout:
        """The layout of a tensor of the state."""
        return layouts[self.number[placeholder]] if placeholder in self.number else everywhere


class _StateIsThereError(BaseException):
    """The end of a trace in which a tensor is on the mesh, where another function has moved it. No Exception: a trace
    that is interrupted leaves nothing behind."""


@dataclass(slots=True, eq=False)
class _Moved:
    """An argument, and the tensor on the mesh that the function gets for it; their values and gradients before."""

    argument: Tensor
    there: Tensor
    value: Value
    grad: Tensor | None
    grad_value: Value | None

    @classmethod
    def of(cls, t: Tensor, mesh: str) -> _Moved:
        there = wrap(apply(Op.COPY, (t.value,), Target(mesh)))
        grad = None
        if t.value.needs_grad:
            if there.value.needs_grad:
                there.retain_grad()
            before = t.grad
            if before is not None:
                grad = there.grad = wrap(apply(Op.COPY, (before.value,), Target(mesh)))
        return cls(t, there, there.value, grad, None if grad is None else grad.value)

    def bring_back(self, home: str) -> None:
        """Have the argument be what the function made of the tensor that it got."""
        t, there = self.argument, self.there
        own = t.value.node.device or home
        v = there.value
        if v is not self.value:
            if v.is_leaf and v.needs_grad and not t.value.needs_grad:
                t.requires_grad_()
            if v.node is not self.value.node or v.needs_grad is not t.value.needs_grad:
                self._write(place(v, own))
        grad = there.grad
        if grad is not self.grad or (grad is not None and grad.value is not self.grad_value):
            t.grad = None if grad is None else wrap(place(grad.value, own))

    def _write(self, value: Value) -> None:
        t = self.argument
        if t.value.is_leaf and t.value.needs_grad:  # the function was allowed to
            with no_grad():
                self._take(Value(value.node))
        else:
            self._take(value)

    def _take(self, value: Value) -> None:
        if value.shape == self.argument.value.shape:
            self.argument.become("compile", value)
        else:
            self.argument.in_shape("compile", value)


def _seen(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, tuple[views.ViewStep, ...]]]:
    """The tensors that are views of others among them: (of which, the view, the steps to it)."""
    number = {id(t): k for k, t in enumerate(tensors)}
    found: list[tuple[Tensor, Tensor, tuple[views.ViewStep, ...]]] = []
    for k, t in enumerate(tensors):
        known = [] if t.look is None else [(m, s) for m, s in views.seen_from(t, t.look) if id(m) in number]
        # of two that look at just the same, the later is a view of the first
        first = [(m, s) for m, s in known if s or number[id(m)] < k]
        if first:
            source, steps = min(first, key=lambda found: len(found[1]))
            found.append((source, t, steps))
    return found


def _named(way: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """A way to call a function, by the name of that."""
    return update_wrapper(partial(way), fn, updated=())
