"""`domainwise sweep` and `domainwise status`."""

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from domainwise.cli.common import (
    Augmentation,
    DataRoot,
    Device,
    FullCurves,
    ImageSize,
    Json,
    LogTo,
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
)
from domainwise.errors import UserError

EXAMPLES = (
    "Examples:  [bold]domainwise sweep --dataset ColoredMNIST --algorithms ERM,DAT --hparams 20 --trials 3 --dry-run[/]"
    "   ·   [bold]domainwise sweep --dataset BackgroundDigits --algorithms ERM,DAT --hparams 2 --on ray[/]"
    "   ·   [bold]domainwise sweep --data ~/photos --algorithms ERM,DAT --hparams 5[/]"
)
STATUS_EXAMPLES = "Examples:  [bold]domainwise status runs/sweep[/]   ·   [bold]domainwise status runs/sweep --watch[/]"
WATCH_SECONDS = 2.0

On = Annotated[str, typer.Option(help="Where: local, ray or slurm.")]
Workers = Annotated[int | None, typer.Option(help="Processes on this machine (default: one per core or GPU).", min=1)]
PerGpu = Annotated[str, typer.Option(help="Runs that take turns on each GPU, or auto: as many as pay.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster to join (default: start one on the loopback).")]
Slurm = Annotated[list[str] | None, typer.Option(help="submitit parameter NAME=VALUE, e.g. slurm_partition=gpu.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many runs, and how long they would take.")]
Retry = Annotated[bool, typer.Option("--retry", help="Try runs that failed before once more.")]


def sweep(
    dataset: Annotated[str | None, typer.Option(help="See: domainwise list.")] = None,
    data: Own = None,
    skip_bad: SkipBad = False,
    algorithms: Annotated[str, typer.Option(help="Names with commas between.")] = "ERM,DAT",
    hparams: Annotated[int, typer.Option(help="Hyper-parameter draws; the first is the defaults.")] = 20,
    trials: Annotated[int, typer.Option(help="Repetitions with other splits, weights and batches.")] = 3,
    setting: Annotated[str, typer.Option(help="multi: leave one domain out; single: train on one.")] = "multi",
    test_domains: Annotated[str, typer.Option(help="Names or numbers with commas between (default: all).")] = "",
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Also leave out every two, to select by leave-one-out.")
    ] = False,
    space: Annotated[str, typer.Option(help="Search space: domainbed or paper.")] = "domainbed",
    hparam: Annotated[list[str] | None, typer.Option(help="Fix a hyper-parameter: NAME=VALUE.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates per run (default: the dataset's).")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="(default: the dataset's).")] = None,
    network: Annotated[str, typer.Option(help="auto: the dataset's, and for --data by the weights here.")] = "auto",
    image_size: ImageSize = None,
    augmentation: Augmentation = None,
    weights: Weights = "",
    precision: Precision = "auto",
    full_curves: FullCurves = False,
    out: Annotated[Path, typer.Option(help="Folder; the same command on it does only what is missing.")] = Path(
        "runs/sweep"
    ),
    on: On = "local",
    workers: Workers = None,
    per_gpu: PerGpu = "auto",
    address: Address = None,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    retry: Retry = False,
    log_to: LogTo = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Search hyper-parameters for several algorithms on every unseen domain; survives crashes, and continues."""
    from domainwise.cli.own import choose
    from domainwise.engine.devices import pick_precision
    from domainwise.nets.weights import planned
    from domainwise.sweep.events import Settings
    from domainwise.sweep.plan import Plan

    chosen, named = choose(dataset, data, skip_bad, network, weights, data_root)
    plan = Plan(
        chosen.name,
        names(algorithms),
        draws=hparams,
        trials=trials,
        setting=setting,
        space=space,
        test_domains=names(test_domains),
        pairs=pairs,
        steps=steps,
        evaluate_every=evaluate_every,
        network=named,
        image_size=image_size,
        augmentation=augmentation,
        seed=seed,
        precision=pick_precision(precision, device),
        full_curves=full_curves,
        weights=planned(named or "", weights, data_root),
        hparams=parse_hparams(hparam or []),
    )
    place = {
        "on": on,
        "workers": workers,
        "per_gpu": parse_per_gpu(per_gpu),
        "address": address,
        "slurm_parameters": parse_hparams(slurm or [], "--slurm"),
    }
    settings = Settings(out, device, data_root, retry, tuple(log_to or ()))
    run_plans([plan], settings, place, dry_run=dry_run, as_json=as_json)


def run_plans(
    plans: Sequence[Any],
    settings: Any,
    place: Mapping[str, Any],
    *,
    dry_run: bool,
    as_json: bool,
    unlike: Sequence[str] | None = None,
) -> None:
    """Executes plans into one folder and shows what came out, by the rules of selection of the plans' datasets.

    Of plans that reproduce the paper, `unlike` says where they differ from it; what came out is then shown elsewhere.
    """
    from domainwise.data import find_dataset
    from domainwise.report.formats import terminal
    from domainwise.report.progress import follow
    from domainwise.report.tables import tables
    from domainwise.sweep.collection import collect
    from domainwise.sweep.launch import launch
    from domainwise.sweep.plan import planned_runs
    from domainwise.sweep.status import standing

    runs = planned_runs(plans)
    if dry_run:
        tell(runs, settings, place, as_json=as_json, unlike=unlike)
        return
    events = launch(runs=runs, settings=settings, **place)
    for plan in plans:
        plan.save(settings.out)
    errors_console.print(f"{len(runs)} runs into {settings.out}{_unlike(unlike)}", soft_wrap=True)
    try:
        with closing(events):
            follow(runs, events, errors_console, settings.out)
    except KeyboardInterrupt:
        errors_console.print("stopped; finished runs and checkpoints are kept: the same command continues")
        raise typer.Exit(130) from None
    stands = standing(settings.out, runs)
    rules = dict.fromkeys(find_dataset(plan.dataset).selection for plan in plans)
    collected = collect(settings.out) if unlike is None else None
    found = [table for rule in rules for table in tables(collected, rule)] if collected else []
    if unlike is None and as_json:
        print_json({"standing": standing_json(stands), "tables": [table.as_json() for table in found]})
    elif unlike is None:
        for table in found:
            console.print(terminal(table))
        console.print(
            f"{stands}. Other selection rules, curves and models on one page: domainwise report {settings.out}",
            soft_wrap=True,
        )
    list_failures(stands)
    if stands.failed:
        raise typer.Exit(1)


def parse_per_gpu(text: str) -> int | None:
    """ "auto" -> None, "4" -> 4."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--per-gpu {text}: give a number of runs, or auto")
    return int(text)


