"""Mutants of a source file: a change of it that no test notices is a test that is missing.

    python tools/mutate.py weft/ir/passes/licm.py                                  # all mutants of the file
    python tools/mutate.py weft/core/broadcast.py --sample 10 --seed 1             # some of them
    python tools/mutate.py weft/core/broadcast.py tests/core/test_elementwise.py   # by these tests
    python tools/mutate.py                                                         # what is recorded of each file

One thing at a time is changed: a comparison is another one, an integer is one more or one less, `and` is `or`, `min` is
`max`, a condition is negated; a call or an assignment into an object is left out, and so is the return that stands
alone under a condition. The tests, by default the file's own (`tools/module_tests.py`), run up to the first that fails,
in a process that imports the mutant in place of the file; no file is changed. What came out stands in tests/mutants,
where a later run goes on: it tries again what survived, and starts anew once the file has changed.

A mutant that no test can notice, since it means the same, is left alive on purpose: the reason is written by hand into
the record, in a line below the mutant that begins with `equivalent:`, and the mutant is not tried again. What a test
would have to show that is not written yet stands there after `missing:`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from module_tests import find_tests

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "tests" / "mutants"

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min"}
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
HEAD = re.compile(r"(?P<file>\S+) (?P<digest>\w+): \d+ of (?P<possible>\d+) mutants: .*")
NOTE = " " * 11
EQUIVALENT, MISSING = "equivalent: ", "missing: "


@dataclass(frozen=True, slots=True)
class Mutant:
    """The bytes `start` to `stop` of a file, which are at `line` and `column`, and what they become."""

    line: int
    column: int
    start: int
    stop: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}  {self.before}  ->  {self.after}"

    def applied(self, source: str) -> str:
        """The file's text with the change."""
        text = source.encode()
        return (text[: self.start] + self.after.encode() + text[self.stop :]).decode()


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a file's mutants so far, by their text, and what is noted about some that survived."""

    file: str
    digest: str
    possible: int
    results: dict[str, str] = field(default_factory=dict[str, str])
    notes: dict[str, str] = field(default_factory=dict[str, str])

    def head(self) -> str:
        """A line in all."""
        counts = [f"{list(self.results.values()).count(r)} {r}" for r in (KILLED, TIMED_OUT, SURVIVED)]
        return (
            f"{self.file} {self.digest}: {len(self.results)} of {self.possible} mutants: {', '.join(counts)}"
        )

    def text(self) -> str:
        """The head, and a line for each mutant: survivors with their notes first, then in the order of the file."""
        lines = [self.head()]
        for mutant, result in sorted(self.results.items(), key=lambda x: (x[1] != SURVIVED, *_place(x[0]))):
            lines.append(f"{result:9}  {mutant}")
            if mutant in self.notes:
                lines.append(NOTE + self.notes[mutant])
        return "\n".join(lines) + "\n"

    def open(self) -> list[str]:
        """Mutants that survived though they do not mean the same."""
        survivors = [m for m, result in self.results.items() if result == SURVIVED]
        return [m for m in survivors if not self.notes.get(m, "").startswith(EQUIVALENT)]

    @staticmethod
    def parsed(text: str) -> Record:
        """The record that has this text."""
        head, *lines = text.splitlines()
        found = HEAD.match(head)
        if found is None:
            raise ValueError(f"a record begins with its file, a digest and counts, not with {head!r}")
        record, mutant = Record(found["file"], found["digest"], int(found["possible"])), ""
        for line in lines:
            if line.startswith(NOTE):
                record.notes[mutant] = line.removeprefix(NOTE)
            else:
                mutant = line[11:]
                record.results[mutant] = line[:9].strip()
        return record

    @staticmethod
    def read(path: Path, file: str, digest: str, possible: int) -> Record:
        """The record in a file, if it is about this text of the source; else an empty one."""
        record = Record.parsed(path.read_text(encoding="utf-8")) if path.exists() else None
        if record is not None and (record.file, record.digest) == (file, digest):
            return replace(record, possible=possible)
        return Record(file, digest, possible)


def _place(mutant: str) -> tuple[int, int]:
    line, _, column = mutant.partition("  ")[0].partition(":")
    return int(line), int(column)


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of their places."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    out: list[Mutant] = []
    for node in _visited(ast.parse(source)):
        for old, new in _changes(node):
            start = starts[old.lineno - 1] + old.col_offset
            stop = starts[(old.end_lineno or old.lineno) - 1] + (old.end_col_offset or 0)
            after = ast.unparse(new)
            after = f"({after})" if isinstance(new, ast.expr) else after
            out.append(Mutant(old.lineno, old.col_offset, start, stop, ast.unparse(old), after))
    return sorted(out, key=lambda m: (m.line, m.column, m.stop, m.after))


