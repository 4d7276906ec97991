"""Predict many image files in order, with only a few batches in memory."""

import glob
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.images.decode import SUFFIXES
from domainwise.data.images.read import MODES, read_image
from domainwise.data.images.remote import Location
from domainwise.data.sources.left_out import hidden
from domainwise.data.sources.manifest import paths_of
from domainwise.data.sources.table_files import is_table
from domainwise.models.model import Model
from domainwise.protocol.reading import PLAIN, Reading


@dataclass(frozen=True)
class FileBatch:
    """The files that were read, their images, and an error line for each file that could not be read."""

    files: tuple[Location, ...]
    images: Tensor  # uint8 [N, C, H, W]
    unreadable: tuple[str, ...]


def find_images(names: Sequence[str], reading: Reading = PLAIN) -> list[Location]:
    """Files by name, the images of folders at any depth and of tables, and the matches of shell patterns.

    Hidden files and folders within a folder are ignored, as in training. A name that is neither a folder nor a pattern
    is returned as a file, even if it does not exist.
    """
    files: list[Location] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            images: list[Location] = [file for file in sorted(path.rglob("*")) if _is_visible_image(file, path)]
            images = images or paths_of(path, reading)
            if not images:
                raise UserError(f"no images in {path} (names ending in {', '.join(SUFFIXES[:5])}, ...)")
            files += images
        elif not path.exists() and glob.has_magic(name):
            matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 (a pattern may be absolute)
            if not matches:
                raise UserError(f"no file matches {name!r}")
            files += find_images(matches, reading)
        elif is_table(path):
            files += paths_of(path, reading)
        else:
            files.append(path)
    return files


def _is_visible_image(file: Path, folder: Path) -> bool:
    """Whether a path within a folder is an image, and neither hidden nor in a hidden folder."""
    is_image = file.suffix.lower() in SUFFIXES
    return is_image and not any(map(hidden, file.relative_to(folder).parts)) and file.is_file()


def read_batches(files: Sequence[Location], model: Model) -> Iterator[FileBatch]:
    """The files in batches, decoded by several threads while the model computes the previous batch."""
    if model.preprocessing.vectors:
        raise UserError(
            f"this model reads rows of {model.preprocessing.shape[0]} numbers, not images: use it from Python"
        )
    if model.preprocessing.shape[0] not in MODES:
        raise UserError(
            f"this model reads images of {model.preprocessing.shape[0]} channels, which no file has: use Python"
        )

    def read(file: Location) -> Tensor | str:
        try:
            return read_image(file, model.preprocessing.shape, model.preprocessing.window)
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        rest = iter(files)
        pending = [(file, pool.submit(read, file)) for file in islice(rest, 2 * model.batch_size)]
        while pending:
            batch, pending = pending[: model.batch_size], pending[model.batch_size :]
            pending += [(file, pool.submit(read, file)) for file in islice(rest, model.batch_size)]
            results = [(file, future.result()) for file, future in batch]
            images = [image for _, image in results if isinstance(image, Tensor)]
            yield FileBatch(
                tuple(file for file, image in results if isinstance(image, Tensor)),
                torch.stack(images) if images else torch.zeros(0, *model.preprocessing.shape, dtype=torch.uint8),
                tuple(reason for _, reason in results if isinstance(reason, str)),
            )


def predictions(
    model: Model, batch: FileBatch, domain: str | None = None
) -> Iterator[tuple[Location, tuple[float, ...]]]:
    """Each file of the batch that was read, and the probabilities of all classes."""
    for file, row in zip(batch.files, model.probabilities(batch.images, domain).tolist(), strict=True):
        yield file, tuple(row)
