"""A model's accuracy on labelled domains: per domain, per class, and the worst of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from domainwise.core.phrasing import counted
from domainwise.core.table import Table, Tabular
from domainwise.protocol.metrics import ACCURACY, METRICS
from domainwise.protocol.records import SplitScores
from domainwise.protocol.runs import TEST_ROWS

Confusion = Mapping[str, Mapping[str, int]]
"""confusion[i][j] samples of class i were predicted as class j."""


@dataclass(frozen=True)
class DomainScore:
    """The confusion matrix of one domain, without the samples that the model was trained on.

    Those have a matrix of their own, `seen`. If the model was trained on every sample, all are in `confusion`, and
    `only_seen` is set: the accuracy is that of learning by heart.
    """

    confusion: Confusion
    trained_on: bool  # the model was trained on a domain of this name, or on samples of this one
    seen: Confusion = field(default_factory=dict)
    only_seen: bool = False
    test_rows: bool = False
    """Whether its samples are given as test, but come from a domain that the model was trained on."""
    scores: SplitScores | None = None
    """Every metric of the same samples as the accuracy."""

    @property
    def role(self) -> str:
        """What the domain is to the model."""
        return TEST_ROWS if self.test_rows else "trained on" if self.trained_on else "unseen"

    @property
    def samples(self) -> int:
        return _samples(self.confusion)

    @property
    def seen_samples(self) -> int:
        """The samples that the model was trained on."""
        return self.samples if self.only_seen else _samples(self.seen)

    @property
    def accuracy(self) -> float:
        return _accuracy(self.confusion)

    @property
    def seen_accuracy(self) -> float | None:
        """On the samples that the model was trained on; None if there are none."""
        return _accuracy(self.confusion if self.only_seen else self.seen) if self.seen_samples else None

    @property
    def classes(self) -> dict[str, float]:
        """Accuracy on each class that occurs."""
        return {name: row.get(name, 0) / sum(row.values()) for name, row in self.confusion.items()}


def _samples(confusion: Confusion) -> int:
    return sum(sum(row.values()) for row in confusion.values())


def _accuracy(confusion: Confusion) -> float:
    return sum(row.get(name, 0) for name, row in confusion.items()) / _samples(confusion)


@dataclass(frozen=True, repr=False)
class Evaluation(Tabular):
    """The scores of every domain.

    Samples that the model was trained on are known by their fingerprints. A model that keeps none (`fingerprints` is
    False) knows only the names of its training domains.
    """

    domains: Mapping[str, DomainScore]
    fingerprints: bool = False

    def as_table(self) -> Table:
        rows = [
            (
                domain,
                score.role,
                str(score.samples),
                f"{100 * score.accuracy:.1f} %",
            )
            for domain, score in self.domains.items()
        ]
        return Table(("domain", "", "samples", "accuracy"), rows, caption=str(self), labels=2)

    def metrics_table(self) -> Table:
        """Every metric of every domain but accuracy, as far as they are known."""
        known = {domain: score.scores for domain, score in self.domains.items() if score.scores is not None}
        shown = [
            metric
            for metric in METRICS.values()
            if metric != ACCURACY and any(getattr(scores, metric.field) is not None for scores in known.values())
        ]
        rows = []
        for domain, scores in known.items():
            values = [getattr(scores, metric.field) for metric in shown]
            cells = ["" if x is None else m.format(m.shown(x)) for m, x in zip(shown, values, strict=True)]
            rows.append((domain, *cells))
        return Table(("domain", *(metric.title + metric.unit for metric in shown)), rows)

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

    @property
    def confusion(self) -> dict[str, dict[str, int]]:
        """Over all domains."""
        total: dict[str, dict[str, int]] = {}
        for score in self.domains.values():
            for truth, row in score.confusion.items():
                for guess, count in row.items():
                    total.setdefault(truth, {})[guess] = total.get(truth, {}).get(guess, 0) + count
        return total

    @property
    def seen_samples(self) -> int:
        """The samples that the model was trained on, as far as it knows them."""
        return sum(score.seen_samples for score in self.domains.values())

    @property
    def seen_sentence(self) -> str:
        """What is known of samples that the model was trained on; empty if nothing is in question."""
        if not self.fingerprints:
            if not any(score.trained_on for score in self.domains.values()):
                return ""
            return (
                "(trained on) goes by the domain's name: this model keeps no fingerprints of its training samples, so "
                "these may include the very ones it was trained on. A model that is trained anew keeps them."
            )
        if not (seen := self.seen_samples):
            return ""
        total = sum(score.samples + _samples(score.seen) for score in self.domains.values())
        parts = [score for score in self.domains.values() if score.seen_samples]
        right = sum((score.seen_accuracy or 0.0) * score.seen_samples for score in parts)
        all_seen = [domain for domain, score in self.domains.items() if score.only_seen]
        but = f", but for {', '.join(all_seen)}, where there are no others" if all_seen else ""
        return (
            f"{seen} of {counted(total, 'sample')} were seen in training ({100 * right / seen:.1f} % right); "
            f"accuracies leave them out{but}."
        )

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
            "fingerprints": self.fingerprints,
            "seen_in_training": self.seen_samples,
            "domains": {
                domain: {
                    "accuracy": score.accuracy,
                    "samples": score.samples,
                    "trained_on": score.trained_on,
                    "test_rows": score.test_rows,
                    "metrics": None if score.scores is None else score.scores._asdict(),
                    "seen_in_training": score.seen_samples,
                    "seen_accuracy": score.seen_accuracy,
                    "only_seen": score.only_seen,
                    "classes": score.classes,
                    "confusion": {true: dict(row) for true, row in score.confusion.items()},
                }
                for domain, score in self.domains.items()
            },
        }
