"""A discriminator between two sets of images, given the label, and its features (OoD-Bench's recipe).

    x -> features -> z in R^8,    score = w . (gate_y * z) + b

The label opens or closes each feature by a gate in (0, 1), so that z need not encode the label, and points the
same way for all classes where the two sets differ in the same way.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from domainwise.core import seeds
from domainwise.core.optimizers import SGD
from domainwise.nets.modes import evaluating

SIZE = 8
EPOCHS, AVERAGED_FROM = 10, 5
BATCH = 32
LR, LAST_LR, MOMENTUM, DECAY = 0.05, 0.025, 0.9, 1e-4


class Discriminator(nn.Module):
    """Features of dimension 8, gated by the label, and a score."""

    def __init__(self, features: nn.Module, feature_size: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.bottleneck = nn.Linear(feature_size, SIZE)
        self.gates = nn.Embedding(classes, SIZE)
        self.score = nn.Linear(SIZE, 1)

    def represent(self, x: Tensor) -> Tensor:
        z: Tensor = self.bottleneck(self.features(x))
        return z

    def logit(self, z: Tensor, y: Tensor) -> Tensor:
        """The logit of features z of class y: above zero speaks for the second set."""
        score: Tensor = self.score(z * self.gates(y).sigmoid())
        return score[:, 0]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.logit(self.represent(x), y)


@dataclass(frozen=True)
class ImageSet:
    """Rows of the data, their labels, and how to get inputs from rows."""

    rows: Tensor
    labels: Tensor
    inputs: Callable[[Tensor], Tensor]

    def batch(self, picks: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs(self.rows[picks]), self.labels[picks]


def train_discriminator(
    network: Discriminator, first: ImageSet, second: ImageSet, *keys: str | int, epochs: int = EPOCHS
) -> Discriminator:
    """SGD on equally many samples of both; returns the mean of the weights after every epoch from the fifth on."""
    device = next(network.parameters()).device
    optimizer = SGD(network.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    steps = min(len(first.rows), len(second.rows)) // BATCH
    target = torch.cat([torch.zeros(BATCH), torch.ones(BATCH)]).to(device)
    averaged, count = copy.deepcopy(network), 0
    network.train()
    for epoch in range(epochs):
        orders = [
            seeds.permutation(len(images.rows), *keys, epoch, number) for number, images in enumerate((first, second))
        ]
        for step in range(steps):
            progress = (epoch * steps + step) / (epochs * steps)
            for group in optimizer.param_groups:
                group["lr"] = LAST_LR + (LR - LAST_LR) * (1 + math.cos(math.pi * progress)) / 2
            part = slice(step * BATCH, (step + 1) * BATCH)
            batches = [images.batch(order[part]) for images, order in zip((first, second), orders, strict=True)]
            x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
            loss = F.binary_cross_entropy_with_logits(network(x, y), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch >= AVERAGED_FROM:
            count += 1
            with torch.no_grad():
                for mean, latest in zip(averaged.parameters(), network.parameters(), strict=True):
                    mean.lerp_(latest, 1 / count)
    _learn_statistics(averaged, first, second)
    return averaged.eval()


@torch.no_grad()
def _learn_statistics(network: Discriminator, *sets: ImageSet) -> None:
    """BatchNorm's statistics under averaged weights, over all samples; frozen ones stay."""
    live = [module for module in network.train().modules() if isinstance(module, _BatchNorm) and module.training]
    if not live:
        return
    for module in live:
        module.reset_running_stats()
        module.momentum = None
    for images in sets:
        for picks in torch.arange(len(images.rows)).split(4 * BATCH):
            network(*images.batch(picks))


@torch.no_grad()
def represent(network: Discriminator, images: ImageSet) -> Tensor:
    """The features z of a set's samples."""
    with evaluating(network):
        parts = [network.represent(images.batch(picks)[0]).cpu() for picks in torch.arange(len(images.rows)).split(250)]
    return torch.cat(parts).double()
