"""`domainwise compare`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import complete, options
from domainwise.cli.data_flags import DataFlags, with_data_flags
from domainwise.cli.launching import print_estimate
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import training_progress
from domainwise.cli.runs_progress import follow_runs
from domainwise.cli.training_flags import TrainingFlags, note_erm_to_the_end, with_training_flags

EXAMPLES = (
    "Examples:  [bold]domainwise compare --data ~/photos --algorithms ERM,CORAL,DAT --dry-run[/]"
    "   ·   [bold]domainwise compare --data ~/photos --algorithms ERM,DAT --out model[/]"
)


@with_training_flags(without=("full_curves", "track"), average="sma")
@with_data_flags()
def compare(
    data: DataFlags,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Names, separated by commas (default: ERM,CORAL,DAT, without CORAL where no features train).",
            autocompletion=complete.algorithms,
        ),
    ] = None,
    hparams: Annotated[
        int | None, typer.Option(help="Candidates per algorithm; the first has the default values (default: 3).")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Repetitions: other splits, initial weights and batches (default: 3).")
    ] = None,
    *,
    training: TrainingFlags,
    runs: Annotated[Path, typer.Option(help="Folder of the runs; the same command trains only missing ones.")] = Path(
        "runs/compare"
    ),
    out: Annotated[Path | None, typer.Option(help="Folder of the model: the winner, trained on all domains.")] = None,
    budget: Annotated[
        str,
        typer.Option(
            help="Time limit, e.g. 45m or 8h, kept by fewer candidates, steps and trials; none: no limit; "
            "auto: 30m on a CPU, none on a GPU."
        ),
    ] = "auto",
    metric: options.MetricName = "accuracy",
    workers: options.Workers = None,
    dry_run: options.DryRun = False,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Find the best method: leave out each domain in turn, and test which methods are clearly ahead.

    A candidate is an algorithm with hyper-parameter values that all its trials share. Candidate and step are selected
    by training-domain validation, which never looks at the domain left out. The winner is the baseline (ERM, or the
    first named) unless another method is clearly ahead, by a paired t-test at 5 % for all comparisons together. Every
    training also averages its weights; averaged weights are rows of their own.
    """
    from domainwise.core.phrasing import counted
    from domainwise.models.budget import CANDIDATES, TRIALS, parse_budget, within_budget
    from domainwise.models.compare import comparison, usual_algorithms
    from domainwise.models.search import check_metric
    from domainwise.models.tune import refitted
    from domainwise.protocol.metrics import find_metric
    from domainwise.sweeps.events import Settings
    from domainwise.sweeps.launch import launch
    from domainwise.sweeps.plan import plan_sweep

    seconds, shown_metric = parse_budget(budget, device), find_metric(metric)
    chosen, named = data.choose(training, data_root)
    planned_options = training.options(device, data_root, named)
    plan = plan_sweep(
        chosen.name,
        usual_algorithms(planned_options) if algorithms is None else options.parse_names(algorithms),
        planned_options,
        draws=CANDIDATES if hparams is None else hparams,
        trials=TRIALS if trials is None else trials,
        search="candidates",
    )
    check_metric(plan, shown_metric, data_root)
    settings = Settings(runs, device, data_root, retry=True)
    network = training.weights or training.network != "auto"
    given = {"candidates": hparams, "trials": trials, "steps": training.steps, "network": network}
    keep = [name for name, value in given.items() if value]
    budgeted = within_budget(plan, settings, seconds, workers=workers, keep=keep)
    plan, reduction = budgeted.plan, budgeted.reduction
    if reduction:
        say(f"{reduction}; for all: --budget none", errors_console)
    planned = plan.runs()
    note_erm_to_the_end(planned)
    domains = len({run.test_domains for run in planned})
    say(
        f"{counted(len(planned), 'run')}: {', '.join(plan.algorithms)}, each of {domains} domains left out, "
        f"{counted(plan.draws, 'candidate')} each, {counted(plan.trials, 'trial')}; see {runs}",
        errors_console,
    )
    if dry_run:
        print_estimate(planned, settings, {"on": "local", "workers": workers}, as_json=as_json)
        return
    events = launch("local", planned, settings, workers=workers)
    budgeted.store(runs)
    plan.save(runs)
    for run, status in follow_runs(planned, events, runs).items():
        if status.status != "done":
            say(f"{run}: {status.status}: {status.reason}", errors_console)
    result = comparison(plan, runs, reduction, shown_metric)
    best = result.chosen()
    if out is not None:
        with training_progress(f"{best.method} on all of {chosen.title}", best.steps) as progress:
            model = refitted(
                plan,
                runs,
                best,
                chosen.name,
                metric=shown_metric,
                device=device,
                data_root=data_root,
                out=out,
                progress=progress,
            )
    if as_json:
        print_json({**result.as_json(), "model": None if out is None else str(out)})
        return
    console.print(result.table)
    say(result.sentence)
    if result.table.test:
        say(result.table.test)
    shown = [f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in best.hparams.items()]
    say(f"Best candidate on the domains left out: {best.method}, {counted(best.steps, 'step')}, {', '.join(shown)}")
    if out is not None:
        say(f"Model: {out}, {model.weights} (for predict, evaluate, export, drift).")
        say(f"{best.method}: {model.unseen}")
