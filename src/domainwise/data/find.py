"""Data by name or path: a registered dataset, a folder of images, or a folder of saved Environments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.sources.folder import image_folder
from domainwise.data.sources.saved import is_saved, saved_dataset
from domainwise.protocol.dataset_names import FOLDER

if TYPE_CHECKING:
    from domainwise.data.environments import Environments


def load_dataset(name: str | Path, data_root: Path | None = None, image_size: int | None = None) -> Environments:
    """Loads a dataset by its name, or a folder DIR/<domain>/<class>/*.jpg (or of saved Environments) by its path.

    `data_root` is the folder of the datasets (default: $DOMAINWISE_DATA); `image_size` is height and width in pixels
    (default: the dataset's).
    """
    return find_dataset(str(name)).load(data_root, image_size)


def find_dataset(name: str, *, skip_bad: bool = False) -> Dataset:
    """The dataset of this name or path, not loaded yet. The name of a folder's dataset (PATH#STATE) works, too.

    `skip_bad` leaves out the images of a folder that cannot be decoded.
    """
    named = FOLDER.fullmatch(name)
    path = files.expanded(named["path"] if named else name)
    registered = name in DATASETS
    if skip_bad and (registered or is_saved(path)):
        raise UserError("only images of a folder can be left out: other data are complete", argument="skip_bad")
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
        raise UserError(f"{error}; there is no folder of that name either", argument=error.argument) from None
