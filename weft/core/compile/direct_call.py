"""The shortest way through a compiled function: source text for one trace, where every check is written out.

A call of a small compiled function is bound by the interpreter, so what a trace needs is unrolled: no loops over
arguments, no constructors, no layers. For a function of one argument that adds it to a tensor that it captured, and
returns the sum of that, the text is

    def call(args):
        now = context()
        if now is not fits[0]:
            if (now.grad is not True or now.casts is not casts or now.pinned is not False or now.devices
                    or now.trace is not None):
                return MISS
            fits[0] = now
        if len(args) != 1:
            return MISS
        x0, = args
        if x0.__class__ is not class0 or id(x0) in captured:
            return MISS
        v0 = x0.value
        s0 = v0.node.storage
        if (s0 is None or s0.device is not device0 or s0.shape != shape0 or s0.dtype is not dtype0
                or v0.needs_grad is not False):
            return MISS
        if edit() != seen.edit and not again(args):
            return MISS
        try:
            m1 = allocate(4)
        except MemoryError:
            return MISS
        with steps:
            if busy and not free(args):
                return MISS
            before = runs[0]
            try:
                if not run(seen.edit, s0, m1):
                    return MISS
                written[0] += 1
                r0 = make1(m1)
                if seen.looked:
                    spread([*args, *fixed, ], ())
            except BaseException:
                if runs[0] != before:
                    finish([*args, *fixed, ], (None, m1, ))
                raise
            return r0

MISS stands for "not as it was at the trace": the caller takes the general way, which also has the messages.

State is written in place by one native call, `run` (see backends/direct.py). It finds the memory of captured tensors
itself, and whether anybody else can see what is to be written; since it holds the interpreter's lock, no thread comes
between that look, the writes and their end. So a step takes nothing away from others, and is told from other steps by
one lock that is held until state stands for what was computed. A plan that runs longer lets other threads go on: then
this way is taken where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import ref

from weft.autograd.context import context
from weft.core.compile.kept import Kept, KeptAt
from weft.core.execute import edits, ownership, writes
from weft.core.execute.ownership import SPARE_BYTES, spare_gradient
from weft.core.execute.results import result_maker
from weft.core.execute.routes import Access, Source, tensor_route
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory
    from weft.core.compile.recording import Rebind, SetGrad
    from weft.core.compile.replay import Seen
    from weft.core.execute.modules import Modules
    from weft.core.tensor.tensor import Tensor
    from weft.ir.dtypes import DType
    from weft.scheduler.plan import Plan

MISS: Any = object()
"""The result of a call for which the general way is to be taken; nothing has happened."""

DirectCall: TypeAlias = "Callable[[Sequence[Any]], Any]"
"""A function of a call's tensors: its result, or MISS."""

HELD_NS = 10_000.0
TAKEN_NS = 2_000.0
"""A run for which nothing is taken from other threads may hold the interpreter's lock as long as taking would last:
so much, and so much for each tensor that is written."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Tensor number `number` as it was at the trace: an argument, or the `.grad` of a tensor."""

    number: int
    device: Device
    shape: tuple[int, ...]
    dtype: DType
    needs_grad: bool


@dataclass(frozen=True, slots=True)
class Guards:
    """The state of all but tensors that a trace is for: the modes, what was read of modules, and of gradients."""

    records: bool
    casts: object
    pinned: bool
    modules: Modules | None
    had_grad: Sequence[tuple[int, bool]]
    distinct: bool
    """No argument may be given twice."""


