"""A model's inputs in any form -> one raw tensor: uint8 images [N, C, H, W] or float vectors [N, D]."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.images.read import read_images
from domainwise.data.preprocessing import Preprocessing


def as_inputs(inputs: Any, expected: Preprocessing) -> Tensor:
    """From arrays of the expected shape; or from one or several image files or Pillow images of any size and mode."""
    if isinstance(inputs, (str, Path, Image.Image)):
        inputs = [inputs]
    if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(x, (str, Path, Image.Image)) for x in inputs):
        if expected.vectors:
            raise UserError(f"this model reads rows of {expected.shape[0]} numbers, not images")
        return read_images(inputs, expected.shape, expected.window)
    array = inputs.detach().cpu() if isinstance(inputs, Tensor) else torch.as_tensor(_array(inputs))
    return _vectors(array, expected.shape) if expected.vectors else _images(array, expected.shape)


def _array(inputs: Any) -> Any:
    try:
        array = np.asarray(inputs)
        array = array if array.dtype.kind in "biuf" else array.astype(np.float64)
        return np.require(array, requirements="W")  # torch needs a writable array
    except (ValueError, TypeError):
        raise UserError(f"a model reads arrays, image files or Pillow images, not {type(inputs).__name__}") from None


def _images(array: Tensor, shape: tuple[int, ...]) -> Tensor:
    channels, height, width = shape
    if array.dtype == torch.uint8 and array.shape[1:] == shape:
        return array
    advice = f"give uint8 images of shape [n, {channels}, {height}, {width}], files or Pillow images"
    if array.dtype == torch.uint8 and array.ndim == 4 and array.shape[-1] == channels:
        advice = f"put the channels first: images.transpose(0, 3, 1, 2), of {height}x{width} pixels"
    raise UserError(f"this model cannot read {_kind(array)}: {advice}")


def _vectors(array: Tensor, shape: tuple[int, ...]) -> Tensor:
    if array.ndim != 2 or array.shape[1:] != shape:
        raise UserError(f"this model cannot read {_kind(array)}: give vectors of shape [n, {shape[0]}]")
    array = array if array.dtype.is_floating_point else array.double()
    if not bool(torch.isfinite(array).all()):
        row = int((~torch.isfinite(array)).any(1).nonzero()[0])
        raise UserError(f"row {row} holds a number that is not finite: fill it in or leave the row out")
    return array


def _kind(array: Tensor) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} of shape {list(array.shape)}"
