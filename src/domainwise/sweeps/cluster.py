"""Runs on a cluster: one submitted task per run, watched through the shared folder.

A task is idempotent (a run that has ended is not trained again) and exclusive (run locks): it may be lost, repeated or
started twice without harm. A lost task is submitted again; that counts as an attempt if the task left no new
checkpoint, or if somebody cancelled it.
"""

import logging
import signal
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from domainwise.core import files, plugins
from domainwise.core.errors import StorageError, UserError
from domainwise.core.locks import RunLocked, lock_holder
from domainwise.core.phrasing import duration
from domainwise.engine.interrupt import Interruption
from domainwise.engine.train import Interrupted, train
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps.events import ATTEMPTS, Event, Settings, final_status, mark_failed, unfinished

log = logging.getLogger(__name__)
GRACE_SECONDS = 40.0
"""How long interrupted tasks may take to save their checkpoints (Slurm kills after 30 seconds)."""

NODE_SECONDS = 300.0
"""How long to wait for a machine where none is left."""
NOTICED_SECONDS = 60.0
"""Losses of one run by dying machines within this time are one."""


@dataclass(frozen=True)
class TaskEnded:
    """A task that has ended; `lost` is the reason if it did not end by itself, `node_died` whether its machine died."""

    run: Run
    lost: str = ""
    cancelled: bool = False
    node_died: bool = False


class SubmissionRefused(Exception):
    """The cluster accepts no task now, and why."""


class Cluster(Protocol):
    """What a cluster must offer."""

    @property
    def poll_seconds(self) -> float:
        """The pause between two looks at it."""

    @property
    def capacity(self) -> int:
        """The most tasks to have submitted at once."""

    def ready(self) -> bool:
        """Whether some machine can take a task; without one, none is submitted."""

    def adopt(self, run: Run) -> bool:
        """Takes over the task that an earlier driver submitted for this run, if it still exists; says whether."""

    def submit(self, run: Run, settings: Settings) -> None:
        """Starts a task that calls `train_task`."""

    def finished(self) -> list[TaskEnded]:
        """Our tasks that have ended since the last call."""

    def close(self) -> None:
        """Interrupts our tasks and waits until they have saved their checkpoints."""


def train_task(run: Run, settings: Settings) -> None:
    """Trains one run; an error is written to the run's records.

    A signal that comes while the data is loaded takes effect after the first step.
    """
    plugins.add(settings.plugins)

    def stop_if_requested(_: int) -> None:
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
                progress=stop_if_requested,
            )
        except (RunLocked, Interrupted, StorageError):  # all of which can be continued
            return
        except Exception as error:
            mark_failed(settings.out, run, error, settings.device)


def execute_on(cluster: Cluster, runs: Sequence[Run], settings: Settings) -> Generator[Event]:
    """Keeps the cluster busy until every run has ended; closing the iterator interrupts and saves them."""
    driver = _Driver(cluster, settings.for_workers())
    try:
        yield from unfinished(runs, driver.settings, driver.waiting)
        yield from driver.work()
    finally:
        cluster.close()


class _Driver:
    """The runs that wait, those that are submitted, and how often each run's task was lost."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.cluster, self.settings = cluster, settings
        self.waiting: deque[Run] = deque()
        self.submitted: dict[str, Run] = {}
        self.checkpoints: dict[str, int] = {}
        self.attempts: Counter[str] = Counter()
        self.steps: dict[str, int] = {}
        self.node_died: dict[str, float] = {}

    def work(self) -> Generator[Event]:
        while self.waiting or self.submitted:
            self.wait_for_node()
            yield from self.submit()
            for task in self.cluster.finished():
                yield from self.handle(task)
            yield from self.progress()
            if self.waiting or self.submitted:
                time.sleep(self.cluster.poll_seconds)

    def wait_for_node(self) -> None:
        """Returns when the cluster can take a task; raises UserError if it cannot for NODE_SECONDS."""
        if self.cluster.ready():
            return
        log.warning("no node of the cluster is alive: waiting up to %s for one", duration(NODE_SECONDS))
        deadline = time.monotonic() + NODE_SECONDS
        while not self.cluster.ready():
            if time.monotonic() > deadline:
                raise UserError(
                    f"no node of the cluster was alive for {duration(NODE_SECONDS)}: start one; finished runs and "
                    "checkpoints are kept, and the same command continues"
                )
            time.sleep(self.cluster.poll_seconds)

    def submit(self) -> Generator[Event]:
        """Fills the cluster with waiting runs, except those that another driver has ended or is training."""
        for _ in range(min(len(self.waiting), self.cluster.capacity - len(self.submitted))):
            run = self.waiting.popleft()
            if (status := final_status(run, self.settings)) is not None:
                yield Event(run, status.step, status)
                continue
            if not self.cluster.adopt(run):
                if self.is_locked(run):
                    self.waiting.append(run)
                    continue
                try:
                    self.cluster.submit(run, self.settings)
                except SubmissionRefused as error:
                    self.waiting.appendleft(run)
                    if not self.submitted:
                        raise UserError(str(error)) from None
                    return  # until some have ended
            self.submitted[run.id] = run
            self.checkpoints[run.id] = self.checkpoint_time(run)

    def handle(self, task: TaskEnded) -> Generator[Event]:
        """Of a task that has ended: yields the end of its run, or submits it again, or gives it up."""
        run = self.submitted.pop(task.run.id)
        status = RunFolder(self.settings.out, run).status()
        if status is None or (task.lost and status.status == "failed" and self.settings.retry):
            files.check_space(self.settings.out)  # a full disk stops every task: no run's fault
            progressed = self.checkpoint_time(run) > self.checkpoints[run.id]
            if not self.is_locked(run) and (task.cancelled or not progressed) and not self.is_same_death(task):
                self.attempts[run.id] += 1
            if self.attempts[run.id] < ATTEMPTS:
                self.waiting.append(run)
                return
            reason = f"its task was lost {ATTEMPTS} times, at last: {task.lost or 'it stopped without a word'}"
            status = mark_failed(self.settings.out, run, reason)
        yield Event(run, status.step, status)

    def is_same_death(self, task: TaskEnded) -> bool:
        """Whether a node's death was counted for this run already: a cluster takes a while to notice it."""
        before, now = self.node_died.get(task.run.id), time.monotonic()
        if task.node_died and (before is None or now - before > NOTICED_SECONDS):
            self.node_died[task.run.id] = now
        return task.node_died and before is not None and now - before <= NOTICED_SECONDS

    def is_locked(self, run: Run) -> bool:
        return lock_holder(RunFolder(self.settings.out, run).path) is not None

    def checkpoint_time(self, run: Run) -> int:
        """When the run's checkpoint was written, 0 without one."""
        try:
            return RunFolder(self.settings.out, run).checkpoint_file.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def progress(self) -> Generator[Event]:
        """Yields the latest evaluated step of submitted runs, from their records."""
        for run in self.submitted.values():
            step = RunFolder(self.settings.out, run).last_step()
            if step is not None and self.steps.get(run.id) != step:
                self.steps[run.id] = step
                yield Event(run, step)
