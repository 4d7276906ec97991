"""Published records: those of a sweep in one compressed file, small enough to keep beside the source.

The file holds a line per run: its description, how it ended, and its evaluations. Accuracies and other
fractions are exactly those recorded, so that every selection rule chooses from them what it chose from the sweep's
folder; losses keep three digits (those of the training too), seconds one decimal. The sweep's plans lie
beside it, its models do not.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from domainwise.core import files
from domainwise.core.compressed import unpacked_lines
from domainwise.core.errors import UserError
from domainwise.core.parsing import Count, Fraction, Seconds, parse
from domainwise.protocol.columns import Columns
from domainwise.protocol.metrics import MEASURED
from domainwise.protocol.records import PenaltyRecord, Record, SplitScores, Status, check_audit, row_values
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, Floats, known_losses

FILE, TABLES = "runs.jsonl.gz", "tables.md"

DomainSplit = tuple[str, str]
"""(domain, split)."""
ByMetric = Mapping[str, Mapping[DomainSplit, Sequence[float]]]
"""The further metrics that all evaluations have, by the name of their field."""


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
    averaged: "AveragedScores | None" = None
    """The evaluations of averaged weights, if there are any."""
    metrics: "ByMetric" = field(default_factory=dict)

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
        rows = _by_part(record for record in records if record.average is None)
        curve = Curve.of(run, records)
        steps = curve.steps
        seconds = [round(next(iter(rows.values()))[step].seconds, 1) for step in steps]
        accuracy = {part: [by_step[step].accuracy for step in steps] for part, by_step in rows.items()}
        loss = {part: [_digits(by_step[step].loss, 3) for step in steps] for part, by_step in rows.items()}
        losses = tuple(_digits(value, 3) for value in curve.training_loss) if curve.training_loss is not None else ()
        shorter, averaged = tuple(map(_shorter, penalties)), AveragedScores.of(run, records)
        metrics = _metrics_of(rows, steps)
        return cls(run, status, steps, tuple(seconds), accuracy, loss, shorter, audit, losses, averaged, metrics)

    @classmethod
    def of_columns(
        cls,
        run: Run,
        status: Status,
        columns: Columns,
        averaged: Columns | None,
        penalties: Iterable[PenaltyRecord] = (),
        audit: Mapping[str, Any] | None = None,
    ) -> "PublishedRun":
        """What `of` makes of the rows of a regular file, from its accuracies, losses and seconds."""
        accuracy, seconds = columns.values["accuracy"], columns.values["seconds"]
        return cls(
            run,
            status,
            columns.steps,
            tuple(round(value, 1) for value in seconds[:, 0].tolist()),
            dict(zip(columns.parts, accuracy.T.tolist(), strict=True)),
            _losses(columns),
            tuple(map(_shorter, penalties)),
            audit,
            tuple(_digits(value, 3) for value in columns.training_loss or ()),
            None if averaged is None else AveragedScores.of_columns(averaged),
            _metrics_of_columns(columns),
        )

    @property
    def curve(self) -> Curve:
        seconds = self.seconds[-1] if self.seconds else None
        losses, others = known_losses(self.training_loss), _others(self.loss, self.metrics)
        return Curve(self.run, self.steps, _arrays(self.accuracy), {}, losses, seconds, others=others)

    @property
    def curves(self) -> list[Curve]:
        """Those with evaluations: of the last weights, and of the averaged ones if there are any."""
        curves = [self.curve] if self.steps else []
        if self.averaged is not None:
            steps, accuracy = self.averaged.steps, _arrays(self.averaged.accuracy)
            facts: dict[str, Any] = {"seconds": self.seconds[-1], "average": self.run.average}
            others = _others(self.averaged.loss, self.averaged.metrics)
            curves.append(Curve(self.run, steps, accuracy, others=others, **facts))
        return curves

    def records(self) -> list[Record]:
        """As the rows of a run's folder."""
        losses, rows = self.training_loss or [None] * len(self.steps), []
        for i, step in enumerate(self.steps):
            for part, values in self.accuracy.items():
                scores = SplitScores(values[i], self.loss[part][i], **_at(self.metrics, part, i))
                rows.append(Record.of(self.run.id, step, part, scores, self.seconds[i], losses[i]))
            for part, scores in self.averaged.at(step) if self.averaged is not None else ():
                rows.append(Record.of(self.run.id, step, part, scores, self.seconds[i], average=self.run.average))
        return rows

    def line(self) -> str:
        row: dict[str, Any] = {"run": self.run.describe(), "status": row_values(self.status)}
        row |= {"steps": self.steps, "seconds": self.seconds, "parts": list(self.accuracy)}
        row |= {name: list(getattr(self, name).values()) for name in ("accuracy", "loss")}
        row |= {"penalties": [astuple(one)[1:] for one in self.penalties], "audit": self.audit}
        row |= {"training_loss": self.training_loss} if self.training_loss else {}
        row |= {"averaged": self.averaged.describe()} if self.averaged is not None else {}
        row |= _described(self.metrics)
        return json.dumps(row, separators=(",", ":"))

    @classmethod
    def parse(cls, line: bytes, where: object, advice: str) -> "PublishedRun":
        """One line, checked: its run and its status belong together, and every evaluation has all its values."""
        row = parse(line, _Line, where, advice)
        run = Run.from_description(row.run, where, advice)
        if row.status.run != run.id:
            raise UserError(f"{where}: the status of another run ({row.status.run}), not of {run.id}: {advice}")
        columns = (row.seconds, *([row.training_loss] if row.training_loss else []))
        metrics = row.metrics or {}
        _check_regular(row.steps, row.parts, columns, (row.accuracy, row.loss, *metrics.values()), where, advice)
        accuracy, loss = (dict(zip(row.parts, values, strict=True)) for values in (row.accuracy, row.loss))
        averaged = None if row.averaged is None else AveragedScores.parse(row.averaged, where, advice)
        if averaged is not None and not (run.average and set(averaged.steps) <= set(row.steps)):
            raise UserError(f"{where}: averaged weights of an evaluation that its run does not have: {advice}")
        penalties = tuple(PenaltyRecord(run.id, *values) for values in row.penalties)
        audit = None if row.audit is None else check_audit(row.audit, where, advice)
        more = (penalties, audit, row.training_loss, averaged, _checked(metrics, row.parts, where, advice))
        return cls(run, row.status, row.steps, row.seconds, accuracy, loss, *more)


