"""The ASGI application: requests to answers, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass
from weft.models import Tokenizer, Writing
from weft.models.draw import Likelihood
from weft.serve.answer import Answer, Piece
from weft.serve.chat import ChatTemplate
from weft.serve.engine import Engine
from weft.serve.fields import Asked, asked_of_chat, asked_of_completion, messages_of, parsed, prompts_of
from weft.serve.limits import Limits, RequestError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HERE = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass
class _Choice:
    """One of a request's answers as it grows."""

    answer: Answer
    text: str = ""
    end: str | None = None
    tokens: list[tuple[int, Likelihood | None]] | None = None


class App:
    """OpenAI's API over an engine: an ASGI 3 application, which any server of such runs.

    POST /v1/completions, POST /v1/chat/completions, GET /v1/models, GET /health. `name`: what the model is called.
    `chat`: the template of chats, without which they are refused. `local`: requests must name this machine as their
    host, so that no web page can have a browser send them.

    >>> app = weft.serve.App(weft.serve.Engine(batch), tokenizer, "qwen3")
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        name: str,
        chat: ChatTemplate | None = None,
        limits: Limits | None = None,
        local: bool = True,
    ) -> None:
        self.engine, self.tokenizer, self.name, self.chat = engine, tokenizer, name, chat
        self.limits, self.local = limits or Limits(), local
        self._since = int(time.time())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await self._lifespan(receive, send)
            case "http":
                await self._http(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1003})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.engine.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self.engine.stop)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        reply = _Reply(send)
        try:
            handler = self._handler(scope)
            body = await self._body(scope, receive) if scope["method"] == "POST" else b""
            await self._until_gone(handler(body, reply), receive, reply)
        except RequestError as error:
            await reply.error(error)
        except _GoneError:
            return

    def _handler(self, scope: Message) -> Callable[[bytes, _Reply], Awaitable[None]]:
        headers = _headers(scope)
        if self.local and _host(headers.get("host", "")) not in _HERE:
            raise RequestError(403, "the request is not for this machine (see --host)")
        path, method = scope["path"].rstrip("/"), scope["method"]
        handlers = {
            "/health": ("GET", self._health), "/v1/models": ("GET", self._models),
            "/v1/completions": ("POST", self._completions), "/v1/chat/completions": ("POST", self._chats),
        }  # fmt: skip
        one = path.removeprefix("/v1/models/")
        if one != path:
            if one != self.name:
                raise RequestError(404, f"there is no model {one[:100]!a}; this is {self.name!r}", "model")
            handlers[path] = ("GET", self._model)
        if path not in handlers:
            raise RequestError(404, f"there is no {path[:100]!a}; there are {', '.join(handlers)}")
        wanted, handler = handlers[path]
        if method != wanted and not (method == "HEAD" and wanted == "GET"):
            raise RequestError(405, f"{path} takes {wanted}")
        if (
            wanted == "POST"
            and headers.get("content-type", "").partition(";")[0].strip() != "application/json"
        ):
            raise RequestError(415, "the content-type must be application/json")
        return handler

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        most = self.limits.body_bytes
        length = _headers(scope).get("content-length", "0")
        if length.isdigit() and int(length[:20]) > most:
            raise RequestError(413, f"the body has more than {most:,} bytes")
        found = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    found += message.get("body", b"")
                    if len(found) > most:
                        raise RequestError(413, f"the body has more than {most:,} bytes")
                    if not message.get("more_body"):
                        return bytes(found)
        except TimeoutError:
            raise RequestError(408, f"the body did not come in {self.limits.body_seconds:g} s") from None

    async def _until_gone(self, work: Awaitable[None], receive: Receive, reply: _Reply) -> None:
        """Does the work, unless the client goes away or the time is up before it is done."""

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = asyncio.ensure_future(work), asyncio.ensure_future(gone())
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if tasks[0] in done:
                tasks[0].result()
            elif not done:
                raise RequestError(
                    504, f"the answer did not come in {self.limits.seconds:g} s", code="timeout"
                )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _health(self, body: bytes, reply: _Reply) -> None:
        alive = self.engine.is_alive
        status = "ok" if alive else "stopped"
        await reply.json({"status": status, "running": self.engine.running}, 200 if alive else 503)

    async def _models(self, body: bytes, reply: _Reply) -> None:
        await reply.json({"object": "list", "data": [self._told()]})

    async def _model(self, body: bytes, reply: _Reply) -> None:
        await reply.json(self._told())

    def _told(self) -> dict[str, Any]:
        size = self.engine.batch.size
        return {
            "id": self.name, "object": "model", "created": self._since, "owned_by": "weft", "max_model_len": size,
        }  # fmt: skip

    async def _completions(self, body: bytes, reply: _Reply) -> None:
        fields = self._fields(body)
        asked = asked_of_completion(fields, self.engine.batch.model.vocabulary)
        given = prompts_of(fields)
        self._few(len(given) * asked.choices)
        prompts = [p if isinstance(p, list) else await self._ids(p, True) for p in given]
        await self._answer(asked, prompts, _Completion(self.tokenizer, self.name), reply)

    async def _chats(self, body: bytes, reply: _Reply) -> None:
        fields = self._fields(body)
        asked = asked_of_chat(fields, self.engine.batch.model.vocabulary)
        self._few(asked.choices)
        messages = messages_of(fields)
        if self.chat is None:
            raise RequestError(400, "the model has no chat template; use /v1/completions")
        prompt = await self._ids(await asyncio.to_thread(self.chat, messages), False)
        await self._answer(asked, [prompt], _Chat(self.tokenizer, self.name), reply)

    def _fields(self, body: bytes) -> dict[str, Any]:
        fields = parsed(body)
        model = fields.get("model")
        if model is not None and model != self.name:
            told = f"{model[:100]!a}" if isinstance(model, str) else "of that kind"
            raise RequestError(
                404, f"there is no model {told}; this is {self.name!r}", "model", "model_not_found"
            )
        return fields

    def _few(self, count: int) -> None:
        if count > self.limits.choices:
            raise RequestError(
                400, f"a request may ask for {self.limits.choices} answers, this asks for {count}", "n"
            )

    async def _ids(self, text: str, special: bool) -> list[int]:
        return await asyncio.to_thread(self.tokenizer.encode, text, special)

    async def _answer(self, asked: Asked, prompts: Sequence[list[int]], form: _Form, reply: _Reply) -> None:
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Piece]]()
        choices: list[_Choice] = []
        for prompt in prompts:
            limit = self._limit(prompt, asked.limit)
            for number in range(asked.choices):
                writing = Writing(
                    prompt, limit, asked.draws(number), frozenset(self.tokenizer.ends), asked.likeliest
                )
                give = _giver(loop, pieces, len(choices))
                tokens = None if asked.likeliest is None else list[tuple[int, Likelihood | None]]()
                choices.append(_Choice(Answer(writing, self.tokenizer, asked.stops, give), tokens=tokens))
        answers = [c.answer for c in choices]
        self.engine.submit(answers)
        try:
            if asked.stream:
                await self._stream(asked, choices, pieces, form, reply, prompts)
            else:
                async for _ in _grown(choices, pieces):
                    pass
                found = [form.whole(k, c) for k, c in enumerate(choices)]
                await reply.json(form.reply(found, "", _usage(prompts, choices)))
        finally:
            self.engine.drop(answers)

    async def _stream(
        self,
        asked: Asked,
        choices: list[_Choice],
        pieces: asyncio.Queue[tuple[int, Piece]],
        form: _Form,
        reply: _Reply,
        prompts: Sequence[list[int]],
    ) -> None:
        async def tell(parts: list[dict[str, Any]], **more: Any) -> None:
            usage = {"usage": None} if asked.with_usage else {}
            await reply.event(form.reply(parts, ".chunk", None) | usage | more)

        for k in range(len(choices)):
            if (first := form.first(k)) is not None:
                await tell([first])
        async for k, piece in _grown(choices, pieces):
            await tell([form.part(k, choices[k], piece)])
        if asked.with_usage:
            await tell([], usage=_usage(prompts, choices))
        await reply.end_of_events()

    def _limit(self, prompt: list[int], limit: int | None) -> int:
        """The tokens to write, where the prompt has room for them."""
        batch = self.engine.batch
        room = batch.size - len(prompt)
        if room < 1 or (limit or 1) > room:
            wanted = f" and {limit} more" if limit else ""
            told = f"the prompt has {len(prompt):,} tokens{wanted}; together there may be {batch.size:,}"
            raise RequestError(400, told, "max_tokens" if room > 0 else "prompt", "context_length_exceeded")
        try:
            batch.check(prompt, limit or room)
        except ArgumentError as error:
            raise RequestError(400, str(error).splitlines()[0], "prompt") from None
        return limit or room


class _Form:
    """The looks of an endpoint's replies."""

    kind: str
    prefix: str

    def __init__(self, tokenizer: Tokenizer, model: str) -> None:
        self.tokenizer, self.model = tokenizer, model
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())

    def reply(
        self, choices: list[dict[str, Any]], suffix: str, usage: dict[str, int] | None
    ) -> dict[str, Any]:
        kind = self.kind + suffix if self.kind != "text_completion" else self.kind
        found = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return found if usage is None else found | {"usage": usage}

    def first(self, k: int) -> dict[str, Any] | None:
        """The chunk that comes before a choice's first piece, if one does."""
        return None

    def whole(self, k: int, choice: _Choice) -> dict[str, Any]:
        raise NotImplementedError

    def part(self, k: int, choice: _Choice, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError


class _Completion(_Form):
    kind, prefix = "text_completion", "cmpl"

    def whole(self, k: int, choice: _Choice) -> dict[str, Any]:
        return self._choice(k, choice.text, choice.tokens, choice.end, 0)

    def part(self, k: int, choice: _Choice, piece: Piece) -> dict[str, Any]:
        tokens = None if choice.tokens is None else list(piece.tokens)
        return self._choice(k, piece.text, tokens, piece.end, len(choice.text) - len(piece.text))

    def _choice(
        self, k: int, text: str, tokens: list[tuple[int, Likelihood | None]] | None, end: str | None, at: int
    ) -> dict[str, Any]:
        told = None if tokens is None else self._likelihoods(tokens, at)
        return {"index": k, "text": text, "logprobs": told, "finish_reason": end}

    def _likelihoods(self, tokens: Sequence[tuple[int, Likelihood | None]], at: int) -> dict[str, Any]:
        texts, values, tops, offsets = list[str](), list[float](), list[dict[str, float]](), list[int]()
        for token, likely in tokens:
            assert likely is not None
            texts.append(self.tokenizer.decode([token]))
            values.append(likely.chosen)
            tops.append({self.tokenizer.decode([t]): x for t, x in reversed(likely.top)})
            offsets.append(at)
            at += len(texts[-1])
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


class _Chat(_Form):
    kind, prefix = "chat.completion", "chatcmpl"

    def first(self, k: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": k, "delta": delta, "logprobs": None, "finish_reason": None}

    def whole(self, k: int, choice: _Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text}
        told = None if choice.tokens is None else self._likelihoods(choice.tokens)
        return {"index": k, "message": message, "logprobs": told, "finish_reason": choice.end}

    def part(self, k: int, choice: _Choice, piece: Piece) -> dict[str, Any]:
        delta = {"content": piece.text} if piece.text else {}
        told = None if choice.tokens is None else self._likelihoods(piece.tokens)
        return {"index": k, "delta": delta, "logprobs": told, "finish_reason": piece.end}

    def _likelihoods(self, tokens: Sequence[tuple[int, Likelihood | None]]) -> dict[str, Any]:
        def one(token: int, value: float) -> dict[str, Any]:
            text = self.tokenizer.decode([token])
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        content: list[dict[str, Any]] = []
        for token, likely in tokens:
            assert likely is not None
            top = [one(t, x) for t, x in likely.top]
            content.append(one(token, likely.chosen) | {"top_logprobs": top})
        return {"content": content, "refusal": None}


class _GoneError(Exception):
    """The client has gone away."""


class _Reply:
    """The way back to the client: one JSON object, or events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = False

    async def json(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value, ensure_ascii=False).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status in (408, 413):  # the rest of the body is not read
            headers.append((b"connection", b"close"))
        if status == 503:
            headers.append((b"retry-after", b"1"))
        self._started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def error(self, error: RequestError) -> None:
        if not self._started:
            return await self.json(error.body, error.status)
        await self.event(error.body)
        return await self._send({"type": "http.response.body", "body": b""})

    async def event(self, value: Any) -> None:
        await self._write(b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n")

    async def end_of_events(self) -> None:
        await self._write(b"data: [DONE]\n\n")
        await self._send({"type": "http.response.body", "body": b""})

    async def _write(self, body: bytes) -> None:
        if not self._started:
            self._started = True
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await asyncio.sleep(0)  # sending may not wait at all: others, and who goes away, have turns


async def _grown(
    choices: list[_Choice], pieces: asyncio.Queue[tuple[int, Piece]]
) -> AsyncIterator[tuple[int, Piece]]:
    """Pieces as they come, added to their choices, until all have ended."""
    while not all(c.end for c in choices):
        k, piece = await pieces.get()
        if piece.error is not None:
            raise RequestError(500, piece.error)
        choice = choices[k]
        choice.text += piece.text
        choice.end = piece.end
        if choice.tokens is not None:
            choice.tokens += piece.tokens
        yield k, piece


def _giver(
    loop: asyncio.AbstractEventLoop, pieces: asyncio.Queue[tuple[int, Piece]], number: int
) -> Callable[[Piece], None]:
    """Takes pieces from the engine's thread to the loop's."""

    def give(piece: Piece) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(pieces.put_nowait, (number, piece))

    return give


def _usage(prompts: Sequence[list[int]], choices: Sequence[_Choice]) -> dict[str, int]:
    before, after = sum(map(len, prompts)), sum(len(c.answer.writing.made) for c in choices)
    return {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}


def _headers(scope: Message) -> dict[str, str]:
    return {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}


def _host(header: str) -> str:
    """A host without its port."""
    return header if header.endswith("]") or ":" not in header else header.rpartition(":")[0]
