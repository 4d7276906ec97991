"""The columns of a table, whatever file they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domainwise.core.errors import UserError

LARGEST_TABLE = 1 << 30
"""Bytes of a table, also of the chosen columns of a Parquet file when unpacked."""


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table by name, all of one length; row i begins on line `lines[i]`."""

    names: tuple[str, ...]
    values: dict[str, list[Any]]
    lines: range | list[int]
    unit: str = "line"
    images: tuple[str, ...] = ()
    """Columns of images themselves; their values are addresses."""


def check_names(path: Path, names: tuple[str, ...]) -> None:
    if not any(names):
        raise UserError(f"{path} is empty: its first line names the columns, path,label,domain")
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"{path} has two columns {twice[0][:60]!r}: rename one")