@dataclass(frozen=True)
class AveragedScores:
    """The evaluations of a run's averaged weights, one value each."""

    steps: tuple[int, ...]
    accuracy: Mapping[DomainSplit, Sequence[float]]
    loss: Mapping[DomainSplit, Sequence[float]]
    metrics: ByMetric = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, records: Sequence[Record]) -> "AveragedScores | None":
        """None if no averaged weights were evaluated."""
        rows = _by_part(record for record in records if record.average is not None)
        steps = Curve.of(run, records, run.average).steps if rows else ()
        if not steps:
            return None
        accuracy = {part: [by_step[step].accuracy for step in steps] for part, by_step in rows.items()}
        loss = {part: [_digits(by_step[step].loss, 3) for step in steps] for part, by_step in rows.items()}
        return cls(steps, accuracy, loss, _metrics_of(rows, steps))

    @classmethod
    def of_columns(cls, columns: Columns) -> "AveragedScores":
        accuracy = dict(zip(columns.parts, columns.values["accuracy"].T.tolist(), strict=True))
        return cls(columns.steps, accuracy, _losses(columns), _metrics_of_columns(columns))

    def at(self, step: int) -> Iterator[tuple[DomainSplit, SplitScores]]:
        """(domain and split, scores) of the evaluation after a step, if there is one."""
        if step in self.steps:
            i = self.steps.index(step)
            for part in self.accuracy:
                yield part, SplitScores(self.accuracy[part][i], self.loss[part][i], **_at(self.metrics, part, i))

    def describe(self) -> dict[str, Any]:
        values = {name: list(getattr(self, name).values()) for name in ("accuracy", "loss")}
        return {"steps": self.steps, "parts": list(self.accuracy), **values, **_described(self.metrics)}

    @classmethod
    def parse(cls, row: "_AveragedLine", where: object, advice: str) -> "AveragedScores":
        metrics = row.metrics or {}
        _check_regular(row.steps, row.parts, (), (row.accuracy, row.loss, *metrics.values()), where, advice)
        accuracy, loss = (dict(zip(row.parts, values, strict=True)) for values in (row.accuracy, row.loss))
        return cls(row.steps, accuracy, loss, _checked(metrics, row.parts, where, advice))


