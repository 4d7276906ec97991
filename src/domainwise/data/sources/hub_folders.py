"""Folders in Hugging Face's layouts, as tables: images inside Parquet or Arrow files, or beside a metadata file.

    DIR/data/train-00000-of-00002.parquet      as the hub stores a dataset; also DIR/*.parquet and DIR/train/*.parquet
    DIR/state.json, data-00000-of-00001.arrow  as `Dataset.save_to_disk` writes it
    DIR/dataset_dict.json, DIR/train/...       as `DatasetDict.save_to_disk` writes it
    DIR/metadata.csv (.jsonl, .parquet)        an ImageFolder: its column file_name is relative to the metadata file
    DIR/train/metadata.csv, ...                the same for every split

The package `datasets` is not needed. A split of a file becomes a column `split`, if the data have none of that name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from domainwise.core.errors import UserError
from domainwise.core.parsing import parse_any, read_file
from domainwise.data.images.remote import Location, is_url
from domainwise.data.sources.arrow_files import has_images
from domainwise.data.sources.table_columns import TableColumns
from domainwise.data.sources.table_files import read_table
from domainwise.protocol.dataset_names import METADATA
from domainwise.protocol.reading import ROLES, Reading

FILE_NAME = "file_name"
"""What image folders call the column of paths."""
DICT, INFO, STATE = "dataset_dict.json", "dataset_info.json", "state.json"
SPLITS = {
    **dict.fromkeys(("train", "training", "in"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "out", "id_val"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?")
SPLIT = "split"
ADVICE = "save the dataset again"

SplitFile = tuple[Path, str]
"""A file and its split."""


def hub_table(folder: Path, reading: Reading) -> tuple[Path, TableColumns] | None:
    """The table of a folder that `save_to_disk` or an ImageFolder's metadata describe, and what it is of; else None."""
    if parts := _saved_files(folder):
        return folder, _joined(parts, wanted(reading), relative=False)
    if parts := _metadata_files(folder, reading):
        (file, split), *others = parts
        if not others and not split:
            return file, read_table(file, wanted(reading))
        return folder, _joined(parts, wanted(reading), relative=True)
    return None


def packed_table(folder: Path, reading: Reading) -> tuple[Path, TableColumns] | None:
    """The same for a folder of Parquet files with images inside; None if there are none."""
    shards = next((files for where in ("data/*", "*", "*/*") if (files := sorted(folder.glob(f"{where}.parquet")))), [])
    parts = [(file, _split_of(file, folder)) for file in shards if has_images(file)]
    return (folder, _joined(parts, wanted(reading), relative=False)) if parts else None


def path_column(columns: TableColumns, reading: Reading) -> str:
    """The column of paths, or of images; unless it is named, also those that Hugging Face's data have."""
    column = reading.column("path")
    if column != "path" or column in columns.names:
        return column
    return FILE_NAME if FILE_NAME in columns.names else next(iter(columns.images), column)


def wanted(reading: Reading) -> tuple[str, ...]:
    """The columns that may be read."""
    return (*map(reading.column, ROLES), FILE_NAME)


def _saved_files(folder: Path) -> list[SplitFile]:
    """Those that `save_to_disk` has written."""
    if (folder / DICT).is_file():
        described = parse_any(read_file(folder / DICT, ADVICE), folder / DICT, ADVICE)
        splits = described.get("splits") if isinstance(described, dict) else None
        if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
            raise UserError(f"{folder / DICT} names no splits: {ADVICE}")
        return [(file, split) for split in splits for file in _arrow_files(folder / Path(split).name)]
    if (folder / STATE).is_file() and (folder / INFO).is_file():
        return [(file, "") for file in _arrow_files(folder)]
    return []


def _arrow_files(folder: Path) -> list[Path]:
    state = parse_any(read_file(folder / STATE, ADVICE), folder / STATE, ADVICE) if (folder / STATE).is_file() else None
    listed = state.get("_data_files") if isinstance(state, dict) else None
    if not isinstance(listed, list) or not all(isinstance(one, dict) and "filename" in one for one in listed):
        raise UserError(f"{folder / STATE} lists no files: {ADVICE}")
    return [folder / Path(str(one["filename"])).name for one in listed]


def _split_of(file: Path, folder: Path) -> str:
    shard = SHARD.fullmatch(file.stem)
    if shard:
        return shard[1]
    if file.stem.lower() in SPLITS:
        return file.stem
    return "" if file.parent in (folder, folder / "data") else file.parent.name


def _metadata_files(folder: Path, reading: Reading) -> list[SplitFile]:
    """Those that have the columns that are needed."""
    places = [(folder, ""), *((folder / name, name) for name in SPLITS)]
    metadata = [(place / name, split) for place, split in places for name in METADATA if (place / name).is_file()]
    return [(file, split) for file, split in metadata if _is_metadata(file, reading)]


def _is_metadata(file: Path, reading: Reading) -> bool:
    columns = read_table(file, ())
    needed = {reading.column("label"), reading.column("domain"), path_column(columns, reading)}
    return FILE_NAME in columns.names and needed <= set(columns.names)


def _joined(parts: Sequence[SplitFile], names_wanted: Sequence[str], *, relative: bool) -> TableColumns:
    """One table of several files with the same columns; with `relative`, paths are of their files' folders."""
    tables = [read_table(file, names_wanted) for file, _ in parts]
    names = [name for name in tables[0].names if all(name in table.names for table in tables)]
    values: dict[str, list[Any]] = {
        name: [value for table in tables for value in table.values[name]]
        for name in names
        if all(name in table.values for table in tables)
    }
    if relative:
        folders = [file.parent for (file, _), table in zip(parts, tables, strict=True) for _ in table.lines]
        values[FILE_NAME] = [_below(folder, value) for folder, value in zip(folders, values[FILE_NAME], strict=True)]
    lengths = [len(table.lines) for table in tables]
    if SPLIT not in names and any(split for _, split in parts):
        names.append(SPLIT)
        values[SPLIT] = [split for (_, split), length in zip(parts, lengths, strict=True) for _ in range(length)]
    return TableColumns(tuple(names), values, range(1, sum(lengths) + 1), "row", tables[0].images)


def _below(folder: Path, value: Any) -> Location | Any:
    return str(folder / value) if isinstance(value, str) and value and not is_url(value) else value
