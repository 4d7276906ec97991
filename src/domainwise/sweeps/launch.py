"""One entry to all launchers: this machine, a Ray cluster, a Slurm cluster."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Unpack

from domainwise.core import plugins
from domainwise.core.errors import unknown
from domainwise.protocol.options import TrainingKeywords
from domainwise.protocol.runs import Run
from domainwise.sweeps import local, ray, slurm
from domainwise.sweeps.collection import Collection, collect
from domainwise.sweeps.events import Event, Settings
from domainwise.sweeps.plan import Plan, plan_sweep, planned_runs
from domainwise.sweeps.plan_run import training_options

LAUNCHERS = ("local", "ray", "slurm")


def check_launcher(on: str) -> None:
    if on not in LAUNCHERS:
        raise unknown("place to run", on, LAUNCHERS)


def launch(
    on: str,
    runs: Sequence[Run],
    settings: Settings,
    *,
    workers: int | None = None,
    per_gpu: int | None = None,
    address: str | None = None,
    slurm_parameters: Mapping[str, Any] | None = None,
) -> Generator[Event]:
    """Trains the runs and yields their events; what would stop all of them is an error before anything is written."""
    check_launcher(on)
    if on == "ray":
        return ray.execute(runs, settings, address)
    if on == "slurm":
        return slurm.execute(runs, settings, slurm_parameters)
    return local.execute(runs, settings, workers, per_gpu)


def launch_plans(
    plans: Sequence[Plan],
    settings: Settings,
    on: str = "local",
    *,
    order: Callable[[Sequence[Plan]], list[Run]] = planned_runs,
    **launcher: Any,
) -> Generator[Event]:
    """Trains the runs of all plans; leaves the plans and the names of plugins in the folder, so that it can be read."""
    events = launch(on, order(plans), settings, **launcher)
    for plan in plans:
        plan.save(settings.out)
    plugins.save_names(settings.out)
    return events


def until(events: Generator[Event], seconds: float) -> Generator[Event]:
    """The events of so much time; then the runs are interrupted, and save their checkpoints."""
    deadline = time.monotonic() + seconds
    with closing(events):
        for event in events:
            yield event
            if time.monotonic() >= deadline:
                return


def sweep(
    dataset: str | Path,
    algorithms: str | Sequence[str] = ("ERM", "DAT"),
    *,
    out: str | Path = "runs/sweep",
    draws: int = 20,
    trials: int = 3,
    setting: str = "multi",
    space: str = "domainbed",
    test_domains: Sequence[str] = (),
    pairs: bool = False,
    workers: int | None = None,
    device: str = "auto",
    data_root: Path | None = None,
    retry: bool = False,
    progress: Callable[[Event], None] = lambda _: None,
    **options: Unpack[TrainingKeywords],
) -> Collection:
    """Searches hyper-parameters of several algorithms on every unseen domain, several runs at once in worker processes.

    Returns everything that the folder holds: `domainwise.table(out)` makes tables of it. The same call again trains
    only what is missing, and an interrupted one continues. Further arguments are training options (see
    `protocol.options`): steps, network, hparams and others.
    """
    plan = plan_sweep(
        str(dataset),
        (algorithms,) if isinstance(algorithms, str) else tuple(algorithms),
        training_options(device, data_root, **options),
        draws=draws,
        trials=trials,
        setting=setting,
        space=space,
        test_domains=test_domains,
        pairs=pairs,
    )
    settings = Settings(Path(out), device, data_root, retry)
    with closing(launch_plans([plan], settings, workers=workers)) as events:
        for event in events:
            progress(event)
    return collect(settings.out)
