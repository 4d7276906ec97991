"""The user's own images: DIR/<domain>/<class>/*.jpg (or png, webp, ...) as a dataset, without any code.

A folder's dataset is named by its path and the state of its files, `/photos/animals#1f0c...`, so that equal runs mean
equal data: after a change of the folder the same command plans a new run instead of finding the old one done, and an
old run refuses to continue on new data.
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
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.images.decode import SUFFIXES
from domainwise.data.sources.saved import is_saved, saved_dataset
from domainwise.protocol.dataset_names import FOLDER

if TYPE_CHECKING:
    import torch

    from domainwise.data.environments import Environments

log = logging.getLogger("domainwise")

LAYOUT = "images belong at DIR/<domain>/<class>/<image>"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Constants, so that normalisation never depends on the images, least of all on those of an unseen domain."""


@dataclass(frozen=True)
class Picture:
    """One image file and where it stands."""

    domain: str
    label: str
    file: Path


@dataclass(frozen=True)
class Folder:
    """What lies in a folder: its pictures by domain and class, both sorted, and what was ignored."""

    path: Path
    pictures: tuple[Picture, ...]
    ignored: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(picture.domain for picture in self.pictures))

    @property
    def classes(self) -> tuple[str, ...]:
        """The union over all domains."""
        return tuple(sorted({picture.label for picture in self.pictures}))

    @property
    def files(self) -> list[Path]:
        return [picture.file for picture in self.pictures]

    @property
    def state(self) -> str:
        """Changes with any file's name, size or time."""
        from domainwise.data.images.cache import fingerprint

        return fingerprint(self.files, self.path)

    def notes(self) -> list[str]:
        """What was ignored, in a line."""
        if not self.ignored:
            return []
        named = ", ".join(self.ignored[:3]) + (", ..." if len(self.ignored) > 3 else "")
        why = "hidden, empty, not an image, or not at its place"
        return [f"ignored {len(self.ignored)} in {self.path} ({why}): {named}"]


def scan(path: Path) -> Folder:
    """Looks through DIR/<domain>/<class>/; stray files, hidden folders and empty domains are ignored, but noted."""
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: {LAYOUT}")
    pictures: list[Picture] = []
    ignored: list[str] = []
    for domain in _folders(path, path, ignored):
        before = len(pictures)
        for label in _folders(domain, path, ignored):
            found = _images(label, path, ignored)
            pictures += (Picture(domain.name, label.name, file) for file in found)
        if len(pictures) == before:
            ignored.append(domain.name)
    if not pictures:
        shallow = any(_images(folder, path, []) for folder in _folders(path, path, []))
        hint = "; they lie one folder too high: put each domain's classes into a folder of its own" if shallow else ""
        raise UserError(f"no images found in {path}: {LAYOUT}{hint}")
    return Folder(path, tuple(pictures), tuple(ignored))


@dataclass(frozen=True)
class _Loader:
    """Loads a folder whose files are still as they were."""

    path: Path
    state: str
    skip_bad: bool

    def __call__(self, root: Path, size: int) -> Environments:
        from domainwise.data.images.cache import bad_images, cache_root, decode

        folder = scan(self.path)
        if folder.state != self.state:
            raise UserError(f"the images in {self.path} have changed since this run was planned: plan a new one")
        cache = cache_root(root, outside=self.path)
        found = decode(folder.files, size, label=folder.name, which=str(self.path), cache=cache)
        if found.bad and not self.skip_bad:
            raise bad_images([(folder.files[number], reason) for number, reason in found.bad.items()])
        for number, reason in found.bad.items():
            log.warning("left out %s: %s", folder.files[number], reason)
        return as_environments(folder, found.images, found.bad)


def image_folder(path: Path | str, *, skip_bad: bool = False, state: str | None = None) -> Dataset:
    """The images of DIR/<domain>/<class>/ as a dataset; those that cannot be decoded are left out if `skip_bad`.

    Its own network is a small one that trains from scratch at 64 pixels; see `for_network` for larger ones.
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
    """Whether a file or folder of this name is none of the user's making (macOS leaves ._x.png beside x.png)."""
    return name.startswith((".", "__MACOSX"))


def find_dataset(name: str, *, skip_bad: bool = False) -> Dataset:
    """A registered dataset by its name, or a folder of images or of saved data by its path (or its dataset's name).

    Only of a folder of images those that cannot be decoded are left out if `skip_bad`; others have none.
    """
    named = FOLDER.fullmatch(name)
    path = Path(named["path"] if named else name).expanduser()
    registered = name in DATASETS
    if skip_bad and (registered or is_saved(path)):
        raise UserError("--skip-bad goes with a folder of images: other data is whole, or fetched again")
    if registered:
        return DATASETS[name]
    if is_saved(path):
        return saved_dataset(path, named and named["state"])
    if named:
        return image_folder(path, skip_bad=skip_bad or bool(named["skipping"]), state=named["state"])
    if os.sep in name or path.is_dir():
        return image_folder(path, skip_bad=skip_bad)
    try:
        return DATASETS[name]
    except UserError as error:
        raise UserError(f"{error}; there is no folder of that name either") from None


def as_environments(folder: Folder, images: torch.Tensor, bad: Collection[int] = ()) -> Environments:
    """The pictures that are not bad, with labels by class."""
    import torch

    from domainwise.data.environments import Environments

    kept = [picture for number, picture in enumerate(folder.pictures) if number not in bad]
    number = {label: i for i, label in enumerate(folder.classes)}
    sizes = Counter(picture.domain for picture in kept)
    return Environments.from_images(
        images,
        torch.tensor([number[picture.label] for picture in kept]),
        {domain: sizes[domain] for domain in folder.domains},
        name=folder.name,
        classes=folder.classes,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def _folders(parent: Path, root: Path, ignored: list[str]) -> list[Path]:
    """The folders in a folder; all else is ignored."""
    return _sorted_out(parent, root, ignored, lambda entry: entry.is_dir())


def _images(parent: Path, root: Path, ignored: list[str]) -> list[Path]:
    """The image files in a folder; all else is ignored."""
    return _sorted_out(parent, root, ignored, lambda entry: entry.name.lower().endswith(SUFFIXES) and entry.is_file())


def _sorted_out(parent: Path, root: Path, ignored: list[str], wanted: Callable[[os.DirEntry[str]], bool]) -> list[Path]:
    try:
        entries = sorted(os.scandir(parent), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot look into {parent}: {error.strerror}") from None
    kept = []
    for entry in entries:
        readable = entry.name.encode(errors="replace").decode()  # a name that is no UTF-8 could not be printed
        if wanted(entry) and not hidden(entry.name) and readable == entry.name:
            kept.append(parent / entry.name)
        else:
            ignored.append(str((parent / readable).relative_to(root)))
    return kept
