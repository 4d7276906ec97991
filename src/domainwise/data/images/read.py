"""Image files and Pillow images as a network's inputs, decoded exactly as the training images of a folder are."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.images.decode import BadImage, read, to_pixels
from domainwise.data.images.remote import shown
from domainwise.protocol.reading import Window

MODES = {1: "L", 3: "RGB"}
"""Pillow's mode by the number of channels."""


def read_images(
    images: Sequence[str | Path | Image.Image], shape: tuple[int, ...], window: Window | None = None
) -> Tensor:
    """Image files or Pillow images as uint8 [N, C, H, W], resized bilinearly to a network's input shape [C, H, W]."""
    return torch.stack([read_image(image, shape, window) for image in images])


def read_image(image: str | Path | Image.Image, shape: tuple[int, ...], window: Window | None = None) -> Tensor:
    """One image, uint8 [C, H, W]; one that cannot be decoded is a UserError. `window`: see `decode.read`."""
    if len(shape) != 3 or shape[0] not in MODES:
        raise UserError(f"images cannot be read as inputs of shape {shape}: give arrays of that shape")
    channels, height, width = shape
    form = (width, height, MODES[channels], window)
    try:
        return torch.from_numpy(to_pixels(image, *form) if isinstance(image, Image.Image) else read(image, *form))
    except BadImage as error:
        what = shown(image) if isinstance(image, str) else image
        raise UserError(f"{what} is no readable image ({error}): leave it out") from None
