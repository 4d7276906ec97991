"""`domainwise demo`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import follow_runs
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.protocol.runs import Run
    from domainwise.sweeps.plan import Plan
    from domainwise.sweeps.tables import AccuracyTable

EXAMPLES = "Examples:  [bold]domainwise demo[/]   ·   [bold]domainwise demo --all --trials 5 --out runs/demo5[/]"
DATASET = "BackgroundDigits"
QUICK = ("ERM", "IRM", "UAT", "DAT")
EVERY = (*QUICK, "AT")


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
    if table.test:
        say(table.test)
    say(f"Pictures: {', '.join(map(str, written))}. Records and models: {out}/<run>/.")
    say(f"All on one page, with what the models look at: domainwise report {out}")


def demo_plan(*, trials: int = 3, all_methods: bool = False, steps: int | None = None, seed: int = 0) -> "Plan":
    """Hyper-parameters are fixed: the defaults, with 32 images per domain, and eps = 2, alpha = 0.2 of the ascent."""
    from domainwise.sweeps.plan import plan_sweep

    fixed = {"batch_size": 32, "eps": 2.0, "alpha": 0.2}
    algorithms = EVERY if all_methods else QUICK
    return plan_sweep(DATASET, algorithms, draws=1, trials=trials, steps=steps, seed=seed, hparams=fixed)


def demo_table(runs: "Sequence[Run]", out: Path) -> "AccuracyTable":
    """Accuracies at the step that training-domain validation selects."""
    from domainwise.protocol.records import RunFolder
    from domainwise.protocol.selection import Curve
    from domainwise.protocol.statistics import selected
    from domainwise.sweeps.collection import experiment
    from domainwise.sweeps.tables import Group, table_of

    curves = [Curve.of(run, RunFolder(out, run).read()[0]) for run in runs]
    group = Group(experiment(runs[0]), tuple(curve for curve in curves if curve.steps))
    return table_of(group, selected(group.curves, "training-domain"), "training-domain")


def draw_pictures(runs: "Sequence[Run]", out: Path) -> list[Path]:
    """Sample images of each domain, and the perturbations that DAT learned in its first run that is done."""
    from domainwise.data.catalogue import DATASETS
    from domainwise.protocol.records import RunFolder
    from domainwise.protocol.saved_weights import saved_weights
    from domainwise.reports import pictures
    from domainwise.reports.dat_picture import dat_picture
    from domainwise.reports.style import save

    environments = DATASETS[DATASET].load()
    written = [out / "samples.png"]
    pictures.domain_samples(environments, written[0])
    folders = [RunFolder(out, run) for run in runs if run.algorithm == "DAT"]
    if folder := next((folder for folder in folders if folder.model_file.exists()), None):
        written.append(out / "perturbations.png")
        delta = saved_weights(folder).tensors["delta"]
        save(dat_picture(environments, folder.run, delta), written[1])
    return written
