"""How far a folder's runs are, and which of them failed, why, and what to type to try again."""

import logging
from dataclasses import dataclass
from pathlib import Path

from domainwise.core.phrasing import counted, duration
from domainwise.protocol.dataset_names import title
from domainwise.protocol.records import Status
from domainwise.protocol.runs import Run
from domainwise.sweeps.collection import Collection, runs_parent
from domainwise.sweeps.commands import FIRST_COMMAND, retry_command, sweep_command, train_command
from domainwise.sweeps.domainbed import is_domainbed
from domainwise.sweeps.plan import Plan, saved_plans
from domainwise.sweeps.status import SweepProgress, sweep_progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """A run without a result."""

    run: Run
    status: Status
    retry: str
    """The command; empty for a run that diverged, which would diverge again."""

    @property
    def description(self) -> str:
        unseen = "+".join(self.run.test_domains)
        return f"{title(self.run.dataset)}, unseen {unseen}, draw {self.run.draw}, trial {self.run.trial}"


@dataclass(frozen=True)
class PageProgress:
    """How far the runs are, and the commands that made them where they are known."""

    runs: SweepProgress
    failures: tuple[Failure, ...]
    commands: tuple[str, ...]

    @property
    def failures_by_retry(self) -> dict[str, list[Failure]]:
        """Runs that one command tries again, together."""
        grouped: dict[str, list[Failure]] = {}
        for failure in self.failures:
            grouped.setdefault(failure.retry, []).append(failure)
        return grouped

    @property
    def share(self) -> float:
        """How much has ended, in per cent."""
        ended = self.runs.total - self.runs.running - self.runs.remaining
        return 100 * ended / max(1, self.runs.total)

    @property
    def line(self) -> str:
        """The open runs, in words; empty when there are none."""
        now = self.runs
        if not (now.running or now.remaining):
            return ""
        left = f", about {duration(now.seconds_left)} left" if now.seconds_left is not None else ""
        return f"{now.done} of {counted(now.total, 'run')} done, {now.running} running, {now.remaining} to come{left}"


def progress(folder: Path, collection: Collection) -> PageProgress:
    """From the folder's plans where it has some, and the runs in it."""
    runs = {run.id: run for run in collection.runs}
    if is_domainbed(folder):
        return PageProgress(SweepProgress(len(runs), len(collection.statuses), 0, (), (), None), (), ())
    parent = runs_parent(folder)
    damaged: list[str] = []
    plans = list(saved_plans(folder, damaged))
    for reason in damaged:
        log.warning("%s; its runs that have not begun are not counted", reason)
    planned = {run.id: (run, plan) for plan in plans for run in plan.runs()}
    runs |= {key: run for key, (run, _) in planned.items()}
    now = sweep_progress(parent, list(runs.values()), collection)
    failures = []
    for status in now.failed:
        run, plan = planned.get(status.run, (runs[status.run], None))
        failures.append(Failure(run, status, _retry(run, plan, parent)))
    failures += [Failure(runs[status.run], status, "") for status in now.diverged]
    commands = (sweep_command(plan, folder) for plan in plans)
    return PageProgress(now, tuple(failures), tuple(command for command in commands if command))


def _retry(run: Run, plan: Plan | None, out: Path) -> str:
    """The sweep's own command if the run is one of a plan, else its training alone."""
    command = train_command(run, out) if plan is None else retry_command(plan, out)
    return FIRST_COMMAND if command is None else command
