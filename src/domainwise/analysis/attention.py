"""Several trained models on the same images of a domain none of them saw: where does each look?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from domainwise.algorithms.adversarial import Ensemble
from domainwise.analysis.cam import Attention, grad_cam, last_map
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.sources.mnist import source_digits
from domainwise.engine.restore import TrainedRun, finished, restore
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import method as row_name
from domainwise.protocol.statistics import Estimate, estimate


@dataclass(frozen=True)
class Sight:
    """How one model sees the images.

    `inside` is the part of its heat that falls on the object, in per cent, over those of `images` of the unseen domain
    that have any heat at all.
    """

    run: Run
    layers: tuple[str, ...]
    attention: Attention
    images: int = 0
    inside: Estimate | None = None

    @property
    def name(self) -> str:
        return row_name(self.run)


@dataclass(frozen=True)
class Comparison:
    """The same images through the eyes of several models. `area` is what an even heatmap would have inside."""

    dataset: str
    unseen: str | None  # the domain the images are of; None for a user's own
    classes: tuple[str, ...]
    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor | None
    sights: tuple[Sight, ...]
    method: str
    area: float | None = None


def restore_all(folders: Sequence[Path], data_root: Path | None = None, device: str = "cpu") -> list[TrainedRun]:
    """The models of several folders, with one copy of their data; they must be comparable."""
    models: list[TrainedRun] = []
    for folder in folders:
        run = finished(folder).run
        if models and (run.dataset, run.image_size) != (models[0].run.dataset, models[0].run.image_size):
            other = f"{run}, images of {run.image_size} pixels"
            raise UserError(f"{other}, cannot be compared with {models[0].run}: give runs on the same data")
        environments = models[0].environments if models else None
        models.append(restore(folder, data_root=data_root, environments=environments, device=device))
    return models


def common_unseen(models: Sequence[TrainedRun]) -> str:
    """The first domain that none of the models was trained on and the first model was tested on."""
    for domain in models[0].run.test_domains:
        if all(domain not in trained.run.train_domains for trained in models):
            return domain
    runs = "; ".join(str(trained.run) for trained in models)
    raise UserError(f"no domain is unseen by all of: {runs}. Give runs that leave out the same domain, or --images")


def compare_attention(
    models: Sequence[TrainedRun], rows: Tensor, layer: str | None = None, method: str = "grad-cam"
) -> Comparison:
    """Grad-CAM of every model on rows of their common data and, where the object's outline is known, its share."""
    data, unseen = models[0].environments, common_unseen(models)
    masks = object_masks(data)
    sights = [see(trained, data.images[rows], unseen, layer, method) for trained in models]
    area = None
    if masks is not None:
        domain = data.rows(unseen)
        inside = masks[domain].to(data.device)
        area = float(inside.double().mean())
        for number, trained in enumerate(models):
            whole = see(trained, data.images[domain], unseen, layer, method).attention
            shares = whole.share_inside(inside)
            known = (100 * shares[~shares.isnan()]).tolist()
            sights[number] = replace(sights[number], images=len(domain), inside=estimate(known) if known else None)
    return Comparison(
        data.name, unseen, data.classes, data.images[rows], data.labels[rows], tuple(sights), method, area
    )


def compare_on_images(
    models: Sequence[TrainedRun], images: Tensor, layer: str | None = None, method: str = "grad-cam"
) -> Comparison:
    """Grad-CAM of every model on images of the user's own, uint8 [N, C, H, W]."""
    data = models[0].environments
    sights = tuple(see(trained, images, None, layer, method) for trained in models)
    return Comparison(data.name, None, data.classes, images, None, sights, method)


def see(
    trained: TrainedRun, images: Tensor, domain: str | None, layer: str | None = None, method: str = "grad-cam"
) -> Sight:
    """Grad-CAM for the predicted classes; every member of an ensemble counts."""
    data, algorithm = trained.environments, trained.algorithm
    number = None if domain is None else trained.domain_number(domain)
    x = data.normalise(images.to(data.device))

    def predict(x: Tensor) -> Tensor:
        return algorithm.predict(x, number)

    if layer is not None:
        layers = [layer]
    elif isinstance(algorithm.network, Ensemble):
        members = algorithm.network.members
        layers = [f"network.members.{i}.{last_map(member, x)}" for i, member in enumerate(members)]
    else:
        layers = [last_map(algorithm, x, predict)]
    batch = int(algorithm.hparams["batch_size"]) if algorithm.batch_dependent else 250
    return Sight(
        trained.run,
        tuple(layers),
        grad_cam(algorithm, x, layer=layers, predict=predict, method=method, batch_size=batch),
    )


def object_masks(environments: Environments) -> Tensor | None:
    """Which pixels show the object, bool [N, H, W], where a dataset knows: on BackgroundDigits those with any ink."""
    return source_digits("BackgroundDigits", Path()).images > 0 if environments.name == "BackgroundDigits" else None


def sample_rows(environments: Environments, domain: str, per_class: int, limit: int) -> Tensor:
    """The first images of every class of a domain, `limit` at most, spread over the classes."""
    rows = environments.rows(domain)
    labels = environments.labels[rows].cpu()
    by_class = [rows[labels == c][:per_class] for c in range(len(environments.classes))]
    found = [own[i] for i in range(per_class) for own in by_class if i < len(own)]
    return torch.stack(found[:limit])
