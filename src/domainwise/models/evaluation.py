"""A model's accuracy on labelled domains: per domain, per class, and the worst of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from domainwise.core.table import Table, Tabular


@dataclass(frozen=True)
class DomainScore:
    """The confusion matrix of one domain: confusion[i][j] samples of class i were predicted as class j."""

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


@dataclass(frozen=True, repr=False)
class Evaluation(Tabular):
    """The scores of every domain."""

    domains: Mapping[str, DomainScore]

    def as_table(self) -> Table:
        rows = [
            (
                domain,
                "trained on" if score.trained_on else "unseen",
                str(score.samples),
                f"{100 * score.accuracy:.1f} %",
            )
            for domain, score in self.domains.items()
        ]
        return Table(("domain", "", "samples", "accuracy"), rows, caption=str(self), labels=2)

    def to_records(self) -> list[dict[str, Any]]:
        """One row per domain and class."""
        return [
            {"domain": domain, "trained_on": score.trained_on, "class": name, "accuracy": accuracy}
            for domain, score in self.domains.items()
            for name, accuracy in score.classes.items()
        ]

    @property
    def accuracy(self) -> dict[str, float]:
        return {domain: score.accuracy for domain, score in self.domains.items()}

    @property
    def average(self) -> float:
        """The mean accuracy over all domains, equally weighted, whether trained on or not."""
        return float(np.mean(list(self.accuracy.values())))

    @property
    def average_unseen(self) -> float | None:
        """The mean accuracy over the domains that were not trained on; None if there are none."""
        return self._average(trained_on=False)

    @property
    def average_trained_on(self) -> float | None:
        return self._average(trained_on=True)

    def _average(self, *, trained_on: bool) -> float | None:
        accuracies = [score.accuracy for score in self.domains.values() if score.trained_on == trained_on]
        return float(np.mean(accuracies)) if accuracies else None

    @property
    def worst_domain(self) -> str:
        return min(self.accuracy, key=lambda domain: self.accuracy[domain])

    @property
    def worst_class(self) -> tuple[str, str, float]:
        """(domain, class, accuracy) of the pair with the lowest accuracy."""
        pairs = [(d, name, value) for d, score in self.domains.items() for name, value in score.classes.items()]
        return min(pairs, key=lambda pair: pair[2])

    def __str__(self) -> str:
        domain, name, value = self.worst_class
        averages = {"unseen domains": self.average_unseen, "domains trained on": self.average_trained_on}
        known = [f"over {which} {100 * mean:.1f} %" for which, mean in averages.items() if mean is not None]
        return (
            f"Average {', '.join(known)}; worst domain {self.worst_domain} "
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
