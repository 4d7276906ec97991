"""Groups of images that belong together: given by name, or taken within a short time of each other (bursts)."""

from __future__ import annotations

import datetime
import logging
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.data.images.decode import header

if TYPE_CHECKING:
    from domainwise.data.sources.folder import ImageFile

log = logging.getLogger("domainwise")

EXIF, ORIGINAL, CHANGED = 0x8769, 0x9003, 0x0132
"""EXIF tags: its folder of details, when the image was taken (DateTimeOriginal), when it was changed."""
EXIF_TIME = "%Y:%m:%d %H:%M:%S"


def timestamp(text: str, where: str) -> float:
    """A time stamp in seconds: ISO 8601, EXIF's 2026:05:01 12:30:00, or a number of seconds."""
    try:
        number = float(text)
        if math.isfinite(number):
            return number
    except ValueError:
        pass
    for read in (datetime.datetime.fromisoformat, lambda stamp: datetime.datetime.strptime(stamp, EXIF_TIME)):
        try:
            moment = read(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
        except (ValueError, OverflowError):
            continue
    raise UserError(f"{where}: time {text[:40]!r} cannot be read: write 2026-05-01 12:30:00, or seconds")


def groups_of(images: Sequence[ImageFile], gap: int) -> list[int] | None:
    """The number of each image's group; None if no image belongs to another.

    Images of one domain are one burst if each is at most `gap` seconds after the previous one (0: no bursts). Images
    that share a burst or a name of a group are one group, and so are all that are linked in this way. An image without
    a name or time is a group of its own.
    """
    first_of: dict[object, int] = {}
    parent = list(range(len(images)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for number, image in enumerate(images):
        if image.group:
            parent[root(number)] = root(first_of.setdefault(image.group, number))
    for earlier, later in _bursts(images, gap) if gap else ():
        parent[root(later)] = root(earlier)
    roots = [root(number) for number in range(len(images))]
    grouped = bool(gap) or any(image.group for image in images)
    return roots if grouped else None


def _bursts(images: Sequence[ImageFile], gap: int) -> list[tuple[int, int]]:
    """Pairs of neighbours in time that belong to one burst."""
    times = [image.time if image.time is not None else _taken(image.file) for image in images]
    if all(time is None for time in times):
        raise UserError("no image has a time (EXIF DateTimeOriginal, or a column): leave out bursts", argument="bursts")
    if unknown := times.count(None):
        log.warning("%s without a time: each is a group of its own", counted(unknown, "image"))
    order = sorted(
        (image.domain, time, i) for i, (image, time) in enumerate(zip(images, times, strict=True)) if time is not None
    )
    return [
        (i, j)
        for (domain, time, i), (next_domain, next_time, j) in pairwise(order)
        if domain == next_domain and next_time - time <= gap
    ]


def _taken(file: Path | str) -> float | None:
    """When an image was taken by its EXIF, in seconds; None if that is unknown or the file cannot be read."""
    try:
        with header(file) as image:
            exif = image.getexif()
            stamp = exif.get_ifd(EXIF).get(ORIGINAL) or exif.get(CHANGED)
        return None if stamp is None else timestamp(str(stamp).strip("\0 "), str(file))
    except Exception:  # a damaged file is reported where it is decoded
        return None
