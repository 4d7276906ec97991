"""The bytes of image files as a model's inputs; those that are too large are refused before they are decoded."""

import warnings

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from domainwise.core.errors import UserError, one_line
from domainwise.data.images import decode
from domainwise.data.images.read import MODES
from domainwise.data.preprocessing import Preprocessing
from domainwise.serving.limits import Limits, Refused

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Those of training images. Pillow knows others, one of which starts a program."""


def check_readable(expected: Preprocessing) -> None:
    """Raises UserError for a model that reads no image files."""
    if expected.vectors:
        raise UserError(f"this model reads rows of {expected.shape[0]} numbers, not images: it cannot be served")
    if expected.shape[0] not in MODES:
        raise UserError(
            f"this model reads images of {expected.shape[0]} channels, which no file has: it cannot be served"
        )


def read(data: bytes, expected: Preprocessing, limits: Limits, name: str) -> Tensor:
    """uint8 [C, H, W], decoded as training images are; anything but an image within the limits is Refused."""
    channels, height, width = expected.shape
    _check_header(data, limits, name)
    try:
        pixels = decode.read(data, width, height, MODES[channels], expected.window, FORMATS)
    except decode.BadImage as error:
        raise Refused(400, "bad_image", f"{name} is no readable image ({error})") from None
    except MemoryError:
        raise Refused(413, "too_many_pixels", f"{name} does not fit the server's memory: make it smaller") from None
    return torch.from_numpy(pixels)


def check_size(size: int, limits: Limits, name: str) -> None:
    if size > limits.image_bytes:
        raise Refused(413, "too_large", f"{name} has {size:,} bytes: send {limits.max_megabytes:g} MiB at most")


def _check_header(data: bytes, limits: Limits, name: str) -> None:
    """Refuses an image by its size in bytes and pixels; no pixel is decoded."""
    if not data:
        raise Refused(400, "bad_image", f"{name} is empty: send the bytes of an image file")
    check_size(len(data), limits, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            width, height = decode.header(data, formats=FORMATS).size
    except Image.DecompressionBombError:
        width, height = limits.pixels, 2
    except UnidentifiedImageError:
        raise Refused(415, "no_image", f"{name} is no image of a known format ({', '.join(FORMATS)})") from None
    except Exception as error:  # whatever a decoder says of a damaged header
        reason = one_line(error)
        raise Refused(400, "bad_image", f"{name} is no readable image ({reason})") from None
    if width * height > limits.pixels:
        raise Refused(
            413, "too_many_pixels", f"{name} has more than {limits.max_megapixels:g} megapixels: make it smaller"
        )
