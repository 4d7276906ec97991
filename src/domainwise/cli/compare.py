"""`domainwise compare`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import complete
from domainwise.cli.bars import shown_training
from domainwise.cli.common import (
    Augmentation,
    DataRoot,
    Device,
    EvaluateEvery,
    ImageSize,
    Json,
    Network,
    Own,
    Precision,
    Seed,
    SkipBad,
    Weights,
    console,
    errors_console,
    names,
    parse_hparams,
    print_json,
    say,
)
from domainwise.cli.sweep import DryRun, Workers, follow_runs, print_estimate

EXAMPLES = (
    "Examples:  [bold]domainwise compare --data ~/photos --algorithms ERM,CORAL,DAT --dry-run[/]"
    "   ·   [bold]domainwise compare --data ~/photos --algorithms ERM,DAT --out model[/]"
)


def compare(
    dataset: Annotated[str | None, typer.Option(help="See: domainwise list.", autocompletion=complete.datasets)] = None,
    data: Own = None,
    skip_bad: SkipBad = False,
    algorithms: Annotated[
        str, typer.Option(help="Names with commas between.", autocompletion=complete.algorithms)
    ] = "ERM,CORAL,DAT",
    hparams: Annotated[int, typer.Option(help="Candidates per algorithm; the first has the default values.")] = 3,
    trials: Annotated[int, typer.Option(help="Repetitions with other splits, weights and batches.")] = 3,
    hparam: Annotated[list[str] | None, typer.Option(help="Fix a hyper-parameter: NAME=VALUE.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates per run (default: the dataset's).")] = None,
    evaluate_every: EvaluateEvery = None,
    network: Network = "auto",
    image_size: ImageSize = None,
    augmentation: Augmentation = None,
    weights: Weights = "",
    precision: Precision = "auto",
    runs: Annotated[Path, typer.Option(help="Folder of the runs; the same command does only what is missing.")] = Path(
        "runs/compare"
    ),
    out: Annotated[
        Path | None, typer.Option(help="Then train the winner on all domains; this becomes the model.")
    ] = None,
    workers: Workers = None,
    dry_run: DryRun = False,
    data_root: DataRoot = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Say which method to ship: each domain left out in turn, and whether the gaps are more than noise.

    A candidate is an algorithm with hyper-parameter values that all its trials share. Candidate and step are selected
    by training-domain validation, which never looks at the domain left out; the winner is the baseline (ERM, or the
    first named) unless another is ahead of it by more than noise.
    """
    from domainwise.cli.data_options import choose
    from domainwise.core.phrasing import counted
    from domainwise.models.compare import comparison
    from domainwise.models.tune import refitted
    from domainwise.sweeps.events import Settings
    from domainwise.sweeps.launch import launch
    from domainwise.sweeps.plan import plan_sweep
    from domainwise.sweeps.plan_run import training_options

    chosen, named = choose(dataset, data, skip_bad, network, weights, data_root)
    options = training_options(
        device,
        data_root,
        steps=steps,
        evaluate_every=evaluate_every,
        network=named,
        seed=seed,
        precision=precision,
        hparams=parse_hparams(hparam or []),
        weights=weights,
        image_size=image_size,
        augmentation=augmentation,
    )
    plan = plan_sweep(chosen.name, names(algorithms), options, draws=hparams, trials=trials, search="candidates")
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
        with shown_training(f"{best.algorithm} on all of {chosen.title}", best.steps) as progress:
            refitted(plan, best, chosen.name, device=device, data_root=data_root, out=out, progress=progress)
    if as_json:
        print_json({**result.as_json(), "model": None if out is None else str(out)})
        return
    console.print(result.table)
    say(result.sentence)
    shown = [f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in best.hparams.items()]
    say(f"Best candidate on the domains left out: {best.algorithm}, {counted(best.steps, 'step')}, {', '.join(shown)}")
    if out is not None:
        say(f"Model: {out} (for predict, evaluate, export, drift).")
