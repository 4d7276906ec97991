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
PLACE = ("run", "step", "domain", "split")
"""The first fields of every record; all others are numbers."""


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
    except (ValueError, TypeError, IndexError):
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
    start = f'{{"run": "{run}", "step": '
    if not lines.startswith(start) or not lines.endswith("}\n"):
        return None
    names = _numbers(lines[: lines.index("\n")])
    rows = lines[len(start) : -2].split(f"}}\n{start}")
    heads, _, values = zip(*(row.partition(f', "{names[0]}": ') for row in rows), strict=True)
    steps, parts = _evaluations("\n".join(heads))
    words = ", ".join(values).split(", ")
    width, count = len(names), len(parts)
    if len(words) != len(rows) * width:
        return None

    def column(name: str, start: int = 0, every: int = 1) -> list[float]:
        """The values of every so many rows; a ValueError if one is called differently or is no number."""
        at = names.index(name)
        texts = words[start * width + at :: every * width]
        return list(map(float, (text.removeprefix(f'"{name}": ') for text in texts) if at else texts))

    columns = {name: np.array(column(name)).reshape(len(steps), count) for name in wanted if name in names}
    fractions = [column for name, column in columns.items() if name not in ("loss", "seconds")]
    if not all(((column >= 0) & (column <= 1)).all() for column in fractions):
        return None
    losses = tuple(column("training_loss", every=count)) if "training_loss" in names else None
    return Columns(steps, parts, columns, column("seconds", start=len(rows) - 1)[0], losses)


def _numbers(line: str) -> tuple[str, ...]:
    """The names of the numbers of a record; a ValueError if the line is none, or of averaged weights."""
    row = json.loads(line, object_pairs_hook=tuple)
    names = tuple(name for name, _ in row)
    if names[: len(PLACE)] != PLACE or not set(names) <= set(NAMES) or len(set(names)) < len(names):
        raise ValueError("not a record of the last weights")
    return names[len(PLACE) :]


@lru_cache(maxsize=128)  # the runs of a sweep share them
def _evaluations(heads: str) -> tuple[tuple[int, ...], tuple[tuple[str, str], ...]]:
    """(steps, domains and splits) of rows, from the part of each that says them, a line each.

    A ValueError unless the steps increase, and every step has the same domains and splits in the same order.
    """
    objects = heads.replace("\n", '}, {"step": ')
    rows = json.loads(f'[{{"step": {objects}}}]', object_pairs_hook=tuple)
    steps = tuple(dict.fromkeys(step for (_, step), *_ in rows))
    parts = tuple(dict.fromkeys((domain, split) for _, (_, domain), (_, split) in rows))
    regular = [(("step", step), ("domain", domain), ("split", split)) for step in steps for domain, split in parts]
    whole = all(type(step) is int and step >= 0 for step in steps)
    texts = all(isinstance(text, str) for part in parts for text in part)
    if rows != regular or not whole or not texts or list(steps) != sorted(steps):
        raise ValueError("not the evaluations of a training")
    return steps, parts