def tell(
    runs: Sequence[Any], settings: Any, place: Mapping[str, Any], *, as_json: bool, unlike: Sequence[str] | None
) -> None:
    """How many runs there are, how long they would take where that can be measured here, and what they lack."""
    from domainwise.engine.devices import pick_device
    from domainwise.report.words import duration
    from domainwise.sweep.estimate import estimate_seconds
    from domainwise.sweep.events import ended
    from domainwise.sweep.local import places

    missing = [run for run in runs if ended(run, settings) is None] if settings.out.is_dir() else runs
    data, weights = settings.lacking(missing)
    seconds, reason = None, "the data is not there"
    if not data:
        try:
            pick_device(settings.device)
            seconds = estimate_seconds(missing, settings.device, settings.data_root) if missing else 0.0
        except UserError as error:
            if place["on"] == "local":
                raise
            reason = str(error)
    local = place["on"] == "local"
    at_once = (place["workers"] or places(settings.device)) if local else 1
    if as_json:
        rounded = None if seconds is None else round(seconds)
        told = {"runs": len(runs), "missing": len(missing), "seconds": rounded, "workers": at_once}
        print_json(told | {"lacking": [*data, *weights]} | ({} if unlike is None else {"differences": list(unlike)}))
        return
    time_taken = f"time not estimated ({reason})"
    if seconds is not None:
        how = f"with {at_once} at once" if local else "in all, on machines like this"
        time_taken = f"about {duration(seconds / at_once)} {how}, measured by a few real steps of each algorithm"
    console.print(
        f"{len(runs)} runs, {len(missing)} still to do: {time_taken}{_unlike(unlike)}", soft_wrap=True, highlight=False
    )
    for lack in (*data, *weights):
        console.print(f"missing: {lack}", soft_wrap=True, highlight=False, markup=False)


def _unlike(differences: Sequence[str] | None) -> str:
    if differences is None:
        return ""
    return f" (unlike the paper: {'; '.join(differences)})" if differences else " (the paper's full search)"


def list_failures(stands: Any) -> None:
    """Each failure with its reason, and how to try again."""
    for status in (*stands.failed, *stands.diverged):
        line = f"{status.run} {status.status} at step {status.step}: {status.reason}"
        errors_console.print(line, soft_wrap=True, highlight=False, markup=False)
    if stands.failed and len(sys.argv) > 1 and sys.argv[1] in ("sweep", "reproduce"):
        command = shlex.join(["domainwise", *sys.argv[1:]])
        errors_console.print(f"to try the failed runs again: {command} --retry", soft_wrap=True, highlight=False)
    elif stands.failed:
        errors_console.print("to try the failed runs again: the sweep's own command with --retry")


def standing_json(stands: Any) -> dict[str, Any]:
    return {
        "total": stands.total,
        "done": stands.done,
        "running": stands.running,
        "remaining": stands.remaining,
        "failed": [{"run": s.run, "reason": s.reason} for s in stands.failed],
        "diverged": [{"run": s.run, "reason": s.reason} for s in stands.diverged],
    }


def status(
    folder: Annotated[Path, typer.Argument(help="The sweep's folder (its --out).")],
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking until all runs have ended.")] = False,
    as_json: Json = False,
) -> None:
    """Where a sweep stands, from another terminal or machine: done, running, failed, remaining, time left, best."""
    from domainwise.sweep.plan import planned_runs, saved_plans
    from domainwise.sweep.status import best_so_far, standing

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder of a sweep (its --out)")
    runs = planned_runs(list(saved_plans(folder)))
    if not runs:
        raise UserError(f"{folder} holds no plan of a sweep: give the folder of a sweep (its --out)")
    stands = standing(folder, runs)
    if as_json:
        print_json(standing_json(stands))
        return
    if watch:
        with Live(str(stands), console=console, refresh_per_second=4, transient=True) as live:
            while stands.remaining or stands.running:
                time.sleep(WATCH_SECONDS)
                stands = standing(folder, runs)
                live.update(str(stands))
    console.print(str(stands), highlight=False, soft_wrap=True)
    if best := best_so_far(folder, runs):
        console.print(best, highlight=False, soft_wrap=True, markup=False)
    list_failures(stands)
