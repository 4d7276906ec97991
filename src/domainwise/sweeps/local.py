"""Runs in parallel on one machine: worker processes, in each of which runs may be interleaved.

There is one worker per core with one run each (fewer if runs have several threads), or one worker per GPU with several.
The runs of a worker that dies (killed, out of memory) continue from their checkpoints, each alone in a worker, up to
ATTEMPTS times. A worker whose driver is gone saves its runs and stops. Runs that another driver trains are waited for.
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
from domainwise.core.errors import StorageError
from domainwise.core.threads import cores
from domainwise.data.find import find_dataset
from domainwise.engine.devices import pick_device
from domainwise.protocol.records import Status
from domainwise.protocol.runs import Run
from domainwise.sweeps.events import ATTEMPTS, Event, Settings, final_status, mark_failed, unfinished
from domainwise.sweeps.interleaving import DiskRefused, InterleavedRuns, RunUpdate

GRACE_SECONDS = 20.0
"""How long an interrupted worker may take to save the checkpoint of each run it holds."""
REPORT_SECONDS = 0.2
"""A worker reports the steps of a run at most this often."""
PER_GPU = 8
"""Runs of small networks that share one GPU."""
POLL_SECONDS = 1.0
"""How often the runs of other drivers are looked at."""


def execute(
    runs: Sequence[Run], settings: Settings, workers: int | None = None, per_gpu: int | None = None
) -> Generator[Event]:
    """Trains all runs that have not ended yet and yields their events; closing the iterator interrupts and saves them.

    `per_gpu` runs share each worker [default: one on a CPU, several on a GPU if their networks are small].
    """
    settings.check(runs)
    return _execute(runs, settings.for_workers(), workers, per_gpu)


def _execute(runs: Sequence[Run], settings: Settings, workers: int | None, per_gpu: int | None) -> Generator[Event]:
    waiting: deque[Run] = deque()
    yield from unfinished(runs, settings, waiting)
    per_worker = per_gpu or _runs_per_worker(waiting, settings)
    needed = -(-len(waiting) // per_worker)
    pool = _Pool(waiting, settings, min(workers or default_workers(settings.device, waiting), needed), per_worker)
    try:
        yield from pool.work()
    finally:
        pool.close()


def default_workers(device: str, runs: Collection[Run] = ()) -> int:
    """One per GPU, or as many as the cores can give the threads of a run."""
    if pick_device(device).type == "cuda":
        return torch.cuda.device_count()
    return max(1, cores() // max((run.threads for run in runs), default=1))


def _runs_per_worker(runs: Collection[Run], settings: Settings) -> int:
    """Several on a GPU if all networks are small, which leave most of it idle."""
    small = all(find_dataset(dataset).scale == "small" for dataset in {run.dataset for run in runs})
    return PER_GPU if small and pick_device(settings.device).type == "cuda" else 1


class _Pool:
    """The driver's side: the workers, the runs that wait for one, and the runs that other drivers train."""

    def __init__(self, waiting: deque[Run], settings: Settings, size: int, runs_per_worker: int) -> None:
        self.waiting, self.settings, self.runs_per_worker = waiting, settings, runs_per_worker
        self.attempts: Counter[Run] = Counter()
        self.locked: list[Run] = []
        self.workers = [_Worker(settings, number) for number in range(size)]

    def work(self) -> Generator[Event]:
        while True:
            while self.waiting and self.has_room(worker := self.least_busy(), self.waiting[0]):
                run = self.waiting.popleft()
                self.attempts[run] += 1
                worker.send(run)
            busy = [worker for worker in self.workers if worker.runs]
            if not busy and not self.locked:
                return
            ready = wait([worker.pipe for worker in busy], timeout=POLL_SECONDS if self.locked else None)
            for worker in busy:
                if worker.pipe in ready:
                    yield from self.receive(worker)
            yield from self.check_locked()

    def least_busy(self) -> "_Worker":
        return min(self.workers, key=lambda worker: len(worker.runs))

    def has_room(self, worker: "_Worker", run: Run) -> bool:
        """Whether the worker may take the run. A run that is started again has a worker for itself."""
        alone = self.attempts[run] > 0 or any(self.attempts[other] > 1 for other in worker.runs.values())
        return len(worker.runs) < (1 if alone else self.runs_per_worker)

    def receive(self, worker: "_Worker") -> Generator[Event]:
        """Handles an update of one of the worker's runs, or the worker's death."""
        try:
            run_id, update = worker.pipe.recv()
        except (EOFError, OSError):
            lost = list(worker.runs.values())
            worker.start()
            for run in lost:
                if self.attempts[run] < ATTEMPTS:
                    self.waiting.append(run)
                else:
                    reason = f"its worker died {ATTEMPTS} times (killed, or out of memory)"
                    yield Event(run, 0, mark_failed(self.settings.out, run, reason, self.settings.device))
            return
        if isinstance(update, int):
            yield Event(worker.runs[run_id], update)
            return
        run = worker.runs.pop(run_id)
        if isinstance(update, Status):
            yield Event(run, update.step, update)
        elif isinstance(update, DiskRefused):
            raise StorageError(update.message)
        elif update == "out of memory":
            self.waiting.append(run)  # next time alone
        else:
            self.attempts[run] -= 1
            self.locked.append(run)

    def check_locked(self) -> Generator[Event]:
        """Yields the runs that other drivers have ended; tries to take over another once our own are done."""
        for run in list(self.locked):
            if (status := final_status(run, self.settings)) is not None:
                self.locked.remove(run)
                yield Event(run, status.step, status)
        if self.locked and not self.waiting and not self.least_busy().runs:
            time.sleep(POLL_SECONDS)
            self.waiting.append(self.locked.pop(0))

    def close(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
            worker.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS * max([1, *(len(worker.runs) for worker in self.workers)])
        for worker in self.workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()


class _Worker:
    """One process and its runs, by their ids."""

    process: BaseProcess
    pipe: "Connection[object, tuple[str, RunUpdate]]"
    runs: dict[str, Run]

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings, self.number = settings, number
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.runs = {}
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.settings, self.number), daemon=True)
        with _ignoring_interrupts():
            self.process.start()
        theirs.close()

    def send(self, run: Run) -> None:
        try:
            self.pipe.send(run)
        except OSError:
            if not self.runs:  # it died while idle; otherwise `receive` notices
                self.start()
                self.pipe.send(run)
        self.runs[run.id] = run


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """A process started within it ignores Ctrl-C from its start; the driver interrupts its workers itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _work(pipe: "Connection[tuple[str, RunUpdate], Run]", settings: Settings, number: int) -> None:
    """A worker process: receives runs from the pipe and sends updates, until the driver closes the pipe."""
    os.setsid()  # Ctrl-C in the terminal reaches the driver alone, which ends its workers
    torch.set_num_threads(1)  # while data is loaded, by all workers at once; a run sets its own number
    logs.configure(quiet=True)  # the driver has printed the warnings
    plugins.add(settings.plugins)
    if pick_device(settings.device).type == "cuda":
        torch.cuda.set_device(number % torch.cuda.device_count())
    runs, started = InterleavedRuns(settings), time.monotonic()
    reported: dict[Run, float] = {}
    while not runs.stopped:
        try:
            while not runs.trainings or pipe.poll():
                runs.add(pipe.recv())
        except (EOFError, OSError):
            runs.stop()
        for run, update in runs.step_all():
            if isinstance(update, int) and time.monotonic() - reported.get(run, started) < REPORT_SECONDS:
                continue
            reported[run] = time.monotonic()
            try:
                pipe.send((run.id, update))
            except OSError:
                runs.stop()
