"""Runs on a cluster: submitted as tasks of their own, watched through the shared folder.

Each task trains one run; it is idempotent (a run that has ended is not trained again) and exclusive (claims), so a task
may be lost, repeated or started twice without harm. A lost task is submitted again; unless it left a new checkpoint,
that counts as an attempt, and so does a task that somebody cancelled.
"""

import signal
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from domainwise.core import plugins
from domainwise.core.errors import UserError
from domainwise.core.locks import RunLocked, lock_holder
from domainwise.engine.interrupt import Interruption
from domainwise.engine.train import Interrupted, train
from domainwise.protocol.records import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweep.events import ATTEMPTS, Event, Settings, ended, failed, mark_failed, open_runs

GRACE_SECONDS = 40.0
"""How long interrupted tasks may take to save their checkpoints (Slurm kills after 30 seconds)."""


@dataclass(frozen=True)
class Over:
    """A task that is over: why it was lost, if it was, and whether somebody wanted that."""

    run: Run
    lost: str = ""
    cancelled: bool = False


class Refused(Exception):
    """The cluster does not take a task now, and why."""


class Cluster(Protocol):
    """What a launcher must offer."""

    @property
    def poll_seconds(self) -> float:
        """How often to look at it."""

    @property
    def capacity(self) -> int:
        """Tasks worth having submitted at once."""

    def adopt(self, run: Run) -> bool:
        """Whether a task that an earlier driver submitted for this run is still there: from now on it is ours."""

    def submit(self, run: Run, settings: Settings) -> None:
        """Starts a task that calls `train_task`."""

    def finished(self) -> list[Over]:
        """Our tasks that have ended since the last call."""

    def close(self) -> None:
        """Interrupts our tasks and waits until they have saved their checkpoints."""


def train_task(run: Run, settings: Settings) -> None:
    """One run, wherever this is called, on one thread as everywhere; what goes wrong is written to its records.

    A request to stop that comes while the data is loaded is heard after the first step.
    """
    torch.set_num_threads(1)
    plugins.use(settings.plugins)

    def hear(_: int) -> None:
        if early.requested:
            signal.raise_signal(signal.SIGTERM)

    with Interruption() as early:
        try:
            train(
                run,
                settings.out,
                device=settings.device,
                data_root=settings.data_root,
                retry=settings.retry,
                log_to=settings.log_to,
                progress=hear,
            )
        except (RunLocked, Interrupted):
            return
        except Exception as error:
            failed(settings.out, run, error)


def execute_on(cluster: Cluster, runs: Sequence[Run], settings: Settings) -> Generator[Event]:
    """Keeps the cluster busy until every run has ended; closing the iterator interrupts and saves them."""
    driver = _Driver(cluster, settings.elsewhere())
    try:
        yield from open_runs(runs, driver.settings, driver.waiting)
        yield from driver.work()
    finally:
        cluster.close()


class _Driver:
    """What waits, what is submitted, and how often each run's task was lost."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.cluster, self.settings = cluster, settings
        self.waiting: deque[Run] = deque()
        self.submitted: dict[str, Run] = {}
        self.checkpoints: dict[str, int] = {}
        self.attempts: Counter[str] = Counter()
        self.steps: dict[str, int] = {}

    def work(self) -> Generator[Event]:
        while self.waiting or self.submitted:
            yield from self.submit()
            for over in self.cluster.finished():
                yield from self.settle(over)
            yield from self.progress()
            if self.waiting or self.submitted:
                time.sleep(self.cluster.poll_seconds)

    def submit(self) -> Generator[Event]:
        """Fills the cluster with waiting runs, but for those that somebody else has ended or is working on."""
        for _ in range(min(len(self.waiting), self.cluster.capacity - len(self.submitted))):
            run = self.waiting.popleft()
            if (status := ended(run, self.settings)) is not None:
                yield Event(run, status.step, status)
                continue
            if not self.cluster.adopt(run):
                if self.is_held(run):
                    self.waiting.append(run)
                    continue
                try:
                    self.cluster.submit(run, self.settings)
                except Refused as error:
                    self.waiting.appendleft(run)
                    if not self.submitted:
                        raise UserError(str(error)) from None
                    return  # it may have room again when some have ended
            self.submitted[run.id] = run
            self.checkpoints[run.id] = self.checkpoint(run)

    def settle(self, over: Over) -> Generator[Event]:
        """A task is over: its run has ended, or is to be submitted again, or is given up."""
        run = self.submitted.pop(over.run.id)
        status = RunFolder(self.settings.out, run).status()
        if status is None or (over.lost and status.status == "failed" and self.settings.retry):
            progressed = self.checkpoint(run) > self.checkpoints[run.id]
            if not self.is_held(run) and (over.cancelled or not progressed):
                self.attempts[run.id] += 1
            if self.attempts[run.id] < ATTEMPTS:
                self.waiting.append(run)
                return
            reason = f"its task was lost {ATTEMPTS} times, at last: {over.lost or 'it stopped without a word'}"
            status = mark_failed(self.settings.out, run, reason)
        yield Event(run, status.step, status)

    def is_held(self, run: Run) -> bool:
        return lock_holder(RunFolder(self.settings.out, run).path) is not None

    def checkpoint(self, run: Run) -> int:
        """When the run's checkpoint was written, 0 if there is none: a later one is progress."""
        try:
            return RunFolder(self.settings.out, run).checkpoint_file.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def progress(self) -> Generator[Event]:
        """The steps that submitted runs have been judged at, from their records."""
        for run in self.submitted.values():
            step = RunFolder(self.settings.out, run).last_step()
            if step is not None and self.steps.get(run.id) != step:
                self.steps[run.id] = step
                yield Event(run, step)
