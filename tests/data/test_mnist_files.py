"""MNIST's files: what is read of them, and what happens when they are missing or damaged."""

import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS
from domainwise.data.sources.digits import MNIST_FILES, embedded_digits, mnist
from small_datasets import REAL, idx, write_mnist

needs_mnist = pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason="MNIST is not in $DOMAINWISE_DATA/mnist")


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz")], ids=["plain", "gzip"])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_mnist_is_read_in_order(tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str, folder: str) -> None:
    write_mnist(tmp_path, pack, suffix, folder)
    digits = mnist(tmp_path)
    assert torch.equal(digits.images, embedded_digits().images[:70])
    assert torch.equal(digits.labels, embedded_digits().labels[:70]) and digits.labels.dtype == torch.int64


@pytest.mark.parametrize("name", ["ColoredMNIST", "RotatedMNIST"])
def test_datasets_are_built_of_files(tmp_path: Path, name: str) -> None:
    write_mnist(tmp_path)
    data = DATASETS[name].load(tmp_path)
    assert data.name == name and len(data.labels) == 70
    assert max(data.sizes.values()) - min(data.sizes.values()) <= 1


def test_missing_files_are_named_with_both_ways_to_get_them(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path)
    for name in MNIST_FILES[1:3]:
        (folder / name).unlink()
    with pytest.raises(UserError) as caught:
        mnist(tmp_path)
    message = str(caught.value)
    for part in (str(folder), *MNIST_FILES[1:3], "https://", "name another data root", "-embedded"):
        assert part in message
    assert MNIST_FILES[0] not in message, "only what is missing"
    assert "\n" not in message


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "mnist"))):
        DATASETS["ColoredMNIST"].load(tmp_path)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut in its header": lambda data: data[:6],
    "cut in its data": lambda data: data[:-1],
    "too long": lambda data: data + b"\0",
    "not IDX": lambda data: b"<html>404 Not Found</html>" + data,
    "not bytes": lambda data: data[:2] + b"\x0d" + data[3:],
    "negative size": lambda data: data[:4] + struct.pack(">i", -1) + data[8:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", MNIST_FILES[:2])
def test_damaged_files_are_named(tmp_path: Path, damage: str, name: str) -> None:
    file = write_mnist(tmp_path) / name
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(UserError, match=re.escape(str(file))):
        mnist(tmp_path)


GZIP_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "not gzip": lambda data: b"plain" + data,
    "wrong checksum": lambda data: data[:-6] + b"wrong!",
}


@pytest.mark.parametrize("damage", GZIP_DAMAGES)
def test_damaged_gzip_files_are_named(tmp_path: Path, damage: str) -> None:
    file = write_mnist(tmp_path, gzip.compress, ".gz") / f"{MNIST_FILES[2]}.gz"
    file.write_bytes(GZIP_DAMAGES[damage](file.read_bytes()))
    with pytest.raises(UserError, match=re.escape(str(file))):
        mnist(tmp_path)


def test_files_that_disagree_in_number_are_refused(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path)
    (folder / MNIST_FILES[1]).write_bytes(idx(np.zeros(49, np.uint8)))
    with pytest.raises(UserError, match=re.escape(str(folder))):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        (MNIST_FILES[0], np.zeros(50, np.uint8)),
        (MNIST_FILES[1], np.zeros((50, 28, 28), np.uint8)),
        (MNIST_FILES[0], np.zeros((50, 20, 20), np.uint8)),
        (MNIST_FILES[1], np.full(50, 10, np.uint8)),
    ],
    ids=["labels as images", "images as labels", "small images", "label 10"],
)
def test_sound_idx_files_that_are_not_mnist_are_named(tmp_path: Path, name: str, array: np.ndarray) -> None:
    file = write_mnist(tmp_path) / name
    file.write_bytes(idx(array))
    with pytest.raises(UserError, match=re.escape(str(file))):
        mnist(tmp_path)


@needs_mnist
@pytest.mark.parametrize(
    ("name", "sizes"), [("ColoredMNIST", [23334, 23333, 23333]), ("RotatedMNIST", [11667] * 4 + [11666] * 2)]
)
def test_sizes_of_the_real_data(name: str, sizes: list[int]) -> None:
    assert list(DATASETS[name].load(REAL).sizes.values()) == sizes
