"""`domainwise compare`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import follow_runs, training_progress
from domainwise.cli.sweep import print_estimate

EXAMPLES = (
    "Examples:  [bold]domainwise compare --data ~/photos --algorithms ERM,CORAL,DAT --dry-run[/]"
    "   ·   [bold]domainwise compare --data ~/photos --algorithms ERM,DAT --out model[/]"
)


def compare(
    dataset: options.Dataset = None,
    data: options.DataFolder = None,
    skip_bad: options.SkipBad = False,
    algorithms: options.Algorithms = "ERM,CORAL,DAT",
    hparams: Annotated[int, typer.Option(help="Candidates per algorithm; the first has the default values.")] = 3,
    trials: options.Trials = 3,
    hparam: options.FixedHparam = None,
    steps: options.Steps = None,
    evaluate_every: options.EvaluateEvery = None,
    network: options.Network = "auto",
    image_size: options.ImageSize = None,
    augmentation: options.Augmentation = None,
    weights: options.Weights = "",
    precision: options.Precision = "auto",
    runs: Annotated[Path, typer.Option(help="Folder of the runs; the same command does only what is missing.")] = Path(
        "runs/compare"
    ),
    out: Annotated[
        Path | None, typer.Option(help="Then train the winner on all domains; this becomes the model.")
    ] = None,
    workers: options.Workers = None,
    dry_run: options.DryRun = False,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    threads: options.Threads = 1,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Say which method to ship: each domain left out in turn, and which methods are clearly ahead.

    A candidate is an algorithm with hyper-parameter values that all its trials share. Candidate and step are selected
    by training-domain validation, which never looks at the domain left out; the winner is the baseline (ERM, or the
    first named) unless another is clearly ahead of it: by a paired t-test at 5 % for all comparisons together.
    """
    from domainwise.cli.data_options import choose_data_and_network
    from domainwise.core.phrasing import counted
    from domainwise.models.compare import comparison
    from domainwise.models.tune import refitted
    from domainwise.sweeps.events import Settings
    from domainwise.sweeps.launch import launch
    from domainwise.sweeps.plan import plan_sweep
    from domainwise.sweeps.plan_run import training_options

    chosen, named = choose_data_and_network(dataset, data, skip_bad, network, weights, data_root)
    training = training_options(
        device,
        data_root,
        steps=steps,
        evaluate_every=evaluate_every,
        network=named,
        seed=seed,
        precision=precision,
        threads=threads,
        hparams=options.parse_hparams(hparam or []),
        weights=weights,
        image_size=image_size,
        augmentation=augmentation,
    )
    plan = plan_sweep(
        chosen.name, options.parse_names(algorithms), training, draws=hparams, trials=trials, search="candidates"
    )
    planned = plan.runs()
    settings = Settings(runs, device, data_root, retry=True)
    domains = len({run.test_domains for run in planned})
    say(
        f"{counted(len(planned), 'run')}: {', '.join(plan.algorithms)}, each of {domains} domains left out, "
        f"{counted(hparams, 'candidate')} each, {counted(trials, 'trial')}; see {runs}",
        errors_console,
    )
    if dry_run:
        print_estimate(planned, settings, {"on": "local", "workers": workers}, as_json=as_json)
        return
    events = launch("local", planned, settings, workers=workers)
    plan.save(runs)
    for run, status in follow_runs(planned, events, runs).items():
        if status.status != "done":
            say(f"{run}: {status.status}: {status.reason}", errors_console)
    result = comparison(plan, runs)
    best = result.chosen()
    if out is not None:
        with training_progress(f"{best.algorithm} on all of {chosen.title}", best.steps) as progress:
            model = refitted(
                plan, runs, best, chosen.name, device=device, data_root=data_root, out=out, progress=progress
            )
    if as_json:
        print_json({**result.as_json(), "model": None if out is None else str(out)})
        return
    console.print(result.table)
    say(result.sentence)
    if result.table.test:
        say(result.table.test)
    shown = [f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in best.hparams.items()]
    say(f"Best candidate on the domains left out: {best.algorithm}, {counted(best.steps, 'step')}, {', '.join(shown)}")
    if out is not None:
        say(f"Model: {out}, {model.weights} (for predict, evaluate, export, drift).")
        say(f"{best.algorithm}: {model.unseen}")
