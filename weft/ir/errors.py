"""The error that constructors, verifiers and the interpreter raise about an ill-formed program."""
# Tests: tests/ir/test_loops_verify.py

from __future__ import annotations


class IRError(Exception):
    """A form breaks one of its rules: a bug in whatever produced it, never a user's mistake.

    `rule` says what is wrong, `form` names the language ("graph", "loops" ...), `where` shows the offending part.
    """

    def __init__(self, rule: str, form: str = "", where: str = "") -> None:
        self.rule, self.form, self.where = rule, form, where
        super().__init__((f"{form}: " if form else "") + rule + (f"\n  in: {where}" if where else ""))

    def __reduce__(self) -> tuple[type[IRError], tuple[str, str, str]]:
        return (IRError, (self.rule, self.form, self.where))
