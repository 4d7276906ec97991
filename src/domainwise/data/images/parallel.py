"""Decode many image files in parallel, in helper processes.

A helper is `decode.py` run as a program. Unlike a process of `multiprocessing` it imports no torch, needs no guarded
`__main__` and may be started by a worker of a sweep. It starts in a moment, and an image that crashes the decoder ends
only the helper.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from domainwise.core.threads import cores
from domainwise.data.images import decode, progress
from domainwise.data.images.remote import Location

CHUNK = 16
"""Files per job."""
FEW = 64
"""This process decodes so many files before a helper has started."""

Answer = dict[str, Any]


def decode_all(files: Sequence[Location], description: str, **job: Any) -> Iterator[tuple[int, Answer]]:
    """(number, answer) for every file in order: `decode.work` on all cores, which reports its progress."""
    chunks = [range(start, min(start + CHUNK, len(files))) for start in range(0, len(files), CHUNK)]
    jobs = [{**job, "files": [str(files[i]) for i in chunk], "rows": list(chunk)} for chunk in chunks]
    few = len(files) <= FEW
    results = map(decode.work, jobs) if few else _by_helpers(jobs)
    with (progress.silent if few else progress.show)(description, len(files)) as advance:
        for chunk, answers in zip(chunks, results, strict=True):
            yield from zip(chunk, answers, strict=True)
            advance(len(chunk))


def _by_helpers(jobs: Sequence[Answer]) -> Iterator[list[Answer]]:
    helpers = [_Helper() for _ in range(min(cores(), len(jobs)))]
    idle: SimpleQueue[_Helper] = SimpleQueue()
    for helper in helpers:
        idle.put(helper)

    def ask(job: Answer) -> list[Answer]:
        helper = idle.get()
        try:
            return helper.ask(job)
        finally:
            idle.put(helper)

    pool = ThreadPoolExecutor(len(helpers))
    try:
        yield from pool.map(ask, jobs)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for helper in helpers:
            helper.stop()


class _Helper:
    """One process of `decode.py`, which the terminal's Ctrl-C does not reach; it ends when its pipe is closed."""

    def __init__(self) -> None:
        self.stopped = False
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", decode.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, job: Answer) -> list[Answer]:
        """The job's answers; if the process dies, its files are tried one by one to find the one that crashed it."""
        answers = self._answers(job)
        if answers is not None or self.stopped:
            return answers or []
        self.start()
        if len(job["files"]) == 1:
            return [{"bad": "the decoder crashed on it"}]
        singles = ({**job, "files": [file], "rows": [row]} for file, row in zip(job["files"], job["rows"], strict=True))
        return [answer for single in singles for answer in self.ask(single)]

    def _answers(self, job: Answer) -> list[Answer] | None:
        """The job's answers; None if the process died."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            self.process.kill()
            self.process.wait()
            return None

    def stop(self) -> None:
        self.stopped = True
        self.process.kill()
        self.process.wait()
