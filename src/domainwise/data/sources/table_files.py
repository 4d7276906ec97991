"""Tables as files: CSV, TSV, JSON lines and Parquet become columns of values; a damaged table is a UserError."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from pathlib import Path
from typing import Any

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.parsing import parse_any
from domainwise.data.sources.arrow_files import arrow_table
from domainwise.data.sources.table_columns import LARGEST_TABLE, TableColumns, check_names

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
ADVICE = "mend the table"
COMPRESSED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}


def is_table(path: Path) -> bool:
    """Whether a path names a table, not a folder of images."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def read_table(path: Path, wanted: Collection[str]) -> TableColumns:
    """The wanted columns that the table has, and the names of all."""
    suffix = path.suffix.lower()
    if not path.exists():
        raise UserError(f"there is no table {path}: check its path")
    binary = suffix in (".parquet", ".arrow") and path.is_file()
    data = _start(path) if binary else files.read(path, limit=LARGEST_TABLE, advice="divide the table")
    for start, kind in COMPRESSED.items():
        if data.startswith(start):
            raise UserError(f"{path} is compressed ({kind}): unpack it first")
    if binary:
        return arrow_table(path, wanted)
    if data.startswith(b"PAR1"):
        raise UserError(f"{path} is a Parquet file: rename it to {path.stem}.parquet")
    if b"\0" in data:
        raise UserError(f"{path} holds NUL bytes (is it UTF-16, or no text?): save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8: save the table as UTF-8") from None
    columns = _json_lines(path, text, wanted) if suffix == ".jsonl" else _separated(path, text, suffix, wanted)
    if not columns.lines:
        raise UserError(f"{path} has no rows: a table has one row for each image")
    return columns


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(8)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _separated(path: Path, text: str, suffix: str, wanted: Collection[str]) -> TableColumns:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if suffix == ".tsv" else ",", strict=True)
    try:
        names = tuple(name.strip() for name in next(reader, []))
        check_names(path, names)
        values: dict[str, list[Any]] = {name: [] for name in names if name in wanted}
        kept = [(number, values[name]) for number, name in enumerate(names) if name in values]
        lines: list[int] = []
        start = reader.line_num + 1
        for row in reader:
            if row:
                if len(row) != len(names):
                    lengths = f"{len(row)} values for {len(names)} columns"
                    raise UserError(f"{path}, line {start}: {lengths}: put values with commas or tabs in quotes")
                lines.append(start)
                for number, column in kept:
                    column.append(row[number])
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}: {ADVICE}") from None
    return TableColumns(names, values, lines)


def _json_lines(path: Path, text: str, wanted: Collection[str]) -> TableColumns:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            row = parse_any(line.encode(), f"{path}, line {number}", ADVICE)
            if not isinstance(row, dict):
                raise UserError(f'{path}, line {number}: no JSON object: write {{"path": ..., "label": ...}}')
            rows.append(row)
            lines.append(number)
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    return TableColumns(names, {name: [row.get(name) for row in rows] for name in names if name in wanted}, lines)
