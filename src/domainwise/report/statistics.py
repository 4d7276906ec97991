"""Means, standard errors and paired differences of selected accuracies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from domainwise.protocol.selection import Curve, Rule

Scores = dict[str, dict[str, dict[int, float]]]
"""algorithm -> unseen domain -> trial -> selected accuracy in per cent."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error over n values."""

    mean: float
    error: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.error:.1f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and population standard deviation / sqrt(n): how tables of this field are written."""
    return Estimate(float(np.mean(values)), float(np.std(values) / math.sqrt(len(values))), len(values))


@dataclass(frozen=True)
class Difference:
    """A minus B over pairs that share domain, trial, splits, initial weights and batches."""

    mean: float
    error: float | None  # unknown from a single pair
    ahead: int
    n: int

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" if self.error is None else f"{self.mean:+.1f} ± {self.error:.1f}"

    @property
    def verdict(self) -> str:
        """In words; three standard errors count as clear."""
        if self.error is None or abs(self.mean) <= 3 * self.error:
            return "not clearly different from"
        return "clearly ahead of" if self.mean > 0 else "clearly behind"


def selected(curves: Sequence[Curve], rule: Rule) -> Scores:
    """The rule's choice for every algorithm, unseen domain and trial."""
    groups: dict[tuple[str, str, int], list[Curve]] = {}
    for curve in curves:
        for domain in curve.run.test_domains:
            groups.setdefault((curve.run.algorithm, domain, curve.run.trial), []).append(curve)
    scores: Scores = {}
    for (algorithm, domain, trial), group in groups.items():
        if any(curve.steps for curve in group):
            accuracy = 100 * rule(group).accuracy[domain]
            scores.setdefault(algorithm, {}).setdefault(domain, {})[trial] = accuracy
    return scores


def average(scores: Mapping[str, Mapping[int, float]], domains: Sequence[str]) -> Estimate | None:
    """Over these domains: their mean per trial first, then over the trials that have all of them; None without any."""
    trials = set.intersection(*(set(scores.get(domain, {})) for domain in domains)) if domains else set()
    if not trials:
        return None
    return estimate([float(np.mean([scores[domain][trial] for domain in domains])) for trial in sorted(trials)])


def paired(a: Mapping[str, Mapping[int, float]], b: Mapping[str, Mapping[int, float]]) -> Difference | None:
    """Over all (domain, trial) that both have, None if there are none; the error is from the sample deviation."""
    gaps = [a[d][t] - b[d][t] for d in a if d in b for t in a[d] if t in b[d]]
    if not gaps:
        return None
    error = float(np.std(gaps, ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else None
    return Difference(float(np.mean(gaps)), error, sum(gap > 0 for gap in gaps), len(gaps))
