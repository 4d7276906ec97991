"""What a model may be asked about, as one raw tensor: uint8 images [N, C, H, W] or float vectors [N, D]."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.images.read import read_images
from domainwise.models.card import Card


def as_inputs(given: Any, card: Card) -> Tensor:
    """Arrays of the model's own shape; or image files and Pillow pictures, one or several, of any size and colour."""
    if isinstance(given, (str, Path, Image.Image)):
        given = [given]
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, (str, Path, Image.Image)) for one in given):
        if card.vectors:
            raise UserError(f"this model reads rows of {card.shape[0]} numbers, not images")
        return read_images(given, card.shape)
    array = given.detach().cpu() if isinstance(given, Tensor) else torch.as_tensor(_array(given))
    return _vectors(array, card) if card.vectors else _images(array, card)


def _array(given: Any) -> Any:
    try:
        array = np.asarray(given)
        array = array if array.dtype.kind in "biuf" else array.astype(np.float64)
        return np.require(array, requirements="W")  # torch wants to be able to write
    except (ValueError, TypeError):
        raise UserError(f"a model reads arrays, image files or Pillow pictures, not {type(given).__name__}") from None


def _images(array: Tensor, card: Card) -> Tensor:
    channels, height, width = card.shape
    if array.dtype == torch.uint8 and array.shape[1:] == card.shape:
        return array
    advice = f"give uint8 images of shape [n, {channels}, {height}, {width}], files or Pillow pictures"
    if array.dtype == torch.uint8 and array.ndim == 4 and array.shape[-1] == channels:
        advice = f"put the channels first: images.transpose(0, 3, 1, 2), of {height}x{width} pixels"
    raise UserError(f"this model cannot read {_kind(array)}: {advice}")


def _vectors(array: Tensor, card: Card) -> Tensor:
    if array.ndim != 2 or array.shape[1] != card.shape[0]:
        raise UserError(f"this model cannot read {_kind(array)}: give vectors of shape [n, {card.shape[0]}]")
    array = array if array.dtype.is_floating_point else array.double()
    if not bool(torch.isfinite(array).all()):
        row = int((~torch.isfinite(array)).any(1).nonzero()[0])
        raise UserError(f"row {row} holds a number that is not finite: fill it in or leave the row out")
    return array


def _kind(array: Tensor) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} of shape {list(array.shape)}"
