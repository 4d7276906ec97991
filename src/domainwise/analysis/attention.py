"""Grad-CAM of several trained models on the same images of a domain that is unseen by all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from domainwise.algorithms.adversarial import Ensemble
from domainwise.algorithms.base import Algorithm
from domainwise.analysis.cam import Attention, grad_cam, last_map
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.sources.mnist import source_digits
from domainwise.engine.assemble import EnsembleAlgorithm
from domainwise.engine.restore import TrainedRun, finished, restore
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Method
from domainwise.protocol.statistics import Estimate, estimate


@dataclass(frozen=True)
class ModelAttention:
    """The heatmaps of one model.

    `inside` is the share of its heat on the object, in per cent, over those of `images` of the unseen domain that have
    any heat at all.
    """

    run: Run
    layers: tuple[str, ...]
    attention: Attention
    images: int = 0
    inside: Estimate | None = None
    average: str = ""

    @property
    def method(self) -> Method:
        return Method.of(self.run, self.average)


@dataclass(frozen=True)
class AttentionComparison:
    """The heatmaps of several models on the same images. `area` is the share that an even heatmap has inside."""

    dataset: str
    unseen: str | None  # the domain of the images; None for a user's own
    classes: tuple[str, ...]
    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor | None
    models: tuple[ModelAttention, ...]
    method: str
    area: float | None = None


def restore_all(
    folders: Sequence[Path], data_root: Path | None = None, device: str = "cpu", saves: Sequence[str] = ()
) -> list[TrainedRun]:
    """The models of several folders, with one copy of their data; they must be comparable.

    `saves` names the weights of each, as in `restore`.
    """
    models: list[TrainedRun] = []
    for folder, save in zip(folders, saves or ["auto"] * len(folders), strict=True):
        run = finished(folder).run
        if models and (run.dataset, run.image_size) != (models[0].run.dataset, models[0].run.image_size):
            other = f"{run}, images of {run.image_size} pixels"
            raise UserError(f"{other}, cannot be compared with {models[0].run}: give runs on the same data")
        environments = models[0].environments if models else None
        models.append(restore(folder, data_root=data_root, environments=environments, device=device, save=save))
    return models


def common_unseen(models: Sequence[TrainedRun]) -> str:
    """The first domain that none of the models was trained on and the first model was tested on."""
    for domain in models[0].run.test_domains:
        if all(domain not in trained.run.train_domains for trained in models):
            return domain
    runs = "; ".join(str(trained.run) for trained in models)
    raise UserError(
        f"no domain is unseen by all of: {runs}. Give runs that leave out the same domain, or images of your own",
        argument="images",
    )


def usual_method(models: Sequence[TrainedRun]) -> str:
    """HiResCAM if a model flattens its last maps, where Grad-CAM's averaged weights often leave no heat; else Grad-CAM,
    which is the same on networks that average their last maps."""
    return _usual_method([one.algorithm for one in models])


def _usual_method(algorithms: Sequence[Algorithm]) -> str:
    networks = (getattr(one, "network", one) for one in algorithms)  # an ensemble of models has none of its own
    flattens = (isinstance(module, nn.Flatten) for network in networks for module in network.modules())
    return "hires-cam" if any(flattens) else "grad-cam"


def compare_attention(
    models: Sequence[TrainedRun], rows: Tensor, layer: str | None = None, method: str | None = None
) -> AttentionComparison:
    """Grad-CAM of every model on rows of their common data and, where the outline is known, the heat on the object."""
    data, unseen, method = models[0].environments, common_unseen(models), method or usual_method(models)
    masks = object_masks(data)
    maps = [model_attention(trained, data.images[rows], unseen, layer, method) for trained in models]
    area = None
    if masks is not None:
        domain = data.rows(unseen)
        inside = masks[domain].to(data.device)
        area = float(inside.double().mean())
        for number, trained in enumerate(models):
            everywhere = model_attention(trained, data.images[domain], unseen, layer, method).attention
            shares = everywhere.share_inside(inside)
            known = (100 * shares[~shares.isnan()]).tolist()
            maps[number] = replace(maps[number], images=len(domain), inside=estimate(known) if known else None)
    return AttentionComparison(
        data.name, unseen, data.classes, data.images[rows], data.labels[rows], tuple(maps), method, area
    )


def compare_on_images(
    models: Sequence[TrainedRun], images: Tensor, layer: str | None = None, method: str | None = None
) -> AttentionComparison:
    """Grad-CAM of every model on images of the user's own, uint8 [N, C, H, W]."""
    data, method = models[0].environments, method or usual_method(models)
    maps = tuple(model_attention(trained, images, None, layer, method) for trained in models)
    return AttentionComparison(data.name, None, data.classes, images, None, maps, method)


def model_attention(
    trained: TrainedRun, images: Tensor, domain: str | None, layer: str | None, method: str
) -> ModelAttention:
    """Grad-CAM for the predicted classes; every member of an ensemble counts."""
    data = trained.environments
    number = None if domain is None else trained.domain_number(domain)
    x = data.normalise(images.to(data.device))
    layers, heat = algorithm_attention(trained.algorithm, x, number, layer, method)
    return ModelAttention(trained.run, layers, heat, average=trained.average)


def algorithm_attention(
    algorithm: Algorithm, x: Tensor, domain: int | None = None, layer: str | None = None, method: str | None = None
) -> tuple[tuple[str, ...], Attention]:
    """The layers whose maps are used, and Grad-CAM for the classes predicted of normalised inputs [N, C, H, W]."""

    def predict(x: Tensor) -> Tensor:
        return algorithm.predict(x, domain)

    if method == "rollout":
        layers = []
    elif layer is not None:
        layers = [layer]
    elif isinstance(algorithm, EnsembleAlgorithm):
        layers = [f"members.{i}.{last_map(one, x, one.predict)}" for i, one in enumerate(algorithm.algorithms)]
    elif isinstance(algorithm.network, Ensemble):
        members = algorithm.network.members
        layers = [f"network.members.{i}.{last_map(member, x)}" for i, member in enumerate(members)]
    else:
        layers = [last_map(algorithm, x, predict)]
    batch = int(algorithm.hparams["batch_size"]) if algorithm.batch_dependent else 250
    method = method or _usual_method([algorithm])
    return tuple(layers), grad_cam(algorithm, x, layer=layers, predict=predict, method=method, batch_size=batch)


def object_masks(environments: Environments) -> Tensor | None:
    """Masks of the object, bool [N, H, W], where the dataset has them: on BackgroundDigits the pixels with any ink."""
    return source_digits("BackgroundDigits", Path()).images > 0 if environments.name == "BackgroundDigits" else None


def sample_rows(environments: Environments, domain: str, per_class: int, limit: int) -> Tensor:
    """The first images of every class of a domain, `limit` at most, spread over the classes."""
    rows = environments.rows(domain)
    labels = environments.labels[rows].cpu()
    by_class = [rows[labels == c][:per_class] for c in range(len(environments.classes))]
    picks = [members[i] for i in range(per_class) for members in by_class if i < len(members)]
    return torch.stack(picks[:limit])
