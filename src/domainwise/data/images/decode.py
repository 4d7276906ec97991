"""One image file -> pixels, whatever a camera, a scanner or a web page made of it.

This file is also a program: `parallel` starts it as helper processes, so it imports nothing of the package, which would
take each of them seconds.
"""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

Pixels = npt.NDArray[np.uint8]

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
"""Ends of file names that are taken for images, in either case."""
DRAFT = 4
"""A JPEG more than 8 times as large as asked is decoded at a fraction of its size, still 4 times as large as asked."""
ORIENTATION = 0x0112
"""The EXIF tag by which a camera says how the picture is to be turned."""


class BadImage(Exception):
    """A file that cannot be decoded, and why in a few words."""


def read(file: str | Path, width: int, height: int | None = None, mode: str = "RGB") -> Pixels:
    """The image as uint8 [C, height, width], square unless told: upright, RGB, resized bilinearly with antialiasing."""
    height = height or width
    with _failures_named():
        return fitted(_open(Path(file), DRAFT * max(width, height)), width, height, mode)


def fitted(image: Image.Image, width: int, height: int, mode: str = "RGB") -> Pixels:
    """A picture as uint8 [C, height, width], in RGB or grey (mode "L")."""
    with _failures_named():
        image = _upright_rgb(image).convert(mode).resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(image, np.uint8).reshape(height, width, -1)
        return pixels.transpose(2, 0, 1).copy()


def facts(file: str | Path) -> dict[str, Any]:
    """Decodes the whole image and says what it is: mode, size, whether EXIF turns it, and a digest of its pixels.

    The pixels are those a training would see at full size, so that a picture has one digest however it is stored. Of
    16-bit grey also the largest value (else None): by its upper 8 bits, a constant scale, 12-bit data is nearly black.
    """
    with _failures_named():
        image = _open(Path(file))
        turned = image.getexif().get(ORIENTATION, 1) not in (0, 1)
        seen = _upright_rgb(image)
        digest = hashlib.blake2b(repr(seen.size).encode(), digest_size=16)
        digest.update(seen.tobytes())
        return {
            "size": list(image.size),
            "mode": image.mode,
            "alpha": image.has_transparency_data,
            "turned": turned,
            "largest": int(_sixteen_bits(image).max()) if _is_deep(image) else None,
            "digest": digest.hexdigest(),
        }


@contextmanager
def _failures_named() -> Iterator[None]:
    """Decoders fail in many ways; each is a BadImage."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UnidentifiedImageError:
        raise BadImage("not an image of a known format") from None
    except (BadImage, MemoryError):
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise BadImage(" ".join(reason.split())) from None


def _open(file: Path, at_least: int | None = None) -> Image.Image:
    """The first frame of a file, decoded to the last byte."""
    if not file.stat().st_size:
        raise BadImage("the file is empty")
    image: Image.Image = Image.open(file)
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    image.load()
    return image


def _upright_rgb(image: Image.Image) -> Image.Image:
    """Turned as its EXIF data says; grey and CMYK become RGB; what is transparent shows white."""
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise BadImage("floating-point pixels have no agreed range: save it with 8 bits per channel")
    if _is_deep(image):
        image = Image.fromarray((_sixteen_bits(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _is_deep(image: Image.Image) -> bool:
    """Whether it is grey of 16 bits (or 32, of which none should use more)."""
    return image.mode.startswith("I")


def _sixteen_bits(image: Image.Image) -> npt.NDArray[np.int64]:
    return np.clip(np.asarray(image, np.int64), 0, 65535)


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    """One answer per file of a job: {"bad": reason}, or its facts, or nothing where its pixels went to the job's file.

    {"unwritten": reason} if they could not go there.

    A job to read says {"files": [...], "size": pixels, "out": file of uint8 [N, 3, size, size], "rows": [...]}.
    """
    answers: list[dict[str, Any]] = []
    for number, file in enumerate(job["files"]):
        try:
            if "out" in job:
                pixels = read(file, job["size"])
                _write_row(job["out"], job["rows"][number], pixels)
                answers.append({})
            else:
                answers.append(facts(file))
        except BadImage as error:
            answers.append({"bad": str(error)})
        except OSError as error:
            answers.append({"unwritten": error.strerror})
    return answers


def _write_row(out: str, row: int, pixels: Pixels) -> None:
    descriptor = os.open(out, os.O_WRONLY)
    try:
        os.pwrite(descriptor, pixels.tobytes(), row * pixels.nbytes)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    for line in sys.stdin:  # until whoever started it closes the pipe, or dies
        print(json.dumps(work(json.loads(line))), flush=True)
