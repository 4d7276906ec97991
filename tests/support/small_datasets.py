"""Small datasets: folders of images, MNIST's and Terra Incognita's files as published, tables of numbers."""

import json
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from domainwise.data.environments import Environments
from domainwise.data.sources import terra
from domainwise.data.sources.digits import MNIST_FILES, embedded_digits

REAL = Path(os.environ.get("DOMAINWISE_DATA", "/nonexistent")).expanduser()
"""The root of real data, where there is one."""
DOMAINS = ("clinic", "lab", "street")
CLASSES = ("cat", "dog")
PACS = ("art_painting", "cartoon", "photo", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def picture(seed: int, height: int = 20, width: int = 30) -> Image.Image:
    """Noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def make_folder(
    root: Path,
    domains: Iterable[str] = DOMAINS,
    classes: Iterable[str] = CLASSES,
    count: int = 6,
    suffix: str = ".png",
    seed: int = 0,
) -> Path:
    """`count` different pictures of noise in every class of every domain: root/<domain>/<class>/*.png."""
    for domain in domains:
        for label in classes:
            folder = root / domain / label
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                seed += 1
                picture(seed).save(folder / f"{number:03d}{suffix}")
    return root


def shade(domain: int, label: int) -> int:
    return 20 * domain + 2 * label


def plain_picture(file: Path, shade: int) -> None:
    """A plain colour that survives any encoding."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 14), (shade, 255 - shade, 0)).save(file, quality=95)


def write_terra(root: Path, annotations: str = f"{terra.ANNOTATIONS}/train.json") -> None:
    """The published files: pictures in one folder, and lists of images, categories and annotations."""
    base = root / terra.FOLDER
    names = ["empty", "car", *(name for name in terra.CLASSES if name != "empty")]
    categories = [{"id": 30 + number, "name": name} for number, name in enumerate(names)]
    number_of = {category["name"]: category["id"] for category in categories}
    images, labels = [], []
    for d, location in enumerate((*terra.LOCATIONS, "7")):
        for c, name in enumerate((*terra.CLASSES, "car")):
            key = f"{location}-{c}"
            images.append({"id": key, "file_name": f"{key}.jpg", "location": location if d % 2 else int(location)})
            labels += [{"image_id": key, "category_id": number_of[name], "bbox": [0, 0, 1, 1]}] * 2
            plain_picture(base / terra.IMAGES / f"{key}.jpg", shade(d, c))
    labels.append({"image_id": "100-0", "category_id": number_of["dog"]})
    file = base / annotations
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": images, "categories": categories, "annotations": labels}))


def idx(array: np.ndarray) -> bytes:
    """An array in the format of MNIST's files."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def write_mnist(
    root: Path,
    pack: Callable[[bytes], bytes] = bytes,
    suffix: str = "",
    folder: str = "mnist",
    *,
    train: int = 50,
    test: int = 20,
) -> Path:
    """The first embedded digits as MNIST's four files; returns their folder."""
    digits = embedded_digits()
    images, labels = digits.images.numpy(), digits.labels.numpy().astype(np.uint8)
    splits = (slice(train), slice(train, train + test))
    target = root / folder
    target.mkdir(parents=True)
    for name, array in zip(MNIST_FILES, (part[rows] for rows in splits for part in (images, labels)), strict=True):
        (target / f"{name}{suffix}").write_bytes(pack(idx(array)))
    return target


def small_data_root(root: Path) -> Path:
    """MNIST, and noise in place of PACS."""
    write_mnist(root, train=360, test=60)
    make_folder(root / "PACS", PACS, PACS_CLASSES, count=2)
    return root


def table_rows(shift: float = 0.0, n: int = 50, columns: int = 4, dtype: Any = np.float64, seed: int = 0) -> Any:
    """Rows of numbers and their labels: three classes along the diagonal; a domain is shifted as a whole."""
    random = np.random.default_rng([seed, int(1000 + 10 * shift)])
    y = random.integers(0, 3, n)
    return (random.normal(size=(n, columns)) + 3 * y[:, None] + shift).astype(dtype), y


def table(**options: Any) -> Environments:
    """Three domains of `table_rows`."""
    domains = {"a": table_rows(0, **options), "b": table_rows(2, **options), "c": table_rows(-2, **options)}
    return Environments.from_arrays(domains, name="table")
