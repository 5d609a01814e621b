"""Models that the world publishes, each as its formula, with the names of Hugging Face's checkpoints.

    model = weft.models.from_pretrained("folder")                     # config.json and safetensors
    logits = model(weft.tensor([[2, 818, 5279]]))                     # (1, 3, vocabulary)
    for (token,) in weft.models.generate(model, [[2, 818, 5279]], 64):
        ...                                                           # the next token, as it comes

config.py     config.json as a dataclass: every field is honoured or refused by its name
rotary.py     positions as rotations      cache.py     keys and values of the tokens before
attention.py  attention                   decoder.py   what decoders share
gemma3.py  gpt2.py  llama.py  phi.py  phi3.py  qwen3.py  bert.py  vit.py  whisper.py
klein.py  flux2.py  flux2_vae.py          pretrained.py  pretrained_module.py  sound.py
batch.py  draw.py  speculation.py  sampling.py  generate.py  text.py  gguf.py  gguf_text.py
"""
# Tests: tests/models/test_decoders.py

from weft.models.batch import Batch, Writing
from weft.models.bert import Bert
from weft.models.cache import Cache
from weft.models.draw import Draws
from weft.models.gemma3 import Gemma3
from weft.models.generate import generate
from weft.models.gguf import from_gguf
from weft.models.gpt2 import GPT2
from weft.models.klein import Klein
from weft.models.llama import Llama
from weft.models.phi import Phi
from weft.models.phi3 import Phi3
from weft.models.pretrained import from_pretrained
from weft.models.qwen3 import Qwen3
from weft.models.sampling import Sampling
from weft.models.sound import log_mel
from weft.models.speculation import Draft
from weft.models.text import Tokenizer
from weft.models.vit import ViT
from weft.models.whisper import Whisper

__all__ = [
    "Batch", "Bert", "Cache", "Draft", "Draws", "GPT2", "Gemma3", "Klein", "Llama", "Phi", "Phi3", "Qwen3",
    "Sampling", "Tokenizer", "ViT", "Whisper", "Writing", "from_gguf", "from_pretrained", "generate", "log_mel",
]  # fmt: skip
