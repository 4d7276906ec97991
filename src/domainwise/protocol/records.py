"""Records: one flat row per run, step, domain and split, appended to one JSON Lines file per run.

torch is imported only where tensors are saved or loaded: reading records must not wait for it.
"""

import io
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.weights_file import load_weights, read_metadata, save_weights
from domainwise.protocol.runs import Run

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
State = Literal["done", "diverged", "failed"]
T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """How well a run did, after one step, on one split of one domain."""

    run: str
    step: int
    domain: str
    split: str
    accuracy: float
    loss: float
    seconds: float
    training_loss: float | None = None
    """The mean loss of the training steps since the evaluation before, the same in all records of a step."""


@dataclass(frozen=True)
class PenaltyRecord:
    """The penalties of IRM and of linearised AT and DAT, after one step, on one training domain (run tracked so)."""

    run: str
    step: int
    domain: str
    irm: float
    at: float
    dat: float
    ldat: float


@dataclass(frozen=True)
class Status:
    """How a run ended, and where and when, if that is known; always the last line of its file."""

    run: str
    step: int
    status: State
    reason: str
    device: str = field(default="", compare=False)
    software: str = field(default="", compare=False)
    date: str = field(default="", compare=False)
    threads: int | None = field(default=None, compare=False)

    @property
    def has_provenance(self) -> bool:
        """Whether the device and the software that made the run are known."""
        return bool(self.device and self.software)


