"""Folders of images for tests: DIR/<domain>/<class>/*.png."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS = ("clinic", "lab", "street")
CLASSES = ("cat", "dog")


def picture(seed: int, height: int = 20, width: int = 30) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def make_folder(
    root: Path, domains: Iterable[str] = DOMAINS, classes: Iterable[str] = CLASSES, count: int = 6, suffix: str = ".png"
) -> Path:
    """`count` different pictures of noise in every class of every domain."""
    seed = 0
    for domain in domains:
        for label in classes:
            folder = root / domain / label
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                seed += 1
                picture(seed).save(folder / f"{number:03d}{suffix}")
    return root
