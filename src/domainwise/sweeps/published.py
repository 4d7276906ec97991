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
from domainwise.protocol.metrics import FIELDS, MEASURED
from domainwise.protocol.records import PenaltyRecord, Record, SplitScores, Status, check_audit, row_values
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, Floats, known_losses

FILE, TABLES = "runs.jsonl.gz", "tables.md"

DomainSplit = tuple[str, str]
"""(domain, split)."""
ByMetric = Mapping[str, Mapping[DomainSplit, Sequence[float]]]
"""The further metrics that all evaluations have, by the name of their field."""


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of a run's last or averaged weights, one value each."""

    steps: tuple[int, ...]
    accuracy: Mapping[DomainSplit, Sequence[float]]
    loss: Mapping[DomainSplit, Sequence[float]]
    metrics: ByMetric = field(default_factory=dict)

    @classmethod
    def of(cls, curve: Curve) -> "Evaluations":
        values = {name: {part: one.tolist() for part, one in curve.others.get(name, {}).items()} for name in FIELDS}
        accuracy = {part: one.tolist() for part, one in curve.accuracy.items()}
        return cls(curve.steps, accuracy, _shorter(values["loss"]), {m: values[m] for m in MEASURED if values[m]})

    @classmethod
    def of_columns(cls, columns: Columns) -> "Evaluations":
        values = {
            name: dict(zip(columns.parts, by_step.T.tolist(), strict=True)) for name, by_step in columns.values.items()
        }
        metrics = {name: values[name] for name in MEASURED if name in values}
        return cls(columns.steps, values["accuracy"], _shorter(values["loss"]), metrics)

    def curve(self, run: Run, **facts: Any) -> Curve:
        others = {name: _arrays(values) for name, values in {"loss": self.loss, **self.metrics}.items()}
        return Curve(run, self.steps, _arrays(self.accuracy), others=others, **facts)

    def at(self, step: int) -> Iterator[tuple[DomainSplit, SplitScores]]:
        """(domain and split, scores) of the evaluation after a step, if there is one."""
        if step in self.steps:
            i = self.steps.index(step)
            for part in self.accuracy:
                metrics = {name: values[part][i] for name, values in self.metrics.items()}
                yield part, SplitScores(self.accuracy[part][i], self.loss[part][i], **metrics)

    def describe(self) -> dict[str, Any]:
        values = {name: list(getattr(self, name).values()) for name in ("accuracy", "loss")}
        metrics = {name: list(values.values()) for name, values in self.metrics.items()}
        return {"steps": self.steps, "parts": list(self.accuracy), **values} | ({"metrics": metrics} if metrics else {})

    @classmethod
    def parse(
        cls, row: "_EvaluationsLine", where: object, advice: str, columns: Sequence[Sequence[float]] = ()
    ) -> "Evaluations":
        """Checked: every evaluation has all its values, also those of further columns."""
        given = {"accuracy": row.accuracy, "loss": row.loss, **(row.metrics or {})}
        _check_regular(row.steps, row.parts, columns, list(given.values()), where, advice)
        if foreign := [name for name in row.metrics or {} if name not in MEASURED]:
            raise UserError(f"{where}: an unknown metric ({foreign[0]!r}): {advice}")
        values = {name: dict(zip(row.parts, by_part, strict=True)) for name, by_part in given.items()}
        return cls(row.steps, values.pop("accuracy"), values.pop("loss"), values)


