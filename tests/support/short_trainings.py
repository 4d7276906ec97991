"""Short trainings on few images, and what a training left in its folder."""

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from domainwise.data.catalogue import DATASETS
from domainwise.data.environments import Environments
from domainwise.engine.result import TrainingResult
from domainwise.engine.train import train
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run
from small_problems import quick

STEPS, EVERY = 8, 3


def plan(
    algorithm: str = "DAT",
    *,
    trial: int = 0,
    steps: int = STEPS,
    evaluate_every: int = EVERY,
    average: str = "",
    **hparams: Any,
) -> Run:
    hparams = quick(algorithm) | {"batch_size": 4} | hparams
    settings = {"trial": trial, "steps": steps, "evaluate_every": evaluate_every, "average": average}
    return plan_run("BackgroundDigits", algorithm, [0], hparams=hparams, **settings)


def saved_results(run: Run, out: Path) -> tuple[list[Record], Status | None, bytes]:
    """Everything that a run left but how long it took: records, status, models of the last and the best step."""
    folder = RunFolder(out, run)
    records, status = folder.read()
    models = folder.model_file.read_bytes() + (folder.best_file.read_bytes() if folder.best_file.exists() else b"")
    return [replace(record, seconds=0.0) for record in records], status, models


@cache
def few() -> Environments:
    """The first 25 images of each domain: quickly judged."""
    data = DATASETS["BackgroundDigits"].load()
    rows = {name: data.rows(name)[:25] for name in data.domains}
    return Environments.from_arrays({name: (data.images[r], data.labels[r]) for name, r in rows.items()})


def trained(run: Run, out: Path, **settings: Any) -> TrainingResult:
    return train(run, out, device="cpu", environments=few(), **settings)


def at_step(step: int, action: Callable[[], object]) -> Callable[[int], None]:
    """A `progress` that acts after one step."""
    return lambda now: action() and None if now == step else None


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)
