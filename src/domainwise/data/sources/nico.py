"""NICO's mixed split: four lists of images, in which contexts correlate differently with animals and vehicles."""

import csv
from pathlib import Path, PureWindowsPath

from domainwise.core.errors import UserError
from domainwise.data.sources.image_files import LabelledFiles

CLASSES = ("animal", "vehicle")
LISTS = {"train1": "env_train1.csv", "train2": "env_train2.csv", "validation": "env_val.csv", "test": "env_test.csv"}
SUPERCLASS_FOLDERS = tuple(f"{name}/images" for name in CLASSES)


def read_list(file: Path, folders: list[Path]) -> LabelledFiles:
    r"""A domain: rows `category\context\file,category,context,superclass`; `folders` are those of the superclasses."""
    listed: LabelledFiles = []
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for path, _, _, superclass in csv.reader(lines):
                label = CLASSES.index(superclass)
                image = PureWindowsPath(path)
                if image.is_absolute() or ".." in image.parts:
                    raise ValueError(f"{path!r} leads elsewhere")
                listed.append((folders[label].joinpath(*image.parts), label))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(
            f"{file} is not a split list of rows category\\context\\file,category,context,superclass ({error}): "
            "fetch it again"
        ) from None
    if missing := [image for image, _ in listed if not image.is_file()]:
        raise UserError(
            f"NICO: {len(missing):,} of the {len(listed):,} images that {file} lists are missing, e.g. {missing[0]}: "
            "fetch the images again, and unpack them so that this file exists"
        )
    return listed