@dataclass(frozen=True, slots=True)
class Effects:
    """The results of a call, and what it changes, by numbers of the plan's outputs: `in_place` has the tensor of those
    that stay in its memory. `counted`: the tensors among these whose writes are counted one by one. `finish` is given
    a call's tensors and the memories of the outputs: it does it all, where the direct way was interrupted."""

    results: Sequence[tuple[int | None, int]]
    """A tensor from before by its number, or a new one over an output."""
    build: Callable[[Sequence[Any]], Any]
    in_place: Mapping[int, int]
    counted: Sequence[int]
    rebinds: Sequence[tuple[Rebind, int]]
    set_grads: Sequence[tuple[SetGrad, int | None]]
    looks: bool
    finish: Callable[[list[Any], Sequence[Memory | None]], object]

    @property
    def change_state(self) -> bool:
        """True where a call does more than to give new tensors."""
        return bool(self.in_place or self.rebinds or self.set_grads)


@dataclass(frozen=True, slots=True)
class DirectSpec:
    """All that the text of a call is made of. Tensors are numbered: arguments, of these `classes`, those `captured`,
    and the gradients of those in `grads_read`. `bound` arguments have to be these tensors, and no other may be a
    captured one (see aliases.py). `memories`: what the plan's leaves are, each the number of the tensor that has it,
    one that is `kept`, or memory that never changes."""

    plan: Plan
    classes: Sequence[type]
    captured: Sequence[Tensor]
    grads_read: Sequence[int]
    bound: Mapping[int, ref[Any]]
    expected: Sequence[Expected]
    expected_captured: Sequence[Expected]
    memories: Sequence[int | KeptAt | Memory]
    kept: Kept | None
    guards: Guards
    effects: Effects
    seen: Seen
    again: Callable[[Sequence[Any]], Any]
    """Looks at all tensors of a call again; None where they are not as at the trace."""
    spread: Callable[[list[Any], Sequence[Any]], None]

    @property
    def arguments(self) -> int:
        return len(self.classes)

    def is_captured(self, k: int) -> bool:
        """True for the number of a captured tensor."""
        return self.arguments <= k < self.arguments + len(self.captured)

    @property
    def objects(self) -> str:
        """The expression of all tensors by number."""
        first = self.arguments + len(self.captured)
        return f"[*args, *fixed, {''.join(f'x{i}, ' for i in range(first, first + len(self.grads_read)))}]"


@dataclass(slots=True)
class _Text:
    """The lines of a function that is being written, and the objects that they name."""

    env: dict[str, Any]
    lines: list[str] = field(default_factory=lambda: ["def call(args):"])
    depth: int = 1

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def enter(self, line: str) -> None:
        """A line that opens a block, which goes on from here."""
        self.add(line)
        self.depth += 1

    def miss_if(self, condition: str) -> None:
        self.add(f"if {condition}:", "    return MISS")

    def function(self) -> DirectCall:
        exec(compile("\n".join(self.lines), "<weft.compile: a direct call>", "exec"), self.env)
        made: DirectCall = self.env["call"]
        return made


def direct_call(d: DirectSpec) -> DirectCall | None:
    """The call of a plan. None where there is no way about as short: sizes vary, or state is written by a device that
    cannot do it at once."""
    sizes, plan = d.plan.sizes, d.plan
    if sizes is None or plan.variables or plan.constants or plan.feed is not None:
        return None
    run = _run(d)
    if run is None:
        return None
    t = _Text({"context": context, "casts": d.guards.casts, "MISS": MISS, **run.env})
    _check_modes(t, d)
    _check_arguments(t, d)
    _fetch_gradients(t, d)
    _fetch_kept(t, d)
    _check_tensors(t, d, run)
    _look_again(t, d, run)
    spare = {} if run.holds else _spare(d)
    _allocate(t, d, spare)
    if d.effects.change_state:
        _change(t, d, run, spare)
    else:
        _compute(t, d, run)
    return t.function()


# ------------------------------------------------------------------------------------------------------- checks


