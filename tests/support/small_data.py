"""A small data root in the published layouts, for what reads real data."""

import struct
from pathlib import Path

import numpy as np

from domainwise.data.sources.digits import MNIST_FILES
from folders import make_folder

PACS = ("art_painting", "cartoon", "photo", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def write_mnist(folder: Path, train: int = 360, test: int = 60) -> None:
    """Noise in MNIST's four files."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, count in zip(MNIST_FILES, (train, train, test, test), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        data = random.integers(0, 256 if "images" in name else 10, shape, dtype=np.uint8)
        header = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}i", *shape)
        (folder / name).write_bytes(header + data.tobytes())


def small_data_root(root: Path) -> Path:
    """MNIST and PACS, of noise."""
    write_mnist(root / "mnist")
    make_folder(root / "PACS", PACS, PACS_CLASSES, count=2)
    return root
