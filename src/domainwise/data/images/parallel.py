"""Many image files at once: helper processes that only decode, and a bar that says how long it still takes.

A helper is `decode.py` run as a program. It needs none of what a process of this package needs (no torch, no guarded
`__main__`, no permission for a worker of a sweep to have children), so it starts in a moment, and an image that crashes
its decoder takes only the helper with it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from domainwise.data.images import decode

CHUNK = 16
"""Files per question to a helper."""
FEW = 64
"""So many files are decoded here before any helper would have started."""

Answer = dict[str, Any]


def spread(files: Sequence[Path], what: str, **job: Any) -> Iterator[tuple[int, Answer]]:
    """(number, answer) for every file in order: `decode.work` on all cores, with a bar on standard error."""
    chunks = [range(start, min(start + CHUNK, len(files))) for start in range(0, len(files), CHUNK)]
    jobs = [{**job, "files": [str(files[i]) for i in chunk], "rows": list(chunk)} for chunk in chunks]
    answers = map(decode.work, jobs) if len(files) <= FEW else _by_helpers(jobs)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    silent = len(files) <= FEW or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=silent) as bar:
        task = bar.add_task(what, total=len(files))
        for chunk, found in zip(chunks, answers, strict=True):
            yield from zip(chunk, found, strict=True)
            bar.advance(task, len(chunk))


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    """One process of `decode.py`, out of reach of the terminal's Ctrl-C; it ends when its pipe is closed."""

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
        """Its answers; files on which it dies are tried one by one, so that the one to blame is named."""
        answers = self._answers(job)
        if answers is not None or self.stopped:
            return answers or []
        self.start()
        if len(job["files"]) == 1:
            return [{"bad": "the decoder crashed on it"}]
        singles = ({**job, "files": [file], "rows": [row]} for file, row in zip(job["files"], job["rows"], strict=True))
        return [answer for single in singles for answer in self.ask(single)]

    def _answers(self, job: Answer) -> list[Answer] | None:
        """None if it died."""
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
