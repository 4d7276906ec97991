"""Readers of published digits: MATLAB files (SVHN, SYN), LIBSVM (USPS), PNG in a tar or a folder (MNIST-M).

Each returns colour images, uint8 [N, 3, 32, 32], and their digits, int64 [N].
"""

import bz2
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
from PIL import Image

from domainwise.core.errors import UserError
from domainwise.data.sources.archives import files_of_tar

SIDE = 32
Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Domain = tuple[Pixels, Labels]

MNIST_M_LABELS = "mnist_m_test_labels.txt"
MNIST_M_IMAGES = "mnist_m_test"


def read_mat(file: Path) -> Domain:
    """X [height, width, 3, N] and y [N], where 10 stands for the digit 0."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    with _named_failure(file, TypeError, KeyError, NotImplementedError, zlib.error, MatReadError):
        content = loadmat(str(file), variable_names=["X", "y"])
        images, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
        if images.ndim != 4 or images.shape[2] != 3 or images.dtype != np.uint8:
            raise ValueError(f"X is {images.dtype} of shape {images.shape}")
        return as_domain(list(np.moveaxis(images, 3, 0)), np.where(labels == 10, 0, labels))


def read_libsvm(file: Path) -> Domain:
    """One 16x16 image a line: `label index:value ...`, labels 1 to 10 for the digits 0 to 9, values -1 (paper) to 1."""
    with _named_failure(file):
        data = file.read_bytes()
        lines = (bz2.decompress(data) if file.suffix == ".bz2" else data).decode("ascii").split("\n")
        images: list[Pixels] = []
        labels: list[int] = []
        for line in filter(str.strip, lines):
            label, *numbers = map(float, line.replace(":", " ").split())
            indices, values = np.array(numbers[::2], dtype=np.int64) - 1, np.zeros(256)
            values[indices] = numbers[1::2]
            if indices.min(initial=0) < 0 or np.abs(values).max() > 1:
                raise ValueError(f"line {len(labels) + 1} is not a 16x16 image of values in -1..1")
            images.append(np.rint((values + 1) / 2 * 255).astype(np.uint8).reshape(16, 16))
            labels.append(int(label) - 1)
        return as_domain(images, np.array(labels))


def read_mnist_m(file: Path) -> Domain:
    """The test images: from the published tar, or from its unpacked folder, where `file` is the list of labels."""
    with _named_failure(file):
        images = {}
        if file.name == MNIST_M_LABELS:
            listed = file.read_text()
            for name in _pairs(listed):
                images[name] = _read_image(file.parent / MNIST_M_IMAGES / name)
        else:
            listed = ""
            with files_of_tar(file) as entries:
                for entry in entries:
                    path = PurePosixPath(entry.name)
                    if entry.data is not None and path.name == MNIST_M_LABELS:
                        listed = entry.data.read().decode("ascii")
                    elif entry.data is not None and path.parent.name == MNIST_M_IMAGES:
                        images[path.name] = np.asarray(Image.open(entry.data).convert("RGB"))
        labels = _pairs(listed)
        if missing := [name for name in labels if name not in images]:
            raise ValueError(f"{len(missing)} images of its list are missing, e.g. {missing[0]}")
        return as_domain([images[name] for name in labels], np.array(list(labels.values())))


def _pairs(text: str) -> dict[str, int]:
    """`name label` lines."""
    return {name: int(label) for name, label in (line.split() for line in text.splitlines() if line.strip())}


def _read_image(path: Path) -> Pixels:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def as_domain(images: list[Pixels], labels: Labels) -> Domain:
    """Images resized to 32x32 (Lanczos), grey ones repeated to three channels."""
    if not images or len(images) != len(labels):
        raise ValueError(f"{len(images)} images and {len(labels)} labels")
    if labels.min() < 0 or labels.max() > 9:
        raise ValueError(f"its labels run from {labels.min()} to {labels.max()}")
    if images[0].shape[:2] != (SIDE, SIDE):
        images = [np.asarray(Image.fromarray(i).resize((SIDE, SIDE), Image.Resampling.LANCZOS)) for i in images]
    pixels = np.stack(images)
    colour = np.repeat(pixels[:, None], 3, axis=1) if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    return np.ascontiguousarray(colour), labels.astype(np.int64)


@contextmanager
def _named_failure(file: Path, *further: type[Exception]) -> Iterator[None]:
    """Turns every failure to read a file into a UserError that names the file."""
    try:
        yield
    except (OSError, EOFError, ValueError, IndexError, *further) as error:  # type: ignore[misc]
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{file} is damaged or not what it should be ({reason}): fetch it again") from None
