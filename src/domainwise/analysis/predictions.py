"""Predictions of a trained model on images of its data, as they are or changed, and the features behind them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from domainwise.analysis.cam import forward_hooks
from domainwise.core.errors import UserError
from domainwise.core.seeds import permutation
from domainwise.engine.restore import TrainedRun
from domainwise.nets.modes import evaluating
from domainwise.nets.network import Network

MOST = 2000
"""Images per domain, at most."""


@dataclass(frozen=True)
class HeldOutImages:
    """Rows of one domain that were not trained on, and whether others of that domain were."""

    domain: str
    seen: bool
    rows: Tensor


def held_out_images(trained: TrainedRun, most: int = MOST) -> list[HeldOutImages]:
    """Of training domains the `out` split, of all others every image; a fixed sample where there are many.

    Training domains of a run that held nothing out are left out; a run without any such images is a UserError.
    """
    run, data = trained.run, trained.environments
    result = []
    for domain in data.domains:
        split = data.split(domain, run.trial, run.held_out)
        seen = domain in run.train_domains
        rows = split["out"] if seen else torch.cat([split["out"], split["in"]])
        if len(rows):
            sample = rows[permutation(len(rows), "look", domain)][:most].sort().values
            result.append(HeldOutImages(domain, seen, sample))
    if not result:
        raise UserError(f"{run}: trained on every image (held_out is 0): none is left to audit it with")
    return result


@torch.no_grad()
def predictions(trained: TrainedRun, images: Tensor, domain: str | None = None) -> Tensor:
    """The predicted classes of uint8 images; `domain` only if they are unchanged images of it."""
    return torch.cat([logits.argmax(1).cpu() for logits, _ in _passes(trained, images, domain)])


@torch.no_grad()
def logits_and_features(trained: TrainedRun, images: Tensor, domain: str) -> tuple[Tensor, Tensor | None]:
    """The logits [N, classes], and the features [N, F] of every Network inside; None if there is none."""
    networks = [module for module in trained.algorithm.network.modules() if isinstance(module, Network)]
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        outputs.append(output.float().cpu())

    predicted, features = [], []
    with forward_hooks((network.features, keep) for network in networks):
        for logits, size in _passes(trained, images, domain):
            predicted.append(logits.float().cpu())
            if networks:
                features.append(torch.cat([output.reshape(size, -1) for output in outputs], 1))
            outputs.clear()
    return torch.cat(predicted), torch.cat(features) if features else None


def _passes(trained: TrainedRun, images: Tensor, domain: str | None) -> Iterator[tuple[Tensor, int]]:
    """Logits and number of images, batch by batch."""
    data, algorithm = trained.environments, trained.algorithm
    number = None if domain is None else trained.domain_number(domain)
    with evaluating(algorithm):
        for chunk in images.split(int(algorithm.hparams["batch_size"]) if algorithm.batch_dependent else 250):
            yield algorithm.predict(data.normalise(chunk.to(data.device)), number), len(chunk)
