"""Runs the plans of a command, or estimates how long that takes."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.runs_progress import follow_runs
from domainwise.cli.status import list_failures, progress_json
from domainwise.cli.training_flags import Command, in_place_of, note_erm_to_the_end
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.protocol.runs import Run
    from domainwise.sweeps.collection import Collection
    from domainwise.sweeps.events import Settings
    from domainwise.sweeps.plan import Plan


def _declaration(
    on: options.On = "local",
    workers: options.Workers = None,
    per_gpu: options.PerGpu = "auto",
    address: options.Address = None,
    slurm: options.Slurm = None,
    dry_run: options.DryRun = False,
    retry: options.Retry = False,
    log_to: options.LogTo = None,
) -> None:
    """A signature and nothing else: names, kinds, defaults and help of the options, in this order."""


DECLARED = inspect.signature(_declaration).parameters


@dataclass(frozen=True)
class LaunchFlags:
    """The values of the options that say where and how runs are launched, by name."""

    values: Mapping[str, Any]

    @property
    def dry_run(self) -> bool:
        return bool(self.values["dry_run"])

    @property
    def launcher(self) -> dict[str, Any]:
        """The arguments of `sweeps.launch.launch`."""
        return {
            **{name: self.values[name] for name in ("on", "workers", "address")},
            "per_gpu": parse_per_gpu(self.values["per_gpu"]),
            "slurm_parameters": options.parse_hparams(self.values["slurm"] or [], "--slurm"),
        }

    def settings(self, out: Path, device: str, data_root: Path | None) -> "Settings":
        from domainwise.sweeps.events import Settings

        return Settings(out, device, data_root, self.values["retry"], tuple(self.values["log_to"] or ()))


def with_launch_flags(command: Command) -> Command:
    """The command with the declared options in place of its parameter `launching`."""
    return in_place_of("launching", DECLARED, LaunchFlags, command)


def run_plans(
    plans: "Sequence[Plan]",
    settings: "Settings",
    launching: LaunchFlags,
    *,
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

    launcher = launching.launcher
    check_launcher(launcher["on"])
    order = draw_by_draw if many else planned_runs
    runs = order(plans)
    note_erm_to_the_end(runs)
    if launching.dry_run:
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
        steps = "each algorithm"
        steps += ", or of ERM times the passes of an algorithm where steps are long" if by_passes else ""
        time_taken = f"about {duration(seconds / at_once)} {how}, measured by a few real steps of {steps}"
    say(f"{counted(len(runs), 'run')}, {len(missing)} still to do: {time_taken}{_in_brackets(differences)}")
    for file in (*data, *weights):
        say(f"missing: {file}")


def _in_brackets(differences: Sequence[str] | None) -> str:
    if differences is None:
        return ""
    return f" (unlike the paper: {'; '.join(differences)})" if differences else " (the paper's full search)"
