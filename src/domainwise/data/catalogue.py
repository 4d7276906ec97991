"""The registry of datasets: a description of each, known before any file is opened, and how to load it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from domainwise.core.errors import UserError, unknown
from domainwise.core.registry import Registry, first_paragraph
from domainwise.data.sources.parts import Source
from domainwise.protocol import limits
from domainwise.protocol.dataset_names import FOLDER, title
from domainwise.protocol.network_names import is_hub
from domainwise.protocol.runs import HELD_OUT
from domainwise.protocol.spaces import Scale

if TYPE_CHECKING:
    from domainwise.data.environments import Environments

Loader: TypeAlias = "Callable[..., Environments]"
"""Data root -> Environments; the loader of a resizable dataset also takes the image size."""


@dataclass(frozen=True)
class Dataset:
    """One dataset: domains, classes, and the network, steps and evaluation interval of its published protocol."""

    name: str
    summary: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    scale: Scale
    network: str
    steps: int
    loader: Loader
    evaluate_every: int = 100
    validation: tuple[str, ...] = ()
    """Domains used for model selection only (NICO has one)."""
    unseen: tuple[str, ...] = ()
    """The test domains of the published protocol; by default each domain in turn."""
    held_out: float = HELD_OUT
    augmentation: str = "none"
    """Augmentation of training images, by name (data/augment.py)."""
    selection: str = "training-domain"
    """The selection rule of its published results."""
    resizable: bool = False
    """Whether its images can be loaded at another size."""
    source: Source | None = None
    """Where it is published and where its files are looked for."""

    @classmethod
    def from_environments(cls, environments: Environments, **fields: Any) -> Dataset:
        """The description of data in memory; `fields` override the defaults."""
        defaults: dict[str, Any] = {
            "summary": "Data in memory.",
            "scale": "image" if len(environments.shape) == 3 and environments.shape[-1] > 64 else "small",
            "network": "small-cnn" if len(environments.shape) == 3 else "mlp",
            "steps": 1001,
            "unseen": tuple(environments.given_test),
        }
        return cls(
            environments.name,
            domains=environments.domains,
            classes=environments.classes,
            shape=environments.shape,
            loader=lambda _: environments,
            **(defaults | fields),
        )

    @property
    def title(self) -> str:
        return title(self.name)

    @property
    def image_size(self) -> int:
        """Height and width of its images; 0 for vectors."""
        return self.shape[-1] if len(self.shape) == 3 else 0

    def for_network(self, network: str | None, image_size: int | None = None) -> Dataset:
        """The dataset with the defaults for this network: ResNets change size, augmentation and steps of a folder.

        So do backbones of a hub, which read images of `image_size` pixels. Published datasets keep their published
        protocol, whatever the network, but for that size.
        """
        sized = self
        if image_size and self.resizable and image_size != self.image_size:
            sized = replace(self, shape=(*self.shape[:1], image_size, image_size))
        folder = self.resizable and FOLDER.fullmatch(self.name)
        large = is_hub(network) or (network or "").startswith("resnet")
        if not folder or not large or network == self.network:
            return sized
        size = image_size or 224
        return replace(
            self,
            network=str(network),
            shape=(3, size, size),
            scale="image",
            augmentation="domainbed",
            steps=5001,
            evaluate_every=300,
        )

    @property
    def testable(self) -> tuple[str, ...]:
        """The domains that are left out in turn as test domains."""
        return self.unseen or self.domains

    def load(self, root: Path | None = None, image_size: int | None = None) -> Environments:
        """The data, by default at the dataset's image size; the last two datasets loaded are cached."""
        return _load(self, data_root(root), self.check_image_size(image_size))

    def missing(self, root: Path | None = None) -> str:
        """Which files are missing, where they were looked for and how to get them; empty if none. Opens no file."""
        parts = self.source.parts if self.source is not None else ()
        top = data_root(root)
        return next((part.missing(top, self.name) for part in parts if part.look(top) is None), "")

    def check_image_size(self, image_size: int | None) -> int:
        """The image size, by default the dataset's; one that it cannot be loaded at is a UserError."""
        if image_size in (None, self.image_size):
            return self.image_size
        if not self.resizable:
            reason = f"{self.title} has images of {self.image_size} pixels only, not {image_size}"
            raise UserError(reason, argument="image_size")
        if image_size < 8:
            raise UserError(f"image size {image_size}: must be at least 8 pixels", argument="image_size")
        return limits.check("image size", image_size, 8, limits.IMAGE_SIZE, "image_size")

    def domain(self, key: str) -> str:
        """The name of a domain given by its name or its number."""
        if key in self.domains:
            return key
        if key.isdecimal() and int(key) < len(self.domains):
            return self.domains[int(key)]
        raise unknown(f"domain of {self.title}", key, self.domains)


MODULES = ("digit_domains", "mnist", "photos", "wilds", "spawrious")
DATASETS: Registry[Dataset] = Registry("dataset", tuple(f"domainwise.data.sources.{name}" for name in MODULES))


def usual_selection(name: str) -> str:
    """The selection rule of a dataset's published results."""
    return DATASETS[name].selection if name in DATASETS else "training-domain"


def dataset(
    *,
    domains: tuple[str, ...],
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    network: str,
    steps: int,
    scale: Scale = "small",
    name: str | None = None,
    **fields: Any,
) -> Callable[[Loader], Loader]:
    """Registers a loader (data root -> Environments) under its function name; its docstring is the summary.

    `fields` are further fields of Dataset.
    """

    def register(loader: Loader) -> Loader:
        title = name or loader.__name__
        entry = Dataset(
            title, first_paragraph(loader.__doc__), domains, classes, shape, scale, network, steps, loader, **fields
        )
        DATASETS.add(title, entry)
        return loader

    return register


def data_root(folder: Path | None = None) -> Path:
    """The folder of all datasets: the one given, $DOMAINWISE_DATA, or `domainwise` in the user's data folder."""
    if folder is not None:
        root = folder.expanduser()
        if not root.is_dir():
            reason = f"data root {root} is not a folder: give the folder that holds the datasets"
            raise UserError(reason, argument="data_root")
        return root
    if variable := os.environ.get("DOMAINWISE_DATA"):
        return Path(variable).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "domainwise"


@lru_cache(maxsize=2)
def _load(dataset: Dataset, root: Path, image_size: int) -> Environments:
    environments = dataset.loader(root, image_size) if dataset.resizable else dataset.loader(root)
    shape = dataset.shape if image_size == dataset.image_size else (*dataset.shape[:1], image_size, image_size)
    domains = tuple(domain for domain in dataset.domains if domain not in environments.absent)
    if environments.domains != domains or environments.shape != shape:
        raise UserError(
            f"{dataset.name} in {root} has domains {environments.domains} of shape {environments.shape}, "
            f"expected {domains} of shape {shape}"
        )
    return environments
