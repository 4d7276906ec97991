"""Predictions of image files, in the order given, without holding more than a few batches in memory."""

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
from domainwise.data.sources.folder import hidden
from domainwise.models.model import Model


@dataclass(frozen=True)
class Batch:
    """Files that were read, what they showed, and those that could not be read, with the reason."""

    files: tuple[Path, ...]
    images: Tensor  # uint8 [N, C, H, W]
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class Prediction:
    """What a model takes one file for."""

    file: Path
    label: str
    probabilities: tuple[float, ...]

    @property
    def confidence(self) -> float:
        return max(self.probabilities)


def find_images(given: Sequence[str]) -> list[Path]:
    """The files meant: files as they are, of folders all images in them at any depth, patterns as a shell reads them.

    Hidden files and folders within a folder are ignored, as in training. A name that is no folder and no pattern is
    taken for a file, there or not.
    """
    found: list[Path] = []
    for name in given:
        path = Path(name)
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*")) if _is_shown(file, path)]
            if not inside:
                raise UserError(f"no images in {path} (names ending in {', '.join(SUFFIXES[:5])}, ...)")
            found += inside
        elif not path.exists() and glob.has_magic(name):
            matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 (a pattern may be absolute)
            if not matches:
                raise UserError(f"no file matches {name!r}")
            found += find_images(matches)
        else:
            found.append(path)
    return found


def _is_shown(file: Path, folder: Path) -> bool:
    """Whether a path within a folder is an image that is not hidden, nor in a folder that is."""
    ends_like_one = file.suffix.lower() in SUFFIXES
    return ends_like_one and not any(map(hidden, file.relative_to(folder).parts)) and file.is_file()


def read_batches(files: Sequence[Path], model: Model) -> Iterator[Batch]:
    """The files in batches, decoded by several threads while the model works on the batch before."""
    if model.preprocessing.vectors:
        raise UserError(
            f"this model reads rows of {model.preprocessing.shape[0]} numbers, not images: use it from Python"
        )
    if model.preprocessing.shape[0] not in MODES:
        raise UserError(
            f"this model reads images of {model.preprocessing.shape[0]} channels, which no file has: use Python"
        )

    def read(file: Path) -> Tensor | str:
        try:
            return read_image(file, model.preprocessing.shape)
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        rest = iter(files)
        ahead = [(file, pool.submit(read, file)) for file in islice(rest, 2 * model.batch_size)]
        while ahead:
            now, ahead = ahead[: model.batch_size], ahead[model.batch_size :]
            ahead += [(file, pool.submit(read, file)) for file in islice(rest, model.batch_size)]
            answers = [(file, answer.result()) for file, answer in now]
            images = [answer for _, answer in answers if isinstance(answer, Tensor)]
            yield Batch(
                tuple(file for file, answer in answers if isinstance(answer, Tensor)),
                torch.stack(images) if images else torch.zeros(0, *model.preprocessing.shape, dtype=torch.uint8),
                tuple(answer for _, answer in answers if isinstance(answer, str)),
            )


def predictions(model: Model, batch: Batch, domain: str | None = None) -> Iterator[Prediction]:
    """One per file of the batch that was read."""
    for file, row in zip(batch.files, model.probabilities(batch.images, domain).tolist(), strict=True):
        yield Prediction(file, model.classes[row.index(max(row))], tuple(row))
