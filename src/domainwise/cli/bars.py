"""The bar of one training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from domainwise.cli.common import errors_console


@contextmanager
def step_bar(description: str, steps: int) -> Iterator[Callable[[int], None]]:
    """Within it, what is to be told the number of every step made; the bar appears with the first.

    So an error found before any step is one line.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("step {task.completed}/{task.total}"))
    bar = Progress(*columns, TimeRemainingColumn(), console=errors_console, transient=True)
    task = bar.add_task(escape(description), total=steps)

    def progress(step: int) -> None:
        bar.start()
        bar.update(task, completed=step + 1)

    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()
