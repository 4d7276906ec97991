"""`domainwise demo`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import interruptible, parts_progress
from domainwise.cli.runs_progress import follow_runs
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.protocol.options import TrainingOptions
    from domainwise.protocol.runs import Run
    from domainwise.protocol.spaces import Value
    from domainwise.sweeps.accuracy_table import AccuracyTable
    from domainwise.sweeps.plan import Plan

EXAMPLES = "Examples:  [bold]domainwise demo[/]   ·   [bold]domainwise demo --seed 1 --out runs/demo-seed1[/]"
DATASET = "BackgroundDigits"
METHODS = ("ERM", "UAT", "DAT")
SETTINGS: "Mapping[str, Value]" = {"batch_size": 64, "lr": 0.004, "eps": 0.5, "alpha": 0.8}
"""Chosen by training-domain validation with a seed that is not the demo's: the learning rate by ERM, the radius by UAT
and by DAT, which agree (`make reproduce-demo-settings`)."""
STEPS = 351
TRIALS = 3


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page, records, models and pictures.")] = Path("runs/demo"),
    trials: Annotated[
        int, typer.Option(help="Repetitions: other splits, initial weights and batches.", min=1)
    ] = TRIALS,
    steps: Annotated[int, typer.Option(help="Training steps per run.")] = STEPS,
    workers: Annotated[
        int | None, typer.Option(help="Runs at once (default: cores / --threads).", min=1, max=4096)
    ] = None,
    device: options.Device = "cpu",
    precision: options.Precision = "auto",
    threads: options.Threads = 1,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Digits over coloured backgrounds: which method still reads them over a background it never saw?

    Three ways to train: without a perturbation (ERM), with one perturbation for all domains (UAT), with one for each
    domain (DAT). Each of four backgrounds is left out in turn. Takes two to three minutes on two cores and writes a
    page with all results; if interrupted, the same command continues.
    """
    from domainwise.core.phrasing import counted
    from domainwise.sweeps.events import Settings
    from domainwise.sweeps.launch import launch_plans
    from domainwise.sweeps.plan_run import training_options

    training = training_options(device, steps=steps, precision=precision, threads=threads, seed=seed)
    plan = demo_plan(training, trials)
    runs = plan.runs()
    check_folder(out, runs)
    events = launch_plans([plan], Settings(out, device, retry=True), workers=workers)
    each = f"each of 4 backgrounds left out, {counted(trials, 'trial')}"
    say(f"{len(runs)} runs: {', '.join(METHODS)}, {each}; see {out}", errors_console)
    statuses = follow_runs(runs, events, out, as_table=True)
    unfinished = [(run, status) for run, status in statuses.items() if status.status != "done"]
    for run, status in unfinished:
        say(f"{run}: {status.status}: {status.reason}", errors_console)
    if len(unfinished) == len(runs):
        raise UserError(f"every run failed; the first: {unfinished[0][1].reason}")
    table = demo_table(out)
    if not as_json:
        console.print(table)
        say(sentence(table))
    with interruptible("all runs are kept"):
        page = write_report(out, device)
    if as_json:
        print_json(table.as_json() | {"page": str(page)})
    else:
        say(f"Page, to open in a browser: {page}")
    if unfinished:
        raise typer.Exit(1)


def demo_plan(training: "TrainingOptions", trials: int = TRIALS) -> "Plan":
    """Nothing is searched: every method has the same settings, and else its defaults."""
    from domainwise.sweeps.plan import plan_sweep

    return plan_sweep(DATASET, METHODS, training, draws=1, trials=trials, hparams=SETTINGS)


def check_folder(out: Path, runs: "Sequence[Run]") -> None:
    """Other runs would be in the tables and on the page, too: a folder that has or plans some is refused."""
    from domainwise.core.phrasing import counted
    from domainwise.sweeps.plan import planned_runs, saved_plans
    from domainwise.sweeps.published import is_published

    if is_published(out):
        raise UserError(f"{out} holds published records: name another folder", argument="out")
    ours = {run.id for run in runs}
    there = {path.parent.name for path in out.glob("*/run.json")}
    there |= {run.id for run in planned_runs(list(saved_plans(out)))}
    if others := there - ours:
        raise UserError(
            f"{out} holds {counted(len(others), 'run')} from outside this demo: name another folder",
            argument="out",
        )


def demo_table(out: Path) -> "AccuracyTable":
    """Accuracies at the step that training-domain validation selects."""
    from domainwise.sweeps.collection import collect
    from domainwise.sweeps.tables import tables

    return tables(collect(out).finished(), "training-domain")[0]


def sentence(table: "AccuracyTable") -> str:
    """What the demo found, in one sentence."""
    rows = {str(row.method): row for row in table.rows}
    dat, erm = rows.get("DAT"), rows.get("ERM")
    if dat is None or erm is None or dat.difference is None or dat.average is None or erm.average is None:
        return table.sentence("DAT")
    return (
        f"On backgrounds it never saw, DAT reads {dat.average.mean:.1f} % of the digits, ERM {erm.average.mean:.1f} %: "
        f"{dat.difference.judged}."
    )


def write_report(out: Path, device: str) -> Path:
    from domainwise.reports.page.models import ModelOptions
    from domainwise.reports.page.write import write_page

    with parts_progress("writing the page") as progress:
        return write_page(out, models=ModelOptions(None, device, progress=progress))[0]
