"""Progress bars of downloads and of decoding, on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from domainwise.cli.output import errors_console

if TYPE_CHECKING:
    from domainwise.data.sources.downloads import Download
    from domainwise.data.sources.downloads import Progress as Report


@contextmanager
def download_bar() -> Iterator[Callable[["Download"], "Report"]]:
    """Context manager that yields a function from a download to its progress callback, which shows a bar.

    The bar appears with the first download, so that an earlier error is one line. Ctrl-C says how to continue.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    silent = not errors_console.is_terminal  # a bar that cannot move would be an empty line
    bar = Progress(*columns, TimeRemainingColumn(), console=errors_console, transient=True, disable=silent)

    def progress(download: "Download") -> "Report":
        bar.start()
        task = bar.add_task(Path(download.file).name, total=download.size)
        return lambda done, total: bar.update(task, completed=done, total=total or download.size)

    try:
        yield progress
    except KeyboardInterrupt:
        errors_console.print("stopped; what came is kept: the same command continues")
        raise typer.Exit(130) from None
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def decoding_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Context manager that yields a callback for the number of files decoded since its last call."""
    console = Console(stderr=True)  # its own: a console shows one bar at a time, and the command may have one already
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    silent = errors_console.quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=silent) as bar:
        task = bar.add_task(escape(description), total=total)
        yield lambda files: bar.advance(task, files)
