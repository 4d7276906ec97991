"""Decode one image file of any common format to upright RGB (or grey) pixels.

This file is also a program that `parallel` starts as helper processes; it imports nothing of the package, so that they
start in a moment.
"""

import base64
import hashlib
import io
import json
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

Pixels = npt.NDArray[np.uint8]
BILINEAR = Image.Resampling.BILINEAR
Window = tuple[int, int]
"""The values of deep grey images that become black and white."""

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
"""Suffixes of image files, in upper or lower case."""
DRAFT = 4
"""A JPEG more than 8 times as large as requested is decoded at a fraction of its size, at least 4 times the request."""
ROOM = 1 << 26
"""Pixels that the threads of a process decode at once; a larger image is decoded alone, and first made smaller.

Pillow refuses images of more than 178,956,970 pixels; one of these takes less than 2 GB.
"""
ORIENTATION = 0x0112
"""The EXIF tag for the rotation of the image."""


LONGEST = 2
"""Of an original image more than so many times as long as it is short, the middle is kept.

A crop of at least 0.7 of the area with sides in a ratio of at most 4/3 fits into no image that is longer than 1.9 times
its short side; there the largest one in the middle is taken, which is the same in the part that is kept.
"""
THUMBNAIL = 16
"""Height and width of the grey copy by which nearly equal images are found."""


PACKED = "packed://"
"""How the address of an image inside a Parquet or Arrow file begins."""


class Packed(NamedTuple):
    """An image inside a Parquet or Arrow file; its address is packed://FILE#GROUP/ROW/COLUMN."""

    file: str
    group: int
    row: int
    column: str

    @classmethod
    def parse(cls, address: str) -> "Packed | None":
        """None for any other address."""
        if not address.startswith(PACKED):
            return None
        file, _, place = address.removeprefix(PACKED).rpartition("#")
        group, row, column = place.split("/", 2)
        return cls(file, int(group), int(row), column)

    def __str__(self) -> str:
        return f"{PACKED}{self.file}#{self.group}/{self.row}/{self.column}"


class BadImage(Exception):
    """A file that cannot be decoded; the message is the reason."""


def read(
    file: str | Path | bytes,
    width: int,
    height: int | None = None,
    mode: str = "RGB",
    window: Window | None = None,
    formats: tuple[str, ...] | None = None,
) -> Pixels:
    """The file as uint8 [C, height, width] (by default square): upright, RGB, resized bilinearly with antialiasing.

    It is given by path, URL or content, in one of Pillow's `formats` (by default any). With a `window` (low, high) a
    16-bit grey value v becomes 255 (v - low) / (high - low), clipped; else its upper 8 bits are used.
    """
    height = height or width
    with _as_bad_image(), _loaded(file, DRAFT * max(width, height), formats) as image:
        return to_pixels(image, width, height, mode, window)


def read_original(file: str | Path | bytes, limit: int, window: Window | None = None) -> Pixels:
    """The file as uint8 [3, height, width], upright RGB, at its own size; reduced if its short side exceeds `limit`."""
    with _as_bad_image(), _loaded(file, DRAFT * limit) as image:
        image = _upright_rgb(image, window)
        width, height = min(image.width, LONGEST * image.height), min(image.height, LONGEST * image.width)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
        short = min(width, height)
        if short > limit:
            image = image.resize((round(width * limit / short), round(height * limit / short)), BILINEAR)
        return _channels_first(image)


@contextmanager
def _loaded(file: str | Path | bytes, at_least: int, formats: tuple[str, ...] | None = None) -> Iterator[Image.Image]:
    """The decoded file, by a fraction of its size if that is enough for `at_least` pixels in width and height."""
    image = header(file, at_least, formats)
    pixels = image.width * image.height
    with _room.take(pixels):
        image.load()
        yield _smaller(image, at_least) if pixels > ROOM else image


def to_pixels(image: Image.Image, width: int, height: int, mode: str = "RGB", window: Window | None = None) -> Pixels:
    """A Pillow image as uint8 [C, height, width], in RGB or grey (mode "L")."""
    with _as_bad_image():
        image = _upright_rgb(image, window)
        image = image if image.mode == mode else image.convert(mode)
        return _channels_first(image.resize((width, height), BILINEAR))


def _channels_first(image: Image.Image) -> Pixels:
    return np.asarray(image, np.uint8).reshape(image.height, image.width, -1).transpose(2, 0, 1).copy()


def facts(file: str | Path, window: Window | None = None) -> dict[str, Any]:
    """Decodes the image in full: its mode, size, whether EXIF rotates it, a digest of its pixels, and a thumbnail.

    The digest is of the decoded RGB pixels, so that it does not depend on the file format; the thumbnail is grey, for
    comparing images that differ a little. `largest` is the largest
    value of a 16-bit grey image (else None): without a window only the upper 8 bits are used, which makes 12-bit data
    nearly black.
    """
    with _as_bad_image():
        image = header(file)
        image.load()
        turned = image.getexif().get(ORIENTATION, 1) not in (0, 1)
        pixels = _upright_rgb(image, window)
        digest = hashlib.blake2b(repr(pixels.size).encode(), digest_size=16)
        digest.update(pixels.tobytes())
        return {
            "size": list(image.size),
            "mode": image.mode,
            "alpha": image.has_transparency_data,
            "turned": turned,
            "largest": int(_sixteen_bits(image).max()) if _is_sixteen_bit(image) else None,
            "digest": digest.hexdigest(),
            "thumbnail": base64.b64encode(_thumbnail(pixels)).decode(),
        }


