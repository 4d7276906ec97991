"""How well a model does on labelled domains: per domain, per class, and where it is worst."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class DomainScore:
    """One domain: confusion[i][j] samples of class i were taken for class j."""

    confusion: Mapping[str, Mapping[str, int]]
    trained_on: bool

    @property
    def samples(self) -> int:
        return sum(sum(row.values()) for row in self.confusion.values())

    @property
    def accuracy(self) -> float:
        return sum(row.get(name, 0) for name, row in self.confusion.items()) / self.samples

    @property
    def classes(self) -> dict[str, float]:
        """Accuracy on each class that occurs."""
        return {name: row.get(name, 0) / sum(row.values()) for name, row in self.confusion.items()}


@dataclass(frozen=True)
class Evaluation:
    """The scores of every domain."""

    domains: Mapping[str, DomainScore]

    @property
    def accuracy(self) -> dict[str, float]:
        return {domain: score.accuracy for domain, score in self.domains.items()}

    @property
    def average(self) -> float:
        """The mean of all domains' accuracies: every domain counts alike, trained on or not."""
        return float(np.mean(list(self.accuracy.values())))

    @property
    def average_unseen(self) -> float | None:
        """The mean over domains that were not trained on: what a new domain may expect. None without any."""
        return self._average(trained_on=False)

    @property
    def average_trained_on(self) -> float | None:
        return self._average(trained_on=True)

    def _average(self, *, trained_on: bool) -> float | None:
        found = [score.accuracy for score in self.domains.values() if score.trained_on == trained_on]
        return float(np.mean(found)) if found else None

    @property
    def worst_domain(self) -> str:
        return min(self.accuracy, key=lambda domain: self.accuracy[domain])

    @property
    def worst_class(self) -> tuple[str, str, float]:
        """(domain, class, accuracy) of the pair that fares worst."""
        pairs = [(d, name, value) for d, score in self.domains.items() for name, value in score.classes.items()]
        return min(pairs, key=lambda pair: pair[2])

    def __str__(self) -> str:
        domain, name, value = self.worst_class
        averages = {"unseen domains": self.average_unseen, "domains trained on": self.average_trained_on}
        told = [f"over {which} {100 * mean:.1f} %" for which, mean in averages.items() if mean is not None]
        return (
            f"Average {', '.join(told)}; worst domain {self.worst_domain} "
            f"({100 * self.accuracy[self.worst_domain]:.1f} %); worst class {name} in {domain} ({100 * value:.1f} %)."
        )

    def as_json(self) -> dict[str, Any]:
        domain, name, value = self.worst_class
        return {
            "average": self.average,
            "average_unseen": self.average_unseen,
            "average_trained_on": self.average_trained_on,
            "worst_domain": self.worst_domain,
            "worst_class": {"domain": domain, "class": name, "accuracy": value},
            "domains": {
                domain: {
                    "accuracy": score.accuracy,
                    "samples": score.samples,
                    "trained_on": score.trained_on,
                    "classes": score.classes,
                    "confusion": {true: dict(row) for true, row in score.confusion.items()},
                }
                for domain, score in self.domains.items()
            },
        }
