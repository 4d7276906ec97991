"""Image files of the user's own, as a network expects them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from domainwise.errors import UserError

MODES = {1: "L", 3: "RGB"}


def read_images(files: Sequence[Path], shape: tuple[int, ...]) -> Tensor:
    """Image files as uint8 [N, C, H, W], resized bilinearly to a network's input shape [C, H, W]."""
    if len(shape) != 3 or shape[0] not in MODES:
        raise UserError(f"image files cannot be read as inputs of shape {shape}: use images of the dataset")
    channels, height, width = shape
    pixels = []
    for file in files:
        try:
            with Image.open(file) as image:
                resized = image.convert(MODES[channels]).resize((width, height), Image.Resampling.BILINEAR)
        except FileNotFoundError:
            raise UserError(f"{file} not found") from None
        except (UnidentifiedImageError, OSError) as error:
            raise UserError(f"{file} is no readable image ({type(error).__name__}): leave it out") from None
        pixels.append(np.asarray(resized).reshape(height, width, channels))
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
