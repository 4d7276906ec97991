"""`domainwise train`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli import complete, options
from domainwise.cli.data_flags import DataFlags, with_data_flags
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import training_progress
from domainwise.cli.training_flags import TrainingFlags, note_erm_to_the_end, with_training_flags
from domainwise.core import torchrun

if TYPE_CHECKING:
    from domainwise.engine.result import TrainingResult

EXAMPLES = (
    "Examples:  [bold]domainwise train --data ~/photos --algorithm DAT --out model[/]"
    "   ·   [bold]domainwise train --dataset BackgroundDigits --algorithm DAT --test-domain 0 --hparam eps=2[/]"
    "   ·   [bold]domainwise train --dataset ColoredMNIST --test-domain -90% --algorithm IRM --data-root ~/data[/]"
)

DatasetOrDefault = Annotated[
    str | None,
    typer.Option(
        help="See: domainwise list (default: BackgroundDigits, unless --data).", autocompletion=complete.datasets
    ),
]


@with_training_flags()
@with_data_flags(DatasetOrDefault)
def train(
    data: DataFlags,
    algorithm: Annotated[str, typer.Option(help="See: domainwise list.", autocompletion=complete.algorithms)] = "DAT",
    test_domain: Annotated[
        list[str] | None,
        typer.Option(
            help="Unseen domain, name or number; repeat for several (default: the first; with a table, its split test)."
        ),
    ] = None,
    train_domain: Annotated[list[str] | None, typer.Option(help="Training domain (default: all others).")] = None,
    *,
    training: TrainingFlags,
    held_out: Annotated[
        float | None,
        typer.Option(help="Fraction of every domain that is held out for validation (default: the dataset's)."),
    ] = None,
    draw: Annotated[int, typer.Option(help="Hyper-parameter draw; 0 is the defaults.", min=0)] = 0,
    trial: Annotated[int, typer.Option(help="Changes splits, initial weights and batches.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the model; the records are in a folder inside.")] = Path(
        "runs/train"
    ),
    save: options.Save = "auto",
    log_to: options.LogTo = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Train one model with some domains unseen, and evaluate it on them. Continues if it was interrupted."""
    from domainwise.data.catalogue import DATASETS
    from domainwise.engine.train import train as train_run
    from domainwise.models.fit import trained_model
    from domainwise.sweeps.plan_run import plan_run

    if data.dataset is None and data.folder is None:
        data = replace(data, dataset="BackgroundDigits")
    chosen, named = data.choose(training, data_root)
    unseen = test_domain or (chosen.testable[:1] if chosen.name in DATASETS else chosen.unseen)
    planned = training.options(device, data_root, named, held_out=held_out)
    run = plan_run(chosen, algorithm, unseen, planned, train_domains=train_domain, draw=draw, trial=trial)
    note_erm_to_the_end([run])
    with training_progress(str(run), run.steps) as progress:
        outcome = train_run(
            run, out, device=device, data_root=data_root, log_to=log_to or [], save=save, progress=progress
        )
    if torchrun.rank():
        return
    model = None
    if outcome.status.status == "done":
        model = trained_model(outcome, chosen.load(data_root, run.image_size), device, save)
        model.save(out)
    if as_json:
        chosen_step = outcome.selected_step
        selected = None if chosen_step is None else {"step": chosen_step, "scores": _scores(outcome, chosen_step)}
        summary = {
            "run": run.describe(),
            "id": run.id,
            "status": outcome.status.status,
            "reason": outcome.status.reason,
        }
        final = _scores(outcome, outcome.records[-1].step) if outcome.records else []
        used = None if model is None else model.weights
        evaluations = {"final": final, "selected": selected} | ({"averaged": _averaged(outcome)} if run.average else {})
        print_json(summary | {"folder": str(outcome.folder), **evaluations, "weights": used})
    else:
        console.print(outcome)
        use = "" if model is None else f"Model: {out}, {model.weights} (for predict, evaluate, export, drift). "
        say(f"{use}Records: {outcome.folder}")
    if outcome.status.status != "done":
        say(f"{run} {outcome.status.status}: {outcome.status.reason}", errors_console)
        raise typer.Exit(1)


def _scores(outcome: "TrainingResult", step: int, average: str = "") -> list[dict[str, Any]]:
    """The evaluation after a step, a row per domain and split."""
    return [
        {"domain": r.domain, "split": r.split, "accuracy": r.accuracy, "loss": r.loss}
        for r in outcome.evaluation(step, average)
    ]


def _averaged(outcome: "TrainingResult") -> dict[str, Any] | None:
    """The selected evaluation of averaged weights, or the last where none is selected; None without any."""
    steps = [record.step for record in outcome.records if record.average]
    if not steps:
        return None
    step = steps[-1] if outcome.selected_average is None else outcome.selected_average
    average = outcome.run.average
    return {"average": average, "step": step, "scores": _scores(outcome, step, average)}
