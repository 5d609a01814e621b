"""Reading and writing tensors."""
# Tests: tests/io/test_nested.py, tests/io/test_torch_files.py

from weft.io import serialization
from weft.io.checkpoint import Loaded, load_torch
from weft.io.gguf import gguf_metadata, load_gguf, save_gguf
from weft.io.nested import load, save
from weft.io.safetensors import load_safetensors, safetensors_metadata, save_safetensors
from weft.io.sharded import load_sharded, save_sharded

__all__ = [
    "Loaded", "gguf_metadata", "load", "load_gguf", "load_safetensors", "load_sharded", "load_torch",
    "safetensors_metadata", "save", "save_gguf", "save_safetensors", "save_sharded", "serialization",
]  # fmt: skip
