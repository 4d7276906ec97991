"""Published records: those of a sweep in one compressed file, small enough to keep beside the source.

The file holds a line per run: its description, how it ended, and its evaluations. Accuracies are exactly those
recorded, so that every selection rule chooses from them what it chose from the sweep's folder; losses keep three
digits, seconds one decimal. The sweep's plans lie beside it, its models do not.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.protocol.columns import Columns
from domainwise.protocol.records import PenaltyRecord, Record, Status
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve

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
        steps = Curve.of(run, records).steps
        seconds = [round(next(iter(rows.values()))[step].seconds, 1) for step in steps]
        accuracy = {part: [by_step[step].accuracy for step in steps] for part, by_step in rows.items()}
        loss = {part: [_digits(by_step[step].loss, 3) for step in steps] for part, by_step in rows.items()}
        return cls(run, status, steps, tuple(seconds), accuracy, loss, tuple(map(_shorter, penalties)), audit)

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
        )

    @property
    def curve(self) -> Curve:
        values = {part: np.array(accuracies, dtype=np.float64) for part, accuracies in self.accuracy.items()}
        return Curve(self.run, self.steps, values)

    def records(self) -> list[Record]:
        """As the rows of a run's folder."""
        return [
            Record(self.run.id, step, *part, self.accuracy[part][i], self.loss[part][i], self.seconds[i])
            for i, step in enumerate(self.steps)
            for part in self.accuracy
        ]

    def line(self) -> str:
        row: dict[str, Any] = {"run": self.run.describe(), "status": asdict(self.status)}
        row |= {"steps": self.steps, "seconds": self.seconds, "parts": list(self.accuracy)}
        row |= {name: list(getattr(self, name).values()) for name in ("accuracy", "loss")}
        row |= {"penalties": [astuple(one)[1:] for one in self.penalties], "audit": self.audit}
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
        return cls(run, status, steps, seconds, values["accuracy"], values["loss"], penalties, audit)


def is_published(folder: Path) -> bool:
    files.complete_replacement(folder)
    return (folder / FILE).is_file()


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
