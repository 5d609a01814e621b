"""A plan: compiled kernels, and the steps that run them on given memory."""
# Tests: tests/scheduler/test_plan_verify.py

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias, cast

from weft.backends.protocol import Code, Commands, Device, Executable, Memory, Repeater
from weft.backends.storage import Storage
from weft.errors import MemoryPlanError
from weft.ir.dtypes import DType
from weft.ir.graph import Node
from weft.ir.index import Int, Var, evaluate
from weft.lazy_dataclass import dataclass
from weft.scheduler.growing import Growing, Needs, linked

if TYPE_CHECKING:
    from weft.scheduler.basic.tiers import Final


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """The facts about one step: for explanations and profiles. Bytes and flops are for the largest runtime sizes;
    of the `bytes` that move, `written` are written. `dtype`: what is computed with, which sets the rate."""

    name: str
    bytes: int
    flops: int
    why: tuple[str, ...] = ()
    written: int = 0
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One result: its dtype and shape; the input whose memory it takes over, if it replaces that input (state). `over`:
    the inputs whose memory it may be given in a run after which nobody needs them."""

    dtype: DType
    shape: tuple[Int, ...]
    replaces: int | None = None
    over: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tenant:
    """Something that the plan needs memory for."""

    name: str
    nbytes: int


Feed: TypeAlias = "tuple[int | Memory, ...]"
"""The memory of each leaf of a plan for all sizes: a leaf of the graph by its number, or a number's own."""


@dataclass(slots=True)
class Runs:
    """Runs so far, and the seconds that they took together; `expected`: those that one should take, once known."""

    count: int = 0
    seconds: float = 0.0
    expected: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """The graph of all sizes that a plan was built for, values of its runtime variables, and the runs with these."""

    graph: Callable[[], tuple[Node, ...]]
    sizes: tuple[tuple[Var, int], ...] = ()
    runs: Runs = field(default_factory=Runs)

    @property
    def outputs(self) -> tuple[Node, ...]:
        """The results of the graph, which is made where somebody wants to see it."""
        return self.graph()

    @property
    def values(self) -> dict[str, int]:
        """The sizes by the variables' names."""
        return {v.name: x for v, x in self.sizes}

    @property
    def share(self) -> float:
        """The sizes beside the largest ones, one by the other."""
        found = 1.0
        for v, x in self.sizes:
            found *= max(x, 1) / max(v.hi, 1)
        return found

    def __str__(self) -> str:
        sizes = ", ".join(f"{v.name} = {x} of {v.lo} to {v.hi}" for v, x in self.sizes)
        return "a plan for all numbers" if not sizes else f"a plan for all sizes: {sizes}"


_NO_PLACES: Mapping[int, Memory] = {}

Size: TypeAlias = "tuple[int, DType, tuple[int, ...], int | None]"
"""Bytes, dtype and shape of a result, and the leaf whose memory it takes."""


