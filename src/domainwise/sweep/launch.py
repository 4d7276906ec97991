"""Where runs are executed: on this machine, on Ray, on Slurm."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from domainwise.core.errors import unknown
from domainwise.protocol.runs import Run
from domainwise.sweep import local, ray, slurm
from domainwise.sweep.events import Event, Settings

PLACES = ("local", "ray", "slurm")


def check_place(on: str) -> None:
    if on not in PLACES:
        raise unknown("place to run", on, PLACES)


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
    """Trains the runs there, telling what happens; what would stop all of them is found before anything is written."""
    check_place(on)
    settings.check(runs, here=on == "local")
    if on == "ray":
        return ray.execute(runs, settings, address)
    if on == "slurm":
        return slurm.execute(runs, settings, slurm_parameters)
    return local.execute(runs, settings, workers, per_gpu)
