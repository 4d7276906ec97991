"""`domainwise sweep`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli import complete, options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import follow_runs
from domainwise.cli.reading_flags import with_reading_flags
from domainwise.cli.status import list_failures, progress_json
from domainwise.cli.training_flags import TrainingFlags, note_erm_to_the_end, with_training_flags
from domainwise.core.errors import UserError
from domainwise.protocol.dataset_names import title
from domainwise.protocol.reading import PLAIN, Reading

if TYPE_CHECKING:
    from domainwise.protocol.runs import Run
    from domainwise.protocol.spaces import Value
    from domainwise.sweeps.collection import Collection
    from domainwise.sweeps.events import Settings
    from domainwise.sweeps.plan import Plan

EXAMPLES = (
    "Examples:  [bold]domainwise sweep --dataset ColoredMNIST --algorithms ERM,DAT --hparams 20 --trials 3 --dry-run[/]"
    "   ·   [bold]domainwise sweep --dataset BackgroundDigits --algorithms ERM,DAT --hparams 2 --on ray[/]"
    "   ·   [bold]domainwise sweep --data ~/photos --algorithms ERM,DAT --hparams 5[/]"
    "   ·   [bold]domainwise sweep --dataset BackgroundDigits --algorithms DAT --hparams 1 --grid eps=0.5,1,2,4[/]"
    "   ·   [bold]domainwise sweep --preset domainbed --hparams 1 --time-limit 8h[/]"
)


@with_training_flags()
@with_reading_flags
def sweep(
    dataset: options.Dataset = None,
    data: options.DataFolder = None,
    skip_bad: options.SkipBad = False,
    reading: Reading = PLAIN,
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
    on: options.On = "local",
    workers: options.Workers = None,
    per_gpu: options.PerGpu = "auto",
    address: options.Address = None,
    slurm: options.Slurm = None,
    dry_run: options.DryRun = False,
    retry: options.Retry = False,
    log_to: options.LogTo = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Search hyper-parameters of several algorithms on every unseen domain; continues after interruptions."""
    from domainwise.protocol.limits import seconds_of
    from domainwise.sweeps.events import Settings

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
        if dataset is not None or data is not None or grid:
            raise UserError("a preset has its own datasets and no grid: leave out --dataset, --data and --grid")
        plans = _of_preset(preset, training, names, device, data_root, search)
    else:
        plans = _of_data(dataset, data, skip_bad, reading, training, names, grid or [], device, data_root, search)
    for plan in plans:
        for name in plan.without_pairs:
            say(
                f"note: {name} needs more training domains than a pair leaves of {title(plan.dataset)}: "
                "planned without pairs, so leave-one-domain-out selection cannot judge it",
                errors_console,
            )
    launcher = launcher_options(on, workers, per_gpu, address, slurm)
    settings = Settings(out or Path("runs") / (preset or "sweep"), device, data_root, retry, tuple(log_to or ()))
    run_plans(plans, settings, launcher, dry_run=dry_run, as_json=as_json, many=bool(preset), time_limit=seconds)


def _of_data(
    dataset: str | None,
    data: Path | None,
    skip_bad: bool,
    reading: Reading,
    training: TrainingFlags,
    algorithms: Sequence[str],
    grid: Sequence[str],
    device: str,
    data_root: Path | None,
    search: Mapping[str, Any],
) -> "list[Plan]":
    """A plan per cell of the grid, on one dataset or folder."""
    from domainwise.cli.data_options import choose_data_and_network
    from domainwise.sweeps.plan import plan_sweep

    cells = grid_cells(grid)
    chosen, named = choose_data_and_network(
        dataset, data, skip_bad, training.network, training.weights, data_root, reading
    )
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


def launcher_options(
    on: str, workers: int | None, per_gpu: str, address: str | None, slurm: Sequence[str] | None
) -> dict[str, Any]:
    """The arguments of `sweeps.launch.launch`, from flags."""
    return {
        "on": on,
        "workers": workers,
        "per_gpu": parse_per_gpu(per_gpu),
        "address": address,
        "slurm_parameters": options.parse_hparams(slurm or [], "--slurm"),
    }


def grid_cells(pairs: Sequence[str]) -> "list[dict[str, Value]]":
    """["eps=1,2", "norm=l2"] -> [{"eps": 1, "norm": "l2"}, {"eps": 2, "norm": "l2"}]; one empty cell for no grid."""
    axes = []
    for pair in pairs:
        name, _, values = pair.partition("=")
        if not options.parse_names(values):
            raise UserError(f"--grid {pair!r}: write NAME=VALUE,VALUE, e.g. --grid eps=0.5,1,2")
        axes.append([options.parse_hparams([f"{name}={value}"], "--grid") for value in options.parse_names(values)])
    return [{name: value for one in cell for name, value in one.items()} for cell in product(*axes)]


