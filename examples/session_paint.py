"""Paints on a picture that a small U-Net renders: each stroke computes the pixels that it can reach, through a session.

The renderer sees a window around each pixel, and so a stroke of 32 x 32 pixels changes a patch of its layers; which
one follows from the network, and is written nowhere. The page that this saves has each frame, with the time of its
stroke beside that of rendering the whole picture, which gives the same bits. The weights are random.

    python examples/session_paint.py [--size 512] [--width 16] [--strokes 12] [--brush 32] [--page paint.html]

Source: Ronneberger et al. 2015, arXiv:1505.04597 (U-Net).
"""

from __future__ import annotations

import argparse
import base64
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

import weft
import weft.nn.functional as F
from weft import Tensor, nn


@dataclass(frozen=True)
class Config:
    """The sizes of the picture and of the network, and what is painted."""

    size: int = 512
    width: int = 16
    strokes: int = 12
    brush: int = 32


class Renderer(nn.Module):
    """Two levels down and up again, with skip connections: RGB to RGB, each pixel from a window around it.

    Shapes: (1, 3, size, size) -> (1, 3, size, size), of a size that 4 divides.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.down2 = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(4 * width, 4 * width, 3, padding=1)
        self.up1 = nn.Conv2d(4 * width, 2 * width, 3, padding=1)
        self.up2 = nn.Conv2d(2 * width, width, 3, padding=1)
        self.outside = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, picture: Tensor) -> Tensor:
        fine = F.gelu(self.inside(picture))
        half = F.gelu(self.down1(fine))
        coarse = F.gelu(self.middle(F.gelu(self.down2(half))))
        half = half + F.gelu(self.up1(doubled(coarse)))
        fine = fine + F.gelu(self.up2(doubled(half)))
        return (self.outside(fine) + picture).sigmoid()


def doubled(x: Tensor) -> Tensor:
    """Each pixel four times."""
    return F.interpolate(x, scale_factor=2, mode="nearest")


@dataclass(frozen=True)
class Stroke:
    """A dab of the brush: its place, and its colour."""

    top: int
    left: int
    colour: tuple[float, float, float]


def strokes(c: Config) -> Iterator[Stroke]:
    """Dabs along a spiral."""
    for k in range(c.strokes):
        angle, reach = 2.4 * k, 0.45 * (k + 1) / c.strokes * (c.size - c.brush)
        middle = (c.size - c.brush) / 2
        top, left = middle + reach * np.sin(angle), middle + reach * np.cos(angle)
        red, green, blue = (0.5 + 0.5 * np.cos(angle + shift) for shift in (0, 2, 4))
        yield Stroke(int(top), int(left), (red, green, blue))


@dataclass(frozen=True)
class Frame:
    """The picture after a stroke, as bytes of RGB; the seconds that the session took, and the whole."""

    pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
    seconds: float
    whole: float
    same: bool


def paint(c: Config) -> list[Frame]:
    """The frames of all strokes: each rendered by the session, and as a whole."""
    weft.manual_seed(0)
    model = Renderer(c.width).eval()
    picture = weft.rand(1, 3, c.size, c.size) * 0.1
    session = weft.session(model, picture)
    whole = weft.compile(model, numerics="same")
    found: list[Frame] = []
    with weft.no_grad():
        session(picture)
        whole(picture).numpy()
        for k, stroke in enumerate(strokes(c)):
            box = slice(stroke.top, stroke.top + c.brush), slice(stroke.left, stroke.left + c.brush)
            picture[0, :, *box] = weft.tensor(stroke.colour).reshape(3, 1, 1)
            start = time.perf_counter()
            rendered = session(picture).numpy()
            between = time.perf_counter()
            wanted = whole(picture).numpy()
            end = time.perf_counter()
            if k:  # the first stroke is planned
                pixels = (255 * rendered[0].transpose(1, 2, 0)).astype(np.uint8)
                found.append(
                    Frame(pixels, between - start, end - between, rendered.tobytes() == wanted.tobytes())
                )
    return found


def png(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """An RGB picture as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
        )

    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows.tobytes())), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def page(frames: list[Frame]) -> str:
    """The frames as a page for a browser."""
    figures = [
        f'<figure><img src="data:image/png;base64,{base64.b64encode(png(f.pixels)).decode()}" width="256">'
        f"<figcaption>stroke {k}: {1e3 * f.seconds:.1f} ms; the whole: {1e3 * f.whole:.1f} ms"
        f"{'' if f.same else ', with OTHER BITS'}</figcaption></figure>"
        for k, f in enumerate(frames, 1)
    ]
    style = "body{font-family:sans-serif;display:flex;flex-wrap:wrap}figure{margin:8px}"
    return (
        f"<!doctype html><title>Painting through a session</title><style>{style}</style>{''.join(figures)}\n"
    )


def main() -> None:
    """Paint, save the page, and print how long strokes took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("size", "width", "strokes", "brush"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Config, name))
    parser.add_argument("--page", type=Path, default=Path("paint.html"))
    given = vars(parser.parse_args())
    target = given.pop("page")
    frames = paint(Config(**given))
    target.write_text(page(frames))
    seconds = float(np.median([f.seconds for f in frames]))
    whole = float(np.median([f.whole for f in frames]))
    same = "the same bits" if all(f.same for f in frames) else "OTHER BITS"
    Console().print(
        f"{len(frames)} strokes: {1e3 * seconds:.1f} ms each, {1e3 * whole:.1f} ms for the whole picture "
        f"({seconds / whole:.3f} of it), {same}; {target}"
    )


if __name__ == "__main__":
    main()
