"""A folder DIR/<domain>/<class>/*.jpg (or png, webp, ...) as a dataset.

The dataset's name is the path and a fingerprint of the files, `/photos/animals#1f0c...`, so that equal runs mean equal
data: after a change of the folder the same command plans a new run instead of reusing the old one, and an old run
refuses to continue on changed data.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.images.decode import SUFFIXES

if TYPE_CHECKING:
    import torch

    from domainwise.data.environments import Environments

log = logging.getLogger("domainwise")

LAYOUT = "images belong at DIR/<domain>/<class>/<image>"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Constants, so that the normalisation never depends on images of an unseen domain."""


@dataclass(frozen=True)
class ImageFile:
    """One image file, its domain and its class."""

    domain: str
    label: str
    file: Path


@dataclass(frozen=True)
class Folder:
    """The image files of a folder, sorted by domain and class, and what was ignored."""

    path: Path
    images: tuple[ImageFile, ...]
    ignored: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(image.domain for image in self.images))

    @property
    def classes(self) -> tuple[str, ...]:
        """The union over all domains."""
        return tuple(sorted({image.label for image in self.images}))

    @property
    def files(self) -> list[Path]:
        return [image.file for image in self.images]

    @property
    def state(self) -> str:
        """Changes with any file's name, size or time."""
        from domainwise.data.images.cache import fingerprint

        return fingerprint(self.files, self.path)

    def notes(self) -> list[str]:
        """At most one line: what was ignored."""
        if not self.ignored:
            return []
        named = ", ".join(self.ignored[:3]) + (", ..." if len(self.ignored) > 3 else "")
        why = "hidden, empty, not an image, or not at its place"
        return [f"ignored {len(self.ignored)} in {self.path} ({why}): {named}"]


def scan(path: Path) -> Folder:
    """Lists the images of DIR/<domain>/<class>/ and what it ignores: stray files, hidden folders, empty domains."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: {LAYOUT}")
    images: list[ImageFile] = []
    ignored: list[str] = []
    for domain in _folders(path, path, ignored):
        before = len(images)
        for label in _folders(domain, path, ignored):
            images += (ImageFile(domain.name, label.name, file) for file in _images(label, path, ignored))
        if len(images) == before:
            ignored.append(domain.name)
    if not images:
        shallow = any(_images(folder, path, []) for folder in _folders(path, path, []))
        hint = "; they lie one folder too high: put each domain's classes into a folder of its own" if shallow else ""
        raise UserError(f"no images found in {path}: {LAYOUT}{hint}")
    return Folder(path, tuple(images), tuple(ignored))


@dataclass(frozen=True)
class _Loader:
    """Loads a folder; if its files have changed since `state`, that is a UserError."""

    path: Path
    state: str
    skip_bad: bool

    def __call__(self, root: Path, size: int) -> Environments:
        from domainwise.data.images.cache import bad_images, cache_root, decode

        folder = scan(self.path)
        if folder.state != self.state:
            raise UserError(f"the images in {self.path} have changed since this run was planned: plan a new one")
        cache = cache_root(root, outside=self.path)
        result = decode(folder.files, size, label=folder.name, which=str(self.path), cache=cache)
        if result.bad and not self.skip_bad:
            raise bad_images(folder.files, result.bad)
        for number, reason in result.bad.items():
            log.warning("left out %s: %s", folder.files[number], reason)
        return as_environments(folder, result.images, result.bad)


def image_folder(path: Path | str, *, skip_bad: bool = False, state: str | None = None) -> Dataset:
    """The images of DIR/<domain>/<class>/ as a dataset; those that cannot be decoded are left out if `skip_bad`.

    By default a small network trains from scratch at 64 pixels; see `Dataset.for_network` for larger ones.
    """
    folder = scan(Path(path).expanduser().resolve())
    loader = _Loader(folder.path, state or folder.state, skip_bad)
    return Dataset(
        name=f"{folder.path}#{loader.state}{',skip-bad' if skip_bad else ''}",
        summary=f"Your own images in {folder.path}.",
        domains=folder.domains,
        classes=folder.classes,
        shape=(3, 64, 64),
        scale="small",
        network="small-cnn",
        steps=2001,
        loader=loader,
        resizable=True,
    )


def hidden(name: str) -> bool:
    """Whether the system made a file or folder of this name, not the user (macOS leaves ._x.png beside x.png)."""
    return name.startswith((".", "__MACOSX"))


def as_environments(folder: Folder, images: torch.Tensor, bad: Collection[int] = ()) -> Environments:
    """The decoded images of a folder, without its `bad` ones."""
    import torch

    from domainwise.data.environments import Environments

    readable = [image for number, image in enumerate(folder.images) if number not in bad]
    class_numbers = {label: number for number, label in enumerate(folder.classes)}
    sizes = Counter(image.domain for image in readable)
    return Environments.from_images(
        images,
        torch.tensor([class_numbers[image.label] for image in readable]),
        {domain: sizes[domain] for domain in folder.domains},
        name=folder.name,
        classes=folder.classes,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def _folders(parent: Path, root: Path, ignored: list[str]) -> list[Path]:
    """The folders in a folder; everything else is ignored."""
    return _listed(parent, root, ignored, lambda entry: entry.is_dir())


def _images(parent: Path, root: Path, ignored: list[str]) -> list[Path]:
    """The image files in a folder; everything else is ignored."""
    return _listed(parent, root, ignored, lambda entry: entry.name.lower().endswith(SUFFIXES) and entry.is_file())


def _listed(parent: Path, root: Path, ignored: list[str], wanted: Callable[[os.DirEntry[str]], bool]) -> list[Path]:
    try:
        entries = sorted(os.scandir(parent), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read the folder {parent}: {error.strerror}") from None
    paths = []
    for entry in entries:
        printable = entry.name.encode(errors="replace").decode()  # a name that is no UTF-8 cannot be printed
        if wanted(entry) and not hidden(entry.name) and printable == entry.name:
            paths.append(parent / entry.name)
        else:
            ignored.append(str((parent / printable).relative_to(root)))
    return paths
