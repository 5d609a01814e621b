"""An image of a text by Flux 2 klein: with the weights that a user has, or a tiny random pipeline beside diffusers.

    python examples/klein.py --model FLUX.2-klein-4B "a cat on a roof"           # a folder with model_index.json
    make klein                                                                   # needs diffusers and transformers

Without --model a pipeline of random weights is made, saved as the hub has them, and drawn by both: four steps from the
same noise. Its image is noise, too; what counts is the difference.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import weft
from weft.models import Klein

LAYERS = (1, 2, 3)  # of the tiny text encoder's hidden states


def tiny() -> Any:
    """A random pipeline of diffusers with all that a real one has, for images of 32 x 32."""
    import diffusers as df
    import torch
    import transformers as tf

    torch.manual_seed(0)
    transformer = df.Flux2Transformer2DModel(
        in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=48, timestep_guidance_channels=32, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=False,
    )  # fmt: skip
    vae = df.AutoencoderKLFlux2(
        latent_channels=4, block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=1, norm_num_groups=4, sample_size=32,
    )  # fmt: skip
    vae.bn.running_mean.normal_()
    vae.bn.running_var.uniform_(0.5, 2)
    config = tf.Qwen3Config(vocab_size=97, hidden_size=16, intermediate_size=32, num_hidden_layers=4,
                            num_attention_heads=2, num_key_value_heads=1, head_dim=8)  # fmt: skip
    text_encoder = tf.Qwen3ForCausalLM(config)
    for part in (transformer, vae, text_encoder):
        for p in part.eval().parameters():  # random models are nearly linear: make them less so
            p.data = p.data + torch.randn_like(p) * 0.1 if p.ndim == 1 else p.data * 2
    schedule = df.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    made = df.Flux2KleinPipeline(schedule, vae, text_encoder, None, transformer, is_distilled=True)
    made.set_progress_bar_config(disable=True)
    return made


def beside_diffusers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The images that weft and diffusers make with the same weights of the same noise and text."""
    import torch

    oracle = tiny()
    with tempfile.TemporaryDirectory() as folder:
        oracle.save_pretrained(folder)
        klein = Klein.from_pretrained(folder)
        klein.layers = LAYERS
        ids = torch.randint(0, 97, (1, 9))
        text = klein.features(ids.tolist(), [9])
        noise = torch.randn(1, 16, 8, 8)
        found = klein(text, height=32, width=32, steps=4, noise=weft.tensor(noise.numpy())).numpy()
    expected = oracle(prompt_embeds=torch.tensor(text.numpy()), height=32, width=32, num_inference_steps=4,
                      guidance_scale=1.0, latents=noise, output_type="pt").images.numpy()  # fmt: skip
    return found, expected


def main() -> None:
    """Draws, and writes the image to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompt", nargs="*", default=["a cat on a roof"])
    parser.add_argument("--model", type=Path, help="a folder as diffusers saves Flux2KleinPipeline")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/klein/image.png"))
    args = parser.parse_args()
    if args.model is None:
        image, expected = beside_diffusers()
        difference = float(abs(image - expected).max())
        print(
            f"a random pipeline, 4 steps: weft and diffusers differ by {difference:.1e} at most (limit: 1e-4)"
        )
        if difference > 1e-4:
            raise SystemExit("they differ")
    else:
        begun, klein = time.perf_counter(), Klein.from_pretrained(args.model)

        def told(step: int, steps: int) -> None:
            print(f"step {step}/{steps}, {time.perf_counter() - begun:.1f} s")

        prompt = " ".join(args.prompt)
        image = klein(
            prompt, height=args.size, width=args.size, steps=args.steps, seed=args.seed, progress=told
        ).numpy()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image[0].transpose(1, 2, 0) * 255).round().astype(np.uint8)).save(args.out)
    print(f"the image: {args.out}")


if __name__ == "__main__":
    main()
