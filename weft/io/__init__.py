"""Reading and writing tensors."""

from weft.io.safetensors import load_safetensors, safetensors_metadata, save_safetensors

__all__ = ["load_safetensors", "safetensors_metadata", "save_safetensors"]
