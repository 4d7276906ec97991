"""Published datasets of image files: lists of files and labels -> Environments."""

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

LabelledFiles = list[tuple[Path, int]]
"""Image files and the numbers of their classes."""


def in_class_folders(folder: Path, names: Sequence[str]) -> LabelledFiles:
    """The images of folder/<class>/, class by class, sorted; other files are ignored."""
    listed: LabelledFiles = []
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
    name: str, domains: Mapping[str, LabelledFiles], *, classes: Sequence[str], root: Path, size: int, published: int
) -> Environments:
    """The listed images at size x size, from the decode cache; warns if their number is not the published one."""
    import torch

    from domainwise.data.environments import Environments
    from domainwise.data.images.cache import cache_root, decode

    listed = [labelled for files in domains.values() for labelled in files]
    files = [file for file, _ in listed]
    if len(files) != published:
        log.warning("%s in %s has %s images, published are %s", name, root, f"{len(files):,}", f"{published:,}")
    result = decode(files, size, label=name, which=f"{name} in {root}", cache=cache_root(root))
    if result.bad:
        number, reason = next(iter(result.bad.items()))
        more = f" (and {len(result.bad) - 1} more)" if len(result.bad) > 1 else ""
        raise UserError(f"{name}: cannot decode {files[number]}: {reason}{more}; fetch the dataset again")
    return Environments.from_images(
        result.images,
        torch.tensor([label for _, label in listed]),
        {domain: len(files) for domain, files in domains.items()},
        name=name,
        classes=classes,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )
