"""Comma-separated files that spreadsheets open safely.

A spreadsheet reads a cell that begins with =, +, -, @, a tab or a carriage return as a formula, even in a file of names
that somebody else has chosen. Such text is written with an apostrophe before it; numbers are not changed.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def cell(value: Any) -> Any:
    """A value as a cell: text that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) and not _is_number(value) else value


def comma_separated_rows(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Headings and rows as CSV; None is an empty cell."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for row in (headings, *rows):
        writer.writerow([cell(value) for value in row])
    return out.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
