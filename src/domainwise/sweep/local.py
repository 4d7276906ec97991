"""Runs side by side on one machine: worker processes of one thread each, fed one run at a time.

A worker that dies (killed, out of memory) takes only its own run with it, which another worker continues from its
checkpoint, up to a bound. A worker whose driver has gone stops by itself.
"""

import multiprocessing
import os
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from domainwise.data import DATASETS
from domainwise.engine.train import Interrupted, train
from domainwise.errors import UserError
from domainwise.records import RunFolder, Status
from domainwise.runs import Run

ATTEMPTS = 3
"""How often a run is started before a worker's death is held against it."""

GRACE_SECONDS = 20.0
"""How long an interrupted worker may take to save its checkpoint."""

REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Event:
    """A run has reached a step, or ended."""

    run: Run
    step: int
    ended: Status | None = None


@dataclass(frozen=True)
class Settings:
    """What every worker needs to know."""

    out: Path
    device: str
    data_root: Path | None


def execute(
    runs: Sequence[Run],
    out: Path,
    *,
    workers: int | None = None,
    device: str = "auto",
    data_root: Path | None = None,
) -> Generator[Event]:
    """Trains all runs that have not ended yet, telling what happens; closing the iterator interrupts and saves them."""
    for dataset in sorted({run.dataset for run in runs}):
        DATASETS.find(dataset).load(data_root)
    waiting: deque[Run] = deque()
    for planned in runs:
        status = RunFolder(out, planned).read()[1]
        if status is not None and status.status != "failed":
            yield Event(planned, planned.steps - 1, status)
        else:
            waiting.append(planned)
    attempts: Counter[Run] = Counter()
    settings = Settings(out, device, data_root)
    crew = [_Worker(settings) for _ in range(min(workers or os.cpu_count() or 1, len(waiting)))]
    try:
        for worker in crew:
            worker.give(waiting, attempts)
        while busy := [worker for worker in crew if worker.run is not None]:
            for ready in wait([worker.pipe for worker in busy]):
                worker = next(worker for worker in busy if worker.pipe is ready)
                run = worker.run
                assert run is not None
                event = worker.hear(run)
                if event is None:
                    worker.start()
                    if attempts[run] < ATTEMPTS:
                        waiting.append(run)
                    else:
                        event = Event(run, 0, _failed(out, run, f"its worker died {ATTEMPTS} times"))
                if event is not None:
                    yield event
                if event is None or event.ended:
                    worker.give(waiting, attempts)
    finally:
        for worker in crew:
            worker.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in crew:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()


class _Worker:
    """One process and the run it holds."""

    process: BaseProcess
    pipe: "Connection[object, object]"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run: Run | None = None
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.settings), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, waiting: deque[Run], attempts: Counter[Run]) -> None:
        """The next run that waits, if any."""
        self.run = waiting.popleft() if waiting else None
        if self.run is not None:
            attempts[self.run] += 1
            self.pipe.send(self.run)

    def hear(self, run: Run) -> Event | None:
        """What the worker says of its run, or None if it has died."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return Event(run, message.step, message) if isinstance(message, Status) else Event(run, int(str(message)))


def _work(pipe: "Connection[object, object]", settings: Settings) -> None:
    """A worker's life: runs come in by the pipe, steps and statuses go out."""
    os.setsid()  # Ctrl-C in the terminal reaches the driver, which tells its workers
    torch.set_num_threads(1)
    reported = time.monotonic()

    def report(step: int) -> None:
        nonlocal reported
        if time.monotonic() - reported > REPORT_SECONDS:
            pipe.send(step)
            reported = time.monotonic()

    try:
        while isinstance(run := pipe.recv(), Run):
            try:
                outcome = train(
                    run, settings.out, device=settings.device, data_root=settings.data_root, progress=report
                )
                pipe.send(outcome.status)
            except (EOFError, BrokenPipeError, Interrupted):
                return
            except Exception as error:
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                pipe.send(_failed(settings.out, run, f"{kind}{error}"))
    except (EOFError, OSError):
        return


def _failed(out: Path, run: Run, reason: str) -> Status:
    status = Status(run.id, 0, "failed", " ".join(reason.split()))
    RunFolder(out, run).append([status])
    return status
