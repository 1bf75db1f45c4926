"""What the programs of the field bench are given: pages, lines and captchas that are drawn, photos, sounds; seeded.

It runs in the environment of the programs, which has Pillow and scikit-image, with the photos that come with it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WORDS = ("memory", "budget", "tensor", "order", "branch", "picture", "window", "river", "morning", "letter", "paper")
SAMPLE_RATE = 16_000
NOTES = 3  # lines on the pages of programs that find and read them in one


def page(width: int, height: int, lines: int = 0) -> Any:
    """A page with lines of words, as an array of bytes; as many lines as fit where none are asked for."""
    return np.asarray(_written(width, height, 28, lines or max(height // 48, 1)))


def line(width: int) -> Any:
    """One line of words, 48 high."""
    return np.asarray(_written(width, 48, 32, 1))


def _written(width: int, height: int, size: int, lines: int) -> Any:
    picture = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size)
    choose = np.random.default_rng(width * 10_000 + height)
    for at in range(lines):
        words = " ".join(choose.choice(WORDS, max(width // 110, 1)))
        draw.text((8, at * height // lines + 4), words, fill="black", font=font)
    return picture


def captcha(width: int) -> Any:
    """A few characters with lines through them."""
    picture = Image.new("RGB", (width, 64), "white")
    draw, choose = ImageDraw.Draw(picture), np.random.default_rng(width)
    letters = "".join(choose.choice(list("ABCDEFGHKLMNPRSTUVWXYZ23456789"), max(width // 40, 1)))
    draw.text((10, 8), letters, fill="navy", font=ImageFont.load_default(40))
    for _ in range(3):
        draw.line([tuple(map(int, choose.integers(0, (width, 64)))) for _ in range(2)], fill="gray", width=2)
    return picture


def photo(width: int, height: int) -> Any:
    """An astronaut before her shuttle, a picture of NASA."""
    from skimage import data

    return np.asarray(Image.fromarray(data.astronaut()).resize((width, height), Image.Resampling.BICUBIC))


def sound(seconds: float, seed: int = 0) -> Any:
    """Something like speech: syllables with pitch and formants, with pauses between them, within -0.5 and 0.5."""
    count = int(seconds * SAMPLE_RATE)
    noise = np.random.default_rng(seed)
    at = np.arange(count) / SAMPLE_RATE
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.4 * at) + 10 * np.sin(2 * np.pi * 2.3 * at)
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE
    formant = 700 + 400 * np.sin(2 * np.pi * 1.7 * at)
    voice = sum(np.exp(-(((k * pitch - formant) / 600) ** 2)) * np.sin(k * phase) for k in range(1, 25))
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * at), 0, 1) * (np.sin(2 * np.pi * 0.2 * at) > -0.3)
    made = voice * syllables + 0.01 * noise.standard_normal(count)
    return (0.5 * made / np.abs(made).max()).astype(np.float32)


def music(seconds: float, seed: int = 0) -> Any:
    """Notes of a few harmonics, one after the other."""
    notes = 220 * 2 ** (np.random.default_rng(seed).integers(0, 24, int(seconds * 4)) / 12)
    at = np.arange(SAMPLE_RATE // 4) / SAMPLE_RATE
    swell = np.exp(-4 * at)
    made = [swell * sum(np.sin(2 * np.pi * k * note * at) / k for k in range(1, 6)) for note in notes]
    return (0.2 * np.concatenate(made)).astype(np.float32)


def files(count: int) -> list[bytes]:
    """Short files: sources in Python, tables, pages of HTML, bytes at random."""
    choose = np.random.default_rng(count)
    made = []
    for at in range(count):
        words = " ".join(choose.choice(WORDS, 200))
        code = f"import os\n\n\ndef {WORDS[at % len(WORDS)]}(x):\n    return x  # {words}\n"
        kinds = (code, words.replace(" ", ",") + "\n", f"<html><body><p>{words}</p></body></html>\n")
        made.append(kinds[at % 3].encode() if at % 4 else choose.bytes(3000))
    return made


def draw(folder: str) -> None:
    """Keep the pictures as files, for programs that are not written in Python."""
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    for width, height in ((736, 960), (640, 480), (320, 320)):
        Image.fromarray(page(width, height, NOTES)).save(to / f"page-{width}x{height}.png")
    Image.fromarray(photo(800, 600)).save(to / "photo-800x600.png")


if __name__ == "__main__":
    draw(sys.argv[1])