class RunFolder:
    """The files of one run: run.json, records.jsonl, its checkpoint while it runs and its model when done.

    Runs that tracked penalties also have penalties.jsonl, audited ones audit.json.
    """

    def __init__(self, parent: Path, run: Run, name: str | None = None) -> None:
        self.run = run
        self.path = parent / (name or run.id)
        self.records_file = self.path / "records.jsonl"
        self.penalties_file = self.path / "penalties.jsonl"
        self.checkpoint_file = self.path / "checkpoint.pt"
        self.model_file = self.path / "model.safetensors"
        self.best_file = self.path / "best.safetensors"
        self.audit_file = self.path / "audit.json"

    @classmethod
    def at(cls, path: Path) -> "RunFolder":
        """The folder of an existing run, whatever it is called now."""
        path = path.absolute()
        try:
            run = Run.from_description(json.loads((path / "run.json").read_text()))
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{path} is no run's folder (no run.json): give OUT/<run id> of a training") from None
        except UserError as error:
            raise UserError(f"{path} holds {error}") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UserError(f"{path / 'run.json'} does not describe a run: restore it or train again") from None
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
        files.append_lines(self.records_file, _lines(rows))

    def append_penalties(self, rows: Iterable[PenaltyRecord]) -> None:
        files.append_lines(self.penalties_file, _lines(rows))

    def read_penalties(self) -> list[PenaltyRecord]:
        return read_rows(self.penalties_file, lambda row: PenaltyRecord(**row))

    def read(self) -> tuple[list[Record], Status | None]:
        """The records so far and how the run ended, if it has. A half-written last line is dropped."""
        rows = read_rows(self.records_file, _parse)
        records = [row for row in rows if isinstance(row, Record)]
        return records, rows[-1] if rows and isinstance(rows[-1], Status) else None

    def reopen(self, retry: bool) -> tuple[list[Record], Status | None]:
        """What `read` reads. Damaged records of a run that may be tried again are set aside, and it begins anew."""
        try:
            records, status = self.read()
            if status is None:
                self.read_penalties()
        except UserError as damage:
            if not retry:
                raise
            for file in (self.records_file, self.penalties_file):
                if file.exists():
                    file.replace(file.with_suffix(".damaged"))
            self.checkpoint_file.unlink(missing_ok=True)
            log.warning("%s; it is set aside as .damaged, and the run begins anew", damage)
            return [], None
        return records, status

    def status(self) -> Status | None:
        """How the run ended, if it has: the last whole line of its records, read without the rest until it has.

        One whose records are damaged has failed, whatever they say of its end.
        """
        try:
            last = files.last_line(self.records_file)
        except FileNotFoundError:
            return None
        if b'"status"' not in last:
            return None
        try:
            return self.read()[1]
        except UserError as damage:
            return Status(self.run.id, self.last_step() or 0, "failed", str(damage))

    def last_step(self) -> int | None:
        """The step of the last evaluation, if there was one and it can be read."""
        try:
            return int(json.loads(files.last_line(self.records_file))["step"])
        except (FileNotFoundError, ValueError, KeyError, TypeError, OverflowError):
            return None

    def rewind(self, step: int) -> list[Record]:
        """Drops every record after `step` and any status: a run continues from its checkpoint, not from its records."""
        records = [record for record in self.read()[0] if record.step <= step]
        penalties = [record for record in self.read_penalties() if record.step <= step]
        for path, rows in ((self.records_file, records), (self.penalties_file, penalties)):
            if path.exists():
                files.write(path, _lines(rows))
        return records

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        import torch

        with files.atomic(self.checkpoint_file) as file:
            torch.save(state, file)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, read without executing code; None if there is none, or it is damaged."""
        import torch

        try:
            data = self.checkpoint_file.read_bytes()
        except FileNotFoundError:
            return None
        try:
            state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except (EOFError, RuntimeError, ValueError, KeyError, UnpicklingError):
            return None
        return state

    def finish(
        self, status: Status, model: "dict[str, Tensor]", best: "tuple[int, dict[str, Tensor]] | None" = None
    ) -> None:
        """Saves the model (and that of the best step, if there is one), then the status, then drops the checkpoint."""
        import safetensors.torch

        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.items()}
        files.write(self.model_file, safetensors.torch.save(tensors))
        if best is None:
            self.best_file.unlink(missing_ok=True)
        else:
            save_weights(self.best_file, best[1], {"step": str(best[0])})
        self.append([status])
        self.checkpoint_file.unlink(missing_ok=True)

    def load_best(self) -> "tuple[int, dict[str, Tensor]] | None":
        """The step that training-domain validation selected and its weights; runs of earlier versions have none."""
        if not self.best_file.is_file():
            return None
        tensors = load_weights(self.best_file, "delete it, and those of the last step are used")
        return int(read_metadata(self.best_file)["step"]), tensors

    def save_audit(self, audit: dict[str, Any]) -> None:
        """Saves the summary of the model's audit with its run."""
        files.write(self.audit_file, json.dumps(audit))

    def read_audit(self) -> dict[str, Any] | None:
        """The summary of the model's audit, if there is one."""
        try:
            audit: dict[str, Any] = json.loads(self.audit_file.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            raise UserError(f"{self.audit_file} is damaged: delete it, and audit the model again") from None
        return audit

    def load_model(self) -> "dict[str, Tensor]":
        """The weights after the last step; records that were unpacked have none."""
        import safetensors.torch

        try:
            tensors: dict[str, Tensor] = safetensors.torch.load_file(self.model_file)
        except (FileNotFoundError, safetensors.SafetensorError):
            what = "is damaged" if self.model_file.exists() else "is missing"
            raise UserError(f"{self.model_file} {what}: delete {self.path}, and train the run again") from None
        return tensors


def _parse(row: Any) -> Record | Status:
    if "status" in row:
        return Status(**row)
    record = Record(**row)
    if not isinstance(record.accuracy, (int, float)):
        raise TypeError("an accuracy is a number")
    return record


def _lines(rows: Iterable[Record | PenaltyRecord | Status]) -> bytes:
    return "".join(json.dumps(row_values(row)) + "\n" for row in rows).encode()


def row_values(row: Record | PenaltyRecord | Status) -> dict[str, Any]:
    """All fields but those that are None, which earlier versions do not know."""
    return {name: value for name, value in asdict(row).items() if value is not None}


def read_rows(path: Path, row: Callable[[Any], T]) -> list[T]:
    """The rows of a JSON Lines file, none if it is absent.

    A last line cut short by a crash (it lacks its newline) is dropped; damage anywhere else is an error.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            rows.append(row(json.loads(line)))
        except (ValueError, TypeError):
            raise UserError(f"{path}, line {number}: not a record; restore the file or delete its folder") from None
    return rows
