"""The application by itself, called as a server of ASGI calls it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.models.test_decoders import made
from tests.models.test_text import tokenizer
from weft import models
from weft.models import Batch, Tokenizer
from weft.serve.app import App
from weft.serve.chat import ChatTemplate
from weft.serve.engine import Engine
from weft.serve.limits import Limits

CHAT = (
    "{% for m in messages %}{% if m.role == 'no' %}{{ raise_exception('who?') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    place = tokenizer(tmp_path_factory.mktemp("model"))
    found = Tokenizer(place)
    limits = Limits(body_bytes=4000, body_seconds=0.2, waiting=4, choices=3, seconds=60)
    model = made("gpt2")
    model.longest = 64
    engine = Engine(Batch(model, rows=2, size=48, chunk=8), limits.waiting)
    engine.start()
    yield App(engine, found, "tiny", ChatTemplate(CHAT), limits)
    engine.stop()


@pytest.fixture(autouse=True)
def nothing_runs(app: App) -> None:
    """What clients of the test before left has ended: the engine hears of it at its next step."""
    end = time.monotonic() + 10
    while app.engine.running and time.monotonic() < end:
        time.sleep(0.001)


class Client:
    """One request: what the application sends, and when the client goes."""

    def __init__(self, app: App) -> None:
        self.app, self.sent = app, list[Any]()
        self.gone = asyncio.Event()
        self.on_send: Callable[[], None] = lambda: None

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.on_send()

    async def ask(self, method: str, path: str, parts: list[bytes | float], headers: dict[str, str]) -> None:
        queue = list(parts)

        async def receive() -> Any:
            while queue:
                part = queue.pop(0)
                if isinstance(part, bytes):
                    return {"type": "http.request", "body": part, "more_body": bool(queue)}
                await asyncio.sleep(part)
            await self.gone.wait()
            return {"type": "http.disconnect"}

        given = {"host": "localhost:8000", "content-type": "application/json"} | headers
        scope = {
            "type": "http", "method": method, "path": path,
            "headers": [(k.encode(), v.encode()) for k, v in given.items()],
        }  # fmt: skip
        await asyncio.wait_for(self.app(scope, receive, self.send), 60)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent[1:])

    @property
    def events(self) -> list[Any]:
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def post(app: App, path: str, fields: Any, **headers: str) -> Client:
    client = Client(app)
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    asyncio.run(client.ask("POST", path, [body], headers))
    return client


def get(app: App, path: str, method: str = "GET", **headers: str) -> Client:
    client = Client(app)
    asyncio.run(client.ask(method, path, [b""], headers))
    return client


def complete(app: App, **fields: Any) -> Any:
    client = post(app, "/v1/completions", {"prompt": "AB", "temperature": 0, "max_tokens": 6} | fields)
    assert client.status == 200, client.body
    return json.loads(client.body)


def written(app: App, prompt: str, count: int) -> str:
    ids = app.tokenizer.encode(prompt)
    tokens = [t for (t,) in models.generate(app.engine.batch.model, [ids], count)]
    return app.tokenizer.decode([t for t in tokens if t is not None])


def test_a_completion_is_what_generate_writes(app: App) -> None:
    found = complete(app)
    assert found["choices"][0]["text"] == written(app, "AB", 6)
    assert found["choices"][0]["finish_reason"] == "length" and found["model"] == "tiny"
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}
    many = complete(app, prompt=["AB", "+1"], n=1)
    assert [c["text"] for c in many["choices"]] == [written(app, p, 6) for p in ("AB", "+1")]
    ids = app.tokenizer.encode("AB")
    assert complete(app, prompt=ids)["choices"] == complete(app, prompt=[ids])["choices"] == found["choices"]


def test_a_stream_has_the_same_text(app: App) -> None:
    for path, fields in (
        ("/v1/completions", {"prompt": "AB"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "AB"}]}),
    ):  # fmt: skip
        given = fields | {"temperature": 0, "max_tokens": 6, "logprobs": 2 if "prompt" in fields else True}
        whole = json.loads(post(app, path, given).body)["choices"][0]
        client = post(app, path, given | {"stream": True, "stream_options": {"include_usage": True}})
        assert dict(client.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
        *parts, usage = client.events
        assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 6
        assert len({p["id"] for p in parts}) == 1 and all(p["usage"] is None for p in parts)
        chosen = [p["choices"][0] for p in parts]
        if "prompt" in fields:
            assert "".join(c["text"] for c in chosen) == whole["text"] == written(app, "AB", 6)
            assert [x for c in chosen for x in c["logprobs"]["tokens"]] == whole["logprobs"]["tokens"]
            assert [x for c in chosen for x in c["logprobs"]["text_offset"]] == whole["logprobs"][
                "text_offset"
            ]
            assert len(whole["logprobs"]["top_logprobs"][0]) == 2
        else:
            assert chosen[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(c["delta"].get("content", "") for c in chosen) == whole["message"]["content"]
            assert whole["message"]["content"] == written(app, "AB", 6)
            assert len(whole["logprobs"]["content"]) == 6
        assert chosen[-1]["finish_reason"] == whole["finish_reason"] == "length"


def test_stops_seeds_and_choices(app: App) -> None:
    text = complete(app, temperature=2.0, seed=3, max_tokens=12)["choices"][0]["text"]
    assert text == complete(app, temperature=2.0, seed=3, max_tokens=12)["choices"][0]["text"]
    stop = text[3:5]
    found = complete(app, temperature=2.0, seed=3, max_tokens=12, stop=["zzz", stop])
    assert found["choices"][0]["text"] == text[: text.find(stop)]
    assert found["choices"][0]["finish_reason"] == "stop"
    three = complete(app, temperature=2.0, seed=3, n=3, max_tokens=12)["choices"]
    assert three[0]["text"] == text and len({c["text"] for c in three}) > 1
    assert complete(app, logit_bias={"7": 100}, max_tokens=3)["choices"][0]["text"] == app.tokenizer.decode(
        [7] * 3
    )


def test_what_is_there_is_told(app: App) -> None:
    assert json.loads(get(app, "/health").body)["status"] == "ok"
    (one,) = json.loads(get(app, "/v1/models").body)["data"]
    assert one["id"] == "tiny" and one["max_model_len"] == 48
    assert json.loads(get(app, "/v1/models/tiny").body) == one


@pytest.mark.parametrize(
    "fields, status, told",
    [
        (b"{", 400, "not JSON"), (b"[1]", 400, "must be a JSON object"), (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 3000, 400, "not JSON"), (b'{"prompt": NaN}', 400, "not a number"), (b"x" * 4001, 413, "4,000 bytes"),
        ({}, 400, "prompt must be"), ({"prompt": []}, 400, "prompt must be"),
        ({"prompt": {"a": 1}}, 400, "prompt must"),
        ({"prompt": [True]}, 400, "prompt must be"), ({"prompt": [[]]}, 400, "prompt must be"),
        (b'{"prompt": "\\ud800"}', 400, "surrogate"), ({"prompt": [61]}, 400, "not in the model's"),
        ({"prompt": [-1]}, 400, "not in the model's"), ({"prompt": ""}, 400, "at least one token"),
        ({"prompt": [10**30]}, 400, "not in the model's"),
        ({"prompt": "A" * 60}, 400, "60 tokens"), ({"max_tokens": 47}, 400, "together there may be 48"),
        ({"max_tokens": 0}, 400, "max_tokens"), ({"max_tokens": "9"}, 400, "max_tokens"),
        ({"max_tokens": True}, 400, "max_tokens"),
        ({"n": 4}, 400, "3 answers"), ({"n": 10**9}, 400, "n must be"), ({"prompt": ["A"] * 4}, 400, "3 answers"),
        ({"temperature": 3}, 400, "temperature"), ({"temperature": "hot"}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"stop": 7}, 400, "stop"), ({"stop": [""]}, 400, "stop"), ({"stop": ["a"] * 17}, 400, "stop"),
        ({"stream": "yes"}, 400, "stream"), ({"stream_options": {}}, 400, "stream_options"),
        ({"logit_bias": {"61": 1}}, 400, "no id"), ({"logit_bias": {"a": 1}}, 400, "no id"),
        ({"logit_bias": []}, 400, "logit_bias"),
        ({"logprobs": 21}, 400, "logprobs"), ({"logprobs": True}, 400, "logprobs"), ({"seed": 1.5}, 400, "seed"),
        ({"best_of": 2}, 400, "best_of"), ({"suffix": "x"}, 400, "suffix is not supported"),
        ({"echo": True}, 400, "echo"),
        ({"tools": [1]}, 400, "tools is not supported"), ({"\x00odd": 1}, 400, "not a parameter"),
        ({"model": "other"}, 404, "no model 'other'"), ({"model": 3}, 404, "no model"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_by_name(app: App, fields: Any, status: int, told: str) -> None:
    given = fields if isinstance(fields, bytes) or fields == {} else {"prompt": "AB"} | fields
    client = post(app, "/v1/completions", given)
    assert client.status == status and told in json.loads(client.body)["error"]["message"]
    assert app.engine.running == 0


@pytest.mark.parametrize(
    "fields, told",
    [
        ({"messages": []}, "at least one"), ({"messages": "hi"}, "must be a list"),
        ({"messages": [3]}, "must be an object"),
        ({"messages": [{"role": "user"}]}, "content must be a text"),
        ({"messages": [{"content": "a"}]}, "role must be"),
        ({"messages": [{"role": "no", "content": "a"}]}, "who?"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "type text only"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": []}]}, "'tool_calls'"),
        ({"top_logprobs": 3}, "needs logprobs"), ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": "x"}, "not a parameter"), ({"logprobs": 3}, "true or false"),
    ],
)  # fmt: skip
def test_what_a_chat_cannot_have_is_refused_by_name(app: App, fields: Any, told: str) -> None:
    given = {"messages": [{"role": "user", "content": "AB"}]} | fields
    client = post(app, "/v1/chat/completions", given)
    assert client.status == 400 and told in json.loads(client.body)["error"]["message"]


def test_parts_of_a_message_are_joined(app: App) -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    fields = {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_completion_tokens": 4}
    found = json.loads(post(app, "/v1/chat/completions", fields).body)
    assert found["choices"][0]["message"]["content"] == written(app, "AB", 4)


def test_paths_methods_and_hosts(app: App) -> None:
    assert get(app, "/nothing").status == 404 and get(app, "/v1/models/other").status == 404
    assert get(app, "/v1/completions").status == 405 and post(app, "/health", {}).status == 405
    assert get(app, "/health", host="evil.example").status == 403
    assert get(app, "/health", host="[::1]:80").status == get(app, "/health", host="127.0.0.1").status == 200
    plain = Client(app)
    asyncio.run(plain.ask("POST", "/v1/completions", [b"{}"], {"content-type": "text/plain"}))
    assert plain.status == 415
    long = Client(app)
    asyncio.run(long.ask("POST", "/v1/completions", [b"{}"], {"content-length": "9" * 30}))
    assert long.status == 413


def test_a_slow_or_cut_off_body_is_an_error_of_its_own(app: App) -> None:
    slow, whole = Client(app), Client(app)

    async def both() -> None:
        body = json.dumps({"prompt": "AB", "temperature": 0, "max_tokens": 6}).encode()
        await asyncio.gather(
            slow.ask("POST", "/v1/completions", [b'{"prompt"', 5.0], {}),
            whole.ask("POST", "/v1/completions", [body[:9], 0.01, body[9:]], {}),
        )

    asyncio.run(both())
    assert slow.status == 408
    assert json.loads(whole.body)["choices"][0]["text"] == written(app, "AB", 6)
    cut = Client(app)
    cut.gone.set()
    asyncio.run(cut.ask("POST", "/v1/completions", [b'{"prompt"', 0.01], {}))
    assert cut.sent == []


def test_who_goes_away_frees_the_row(app: App) -> None:
    client = Client(app)
    client.on_send = lambda: client.gone.set() if len(client.sent) == 3 else None
    fields = {"prompt": "AB", "max_tokens": 40, "stream": True}
    asyncio.run(client.ask("POST", "/v1/completions", [json.dumps(fields).encode()], {}))
    assert not client.body.endswith(b"[DONE]\n\n")
    asyncio.run(_until(lambda: app.engine.running == 0 and not app.engine.batch.is_busy))
    complete(app)


def test_who_goes_away_is_noticed_while_all_that_is_to_be_sent_is_there(app: App) -> None:
    client = Client(app)

    def on_send() -> None:
        if len(client.sent) == 3:
            while app.engine.running:  # the loop stands still, the engine writes on
                time.sleep(0.001)
            client.gone.set()

    client.on_send = on_send
    fields = {"prompt": "AB", "max_tokens": 40, "stream": True}
    asyncio.run(client.ask("POST", "/v1/completions", [json.dumps(fields).encode()], {}))
    assert 3 <= len(client.sent) < 10
    complete(app)


def test_too_many_are_told_to_come_again(app: App) -> None:
    fields = {"prompt": "AB", "max_tokens": 30, "temperature": 0}
    clients = [Client(app) for _ in range(12)]

    async def all_of_them() -> None:
        body = json.dumps(fields).encode()
        await asyncio.gather(*(c.ask("POST", "/v1/completions", [body], {}) for c in clients))

    asyncio.run(all_of_them())
    by_status = {s: [c for c in clients if c.status == s] for s in (200, 503)}
    assert len(by_status[200]) >= 6 and sum(map(len, by_status.values())) == 12
    for client in by_status[200]:
        assert json.loads(client.body)["choices"][0]["text"] == written(app, "AB", 30)
    for client in by_status[503]:
        assert "come again" in json.loads(client.body)["error"]["message"]


def test_time_that_is_up_ends_the_request(app: App) -> None:
    quick = App(app.engine, app.tokenizer, "tiny", limits=Limits(seconds=0.0))
    client = post(quick, "/v1/completions", {"prompt": "AB", "max_tokens": 40})
    assert client.status == 504
    assert post(quick, "/v1/chat/completions", {"messages": [{"role": "user", "content": "A"}]}).status in (
        400,
        504,
    )
    asyncio.run(_until(lambda: app.engine.running == 0))


async def _until(done: Callable[[], bool]) -> None:
    for _ in range(500):
        if done():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come")


def test_lifespan_starts_and_stops_the_engine(app: App) -> None:
    engine = Engine(app.engine.batch, 4)
    other = App(engine, app.tokenizer, "tiny")
    sent: list[Any] = []
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append((message["type"], engine.is_alive))

    done: Awaitable[None] = other({"type": "lifespan"}, receive, send)
    asyncio.run(asyncio.wait_for(done, 10))
    assert sent == [("lifespan.startup.complete", True), ("lifespan.shutdown.complete", False)]
    assert post(other, "/v1/completions", {"prompt": "AB"}).status == 503
