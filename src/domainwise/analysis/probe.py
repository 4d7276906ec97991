"""A linear probe: how well features predict the domain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from domainwise.core.seeds import generator, permutation
from domainwise.engine.logistic import logistic_regression

FEWEST = 20
"""Images per domain that a probe needs."""


@dataclass(frozen=True)
class Probe:
    """Multinomial logistic regression on features it was not fitted on; `confusion` is [true, predicted]."""

    domains: tuple[str, ...]
    accuracy: float
    error: float
    confusion: Tensor
    tested: int

    @property
    def chance(self) -> float:
        return 1 / len(self.domains)

    @property
    def sentence(self) -> str:
        share = f"{100 * self.accuracy:.0f} % ± {100 * self.error:.0f}"
        chance = f"chance {100 * self.chance:.0f} %"
        domains = f"the {len(self.domains)} domains"
        return f"A linear probe tells {domains} apart in {share} of the cases from its features ({chance})."


def probe_domains(features: Sequence[Tensor], labels: Sequence[Tensor], domains: Sequence[str]) -> Probe | None:
    """Fits on one half and tests on the other, with equally many images of every class from every domain.

    Otherwise class proportions would tell domains apart. None where too few images are left.
    """
    balanced = equal_classes(labels)
    if min(len(rows) for rows in balanced) < FEWEST or len(domains) < 2:
        return None
    x = torch.cat([domain_features[rows].double() for domain_features, rows in zip(features, balanced, strict=True)])
    y = torch.cat([torch.full((len(rows),), e) for e, rows in enumerate(balanced)])
    order = permutation(len(y), "probe")
    fit, test = order[::2], order[1::2]
    mean, std = x[fit].mean(0), x[fit].std(0).clamp_min(1e-6)
    x = (x - mean) / std
    weights, bias = logistic_regression(x[fit], y[fit], len(domains))
    predicted = (x[test] @ weights + bias).argmax(1)
    confusion = torch.zeros(len(domains), len(domains), dtype=torch.float64)
    confusion.index_put_((y[test], predicted), torch.ones(len(test), dtype=torch.float64), accumulate=True)
    accuracy = float((predicted == y[test]).double().mean())
    error = math.sqrt(accuracy * (1 - accuracy) / len(test))
    return Probe(tuple(domains), accuracy, error, confusion / confusion.sum(1, keepdim=True).clamp_min(1), len(test))


def equal_classes(labels: Sequence[Tensor], *keys: str | int, most: int | None = None) -> list[Tensor]:
    """Rows of each group so that every class is equally frequent in all: as often as where it is rarest.

    With `most`, about so many rows of each group, in the same proportions.
    """
    classes = 1 + max(int(group.max()) for group in labels)
    fewest = torch.stack([group.bincount(minlength=classes) for group in labels]).amin(0)
    if most is not None and int(fewest.sum()) > most:
        fewest = (fewest * most / fewest.sum()).long()
    balanced = []
    for number, group in enumerate(labels):
        shuffled = torch.randperm(len(group), generator=generator("equal classes", *keys, number))
        picks = [shuffled[group[shuffled] == c][:n] for c, n in enumerate(fewest.tolist())]
        balanced.append(torch.cat(picks).sort().values)
    return balanced
