"""`domainwise status`."""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.sweeps.status import SweepProgress

EXAMPLES = "Examples:  [bold]domainwise status runs/sweep[/]   ·   [bold]domainwise status runs/sweep --watch[/]"
WATCH_SECONDS = 2.0


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
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking until all runs have ended.")] = False,
    as_json: options.Json = False,
) -> None:
    """The progress of a sweep, from another terminal or machine: done, running, failed, remaining, time left, best.

    A training and a demo keep no plan: of these the runs that have begun are counted.
    """
    from domainwise.sweeps.plan import planned_runs, saved_plans
    from domainwise.sweeps.status import begun_runs, best_so_far, sweep_progress

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder of a sweep (its --out)")
    planned = planned_runs(list(saved_plans(folder)))
    runs = planned or begun_runs(folder)
    if not runs:
        raise UserError(f"{folder} holds neither a plan nor a run: give the folder of a sweep (its --out)")
    if not planned:
        errors_console.print("note: no plan is kept here; runs that have not begun yet are not counted")
    parent = folder.resolve().parent if (folder / "run.json").is_file() else folder
    progress = sweep_progress(parent, runs)
    if as_json:
        best = best_so_far(parent, runs)
        print_json(progress_json(progress) | {"best": None if best is None else best.as_json()})
        return
    if watch:
        with Live(str(progress), console=console, refresh_per_second=4, transient=True) as live:
            while progress.remaining or progress.running:
                time.sleep(WATCH_SECONDS)
                runs = planned or begun_runs(folder)
                progress = sweep_progress(parent, runs)
                live.update(str(progress))
    say(str(progress))
    if best := best_so_far(parent, runs):
        say(str(best))
    list_failures(progress)
