"""Environments saved as a folder, for other processes and later sessions.

DIR/images.npy           uint8 [N, C, H, W] or float vectors [N, D], memory-mapped when loaded
DIR/labels.npy           int64 [N]
DIR/groups.npy           int64 [N], if samples belong together
DIR/held_out.npy         bool [N], if it is given which samples are held out
DIR/weights.npy          float64 [N], if samples are drawn more often than others
DIR/environments.json    names, sizes, normalisation and the fingerprint; written last
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.parsing import Count, parse, read_file
from domainwise.data.catalogue import Dataset

if TYPE_CHECKING:
    from domainwise.data.environments import Environments

ADVICE = "save it again"
FORMAT = 1
DESCRIPTION, IMAGES, LABELS = "environments.json", "images.npy", "labels.npy"
FURTHER = {"groups": "groups.npy", "held_out": "held_out.npy", "weights": "weights.npy"}
"""Fields that only some data have, and their files."""


def fingerprint(data: Environments) -> str:
    """Sixteen hexadecimal digits that identify the data."""
    content = hashlib.sha256(repr((tuple(data.sizes.items()), data.classes, data.shape)).encode())
    further = [part for name in FURTHER if (part := getattr(data, name)) is not None]
    for part in (data.images, data.labels, data.mean, data.std, *further):
        content.update(part.cpu().contiguous().numpy().data)
    if data.window is not None:
        content.update(repr(data.window).encode())
    if data.whole:
        content.update(repr(data.whole).encode())
    if data.given_test:
        content.update(repr(dict(data.given_test)).encode())
    return content.hexdigest()[:16]


def with_fingerprint(data: Environments) -> Environments:
    """The data with its fingerprint in its name: a training on other data of the same name is another training."""
    return replace(data, name=f"{data.name}-{fingerprint(data)[:8]}")


def save_environments(data: Environments, folder: Path) -> Path:
    """Writes the data to a folder, whose path then names a dataset."""
    files.writable_folder(folder)
    further = {name: part for name in FURTHER if (part := getattr(data, name)) is not None}
    for name, part in ((IMAGES, data.images), (LABELS, data.labels), *((FURTHER[n], p) for n, p in further.items())):
        with files.atomic(folder / name) as file:
            np.save(file, part.cpu().numpy(), allow_pickle=False)
    description = {
        "format": FORMAT,
        "name": data.name,
        "sizes": data.sizes,
        "classes": data.classes,
        "mean": data.mean.tolist(),
        "std": data.std.tolist(),
        "state": fingerprint(data),
    }
    if further:  # earlier versions, which would divide groups or ignore weights, refuse such data
        description["further"] = list(further)
    if data.whole:
        description["whole"] = list(data.whole)
    if data.given_test:
        description["given_test"] = dict(data.given_test)
    if data.window is not None:
        description["window"] = list(data.window)
    with files.atomic(folder / DESCRIPTION) as file:
        file.write(json.dumps(description, indent=1).encode())
    return folder


def is_saved(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file()


def load_environments(folder: Path, state: str | None = None) -> Environments:
    """The data of a folder, memory-mapped, so that processes share them; `state` is the expected fingerprint."""
    import torch

    from domainwise.data.environments import Environments

    described = _describe(folder)
    try:
        images, labels = (
            torch.from_numpy(np.load(folder / name, mmap_mode="c", allow_pickle=False)) for name in (IMAGES, LABELS)
        )
        dtype = images.dtype if images.ndim == 2 else torch.float32
        mean, std = (torch.tensor(values, dtype=dtype) for values in (described.mean, described.std))
        sizes = dict(described.sizes)
        further = {
            name: torch.from_numpy(np.load(folder / FURTHER[name], allow_pickle=False)) for name in described.further
        }
        data = Environments(
            described.name,
            images,
            labels,
            sizes,
            described.classes,
            mean,
            std,
            window=described.window,
            whole=described.whole,
            given_test=described.given_test,
            groups=further.get("groups"),
            held_out=further.get("held_out"),
            weights=further.get("weights"),
        )
        lengths = {len(part) for part in (images, labels, *further.values())}
        if lengths != {sum(sizes.values())}:
            raise ValueError("its parts differ in length")
    except (
        OSError,
        EOFError,
        KeyError,
        ValueError,
        TypeError,
        OverflowError,
        MemoryError,
        SyntaxError,
        TokenError,
    ) as error:
        raise UserError(f"{folder} holds no whole data ({error}): {ADVICE}") from None
    if state is not None and state != described.state:
        raise UserError(f"the data in {folder} has changed since this run was planned: plan a new one")
    further_files = [FURTHER[name] for name in described.further]
    parts = [(folder / name).stat() for name in (DESCRIPTION, IMAGES, LABELS, *further_files)]
    known = (folder, *((part.st_size, part.st_mtime_ns) for part in parts))
    if known not in _checked:
        if fingerprint(data) != described.state:
            raise UserError(f"{folder} is damaged (its fingerprint does not fit): {ADVICE}")
        _checked.add(known)
    return data


_checked: set[tuple[Any, ...]] = set()
"""Folders whose data were found whole, with the sizes and times of their files."""


@dataclass(frozen=True)
class _Description:
    """The content of environments.json."""

    format: int
    name: str
    sizes: dict[str, Count]
    classes: tuple[str, ...]
    mean: list[Any]  # nested as the tensor is
    std: list[Any]
    state: str
    further: tuple[str, ...] = ()
    window: tuple[int, int] | None = None
    whole: tuple[str, ...] = ()
    given_test: dict[str, str] = field(default_factory=dict)


def _describe(folder: Path) -> _Description:
    path = folder / DESCRIPTION
    try:
        described = parse(read_file(path, ADVICE), _Description, path, ADVICE)
    except FileNotFoundError:
        raise UserError(f"{folder} holds no whole data (no {DESCRIPTION}): {ADVICE}") from None
    if described.format != FORMAT:
        raise UserError(f"{path} is of format {described.format}, this version reads {FORMAT}")
    return described


def saved_dataset(folder: Path, state: str | None = None) -> Dataset:
    """A folder of saved data as a dataset, named by its path and fingerprint."""
    folder = files.resolved(folder)
    data = load_environments(folder, state)
    state = state or _describe(folder).state
    return replace(
        Dataset.from_environments(data, summary=f"Data saved in {folder}."),
        name=f"{folder}#{state}",
        loader=lambda _: load_environments(folder, state),
    )
