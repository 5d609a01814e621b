"""A server in a process of its own: what comes over sockets, attacks among it, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.models.test_decoders import folder, made
from tests.models.test_text import tokenizer
from weft.__main__ import main
from weft.models import Tokenizer, from_pretrained, generate

ROOT = Path(__file__).parents[2]
START = """
import sys, weft, weft.serve
from weft.models import from_pretrained
limits = weft.serve.Limits(body_bytes=20000, body_seconds=1.0, grace_seconds=2.0)
weft.serve.serve(from_pretrained(sys.argv[1]), sys.argv[1], port=0, name="tiny", rows=2, size=1000, chunk=16,
                 limits=limits, ready=lambda address: print(address, flush=True))
print("bye", flush=True)
"""


class Server:
    def __init__(self, place: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(place)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.port = int(self.address.rpartition(":")[2])

    def ask(self, method: str, path: str, fields: Any = None) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = None if fields is None else json.dumps(fields)
        connection.request(method, path, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())

    def raw(self, *parts: bytes, wait: bool = True) -> bytes:
        """What comes back to these bytes; with `wait`, until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as s:
            for part in parts:
                s.sendall(part)
            found = b""
            while wait:
                try:
                    more = s.recv(65536)
                except ConnectionResetError:
                    break
                if not more:
                    break
                found += more
            return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: there is no server to be had")
    return tokenizer(folder(tmp_path_factory.mktemp("model"), "gpt2", made("gpt2")))


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    found = Server(place)
    yield found
    if found.process.poll() is None:
        found.process.terminate()
    assert found.process.wait(20) == 0
    assert found.process.stdout is not None and found.process.stdout.read() == "bye\n"
    found.process.stdout.close()


FIELDS = {"prompt": "AB", "max_tokens": 8, "temperature": 0}


def head(length: int | None, extra: str = "") -> bytes:
    size = "" if length is None else f"content-length: {length}\r\n"
    return (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{size}{extra}\r\n"
    ).encode()


def test_attacks_are_errors_of_their_own(server: Server, place: Path) -> None:
    model, inner = from_pretrained(place), Tokenizer(place)
    expected = inner.decode([t for (t,) in generate(model, [inner.encode("AB")], 8) if t is not None])
    wrong: list[Any] = []
    done = threading.Event()

    def well_behaved() -> None:
        while not done.is_set():
            status, found = server.ask("POST", "/v1/completions", FIELDS)
            if status != 200 or found["choices"][0]["text"] != expected:
                wrong.append((status, found))

    others = threading.Thread(target=well_behaved)
    others.start()
    try:
        assert b" 400 " in server.raw(b"nonsense\r\n\r\n")
        assert b" 400 " in server.raw(b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: " + b"a" * 100_000)
        assert b" 413 " in server.raw(head(10**12))
        chunked = head(None, "transfer-encoding: chunked\r\n")
        assert b" 413 " in server.raw(chunked, *[b"4000\r\n" + b"x" * 0x4000 + b"\r\n"] * 2)
        assert b" 408 " in server.raw(head(500), b'{"prompt": "A')  # a body that does not end
        assert server.raw(b"POST /v1/compl") == b""  # a head that does not end: closed in a second
        assert server.raw() == b""
        server.raw(head(500), b'{"prompt": "A', wait=False)  # cut off
        server.raw(head(13), b'{"prompt": 3}'[:6], wait=False)
        body = json.dumps(FIELDS | {"max_tokens": 900, "stream": True}).encode()
        server.raw(head(len(body)), body, wait=False)  # gone before the answer
        assert b" 400 " in server.raw(head(4, "connection: close\r\n"), b"\xff\xfe\x00\x01")
        evil = head(2, "connection: close\r\n").replace(b"localhost", b"evil.example")
        assert b" 403 " in server.raw(evil, b"{}")
    finally:
        done.set()
        others.join()
    assert not wrong
    for _ in range(500):
        if server.ask("GET", "/health")[1]["running"] == 0:
            return
    raise AssertionError("a row is not free")


def test_only_this_machine_is_listened_to(server: Server) -> None:
    assert server.address.startswith("http://127.0.0.1:")
    assert server.ask("GET", "/v1/models")[1]["data"][0]["id"] == "tiny"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_while_it_streams(place: Path, number: signal.Signals) -> None:
    found = Server(place)
    connection = HTTPConnection("127.0.0.1", found.port, timeout=60)
    body = json.dumps(FIELDS | {"max_tokens": 990, "stream": True})
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200 and reply.read(20).startswith(b"data: ")
    found.process.send_signal(number)
    assert found.process.wait(30) == 0
    assert found.process.stdout is not None and found.process.stdout.read() == "bye\n"
    found.process.stdout.close()


def test_what_cannot_be_served_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no"):
        main(["serve", str(tmp_path)])
