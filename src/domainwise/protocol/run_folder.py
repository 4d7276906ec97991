"""The files of one run, read and written."""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.locks import lock_holder
from domainwise.core.parsing import Count, check, checksum, parse, parse_any, read_file
from domainwise.core.weights_file import load_weights, read_metadata, save_weights
from domainwise.protocol import checkpoint_file
from domainwise.protocol.averages import AveragedSteps
from domainwise.protocol.checked_lines import SEAL, Extent, append_block, extent, intact, seal, unseal
from domainwise.protocol.records import LONGEST_REASON, PenaltyRecord, Record, Status, check_audit, row_values
from domainwise.protocol.runs import Run

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
FROZEN = "frozen"
"""The folder, beside those of the runs, of weights that several runs share and none changes."""
ADVICE = "restore the file or delete its folder"
LARGEST = 1 << 30
"""Bytes of a file of records."""


class RunFolder:
    """The files of one run: run.json, records.jsonl, its checkpoint while it runs and its model when done.

    Runs that tracked penalties also have penalties.jsonl, audited ones audit.json, those with an average its weights.
    """

    def __init__(self, parent: Path, run: Run, name: str | None = None) -> None:
        self.run = run
        self.path = parent / (name or run.id)
        self.records_file = self.path / "records.jsonl"
        self.penalties_file = self.path / "penalties.jsonl"
        self.checkpoint_file = self.path / "checkpoint.pt"
        self.model_file = self.path / "model.safetensors"
        self.best_file = self.path / "best.safetensors"
        self.averaged_file = self.path / "averaged.safetensors"
        self.audit_file = self.path / "audit.json"

    @classmethod
    def at(cls, path: Path) -> "RunFolder":
        """The folder of an existing run, whatever it is called now."""
        path = path.absolute()
        file = path / "run.json"
        try:
            run = Run.read(file)
        except FileNotFoundError:
            raise UserError(f"{path} is no run's folder (no run.json): give OUT/<run id> of a training") from None
        return cls(path.parent, run, path.name)

    def create(self) -> None:
        files.writable_folder(self.path)
        try:
            known = RunFolder.at(self.path).run.id == self.run.id
        except UserError:  # there is none, or it is damaged
            known = False
        if not known:
            files.write(self.path / "run.json", json.dumps(self.run.describe(), indent=1, sort_keys=True))

    def append(self, rows: Iterable[Record | Status]) -> None:
        _append(self.records_file, rows)

    def replace_records(self, rows: Iterable[Record | Status]) -> None:
        """Writes these in place of all records, completely or not at all."""
        files.write(self.records_file, seal(_lines(rows)))

    def append_penalties(self, rows: Iterable[PenaltyRecord]) -> None:
        _append(self.penalties_file, rows)

    def read_penalties(self) -> list[PenaltyRecord]:
        """The penalties so far; an ended run that tracked them has some of every evaluation."""
        try:
            rows = [row for _, row in self._rows(self.penalties_file) if isinstance(row, PenaltyRecord)]
        except FileNotFoundError:
            rows = []
        if "penalties" in self.run.track:
            records, status = self.read()
            if status is not None and not {record.step for record in records} <= {row.step for row in rows}:
                raise UserError(f"{self.penalties_file} lacks evaluations of its run: {ADVICE}")
        return rows

    def read(self) -> tuple[list[Record], Status | None]:
        """The records so far and how the run ended, if it has. Rows that a crash cut short are dropped."""
        try:
            rows = [row for _, row in self._rows(self.records_file)]
        except FileNotFoundError:
            rows = []
        status = rows[-1] if rows and isinstance(rows[-1], Status) else None
        if status is None:
            self.check_unfinished()
        return [row for row in rows if isinstance(row, Record)], status

    def lines(self) -> bytes:
        """The whole lines of the records, checked as one, without their checksums."""
        return unseal(self._intact(self.records_file))

    def _intact(self, path: Path) -> bytes:
        data = read_file(path, ADVICE, LARGEST)
        try:
            return intact(data, path, ADVICE)
        except UserError:
            self._parse(data[: data.rfind(b"\n") + 1], path)  # names the line and the field, if they can be told
            raise

    def _rows(self, path: Path) -> list[tuple[bytes, Record | PenaltyRecord | Status]]:
        """Every line of a file, and what it says."""
        return self._parse(self._intact(path), path)

    def _parse(self, lines: bytes, path: Path) -> list[tuple[bytes, Record | PenaltyRecord | Status]]:
        rows: list[tuple[bytes, Record | PenaltyRecord | Status]] = []
        for number, line in enumerate(lines.split(b"\n")[:-1], 1):
            where = f"{path}, line {number}"
            values = parse_any(unseal(line + b"\n"), where, ADVICE)
            ended = isinstance(values, dict) and "status" in values and path == self.records_file
            kind: type[Record | PenaltyRecord | Status] = Record
            if ended or path == self.penalties_file:
                kind = Status if ended else PenaltyRecord
            row = check(values, kind, where, ADVICE)
            if row.run != self.run.id:
                raise UserError(f"{where}: a row of another run ({row.run}), not of {self.run.id}: {ADVICE}")
            if isinstance(row, Record) and row.average not in (None, self.run.average):
                raise UserError(f"{where}: averaged weights that its run does not have ({row.average}): {ADVICE}")
            rows.append((line + b"\n", row))
        return rows

    def check_unfinished(self) -> None:
        """Raises UserError if a run whose records do not say how it ended has a model all the same."""
        if self._has_ended() and lock_holder(self.path) is None:
            raise UserError(f"{self.records_file} is cut short (its run has ended and has a model): {ADVICE}")

    def _has_ended(self) -> bool:
        """Whether the other files are those of a run that has ended: it has a model, and no checkpoint."""
        return self.model_file.exists() and not self.checkpoint_file.exists()

    def reopen(self, retry: bool) -> tuple[list[Record], Status | None]:
        """What `read` reads. Damaged records of a run that may be tried again are set aside, and it begins anew."""
        try:
            records, status = self.read()
            self.read_penalties()
        except UserError as damage:
            if not retry:
                raise
            self._set_aside(str(damage))
            return [], None
        if status is None and self._has_ended():
            self._set_aside(f"{self.records_file} is cut short")
            return [], None
        return records, status

    def _set_aside(self, damage: str) -> None:
        """The run begins anew; its records are kept under another name."""
        weights = (self.model_file, self.best_file, self.averaged_file)
        for file in (self.records_file, self.penalties_file, *weights):
            if file.exists():
                file.replace(file.with_suffix(".damaged"))
        self.checkpoint_file.unlink(missing_ok=True)
        log.warning("%s; it is set aside as .damaged, and the run begins anew", damage)

    def status(self) -> Status | None:
        """How the run ended, if it has: the last whole line of its records, read without the rest until it has.

        One whose records are damaged has failed, whatever they say of its end.
        """
        try:
            if b'"status"' in files.last_line(self.records_file):
                last = self.lines().splitlines()[-1]
                return parse(last, Status, f"{self.records_file}, last line", ADVICE)
            self.check_unfinished()
        except FileNotFoundError:
            pass
        except UserError as damage:
            return Status(self.run.id, self.last_step() or 0, "failed", str(damage))
        return None

    def last_step(self) -> int | None:
        """The step of the last evaluation, if there was one and it can be read."""
        try:
            row = parse(files.last_line(self.records_file), dict[str, Any], self.records_file, ADVICE)
            return check(row.get("step"), int, self.records_file, ADVICE)
        except (FileNotFoundError, UserError):
            return None

    def rewind(self, step: int) -> list[Record]:
        """Drops every record after `step` and any status: a run continues from its checkpoint, not from its records."""
        self._rewind(self.penalties_file, step)
        return [row for row in self._rewind(self.records_file, step) if isinstance(row, Record)]

    def _rewind(self, path: Path, step: int) -> list[Record | PenaltyRecord | Status]:
        """Keeps the bytes of what is kept, which the checkpoint vouches for."""
        try:
            rows = self._rows(path)
        except FileNotFoundError:
            return []
        kept = [(line, row) for line, row in rows if row.step <= step and not isinstance(row, Status)]
        lines = b"".join(line for line, _ in kept)
        if kept and not SEAL.search(kept[-1][0]):
            lines = seal(lines)
        if lines != path.read_bytes():
            files.write(path, lines)
        return [row for _, row in kept]

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Saves the state, and with it how far the records and penalties had come."""
        extents = {file.stem: tuple(extent(file)) for file in (self.records_file, self.penalties_file)}
        checkpoint_file.save(self.checkpoint_file, state | {"run": self.run.id, "extents": extents})

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint; None, with a warning, if it or the records that it continues are damaged."""
        try:
            state = checkpoint_file.load(self.checkpoint_file)
        except FileNotFoundError:
            return None
        except UserError as damage:
            log.warning("%s; the run begins anew", damage)
            self.checkpoint_file.unlink()
            return None
        run, extents = state.pop("run", None), state.pop("extents", None)
        if run != self.run.id or not isinstance(extents, dict):
            log.warning("%s is of another run, %s; the run begins anew", self.checkpoint_file, run)
            self.checkpoint_file.unlink()
            return None
        for file in (self.records_file, self.penalties_file):
            data = file.read_bytes() if file.exists() else b""
            known = check(extents.get(file.stem), tuple[Count, Count], self.checkpoint_file, ADVICE)
            if not Extent(*known).fits(data):
                self._set_aside(f"{file} lacks rows that {self.checkpoint_file.name} continues, or they were changed")
                return None
        return state

    def finish(
        self,
        status: Status,
        model: "dict[str, Tensor]",
        best: "tuple[int, dict[str, Tensor]] | None" = None,
        averaged: "tuple[AveragedSteps, dict[str, Tensor]] | None" = None,
        frozen: Sequence[str] = (),
    ) -> None:
        """Saves the model (and the best and averaged weights, if there are any), then the status.

        Then drops the checkpoint. The weights named in `frozen` are the same in all of them, and are saved once for all
        runs that share them.
        """
        save = partial(save_weights, shared=frozen, folder=self.path.parent / FROZEN)
        save(self.model_file, model)
        if best is None:
            self.best_file.unlink(missing_ok=True)
        else:
            save(self.best_file, best[1], {"step": str(best[0])})
        if averaged is None:
            self.averaged_file.unlink(missing_ok=True)
        else:
            save(self.averaged_file, averaged[1], averaged[0].metadata())
        self.append([status])
        self.checkpoint_file.unlink(missing_ok=True)

    def load_best(self) -> "tuple[int, dict[str, Tensor]] | None":
        """The step that training-domain validation selected and its weights; runs of earlier versions have none."""
        if not self.best_file.is_file():
            return None
        advice = "delete it, and those of the last step are used"
        tensors, step = self._load(self.best_file, advice), read_metadata(self.best_file).get("step", "")
        if not str(step).isdecimal():
            raise UserError(f"{self.best_file} is damaged (it does not say its step): {advice}")
        return int(step), tensors

    def load_averaged(self) -> "tuple[AveragedSteps, dict[str, Tensor]]":
        """The averaged weights of a finished run that has an average, and what they are the average of."""
        advice = f"delete {self.path}, and train the run again"
        tensors = self._load(self.averaged_file, advice)
        steps = AveragedSteps.from_metadata(read_metadata(self.averaged_file))
        if steps is None:
            raise UserError(f"{self.averaged_file} is damaged (it does not say its steps): {advice}")
        return steps, tensors

    def save_audit(self, audit: dict[str, Any]) -> None:
        """Saves the summary of the model's audit with its run."""
        files.write(self.audit_file, json.dumps(audit | {"checksum": checksum(audit)}))

    def read_audit(self) -> dict[str, Any] | None:
        """The summary of the model's audit, if there is one."""
        advice = "delete it, and audit the model again"
        try:
            audit = parse(read_file(self.audit_file, advice), dict[str, Any], self.audit_file, advice)
        except FileNotFoundError:
            return None
        if audit.pop("checksum", None) not in (None, checksum(audit)):
            raise UserError(f"{self.audit_file} is damaged (its checksum does not fit): {advice}")
        return check_audit(audit, self.audit_file, advice)

    def load_model(self) -> "dict[str, Tensor]":
        """The weights after the last step; records that were unpacked have none."""
        return self._load(self.model_file, f"delete {self.path}, and train the run again")

    def _load(self, file: Path, advice: str) -> "dict[str, Tensor]":
        return load_weights(file, advice, folder=self.path.parent / FROZEN)


def _append(path: Path, rows: Iterable[Record | PenaltyRecord | Status]) -> None:
    if lines := _lines(rows):
        append_block(path, lines)


def _lines(rows: Iterable[Record | PenaltyRecord | Status]) -> bytes:
    short = (replace(row, reason=row.reason[:LONGEST_REASON]) if isinstance(row, Status) else row for row in rows)
    return "".join(json.dumps(row_values(row)) + "\n" for row in short).encode()
