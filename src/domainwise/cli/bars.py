"""One training as a command shows it: a bar while it goes on, and what to say when it stops."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from domainwise.cli.output import errors_console, say
from domainwise.core import torchrun
from domainwise.core.errors import UserError


@contextmanager
def shown_training(description: str, steps: int) -> Iterator[Callable[[int], None]]:
    """Within it, what is to be told the number of every step made; the bar appears with the first.

    So an error found before any step is one line. Interrupted, the command says that it can be continued.
    """
    from domainwise.core.locks import RunLocked
    from domainwise.engine.train import Interrupted

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("step {task.completed}/{task.total}"))
    silent = not errors_console.is_terminal  # a bar that cannot move would be an empty line
    bar = Progress(*columns, TimeRemainingColumn(), console=errors_console, transient=True, disable=silent)
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
    finally:
        if bar.live.is_started:
            bar.stop()
