"""`domainwise reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from domainwise.cli import options
from domainwise.cli.launching import LaunchFlags, run_plans, with_launch_flags
from domainwise.cli.output import console, print_json
from domainwise.cli.training_flags import TrainingFlags, with_training_flags
from domainwise.protocol.runs import RECIPE

if TYPE_CHECKING:
    from domainwise.sweeps.collection import Collection

EXAMPLES = (
    "Examples:  [bold]domainwise reproduce table1 --dataset ColoredMNIST --algorithms ERM,DAT --hparams 4[/]   ·   "
    "[bold]domainwise reproduce cmnist --trials 1 --steps 501 --dry-run[/]"
)

OF_THE_PAPER = ("hparam", "steps", "network", "evaluate_every", "augmentation", "full_curves", "track")


@with_training_flags(without=(*OF_THE_PAPER, *RECIPE, "class_weight"))
@with_launch_flags
def reproduce(
    table: Annotated[str, typer.Argument(help="A table of the paper with accuracies: its number or label.")],
    dataset: Annotated[str | None, typer.Option(help="Only this dataset of the table.")] = None,
    algorithms: Annotated[str, typer.Option(help="Only these algorithms, separated by commas.")] = "",
    hparams: Annotated[int, typer.Option(help="Hyper-parameter draws (the paper: 20).")] = 20,
    trials: Annotated[int, typer.Option(help="Trials (the paper: 3).")] = 3,
    steps: Annotated[int | None, typer.Option(help="Fewer steps than the paper's.")] = None,
    network: Annotated[str | None, typer.Option(help="Another network than the paper's.")] = None,
    *,
    training: TrainingFlags,
    out: Annotated[Path | None, typer.Option(help="Folder (default: runs/TABLE).")] = None,
    launching: LaunchFlags,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Plan and run a table of the paper from its presets, then compare our numbers with its numbers, cell by cell."""
    from domainwise.paper.conditions import planned_differences
    from domainwise.paper.presets import reproduction
    from domainwise.paper.tables import find_table
    from domainwise.reports.paper_comparison import compare

    paper_table = find_table(table)
    plans = reproduction(
        table,
        training.options(device, data_root, network, steps=steps),
        dataset=dataset,
        algorithms=options.parse_names(algorithms),
        draws=hparams,
        trials=trials,
    )

    def show(collection: "Collection") -> None:
        compared = compare(table, collection)
        if as_json:
            print_json(compared.as_json())
        else:
            console.print(compared)

    run_plans(
        plans,
        launching.settings(out or Path("runs") / paper_table.label, device, data_root),
        launching,
        as_json=as_json,
        differences=planned_differences(paper_table, plans),
        show=show,
    )
