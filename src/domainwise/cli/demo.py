"""`domainwise demo`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import follow_runs
from domainwise.core.errors import UserError

EXAMPLES = "Examples:  [bold]domainwise demo[/]   ·   [bold]domainwise demo --all --trials 5 --out runs/demo5[/]"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for records, models and pictures.")] = Path("runs/demo"),
    trials: Annotated[int, typer.Option(help="Repetitions with other splits, weights and batches.", min=1)] = 3,
    all_methods: Annotated[
        bool, typer.Option("--all", help="Also AT, which costs as much as the rest together.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Training steps per run (default: 601).")] = None,
    workers: Annotated[int | None, typer.Option(help="Runs at once (default: one per core).", min=1)] = None,
    device: options.Device = "cpu",
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Digits over coloured backgrounds: which method still reads them over a background it never saw?

    Trains every method with each of the four domains left out in turn, and compares. Takes two to three minutes on two
    cores; if interrupted, the same command continues.
    """
    from domainwise.cli.demo_runs import demo_plan, demo_table, draw_pictures
    from domainwise.core.phrasing import counted
    from domainwise.sweeps.events import Settings
    from domainwise.sweeps.launch import launch

    plan = demo_plan(trials=trials, all_methods=all_methods, steps=steps, seed=seed)
    runs = plan.runs()
    events = launch("local", runs, Settings(out, device, retry=True), workers=workers)
    say(
        f"{len(runs)} runs: {', '.join(plan.algorithms)}, each of 4 domains left out, {counted(trials, 'trial')}; "
        f"see {out}",
        errors_console,
    )
    statuses = follow_runs(runs, events, out)
    unfinished = [(run, status) for run, status in statuses.items() if status.status != "done"]
    for run, status in unfinished:
        say(f"{run}: {status.status}: {status.reason}", errors_console)
    if len(unfinished) == len(runs):
        raise UserError(f"every run failed; the first: {unfinished[0][1].reason}")
    table = demo_table(runs, out)
    written = draw_pictures(runs, out)
    if as_json:
        print_json(table.as_json() | {"pictures": [str(path) for path in written]})
        return
    console.print(table)
    say(table.sentence("DAT"))
    say(f"Pictures: {', '.join(map(str, written))}. Records and models: {out}/<run>/.")
    say(f"All on one page, with what the models look at: domainwise report {out}")
