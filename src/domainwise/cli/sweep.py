"""`domainwise sweep`."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli import complete, options
from domainwise.cli.data_flags import DataFlags, with_data_flags
from domainwise.cli.launching import LaunchFlags, run_plans, with_launch_flags
from domainwise.cli.output import errors_console, say
from domainwise.cli.training_flags import TrainingFlags, with_training_flags
from domainwise.core.errors import UserError
from domainwise.protocol.dataset_names import title

if TYPE_CHECKING:
    from domainwise.protocol.spaces import Value
    from domainwise.sweeps.plan import Plan

EXAMPLES = (
    "Examples:  [bold]domainwise sweep --dataset ColoredMNIST --algorithms ERM,DAT --hparams 20 --trials 3 --dry-run[/]"
    "   ·   [bold]domainwise sweep --dataset BackgroundDigits --algorithms ERM,DAT --hparams 2 --on ray[/]"
    "   ·   [bold]domainwise sweep --data ~/photos --algorithms ERM,DAT --hparams 5[/]"
    "   ·   [bold]domainwise sweep --dataset BackgroundDigits --algorithms DAT --hparams 1 --grid eps=0.5,1,2,4[/]"
    "   ·   [bold]domainwise sweep --preset domainbed --hparams 1 --time-limit 8h[/]"
)


@with_training_flags()
@with_data_flags()
@with_launch_flags
def sweep(
    data: DataFlags,
    preset: Annotated[
        str, typer.Option(help="domainbed: every algorithm on the datasets of DomainBed that are here.")
    ] = "",
    algorithms: Annotated[
        str,
        typer.Option(
            help="Names, separated by commas (default: ERM,DAT; of a preset: all).",
            autocompletion=complete.algorithms,
        ),
    ] = "",
    hparams: Annotated[int, typer.Option(help="Hyper-parameter draws; the first is the defaults.")] = 20,
    trials: options.Trials = 3,
    setting: Annotated[str, typer.Option(help="multi: leave one domain out; single: train on one.")] = "multi",
    test_domains: Annotated[str, typer.Option(help="Names or numbers, separated by commas (default: all).")] = "",
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Also leave out every pair, for leave-one-domain-out selection.")
    ] = False,
    space: Annotated[
        str,
        typer.Option(
            help="Search space: domainbed, domainbed-2024 (newer defaults), paper, or soup (mild values, one start)."
        ),
    ] = "domainbed",
    grid: Annotated[
        list[str] | None, typer.Option(help="Values NAME=V1,V2 of a hyper-parameter; every combination is a row.")
    ] = None,
    *,
    training: TrainingFlags,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs; the same command trains only missing ones (default: runs/sweep)."),
    ] = None,
    time_limit: Annotated[
        str, typer.Option(help="Stop after this time, e.g. 8h; checkpoints are kept, the same command continues.")
    ] = "",
    launching: LaunchFlags,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Search hyper-parameters of several algorithms on every unseen domain; continues after interruptions."""
    from domainwise.protocol.limits import seconds_of

    names = options.parse_names(algorithms)
    search = {
        "draws": hparams,
        "trials": trials,
        "setting": setting,
        "space": space,
        "test_domains": options.parse_names(test_domains),
        "pairs": pairs,
    }
    seconds = seconds_of(time_limit, "time_limit") if time_limit else None
    if preset:
        if data.dataset is not None or data.folder is not None or grid:
            raise UserError("a preset has its own datasets and no grid: leave out --dataset, --data and --grid")
        plans = _of_preset(preset, training, names, device, data_root, search)
    else:
        plans = _of_data(data, training, names, grid or [], device, data_root, search)
    for plan in plans:
        for name in plan.without_pairs:
            say(
                f"note: {name} needs more training domains than a pair leaves of {title(plan.dataset)}: "
                "planned without pairs, so leave-one-domain-out selection cannot judge it",
                errors_console,
            )
    settings = launching.settings(out or Path("runs") / (preset or "sweep"), device, data_root)
    run_plans(plans, settings, launching, as_json=as_json, many=bool(preset), time_limit=seconds)


def _of_data(
    data: DataFlags,
    training: TrainingFlags,
    algorithms: Sequence[str],
    grid: Sequence[str],
    device: str,
    data_root: Path | None,
    search: Mapping[str, Any],
) -> "list[Plan]":
    """A plan per cell of the grid, on one dataset or folder."""
    from domainwise.sweeps.plan import plan_sweep

    cells = grid_cells(grid)
    chosen, named = data.choose(training, data_root)
    planned = training.options(device, data_root, named)
    return [
        plan_sweep(
            chosen.name,
            algorithms or ("ERM", "DAT"),
            planned,
            variant=", ".join(f"{name} {value}" for name, value in cell.items()),
            hparams={**planned.hparams, **cell},
            **search,
        )
        for cell in cells
    ]


def _of_preset(
    preset: str,
    training: TrainingFlags,
    algorithms: Sequence[str],
    device: str,
    data_root: Path | None,
    search: Mapping[str, Any],
) -> "list[Plan]":
    """A plan per dataset of the preset that is here; a note for each of the others."""
    from domainwise.sweeps.presets import plan_preset

    network = None if training.network == "auto" else training.network
    study = plan_preset(preset, training.options(device, data_root, network), algorithms, data_root=data_root, **search)
    for reason in study.left_out:
        say(f"left out: {reason}", errors_console)
    return list(study.plans)


def grid_cells(pairs: Sequence[str]) -> "list[dict[str, Value]]":
    """["eps=1,2", "norm=l2"] -> [{"eps": 1, "norm": "l2"}, {"eps": 2, "norm": "l2"}]; one empty cell for no grid."""
    axes = []
    for pair in pairs:
        name, _, values = pair.partition("=")
        if not options.parse_names(values):
            raise UserError(f"--grid {pair!r}: write NAME=VALUE,VALUE, e.g. --grid eps=0.5,1,2")
        axes.append([options.parse_hparams([f"{name}={value}"], "--grid") for value in options.parse_names(values)])
    return [{name: value for one in cell for name, value in one.items()} for cell in product(*axes)]