def _check_modes(t: _Text, d: DirectSpec) -> None:
    g = d.guards
    t.env["fits"] = [None]  # the context that was found to be right last, which does not change
    t.add("now = context()")
    t.enter("if now is not fits[0]:")
    t.miss_if(
        f"now.grad is not {g.records} or now.casts is not casts or now.pinned is not {g.pinned} or now.devices"
        " or now.trace is not None"
    )
    t.add("fits[0] = now")
    t.depth -= 1
    if g.modules is not None:
        t.env |= {"modules": g.modules, "edit_of_modules": edits.modules.latest}
        unchanged = "" if g.modules.looks_at_names else "edit_of_modules() != modules.edit and "
        t.miss_if(f"{unchanged}not modules.are_as_they_were()")


def _check_arguments(t: _Text, d: DirectSpec) -> None:
    n = d.arguments
    t.miss_if(f"len(args) != {n}")
    t.env |= {"captured": frozenset(map(id, d.captured)), "fixed": tuple(d.captured)}
    for k, tensor in enumerate(d.captured, n):
        t.env[f"x{k}"] = tensor
    if n:
        t.add(f"{''.join(f'x{k}, ' for k in range(n))}= args")
    for k, cls in enumerate(d.classes):
        t.env[f"class{k}"] = cls
        conditions = [f"x{k}.__class__ is not class{k}"]
        if k in d.bound:
            t.env[f"bound{k}"] = d.bound[k]
            conditions.append(f"bound{k}() is not x{k}")
        elif d.captured:
            conditions.append(f"id(x{k}) in captured")
        t.miss_if(" or ".join(conditions))
    if d.guards.distinct:
        t.miss_if(f"len({{{', '.join(f'id(x{k})' for k in range(n))}}}) != {n}")


def _fetch_gradients(t: _Text, d: DirectSpec) -> None:
    for k, had in d.guards.had_grad:
        t.miss_if(f"x{k}.__dict__.get('_grad') is {'None' if had else 'not None'}")
    for i, k in enumerate(d.grads_read, d.arguments + len(d.captured)):
        t.add(f"x{i} = x{k}.__dict__['_grad']")


def _fetch_kept(t: _Text, d: DirectSpec) -> None:
    if d.kept is None:
        return
    t.env["kept"] = d.kept
    t.add("there = kept.current")
    t.miss_if("there is None")
    t.add("k = [v.memory for v in there.values]")  # before the sources are looked at
    if d.kept.tensors:
        t.add(f"{''.join(f'q{j}, ' for j in range(len(d.kept.tensors)))}= there.sources")
    for j, k in enumerate(d.kept.tensors):
        t.miss_if(f"x{k}.value.node.storage is not q{j}()")


def _check_tensors(t: _Text, d: DirectSpec, run: _Run) -> None:
    written = set(d.effects.in_place.values())
    for e in d.expected if run.stamped else (*d.expected, *d.expected_captured):
        k = e.number
        t.env |= {f"device{k}": e.device, f"shape{k}": e.shape, f"dtype{k}": e.dtype}
        t.add(f"v{k} = x{k}.value", f"s{k} = v{k}.node.storage")
        t.miss_if(
            f"s{k} is None or s{k}.device is not device{k} or s{k}.shape != shape{k} or s{k}.dtype is not dtype{k}"
            f" or v{k}.needs_grad is not {e.needs_grad}"
        )
        if k in written:
            t.add(f"v{k} = None")  # nobody else is to refer to it


# ---------------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True, slots=True)
class _Run:
    """The expression that runs the plan, True where it did; the objects that it names.

    `shares`: within `workspace`, after `prepare()`. `holds`: the interpreter's lock is held meanwhile. `stamped`: it
    looks whether captured tensors were edited. `may_fail`: by a MemoryError.
    """

    text: str
    env: dict[str, Any]
    shares: bool = False
    holds: bool = False
    stamped: bool = False
    may_fail: bool = False


