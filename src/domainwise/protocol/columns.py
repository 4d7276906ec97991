"""The records of a run as columns: what the file says, parsed all at once instead of row by row."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from domainwise.protocol.metrics import FIELDS
from domainwise.protocol.records import Record

NAMES = tuple(field.name for field in fields(Record) if field.name != "average")


@dataclass(frozen=True)
class Columns:
    """Records in the order in which a training writes them: every step, and at each the same domains and splits."""

    steps: tuple[int, ...]
    parts: tuple[tuple[str, str], ...]
    """(domain, split)."""
    values: Mapping[str, npt.NDArray[np.float64]]
    """{field: [steps, parts]} of those that were wanted and are there."""
    seconds: float
    """At the last evaluation."""
    training_loss: tuple[float, ...] | None
    """One value per step; None in records of earlier versions."""


def parse_columns(lines: str, run: str, wanted: Sequence[str] = FIELDS) -> Columns | None:
    """The columns of whole lines without checksums.

    None if they are not exactly as this version writes them, or a value is no number.
    """
    try:
        return _parse(lines, run, wanted)
    except (ValueError, TypeError):
        return None


def split_averaged(lines: str, average: str) -> tuple[str, str]:
    """The lines of the last weights, and those of the averaged ones without the field that says so."""
    mark = f', "average": "{average}"'
    if not average or mark not in lines:
        return lines, ""
    last: list[str] = []
    averaged: list[str] = []
    for line in lines.split("\n")[:-1]:
        if mark in line:  # in no name of a domain: quotes are escaped there
            averaged.append(line.replace(mark, "", 1) + "\n")
        else:
            last.append(line + "\n")
    return "".join(last), "".join(averaged)


def _parse(lines: str, run: str, wanted: Sequence[str]) -> Columns | None:
    first = lines[: lines.index("\n")]
    rows, width = lines.count("\n"), first.count(", ")
    keys = json.loads(first)
    names = tuple(name for name in NAMES if name in keys)
    wanted = [name for name in wanted if name in keys]
    words = lines[:-2].split(", ")
    between_rows = f'}}\n{{"run": "{run}"'
    starts = (between_rows[2:], *(f'"{name}": ' for name in names[1:]))
    if len(words) != 1 + rows * width or len(starts) != width + 1 or not all(map(str.startswith, words, starts)):
        return None
    ends = "".join(words[width::width])
    if not lines.endswith("}\n") or ends.count(between_rows) != rows - 1:
        return None
    joined = {name: "".join(words[names.index(name) :: width]) for name in names[4:]}
    joined[names[-1]] = ends.replace(between_rows, "")
    steps, domains, splits = words[1::width], words[2::width], words[3::width]
    count = steps.count(steps[0])  # of parts, if all is regular
    times = rows // count
    parts = list(zip(domains[:count], splits[:count], strict=True))
    numbers = _steps("".join(steps[::count]), times)
    regular = (
        len(set(parts)) == count
        and domains == domains[:count] * times
        and splits == splits[:count] * times
        and all(steps[i::count] == steps[::count] for i in range(1, count))
    )
    columns = {name: np.array(list(map(float, _values(joined[name], name, rows)))) for name in wanted}
    fractions = [column for name, column in columns.items() if name not in ("loss", "seconds")]
    if not regular or not all(((column >= 0) & (column <= 1)).all() for column in fractions):
        return None
    losses = None
    if "training_loss" in joined:
        losses = tuple(map(float, _values(joined["training_loss"], "training_loss", rows)[::count]))
    return Columns(
        numbers,
        tuple((_text(domain, "domain"), _text(split, "split")) for domain, split in parts),
        {name: column.reshape(times, count) for name, column in columns.items()},
        float(joined["seconds"].rpartition(" ")[2]),
        losses,
    )


@lru_cache(maxsize=64)  # the runs of a sweep share them
def _steps(joined: str, count: int) -> tuple[int, ...]:
    numbers = tuple(map(int, _values(joined, "step", count)))
    if numbers != tuple(sorted(set(numbers))):
        raise ValueError("steps that do not increase")
    return numbers


@lru_cache(maxsize=1024)
def _text(word: str, name: str) -> str:
    (value,) = _values(word, name, 1)
    text: str = json.loads(value)
    return text


def _values(joined: str, name: str, rows: int) -> list[str]:
    """The values of a field, from its words one after the other."""
    before, *values = joined.split(f'"{name}": ')
    if before or len(values) != rows:
        raise ValueError(f"not a column of {name}")
    return values
