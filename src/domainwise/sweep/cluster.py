"""Runs on a cluster: submitted as tasks of their own, watched through the shared folder.

Each task trains one run; it is idempotent (a run that has ended is not trained again) and exclusive (claims), so a task
may be lost, repeated or started twice without harm.
"""

import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from typing import Protocol

import torch

from domainwise.claims import Busy, holder
from domainwise.engine.train import train
from domainwise.records import RunFolder
from domainwise.runs import Run
from domainwise.sweep.events import ATTEMPTS, Event, Settings, failed, mark_failed, open_runs

POLL_SECONDS = 0.5


class Cluster(Protocol):
    """What a launcher must offer."""

    @property
    def capacity(self) -> int:
        """Tasks worth having submitted at once."""

    def submit(self, run: Run, settings: Settings) -> None:
        """Starts a task that calls `train_task`."""

    def finished(self) -> list[tuple[Run, str | None]]:
        """Tasks that have ended since the last call, with the reason if they were lost."""

    def close(self) -> None:
        """Ends what is still running."""


def train_task(run: Run, settings: Settings) -> None:
    """One run, wherever this is called, on one thread as everywhere; what goes wrong is written to its records."""
    torch.set_num_threads(1)
    try:
        train(run, settings.out, device=settings.device, data_root=settings.data_root, retry=settings.retry)
    except Busy:
        return
    except Exception as error:
        failed(settings.out, run, error)


def execute_on(cluster: Cluster, runs: Sequence[Run], settings: Settings) -> Generator[Event]:
    """Keeps the cluster busy until every run has ended; a lost task is submitted again, up to a bound."""
    settings.check(runs)
    settings = settings.elsewhere()
    waiting: deque[Run] = deque()
    yield from open_runs(runs, settings, waiting)
    submitted: dict[str, Run] = {}
    attempts: Counter[str] = Counter()
    seen: dict[str, int] = {}
    try:
        while waiting or submitted:
            while waiting and len(submitted) < cluster.capacity:
                run = waiting.popleft()
                cluster.submit(run, settings)
                submitted[run.id] = run
            for run, lost in cluster.finished():
                submitted.pop(run.id, None)
                status = RunFolder(settings.out, run).status()
                if status is None:
                    if holder(RunFolder(settings.out, run).path) is None:
                        attempts[run.id] += 1
                    if attempts[run.id] < ATTEMPTS:
                        waiting.append(run)
                        continue
                    reason = f"its task was lost {ATTEMPTS} times: {lost or 'no word of it'}"
                    status = mark_failed(settings.out, run, reason)
                yield Event(run, status.step, status)
            yield from _progress(submitted, settings, seen)
            time.sleep(POLL_SECONDS)
    finally:
        cluster.close()


def _progress(submitted: dict[str, Run], settings: Settings, seen: dict[str, int]) -> Generator[Event]:
    """The steps that submitted runs have been judged at, from their records."""
    for run in submitted.values():
        step = RunFolder(settings.out, run).last_step()
        if step is not None and seen.get(run.id) != step:
            seen[run.id] = step
            yield Event(run, step)