def _run(d: DirectSpec) -> _Run | None:
    executable: Any = d.plan.executable
    direct = getattr(executable, "direct", None)
    route = tensor_route()
    if direct is None or route is None:
        return None if d.effects.change_state else _executed(d)
    given: list[str] = []
    sources: list[Source] = []
    in_place = {d.plan.outputs[k].replaces: n for k, n in d.effects.in_place.items()}
    if d.captured:
        given.append("seen.edit")

    def argument(text: str) -> int:
        if text not in given:
            given.append(text)
        return given.index(text)

    for i, m in enumerate(d.memories):
        if isinstance(m, KeptAt):
            sources.append(Source(Access.MEMORY, index=argument(f"k[{m.number}]")))
        elif not isinstance(m, int):
            sources.append(Source(Access.MEMORY, m))
        elif d.is_captured(m):
            sources.append(
                Source(Access.WRITE if i in in_place else Access.READ, d.captured[m - d.arguments])
            )
        elif i in in_place:
            at = argument(f"x{m}")
            sources.append(Source(Access.WRITE, index=at, named=argument(f"s{m}")))
        else:
            sources.append(Source(Access.STORAGE, index=argument(f"s{m}")))
    for k, o in enumerate(d.plan.outputs):
        n = d.effects.in_place.get(k)
        if n is None:
            sources.append(Source(Access.MEMORY, index=argument(f"m{k}")))
        elif d.is_captured(n):
            sources.append(Source(Access.READ, d.captured[n - d.arguments]))
        else:
            sources.append(Source(Access.READ, index=argument(f"x{n}")))
        assert n is None or o.replaces is not None
    holds = d.effects.change_state and _is_short(d)
    made = direct(sources, len(given), holds, edits.tensors.latest if d.captured else None, route)
    if made is None:
        return None if d.effects.change_state else _executed(d)
    env: dict[str, Any] = {"run": made.run, "runs": made.runs, "seen": d.seen, "again": d.again}
    workspace = executable.workspace
    if workspace is not None:
        env |= {"workspace": workspace.lock, "prepare": workspace.prepare}
    return _Run(f"run({', '.join(given)})", env, workspace is not None, holds, bool(d.captured))


def _executed(d: DirectSpec) -> _Run | None:
    """The run as any device has it."""
    places: list[str] = []
    env: dict[str, Any] = {"execute": d.plan.executable.run}
    for i, m in enumerate(d.memories):
        if isinstance(m, KeptAt):
            places.append(f"k[{m.number}]")
        elif not isinstance(m, int):
            env[f"memory{i}"] = m
            places.append(f"memory{i}")
        else:
            places.append(f"s{m}.memory")
    places += [f"m{k}" for k in range(len(d.plan.outputs))]
    return _Run(f"execute(({''.join(f'{p}, ' for p in places)})) is None", env, may_fail=True)


def _is_short(d: DirectSpec) -> bool:
    """True where a run lasts no longer than it would to take from other threads what it writes."""
    info, ns = d.plan.device.info, 0.0
    for s in d.plan.steps:
        ns += 1e9 * max(s.bytes / info.bandwidth, s.flops * info.cores / info.flops)
    return ns <= HELD_NS + TAKEN_NS * len(d.effects.in_place)


def _spare(d: DirectSpec) -> dict[int, int]:
    """The outputs that may take the memory of the gradient whose place they take, and the tensors with that."""
    sizes = d.plan.sizes or ()
    grads = {k: g.target for g, k in d.effects.set_grads if k is not None}
    return {k: n for k, n in grads.items() if k not in d.effects.in_place and sizes[k][0] >= SPARE_BYTES}


def _take_spare(t: _Text, d: DirectSpec, spare: Mapping[int, int]) -> None:
    """Memory for these outputs. Within the lock, beside no other thread: nobody comes to see it meanwhile."""
    sizes = d.plan.sizes or ()
    t.env |= {"spare": spare_gradient, "device": d.plan.device}
    lines: list[str] = []
    for k, n in spare.items():
        nbytes, t.env[f"dtype_of_{k}"], t.env[f"shape_of_{k}"], _ = sizes[k]
        lines.append(f"    m{k} = spare(x{n}, device, dtype_of_{k}, shape_of_{k}) or allocate({nbytes})")
    if lines:
        t.add("try:", *lines, "except MemoryError:", "    return MISS")