def _visited(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that tests can tell of: no annotations, assertions, messages, or what only type checkers read."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return
        case _:
            yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _visited(child)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """Parts of the node, and what each becomes."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=values):
            for k, op in enumerate(ops):
                yield node, ast.Compare(left, [*ops[:k], COMPARISONS[type(op)](), *ops[k + 1 :]], values)
        case ast.Constant(value=int(n)) if not isinstance(n, bool):
            yield node, ast.Constant(n + 1)
            yield node, ast.Constant(n - 1)
        case ast.BoolOp(op=op, values=values):
            yield node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in EXTREMES:
            yield node, ast.Call(ast.Name(EXTREMES[name]), args, keywords)
        case ast.Expr(value=ast.Call()):
            yield node, ast.Pass()
        case (
            ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.AugAssign(target=ast.Attribute() | ast.Subscript())
        ):
            yield node, ast.Pass()
        case ast.If() | ast.While() | ast.IfExp():
            yield node.test, ast.UnaryOp(ast.Not(), node.test)
            if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Return):
                if len(node.body) == 1:
                    yield node.body[0], ast.Pass()
        case _:
            pass


def records() -> list[Record]:
    """All that are kept, in the order of their names."""
    return [Record.parsed(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.txt"))]


def digest_of(source: str) -> str:
    """The name of a file's text in its record."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def recorded() -> Iterator[str]:
    """A line for each record: its head, and whether it is about an older text of the file."""
    for record in records():
        file = ROOT / record.file
        now = digest_of(file.read_text(encoding="utf-8")) if file.exists() else None
        yield record.head() + ("" if now == record.digest else "; the file has changed since")


def outcome(module: str, source: str, tests: list[str], limit: float | None) -> tuple[str, str]:
    """What the tests say of a module with this source, and their last lines."""
    with TemporaryDirectory(prefix="mutant-") as folder:
        path = Path(folder) / "source.py"
        path.write_text(source, encoding="utf-8")
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", *tests]
        command = [sys.executable, str(ROOT / "tools" / "mutant.py"), module, str(path), *options]
        run = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = run.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            return TIMED_OUT, ""
    return (SURVIVED if run.returncode == 0 else KILLED), "\n".join(said.splitlines()[-20:])


def main(arguments: list[str] | None = None) -> int:
    """Runs the tests on the mutants, and records what they say; 1 where one survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", help="a file of weft, from the root of the repository")
    parser.add_argument("tests", nargs="*", help="files and folders of tests")
    parser.add_argument("--sample", type=int, help="that many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--limit", type=float, help="seconds that the tests of a mutant may take")
    asked = parser.parse_args(arguments)
    if asked.file is None:
        sys.stdout.writelines(f"{line}\n" for line in recorded())
        return 0
    module = ".".join(asked.file.with_suffix("").parts).removesuffix(".__init__")
    source = (ROOT / asked.file).read_text(encoding="utf-8")
    tests = asked.tests or [str(test) for test in find_tests(asked.file)]
    if not tests:
        parser.error(f"{asked.file} names no tests")
    found = mutants(source)
    path = RECORDS / f"{'.'.join(asked.file.with_suffix('').parts)}.txt"
    record = Record.read(path, str(asked.file), digest_of(source), len(found))
    chosen = (
        found if asked.sample is None else Random(asked.seed).sample(found, min(asked.sample, len(found)))
    )
    survivors, new = set(record.open()), {m for m in chosen if str(m) not in record.results}
    left = [m for m in found if m in new or str(m) in survivors]
    sys.stdout.write(f"{len(left)} of {len(found)} mutants of {asked.file}, by {' '.join(tests)}\n")
    if not left:
        return 0
    start = time.monotonic()
    before, said = outcome(module, source, tests, asked.limit)
    if before != SURVIVED:
        sys.stdout.write(f"the tests fail for the file itself ({before})\n{said}\n")
        return 2
    limit = asked.limit or 10 + 4 * (time.monotonic() - start)
    path.parent.mkdir(exist_ok=True)
    for m in left:
        result, _ = outcome(module, m.applied(source), tests, limit)
        sys.stdout.write(f"{result:9}  {m}\n")
        sys.stdout.flush()
        notes = {k: note for k, note in record.notes.items() if k != str(m) or result == SURVIVED}
        record = replace(record, results={**record.results, str(m): result}, notes=notes)
        path.write_text(record.text(), encoding="utf-8")
    return int(bool(record.open()))


if __name__ == "__main__":
    sys.exit(main())
