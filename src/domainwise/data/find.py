"""Data by name or path: a registered dataset, a folder or table of images, or a folder of saved Environments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.sources.folder import image_folder
from domainwise.data.sources.saved import is_saved, saved_dataset
from domainwise.data.sources.table_files import is_table
from domainwise.protocol.dataset_names import FOLDER
from domainwise.protocol.reading import PLAIN, Reading

if TYPE_CHECKING:
    from domainwise.data.environments import Environments


def load_dataset(
    name: str | Path,
    data_root: Path | None = None,
    image_size: int | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    root: Path | str = "",
    window: str = "",
    bursts: str = "",
    skip_bad: bool = False,
) -> Environments:
    """Loads a dataset by its name, or a folder DIR/<domain>/<class>/*.jpg or a table of files by its path.

    `data_root` is the folder of the datasets (default: $DOMAINWISE_DATA); `image_size` is height and width in pixels
    (default: the dataset's). The others are for tables and folders, see `protocol.reading`: `columns` such as
    {"domain": "camera"}, the `root` of relative paths, the `window` "0:4095" of 16-bit images, and `bursts` "time:30s".
    `skip_bad` leaves out images that are missing or cannot be decoded.
    """
    reading = Reading.of(columns, root, window, bursts)
    return find_dataset(str(name), skip_bad=skip_bad, reading=reading).load(data_root, image_size)


def find_dataset(name: str, *, skip_bad: bool = False, reading: Reading = PLAIN) -> Dataset:
    """The dataset of this name or path, not loaded yet. The name of a folder's dataset (PATH#STATE) works, too.

    `skip_bad` leaves out the images of a folder or table that are missing or cannot be decoded.
    """
    named = FOLDER.fullmatch(name)
    path = files.expanded(named["path"] if named else name)
    registered = name in DATASETS
    if skip_bad and (registered or is_saved(path)):
        raise UserError("only images of a folder can be left out: other data are complete", argument="skip_bad")
    if reading != PLAIN and (registered or is_saved(path)):
        raise UserError(f"{name[:60]} has no columns, root, window or bursts: these are for your own images")
    if registered:
        return DATASETS[name]
    if is_saved(path):
        return saved_dataset(path, named and named["state"])
    if named:
        skipping = skip_bad or bool(named["skipping"])
        known = Reading.parse(named["reading"] or "")
        return image_folder(path, skip_bad=skipping, state=named["state"], reading=known)
    if os.sep in name or path.is_dir() or is_table(path):
        return image_folder(path, skip_bad=skip_bad, reading=reading)
    try:
        return DATASETS[name]
    except UserError as error:
        raise UserError(f"{error}; there is no folder of that name either", argument=error.argument) from None
