"""Runs side by side on one machine: worker processes of one thread each, in each of which runs may take turns.

There is a worker per core with one run each, or a worker per GPU with several. A worker that dies (killed, out of
memory) takes only its own runs with it, which are continued from their checkpoints, each alone in a worker, up to a
bound. A worker whose driver has gone saves and stops by itself. Runs that another driver does are waited for.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from domainwise.core import logs, plugins
from domainwise.data.find import find_dataset
from domainwise.engine.devices import pick_device
from domainwise.protocol.records import Status
from domainwise.protocol.runs import Run
from domainwise.sweep.events import ATTEMPTS, Event, Settings, ended, mark_failed, open_runs
from domainwise.sweep.interleaving import News, Turns

GRACE_SECONDS = 20.0
"""How long an interrupted worker may take to save the checkpoint of each run it holds."""
REPORT_SECONDS = 0.2
PER_GPU = 8
"""Small networks that take turns on one GPU."""
ELSEWHERE_SECONDS = 1.0
"""How often a run that somebody else works on is looked at."""


def execute(
    runs: Sequence[Run], settings: Settings, workers: int | None = None, per_gpu: int | None = None
) -> Generator[Event]:
    """Trains all runs that have not ended yet, telling what happens; closing the iterator interrupts and saves them.

    `per_gpu` runs take turns in each worker [default: one on a CPU, several on a GPU where they leave room].
    """
    settings.check(runs)
    settings = settings.elsewhere()
    waiting: deque[Run] = deque()
    yield from open_runs(runs, settings, waiting)
    turns = per_gpu or _turns(waiting, settings)
    pool = _Pool(waiting, settings, min(workers or places(settings.device), -(-len(waiting) // turns)), turns)
    try:
        yield from pool.work()
    finally:
        pool.close()


def places(device: str) -> int:
    """Workers on this machine: one per GPU, or one per core."""
    return torch.cuda.device_count() if pick_device(device).type == "cuda" else os.cpu_count() or 1


def _turns(runs: Collection[Run], settings: Settings) -> int:
    """How many runs share a worker: small networks leave most of a GPU idle, large ones fill it."""
    small = all(find_dataset(dataset).scale == "small" for dataset in {run.dataset for run in runs})
    return PER_GPU if small and pick_device(settings.device).type == "cuda" else 1


class _Pool:
    """The driver's side: who does what, what waits, and what somebody else is doing."""

    def __init__(self, waiting: deque[Run], settings: Settings, size: int, turns: int) -> None:
        self.waiting, self.settings, self.turns = waiting, settings, turns
        self.attempts: Counter[Run] = Counter()
        self.elsewhere: list[Run] = []
        self.crew = [_Worker(settings, number) for number in range(size)]

    def work(self) -> Generator[Event]:
        while True:
            while self.waiting and self.room(worker := self.emptiest(), self.waiting[0]):
                run = self.waiting.popleft()
                self.attempts[run] += 1
                worker.give(run)
            busy = [worker for worker in self.crew if worker.runs]
            if not busy and not self.elsewhere:
                return
            ready = wait([worker.pipe for worker in busy], timeout=ELSEWHERE_SECONDS if self.elsewhere else None)
            for worker in busy:
                if worker.pipe in ready:
                    yield from self.hear(worker)
            yield from self.look_elsewhere()

    def emptiest(self) -> "_Worker":
        return min(self.crew, key=lambda worker: len(worker.runs))

    def room(self, worker: "_Worker", run: Run) -> bool:
        """Whether the worker may take the run. One that has lost its worker before is left alone with the next."""
        wary = self.attempts[run] > 0 or any(self.attempts[other] > 1 for other in worker.runs.values())
        return len(worker.runs) < (1 if wary else self.turns)

    def hear(self, worker: "_Worker") -> Generator[Event]:
        """What a worker says of a run: a step, how it ended, that it is somebody else's; nothing if it has died."""
        try:
            name, news = worker.pipe.recv()
        except (EOFError, OSError):
            lost = list(worker.runs.values())
            worker.start()
            for run in lost:
                if self.attempts[run] < ATTEMPTS:
                    self.waiting.append(run)
                else:
                    reason = f"its worker died {ATTEMPTS} times (killed, or out of memory)"
                    yield Event(run, 0, mark_failed(self.settings.out, run, reason))
            return
        if isinstance(news, int):
            yield Event(worker.runs[name], news)
            return
        run = worker.runs.pop(name)
        if isinstance(news, Status):
            yield Event(run, news.step, news)
        elif news == "crowded":
            self.waiting.append(run)  # and tried alone
        else:
            self.attempts[run] -= 1
            self.elsewhere.append(run)

    def look_elsewhere(self) -> Generator[Event]:
        """Runs somebody else has ended are told of; others are asked for again once our own waiting runs are done."""
        for run in list(self.elsewhere):
            if (status := ended(run, self.settings)) is not None:
                self.elsewhere.remove(run)
                yield Event(run, status.step, status)
        if self.elsewhere and not self.waiting and not self.emptiest().runs:
            time.sleep(ELSEWHERE_SECONDS)
            self.waiting.append(self.elsewhere.pop(0))

    def close(self) -> None:
        for worker in self.crew:
            worker.pipe.close()
            worker.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS * max([1, *(len(worker.runs) for worker in self.crew)])
        for worker in self.crew:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()


class _Worker:
    """One process and the runs it holds, by their names."""

    process: BaseProcess
    pipe: "Connection[object, tuple[str, News]]"
    runs: dict[str, Run]

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings, self.number = settings, number
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.runs = {}
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.settings, self.number), daemon=True)
        with _deaf_to_interrupts():
            self.process.start()
        theirs.close()

    def give(self, run: Run) -> None:
        try:
            self.pipe.send(run)
        except OSError:
            if not self.runs:  # it died while it had nothing to do; else its death will be heard of
                self.start()
                self.pipe.send(run)
        self.runs[run.id] = run


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


def _work(pipe: "Connection[tuple[str, News], Run]", settings: Settings, number: int) -> None:
    """A worker's life: runs come in by the pipe, steps and statuses go out, until the driver lets go of the pipe."""
    os.setsid()  # Ctrl-C in the terminal reaches the driver, which tells its workers
    torch.set_num_threads(1)
    logs.configure(quiet=True)  # the driver has said what there is to say
    plugins.use(settings.plugins)
    if pick_device(settings.device).type == "cuda":
        torch.cuda.set_device(number % torch.cuda.device_count())
    turns, born = Turns(settings), time.monotonic()
    told: dict[Run, float] = {}
    while not turns.over:
        try:
            while not turns.trainings or pipe.poll():
                turns.take_in(pipe.recv())
        except (EOFError, OSError):
            turns.stop()
        for run, news in turns.round():
            if isinstance(news, int) and time.monotonic() - told.get(run, born) < REPORT_SECONDS:
                continue
            told[run] = time.monotonic()
            try:
                pipe.send((run.id, news))
            except OSError:
                turns.stop()
