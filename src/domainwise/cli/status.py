"""`domainwise status`."""

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from domainwise.cli.common import Json, console, errors_console, print_json, say
from domainwise.core.errors import UserError

EXAMPLES = "Examples:  [bold]domainwise status runs/sweep[/]   ·   [bold]domainwise status runs/sweep --watch[/]"
WATCH_SECONDS = 2.0


def list_failures(stands: Any) -> None:
    """Each failure with its reason, and how to try again."""
    for status in (*stands.failed, *stands.diverged):
        say(f"{status.run} {status.status} at step {status.step}: {status.reason}", errors_console)
    if stands.failed and len(sys.argv) > 1 and sys.argv[1] in ("sweep", "reproduce"):
        command = shlex.join(["domainwise", *(word for word in sys.argv[1:] if word != "--retry")])
        say(f"to try the failed runs again: {command} --retry", errors_console)
    elif stands.failed:
        errors_console.print("to try the failed runs again: the command that made them, a sweep's with --retry")


def standing_json(stands: Any) -> dict[str, Any]:
    return {
        "total": stands.total,
        "done": stands.done,
        "running": stands.running,
        "remaining": stands.remaining,
        "seconds_left": None if stands.seconds_left is None else round(stands.seconds_left),
        "failed": [{"run": s.run, "reason": s.reason} for s in stands.failed],
        "diverged": [{"run": s.run, "reason": s.reason} for s in stands.diverged],
    }


def status(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep, a training, a demo, or of compare's runs.")],
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking until all runs have ended.")] = False,
    as_json: Json = False,
) -> None:
    """Where a sweep stands, from another terminal or machine: done, running, failed, remaining, time left, best.

    A training, a demo and [bold]compare[/] keep no plan: of these the runs that have begun are counted.
    """
    from domainwise.sweep.plan import planned_runs, saved_plans
    from domainwise.sweep.status import begun_runs, best_so_far, standing

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder of a sweep (its --out)")
    planned = planned_runs(list(saved_plans(folder)))
    runs = planned or begun_runs(folder)
    if not runs:
        raise UserError(f"{folder} holds neither a plan nor a run: give the folder of a sweep (its --out)")
    if not planned:
        errors_console.print("note: no plan is kept here; runs that have not begun yet are not counted")
    place = folder.resolve().parent if (folder / "run.json").is_file() else folder
    stands = standing(place, runs)
    if as_json:
        best = best_so_far(place, runs)
        print_json(standing_json(stands) | {"best": None if best is None else best.as_json()})
        return
    if watch:
        with Live(str(stands), console=console, refresh_per_second=4, transient=True) as live:
            while stands.remaining or stands.running:
                time.sleep(WATCH_SECONDS)
                runs = planned or begun_runs(folder)
                stands = standing(place, runs)
                live.update(str(stands))
    say(str(stands))
    if best := best_so_far(place, runs):
        say(str(best))
    list_failures(stands)
