"""Parquet and Arrow files as tables, read by pyarrow; a damaged one is a UserError.

They may hold images, as bytes or as Hugging Face's {bytes, path}. Those are not read here: their addresses are. Numbers
of classes become the names that Hugging Face's features give them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from domainwise.core.errors import UserError, one_line
from domainwise.data.images.decode import Packed
from domainwise.data.sources.table_columns import LARGEST_TABLE, TableColumns, check_names

MOST_ROWS = 20_000_000


def arrow_table(path: Path, wanted: Collection[str]) -> TableColumns:
    """The wanted columns of a .parquet or .arrow file, and all of its columns of images."""
    with _readable(path):
        if path.suffix.lower() == ".arrow":
            schema, groups, columns = _arrow(path, wanted)
        else:
            schema, groups, columns = _parquet(path, wanted)
    images = _image_columns(schema)
    rows = [(group, row) for group, count in enumerate(groups) for row in range(count)]
    addresses = {name: [str(Packed(str(path), group, row, name)) for group, row in rows] for name in images}
    return TableColumns(tuple(schema.names), columns | addresses, range(1, len(rows) + 1), "row", images)


def has_images(path: Path) -> bool:
    """Whether a Parquet file holds images; not if it is damaged."""
    with _readable(path):
        from pyarrow import ArrowException
        from pyarrow.parquet import read_schema

        try:
            return bool(_image_columns(read_schema(path)))
        except (ArrowException, OSError):
            return False


def _parquet(path: Path, wanted: Collection[str]) -> tuple[Any, list[int], dict[str, list[Any]]]:
    """Schema, lengths of the row groups, and columns."""
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    chosen = _chosen(path, file.schema_arrow, file.metadata.num_rows, wanted)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    parts = (group.column(number) for group in groups for number in range(group.num_columns))
    size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema.split(".")[0] in chosen)
    if size > LARGEST_TABLE or file.metadata.num_rows > MOST_ROWS:
        raise UserError(f"{path}: {file.metadata.num_rows:,} rows, {size >> 20:,} MiB unpacked: divide the table")
    columns = _named(file.read(columns=chosen), file.schema_arrow)
    return file.schema_arrow, [group.num_rows for group in groups], columns


def _arrow(path: Path, wanted: Collection[str]) -> tuple[Any, list[int], dict[str, list[Any]]]:
    """The same of an Arrow file, which is mapped into memory."""
    from pyarrow import ipc, memory_map

    table = ipc.open_stream(memory_map(str(path))).read_all()
    chosen = _chosen(path, table.schema, table.num_rows, wanted)
    return table.schema, [table.num_rows], _named(table.select(chosen), table.schema)


def _chosen(path: Path, schema: Any, rows: int, wanted: Collection[str]) -> list[str]:
    """The wanted columns that hold no images."""
    check_names(path, tuple(schema.names))
    if not rows:
        raise UserError(f"{path} has no rows: a table has one row for each image")
    images = _image_columns(schema)
    return [name for name in schema.names if name in wanted and name not in images]


def _image_columns(schema: Any) -> tuple[str, ...]:
    """Those of bytes, or of {bytes, path}."""
    from pyarrow import types

    def binary(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    def holds_images(kind: Any) -> bool:
        inside = [kind.field(i) for i in range(kind.num_fields)] if types.is_struct(kind) else []
        return binary(kind) or any(field.name == "bytes" and binary(field.type) for field in inside)

    return tuple(field.name for field in schema if holds_images(field.type))


def _named(table: Any, schema: Any) -> dict[str, list[Any]]:
    """The values of all columns; numbers of classes by their names."""
    values = {name: table.column(name).to_pylist() for name in table.schema.names}
    for name, feature in _features(schema).items():
        classes = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        if name in values and isinstance(classes, list):
            known = dict(enumerate(classes))
            values[name] = [known.get(value, value) for value in values[name]]
    return values


def _features(schema: Any) -> dict[str, Any]:
    """What Hugging Face's `datasets` says of the columns of a file that it wrote; nothing of another."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Within it, a missing pyarrow and a damaged file are UserErrors."""
    kind = path.suffix.removeprefix(".").title()
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: {kind} needs the package pyarrow: pip install 'domainwise[tables]', or save the table as CSV"
        ) from None
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = one_line(error)
        raise UserError(f"{path} is no whole {kind} file ({reason}): write it again") from None
