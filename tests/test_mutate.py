"""The mutation tool changes one thing at a time, tells which changes the tests notice, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

import mutate
import pytest
from mutate import EQUIVALENT, KILLED, MISSING, SURVIVED, TIMED_OUT, Record, mutants, outcome, records

SOURCE = '''\
"""Numbers. 1 < 2."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    WORD = 3


def f(x: list[int] | tuple[1], y: int = 2) -> int:
    """0 of them."""
    assert len(x) > 4
    if x is None and y <= 5:
        return min(y, x.größe)
    x[y] = y
    x.append(f"{y + 6}")
    while True or y:
        y.z += y
    return y if y not in x else -x
'''

CHANGES = """\
2  ->  (3)
2  ->  (1)
x is None and y <= 5  ->  (x is None or y <= 5)
x is None and y <= 5  ->  (not (x is None and y <= 5))
x is None  ->  (x is not None)
y <= 5  ->  (y < 5)
5  ->  (4)
5  ->  (6)
return min(y, x.größe)  ->  pass
min(y, x.größe)  ->  (max(y, x.größe))
x[y] = y  ->  pass
x.append(f'{y + 6}')  ->  pass
True or y  ->  (True and y)
True or y  ->  (not (True or y))
y.z += y  ->  pass
y not in x  ->  (not y not in x)
y not in x  ->  (y in x)
"""


def test_one_thing_is_changed_at_a_time() -> None:
    assert sorted(str(m).partition("  ")[2] for m in mutants(SOURCE)) == sorted(CHANGES.splitlines())


def test_everything_else_in_the_file_stays() -> None:
    (mutant,) = (m for m in mutants(SOURCE) if m.before.startswith("min"))
    lines = zip(SOURCE.splitlines(), mutant.applied(SOURCE).splitlines(), strict=True)
    assert [(a, b) for a, b in lines if a != b] == [
        ("        return min(y, x.größe)", "        return (max(y, x.größe))")
    ]


@pytest.mark.parametrize("number", range(len(CHANGES.splitlines())))
def test_a_mutant_is_a_program(number: int) -> None:
    compile(mutants(SOURCE)[number].applied(SOURCE), "mutant", "exec")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    results = {str(m): (KILLED, SURVIVED, TIMED_OUT)[k % 3] for k, m in enumerate(mutants(SOURCE))}
    record = Record("weft/a.py", "0123", 40, results)
    path = tmp_path / "record.txt"
    path.write_text(record.text(), encoding="utf-8")
    assert Record.read(path, "weft/a.py", "0123", 40) == record
    assert Record.read(path, "weft/a.py", "4567", 40) == Record("weft/a.py", "4567", 40)
    assert path.read_text(encoding="utf-8").splitlines()[0] == (
        "weft/a.py 0123: 17 of 40 mutants: 6 killed, 5 timed out, 6 survived"
    )


def test_a_note_stays_with_its_mutant() -> None:
    first, second, third = map(str, mutants(SOURCE)[:3])
    results = {first: SURVIVED, second: SURVIVED, third: KILLED}
    record = Record(
        "weft/a.py", "0123", 40, results, {first: "missing: y is 1", second: "equivalent: y is never 1"}
    )
    assert Record.parsed(record.text()) == record
    assert record.open() == [first]


def test_a_record_without_a_head_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with its file, a digest and counts, not with 'killed'"):
        Record.parsed("killed")


def test_of_every_mutant_that_survives_it_is_said_why() -> None:
    kept = records()
    assert kept
    for record in kept:
        survivors = {mutant for mutant, result in record.results.items() if result == SURVIVED}
        assert set(record.notes) == survivors, record.file
        assert all(note.startswith((EQUIVALENT, MISSING)) for note in record.notes.values()), record.file


def test_records_are_about_files_of_weft_and_are_as_the_tool_writes_them() -> None:
    for record in records():
        path = mutate.RECORDS / f"{record.file.removesuffix('.py').replace('/', '.')}.txt"
        assert (mutate.ROOT / record.file).exists()
        assert path.read_text(encoding="utf-8") == record.text()


@pytest.mark.parametrize(
    ("last", "result"), [("VALUE = 1", SURVIVED), ("VALUE = 2", KILLED), ("while True: pass", TIMED_OUT)]
)
def test_tests_run_on_the_mutant_in_place_of_the_file(tmp_path: Path, last: str, result: str) -> None:
    """Of a module that is imported with the package."""
    source = f"{(mutate.ROOT / 'weft/naming.py').read_text(encoding='utf-8')}\n{last}\n"
    test = tmp_path / "test_value.py"
    test.write_text(
        "from weft.naming import VALUE\n\ndef test_value():\n    assert VALUE == 1\n", encoding="utf-8"
    )
    assert outcome("weft.naming", source, [str(test)], 2 if result == TIMED_OUT else None)[0] == result


def test_a_later_run_tries_what_is_new_and_what_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = [KILLED, KILLED], [SURVIVED, KILLED], [KILLED]
    said = [result for results in tried for result in (SURVIVED, *results)]  # the file itself comes first
    asked = list[str]()

    def answer(module: str, source: str, tests: list[str], limit: float | None) -> tuple[str, str]:
        asked.append(source)
        return said[len(asked) - 1], ""

    monkeypatch.setattr(mutate, "outcome", answer)
    monkeypatch.setattr(mutate, "RECORDS", tmp_path)
    file = "weft/ir/kernel/transforms/split.py"
    assert mutate.main([file, "--sample", "2"]) == 0
    assert mutate.main([file, "--sample", "2"]) == 0
    assert len(asked) == 3
    assert mutate.main([file, "--sample", "4"]) == 1
    assert len(asked) == 6
    record = (tmp_path / "weft.ir.kernel.transforms.split.txt").read_text(encoding="utf-8")
    assert record.splitlines()[0].endswith("4 of 19 mutants: 3 killed, 0 timed out, 1 survived")
    assert mutate.main([file, "--sample", "4"]) == 0
    assert asked[-1] == asked[4]
    assert "1 of 19 mutants of weft/ir/kernel/transforms/split.py" in capsys.readouterr().out


def test_what_survives_for_a_reason_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutate, "outcome", lambda *_: (SURVIVED, ""))
    monkeypatch.setattr(mutate, "RECORDS", tmp_path)
    file = "weft/ir/kernel/transforms/split.py"
    assert mutate.main([file, "--sample", "2"]) == 1
    (record,) = records()
    notes = dict.fromkeys(record.results, "equivalent: nothing reads it")
    path = tmp_path / "weft.ir.kernel.transforms.split.txt"
    path.write_text(Record(file, record.digest, 19, record.results, notes).text(), encoding="utf-8")
    assert mutate.main([file, "--sample", "2"]) == 0
    assert mutate.main([]) == 0
    *_, tried, head = capsys.readouterr().out.splitlines()
    assert tried.startswith("0 of 19 mutants")
    assert head.endswith("2 of 19 mutants: 0 killed, 0 timed out, 2 survived")


def test_a_record_of_an_older_text_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "RECORDS", tmp_path)
    record = Record("weft/naming.py", "0123", 4, {"5:1  1  ->  (0)": KILLED})
    (tmp_path / "weft.naming.txt").write_text(record.text(), encoding="utf-8")
    assert list(mutate.recorded()) == [f"{record.head()}; the file has changed since"]