def _thumbnail(image: Image.Image) -> bytes:
    return image.convert("L").resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes()


@contextmanager
def _as_bad_image() -> Iterator[None]:
    """Turns every failure of a decoder into a BadImage."""
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


class _Room:
    """Lets threads decode images at once as long as these have no more than ROOM pixels together."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.free = ROOM

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        pixels = min(pixels, ROOM)
        with self.changed:
            self.changed.wait_for(lambda: self.free >= pixels)
            self.free -= pixels
        try:
            yield
        finally:
            with self.changed:
                self.free += pixels
                self.changed.notify_all()


_room = _Room()


def header(
    file: str | Path | bytes, at_least: int | None = None, formats: tuple[str, ...] | None = None
) -> Image.Image:
    """The first frame of a file, to be decoded; a file at a URL is fetched."""
    source: Path | io.BytesIO
    if isinstance(file, bytes):
        source = io.BytesIO(file)
    else:
        source = io.BytesIO(_fetched(file)) if "://" in str(file) else Path(file)
    if not (source.getbuffer().nbytes if isinstance(source, io.BytesIO) else source.stat().st_size):
        raise BadImage("the file is empty")
    image: Image.Image = Image.open(source, formats=formats)
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    return image


def _fetched(url: str | Path) -> bytes:
    if (inside := Packed.parse(str(url))) is not None:
        return _unpacked(inside)
    import fsspec

    with fsspec.open(str(url), "rb") as file:
        return bytes(file.read())


def _unpacked(inside: Packed) -> bytes:
    value = _images(inside.file, inside.group, inside.column)[inside.row].as_py()
    if isinstance(value, dict):
        if value.get("bytes") is None:
            raise BadImage(f"its bytes are not in the file but at {str(value.get('path'))[:200]}")
        value = value["bytes"]
    if not isinstance(value, bytes):
        raise BadImage("its place in the file is empty")
    return value


@lru_cache(maxsize=2)
def _images(file: str, group: int, column: str) -> Any:
    """A column of images: of a row group of a Parquet file, or of an Arrow file, which is mapped, not read."""
    if file.endswith(".parquet"):
        from pyarrow.parquet import ParquetFile

        return ParquetFile(file).read_row_group(group, columns=[column]).column(column)
    from pyarrow import ipc, memory_map

    return ipc.open_stream(memory_map(file)).read_all().column(column)


def _smaller(image: Image.Image, at_least: int) -> Image.Image:
    """Means of whole squares of pixels, not less than `at_least` wide and high: later copies take little memory."""
    factor = max(1, min(image.size) // at_least)
    exif = image.getexif()
    if image.mode.startswith("I;"):
        image = image.convert("I")
    elif image.mode == "P" or (image.has_transparency_data and image.mode not in ("LA", "RGBA")):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    image = image.reduce(factor)
    image.info["exif"] = exif.tobytes()
    return image


def _upright_rgb(image: Image.Image, window: Window | None = None) -> Image.Image:
    """Rotated according to EXIF, in RGB, with transparent pixels on white."""
    if image.getexif().get(ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise BadImage("floating-point pixels have no agreed range: save it with 8 bits per channel")
    if _is_sixteen_bit(image):
        image = Image.fromarray(_eight_bits(_sixteen_bits(image), window))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _is_sixteen_bit(image: Image.Image) -> bool:
    """Whether it is grey of 16 bits, or of 32, of which 16 are used."""
    return image.mode.startswith("I")


def _eight_bits(values: npt.NDArray[np.int64], window: Window | None) -> Pixels:
    if window is None:
        return (values >> 8).astype(np.uint8)
    low, high = window
    return np.rint(255 * ((np.clip(values, low, high) - low) / (high - low))).astype(np.uint8)


def _sixteen_bits(image: Image.Image) -> npt.NDArray[np.int64]:
    return np.clip(np.asarray(image, np.int64), 0, 65535)


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    """One answer per file of a job {"files": [...]}: its facts, or {"bad": reason}; a job may have a "window".

    A job {"files": [...], "size": pixels, "original": bool, "out": file, "rows": [...], "slot": bytes} writes what
    `read`, or `read_original`, makes of the files to these rows of `out`, a slot each; its answers are
    {"size": [height, width]}, {"bad": reason}, or {"unwritten": reason} if writing failed.
    """
    answers: list[dict[str, Any]] = []
    window = job.get("window")
    for number, file in enumerate(job["files"]):
        try:
            if "out" in job:
                reader = read_original if job["original"] else read
                pixels = reader(file, job["size"], window=window)
                _write_row(job["out"], job["rows"][number] * job["slot"], pixels)
                answers.append({"size": pixels.shape[1:]})
            else:
                answers.append(facts(file, window))
        except BadImage as error:
            answers.append({"bad": str(error)})
        except OSError as error:
            answers.append({"unwritten": error.strerror})
    return answers


def _write_row(out: str, place: int, pixels: Pixels) -> None:
    descriptor = os.open(out, os.O_WRONLY)
    try:
        write_at(descriptor, pixels.tobytes(), place)
    finally:
        os.close(descriptor)


def write_at(descriptor: int, content: bytes, place: int) -> None:
    """Writes all of it: a disk that becomes full on the way is an OSError."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, place)
        rest, place = rest[written:], place + written


if __name__ == "__main__":
    for line in sys.stdin:  # until the parent process closes the pipe or ends
        print(json.dumps(work(json.loads(line))), flush=True)
