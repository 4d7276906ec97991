"""Progress on standard error: of one training, of downloads and of decoding.

A bar appears with its first update, so that an earlier error is one line.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from domainwise.cli.output import errors_console, say
from domainwise.core import torchrun
from domainwise.core.errors import UserError
from domainwise.core.phrasing import duration
from domainwise.core.printing import printable

if TYPE_CHECKING:
    from domainwise.data.sources.downloads import Download, DownloadProgress

STEPS = TextColumn("step {task.completed}/{task.total}")
PLAIN_SECONDS = 10.0
"""Seconds between two lines where standard error is no terminal."""


class PlainProgress(Progress):
    """Progress without a terminal: now and then a line with the count and the time left."""

    def __init__(self, in_bytes: bool = False) -> None:
        super().__init__(disable=True)
        self.in_bytes = in_bytes
        self.printed = time.monotonic()

    def update(self, task_id: TaskID, *args: Any, **changes: Any) -> None:
        super().update(task_id, *args, **changes)
        self._print(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._print(task_id)

    def _print(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if now - self.printed < PLAIN_SECONDS:
            return
        self.printed = now
        task = self._tasks[task_id]
        done, total = (decimal(int(n or 0)) if self.in_bytes else f"{n or 0:.0f}" for n in (task.completed, task.total))
        share = f" of {total} ({task.percentage:.0f} %)" if task.total else ""
        left = f", about {duration(task.time_remaining)} left" if task.time_remaining is not None else ""
        say(f"{Text.from_markup(task.description).plain}: {done}{share}{left}", errors_console)


@contextmanager
def progress_bar(*columns: ProgressColumn, silent: bool = False, in_bytes: bool = False) -> Iterator[Progress]:
    """Context manager that yields a bar to be started, with columns between the bar and the time remaining."""
    if not silent and not errors_console.is_terminal:
        yield PlainProgress(in_bytes)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=errors_console,
        transient=True,
        disable=silent,
    )
    try:
        yield bar
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def interruptible(kept: str) -> Iterator[None]:
    """Context manager: Ctrl-C says what is kept and how to continue, and ends the command with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {kept}: the same command continues", errors_console)
        raise typer.Exit(130) from None


@contextmanager
def training_progress(description: str, steps: int) -> Iterator[Callable[[int], None]]:
    """Context manager that yields a callback for the number of each step. Ctrl-C says how to continue."""
    from domainwise.core.locks import RunLocked
    from domainwise.engine.train import Interrupted

    with progress_bar(STEPS) as bar:
        task = bar.add_task(escape(description), total=steps)

        def progress(step: int) -> None:
            bar.start()
            bar.update(task, completed=step + 1)

        try:
            yield progress
        except Interrupted as stop:
            say(f"{stop}; the same command continues from there", errors_console)
            raise typer.Exit(torchrun.exit_status(130)) from None
        except RunLocked as busy:
            raise UserError(f"{busy}; wait for it, or use another --out") from None


@contextmanager
def parts_progress(description: str) -> Iterator[Callable[[str, int, int], None]]:
    """Context manager that yields a callback for what is being done, how many parts are done, and of how many."""
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task(escape(description), total=None)
        bar.start()
        yield lambda what, done, total: bar.update(task, description=escape(what), completed=done, total=total)


@contextmanager
def download_progress() -> Iterator[Callable[["Download"], "DownloadProgress"]]:
    """Context manager that yields a function from a download to its progress callback. Ctrl-C says how to continue."""
    columns = DownloadColumn(), TransferSpeedColumn()
    with interruptible("what came is kept"), progress_bar(*columns, in_bytes=True) as bar:

        def progress(download: "Download") -> "DownloadProgress":
            bar.start()
            task = bar.add_task(Path(download.file).name, total=download.size)
            return lambda done, total: bar.update(task, completed=done, total=total or download.size)

        yield progress


@contextmanager
def decoding_progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Context manager that yields a callback for the number of files decoded since its last call."""
    console = Console(stderr=True)  # its own: a console shows one bar at a time, and the command may have one already
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    drawn = Progress(*columns, console=console, transient=True, disable=errors_console.quiet)
    with drawn if console.is_terminal else PlainProgress() as bar:
        task = bar.add_task(escape(description), total=total)
        yield lambda files: bar.advance(task, files)


@contextmanager
def activity(first: str) -> Iterator[Callable[[str], None]]:
    """Context manager that yields a callback for what is being done now, where nothing is counted."""
    if errors_console.is_terminal:
        with errors_console.status(escape(printable(first))) as status:
            yield lambda what: status.update(escape(printable(what)))
        return
    now, over, began = [first], threading.Event(), time.monotonic()

    def lines() -> None:
        while not over.wait(PLAIN_SECONDS):
            say(f"{now[0]}: {duration(time.monotonic() - began)} so far", errors_console)

    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    try:
        yield lambda what: now.__setitem__(0, what)
    finally:
        over.set()
        thread.join()
