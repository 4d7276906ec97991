"""A folder DIR/<domain>/<class>/*.jpg (or png, webp, ...), or a table of images, as a dataset.

The dataset's name is the path and a fingerprint of the files, `/photos/animals#1f0c...`, so that equal runs mean equal
data: after a change of the folder the same command plans a new run instead of reusing the old one, and an old run
refuses to continue on changed data.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.images.decode import SUFFIXES
from domainwise.data.images.remote import Location, shown
from domainwise.data.sources.image_files import labelled_images
from domainwise.data.sources.left_out import LeftOut, hidden, printable
from domainwise.protocol.dataset_names import table_title
from domainwise.protocol.reading import PLAIN, Reading

if TYPE_CHECKING:
    from torch import Tensor

    from domainwise.data.environments import Environments

log = logging.getLogger("domainwise")

TEST = " (test)"
"""After the name of a domain: its rows that are given as test."""
LAYOUT = "images belong at DIR/<domain>/<class>/<image>"


@dataclass(frozen=True)
class ImageFile:
    """One image file, its domain and its class; from a table also its group, split, time in seconds and weight."""

    domain: str
    label: str
    file: Location
    group: str = ""
    split: str = "train"
    time: float | None = None
    weight: float | None = None


@dataclass(frozen=True)
class Folder:
    """The image files of a folder or table, one domain after another, and what is left out.

    `absent` are rows of a table whose files are missing, `content` is the table's digest, `further` are notes on it.
    """

    path: Path
    images: tuple[ImageFile, ...]
    left_out: LeftOut
    reading: Reading = PLAIN
    absent: tuple[ImageFile, ...] = ()
    content: str = ""
    further: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return table_title(self.path)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(image.domain for image in self.images))

    @property
    def classes(self) -> tuple[str, ...]:
        """The union over all domains."""
        return tuple(sorted({image.label for image in self.images}))

    @property
    def unseen(self) -> tuple[str, ...]:
        """The domains of rows that are given as test."""
        return tuple(dict.fromkeys(image.domain for image in self.images if image.split == "test"))

    @property
    def given_test(self) -> dict[str, str]:
        """{domain of rows that are given as test: the domain, as the table names it}."""
        return {domain: domain.removesuffix(TEST) for domain in self.unseen}

    @property
    def files(self) -> list[Location]:
        return [image.file for image in self.images]

    @property
    def state(self) -> str:
        """Changes with any file's name, size or time, with the table and with how it is read."""
        from domainwise.data.images.cache import fingerprint

        state = fingerprint(self.files, self.path)
        if not self.content and self.reading == PLAIN:
            return state
        return hashlib.sha256(f"{state} {self.content} {self.reading}".encode()).hexdigest()[:16]

    def notes(self) -> list[str]:
        """A line for each kind of things that are left out."""
        return [*self.left_out.lines(harmless=False), *self.left_out.lines(harmless=True), *self.further]


def scan(path: Path, reading: Reading = PLAIN) -> Folder:
    """Lists the images of a table, or of DIR/<domain>/<class>/, and everything else there as left out."""
    from domainwise.data.sources.hub_folders import hub_table, packed_table
    from domainwise.data.sources.manifest import scan_rows, scan_table
    from domainwise.data.sources.table_files import is_table

    if is_table(path):
        return scan_table(path, reading)
    if table := hub_table(path, reading):
        return scan_rows(*table, reading)
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
    if not images and (table := packed_table(path, reading)):
        return scan_rows(*table, reading)
    if not images:
        found = left_out.lines(harmless=False)
        raise UserError("; ".join([f"no images found in {path}: {LAYOUT}", *found]))
    if reading.columns or reading.root:
        raise UserError(f"{path} is a folder, which has no columns and no root: name a table", argument="columns")
    return Folder(path, tuple(images), left_out, reading)


def scan_present(path: Path, reading: Reading, skip_bad: bool) -> Folder:
    """The same, where all files of a table exist; those that are missing are left out if `skip_bad`."""
    from domainwise.data.sources.manifest import without_absent

    folder = scan(path, reading)
    if folder.absent and not skip_bad:
        more = f" (and {len(folder.absent) - 1} more)" if len(folder.absent) > 1 else ""
        raise UserError(
            f"{folder.path} lists {shown(folder.absent[0].file)}, which is no file{more}: mend it, or leave them out",
            argument="skip_bad",
        )
    return without_absent(folder) if folder.absent else folder


@dataclass(frozen=True)
class _Loader:
    """Loads a folder or table; if its files have changed since `state`, that is a UserError."""

    path: Path
    state: str
    skip_bad: bool
    reading: Reading = PLAIN

    def __call__(self, _: Path, size: int) -> Environments:
        import torch

        from domainwise.data.images.cache import bad_images, decode
        from domainwise.data.originals import decode_originals
        from domainwise.data.sources.bursts import groups_of

        folder = scan_present(self.path, self.reading, self.skip_bad)
        if folder.state != self.state:
            raise UserError(f"the images in {self.path} have changed since this run was planned: plan a new one")
        where: Any = {"label": folder.name, "which": f"{self.path}{self.reading}", "window": self.reading.window}
        result = decode(folder.files, size, **where)
        if result.bad and not self.skip_bad:
            raise bad_images(folder.files, result.bad)
        for number, reason in result.bad.items():
            log.warning("left out %s: %s", shown(folder.files[number]), reason)
        readable = [image for number, image in enumerate(folder.images) if number not in result.bad]
        numbers = {label: number for number, label in enumerate(folder.classes)}
        labels = {d: [numbers[image.label] for image in readable if image.domain == d] for d in folder.domains}
        groups = groups_of(readable, self.reading.bursts)
        held_out = [image.split == "val" for image in readable]
        originals = cache(partial(decode_originals, folder.files, size, left_out=frozenset(result.bad), **where))
        return replace(
            labelled_images(folder.name, result.images, labels, folder.classes, originals),
            groups=None if groups is None else torch.tensor(groups),
            held_out=torch.tensor(held_out) if any(held_out) else None,
            weights=_weights(readable),
            window=self.reading.window,
            given_test=folder.given_test,
        )


def _weights(images: list[ImageFile]) -> Tensor | None:
    """Of a table with a column of weights; else None."""
    import torch

    values = [image.weight for image in images if image.weight is not None]
    return torch.tensor(values, dtype=torch.float64) if len(values) == len(images) else None


def image_folder(
    path: Path | str, *, skip_bad: bool = False, state: str | None = None, reading: Reading = PLAIN
) -> Dataset:
    """The images of DIR/<domain>/<class>/ or of a table as a dataset; bad and missing ones are left out if `skip_bad`.

    By default a small network trains from scratch at 64 pixels; see `Dataset.for_network` for larger ones.
    """
    folder = scan_present(files.resolved(path), reading, skip_bad)
    loader = _Loader(folder.path, state or folder.state, skip_bad, reading)
    return Dataset(
        name=f"{folder.path}#{loader.state}{',skip-bad' if skip_bad else ''}{reading}",
        summary=f"Your own images in {folder.path}.",
        domains=folder.domains,
        classes=folder.classes,
        shape=(3, 64, 64),
        scale="small",
        network="small-cnn",
        steps=2001,
        loader=loader,
        resizable=True,
        unseen=folder.unseen,
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