def _check_regular(
    steps: Sequence[int],
    parts: Sequence[DomainSplit],
    columns: Iterable[Sequence[float]],
    by_part: Sequence[Sequence[Sequence[float]]],
    where: object,
    advice: str,
) -> None:
    """Every evaluation must have all its values, every domain and split its rows."""
    values = (*columns, *(column for rows in by_part for column in rows))
    if any(len(column) != len(steps) for column in values) or list(steps) != sorted(set(steps)):
        raise UserError(f"{where}: not one value per evaluation: {advice}")
    if len(set(parts)) != len(parts) or any(len(rows) != len(parts) for rows in by_part):
        raise UserError(f"{where}: not one row per domain and split: {advice}")


def _by_part(records: Iterable[Record]) -> dict[DomainSplit, dict[int, Record]]:
    rows: dict[DomainSplit, dict[int, Record]] = {}
    for record in records:
        rows.setdefault((record.domain, record.split), {})[record.step] = record
    return rows


def _losses(columns: Columns) -> dict[DomainSplit, list[float]]:
    by_part = zip(columns.parts, columns.values["loss"].T.tolist(), strict=True)
    return {part: [_digits(value, 3) for value in losses] for part, losses in by_part}


def _metrics_of(rows: Mapping[DomainSplit, Mapping[int, Record]], steps: Sequence[int]) -> ByMetric:
    """Those that no evaluation lacks."""
    found = {
        name: {part: [getattr(by_step[step], name) for step in steps] for part, by_step in rows.items()}
        for name in MEASURED
    }
    return {name: parts for name, parts in found.items() if parts and not any(None in one for one in parts.values())}


def _metrics_of_columns(columns: Columns) -> ByMetric:
    known = [name for name in MEASURED if name in columns.values]
    return {name: dict(zip(columns.parts, columns.values[name].T.tolist(), strict=True)) for name in known}


def _at(metrics: ByMetric, part: DomainSplit, i: int) -> dict[str, float]:
    return {name: values[part][i] for name, values in metrics.items()}


def _described(metrics: ByMetric) -> dict[str, Any]:
    return {"metrics": {name: list(values.values()) for name, values in metrics.items()}} if metrics else {}


def _checked(
    metrics: Mapping[str, Sequence[Sequence[float]]], parts: Sequence[DomainSplit], where: object, advice: str
) -> ByMetric:
    """Those of a line; an unknown name is a UserError."""
    if foreign := [name for name in metrics if name not in MEASURED]:
        raise UserError(f"{where}: an unknown metric ({foreign[0]!r}): {advice}")
    return {name: dict(zip(parts, values, strict=True)) for name, values in metrics.items()}


def _others(loss: Mapping[DomainSplit, Sequence[float]], metrics: ByMetric) -> dict[str, dict[DomainSplit, Floats]]:
    return {name: _arrays(values) for name, values in {"loss": loss, **metrics}.items()}


def _arrays(values: Mapping[DomainSplit, Sequence[float]]) -> dict[DomainSplit, Floats]:
    return {part: np.array(numbers, dtype=np.float64) for part, numbers in values.items()}


@dataclass(frozen=True)
class _AveragedLine:
    """The fields of a line's averaged weights."""

    steps: tuple[Count, ...]
    parts: tuple[tuple[str, str], ...]
    accuracy: tuple[tuple[Fraction, ...], ...]
    loss: tuple[tuple[float, ...], ...]
    metrics: dict[str, tuple[tuple[Fraction, ...], ...]] | None = None


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
    averaged: _AveragedLine | None = None
    metrics: dict[str, tuple[tuple[Fraction, ...], ...]] | None = None


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
