"""What a trained model answers to images of its data, as they are or changed, and the features it answers from."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from domainwise.core.seeds import permutation
from domainwise.engine.restore import TrainedRun
from domainwise.nets.modes import evaluating
from domainwise.nets.network import Network

MOST = 2000
"""Images per domain that are looked at, at most."""


@dataclass(frozen=True)
class Look:
    """Rows of one domain that training did not see, and whether it saw others of that domain."""

    domain: str
    seen: bool
    rows: Tensor


def looks(trained: TrainedRun, most: int = MOST) -> list[Look]:
    """Of training domains the `out` split, of all others every image; a fixed sample where there are many."""
    run, data = trained.run, trained.environments
    found = []
    for domain in data.domains:
        split = data.split(domain, run.trial, run.held_out)
        seen = domain in run.train_domains
        rows = split["out"] if seen else torch.cat([split["out"], split["in"]])
        found.append(Look(domain, seen, rows[permutation(len(rows), "look", domain)][:most].sort().values))
    return found


@torch.no_grad()
def answers(trained: TrainedRun, images: Tensor, domain: str | None = None) -> Tensor:
    """The predicted classes of uint8 images; `domain` only if they are untouched images of it."""
    return torch.cat([logits.argmax(1).cpu() for logits, _ in _passes(trained, images, domain)])


@torch.no_grad()
def answers_and_features(trained: TrainedRun, images: Tensor, domain: str) -> tuple[Tensor, Tensor | None]:
    """The predicted classes, and the features [N, F] of every Network inside; None if there is none."""
    networks = [module for module in trained.algorithm.network.modules() if isinstance(module, Network)]
    kept: list[Tensor] = []
    handles = [
        network.features.register_forward_hook(lambda _module, _inputs, output: kept.append(output.float().cpu()))
        for network in networks
    ]
    predicted, features = [], []
    try:
        for logits, size in _passes(trained, images, domain):
            predicted.append(logits.argmax(1).cpu())
            if networks:
                features.append(torch.cat([own.reshape(size, -1) for own in kept], 1))
            kept.clear()
    finally:
        for handle in handles:
            handle.remove()
    return torch.cat(predicted), torch.cat(features) if features else None


def _passes(trained: TrainedRun, images: Tensor, domain: str | None) -> Iterator[tuple[Tensor, int]]:
    """Logits and number of images, batch by batch."""
    data, algorithm = trained.environments, trained.algorithm
    number = None if domain is None else trained.domain_number(domain)
    with evaluating(algorithm):
        for chunk in images.split(int(algorithm.hparams["batch_size"]) if algorithm.batch_dependent else 250):
            yield algorithm.predict(data.normalise(chunk.to(data.device)), number), len(chunk)
