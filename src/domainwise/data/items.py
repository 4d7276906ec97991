"""Read a torch Dataset item by item into one tensor of images and one of labels."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from domainwise.core.errors import UserError

Item = tuple[Tensor, int]


def read_items(dataset: TorchDataset[Any], where: str, workers: int = 0) -> tuple[Tensor, Tensor]:
    """Images, uint8 [n, C, H, W] (or vectors, float [n, D]), and labels [n], read by `workers` processes.

    An iterable dataset is read by this process, since each worker would read all of it.
    """
    images: list[Tensor] = []
    labels: list[int] = []
    if isinstance(dataset, IterableDataset):
        items: Iterable[Item | str] = map(_item, dataset)
    else:
        items = DataLoader(_Items(dataset), batch_size=None, num_workers=workers)
    for number, item in enumerate(items):
        if isinstance(item, str):
            raise UserError(f"{where}, item {number}: {item}")
        image, label = item
        if images and image.shape != images[0].shape:
            shapes = f"{tuple(image.shape)}, the first is {tuple(images[0].shape)}"
            raise UserError(f"{where}, item {number} has shape {shapes}: resize images in the dataset's transform")
        images.append(image)
        labels.append(int(label))
    if not images:
        raise UserError(f"{where}: the dataset is empty")
    return torch.stack(images), torch.tensor(labels)


class _Items(TorchDataset[Item | str]):
    """Items as tensors, or error messages: an exception would reach the user as a worker's traceback."""

    def __init__(self, dataset: TorchDataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Item | str:
        return _item(self.dataset[index])


def _item(item: Any) -> Item | str:
    try:
        image, label = item[0], item[1]
    except (TypeError, IndexError, KeyError):
        return f"an item must be (image, label), not {type(item).__name__}"
    try:
        return _image(image), _label(label)
    except ValueError as error:
        return str(error)


def _label(label: Any) -> int:
    number = np.asarray(label)
    if number.size != 1 or number.dtype.kind not in "iu":
        raise ValueError(f"a label must be a whole number from 0, not {label!r}")
    return int(number.reshape(()))


def _image(image: Any) -> Tensor:
    """uint8 [C, H, W] of a Pillow image, of uint8 numbers, or of numbers in [0, 1]; a vector is unchanged."""
    if isinstance(image, Image.Image):
        pixels = np.array(image if image.mode == "L" else image.convert("RGB"))
        return torch.from_numpy(np.atleast_3d(pixels)).permute(2, 0, 1).contiguous()
    try:
        x = torch.as_tensor(image)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"an image must be a tensor or a Pillow image, not {type(image).__name__}") from None
    if x.ndim == 1 and x.is_floating_point():
        return x
    x = x[None] if x.ndim == 2 else x
    if x.ndim != 3:
        raise ValueError(f"an image must have the shape (channels, height, width), not {tuple(x.shape)}")
    if x.is_floating_point():
        low, high = float(x.min()), float(x.max())
        if not (low >= -1e-6 and high <= 1 + 1e-6):
            raise ValueError(
                f"its numbers run from {low:.3g} to {high:.3g}, not within [0, 1]: leave normalisation out of the "
                "dataset's transform and give mean= and std= here"
            )
        return (x * 255).round().clamp(0, 255).to(torch.uint8)
    if x.dtype != torch.uint8:
        raise ValueError(f"an image must be uint8, or float in [0, 1], not {str(x.dtype).removeprefix('torch.')}")
    return x
