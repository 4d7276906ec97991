"""TerraIncognita from its annotations: Caltech Camera Traps -> location_XX/<class>/, as DomainBed made it."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from domainwise.core.errors import UserError
from domainwise.core.files import temporary_beside

log = logging.getLogger("domainwise")

LOCATIONS = ("100", "38", "43", "46")
CLASSES = ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel")

FOLDER = "terra_incognita"
IMAGES = "eccv_18_all_images_sm"
ANNOTATIONS = "eccv_18_annotation_files"
CONVERTED = "converted"


def convert(root: Path) -> None:
    """Links every image of the four locations into the folder of each of the ten classes that it is annotated with.

    The annotations are the full collection's caltech_images*.json, which DomainBed used, or else those of its twenty
    locations of 2018. Images are copied where the file system has no links. The result appears when it is complete.
    """
    base = root / FOLDER
    images = base / IMAGES
    files = sorted(base.glob("caltech_*.json")) or sorted((base / ANNOTATIONS).glob("*.json"))
    if (base / CONVERTED).exists() or not images.is_dir() or not files:
        return
    wanted = sorted({entry for file in files for entry in _entries(file)})
    temporary = temporary_beside(base / CONVERTED)
    absent = 0
    try:
        for location, name, image in wanted:
            source, target = images / image, temporary / f"location_{location}" / name / image
            if not source.is_file():
                absent += 1
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:
                shutil.copyfile(source, target)
        if absent == len(wanted):
            raise UserError(f"none of the {absent:,} images that {files[0]} lists lies in {images}: fetch both again")
        temporary.replace(base / CONVERTED)
    except OSError as error:
        raise UserError(f"cannot convert {base}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if absent:
        log.warning("%s of %s annotated images are not in %s", f"{absent:,}", f"{len(wanted):,}", images)


def _entries(file: Path) -> set[tuple[str, str, str]]:
    """(location, class, file name) of every annotation of the four locations and ten classes."""
    try:
        data: dict[str, list[dict[str, Any]]] = json.loads(file.read_bytes())
        names = {category["id"]: category["name"] for category in data["categories"]}
        places = {
            image["id"]: (str(image["location"]), Path(image["file_name"]).name)
            for image in data["images"]
            if str(image["location"]) in LOCATIONS
        }
        return {
            (places[key][0], name, places[key][1])
            for annotation in data["annotations"]
            if (key := annotation["image_id"]) in places and (name := names[annotation["category_id"]]) in CLASSES
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{file} holds no Caltech Camera Traps annotations ({type(error).__name__}: {error}): fetch it again"
        ) from None