def _allocate(t: _Text, d: DirectSpec, spare: Mapping[int, int]) -> None:
    t.env["allocate"] = d.plan.device.allocate
    sizes = d.plan.sizes or ()
    kept = d.effects.in_place.keys() | spare.keys()
    news = [(k, nbytes) for k, (nbytes, _, _, _) in enumerate(sizes) if k not in kept]
    if news:
        t.add(
            "try:", *[f"    m{k} = allocate({n})" for k, n in news], "except MemoryError:", "    return MISS"
        )


def _start(t: _Text, d: DirectSpec, run: _Run) -> None:
    """The lines that run the plan, or give up. Where no lock is held, they look again at what was edited. The workspace
    is the last lock that is taken, and only for the run."""
    if run.shares:
        t.enter("with workspace:")
        t.add("try:", "    prepare()", "except MemoryError:", "    return MISS")
    if run.stamped and not _locks(d, run):
        t.miss_if(f"not {run.text} and (not again(args) or not {run.text})")
    else:
        t.miss_if(f"not {run.text}")
    if run.shares:
        t.depth -= 1
    if d.kept is not None:
        t.add("kept.is_used = True")


def _locks(d: DirectSpec, run: _Run) -> bool:
    return run.shares or d.effects.change_state


def _look_again(t: _Text, d: DirectSpec, run: _Run) -> None:
    """The look at what was edited, before there are locks: it may compute, and wait for other steps."""
    if run.stamped and _locks(d, run):
        t.env["edit"] = edits.tensors.latest
        t.miss_if("edit() != seen.edit and not again(args)")


def _compute(t: _Text, d: DirectSpec, run: _Run) -> None:
    """The end of a call that only gives new tensors."""
    if run.may_fail:
        t.enter("try:")
        _start(t, d, run)
        t.depth -= 1
        t.add("except MemoryError:", "    return MISS")
    else:
        _start(t, d, run)
    if d.effects.looks:
        result, names = _result(t, d)
        _spread(t, d, names)
    else:
        result, _ = _result(t, d, inline=True)
    t.add(f"return {result}")


# ------------------------------------------------------------------------------------------------ what changes


def _change(t: _Text, d: DirectSpec, run: _Run, spare: Mapping[int, int]) -> None:
    """The end of a call that changes state: whole, also where it is interrupted."""
    e = d.effects
    t.env |= {
        "steps": ownership.step_lock, "busy": ownership.busy, "free": _free(d), "written": writes.written_steps,
        "sole_thread": ownership.sole_thread, "finish": e.finish,
    }  # fmt: skip
    t.enter("with steps:")
    t.miss_if("busy and not free(args)")
    if not run.holds:
        t.miss_if("not sole_thread()")
    _take_spare(t, d, spare)
    t.add("before = runs[0]")
    t.enter("try:")
    _start(t, d, run)
    if e.in_place:
        t.add("written[0] += 1")
    for k in e.counted:
        t.add(f"own = x{k}.__dict__", "own['_writes'] = own.get('_writes', 0) + 1")
    result, names = _result(t, d)
    _rebind(t, d)
    _spread(t, d, names)
    _set_gradients(t, d)
    t.depth -= 1
    memories = "".join("None, " if k in e.in_place else f"m{k}, " for k in range(len(d.plan.outputs)))
    t.add(
        "except BaseException:", "    if runs[0] != before:", f"        finish({d.objects}, ({memories}))", "    raise",
        f"return {result}",
    )  # fmt: skip


