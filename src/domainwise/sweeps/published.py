"""Published records: those of a sweep in one compressed file, small enough to keep beside the source.

The file holds a line per run: its description, how it ended, and its evaluations. Accuracies are exactly those
recorded, so that every selection rule chooses from them what it chose from the sweep's folder; losses keep three
digits (those of the training too), seconds one decimal. The sweep's plans lie beside it, its models do not.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.protocol.records import PenaltyRecord, Record, Status, row_values
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, known_losses

FILE = "runs.jsonl.gz"

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
    def parse(cls, line: str) -> "PublishedRun":
        row = json.loads(line)
        run = Run.from_description(row["run"])
        parts = [(domain, split) for domain, split in row["parts"]]
        values = {name: dict(zip(parts, row[name], strict=True)) for name in ("accuracy", "loss")}
        penalties = tuple(PenaltyRecord(run.id, *values) for values in row["penalties"])
        steps, seconds = tuple(row["steps"]), tuple(row["seconds"])
        status, audit = Status(**row["status"]), row["audit"]
        losses = tuple(row.get("training_loss", ()))
        return cls(run, status, steps, seconds, values["accuracy"], values["loss"], penalties, audit, losses)


def is_published(folder: Path) -> bool:
    return (folder / FILE).is_file()


def write_published(folder: Path, runs: Iterable[PublishedRun]) -> Path:
    """The same runs give the same bytes."""
    ordered = sorted(runs, key=lambda one: (*_order(one.run), one.run.id))
    text = "".join(one.line() + "\n" for one in ordered)
    files.write(folder / FILE, gzip.compress(text.encode(), mtime=0))
    return folder / FILE


def read_published(folder: Path) -> list[PublishedRun]:
    path = folder / FILE
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        return [PublishedRun.parse(line) for line in lines]
    except (OSError, EOFError, zlib.error, UserError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} holds no published records ({error}): restore it") from None


def _order(run: Run) -> tuple[Any, ...]:
    """Similar runs beside each other compress best."""
    return (run.dataset, run.setting, run.algorithm, run.variant, run.test_domains, run.trial, run.draw)


def _digits(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _shorter(one: PenaltyRecord) -> PenaltyRecord:
    values = (_digits(value, 5) for value in (one.irm, one.at, one.dat, one.ldat))
    return PenaltyRecord(one.run, one.step, one.domain, *values)
