"""calibrate: a temperature, and scores for thresholds, from domains that the predicting model had not seen.

Runs that left a training domain out give logits on all its samples. The shipped model has seen these domains: what
holds is a property of the models that left one out. Every sample counts once: of several trials the first is used.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset, load_dataset
from domainwise.data.images import progress
from domainwise.data.streaming import chunks
from domainwise.engine.evaluation import chunk_size
from domainwise.engine.restore import finished, restore
from domainwise.models.model import Model
from domainwise.models.new_samples import labels_of, new_samples
from domainwise.protocol.calibration import CalibratedOn, Logits, calibrate_logits
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run

log = logging.getLogger(__name__)

DIFFER = (
    "train_domains",
    "test_domains",
    "draw",
    "trial",
    "evaluate_every",
    "track",
    "full_curves",
    "early_stop",
    "average",
)
"""What a run that left a domain out need not share with the model's."""


def calibrate(
    model: Model,
    *,
    sweep: Path | str | None = None,
    data: Environments | Path | str | None = None,
    device: str = "auto",
    data_root: Path | None = None,
) -> Model:
    """The model with calibrated probabilities: from a sweep with its settings, or from labelled data.

    Of data, domains that the model has not seen are used; without any, held-out images of its training domains, which
    make it too confident on new ones.
    """
    if (sweep is None) == (data is None):
        raise UserError("calibrate by a sweep that left domains out, or by labelled data: give one of them")
    if sweep is not None:
        return calibrated(
            model, unseen_logits(matching_runs(model, Path(sweep)), _save(model), device, data_root), "unseen"
        )
    assert data is not None
    environments = data if isinstance(data, Environments) else load_dataset(data, data_root, model.card.shape[-1])
    return calibrated(model, *_labelled_logits(model, environments))


def calibrated(model: Model, logits: Logits, source: CalibratedOn) -> Model:
    """A copy with the temperature that these logits give."""
    calibration, outcomes = calibrate_logits(logits, source)
    for warning in calibration.warnings:
        log.warning("%s", warning)
    weights = {name: tensor.cpu() for name, tensor in model.algorithm.state_dict().items()}
    card = replace(model.card, calibration=calibration)
    return Model(card, weights, model.reference, model.device.type, model.trained_on, outcomes)


def unseen_logits(
    runs: Sequence[RunFolder],
    save: str,
    device: str = "auto",
    data_root: Path | None = None,
    environments: Environments | None = None,
) -> Logits:
    """Of every run, on all samples of the domain it left out."""
    run = runs[0].run
    environments = environments or find_dataset(run.dataset).load(data_root, run.image_size)
    logits = {}
    with progress.show("models that left a domain out", len(runs)) as advance:
        for folder in runs:
            trained = restore(folder.path, data_root=data_root, environments=environments, device=device, save=save)
            environments, algorithm = trained.environments, trained.algorithm
            domain = folder.run.test_domains[-1]
            size = int(algorithm.hparams["batch_size"]) if algorithm.batch_dependent else chunk_size(environments)
            with torch.no_grad():
                both = [
                    (algorithm.predict(environments.normalise(images)).float().cpu(), labels.cpu())
                    for images, labels in chunks(environments, environments.rows(domain).to(environments.device), size)
                ]
            logits[domain] = tuple(torch.cat(parts).numpy() for parts in zip(*both, strict=True))
            advance(1)
    return logits  # type: ignore[return-value]


def _save(model: Model) -> str:
    """Which weights of a run correspond to the model's."""
    weights = model.card.training.get("weights") or {}
    return "averaged" if weights.get("averaged") else "best" if weights.get("selected") else "last"


def matching_runs(model: Model, folder: Path) -> list[RunFolder]:
    """For each training domain, the run of a sweep with the model's settings that left it out."""
    described = model.card.training.get("run")
    if model.card.training.get("last_layer"):
        raise UserError("the last layer of this model was trained after its run: calibrate it by labelled data")
    if not described:
        raise UserError("this model does not know its run: calibrate it by labelled data", argument="data")
    settings = _settings(Run.from_description(described))
    files = sorted(folder.glob("*/run.json"))
    if not files:
        raise UserError(f"{folder}: no runs there: give the folder of a sweep", argument="sweep")
    folders: dict[str, RunFolder] = {}
    unfinished: dict[str, str] = {}
    for run in sorted(_readable(files), key=lambda run: (run.trial, run.draw, run.id)):
        if run.combination or not run.test_domains or _settings(run) != settings:
            continue
        domain = run.test_domains[-1]
        if domain in model.domains and domain not in folders and set(run.train_domains) <= set(model.domains):
            try:
                folders[domain] = finished(folder / run.id)
            except UserError as error:
                unfinished.setdefault(domain, str(error))
    if missing := [domain for domain in model.domains if domain not in folders]:
        absent = f"no run with the model's settings left {missing[0]} out and trained on its other domains alone"
        raise UserError(unfinished.get(missing[0], f"{folder}: {absent}"), argument="sweep")
    return [folders[domain] for domain in model.domains]


def _readable(files: Sequence[Path]) -> Iterator[Run]:
    """The runs that these files describe; a damaged one is named and left out."""
    for file in files:
        try:
            yield Run.read(file)
        except UserError as error:
            log.warning("left out: %s", error)


def _settings(run: Run) -> dict[str, object]:
    return {name: value for name, value in run.describe().items() if name not in DIFFER}


def _labelled_logits(model: Model, data: Environments) -> tuple[Logits, CalibratedOn]:
    if model.batch_dependent:
        raise UserError(f"predictions of {model.card.algorithm} depend on their batch: calibrate it by a sweep")
    unseen: dict[str, Any] = {}
    held_out: dict[str, Any] = {}
    for domain, rows in new_samples(model, data).items():
        is_known = domain in (*model.domains, *data.test_rows_of(model.domains))
        is_unseen = not is_known and len(rows) == data.sizes[domain]
        logits = model._each(data.images[rows], model.algorithm.predict, len(model.classes)).cpu().double().numpy()
        (unseen if is_unseen else held_out)[domain] = (logits, labels_of(model, data, rows).numpy())
    return (unseen, "unseen") if unseen else (held_out, "held-out")
