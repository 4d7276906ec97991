"""Published records: those of a sweep in one compressed file, small enough to keep beside the source.

The file holds a line per run: its description, how it ended, and its evaluations. Accuracies are exactly those
recorded, so that every selection rule chooses from them what it chose from the sweep's folder; losses keep three
digits (those of the training too), seconds one decimal. The sweep's plans lie beside it, its models do not.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domainwise.core import files
from domainwise.core.compressed import unpacked_lines
from domainwise.core.errors import UserError
from domainwise.core.parsing import Count, Fraction, Seconds, parse
from domainwise.protocol.columns import Columns
from domainwise.protocol.records import PenaltyRecord, Record, Status, check_audit, row_values
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, known_losses

FILE, TABLES = "runs.jsonl.gz", "tables.md"

DomainSplit = tuple[str, str]
"""(domain, split)."""


@dataclass(frozen=True)
class PublishedRun:
    """One line: a run that has ended, with one value per evaluation."""

    run: Run
    status: Status
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    accuracy: Mapping[DomainSplit, Sequence[float]]
    loss: Mapping[DomainSplit, Sequence[float]]
    penalties: tuple[PenaltyRecord, ...] = ()
    audit: Mapping[str, Any] | None = None
    training_loss: tuple[float, ...] = ()
    """Empty, or one value per evaluation."""

    @classmethod
    def of(
        cls,
        run: Run,
        status: Status,
        records: Sequence[Record],
        penalties: Iterable[PenaltyRecord] = (),
        audit: Mapping[str, Any] | None = None,
    ) -> "PublishedRun":
        """From the rows of a run's folder; evaluations that lack a part are left out, as selection leaves them out."""
        rows: dict[DomainSplit, dict[int, Record]] = {}
        for record in records:
            rows.setdefault((record.domain, record.split), {})[record.step] = record
        curve = Curve.of(run, records)
        steps = curve.steps
        seconds = [round(next(iter(rows.values()))[step].seconds, 1) for step in steps]
        accuracy = {part: [by_step[step].accuracy for step in steps] for part, by_step in rows.items()}
        loss = {part: [_digits(by_step[step].loss, 3) for step in steps] for part, by_step in rows.items()}
        losses = tuple(_digits(value, 3) for value in curve.training_loss) if curve.training_loss is not None else ()
        return cls(run, status, steps, tuple(seconds), accuracy, loss, tuple(map(_shorter, penalties)), audit, losses)

    @classmethod
    def of_columns(
        cls,
        run: Run,
        status: Status,
        columns: Columns,
        penalties: Iterable[PenaltyRecord] = (),
        audit: Mapping[str, Any] | None = None,
    ) -> "PublishedRun":
        """What `of` makes of the rows of a regular file, from its accuracies, losses and seconds."""
        accuracy, loss, seconds = (columns.values[name] for name in ("accuracy", "loss", "seconds"))
        return cls(
            run,
            status,
            columns.steps,
            tuple(round(value, 1) for value in seconds[:, 0].tolist()),
            dict(zip(columns.parts, accuracy.T.tolist(), strict=True)),
            {
                part: [_digits(v, 3) for v in losses]
                for part, losses in zip(columns.parts, loss.T.tolist(), strict=True)
            },
            tuple(map(_shorter, penalties)),
            audit,
            tuple(_digits(value, 3) for value in columns.training_loss or ()),
        )

    @property
    def curve(self) -> Curve:
        values = {part: np.array(accuracies, dtype=np.float64) for part, accuracies in self.accuracy.items()}
        seconds = self.seconds[-1] if self.seconds else None
        return Curve(self.run, self.steps, values, {}, known_losses(self.training_loss), seconds)

    def records(self) -> list[Record]:
        """As the rows of a run's folder."""
        losses = self.training_loss or [None] * len(self.steps)
        return [
            Record(self.run.id, step, *part, self.accuracy[part][i], self.loss[part][i], self.seconds[i], losses[i])
            for i, step in enumerate(self.steps)
            for part in self.accuracy
        ]

    def line(self) -> str:
        row: dict[str, Any] = {"run": self.run.describe(), "status": row_values(self.status)}
        row |= {"steps": self.steps, "seconds": self.seconds, "parts": list(self.accuracy)}
        row |= {name: list(getattr(self, name).values()) for name in ("accuracy", "loss")}
        row |= {"penalties": [astuple(one)[1:] for one in self.penalties], "audit": self.audit}
        row |= {"training_loss": self.training_loss} if self.training_loss else {}
        return json.dumps(row, separators=(",", ":"))

    @classmethod
    def parse(cls, line: bytes, where: object, advice: str) -> "PublishedRun":
        """One line, checked: its run and its status belong together, and every evaluation has all its values."""
        row = parse(line, _Line, where, advice)
        run = Run.from_description(row.run, where, advice)
        if row.status.run != run.id:
            raise UserError(f"{where}: the status of another run ({row.status.run}), not of {run.id}: {advice}")
        columns = (*row.accuracy, *row.loss, row.seconds, *([row.training_loss] if row.training_loss else []))
        if any(len(column) != len(row.steps) for column in columns) or list(row.steps) != sorted(set(row.steps)):
            raise UserError(f"{where}: not one value per evaluation: {advice}")
        if not len(set(row.parts)) == len(row.parts) == len(row.accuracy) == len(row.loss):
            raise UserError(f"{where}: not one row per domain and split: {advice}")
        accuracy, loss = (dict(zip(row.parts, values, strict=True)) for values in (row.accuracy, row.loss))
        penalties = tuple(PenaltyRecord(run.id, *values) for values in row.penalties)
        audit = None if row.audit is None else check_audit(row.audit, where, advice)
        return cls(run, row.status, row.steps, row.seconds, accuracy, loss, penalties, audit, row.training_loss)


