"""Published datasets of photographs: the files they list, their entry in the catalogue with DomainBed's defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.sources.image_files import LabelledFiles, published_images
from domainwise.data.sources.parts import Source

if TYPE_CHECKING:
    from domainwise.data.environments import Environments


class Listing:
    """The image files of a dataset by domain, and which of them are held out, where that is given.

    Domains that are `whole` are never divided into `in` and `out`: those of a published test. `left_out` counts images
    of the published number that are in no domain.
    """

    def __init__(self, domains: tuple[str, ...], whole: tuple[str, ...] = ()) -> None:
        self.files: dict[str, LabelledFiles] = {domain: [] for domain in domains}
        self.held_out: dict[str, list[bool]] = {domain: [] for domain in domains}
        self.whole = whole
        self.left_out = 0

    def add(self, domain: str, file: Path, label: int, *, held_out: bool = False) -> None:
        self.files[domain].append((file, label))
        self.held_out[domain].append(held_out)

    def check(self, name: str) -> None:
        """Raises UserError if a domain has no images or a listed image is missing."""
        for domain, labelled in self.files.items():
            if not labelled:
                raise UserError(f"{name}: its tables list no image of {domain}: fetch it again")
        listed = [file for part in self.files.values() for file, _ in part]
        if missing := [file for file in listed if not file.is_file()]:
            raise UserError(
                f"{name}: {len(missing):,} of its {len(listed):,} images are missing, e.g. {missing[0]}: "
                "fetch the images again, and unpack them so that this file exists"
            )


def photo_dataset(
    name: str,
    summary: str,
    domains: tuple[str, ...],
    classes: tuple[str, ...],
    listing: Callable[[Path], Listing],
    source: Source,
    *,
    size: int = 224,
    **fields: Any,
) -> None:
    """Registers a dataset: ResNet-50 at 224 pixels, 5,001 steps and DomainBed's augmentation unless `fields` differ."""

    def load(root: Path, size: int) -> Environments:
        import torch

        listed = listing(root)
        listed.check(name)
        expected = source.images - listed.left_out
        data = published_images(name, listed.files, classes=classes, root=root, size=size, published=expected)
        held_out = [given for domain in listed.files for given in listed.held_out[domain]]
        return replace(data, held_out=torch.tensor(held_out) if any(held_out) else None, whole=listed.whole)

    defaults: dict[str, Any] = {
        "network": "resnet50",
        "steps": 5001,
        "evaluate_every": 300,
        "augmentation": "domainbed",
    }
    settings = defaults | fields
    shape = (3, size, size)
    DATASETS.add(
        name,
        Dataset(
            name, summary, domains, classes, shape, "image", loader=load, resizable=True, source=source, **settings
        ),
    )
