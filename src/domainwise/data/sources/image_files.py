"""Published collections of image files: their lists of files, decoded once, as Environments."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.core.errors import UserError
from domainwise.data.images.decode import SUFFIXES
from domainwise.data.sources.folder import IMAGENET_MEAN, IMAGENET_STD

if TYPE_CHECKING:
    from domainwise.data.environments import Environments

log = logging.getLogger("domainwise")

Listed = list[tuple[Path, int]]
"""Image files and their classes."""


def in_class_folders(folder: Path, names: Sequence[str]) -> Listed:
    """The images of folder/<class>/, class by class, sorted; whatever else lies there is none of the dataset's."""
    listed: Listed = []
    for label, name in enumerate(names):
        if not (folder / name).is_dir():
            log.warning("%s has no folder %r", folder, name)
            continue
        files = (file for file in sorted((folder / name).iterdir()) if not file.name.startswith("."))
        listed += ((file, label) for file in files if file.suffix.lower() in SUFFIXES)
    if not listed:
        raise UserError(f"{folder} holds no images: expected {folder}/<class>/*.jpg for the classes {', '.join(names)}")
    return listed


def as_environments(
    name: str, domains: Mapping[str, Listed], *, classes: Sequence[str], root: Path, size: int, published: int
) -> Environments:
    """The listed images at size x size, from the decode cache; a count that differs from the published one is noted."""
    import torch

    from domainwise.data.environments import Environments
    from domainwise.data.images.cache import cache_root, decode

    listed = [picture for pictures in domains.values() for picture in pictures]
    files = [file for file, _ in listed]
    if len(files) != published:
        log.warning("%s in %s has %s images, published are %s", name, root, f"{len(files):,}", f"{published:,}")
    found = decode(files, size, label=name, which=f"{name} in {root}", cache=cache_root(root))
    if found.bad:
        number, reason = next(iter(found.bad.items()))
        more = f" (and {len(found.bad) - 1} more)" if len(found.bad) > 1 else ""
        raise UserError(f"{name}: cannot decode {files[number]}: {reason}{more}; fetch the dataset again")
    return Environments.from_images(
        found.images,
        torch.tensor([label for _, label in listed]),
        {domain: len(pictures) for domain, pictures in domains.items()},
        name=name,
        classes=classes,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )
