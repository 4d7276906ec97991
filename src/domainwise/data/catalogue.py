"""The datasets by name: what is known of each before a file is opened, and how to load it."""

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
from domainwise.protocol.dataset_names import FOLDER, title
from domainwise.protocol.runs import HELD_OUT
from domainwise.protocol.spaces import Scale

if TYPE_CHECKING:
    from domainwise.data.environments import Environments

Loader: TypeAlias = "Callable[..., Environments]"
"""Data root -> Environments; that of a resizable dataset takes the image size too."""


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
    """Domains that only ever choose models (NICO has one); then `unseen` says which are tested on."""
    unseen: tuple[str, ...] = ()
    held_out: float = HELD_OUT
    augmentation: str = "none"
    """What training images go through, by name (data/augment.py)."""
    selection: str = "training-domain"
    """The rule of model selection its published numbers go by."""
    resizable: bool = False
    """Whether its images may be loaded at another size than their own."""
    source: Source | None = None
    """Where it comes from and where it is looked for."""

    @classmethod
    def of(cls, environments: Environments, **facts: Any) -> Dataset:
        """Data in memory, described: what a Run needs to know of it."""
        known: dict[str, Any] = {
            "summary": "Data in memory.",
            "scale": "image" if len(environments.shape) == 3 and environments.shape[-1] > 64 else "small",
            "network": "small-cnn" if len(environments.shape) == 3 else "mlp",
            "steps": 1001,
        }
        return cls(
            environments.name,
            domains=environments.domains,
            classes=environments.classes,
            shape=environments.shape,
            loader=lambda _: environments,
            **{**known, **facts},
        )

    @property
    def title(self) -> str:
        return title(self.name)

    @property
    def image_size(self) -> int:
        """Height and width of its images; 0 for vectors."""
        return self.shape[-1] if len(self.shape) == 3 else 0

    def for_network(self, network: str | None) -> Dataset:
        """As this network wants it: image size, augmentation, search ranges and steps of a folder go with the network.

        Published datasets have their own protocol, whatever the network.
        """
        own = self.resizable and FOLDER.fullmatch(self.name)
        if not own or not (network or "").startswith("resnet") or network == self.network:
            return self
        return replace(
            self,
            network=str(network),
            shape=(3, 224, 224),
            scale="image",
            augmentation="domainbed",
            steps=5001,
            evaluate_every=300,
        )

    @property
    def testable(self) -> tuple[str, ...]:
        """The domains that are left out in turn."""
        return self.unseen or self.domains

    def load(self, root: Path | None = None, image_size: int | None = None) -> Environments:
        """The data, at its own image size unless told otherwise; the last ones loaded are kept."""
        return _load(self, data_root(root), self.sized(image_size))

    def missing(self, root: Path | None = None) -> str:
        """What is not there of its files, where it was looked for and how to get it; empty if all is. Opens none."""
        parts = self.source.parts if self.source is not None else ()
        top = data_root(root)
        return next((part.missing(top, self.name) for part in parts if part.look(top) is None), "")

    def sized(self, image_size: int | None) -> int:
        """The image size asked for, checked; its own if none is."""
        if image_size in (None, self.image_size):
            return self.image_size
        if not self.resizable:
            raise UserError(f"{self.title} has images of {self.image_size} pixels only, not {image_size}")
        if image_size < 8:
            raise UserError(f"image size {image_size}: must be at least 8 pixels")
        return image_size

    def domain(self, key: str) -> str:
        """A domain by its name or its number."""
        if key in self.domains:
            return key
        if key.isdecimal() and int(key) < len(self.domains):
            return self.domains[int(key)]
        raise unknown(f"domain of {self.title}", key, self.domains)


DATASETS: Registry[Dataset] = Registry(
    "dataset", tuple(f"domainwise.data.sources.{module}" for module in ("digit_domains", "mnist", "photos"))
)


def usual_selection(name: str) -> str:
    """The rule that a dataset's published numbers go by."""
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
    **facts: Any,
) -> Callable[[Loader], Loader]:
    """Registers a loader (data root -> Environments) under its own name; its docstring is the summary.

    `facts` are further fields of Dataset.
    """

    def register(loader: Loader) -> Loader:
        title = name or loader.__name__
        entry = Dataset(
            title, first_paragraph(loader.__doc__), domains, classes, shape, scale, network, steps, loader, **facts
        )
        DATASETS.add(title, entry)
        return loader

    return register


def data_root(given: Path | None = None) -> Path:
    """Where data is looked for: the folder given, $DOMAINWISE_DATA, or `domainwise` in the user's data folder."""
    if given is not None:
        root = given.expanduser()
        if not root.is_dir():
            raise UserError(f"data root {root} is not a folder: give the folder that holds the datasets")
        return root
    if variable := os.environ.get("DOMAINWISE_DATA"):
        return Path(variable).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "domainwise"


@lru_cache(maxsize=2)
def _load(found: Dataset, root: Path, image_size: int) -> Environments:
    environments = found.loader(root, image_size) if found.resizable else found.loader(root)
    shape = found.shape if image_size == found.image_size else (*found.shape[:1], image_size, image_size)
    domains = tuple(domain for domain in found.domains if domain not in environments.absent)
    if environments.domains != domains or environments.shape != shape:
        raise UserError(
            f"{found.name} in {root} has domains {environments.domains} of shape {environments.shape}, "
            f"expected {domains} of shape {shape}"
        )
    return environments
