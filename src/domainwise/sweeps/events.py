"""What all launchers share: the events they yield, the settings of their workers, and how runs end."""

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from domainwise.algorithms import ALGORITHMS
from domainwise.core import files, plugins
from domainwise.core.errors import UserError
from domainwise.core.provenance import provenance
from domainwise.data.catalogue import data_root
from domainwise.data.find import find_dataset
from domainwise.engine import trackers
from domainwise.engine.devices import check_device, pick_device
from domainwise.nets.weights import locate
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run

ATTEMPTS = 3
"""A run whose worker or machine died so often counts as failed."""


@dataclass(frozen=True)
class Event:
    """A run has reached a step, or ended."""

    run: Run
    step: int
    ended: Status | None = None
    earlier: bool = False
    """Whether the run had ended before the launcher was called."""


@dataclass(frozen=True)
class Settings:
    """What every worker needs besides its runs."""

    out: Path
    device: str = "auto"
    data_root: Path | None = None
    retry: bool = False
    """Whether runs that failed before are tried again."""
    log_to: tuple[str, ...] = ()
    """Names of trackers: tensorboard, wandb, mlflow."""
    plugins: tuple[str, ...] = ()
    """Plugin files that workers import."""

    def check(self, runs: Sequence[Run], *, here: bool = True) -> None:
        """Raises UserError for what would stop every run, before any starts or anything is written.

        If not `here`, the runs are trained on other machines, and the device is not looked for on this one.
        """
        if here:
            pick_device(self.device)
        else:
            check_device(self.device)
        needed = {(r.dataset, r.image_size, domain, r.held_out_of(domain)) for r in runs for domain in r.domains}
        for dataset, image_size, domain, held_out in sorted(needed):
            find_dataset(dataset).load(self.data_root, image_size).split(domain, 0, held_out)
        for weights in sorted({run.weights for run in runs} - {""}):
            locate(weights, self.data_root)
        trackers.check(self.log_to)
        files.writable_folder(self.out)

    def missing_inputs(self, runs: Sequence[Run]) -> tuple[list[str], list[str]]:
        """The data and the weights that the runs need and that are not on this machine, without opening any."""
        data = [find_dataset(name).missing(self.data_root) for name in sorted({run.dataset for run in runs})]
        weights = []
        for reference in sorted({run.weights for run in runs} - {""}):
            try:
                locate(reference, self.data_root)
            except UserError as error:
                weights.append(str(error))
        return [message for message in data if message], weights

    def for_workers(self) -> "Settings":
        """With absolute paths and plugins, for workers with another environment or working folder."""
        root = data_root(self.data_root)
        existing = root.absolute() if root.is_dir() else None
        return replace(self, out=self.out.absolute(), data_root=existing, plugins=plugins.files())


def total_passes(run: Run) -> float:
    """The forward-backward passes of a run, the unit in which the time left is estimated."""
    return run.steps * ALGORITHMS[run.algorithm].passes


def unfinished(runs: Sequence[Run], settings: Settings, waiting: deque[Run]) -> Generator[Event]:
    """Fills `waiting` with the runs that have not ended, and yields an event for each of the others."""
    for run in runs:
        status = final_status(run, settings)
        if status is None:
            waiting.append(run)
        else:
            yield Event(run, status.step, status, earlier=True)


def final_status(run: Run, settings: Settings) -> Status | None:
    """How a run ended; None if it is still to be trained."""
    status = RunFolder(settings.out, run).status()
    return None if status is not None and status.status == "failed" and settings.retry else status


def mark_failed(out: Path, run: Run, reason: Exception | str, device: str | None = None) -> Status:
    """Writes to a run's records that it failed, and why; on this device, unless it was lost on another machine."""
    if isinstance(reason, Exception) and not isinstance(reason, UserError):
        reason = f"{type(reason).__name__}: {reason}"
    folder = RunFolder(out, run)
    folder.create()
    made_with: dict[str, Any] = {}
    if device is not None:
        with suppress(UserError):  # the reason may be that there is no such device
            made_with = provenance(pick_device(device)) | {"threads": run.threads}
    status = Status(run.id, folder.last_step() or 0, "failed", " ".join(str(reason).split())[:500], **made_with)
    folder.append([status])
    return status
