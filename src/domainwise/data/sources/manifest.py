"""A table of image files as a dataset: columns path, label, domain and optionally group, split, time and weight.

The rows become the same list of images that a folder does (`sources.folder`).
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.core.spreadsheet import cell
from domainwise.data.images.remote import Location, is_url, shown, states
from domainwise.data.sources.bursts import timestamp
from domainwise.data.sources.folder import TEST, Folder, ImageFile, scan
from domainwise.data.sources.hub_folders import SPLITS, hub_table, packed_table, path_column, wanted
from domainwise.data.sources.left_out import LeftOut, printable
from domainwise.data.sources.table_columns import TableColumns
from domainwise.data.sources.table_files import read_table
from domainwise.protocol.reading import NEEDED, OPTIONAL, Reading

MEANING = {
    "group": "images that stay together",
    "split": "given splits",
    "time": "when images were taken",
    "weight": "how often images are drawn",
}
LONGEST_NAME, LONGEST_PATH = 200, 4000
LARGEST_WEIGHT = 1e9


def scan_table(path: Path, reading: Reading) -> Folder:
    """The images that a table lists, sorted by domain; rows of the split `test` are domains of their own, the last."""
    return scan_rows(path, read_table(path, wanted(reading)), reading)


def scan_rows(path: Path, columns: TableColumns, reading: Reading) -> Folder:
    """The same of a table that is read, of a file or of a folder."""
    chosen = _chosen(path, columns, reading)
    root = reading.root or str(path if path.is_dir() else path.parent)
    rows = [_image(path, columns, chosen, number, root) for number in range(len(columns.lines))]
    _refuse_repeated(path, rows, columns)
    kinds = Counter(image.split for image in rows)
    also = [f"column {chosen[role]} as {role} ({MEANING[role]})" for role in OPTIONAL if role in chosen]
    notes = [f"also read: {', '.join(also)}"] if also else []
    if kinds.keys() <= {"test", "val"}:
        raise UserError(f"{path}: no row's split is train: nothing to train on")
    if "split" in chosen and not kinds["val"]:
        notes.append("no row's split is val: a part of the training rows of every domain is drawn for validation")
    images = sorted(rows, key=lambda image: (image.split == "test", image.domain))
    elsewhere = states([str(image.file) for image in rows if is_url(image.file)])
    absent = tuple(
        image for image in images if not (image.file in elsewhere if is_url(image.file) else Path(image.file).is_file())
    )
    content = repr(rows).encode() if path.is_dir() or columns.images else files.read(path)
    return Folder(path, tuple(images), LeftOut(), reading, absent, hashlib.sha256(content).hexdigest(), tuple(notes))


def paths_of(path: Path, reading: Reading) -> list[Location]:
    """The images of a table, or of a folder that is one, for prediction: no other column is needed."""
    table = hub_table(path, reading) or packed_table(path, reading) if path.is_dir() else (path, None)
    if table is None:
        return []
    path, columns = table[0], table[1] or read_table(path, wanted(reading))
    column = path_column(columns, reading)
    if column not in columns.names:
        raise _missing(path, "path", column, columns)
    root = reading.root or str(path if path.is_dir() else path.parent)
    lines = [f"{columns.unit} {line}" for line in columns.lines]
    return [
        _location(path, line, _text(value, f"{path}, {line}", column, "path"), root)
        for line, value in zip(lines, columns.values[column], strict=True)
    ]


def table_of_folder(folder: Path, out: Path) -> int:
    """Writes a table of the images at DIR/<domain>/<class>/, and returns the number of rows.

    Paths are relative to the table if the images lie below its folder, else absolute. A name that would not be read
    again as it is, or that a spreadsheet would take for a formula, is a UserError.
    """
    scanned = scan(files.resolved(folder))
    base = files.resolved(out).parent
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(NEEDED)
    for image in scanned.images:
        inside = Path(image.file).is_relative_to(base)
        place = os.path.relpath(image.file, base) if inside else str(image.file)
        row = {"path": place, "label": image.label, "domain": image.domain}
        writer.writerow([_kept(value, printable(str(image.file)), role) for role, value in row.items()])
    files.write(files.writable_file(out), text.getvalue())
    return len(scanned.images)


def _kept(name: str, where: str, role: str) -> str:
    """A name that a table can hold."""
    if _text(name, where, role, role) != name:
        raise UserError(f"{where}: the {role} {name!a} begins or ends with white space: rename the file or folder")
    if cell(name) != name:
        raise UserError(
            f"{where}: a spreadsheet takes the {role} {name[:40]!a} for a formula: rename the file or folder"
        )
    return name


def _chosen(path: Path, columns: TableColumns, reading: Reading) -> dict[str, str]:
    """{role: column} of the columns that are read."""
    unread = () if reading.bursts else ("time",)
    result = {role: reading.column(role) for role in (*NEEDED, *OPTIONAL)}
    result["path"] = path_column(columns, reading)
    named = dict(reading.columns)
    for role, column in list(result.items()):
        if column not in columns.names:
            if column and (role in NEEDED or role in named):
                raise _missing(path, role, column, columns)
            del result[role]
    for role in unread:
        result.pop(role, None)
    if "split" in result and "split" not in named and result["split"] in named.values():
        del result["split"]  # its column is another's: domain=split
    return result


def _missing(path: Path, role: str, column: str, columns: TableColumns) -> UserError:
    header = ", ".join(name[:40] for name in columns.names[:12])
    hint = " (is it separated by semicolons? save it with commas)" if ";" in header and len(columns.names) == 1 else ""
    return UserError(
        f"{path} has no column {column[:60]!r} for the {role}; its columns are {header}{hint}: name the right one",
        argument="columns",
    )


def _image(path: Path, columns: TableColumns, chosen: dict[str, str], number: int, root: str) -> ImageFile:
    line = f"{columns.unit} {columns.lines[number]}"
    where = f"{path}, {line}"
    value = {role: columns.values[column][number] for role, column in chosen.items()}
    texts = {role: _text(value[role], where, chosen[role], role) for role in value}
    split = "train"
    if "split" in texts:
        if texts["split"].lower() not in SPLITS:
            raise UserError(f"{where}: unknown split {texts['split'][:40]!r}: write train, val or test")
        split = SPLITS[texts["split"].lower()]
    domain = texts["domain"] + TEST if split == "test" else texts["domain"]
    return ImageFile(
        domain,
        texts["label"],
        _location(path, line, texts["path"], root),
        texts.get("group", ""),
        split,
        timestamp(texts["time"], where) if texts.get("time") else None,
        _weight(texts["weight"], where, chosen["weight"]) if "weight" in texts else None,
    )


def _text(value: Any, where: str, column: str, role: str) -> str:
    """A name: text or a number, not empty, of bounded length."""
    if isinstance(value, (list, dict, bytes)):
        raise UserError(f"{where}: {column} is {type(value).__name__}, not one name: several labels are not supported")
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    text = "" if missing else str(value).strip()
    if not text and role not in ("group", "time"):
        raise UserError(f"{where}: {column} is empty: fill it in or remove the row")
    longest = LONGEST_PATH if role == "path" else LONGEST_NAME
    if len(text) > longest:
        raise UserError(f"{where}: {column} has {len(text):,} characters: at most {longest:,} are read")
    if any(ord(character) < 32 for character in text) or printable(text) != text:
        raise UserError(f"{where}: {column} holds characters that cannot be printed: {text[:40]!a}")
    return text


def _weight(text: str, where: str, column: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 <= weight <= LARGEST_WEIGHT:
        raise UserError(f"{where}: {column} is {text[:40]!r}: write a number from 0 to {LARGEST_WEIGHT:,.0f}")
    return weight


def _location(path: Path, line: str, text: str, root: str) -> Location:
    """The file or URL that a path means; relative ones stay below the root."""
    if is_url(text):
        return text
    if is_url(root):
        if ".." in Path(text).parts or text.startswith("/"):
            raise UserError(f"{path}, {line}: {text[:80]} leads out of {root}: give a URL")
        return f"{root.rstrip('/')}/{text}"
    if not Path(text).is_absolute() and Path(os.path.normpath(text)).parts[:1] == ("..",):
        raise UserError(f"{path}, {line}: {text[:80]} leads out of {root}: name a root above it", argument="root")
    return Path(os.path.normpath(Path(root) / text))


def _refuse_repeated(path: Path, rows: list[ImageFile], columns: TableColumns) -> None:
    first: dict[Location, int] = {}
    for number, image in enumerate(rows):
        other = first.setdefault(image.file, number)
        if other != number:
            labels = f" with labels {rows[other].label} and {image.label}" if rows[other].label != image.label else ""
            lines = f"{columns.unit}s {columns.lines[other]} and {columns.lines[number]}"
            raise UserError(f"{path}: {shown(image.file)} is in {lines}{labels}: keep one of them")


def without_absent(folder: Folder) -> Folder:
    """The folder without rows whose files are missing."""
    gone = set(folder.absent)
    note = f"left out {counted(len(gone), 'row')} whose files are missing, e.g. {shown(folder.absent[0].file)}"
    images = tuple(image for image in folder.images if image not in gone)
    if not images:
        raise UserError(
            f"{folder.path}: none of the files exists, e.g. {shown(folder.absent[0].file)}", argument="root"
        )
    return replace(folder, images=images, absent=(), further=(*folder.further, note))