@dataclass(frozen=True)
class PublishedRun:
    """One line: a run that has ended."""

    run: Run
    status: Status
    last: Evaluations
    """Of the last weights."""
    seconds: tuple[float, ...]
    """One value per evaluation."""
    penalties: tuple[PenaltyRecord, ...] = ()
    audit: Mapping[str, Any] | None = None
    training_loss: tuple[float, ...] = ()
    """Empty, or one value per evaluation."""
    averaged: Evaluations | None = None
    """Of the averaged weights, if they were evaluated."""

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
        curve, averaged = Curve.of(run, records), Curve.of(run, records, run.average) if run.average else None
        first = next(iter(curve.accuracy), None)
        of_first = {
            one.step: one.seconds for one in records if one.average is None and (one.domain, one.split) == first
        }
        return cls(
            run,
            status,
            Evaluations.of(curve),
            tuple(round(of_first[step], 1) for step in curve.steps),
            tuple(map(_shorter_penalties, penalties)),
            audit,
            () if curve.training_loss is None else tuple(_digits(value, 3) for value in curve.training_loss),
            Evaluations.of(averaged) if averaged is not None and averaged.steps else None,
        )

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
        return cls(
            run,
            status,
            Evaluations.of_columns(columns),
            tuple(round(value, 1) for value in columns.values["seconds"][:, 0].tolist()),
            tuple(map(_shorter_penalties, penalties)),
            audit,
            tuple(_digits(value, 3) for value in columns.training_loss or ()),
            None if averaged is None else Evaluations.of_columns(averaged),
        )

    @property
    def curves(self) -> list[Curve]:
        """Those with evaluations: of the last weights, and of the averaged ones if there are any."""
        seconds = self.seconds[-1] if self.seconds else None
        losses = known_losses(self.training_loss)
        curves = [self.last.curve(self.run, training_loss=losses, seconds=seconds)] if self.last.steps else []
        if self.averaged is not None:
            curves.append(self.averaged.curve(self.run, seconds=seconds, average=self.run.average))
        return curves

    def records(self) -> list[Record]:
        """As the rows of a run's folder."""
        losses, rows = self.training_loss or [None] * len(self.seconds), []
        for step, seconds, loss in zip(self.last.steps, self.seconds, losses, strict=True):
            rows += [Record.of(self.run.id, step, part, scores, seconds, loss) for part, scores in self.last.at(step)]
            for part, scores in self.averaged.at(step) if self.averaged is not None else ():
                rows.append(Record.of(self.run.id, step, part, scores, seconds, average=self.run.average))
        return rows

    def line(self) -> str:
        last = self.last.describe()
        metrics = {"metrics": last.pop("metrics")} if "metrics" in last else {}
        row: dict[str, Any] = {"run": self.run.describe(), "status": row_values(self.status)}
        row |= {"steps": last.pop("steps"), "seconds": self.seconds, **last}
        row |= {"penalties": [astuple(one)[1:] for one in self.penalties], "audit": self.audit}
        row |= {"training_loss": self.training_loss} if self.training_loss else {}
        row |= {"averaged": self.averaged.describe()} if self.averaged is not None else {}
        return json.dumps(row | metrics, separators=(",", ":"))

    @classmethod
    def parse(cls, line: bytes, where: object, advice: str) -> "PublishedRun":
        """One line, checked: its run and its status belong together, and every evaluation has all its values."""
        row = parse(line, _Line, where, advice)
        run = Run.from_description(row.run, where, advice)
        if row.status.run != run.id:
            raise UserError(f"{where}: the status of another run ({row.status.run}), not of {run.id}: {advice}")
        columns = (row.seconds, *([row.training_loss] if row.training_loss else []))
        last = Evaluations.parse(row, where, advice, columns)
        averaged = None if row.averaged is None else Evaluations.parse(row.averaged, where, advice)
        if averaged is not None and not (run.average and set(averaged.steps) <= set(row.steps)):
            raise UserError(f"{where}: averaged weights of an evaluation that its run does not have: {advice}")
        penalties = tuple(PenaltyRecord(run.id, *values) for values in row.penalties)
        audit = None if row.audit is None else check_audit(row.audit, where, advice)
        return cls(run, row.status, last, row.seconds, penalties, audit, row.training_loss, averaged)


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


def _arrays(values: Mapping[DomainSplit, Sequence[float]]) -> dict[DomainSplit, Floats]:
    return {part: np.array(numbers, dtype=np.float64) for part, numbers in values.items()}


@dataclass(frozen=True, kw_only=True)
class _EvaluationsLine:
    """The fields of a line's averaged weights."""

    steps: tuple[Count, ...]
    parts: tuple[tuple[str, str], ...]
    accuracy: tuple[tuple[Fraction, ...], ...]
    loss: tuple[tuple[float, ...], ...]
    metrics: dict[str, tuple[tuple[Fraction, ...], ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class _Line(_EvaluationsLine):
    """The fields of a line; the evaluations are those of the last weights."""

    run: dict[str, Any]
    status: Status
    seconds: tuple[Seconds, ...]
    penalties: tuple[tuple[Count, str, float, float, float, float], ...]
    audit: dict[str, Any] | None
    training_loss: tuple[float, ...] = ()
    averaged: _EvaluationsLine | None = None


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


def _shorter(by_part: Mapping[DomainSplit, Iterable[float]]) -> dict[DomainSplit, list[float]]:
    return {part: [_digits(value, 3) for value in values] for part, values in by_part.items()}


def _shorter_penalties(one: PenaltyRecord) -> PenaltyRecord:
    values = (_digits(value, 5) for value in (one.irm, one.at, one.dat, one.ldat))
    return PenaltyRecord(one.run, one.step, one.domain, *values)
