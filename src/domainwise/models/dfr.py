"""dfr: the last layer trained anew on held-out samples that are balanced over groups.

    W, b = mean_s argmin  (1/n) sum_{i in S_s} CE(W z_i + b, y_i) + |W|_1 / (n C),   z: standardised features

Each S_s holds equally many held-out samples of every group, drawn at random: of every class of every domain. Features
that hold only where a class is frequent (a snowy background of foxes) then no longer help. C is chosen by the lowest
accuracy of a group on the half of the samples that was not fitted, both halves in turn.

Deep feature reweighting: Kirichenko et al. 2022, https://arxiv.org/abs/2204.02937. Here the loss is multinomial, where
their code trains one layer for each class, and both halves choose C, where theirs takes one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.core.seeds import permutation
from domainwise.core.threads import cpu_threads
from domainwise.data.environments import Environments
from domainwise.data.find import load_dataset
from domainwise.data.fingerprints import fingerprints
from domainwise.engine.assemble import linear_classifier
from domainwise.engine.logistic import sparse_logistic_regression
from domainwise.models.model import Model
from domainwise.models.new_samples import labels_of, new_samples

SUBSETS = 10
LEAST = 2
"""Samples of a group, of which one half chooses; a group with fewer is left out."""
STRENGTHS = (0.01, 0.03, 0.07, 0.1, 0.3, 0.7, 1.0)
"""Those of the paper for C, from many zeros to few."""

ROUGHLY: Any = {"iterations": 500, "tolerance": 1e-4}
"""Enough to choose C; the layer itself is fitted more exactly."""

Layer = tuple[Tensor, Tensor]
"""W [F, classes] and b [classes], of features as they are."""


@dataclass(frozen=True)
class Samples:
    """Features [N, F] in float64, classes [N] and groups [N]; `names` are (domain, class) of every group."""

    features: Tensor
    labels: Tensor
    groups: Tensor
    names: tuple[tuple[str, str], ...]

    def of(self, rows: Tensor) -> "Samples":
        return Samples(self.features[rows], self.labels[rows], self.groups[rows], self.names)

    @property
    def smallest(self) -> int:
        return int(self.groups.bincount(minlength=len(self.names)).min())

    def accuracies(self, layer: Layer) -> Tensor:
        """Of every group."""
        right = (self.features @ layer[0] + layer[1]).argmax(1) == self.labels
        sums = torch.zeros(len(self.names), dtype=torch.float64).index_add_(0, self.groups, right.double())
        return sums / self.groups.bincount(minlength=len(self.names))


def dfr(model: Model, data: Environments | Path | str, *, seed: int = 0, data_root: Path | None = None) -> Model:
    """A copy of the model whose last layer is trained anew on samples of data that it was not trained on.

    Of data, only the model's training domains are used: others stay unseen. The copy is not calibrated, and says what
    was done in `card.training["last_layer"]`.
    """
    environments = data if isinstance(data, Environments) else load_dataset(data, data_root, model.card.shape[-1])
    if model.batch_dependent:
        raise UserError(f"predictions of {model.card.algorithm} depend on their batch: its last layer stays as it is")
    classifier = linear_classifier(model.algorithm, "DFR")
    rows_in = {domain: rows for domain, rows in new_samples(model, environments).items() if domain in model.domains}
    if not rows_in:
        names = ", ".join(model.domains)
        raise UserError(f"{environments.name} holds no new samples of the domains {names}", argument="data")
    samples, rows, alone = _samples(model, environments, rows_in)
    before: Layer = (classifier.weight.detach().cpu().double().T, classifier.bias.detach().cpu().double())
    with cpu_threads(1):  # the same bits on any number of cores
        strength, reached = choose_strength(samples, seed)
        weight, bias = fit_layer(samples, strength, SUBSETS, seed)
    weights = {name: tensor.cpu().clone() for name, tensor in model.algorithm.state_dict().items()}
    weights["network.classifier.weight"].copy_(weight.T)
    weights["network.classifier.bias"].copy_(bias)
    used = fingerprints(environments.images[rows])
    assert model.trained_on is not None
    done = _summary(samples, strength, samples.accuracies(before), reached) | {"left_out": alone}
    gone = ("accuracy", "unseen", "test_rows")
    training = {name: value for name, value in model.card.training.items() if name not in gone}
    card = replace(model.card, training={**training, "last_layer": done}, calibration=None)
    return Model(card, weights, model.reference, model.device.type, torch.cat([model.trained_on, used]).unique())


def fit_layer(samples: Samples, strength: float, subsets: int, seed: int = 0) -> Layer:
    """The mean layer over balanced subsets, for features as they are."""
    layers = _fit(samples, strength, subsets, seed)
    return layers[0].mean(0), layers[1].mean(0)[0]


def choose_strength(samples: Samples, seed: int = 0) -> tuple[float, Tensor]:
    """The C with the highest lowest accuracy of a group, and the accuracies of all groups with it.

    Both are means over two halves, each measured by the layer of the other. Ties: the mean over groups, then the
    smaller C.
    """
    halves = _halves(samples, seed)
    start: list[Layer | None] = [None, None]
    best, chosen, reached = (-1.0, -1.0), STRENGTHS[0], torch.zeros(len(samples.names), dtype=torch.float64)
    for strength in STRENGTHS:
        accuracies = []
        for i, (fitted, other) in enumerate((halves, halves[::-1])):
            z, mean, std, y = _balanced(fitted, 1, seed)
            penalty = 1 / (strength * z.shape[1])
            start[i] = sparse_logistic_regression(z, y, _classes(samples), penalty, start[i], **ROUGHLY)
            layer = _unscaled(start[i], mean, std)  # type: ignore[arg-type]
            accuracies.append(other.accuracies((layer[0][0], layer[1][0, 0])))
        table = torch.stack(accuracies)
        score = (float(table.amin(1).mean()), float(table.mean()))
        if score > best:
            best, chosen, reached = score, strength, table.mean(0)
    return chosen, reached


def _fit(samples: Samples, strength: float, subsets: int, seed: int) -> Layer:
    z, mean, std, y = _balanced(samples, subsets, seed)
    return _unscaled(sparse_logistic_regression(z, y, _classes(samples), 1 / (strength * z.shape[1])), mean, std)


def _balanced(samples: Samples, subsets: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standardised features [S, n, F], their means and deviations [S, 1, F], and labels [S, n] of balanced subsets."""
    size, parts = samples.smallest, []
    for number in range(subsets):
        rows = []
        for group in range(len(samples.names)):
            members = (samples.groups == group).nonzero()[:, 0]
            rows.append(members[permutation(len(members), "dfr", seed, number, group)[:size]])
        parts.append(torch.cat(rows))
    chosen = torch.stack(parts)
    x = samples.features[chosen]
    mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False)
    std = torch.where(std > 0, std, 1.0)
    return (x - mean) / std, mean, std, samples.labels[chosen]