def _free(d: DirectSpec) -> Callable[[Sequence[Any]], bool]:
    """True where no other step changes the same tensors. Those of which the gradient is another tensor each time
    belong to those whose gradient they are."""
    e, n = d.effects, d.arguments
    numbers = {*e.in_place.values(), *(g.target for g, _ in e.set_grads)}
    numbers |= {b.target for b, _ in e.rebinds if isinstance(b.target, int)}
    numbers |= {d.grads_read[k - n - len(d.captured)] for k in numbers if k >= n + len(d.captured)}
    captured = frozenset([id(d.captured[k - n]) for k in numbers if d.is_captured(k)])
    given = [k for k in numbers if k < n]

    def free(args: Sequence[Any]) -> bool:
        return ownership.busy.isdisjoint(captured) and ownership.busy.isdisjoint([id(args[k]) for k in given])

    return free


class _Name:
    """In the place of a result, in a tree of results."""


def _result(t: _Text, d: DirectSpec, inline: bool = False) -> tuple[str, list[str]]:
    """The expressions of the function's result, and of the tensors in it; `inline`: where new ones are made, too."""
    names: list[str] = []
    for i, (same, output) in enumerate(d.effects.results):
        if same is not None:
            names.append(f"x{same}")
            continue
        made = _made(t, d, output)
        names.append(made if inline else f"r{i}")
        if not inline:
            t.add(f"r{i} = {made}")
    signs: list[Any] = [_Name() for _ in names]
    found = _tree(d.effects.build(signs), {id(s): name for s, name in zip(signs, names, strict=True)})
    if found is None:
        t.env["build"] = d.effects.build
        found = f"build([{', '.join(names)}])"
    return found, names


def _made(t: _Text, d: DirectSpec, output: int) -> str:
    """The expression of a new tensor over an output."""
    o = d.plan.outputs[output]
    shape = tuple([n for n in o.shape if isinstance(n, int)])
    t.env[f"make{output}"] = result_maker(d.plan.device, o.dtype, shape)
    return f"make{output}(m{output})"


def _tree(tree: Any, names: Mapping[int, str]) -> str | None:
    """The expression of a result; None where it is made of more than tuples, lists and tensors."""
    if tree is None:
        return "None"
    if id(tree) in names:
        return names[id(tree)]
    if tree.__class__ not in (tuple, list):
        return None
    parts = [_tree(x, names) for x in cast("Sequence[Any]", tree)]
    if any(p is None for p in parts):
        return None
    inside = "".join([f"{p}, " for p in parts])
    return f"({inside})" if tree.__class__ is tuple else f"[{inside}]"


def _rebind(t: _Text, d: DirectSpec) -> None:
    t.env["rebind"] = ownership.rebind
    for i, (b, output) in enumerate(d.effects.rebinds):
        made = f"{_made(t, d, output)}.value.node"
        if isinstance(b.target, int):
            t.add(f"rebind(x{b.target}, {made}, {b.needs_grad})")
        else:
            t.env[f"target{i}"] = b.target
            t.add(f"t = target{i}()", "if t is not None:", f"    rebind(t, {made}, {b.needs_grad})")


def _spread(t: _Text, d: DirectSpec, results: Sequence[str]) -> None:
    """Have who looks at the elements of what was written see them, and results look at what they are views of."""
    e = d.effects
    t.env["spread"] = d.spread
    if e.looks:
        t.add(f"spread({d.objects}, [{', '.join(results)}])")
        return
    conditions = ["seen.looked"] if any(map(d.is_captured, e.in_place.values())) else []
    conditions += [f"x{k}.look is not None" for k in e.in_place.values() if not d.is_captured(k)]
    if e.rebinds:
        conditions = ["True"]
    if conditions:
        t.add(f"if {' or '.join(conditions)}:", f"    spread({d.objects}, ())")


def _set_gradients(t: _Text, d: DirectSpec) -> None:
    for g, output in d.effects.set_grads:
        value = "None" if output is None else _made(t, d, output)
        if g.tensor is not None:
            value = f"x{g.tensor}"
        t.add(f"x{g.target}.__dict__['_grad'] = {value}")
