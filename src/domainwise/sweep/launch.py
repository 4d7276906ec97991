"""One entry to all launchers: this machine, a Ray cluster, a Slurm cluster."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from domainwise.core.errors import unknown
from domainwise.protocol.runs import Run
from domainwise.sweep import local, ray, slurm
from domainwise.sweep.events import Event, Settings

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
    settings.check(runs, here=on == "local")
    if on == "ray":
        return ray.execute(runs, settings, address)
    if on == "slurm":
        return slurm.execute(runs, settings, slurm_parameters)
    return local.execute(runs, settings, workers, per_gpu)