def run_plans(
    plans: "Sequence[Plan]",
    settings: "Settings",
    launcher: Mapping[str, Any],
    *,
    dry_run: bool,
    as_json: bool,
    differences: Sequence[str] | None = None,
    show: "Callable[[Collection], None] | None" = None,
    many: bool = False,
    time_limit: float | None = None,
) -> None:
    """Executes plans into one folder and shows the results, by the selection rules of the plans' datasets.

    For plans that reproduce the paper, `differences` says where they differ from it, and `show` shows the results.
    `many` plans of all algorithms are trained draw by draw, after a quick estimate of their time. After `time_limit`
    seconds the runs save their checkpoints and end.
    """
    from domainwise.core.phrasing import counted
    from domainwise.sweeps.collection import collect
    from domainwise.sweeps.launch import check_launcher, launch_plans, until
    from domainwise.sweeps.plan import planned_runs
    from domainwise.sweeps.presets import draw_by_draw
    from domainwise.sweeps.status import sweep_progress
    from domainwise.sweeps.tables import tables

    check_launcher(launcher["on"])
    order = draw_by_draw if many else planned_runs
    runs = order(plans)
    note_erm_to_the_end(runs)
    if dry_run:
        print_estimate(runs, settings, launcher, as_json=as_json, differences=differences, by_passes=many)
        return
    if many and not as_json:
        print_estimate(runs, settings, launcher, as_json=False, by_passes=True)
    events = launch_plans(plans, settings, order=order, **launcher)
    if time_limit is not None:
        events = until(events, time_limit)
    say(f"{counted(len(runs), 'run')} into {settings.out}{_in_brackets(differences)}", errors_console)
    follow_runs(runs, events, settings.out)
    collected = collect(settings.out).finished()
    progress = sweep_progress(settings.out, runs, collected)
    if show is not None:
        show(collected)
    elif as_json:
        print_json({"standing": progress_json(progress), "tables": [table.as_json() for table in tables(collected)]})
    else:
        for table in tables(collected):
            console.print(table)
        if time_limit is not None and progress.remaining:
            say("Stopped at the time limit: the same command continues", errors_console)
        say(f"{progress}. Other selection rules, curves and models on one page: domainwise report {settings.out}")
    list_failures(progress)
    if progress.failed:
        raise typer.Exit(1)


def parse_per_gpu(text: str) -> int | None:
    """ "auto" -> None, "4" -> 4."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--per-gpu {text}: give a number of runs, or auto")
    return int(text)


def print_estimate(
    runs: "Sequence[Run]",
    settings: "Settings",
    launcher: Mapping[str, Any],
    *,
    as_json: bool,
    differences: Sequence[str] | None = None,
    by_passes: bool = False,
) -> None:
    """The number of runs, the time they would take where it can be measured here, and missing data and weights."""
    from domainwise.core.phrasing import counted, duration
    from domainwise.engine.devices import pick_device
    from domainwise.sweeps.estimate import estimate_seconds
    from domainwise.sweeps.events import final_status
    from domainwise.sweeps.local import default_workers

    missing = [run for run in runs if final_status(run, settings) is None] if settings.out.is_dir() else runs
    data, weights = settings.missing_inputs(missing)
    local = launcher["on"] == "local"
    seconds, reason = None, "the data is not there"
    if not data:
        try:
            pick_device(settings.device)
            measured = partial(estimate_seconds, by_passes=by_passes)
            seconds = measured(missing, settings.device, settings.data_root) if missing else 0.0
        except UserError as error:
            if local:
                raise
            reason = str(error)
    at_once = (launcher["workers"] or default_workers(settings.device, missing)) if local else 1
    if as_json:
        rounded = None if seconds is None else round(seconds)
        estimate: dict[str, Any] = {"runs": len(runs), "missing": len(missing), "seconds": rounded, "workers": at_once}
        paper = {} if differences is None else {"differences": list(differences)}
        print_json(estimate | {"lacking": [*data, *weights]} | paper)
        return
    time_taken = f"time not estimated ({reason})"
    if seconds is not None:
        how = f"with {at_once} at once" if local else "in all, on machines like this"
        measure = "ERM, times the passes of each algorithm" if by_passes else "each algorithm"
        time_taken = f"about {duration(seconds / at_once)} {how}, measured by a few real steps of {measure}"
    say(f"{counted(len(runs), 'run')}, {len(missing)} still to do: {time_taken}{_in_brackets(differences)}")
    for file in (*data, *weights):
        say(f"missing: {file}")


def _in_brackets(differences: Sequence[str] | None) -> str:
    if differences is None:
        return ""
    return f" (unlike the paper: {'; '.join(differences)})" if differences else " (the paper's full search)"
