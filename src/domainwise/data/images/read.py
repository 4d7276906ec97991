"""Pictures of the user's own, as a network expects them: exactly as a folder's training images are decoded."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.images.decode import BadImage, fitted, read

MODES = {1: "L", 3: "RGB"}


def read_images(given: Sequence[str | Path | Image.Image], shape: tuple[int, ...]) -> Tensor:
    """Image files or Pillow pictures as uint8 [N, C, H, W], resized bilinearly to a network's input shape [C, H, W]."""
    return torch.stack([read_image(one, shape) for one in given])


def read_image(given: str | Path | Image.Image, shape: tuple[int, ...]) -> Tensor:
    """One of them, uint8 [C, H, W]; one that cannot be decoded is the user's mistake."""
    if len(shape) != 3 or shape[0] not in MODES:
        raise UserError(f"pictures cannot be read as inputs of shape {shape}: give arrays of that shape")
    channels, height, width = shape
    form = (width, height, MODES[channels])
    try:
        return torch.from_numpy(fitted(given, *form) if isinstance(given, Image.Image) else read(given, *form))
    except BadImage as error:
        raise UserError(f"{given} is no readable image ({error}): leave it out") from None
