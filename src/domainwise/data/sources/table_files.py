"""Tables as files: CSV, TSV, JSON lines and Parquet become columns of values; a damaged table is a UserError."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.parsing import parse_any

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
LARGEST_TABLE = 1 << 30
"""Bytes of a table, also of the chosen columns of a Parquet file when unpacked."""
MOST_ROWS = 20_000_000
ADVICE = "mend the table"
COMPRESSED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table by name, all of one length; row i begins on line `lines[i]`."""

    names: tuple[str, ...]
    values: dict[str, list[Any]]
    lines: range | list[int]
    unit: str = "line"


def is_table(path: Path) -> bool:
    """Whether a path names a table, not a folder of images."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def read_table(path: Path, wanted: Collection[str]) -> TableColumns:
    """The wanted columns that the table has, and the names of all."""
    suffix = path.suffix.lower()
    try:
        data = files.read(path, limit=LARGEST_TABLE, advice="divide the table")
    except FileNotFoundError:
        raise UserError(f"there is no table {path}: check its path") from None
    for start, kind in COMPRESSED.items():
        if data.startswith(start):
            raise UserError(f"{path} is compressed ({kind}): unpack it first")
    if suffix == ".parquet":
        return _parquet(path, data, wanted)
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


def _separated(path: Path, text: str, suffix: str, wanted: Collection[str]) -> TableColumns:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if suffix == ".tsv" else ",", strict=True)
    try:
        names = tuple(name.strip() for name in next(reader, []))
        _check_names(path, names)
        values: dict[str, list[Any]] = {name: [] for name in names if name in wanted}
        kept = [(number, values[name]) for number, name in enumerate(names) if name in values]
        lines: list[int] = []
        start = reader.line_num + 1
        for row in reader:
            if row:
                if len(row) != len(names):
                    found = f"{len(row)} values for {len(names)} columns"
                    raise UserError(f"{path}, line {start}: {found}: put values with commas or tabs in quotes")
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


def _parquet(path: Path, data: bytes, wanted: Collection[str]) -> TableColumns:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: Parquet needs the package pyarrow: pip install 'domainwise[tables]', or save the table as CSV"
        ) from None
    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data))
        names = tuple(file.schema_arrow.names)
        _check_names(path, names)
        if not file.metadata.num_rows:
            raise UserError(f"{path} has no rows: a table has one row for each image")
        chosen = [name for name in names if name in wanted]
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        parts = (group.column(number) for group in groups for number in range(group.num_columns))
        size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema.split(".")[0] in chosen)
        if size > LARGEST_TABLE or file.metadata.num_rows > MOST_ROWS:
            raise UserError(f"{path}: {file.metadata.num_rows:,} rows, {size >> 20:,} MiB unpacked: divide the table")
        table = file.read(columns=chosen)
        values = {name: table.column(name).to_pylist() for name in chosen}
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{path} is no whole Parquet file ({reason}): write it again") from None
    return TableColumns(names, values, range(1, table.num_rows + 1), "row")


def _check_names(path: Path, names: tuple[str, ...]) -> None:
    if not any(names):
        raise UserError(f"{path} is empty: its first line names the columns, path,label,domain")
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"{path} has two columns {twice[0][:60]!r}: rename one")
