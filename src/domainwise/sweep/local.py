"""Runs side by side on one machine: worker processes of one thread each, fed one run at a time.

A worker that dies (killed, out of memory) takes only its own run with it, which another worker continues from its
checkpoint, up to a bound. A worker whose driver has gone stops by itself. Runs that another driver does are waited for.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from domainwise.claims import Busy
from domainwise.engine.train import Interrupted, train
from domainwise.errors import UserError
from domainwise.records import Status
from domainwise.runs import Run
from domainwise.sweep.events import ATTEMPTS, Event, Settings, ended, mark_failed, open_runs

GRACE_SECONDS = 20.0
"""How long an interrupted worker may take to save its checkpoint."""
REPORT_SECONDS = 0.2
ELSEWHERE_SECONDS = 1.0
"""How often a run that somebody else works on is looked at."""


def execute(runs: Sequence[Run], settings: Settings, workers: int | None = None) -> Generator[Event]:
    """Trains all runs that have not ended yet, telling what happens; closing the iterator interrupts and saves them."""
    settings.check(runs)
    settings = settings.elsewhere()
    waiting: deque[Run] = deque()
    yield from open_runs(runs, settings, waiting)
    pool = _Pool(waiting, settings, min(workers or os.cpu_count() or 1, len(waiting)))
    try:
        yield from pool.work()
    finally:
        pool.close()


class _Pool:
    """The driver's side: who does what, what waits, and what somebody else is doing."""

    def __init__(self, waiting: deque[Run], settings: Settings, size: int) -> None:
        self.waiting, self.settings = waiting, settings
        self.attempts: Counter[Run] = Counter()
        self.elsewhere: list[Run] = []
        self.crew = [_Worker(settings) for _ in range(size)]

    def work(self) -> Generator[Event]:
        while True:
            for worker in self.crew:
                if worker.run is None and self.waiting:
                    run = self.waiting.popleft()
                    self.attempts[run] += 1
                    worker.give(run)
            busy = {worker.pipe: worker for worker in self.crew if worker.run is not None}
            if not busy and not self.elsewhere:
                return
            ready = wait(list(busy), timeout=ELSEWHERE_SECONDS if self.elsewhere else None)
            for pipe in ready:
                yield from self.hear(next(worker for p, worker in busy.items() if p is pipe))
            yield from self.look_elsewhere()

    def hear(self, worker: "_Worker") -> Generator[Event]:
        """What a worker says of its run: a step, how it ended, that it is somebody else's; nothing if it has died."""
        run = worker.run
        assert run is not None
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            worker.start()
            if self.attempts[run] < ATTEMPTS:
                self.waiting.append(run)
            else:
                reason = f"its worker died {ATTEMPTS} times (killed, or out of memory)"
                yield Event(run, 0, mark_failed(self.settings.out, run, reason))
            return
        if isinstance(message, int):
            yield Event(run, message)
            return
        worker.run = None
        if isinstance(message, Status):
            yield Event(run, message.step, message)
        else:
            self.attempts[run] -= 1
            self.elsewhere.append(run)

    def look_elsewhere(self) -> Generator[Event]:
        """Runs somebody else has ended are told of; others are asked for again once our own waiting runs are done."""
        for run in list(self.elsewhere):
            if (status := ended(run, self.settings)) is not None:
                self.elsewhere.remove(run)
                yield Event(run, status.step, status)
        if not self.waiting and any(worker.run is None for worker in self.crew) and self.elsewhere:
            time.sleep(ELSEWHERE_SECONDS)
            self.waiting.append(self.elsewhere.pop(0))

    def close(self) -> None:
        for worker in self.crew:
            worker.pipe.close()
            worker.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in self.crew:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()


class _Worker:
    """One process and the run it holds."""

    process: BaseProcess
    pipe: "Connection[object, object]"
    run: Run | None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.run = None
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.settings), daemon=True)
        with _deaf_to_interrupts():
            self.process.start()
        theirs.close()

    def give(self, run: Run) -> None:
        try:
            self.pipe.send(run)
        except OSError:  # it died while it had nothing to do
            self.start()
            self.pipe.send(run)
        self.run = run


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A process started within it ignores Ctrl-C from its first moment; the driver decides what is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _work(pipe: "Connection[object, object]", settings: Settings) -> None:
    """A worker's life: runs come in by the pipe, steps and statuses go out, until the driver lets go of the pipe."""
    os.setsid()  # Ctrl-C in the terminal reaches the driver, which tells its workers
    torch.set_num_threads(1)
    reported = time.monotonic()

    def report(step: int) -> None:
        nonlocal reported
        if time.monotonic() - reported > REPORT_SECONDS:
            pipe.send(step)
            reported = time.monotonic()

    with suppress(EOFError, OSError, Interrupted):
        while isinstance(run := pipe.recv(), Run):
            try:
                outcome = train(
                    run,
                    settings.out,
                    device=settings.device,
                    data_root=settings.data_root,
                    retry=settings.retry,
                    progress=report,
                )
                pipe.send(outcome.status)
            except (EOFError, BrokenPipeError, Interrupted):
                raise
            except Busy:
                pipe.send("elsewhere")
            except Exception as error:
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                pipe.send(mark_failed(settings.out, run, f"{kind}{error}"))
