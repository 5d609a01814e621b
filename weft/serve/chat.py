"""Messages to a prompt, by the template that a model comes with (the package jinja2, in its sandbox)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from weft.io.gguf import metadata_with_texts
from weft.serve.limits import RequestError

_MAX_FILE = 20_000_000


class ChatTemplate:
    """The template of a model's chats: called with messages, it gives the prompt for the answer.

    RequestError, with 400, for messages that the template cannot say.
    """

    def __init__(self, source: str, special: dict[str, str] | None = None) -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise ImportError('ChatTemplate: needs the package jinja2: pip install "weft[serve]"') from error

        def refuse(message: str) -> None:
            raise TemplateError(message)

        def to_json(x: Any, **how: Any) -> str:
            return json.dumps(x, ensure_ascii=False, **how)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = to_json
        own: dict[str, Any] = {"raise_exception": refuse, "strftime_now": _now}
        environment.globals.update(own)
        self._error: type[Exception] = TemplateError
        self._render: Callable[..., str] = environment.from_string(source).render
        self._special = special or {}

    def __call__(self, messages: Sequence[dict[str, Any]]) -> str:
        try:
            return self._render(messages=messages, add_generation_prompt=True, **self._special)
        except self._error as error:
            raise RequestError(400, f"the model's chat template: {str(error)[:300]}", "messages") from None
        except Exception as error:  # noqa: BLE001  (a template may do anything that Python can)
            why = f"{type(error).__name__}: {str(error)[:300]}"
            raise RequestError(400, f"the model's chat template cannot say this: {why}", "messages") from None

    @classmethod
    def of(cls, place: Path) -> ChatTemplate | None:
        """The template of a folder (chat_template.jinja, or in tokenizer_config.json) or GGUF file; None without."""
        if place.is_file():
            return _of_gguf(place)
        config = _json(place / "tokenizer_config.json")
        special = {k: _token(config.get(k)) for k in ("bos_token", "eos_token", "unk_token", "pad_token")}
        own = place / "chat_template.jinja"
        source = own.read_text() if own.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several, each with a name
            named = {x.get("name"): x.get("template") for x in cast("list[dict[str, Any]]", source)}
            source = named.get("default")
        return cls(source, special) if isinstance(source, str) else None


def _of_gguf(path: Path) -> ChatTemplate | None:
    metadata = metadata_with_texts(path)
    source = metadata.get("tokenizer.chat_template")
    tokens: Any = metadata.get("tokenizer.ggml.tokens", ())
    special: dict[str, str] = {}
    for name in ("bos", "eos"):
        k: Any = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(k, int) and 0 <= k < len(tokens):
            special[f"{name}_token"] = tokens[k]
    return ChatTemplate(source, special) if isinstance(source, str) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_FILE:
            return {}
        found: Any = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _token(given: Any) -> str:
    """A token, which some files have as an object."""
    if isinstance(given, dict):
        given = cast("dict[str, Any]", given).get("content")
    return given if isinstance(given, str) else ""


def _now(how: str) -> str:
    return datetime.now().strftime(how)
