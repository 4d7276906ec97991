"""The datasets by name: what is known of each before a file is opened, and how to load it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from domainwise.data.environments import HELD_OUT, Environments
from domainwise.errors import UserError, unknown
from domainwise.protocol.spaces import Scale
from domainwise.registry import Registry, first_line

Loader = Callable[[Path], Environments]


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

    @property
    def testable(self) -> tuple[str, ...]:
        """The domains that are left out in turn."""
        return self.unseen or self.domains

    def load(self, root: Path | None = None) -> Environments:
        return _load(self.name, data_root(root))

    def domain(self, key: str) -> str:
        """A domain by its name or its number."""
        if key in self.domains:
            return key
        if key.isdecimal() and int(key) < len(self.domains):
            return self.domains[int(key)]
        raise unknown(f"domain of {self.name}", key, self.domains)


DATASETS: Registry[Dataset] = Registry("dataset")


def dataset(
    *,
    domains: tuple[str, ...],
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    network: str,
    steps: int,
    evaluate_every: int = 100,
    scale: Scale = "small",
    name: str | None = None,
) -> Callable[[Loader], Loader]:
    """Registers a loader (data root -> Environments) under its own name; its docstring is the summary."""

    def register(loader: Loader) -> Loader:
        title = name or loader.__name__
        facts = (title, first_line(loader), domains, classes, shape, scale, network, steps, loader, evaluate_every)
        DATASETS.add(title, Dataset(*facts))
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
def _load(name: str, root: Path) -> Environments:
    found = DATASETS.find(name)
    environments = found.loader(root)
    if environments.domains != found.domains or environments.shape != found.shape:
        raise UserError(
            f"{name} in {root} has domains {environments.domains} of shape {environments.shape}, "
            f"expected {found.domains} of shape {found.shape}"
        )
    return environments
