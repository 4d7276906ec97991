"""What a launcher tells of its runs as they go, whichever launcher it is."""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from domainwise.algorithms import ALGORITHMS
from domainwise.core import files, plugins
from domainwise.core.errors import UserError
from domainwise.data.catalogue import data_root
from domainwise.data.find import find_dataset
from domainwise.engine import trackers
from domainwise.engine.devices import check_device, pick_device
from domainwise.nets.weights import locate
from domainwise.protocol.records import RunFolder, Status
from domainwise.protocol.runs import Run

ATTEMPTS = 3
"""How often a run is started before the death of its worker or machine is held against it."""


@dataclass(frozen=True)
class Event:
    """A run has reached a step, or ended."""

    run: Run
    step: int
    ended: Status | None = None
    earlier: bool = False
    """Whether it had ended before this call."""


@dataclass(frozen=True)
class Settings:
    """What every worker needs to know."""

    out: Path
    device: str = "auto"
    data_root: Path | None = None
    retry: bool = False
    """Whether runs that failed before are tried again."""
    log_to: tuple[str, ...] = ()
    """Trackers that hear of every run."""
    plugins: tuple[str, ...] = ()
    """Files of the user's own that name what the runs use; workers import them."""

    def check(self, runs: Sequence[Run], *, here: bool = True) -> None:
        """Finds what would stop every run, before any is started or anything written.

        Runs that are not trained here (from a cluster's login node) look for their device where they are.
        """
        if here:
            pick_device(self.device)
        else:
            check_device(self.device)
        needed = {(r.dataset, r.image_size, domain, r.held_out_of(domain)) for r in runs for domain in r.domains}
        for dataset, image_size, domain, held_out in sorted(needed):
            find_dataset(dataset).load(self.data_root, image_size).held_out_count(domain, held_out)
        for weights in sorted({run.weights for run in runs} - {""}):
            locate(weights, self.data_root)
        trackers.check(self.log_to)
        files.writable_folder(self.out)

    def lacking(self, runs: Sequence[Run]) -> tuple[list[str], list[str]]:
        """Which data and which weights the runs need that are not there, without opening any."""
        data = [find_dataset(name).missing(self.data_root) for name in sorted({run.dataset for run in runs})]
        weights = []
        for reference in sorted({run.weights for run in runs} - {""}):
            try:
                locate(reference, self.data_root)
            except UserError as error:
                weights.append(str(error))
        return [one for one in data if one], weights

    def elsewhere(self) -> "Settings":
        """For workers that share the files but not the environment or the working folder."""
        root = data_root(self.data_root)
        known = root.absolute() if root.is_dir() else None
        return replace(self, out=self.out.absolute(), data_root=known, plugins=plugins.files())


def cost(run: Run) -> float:
    """A run's work in passes, the unit in which time left is estimated."""
    return run.steps * ALGORITHMS[run.algorithm].passes


def open_runs(runs: Sequence[Run], settings: Settings, waiting: deque[Run]) -> Generator[Event]:
    """Fills `waiting` with the runs that have not ended, and tells of those that have."""
    for run in runs:
        status = ended(run, settings)
        if status is None:
            waiting.append(run)
        else:
            yield Event(run, status.step, status, earlier=True)


def ended(run: Run, settings: Settings) -> Status | None:
    """How a run ended, if there is nothing left to do for it."""
    status = RunFolder(settings.out, run).status()
    return None if status is not None and status.status == "failed" and settings.retry else status


def failed(out: Path, run: Run, error: Exception) -> Status:
    """Says in its records what went wrong with a run."""
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return mark_failed(out, run, f"{kind}{error}")


def mark_failed(out: Path, run: Run, reason: str) -> Status:
    """Says in its records that a run was given up, and why."""
    folder = RunFolder(out, run)
    folder.create()
    status = Status(run.id, folder.last_step() or 0, "failed", " ".join(reason.split())[:500])
    folder.append([status])
    return status
