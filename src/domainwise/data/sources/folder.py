"""A folder DIR/<domain>/<class>/*.jpg (or png, webp, ...) as a dataset.

The dataset's name is the path and a fingerprint of the files, `/photos/animals#1f0c...`, so that equal runs mean equal
data: after a change of the folder the same command plans a new run instead of reusing the old one, and an old run
refuses to continue on changed data.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.images.decode import SUFFIXES
from domainwise.data.sources.image_files import labelled_images
from domainwise.data.sources.left_out import LeftOut, hidden, printable

if TYPE_CHECKING:
    from domainwise.data.environments import Environments

log = logging.getLogger("domainwise")

LAYOUT = "images belong at DIR/<domain>/<class>/<image>"


@dataclass(frozen=True)
class ImageFile:
    """One image file, its domain and its class."""

    domain: str
    label: str
    file: Path


@dataclass(frozen=True)
class Folder:
    """The image files of a folder, sorted by domain and class, and what is left out."""

    path: Path
    images: tuple[ImageFile, ...]
    left_out: LeftOut

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
        """A line for each kind of things that are left out."""
        return [*self.left_out.lines(harmless=False), *self.left_out.lines(harmless=True)]


def scan(path: Path) -> Folder:
    """Lists the images of DIR/<domain>/<class>/, and everything else there as left out."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: {LAYOUT}")
    images: list[ImageFile] = []
    left_out = LeftOut()
    for domain in _listed(path, path, left_out, 0):
        before = len(images)
        for label in _listed(domain, path, left_out, 1):
            files = _listed(label, path, left_out, 2)
            images += (ImageFile(domain.name, label.name, file) for file in files)
            if not files:
                left_out.kinds["empty"].append(str(label.relative_to(path)))
        if len(images) == before:
            left_out.kinds["empty"].append(domain.name)
    if not images:
        found = left_out.lines(harmless=False)
        raise UserError("; ".join([f"no images found in {path}: {LAYOUT}", *found]))
    return Folder(path, tuple(images), left_out)


@dataclass(frozen=True)
class _Loader:
    """Loads a folder; if its files have changed since `state`, that is a UserError."""

    path: Path
    state: str
    skip_bad: bool

    def __call__(self, _: Path, size: int) -> Environments:
        from domainwise.data.images.cache import bad_images, decode

        folder = scan(self.path)
        if folder.state != self.state:
            raise UserError(f"the images in {self.path} have changed since this run was planned: plan a new one")
        result = decode(folder.files, size, label=folder.name, which=str(self.path))
        if result.bad and not self.skip_bad:
            raise bad_images(folder.files, result.bad)
        for number, reason in result.bad.items():
            log.warning("left out %s: %s", folder.files[number], reason)
        readable = [image for number, image in enumerate(folder.images) if number not in result.bad]
        numbers = {label: number for number, label in enumerate(folder.classes)}
        labels = {d: [numbers[image.label] for image in readable if image.domain == d] for d in folder.domains}
        return labelled_images(folder.name, result.images, labels, folder.classes)


def image_folder(path: Path | str, *, skip_bad: bool = False, state: str | None = None) -> Dataset:
    """The images of DIR/<domain>/<class>/ as a dataset; those that cannot be decoded are left out if `skip_bad`.

    By default a small network trains from scratch at 64 pixels; see `Dataset.for_network` for larger ones.
    """
    folder = scan(files.resolved(path))
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


def _listed(parent: Path, root: Path, left_out: LeftOut, depth: int) -> list[Path]:
    """The folders in a folder, or the images of a class (depth 2); everything else is left out."""
    try:
        entries = sorted(os.scandir(parent), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read the folder {parent}: {error.strerror}") from None
    paths = []
    for entry in entries:
        wanted = entry.is_dir() if depth < 2 else entry.name.lower().endswith(SUFFIXES) and entry.is_file()
        if wanted and not hidden(entry.name) and printable(entry.name) == entry.name:
            paths.append(parent / entry.name)
        else:
            left_out.add(parent / entry.name, root, depth)
    return paths
