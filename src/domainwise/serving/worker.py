"""One thread owns the model. It computes the images of concurrent requests together, in the order they came."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from domainwise.core.printing import printable
from domainwise.serving.limits import Limits, Refused, busy

log = logging.getLogger(__name__)

NEWEST = 0.3
"""The weight of the latest batch in the pace."""
STUCK = 6
"""Times the longest wait, after which the model counts as stuck."""

Compute = Callable[[Tensor, str], list[Any]]
"""Images [N, C, H, W] of a domain -> an answer for each."""


@dataclass
class ImagesJob:
    """The images of one request. Jobs of the same function are computed together, unless one must be `alone`."""

    compute: Compute
    images: Tensor
    domain: str = ""
    alone: bool = False
    after: Callable[[], None] = lambda: None  # called when the answer is given
    answer: "Future[list[Any]]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)

    def joins(self, other: "ImagesJob") -> bool:
        """Whether it can share a batch with another."""
        return not self.alone and not other.alone and self.compute == other.compute


class Worker:
    """The queue of jobs, of `queue` images and `wait_seconds` at most, and the thread that computes them."""

    def __init__(self, limits: Limits, threads: int, pace: float, computed: Callable[[int, float], None]) -> None:
        self.limits, self.threads, self.computed = limits, threads, computed
        self.pace = pace  # seconds per image, of the latest batches
        self.taken = 0  # images between the decision to take a request and its answer
        self._jobs: deque[ImagesJob] = deque()
        self._changed = threading.Condition()
        self._closing = True
        self._thread = threading.Thread()

    def start(self) -> None:
        self._closing = False
        # no daemon: a process that ends while one computes is aborted
        self._thread = threading.Thread(target=self._work, name="model")
        self._thread.start()

    def close(self) -> None:
        """Ends the thread when all jobs are done, but those that nobody waits for any more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self.limits.shutdown_seconds)

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        return sum(len(job.images) for job in tuple(self._jobs))

    @property
    def healthy(self) -> bool:
        """Whether the thread runs, and no job has waited for longer than it may."""
        jobs = tuple(self._jobs)
        late = bool(jobs) and time.monotonic() - jobs[0].since > STUCK * self.limits.wait_seconds
        return self._thread.is_alive() and not self._closing and not late

    @contextmanager
    def room(self, images: int) -> Iterator[None]:
        """Takes in a request of so many images, or refuses it at once; only the thread of the event loop calls it."""
        if self.taken + images > self.limits.queue:
            raise busy(f"the server works on {self.taken} images and takes {self.limits.queue} at most")
        if self.taken and self.taken * self.pace > self.limits.wait_seconds:
            raise busy(f"the images would wait longer than {self.limits.wait_seconds:g} s")
        self.taken += images
        try:
            yield
        finally:
            self.taken -= images

    def submit(self, job: ImagesJob) -> "Future[list[Any]]":
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise busy("the server is stopping")
            self._jobs.append(job)
            self._changed.notify_all()
        return job.answer

    def _work(self) -> None:
        torch.set_num_threads(self.threads)
        while jobs := self._next_jobs():
            self._compute(jobs)

    def _next_jobs(self) -> list[ImagesJob]:
        """The next job and those that can join it; none when the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing)
            if not self._jobs:
                return []
            jobs = [self._jobs.popleft()]
            until = time.monotonic() + self.limits.linger_seconds
            while not jobs[0].alone:
                images = sum(len(job.images) for job in jobs)
                while self._jobs and self._jobs[0].joins(jobs[0]):
                    if images + len(self._jobs[0].images) > self.limits.batch_size:
                        return jobs
                    jobs.append(self._jobs.popleft())
                    images += len(jobs[-1].images)
                remaining = until - time.monotonic()
                if self._jobs or self._closing or remaining <= 0:
                    return jobs
                self._changed.wait(remaining)
            return jobs

    def _compute(self, jobs: list[ImagesJob]) -> None:
        jobs = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
        if not jobs:
            return
        started = time.monotonic()
        try:
            images = torch.cat([job.images for job in jobs])
            answers = iter(jobs[0].compute(images, jobs[0].domain))
        except Exception as error:  # one request's failure must not end the thread that all depend on
            if not isinstance(error, Refused):
                count = sum(len(job.images) for job in jobs)
                log.error("the model failed on %d images: %s", count, printable(str(error)))
                log.debug("traceback", exc_info=True)
            for job in jobs:
                job.answer.set_exception(error)
            return
        seconds = time.monotonic() - started
        self.pace += NEWEST * (seconds / len(images) - self.pace)
        self.computed(len(images), seconds)
        for job in jobs:
            job.answer.set_result([next(answers) for _ in job.images])
        for job in jobs:
            job.after()
