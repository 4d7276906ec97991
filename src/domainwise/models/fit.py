"""fit: from data to a model that can be used."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from domainwise.algorithms import ALGORITHMS
from domainwise.core import torchrun
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.data.fingerprints import fingerprints
from domainwise.data.sources.saved import with_fingerprint
from domainwise.engine.assemble import as_read_by
from domainwise.engine.result import TrainingResult
from domainwise.engine.train import train
from domainwise.models.card import Card, versions
from domainwise.models.model import Model
from domainwise.models.unseen import LAST, estimate_of_run
from domainwise.nets.hub import configuration
from domainwise.nets.weights import for_network
from domainwise.protocol.metrics import MEASURED
from domainwise.protocol.network_names import is_hub, network_title
from domainwise.protocol.options import TrainingKeywords
from domainwise.protocol.records import Record
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import RULE, SavedWeights, saved_weights
from domainwise.protocol.spaces import HParams
from domainwise.sweeps.commands import train_command
from domainwise.sweeps.plan_run import plan_run, training_options

REFERENCE = 256
"""Held-out samples of each training domain whose features the model keeps, to measure drift against."""


def fit(
    environments: Environments | Path | str,
    algorithm: str = "DAT",
    *,
    test_domains: Sequence[str | int] | str | int = (),
    device: str = "auto",
    out: Path | str | None = None,
    data_root: Path | None = None,
    save: str = "auto",
    progress: Callable[[int], None] = lambda _: None,
    **options: Unpack[TrainingKeywords],
) -> Model:
    """Trains on every domain but the test domains (by default on all), and returns the model of the best step.

    With an `average` ("ema", "sma", "swad") it is the model of the averaged weights, `save` "auto"; see
    `protocol.saved_weights` for others.

    The data may be Environments, a folder DIR/<domain>/<class>/*.jpg, or the name of a dataset. A fraction of every
    domain (`held_out`, by default a fifth) is not trained on: it serves to record the accuracy, to select the best step
    (training-domain validation) and to measure drift; with 0 every sample is trained on, none of these is possible, and
    the model is that of the last step.

    With `out`, that folder becomes the saved model, and holds the training's records in out/<run id>: the same call
    again returns at once, an interrupted one continues. `progress` is called with the number of every step. Further
    arguments are training options: steps, evaluate_every, network, seed, precision, hparams, weights (a file),
    image_size, augmentation, average, start, freeze, train, layer_decay, lr_schedule, clip_gradient, early_stop,
    balance, class_weights.
    """
    training = training_options(device, data_root, **options)
    if torchrun.world_size() > 1:
        raise UserError("fit is for one process: under torchrun use domainwise.train")
    if isinstance(environments, Environments):
        data = with_fingerprint(environments)
        dataset = Dataset.from_environments(data)
    else:
        dataset = for_network(find_dataset(str(environments)), training.network)
        data = dataset.load(data_root, training.image_size)
    run = plan_run(dataset, algorithm, test_domains, training)
    with records_folder(out) as folder:
        outcome = train(
            run, folder, device=device, data_root=data_root, environments=data, save=save, progress=progress
        )
        model = trained_model(outcome, data, device, save)
        if out is not None:
            model.save(folder)
    return model


def trained_model(
    outcome: TrainingResult, environments: Environments, device: str = "auto", save: str = "auto"
) -> Model:
    """The model of a finished training, with the weights that `save` names (see `protocol.saved_weights`)."""
    run, status = outcome.run, outcome.status
    if status.status != "done":
        advice = "; try a smaller lr" if status.status == "diverged" else ""
        raise UserError(f"{run} {status.status} at step {status.step}: {status.reason}{advice}")
    weights = saved_weights(RunFolder(outcome.folder.parent, run), save)
    seconds = outcome.records[-1].seconds if outcome.records else 0.0
    facts = {"weights": {"step": weights.step, "selected": weights.selected} | _averaged(weights)}
    rule, evaluation = RULE if weights.selected else LAST, outcome.evaluation(weights.step, weights.average)
    summary = training_summary(run, environments, evaluation, seconds, rule) | facts
    saved_last = not (weights.selected or weights.averaged)
    if (command := train_command(run, Path("model"), "last" if saved_last else "")) is not None:
        summary["command"] = command
    return make_model(run, environments, weights.tensors, summary, device)


def make_model(
    run: Run,
    environments: Environments,
    tensors: Mapping[str, Tensor],
    training: Mapping[str, Any],
    device: str = "auto",
    members: tuple[HParams, ...] = (),
) -> Model:
    """A model of weights trained as the run says: with its card, reference features and fingerprints of its samples.

    `members` are the hyper-parameters of each model of an ensemble.
    """
    splits = {domain: environments.split(domain, run.trial, run.held_out) for domain in run.train_domains}
    rows = torch.cat([split["in"] for split in splits.values()])
    reading = as_read_by(run.network, environments).standardised(rows)
    card = Card(
        run.algorithm,
        run.hparams,
        network_title(run.network),
        environments.classes,
        environments.shape,
        tuple(reading.mean.flatten().tolist()),
        tuple(reading.std.flatten().tolist()),
        {domain: len(split["in"]) for domain, split in splits.items()},
        {
            **training,
            "counts": {domain: _class_counts(environments, split["in"]) for domain, split in splits.items()},
            "samples": {domain: _split_sizes(environments, domain, run) for domain in run.domains},
        },
        versions(run.network),
        members,
        window=environments.window,
        architecture=configuration(run.network) if is_hub(run.network) else {},
    )
    model = Model(card, tensors, device=device)
    trained_on = [fingerprints(environments.images[split["in"]]) for split in splits.values()]
    model.trained_on = torch.cat(trained_on).unique()
    held_out = {domain: split["out"][:REFERENCE] for domain, split in splits.items() if len(split["out"])}
    with suppress(UserError):  # ARM's features belong to a batch, not to a sample
        model.reference = {domain: model.embed(environments.images[rows]).cpu() for domain, rows in held_out.items()}
    return model


def training_summary(
    run: Run, environments: Environments, evaluation: Iterable[Record], seconds: float, rule: str
) -> dict[str, Any]:
    """The training of a model and the accuracies with its weights, in plain JSON values."""
    records = list(evaluation)
    accuracy: dict[str, dict[str, float]] = {}
    metrics: dict[str, dict[str, dict[str, float | None]]] = {}
    for record in records:
        accuracy.setdefault(record.domain, {})[record.split] = record.accuracy
        measured = {field: getattr(record, field) for field in ("loss", *MEASURED)}
        metrics.setdefault(record.domain, {})[record.split] = measured
    test_rows = environments.test_rows_of(run.train_domains)
    unseen = [domain for domain in run.test_domains if domain not in test_rows]
    groups = ALGORITHMS[run.algorithm].batch_dependent
    return {
        "run": json.loads(json.dumps(run.describe())),
        "id": run.id,
        "accuracy": accuracy,
        "metrics": metrics,
        "unseen": estimate_of_run(records, unseen, rule),
        "test_rows": estimate_of_run(records, test_rows, rule),
        "seconds": seconds,
        "predictions": "depend on the batch they are made in" if groups else "of one input do not depend on others",
    }


def _class_counts(environments: Environments, rows: Tensor) -> dict[str, int]:
    """Samples of each class among the rows."""
    counts = environments.labels[rows.to(environments.labels.device)].bincount(minlength=len(environments.classes))
    return dict(zip(environments.classes, counts.tolist(), strict=True))


def _split_sizes(environments: Environments, domain: str, run: Run) -> dict[str, int]:
    """Samples that a run may train on, and those that it holds out."""
    return {name: len(rows) for name, rows in environments.split(domain, run.trial, run.held_out).items()}


def _averaged(weights: SavedWeights) -> dict[str, Any]:
    """What averaged weights are the average of."""
    return {} if weights.averaged is None else {"averaged": asdict(weights.averaged)}


@contextmanager
def records_folder(out: Path | str | None) -> Iterator[Path]:
    """The folder of the training's records: the user's, or a temporary one."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="domainwise-") as folder:
        yield Path(folder)
