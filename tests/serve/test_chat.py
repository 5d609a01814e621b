"""Templates of chats, from folders and files, and what they may not do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft
from weft.io import save_gguf
from weft.serve.chat import ChatTemplate
from weft.serve.limits import RequestError

TURNS = (
    "{% for m in messages %}\n<{{ m.role }}>{{ m.content | trim }}{{ eos_token }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ASKED = [{"role": "user", "content": " hi "}]


def test_a_template_comes_from_where_the_model_does(tmp_path: Path) -> None:
    assert ChatTemplate.of(tmp_path) is None
    config = {"chat_template": TURNS, "eos_token": {"content": "<end>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = ChatTemplate.of(tmp_path)
    assert found is not None and found(ASKED) == "<user>hi<end>\n<assistant>"
    several = config | {
        "chat_template": [{"name": "tool", "template": ""}, {"name": "default", "template": TURNS}]
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(several))
    again = ChatTemplate.of(tmp_path)
    assert again is not None and again(ASKED) == found(ASKED)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content | tojson }}")
    own = ChatTemplate.of(tmp_path)
    assert own is not None and own([{"role": "user", "content": "<é>"}]) == '"<é>"'
    path = tmp_path / "x.gguf"
    save_gguf(
        {"w": weft.ones(1)}, path,
        {"tokenizer.chat_template": TURNS, "tokenizer.ggml.tokens": ("a", "</s>"), "tokenizer.ggml.eos_token_id": 1},
    )  # fmt: skip
    of_file = ChatTemplate.of(path)
    assert of_file is not None and of_file(ASKED) == "<user>hi</s>\n<assistant>"


@pytest.mark.parametrize(
    "source, told",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "unsafe|not safely"), ("{{ 1 // 0 }}", "ZeroDivision"),
        ("{% for i in range(10**9) %}x{% endfor %}", "cannot say|Range"),
    ],
)  # fmt: skip
def test_what_a_template_may_not_is_an_error_of_the_request(source: str, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        ChatTemplate(source)(ASKED)
