"""train: one run, planned beforehand or described by what it trains on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from domainwise.engine.result import TrainingResult
from domainwise.engine.train import train as train_run
from domainwise.protocol.options import TrainingKeywords
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run, training_options


def train(run: Run | str | Path, *positional: Any, **keywords: Any) -> TrainingResult:
    """Trains a planned Run, or an algorithm on a dataset (by name, or a folder of images) with some domains unseen.

        train(run, "runs", device="cpu")
        train("BackgroundDigits", "DAT", "scene1", steps=601, hparams={"eps": 2}, out="runs")

    The arguments after a Run are those of `engine.train.train`, after a dataset those of `train_on`. An interrupted
    training continues where it stopped; one that has ended returns its result at once. Ctrl-C saves a checkpoint and
    raises Interrupted. The folder `out/<run id>` holds run.json, records.jsonl and the weights of the last and of the
    selected step and, with an `average`, the averaged ones; `save` says which of them the result's algorithm has:
    "best", "last", "averaged", or "auto": averaged where there are such, else best.
    """
    if isinstance(run, Run):
        return train_run(run, *positional, **keywords)
    return train_on(run, *positional, **keywords)


def train_on(
    dataset: str | Path,
    algorithm: str = "DAT",
    test_domains: Sequence[str | int] | str | int = (),
    *,
    train_domains: Sequence[str | int] | str | int | None = None,
    draw: int = 0,
    trial: int = 0,
    out: Path | str = "runs",
    device: str = "auto",
    data_root: Path | None = None,
    retry: bool = True,
    progress: Callable[[int], None] = lambda _: None,
    log_to: Sequence[str] = (),
    save: str = "auto",
    **options: Unpack[TrainingKeywords],
) -> TrainingResult:
    """Plans a run and trains it. Further arguments are training options: steps, network, hparams and others."""
    training = training_options(device, data_root, **options)
    run = plan_run(str(dataset), algorithm, test_domains, training, train_domains=train_domains, draw=draw, trial=trial)
    return train_run(
        run, out, device=device, data_root=data_root, retry=retry, progress=progress, log_to=log_to, save=save
    )
