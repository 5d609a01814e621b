"""The fields of a request's JSON, each honoured or refused by its name.

Source: OpenAI's API reference (completions, chat completions); top_k, min_p and repetition_penalty as others have them.
"""
# Tests: tests/serve/test_app.py

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass
from weft.models import Draws, Sampling
from weft.serve.limits import RequestError

_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""Fields that say nothing about the answer."""

_ONLY: Mapping[str, tuple[Any, ...]] = {
    "suffix": (None, ""), "echo": (None, False), "tools": (None, []), "tool_choice": (None, "none", "auto"),
    "functions": (None, []), "function_call": (None, "none", "auto"), "parallel_tool_calls": (None, True, False),
    "response_format": (None, {"type": "text"}), "modalities": (None, ["text"]), "audio": (None,),
    "prediction": (None,), "reasoning_effort": (None,), "web_search_options": (None,), "verbosity": (None,),
}  # fmt: skip
"""Fields that are honoured at these values alone."""

_COMMON = (
    "model", "max_tokens", "temperature", "top_p", "n", "stream", "stream_options", "stop", "presence_penalty",
    "frequency_penalty", "logit_bias", "seed", "top_k", "min_p", "repetition_penalty", "logprobs",
)  # fmt: skip
_MAX_STOPS, _MAX_STOP_CHARACTERS = 16, 256


@dataclass(frozen=True)
class Asked:
    """A request's wishes, beside its prompt. `limit`: None for as many tokens as there is room for. `likeliest`:
    None for no likelihoods."""

    limit: int | None
    choices: int
    stream: bool
    with_usage: bool
    stops: tuple[str, ...]
    likeliest: int | None
    seed: int
    sampling: Sampling
    frequency: float
    presence: float
    bias: Mapping[int, float]

    def draws(self, number: int) -> Draws:
        """The draws of the choice of that number."""
        return Draws(
            self.sampling,
            self.seed + number,
            frequency=self.frequency,
            presence=self.presence,
            bias=self.bias,
        )


def parsed(body: bytes) -> dict[str, Any]:
    """The object in a request's body."""

    def no_number(text: str) -> float:
        raise ValueError(f"{text} is not a number of JSON")

    try:
        found: Any = json.loads(body, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise RequestError(400, "the body must be a JSON object")
    return cast("dict[str, Any]", found)


def asked_of_completion(fields: Mapping[str, Any], vocabulary: int) -> Asked:
    """The wishes of a request of /v1/completions."""
    _known(fields, (*_COMMON, "prompt", "best_of"))
    n = integer(fields, "n", 1, 1, 128)
    if integer(fields, "best_of", n, 1, 128) != n:
        raise RequestError(400, "best_of is supported where it equals n only", "best_of")
    likeliest = integer(fields, "logprobs", -1, 0, 20)
    return _asked(fields, 16, n, None if likeliest < 0 else likeliest, vocabulary)


def asked_of_chat(fields: Mapping[str, Any], vocabulary: int) -> Asked:
    """The wishes of a request of /v1/chat/completions."""
    _known(fields, (*_COMMON, "messages", "max_completion_tokens", "top_logprobs"))
    likeliest = integer(fields, "top_logprobs", -1, 0, 20)
    wanted = boolean(fields, "logprobs")
    if likeliest >= 0 and not wanted:
        raise RequestError(400, "top_logprobs needs logprobs to be true", "top_logprobs")
    return _asked(
        fields, None, integer(fields, "n", 1, 1, 128), max(likeliest, 0) if wanted else None, vocabulary
    )


def prompts_of(fields: Mapping[str, Any]) -> list[str | list[int]]:
    """The prompts of a completion: texts, or ids."""
    given = fields.get("prompt")
    match given:
        case str():
            return [text(given, "prompt")]
        case list() if given:
            items = cast("list[Any]", given)
            if all(isinstance(x, str) for x in items):
                return [text(x, "prompt") for x in items]
            if _are_ids(items):
                return [items]
            if all(_are_ids(x) for x in items):
                return items
        case _:
            pass
    raise RequestError(
        400, "prompt must be a text, a list of ids, or a list of one of these, and not empty", "prompt"
    )


def messages_of(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a chat, with the parts of each content joined."""
    given = fields.get("messages")
    if not isinstance(given, list) or not given:
        raise RequestError(400, "messages must be a list with at least one message", "messages")
    return [_message(m, f"messages[{k}]") for k, m in enumerate(cast("list[Any]", given))]


def text(value: Any, name: str) -> str:
    """A text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise RequestError(400, f"{name} must be a text", name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(400, f"{name} has half of a surrogate pair, which is no character", name) from None
    return value


def integer(fields: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """An integer within bounds."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RequestError(400, f"{name} must be an integer from {least} to {most}", name)
    return value


def number(fields: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    """A number within bounds."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise RequestError(400, f"{name} must be a number from {least} to {most}", name)
    return float(value)


def boolean(fields: Mapping[str, Any], name: str) -> bool:
    """True or false, by default false."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(400, f"{name} must be true or false", name)
    return bool(value)


def _known(fields: Mapping[str, Any], names: Sequence[str]) -> None:
    for name, value in fields.items():
        if name in _ONLY:
            if value not in _ONLY[name]:
                raise RequestError(400, f"{name} is not supported", name)
        elif name not in names and name not in _IGNORED:
            raise RequestError(400, f"{name[:100]!a} is not a parameter that weft knows", name[:100])


def _asked(
    fields: Mapping[str, Any], limit: int | None, n: int, likeliest: int | None, vocabulary: int
) -> Asked:
    tokens = [
        integer(fields, name, -1, 1, 1 << 31)
        for name in ("max_tokens", "max_completion_tokens")
        if name in fields
    ]
    given = max(tokens, default=-1)
    stream = boolean(fields, "stream")
    return Asked(
        limit=limit if given < 0 else given,
        choices=n,
        stream=stream,
        with_usage=_with_usage(fields, stream),
        stops=_stops(fields),
        likeliest=likeliest,
        seed=integer(fields, "seed", random.getrandbits(62), -(1 << 63), (1 << 63) - 1) & ((1 << 64) - 1),
        sampling=_sampling(fields),
        frequency=number(fields, "frequency_penalty", 0.0, -2.0, 2.0),
        presence=number(fields, "presence_penalty", 0.0, -2.0, 2.0),
        bias=_bias(fields, vocabulary),
    )


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    top_k = integer(fields, "top_k", 0, -1, 1 << 31)
    try:
        return Sampling(
            temperature=number(fields, "temperature", 1.0, 0.0, 2.0),
            top_k=max(top_k, 0),
            top_p=number(fields, "top_p", 1.0, 0.0, 1.0),
            min_p=number(fields, "min_p", 0.0, 0.0, 1.0),
            repetition_penalty=number(fields, "repetition_penalty", 1.0, 0.0, 100.0),
        )
    except ArgumentError as error:
        raise RequestError(400, str(error).splitlines()[0]) from None


def _with_usage(fields: Mapping[str, Any], stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not stream:
        raise RequestError(
            400, "stream_options must be an object, of a request that streams", "stream_options"
        )
    given = cast("dict[str, Any]", options)
    if set(given) - {"include_usage"}:
        raise RequestError(400, "stream_options has include_usage only", "stream_options")
    return boolean(given, "include_usage")


def _stops(fields: Mapping[str, Any]) -> tuple[str, ...]:
    given = fields.get("stop")
    if given is None:
        return ()
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(cast("list[Any]", stops)) > _MAX_STOPS:
        raise RequestError(400, f"stop must be a text, or at most {_MAX_STOPS} of them", "stop")
    found = tuple(text(s, "stop") for s in cast("list[Any]", stops))
    if not all(0 < len(s) <= _MAX_STOP_CHARACTERS for s in found):
        raise RequestError(400, f"each stop must have 1 to {_MAX_STOP_CHARACTERS} characters", "stop")
    return found


def _bias(fields: Mapping[str, Any], vocabulary: int) -> dict[int, float]:
    given = fields.get("logit_bias")
    if given is None:
        return {}
    if not isinstance(given, dict) or len(cast("dict[str, Any]", given)) > 1024:
        raise RequestError(400, "logit_bias must be an object of at most 1024 ids", "logit_bias")
    found: dict[int, float] = {}
    for key in cast("dict[str, Any]", given):
        if not key.isascii() or not key.isdigit() or len(key) > 9 or int(key) >= vocabulary:
            raise RequestError(
                400, f"logit_bias has {key[:20]!a}, which is no id of the vocabulary", "logit_bias"
            )
        found[int(key)] = number(cast("dict[str, Any]", given), key, 0.0, -100.0, 100.0)
    return found


def _are_ids(given: Any) -> bool:
    ids = cast("list[Any]", given) if isinstance(given, list) else []
    return bool(ids) and all(isinstance(x, int) and not isinstance(x, bool) for x in ids)


def _message(given: Any, name: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RequestError(400, f"{name} must be an object", name)
    message = cast("dict[str, Any]", given)
    if unknown := set(message) - {"role", "content", "name"}:
        raise RequestError(400, f"{name} has {min(unknown)[:100]!a}, which is not supported", name)
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(p, f"{name}.content") for p in cast("list[Any]", content))
    found = {"role": text(message.get("role"), f"{name}.role"), "content": text(content, f"{name}.content")}
    return found | (
        {"name": text(message["name"], f"{name}.name")} if message.get("name") is not None else {}
    )


def _part(given: Any, name: str) -> str:
    part = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if part.get("type") != "text":
        raise RequestError(400, f"{name} may have parts of type text only", name)
    return text(part.get("text"), name)
