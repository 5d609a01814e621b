"""Language models over HTTP, as OpenAI's API has them: completions and chats, whole or as server-sent events.

    python -m weft serve Qwen3-0.6B        # http://127.0.0.1:8000/v1/chat/completions ...

limits.py   what a request may take       fields.py   the fields of a request, each honoured or refused
answer.py   tokens to text, stops         engine.py   the thread of the running batch
chat.py     messages to a prompt          app.py      the ASGI application
server.py   the socket, and stopping
"""
# Tests: tests/serve/test_app.py

from weft.serve.app import App
from weft.serve.engine import Engine
from weft.serve.limits import Limits
from weft.serve.server import serve

__all__ = ["App", "Engine", "Limits", "serve"]
