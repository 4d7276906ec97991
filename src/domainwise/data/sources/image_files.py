"""Image files and labels -> Environments, by way of the decode cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.core.errors import UserError
from domainwise.data.images.decode import SUFFIXES

if TYPE_CHECKING:
    from torch import Tensor

    from domainwise.data.environments import Environments
    from domainwise.data.originals import Originals

log = logging.getLogger("domainwise")

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Constants, so that the normalisation never depends on images of an unseen domain."""

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


def published_images(
    name: str, domains: Mapping[str, LabelledFiles], *, classes: Sequence[str], root: Path, size: int, published: int
) -> Environments:
    """The images of a published dataset at size x size; warns if their number is not the published one."""
    from domainwise.data.images.cache import decode
    from domainwise.data.originals import decode_originals

    files = [file for labelled in domains.values() for file, _ in labelled]
    if len(files) != published:
        log.warning("%s in %s has %s images (published: %s)", name, root, f"{len(files):,}", f"{published:,}")
    which = f"{name} in {root}"
    result = decode(files, size, label=name, which=which)
    if result.bad:
        number, reason = next(iter(result.bad.items()))
        more = f" (and {len(result.bad) - 1} more)" if len(result.bad) > 1 else ""
        raise UserError(f"{name}: cannot decode {files[number]}: {reason}{more}; fetch the dataset again")
    labels = {domain: [label for _, label in labelled] for domain, labelled in domains.items()}
    originals = cache(partial(decode_originals, files, size, label=name, which=which))
    return labelled_images(name, result.images, labels, classes, originals)


def labelled_images(
    name: str,
    images: Tensor,
    labels: Mapping[str, Sequence[int]],
    classes: Sequence[str],
    open_originals: Callable[[], Originals],
) -> Environments:
    """Environments with ImageNet's normalisation; `labels` are those of the images, by domain."""
    import torch

    from domainwise.data.environments import Environments

    every_label = torch.tensor([label for part in labels.values() for label in part])
    sizes = {domain: len(part) for domain, part in labels.items()}
    data = Environments.from_images(
        images, every_label, sizes, name=name, classes=classes, mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    return replace(data, open_originals=open_originals)
