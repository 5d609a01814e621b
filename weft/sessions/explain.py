"""Explanations of sessions, for people: what they keep, reach and compute."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.graph import Node
from weft.lazy_dataclass import dataclass
from weft.scheduler.keeping import nbytes
from weft.sessions.buckets import Bucket
from weft.sessions.form import Form


@dataclass(frozen=True, slots=True)
class Stats:
    """The runs of a session: of everything, steps of what a change reached, and without a change; the plans made; the
    values that it keeps of those that kernels store; the bytes of these, of results, of the most scratch of any run,
    and of the arguments that it holds to compare the next ones with."""

    everything: int
    steps: int
    unchanged: int
    plans: int
    kept: int
    stored: int
    kept_bytes: int
    result_bytes: int
    scratch_bytes: int
    argument_bytes: int
    limit: int | None

    @property
    def planned_bytes(self) -> int:
        """The bytes that the session takes while it runs, besides the arguments'."""
        return self.kept_bytes + self.result_bytes + self.scratch_bytes


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """A class of changes: `change` in words; of each kept node, by its number, what it reaches and what is computed;
    the names of the kernels."""

    change: str
    parts: dict[int, tuple[str, str]]
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionExplanation:
    """The values that a session keeps for arguments of one structure, and the steps that it has planned."""

    kept: tuple[str, ...]
    computed_again: tuple[str, ...]
    """Values that kernels store, and that are not kept."""
    steps: tuple[ExplainedStep, ...]

    def __str__(self) -> str:
        lines = [f"#{k} {text}" for k, text in enumerate(self.kept)]
        lines += [f"not kept: {text}: computed again from what is kept" for text in self.computed_again]
        for s in self.steps:
            lines.append(f"{s.change}: {len(s.kernels)} kernels")
            lines += [f"  #{k} reached {reached}, computed {done}" for k, (reached, done) in s.parts.items()]
        return "\n".join(lines)


def statistics(forms: Sequence[Form], limit: int | None) -> Stats:
    """The counts and bytes of a session's forms."""
    memory = [f.memory() for f in forms]
    return Stats(
        everything=sum(f.counts.whole for f in forms),
        steps=sum(f.counts.steps for f in forms),
        unchanged=sum(f.counts.same for f in forms),
        plans=sum(len(f.steps) + f.is_planned for f in forms),
        kept=sum(len(f.keeper.kept) for f in forms),
        stored=sum(len(f.keeper.stored) for f in forms),
        kept_bytes=sum(m.kept for m in memory),
        result_bytes=sum(m.results for m in memory),
        scratch_bytes=max([m.scratch for m in memory], default=0),
        argument_bytes=sum(s.nbytes for f in forms for s in f.inputs.values.values()),
        limit=limit,
    )


def explained(form: Form) -> SessionExplanation:
    """The explanation of a form."""
    kept, results = form.keeper.kept, set(form.template.results)
    kept_text = [f"{_text(n)}: {'a result' if n in results else 'a kernel stores it'}" for n in kept]
    rest = [_text(n) for n in form.keeper.stored if n not in kept]
    steps: list[ExplainedStep] = []
    for (bucket, _), step in form.steps.items():
        parts = {
            k: (repr(p.dirty), repr(p.computed))
            for k, n in enumerate(kept)
            if (p := step.graph.parts.get(n)) is not None and not p.dirty.is_empty
        }
        plan = step.run.plan
        steps.append(
            ExplainedStep(_change(bucket), parts, () if plan is None else tuple(s.name for s in plan.steps))
        )
    return SessionExplanation(tuple(kept_text), tuple(rest), tuple(steps))


def _text(n: Node) -> str:
    return f"{n.op.symbol} {n.dtype.short}{list(n.shape)}, {nbytes(n):,} bytes"


def _change(bucket: Bucket) -> str:
    """A class of changes in words."""
    parts = [f"input {k} whole" for k in bucket.whole]
    if bucket.input >= 0:
        parts.append(f"input {bucket.input} in a box of {' x '.join(map(str, bucket.sizes))}")
    parts += [f"{v.name} another" for v in bucket.moved]
    return ", ".join(parts) or "nothing"