@dataclass(frozen=True, slots=True)
class Within:
    """The way in which a plan keeps within a limit: the kernels of the graph, by number, in the order in which they
    run; which values leave memory, and why, a line for each."""

    order: tuple[int, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything that running a graph of one structure on one device takes. `largest`: what needs most memory;
    `constants`: variables of the commands after the runtime ones, with the same values in every run; `computed`: others
    between these, which follow from the runtime ones once it is `bound`; `feed`: where the commands' leaves are not the
    graph's; `shared`: where it serves other graphs, too; `within`: where it does not keep
    all values."""

    device: Device
    commands: Commands
    codes: tuple[Code, ...]
    outputs: tuple[OutputSpec, ...]
    variables: tuple[Var, ...]
    steps: tuple[KernelInfo, ...]
    executable: Executable
    largest: tuple[Tenant, ...] = ()
    constants: tuple[int, ...] = ()
    feed: Feed | None = None
    shared: Shared | None = None
    within: Within | None = None
    updating: threading.RLock = field(init=False, default_factory=threading.RLock)
    """Held by a run that updates memory in place and has to tell how far it got: runs are counted by the executable."""
    sizes: tuple[Size, ...] | None = None
    """Bytes, dtype, shape and memory of each result; None where runtime variables have a say."""
    computed: tuple[Int, ...] = ()
    final: Final | None = None
    """The plan that takes over from a basic one: see `basic/tiers.py`."""
    needs: Needs | None = None
    """The workspace by runtime sizes: see `growing.py`."""

    def __post_init__(self) -> None:
        if self.sizes is None:
            object.__setattr__(self, "sizes", _fixed(self.outputs))

    def bound(
        self,
        values: Sequence[int],
        feed: Feed,
        replaces: Mapping[int, int],
        shared: Shared,
        final: Final | None,
    ) -> Plan:
        """The plan for these values of the runtime variables, which serves other graphs, too. `replaces`: the leaf
        that is asked to be replaced, by the output."""
        outputs, sizes, constants = self.outputs, self.sizes, (*values, *self.constants)
        env: dict[str, int] = {}
        if sizes is None or replaces or self.computed:
            env = {v.name: x for v, x in zip(self.variables, values, strict=True)}
        if self.computed:
            constants = (*values, *[int(evaluate(x, env)) for x in self.computed], *self.constants)
        if sizes is None or replaces:
            outputs = tuple([
                OutputSpec(
                    o.dtype,
                    tuple([n if n.__class__ is int else int(evaluate(n, env)) for n in o.shape]),
                    None if o.replaces is None else replaces[k],
                )
                for k, o in enumerate(outputs)
            ])  # fmt: skip
            sizes = None
        made = Plan(  # once for each number that is new, and `replace` would look through all fields
            self.device, self.commands, self.codes, outputs, (), self.steps, self.executable, self.largest,
            constants, feed, shared, None, sizes, final=final,
        )  # fmt: skip
        object.__setattr__(made, "updating", self.updating)  # which goes with the executable
        return made

    def on(self, device: Device) -> Plan:
        """The plan on a device of the same class (see `protocol.Alike`), which has no memory of the device in it."""
        assert self.feed is None, "numbers are in memory of a device"
        executable = linked(device, self.codes, self.commands, self.variables, self.needs)
        return replace(self, device=device, executable=executable)

    def with_memories_kept(self) -> Plan:
        """The plan with an executable of its own, which can run again on the memories of its last run, where the device
        has such."""
        if self.feed is not None or not isinstance(self.executable, Repeater):
            return self
        executable = self.device.link(self.codes, self.commands)
        if isinstance(executable, Repeater):
            executable.keep_memories()
        return replace(self, executable=executable)

    def with_workspace_given(self) -> Plan:
        """The plan with its workspace given at each run: after the results, a memory for each of its `offsets`."""
        c = self.commands
        commands = replace(c, externals=c.externals + len(c.offsets), offsets=(), workspace_bytes=0)
        return replace(self, commands=commands, executable=self.device.link(self.codes, commands))

    def run(self, inputs: list[Memory], values: Sequence[int] = ()) -> list[Storage]:
        """Run on the memory of the inputs; the results, in memory of their own. MemoryPlanError when there is none."""
        try:
            results, memories = self._with_results(inputs, values, self.feed)
            self.execute(memories, (*values, *self.constants) if self.constants else values)
        except MemoryError as error:
            raise MemoryPlanError(self._refusal(error)) from error
        return results

    def run_fed(self, inputs: Sequence[Memory], feed: Feed, final: Final | None) -> list[Storage]:
        """As `run`, with another `feed` than its own, of a plan without runtime variables; `final` takes over from a
        basic one."""
        try:
            results, memories = self._with_results(inputs, (), feed)
            begin = perf_counter()
            self.executable.run(memories, self.constants)
            if final is not None:
                final.spent += perf_counter() - begin
        except MemoryError as error:
            raise MemoryPlanError(self._refusal(error)) from error
        return results

    def with_results(
        self, inputs: Sequence[Memory], values: Sequence[int] = ()
    ) -> tuple[list[Storage], list[Memory]]:
        """The results, in new memory or that of the input which one replaces; all external memories of the plan.
        MemoryPlanError when there is none."""
        try:
            return self._with_results(inputs, values, self.feed)
        except MemoryError as error:
            raise MemoryPlanError(self._refusal(error)) from error

    def storage(self, k: int, memory: Memory) -> Storage:
        """Result number `k`, which is in that memory, of a plan without runtime variables."""
        _, dtype, shape, _ = (self.sizes or self._sizes(()))[k]
        return Storage(self.device, memory, dtype, shape)

    def start(self, memories: Sequence[Memory], values: Sequence[int] = ()) -> None:
        """Run on external memories. MemoryPlanError, before anything is changed, when there is no workspace."""
        try:
            self.execute(memories, (*values, *self.constants) if self.constants else values)
        except MemoryError as error:
            raise MemoryPlanError(self._refusal(error)) from error

    @property
    def execute(self) -> Callable[[Sequence[Memory], Sequence[int]], None]:
        """The executable's run on external memories, with values of all variables. How long it takes is noted where
        another plan may come."""
        return self.executable.run if self.shared is None and self.final is None else self._run_noted

    def _run_noted(self, memories: Sequence[Memory], values: Sequence[int]) -> None:
        """Run, and note how long it took."""
        begin = perf_counter()
        self.executable.run(memories, values)
        seconds = perf_counter() - begin
        if self.shared is not None:
            runs = self.shared.runs
            runs.count, runs.seconds = runs.count + 1, runs.seconds + seconds
        if self.final is not None:
            self.final.spent += seconds

    def start_again(self, changed: Sequence[tuple[int, Memory]], values: Sequence[int] = ()) -> None:
        """As `start`, on the memories of the last run but for those `changed`, by their numbers."""
        executable = cast("Repeater", self.executable)  # to ask a protocol takes as long as some kernels
        try:
            executable.run_again(changed, (*values, *self.constants) if self.constants else values)
        except MemoryError as error:
            raise MemoryPlanError(self._refusal(error)) from error

    def start_timed(self, memories: Sequence[Memory], values: Sequence[int] = ()) -> list[int]:
        """As `start`, and wait: the nanoseconds of each step."""
        try:
            return self.executable.run_timed(memories, (*values, *self.constants))
        except MemoryError as error:
            raise MemoryPlanError(self._refusal(error)) from error

    def result_bytes(self) -> int:
        """The bytes of the results, where no runtime variable has a say."""
        return sum(nbytes for nbytes, _, _, replaces in self.sizes or () if replaces is None)

    def profile(
        self, inputs: Sequence[Memory], values: Sequence[int] = ()
    ) -> tuple[list[Storage], list[int]]:
        """Run and wait: the results, and the nanoseconds of each step."""
        results, memories = self.with_results(inputs, values)
        return results, self.start_timed(memories, values)

    def _with_results(
        self, inputs: Sequence[Memory], values: Sequence[int], feed: Feed | None
    ) -> tuple[list[Storage], list[Memory]]:
        """The results, and all external memories of the plan."""
        device = self.device
        memories = list(inputs) if feed is None else [inputs[m] if isinstance(m, int) else m for m in feed]
        results: list[Storage] = []
        # as `external` does, in one loop: every call of a plan goes through it
        for nbytes, dtype, shape, replaces in self.sizes or self._sizes(values):
            memory = device.allocate(nbytes) if replaces is None else inputs[replaces]
            memories.append(memory)
            results.append(Storage(device, memory, dtype, shape))
        return results, memories

    def external(
        self, inputs: Sequence[Memory], values: Sequence[int] = (), places: Mapping[int, Memory] = _NO_PLACES
    ) -> list[Memory]:
        """All external memories of the plan, the last ones being those of the results: new ones, that of the input
        which one replaces, or their `places`. MemoryPlanError when there is none."""
        try:
            return self._external(inputs, self.sizes or self._sizes(values), places)
        except MemoryError as error:
            raise MemoryPlanError(self._refusal(error)) from error

    def allocated(self, k: int) -> Memory:
        """New memory for result number `k`, of a plan without runtime sizes. MemoryPlanError when there is none."""
        nbytes, _, _, _ = (self.sizes or self._sizes(()))[k]
        try:
            return self.device.allocate(nbytes)
        except MemoryError as error:
            raise MemoryPlanError(self._refusal(error)) from error

    def _external(
        self, inputs: Sequence[Memory], sizes: Sequence[Size], places: Mapping[int, Memory]
    ) -> list[Memory]:
        feed, device = self.feed, self.device
        memories = list(inputs) if feed is None else [inputs[m] if isinstance(m, int) else m for m in feed]
        for k, (nbytes, _, _, replaces) in enumerate(sizes):
            if k in places:
                memories.append(places[k])
            else:
                memories.append(device.allocate(nbytes) if replaces is None else inputs[replaces])
        return memories

    def _sizes(self, values: Sequence[int]) -> list[Size]:
        """Bytes, dtype, shape and memory of each result, for these values of the runtime variables."""
        env = {v.name: x for v, x in zip(self.variables, values, strict=True)}
        shapes = [(o, tuple([int(evaluate(n, env)) for n in o.shape])) for o in self.outputs]
        return [(_nbytes(o.dtype, shape), o.dtype, shape, o.replaces) for o, shape in shapes]

    def _refusal(self, error: MemoryError) -> str:
        rows = "; ".join(f"{t.name} {t.nbytes:,} bytes" for t in self.largest)
        results, executable = self.result_bytes(), self.executable
        between = executable.nbytes if isinstance(executable, Growing) else self.commands.workspace_bytes
        return (
            f"computing this takes {results:,} bytes for results and {between:,} for what lies "
            f"between: {error}. Largest: {rows}. Use smaller batches, recompute (checkpoint) the largest, or raise the "
            "limit"
        )


def _fixed(outputs: Sequence[OutputSpec]) -> tuple[Size, ...] | None:
    """The sizes of results; None where runtime variables have a say."""
    found: list[Size] = []
    for o in outputs:
        for n in o.shape:
            if n.__class__ is not int:
                return None
        found.append((_nbytes(o.dtype, o.shape), o.dtype, cast("tuple[int, ...]", o.shape), o.replaces))
    return tuple(found)


def _nbytes(dtype: DType, shape: Sequence[Int]) -> int:
    n = dtype.itemsize
    for s in shape:
        n *= int(s)  # pyright: ignore[reportArgumentType]  # no runtime variable is left in it
    return n
