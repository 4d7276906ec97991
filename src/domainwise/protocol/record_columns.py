"""The records of a run as columns: checked as a whole, for folders of thousands of runs."""

import json
import math
from collections.abc import Sequence
from dataclasses import MISSING, fields
from operator import itemgetter
from typing import Any

from domainwise.core.parsing import LARGEST_NUMBER, check
from domainwise.protocol.records import Record, Status
from domainwise.protocol.runs import Run


def read_columns(lines: bytes, run: Run) -> tuple[dict[str, Sequence[Any]], Status | None]:
    """The whole records of a run as columns, checked column by column: many times faster than row by row.

    Raises ValueError, TypeError or KeyError for anything unlike what we write; `RunFolder.read` says what is wrong.
    """
    rows = json.loads(b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]")
    if lines.count(b'": ') != sum(map(len, rows)):
        raise ValueError("repeated names, or another spelling than ours")
    status = check(rows.pop(), Status, "", "") if rows and "status" in rows[-1] else None
    if not rows:
        return {name: [] for name in RECORD_FIELDS}, status
    names = tuple(rows[0])
    if set(map(len, rows)) != {len(names)} or not REQUIRED <= set(names) <= RECORD_FIELDS:
        raise ValueError("missing or unknown fields")
    columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
    for name, values in columns.items():
        if not set(map(type, values)) <= KINDS.get(name, {int, float}):
            raise ValueError(f"{name} of another type")
        if name in ("run", "domain", "split"):
            check(list(set(values)), list[str], "", "")
        elif not all(map(math.isfinite, values)) or (name != "loss" and min(values) < 0):
            raise ValueError(f"{name} out of range")
    if max(columns["accuracy"]) > 1 or max(columns["step"]) > LARGEST_NUMBER:
        raise ValueError("an accuracy is from 0 to 1")
    if {*columns["run"], *([status.run] if status else [])} - {run.id}:
        raise ValueError("rows of another run")
    return columns, status


RECORD_FIELDS = {one.name for one in fields(Record)}
REQUIRED = {one.name for one in fields(Record) if one.default is MISSING}
KINDS: dict[str, set[type]] = {"run": {str}, "domain": {str}, "split": {str}, "step": {int}}
"""The types of a column; others hold numbers."""
