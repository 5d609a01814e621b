"""The socket of a server, and how it stops (the package uvicorn does the work)."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.models import Batch, Tokenizer
from weft.models.decoder import Decoder
from weft.serve.app import App
from weft.serve.chat import ChatTemplate
from weft.serve.engine import Engine
from weft.serve.limits import Limits

_MAX_HEADERS = 32_768


def serve(
    model: Decoder,
    place: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str | None = None,
    rows: int = 8,
    size: int = 2048,
    chunk: int = 128,
    limits: Limits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serves a model, with the tokenizer and chat template of its folder or file, until SIGINT or SIGTERM.

    `rows`, `size`, `chunk`: of the running `Batch`. `ready`: called with the address when all plans are made. OSError
    for a port that is taken; ImportError without uvicorn, tokenizers and jinja2 (`pip install "weft[serve]"`).
    """
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError('serve: needs the package uvicorn: pip install "weft[serve]"') from error
    limits = limits or Limits()
    tokenizer, chat = Tokenizer(place), ChatTemplate.of(Path(place))
    with _listening(host, port) as listening:
        batch = Batch(model, rows, size, chunk)
        batch.warm()
        local = host in ("localhost", "::1") or host.startswith("127.")
        app = App(Engine(batch, limits.waiting), tokenizer, name or Path(place).stem, chat, limits, local)
        config = uvicorn.Config(
            app,
            http=_protocol(limits),
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            limit_concurrency=limits.connections,
            timeout_graceful_shutdown=max(1, round(limits.grace_seconds)),
            h11_max_incomplete_event_size=_MAX_HEADERS,
            server_header=False,
        )
        server = uvicorn.Server(config)
        # uvicorn raises the signals that it got once more when it is done: then they have done their work
        before = {s: signal.signal(s, _ignored) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            if ready is not None:
                ready(_address(listening))
            server.run(sockets=[listening])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=128)


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's HTTP in pure Python, with a limit to how long the beginning of a request may take."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Timely(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._forget()

        def _watch(self) -> None:
            """A clock runs from a request's first byte, or from the connection's beginning, to the end of its head."""
            if self.conn.their_state is not h11.IDLE:
                self._forget()
            elif self._late is None:
                self._late = self.loop.call_later(limits.body_seconds, self.transport.close)

        def _forget(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Timely


def _ignored(number: int, frame: object) -> None:
    """A signal that has done its work."""