def _unscaled(layer: Layer, mean: Tensor, std: Tensor) -> Layer:
    """The layers for features that are not standardised."""
    weight = layer[0] / std.mT
    return weight, layer[1] - mean @ weight


def _halves(samples: Samples, seed: int) -> tuple[Samples, Samples]:
    """Half of every group each."""
    first = torch.zeros(len(samples.labels), dtype=torch.bool)
    for group in range(len(samples.names)):
        members = (samples.groups == group).nonzero()[:, 0]
        first[members[permutation(len(members), "dfr", "halves", seed, group)[: len(members) // 2]]] = True
    return samples.of(first), samples.of(~first)


def _classes(samples: Samples) -> int:
    return int(samples.labels.max()) + 1


def _samples(model: Model, data: Environments, rows_in: Mapping[str, Tensor]) -> tuple[Samples, Tensor, list[str]]:
    """Samples of groups that can be halved, their rows, and the names of groups that cannot, with one sample.

    A class without such a group is a UserError.
    """
    rows = torch.cat(list(rows_in.values()))
    labels, named, width = labels_of(model, data, rows), list(rows_in), len(model.classes)
    domains = torch.repeat_interleave(torch.arange(len(rows_in)), torch.tensor([len(one) for one in rows_in.values()]))
    cells = domains * width + labels
    enough = cells.bincount(minlength=len(rows_in) * width)[cells] >= LEAST
    if missing := [name for number, name in enumerate(model.classes) if not bool((labels[enough] == number).any())]:
        raise UserError(
            f"{data.name} holds no two new samples of class {missing[0]} in a domain: hold more out", argument="data"
        )
    known, groups = cells[enough].unique(return_inverse=True)
    names = tuple((named[cell // width], model.classes[cell % width]) for cell in known.tolist())
    alone = [f"{model.classes[cell % width]} in {named[cell // width]}" for cell in cells[~enough].tolist()]
    rows = rows[enough]
    return Samples(model.embed(data.images[rows]).cpu().double(), labels[enough], groups, names), rows, alone


def _summary(samples: Samples, strength: float, before: Tensor, after: Tensor) -> dict[str, Any]:
    """As plain JSON values; of accuracies, the second are those of halves that were not fitted."""
    held_out = f"{counted(len(samples.labels), 'held-out sample')} of {counted(len(samples.names), 'group')}"
    return {
        "method": "DFR",
        "words": f"last layer trained anew (DFR) on {held_out}",
        "groups": [
            {"domain": domain, "class": label, "samples": count, "before": old, "after": new}
            for (domain, label), count, old, new in zip(
                samples.names, samples.groups.bincount().tolist(), before.tolist(), after.tolist(), strict=True
            )
        ],
        "per_group": samples.smallest,
        "subsets": SUBSETS,
        "strength": strength,
        "worst_group": [float(accuracies.min()) for accuracies in (before, after)],
        "mean_over_groups": [float(accuracies.mean()) for accuracies in (before, after)],
    }
