"""`domainwise status`."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.protocol.runs import Run
    from domainwise.sweeps.collection import Collection
    from domainwise.sweeps.status import SweepProgress

EXAMPLES = "Examples:  [bold]domainwise status runs/sweep[/]   ·   [bold]domainwise status runs/sweep --watch[/]"
WATCH_SECONDS = 2.0
REST = 4
"""How many times as long as it read --watch waits before it reads again."""


def list_failures(progress: "SweepProgress") -> None:
    """Each failure with its reason, and how to try again."""
    for status in (*progress.failed, *progress.diverged):
        say(f"{status.run} {status.status} at step {status.step}: {status.reason}", errors_console)
    if progress.failed and len(sys.argv) > 1 and sys.argv[1] in ("sweep", "reproduce"):
        command = shlex.join(["domainwise", *(word for word in sys.argv[1:] if word != "--retry")])
        say(f"to try the failed runs again: {command} --retry", errors_console)
    elif progress.failed:
        errors_console.print("to try the failed runs again: the command that made them, a sweep's with --retry")


def progress_json(progress: "SweepProgress") -> dict[str, Any]:
    return {
        "total": progress.total,
        "done": progress.done,
        "running": progress.running,
        "remaining": progress.remaining,
        "seconds_left": None if progress.seconds_left is None else round(progress.seconds_left),
        "failed": [{"run": s.run, "reason": s.reason} for s in progress.failed],
        "diverged": [{"run": s.run, "reason": s.reason} for s in progress.diverged],
    }


def status(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep, a training, a demo, or of compare's runs.")],
    watch: Annotated[bool, typer.Option("--watch", help="Update until all runs have ended.")] = False,
    as_json: options.Json = False,
) -> None:
    """The progress of a sweep, from another terminal or machine: done, running, failed, remaining, time left, best.

    A training has no plan, so only runs that have begun are counted.
    """
    from domainwise.cli.table import print_notes
    from domainwise.sweeps.collection import collect, runs_parent
    from domainwise.sweeps.plan import planned_runs, saved_plans
    from domainwise.sweeps.status import best_so_far, sweep_progress

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder of a sweep (its --out)")
    damaged: list[str] = []
    planned = planned_runs(list(saved_plans(folder, damaged)))
    parent = runs_parent(folder)

    def look() -> "tuple[SweepProgress, Sequence[Run], Collection]":
        collection = collect(folder)
        runs = planned or collection.runs
        return sweep_progress(parent, runs, collection), runs, collection

    progress, runs, collection = look()
    if not runs:
        if damaged:
            raise UserError(damaged[0])
        why = f" ({collection.notes[0]})" if collection.notes else ""
        raise UserError(f"{folder} holds neither a plan nor a run{why}: give the folder of a sweep (its --out)")
    if not planned:
        errors_console.print("note: no plan is kept here; runs that have not begun yet are not counted")
    ids = {run.id for run in runs}
    print_notes([f"{plan}; its runs that have not begun are not counted" for plan in damaged])
    print_notes([note for name, note in zip(collection.damaged, collection.notes, strict=False) if name not in ids])
    if as_json:
        best = best_so_far(collection, runs)
        print_json(progress_json(progress) | {"best": None if best is None else best.as_json()})
        return
    if watch:
        with snapshots(str(progress)) as show:
            while progress.remaining or progress.running:
                began = time.monotonic()
                progress, runs, collection = look()
                show(str(progress))
                time.sleep(max(WATCH_SECONDS, REST * (time.monotonic() - began)))
    say(str(progress))
    if best := best_so_far(collection, runs):
        say(str(best))
    list_failures(progress)


@contextmanager
def snapshots(first: str) -> "Iterator[Callable[[str], None]]":
    """Context manager that yields a function that shows a line: in place of the last one, or below it in a pipe."""
    if not console.is_terminal:
        say(first)
        yield say
        return
    with Live(first, console=console, refresh_per_second=4, transient=True) as live:
        yield live.update
