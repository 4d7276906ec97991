"""Means, standard errors and paired differences of selected accuracies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from domainwise.protocol.selection import Choice, Curve, searches, select

Scores = dict[str, dict[str, dict[int, float]]]
"""method -> column (unseen domain, or training domain → unseen domain) -> trial -> selected accuracy in per cent."""
ARROW = " → "
"""Between a training domain and an unseen one, in the name of a column."""
FEWEST_PAIRS = 4
"""Of fewer, a standard error says little: two or three gaps may be alike by chance."""
Choices = dict[str, dict[str, dict[int, Choice]]]
"""method -> column -> trial -> what a rule chose."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error over n values, which a single one does not have."""

    mean: float
    error: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.error:.1f}" if self.n > 1 else f"{self.mean:.1f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and population standard deviation / sqrt(n): how tables of this field are written."""
    return Estimate(float(np.mean(values)), float(np.std(values) / math.sqrt(len(values))), len(values))


@dataclass(frozen=True)
class Difference:
    """A minus B over pairs that share domain, trial and splits, and where both chose the same draw also initial weights
    and batches."""

    mean: float
    error: float | None  # unknown from a single pair
    ahead: int
    behind: int
    n: int

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" if self.error is None else f"{self.mean:+.1f} ± {self.error:.1f}"

    @property
    def sign_p(self) -> float:
        """Two-sided sign test: how likely a split at least this uneven is if neither is better; ties do not count."""
        n, k = self.ahead + self.behind, min(self.ahead, self.behind)
        return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)

    @property
    def surest(self) -> float:
        """The p-value of a sign test when all pairs agree: no test of so few should be surer."""
        return min(1.0, 2.0 ** (1 - self.n))

    @property
    def verdict(self) -> str:
        """In words; three standard errors count as clear, if they are of four pairs or more."""
        if self.error is None or self.n < FEWEST_PAIRS or abs(self.mean) <= 3 * self.error:
            return "not clearly different from"
        return "clearly ahead of" if self.mean > 0 else "clearly behind"


def column_of(source: str, unseen: str) -> str:
    """What a column is called: the unseen domain, after the training domain where there is one alone."""
    return f"{source}{ARROW}{unseen}" if source else unseen


def choices(curves: Sequence[Curve], rule: str) -> Choices:
    """The rule's choice for every method, column and trial that it can judge."""
    found: Choices = {}
    for (method, source, unseen, trial), draws in searches(curves).items():
        choice = select(draws, unseen, rule)
        if choice is not None:
            found.setdefault(method, {}).setdefault(column_of(source, unseen), {})[trial] = choice
    return found


def accuracies(found: Choices) -> Scores:
    """Of every choice its accuracy, in per cent."""
    return {
        method: {column: {trial: 100 * c.accuracy for trial, c in by_trial.items()} for column, by_trial in own.items()}
        for method, own in found.items()
    }


def selected(curves: Sequence[Curve], rule: str) -> Scores:
    """What the rule's choices reach."""
    return accuracies(choices(curves, rule))


def average(scores: Mapping[str, Mapping[int, float]], columns: Sequence[str]) -> Estimate | None:
    """Over these columns: their mean per trial first, then over the trials that have all of them; None without any."""
    trials = set.intersection(*(set(scores.get(column, {})) for column in columns)) if columns else set()
    if not trials:
        return None
    return estimate([float(np.mean([scores[column][trial] for column in columns])) for trial in sorted(trials)])


def searched(curves: Sequence[Curve], columns: Sequence[str], rule: str) -> dict[str, list[Estimate]]:
    """{method: the average over these columns with 1, 2, ... draws}."""
    ranked: dict[str, dict[str, dict[int, list[float]]]] = {}
    for (method, source, unseen, trial), draws in searches(curves).items():
        if own := preferred(draws, unseen, rule):
            ranked.setdefault(method, {}).setdefault(column_of(source, unseen), {})[trial] = own
    found = {}
    for method, by_column in ranked.items():
        most = min(len(own) for by_trial in by_column.values() for own in by_trial.values())
        scores = (
            {column: {t: expected(own, k) for t, own in by_trial.items()} for column, by_trial in by_column.items()}
            for k in range(1, 1 + most)
        )
        averages = [average(of_k, columns) for of_k in scores]
        found[method] = [one for one in averages if one is not None]
    return found


def preferred(curves: Sequence[Curve], unseen: str, rule: str) -> list[float]:
    """Accuracies, in per cent, of what a rule chooses, and of what it would choose next if that were not there."""
    left, found = list(curves), []
    while choice := select(left, unseen, rule):
        found.append(100 * choice.accuracy)
        left = [curve for curve in left if curve.run != choice.run]
    return found


def expected(ranked: Sequence[float], k: int) -> float:
    """The mean of a choice over all sets of k draws: draw j of n, best first, is the choice of C(n - 1 - j, k - 1)."""
    n = len(ranked)
    return sum(math.comb(n - 1 - j, k - 1) * value for j, value in enumerate(ranked)) / math.comb(n, k)


def paired(a: Mapping[str, Mapping[int, float]], b: Mapping[str, Mapping[int, float]]) -> Difference | None:
    """Over all (column, trial) that both have, None if there are none; the error is from the sample deviation.

    What was trained on one domain and judged on several is one pair, by its mean over them.
    """
    by_pair: dict[tuple[str, int], list[float]] = {}
    for column in (column for column in a if column in b):
        for trial in (trial for trial in a[column] if trial in b[column]):
            by_pair.setdefault((column.partition(ARROW)[0], trial), []).append(a[column][trial] - b[column][trial])
    if not by_pair:
        return None
    gaps = [float(np.mean(own)) for own in by_pair.values()]
    error = float(np.std(gaps, ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else None
    return Difference(float(np.mean(gaps)), error, sum(g > 0 for g in gaps), sum(g < 0 for g in gaps), len(gaps))
