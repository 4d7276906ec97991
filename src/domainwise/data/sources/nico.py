"""NICO's mixed split: four lists of images, which differ in how often animals and vehicles are seen in a context."""

import csv
from pathlib import Path, PureWindowsPath

from domainwise.core.errors import UserError
from domainwise.data.sources.image_files import Listed

CLASSES = ("animal", "vehicle")
LISTS = {"train1": "env_train1.csv", "train2": "env_train2.csv", "validation": "env_val.csv", "test": "env_test.csv"}
SUPERCLASS_FOLDERS = tuple(f"{name}/images" for name in CLASSES)


def listed(file: Path, folders: list[Path]) -> Listed:
    r"""One environment: rows `category\context\file,category,context,superclass`, the file below its superclass."""
    found: Listed = []
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for path, _, _, superclass in csv.reader(lines):
                label = CLASSES.index(superclass)
                image = PureWindowsPath(path)
                if image.is_absolute() or ".." in image.parts:
                    raise ValueError(f"{path!r} leads elsewhere")
                found.append((folders[label].joinpath(*image.parts), label))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(
            f"{file} is not a split list of rows category\\context\\file,category,context,superclass ({error}): "
            "fetch it again"
        ) from None
    if missing := [image for image, _ in found if not image.is_file()]:
        raise UserError(
            f"NICO: {len(missing):,} of the {len(found):,} images that {file} lists are missing, e.g. {missing[0]}: "
            "fetch the images again, and unpack them so that this file exists"
        )
    return found
