"""torch.hub: where downloaded models would be. weft downloads nothing, and reads what is there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from weft.as_torch.kinds import refuse
from weft.io import nested

__all__ = [
    "DEFAULT_CACHE_DIR", "ENV_TORCH_HOME", "ENV_XDG_CACHE_HOME", "HASH_REGEX", "READ_DATA_CHUNK", "get_dir",
    "load_state_dict_from_url", "set_dir", "tqdm", "urlparse",
]  # fmt: skip

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")
"""The part of a file's name that is the start of its SHA-256."""
ENV_TORCH_HOME, ENV_XDG_CACHE_HOME, DEFAULT_CACHE_DIR = "TORCH_HOME", "XDG_CACHE_HOME", "~/.cache"
READ_DATA_CHUNK = 128 * 1024
_dir: list[str] = []


def _get_torch_home() -> str:
    cache = os.getenv(ENV_XDG_CACHE_HOME, DEFAULT_CACHE_DIR)
    return os.path.expanduser(os.getenv(ENV_TORCH_HOME, os.path.join(cache, "torch")))


def get_dir() -> str:
    """The folder of models that were downloaded."""
    return _dir[-1] if _dir else os.path.join(_get_torch_home(), "hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Set that folder."""
    _dir[:] = [os.path.expanduser(d)]


def load_state_dict_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = False,
) -> Any:
    """The state dict of a file that is in the folder already; NotOffered where it is not."""
    folder = Path(model_dir or os.path.join(get_dir(), "checkpoints"))
    path = folder / (file_name or os.path.basename(urlparse(url).path))
    if not path.exists():
        refuse("torch.hub.load_state_dict_from_url", f"weft downloads nothing: put {url} at {path}")
    return nested.load(path, map_location=map_location, weights_only=True)


def tqdm(iterable: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The iterable itself, without a bar."""
    return iterable
