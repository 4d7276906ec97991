"""`domainwise compare`."""

from contextlib import closing
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
from domainwise.cli.sweep import DryRun, Workers, tell

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
    hparams: Annotated[int, typer.Option(help="Hyper-parameter draws; the first is the defaults.")] = 3,
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

    Hyper-parameters and step are selected by training-domain validation, which never looks at the domain left out; the
    winner is the baseline (ERM, or the first named) unless another is ahead of it by more than noise.
    """
    from domainwise.cli.data_options import choose
    from domainwise.cli.progress import follow
    from domainwise.core.phrasing import counted
    from domainwise.engine.devices import pick_precision
    from domainwise.models.compare import comparison
    from domainwise.models.search import Search
    from domainwise.models.tune import refitted
    from domainwise.nets.weights import planned
    from domainwise.sweep.events import Settings

    chosen, named = choose(dataset, data, skip_bad, network, weights, data_root)
    search = Search(
        chosen,
        names(algorithms),
        draws=hparams,
        trials=trials,
        hparams=parse_hparams(hparam or []),
        steps=steps,
        evaluate_every=evaluate_every,
        network=named,
        image_size=image_size,
        augmentation=augmentation,
        weights=planned(named or "", weights, data_root),
        precision=pick_precision(precision, device),
        seed=seed,
    )
    settings = Settings(runs, device, data_root, retry=True)
    told = (
        f"{counted(len(search.runs), 'run')}: {', '.join(search.algorithms)}, each of {len(search.domains)} domains "
        f"left out, {counted(hparams, 'draw')}, {counted(trials, 'trial')}; see {runs}"
    )
    say(told, errors_console)
    if dry_run:
        tell(search.runs, settings, {"on": "local", "workers": workers}, as_json=as_json)
        return
    try:
        with closing(search.execute(settings, workers)) as events:
            statuses = follow(search.runs, events, errors_console, runs)
    except KeyboardInterrupt:
        errors_console.print("stopped; finished runs and checkpoints are kept: the same command continues")
        raise typer.Exit(130) from None
    for run, status in statuses.items():
        if status.status != "done":
            say(f"{run}: {status.status}: {status.reason}", errors_console)
    result = comparison(search, runs)
    best = result.chosen()
    if out is not None:
        with shown_training(f"{best.algorithm} on all of {chosen.title}", best.steps) as progress:
            refitted(search, best, chosen.name, device=device, data_root=data_root, out=out, progress=progress)
    if as_json:
        print_json({**result.as_json(), "model": None if out is None else str(out)})
        return
    console.print(result.table)
    say(result.sentence)
    shown = [f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in best.hparams.items()]
    told = f"{best.algorithm}, {counted(best.steps, 'step')}, {', '.join(shown)}"
    say(f"Best on the domains left out: {told}")
    if out is not None:
        say(f"Model: {out} (for predict, evaluate, export, drift).")
