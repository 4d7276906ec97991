"""The progress bar of downloads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from domainwise.cli.common import errors_console

if TYPE_CHECKING:
    from domainwise.data.sources.downloads import Download
    from domainwise.data.sources.downloads import Progress as Told


@contextmanager
def download_bar() -> Iterator[Callable[["Download"], "Told"]]:
    """Within it, a line on standard error for each download, from its start on: an error found before is one line.

    Ctrl-C says that the download can be continued.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    silent = not errors_console.is_terminal  # a bar that cannot move would be an empty line
    bar = Progress(*columns, TimeRemainingColumn(), console=errors_console, transient=True, disable=silent)

    def progress(download: "Download") -> "Told":
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