@dataclass(frozen=True)
class _Line:
    """The fields of a line."""

    run: dict[str, Any]
    status: Status
    steps: tuple[Count, ...]
    seconds: tuple[Seconds, ...]
    parts: tuple[tuple[str, str], ...]
    accuracy: tuple[tuple[Fraction, ...], ...]
    loss: tuple[tuple[float, ...], ...]
    penalties: tuple[tuple[Count, str, float, float, float, float], ...]
    audit: dict[str, Any] | None
    training_loss: tuple[float, ...] = ()


def is_published(folder: Path) -> bool:
    """Whether a folder holds published records; without them its tables vouch for nothing."""
    files.complete_replacement(folder)
    if (folder / FILE).is_file():
        return True
    if (folder / TABLES).is_file():
        raise UserError(f"{folder} has {TABLES}, but its records are missing ({FILE}): restore it, or publish again")
    return False


def in_published_order(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (*_order(run), run.id))


def write_published(folder: Path, runs: Iterable[PublishedRun]) -> Path:
    """Writes runs as they come, in the published order; the same runs give the same bytes."""
    packer = zlib.compressobj(wbits=31)  # as gzip; the digits of accuracies gain nothing from a higher level
    with files.atomic(folder / FILE) as file:
        for one in runs:
            file.write(packer.compress(f"{one.line()}\n".encode()))
        file.write(packer.flush())
    return folder / FILE


def read_published(folder: Path) -> list[PublishedRun]:
    path, advice = folder / FILE, "restore it, or publish again"
    runs: dict[str, PublishedRun] = {}
    for number, line in enumerate(unpacked_lines(path, advice), 1):
        one = PublishedRun.parse(line, f"{path}, line {number}", advice)
        if runs.setdefault(one.run.id, one) is not one:
            raise UserError(f"{path}, line {number}: run {one.run.id} is there twice: {advice}")
    return list(runs.values())


def _order(run: Run) -> tuple[Any, ...]:
    """Similar runs beside each other compress best."""
    return (run.dataset, run.setting, run.algorithm, run.variant, run.test_domains, run.trial, run.draw)


def _digits(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _shorter(one: PenaltyRecord) -> PenaltyRecord:
    values = (_digits(value, 5) for value in (one.irm, one.at, one.dat, one.ldat))
    return PenaltyRecord(one.run, one.step, one.domain, *values)
