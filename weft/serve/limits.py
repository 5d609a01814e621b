"""Bounds on what a request may take of a server, and errors."""
# Tests: tests/serve/test_app.py

from __future__ import annotations

from typing import Any

from weft.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on requests, so that none can hold up the others."""

    body_bytes: int = 1_000_000
    body_seconds: float = 10.0
    """In which a request must have come, from its first byte."""
    seconds: float = 600.0
    """In which a request must be answered; beyond that its rows are free."""
    waiting: int = 64
    """Sequences that may wait for a row; further requests are told to come again."""
    choices: int = 8
    """Answers of one request: prompts times `n`."""
    connections: int = 512
    grace_seconds: float = 10.0
    """Time that running requests have to end in when the server is stopped."""


class RequestError(Exception):
    """A request that gets an error: an HTTP status, what is wrong, and with which parameter."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's API has it."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
