"""Means, standard errors and paired differences of selected accuracies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from domainwise.protocol.selection import Column, Curve, Method, Selection, searches, select

ByTrial = Mapping[Column, Mapping[int, float]]
Scores = dict[Method, dict[Column, dict[int, float]]]
"""method -> column -> trial -> selected accuracy in per cent."""
Choices = dict[Method, dict[Column, dict[int, Selection]]]
"""method -> column -> trial -> the choice of a rule."""
AVERAGE = Column("average")
"""The column of the average over all others."""
FEWEST_PAIRS = 4
"""With fewer pairs a standard error says little: two or three gaps may be alike by chance."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n values and its standard error, which is shown for two or more."""

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


def choices(curves: Sequence[Curve], rule: str) -> Choices:
    """The rule's choice for every search whose draws have what the rule needs."""
    chosen: Choices = {}
    for (method, column, trial), draws in searches(curves).items():
        choice = select(draws, column.unseen, rule)
        if choice is not None:
            chosen.setdefault(method, {}).setdefault(column, {})[trial] = choice
    return chosen


def accuracies(chosen: Choices) -> Scores:
    """The accuracy of every choice, in per cent."""
    return {
        method: {
            column: {trial: 100 * choice.accuracy for trial, choice in by_trial.items()}
            for column, by_trial in by_column.items()
        }
        for method, by_column in chosen.items()
    }


def selected(curves: Sequence[Curve], rule: str) -> Scores:
    """The accuracies of the rule's choices, in per cent."""
    return accuracies(choices(curves, rule))


def average(scores: ByTrial, columns: Sequence[Column]) -> Estimate | None:
    """Over these columns: their mean per trial first, then over the trials that have all of them; None without any."""
    trials = set.intersection(*(set(scores.get(column, {})) for column in columns)) if columns else set()
    if not trials:
        return None
    return estimate([float(np.mean([scores[column][trial] for column in columns])) for trial in sorted(trials)])


def averages_by_draws(curves: Sequence[Curve], columns: Sequence[Column], rule: str) -> dict[Method, list[Estimate]]:
    """{method: the expected average over these columns with 1, 2, ... draws to choose from}."""
    ranked: dict[Method, dict[Column, dict[int, list[float]]]] = {}
    for (method, column, trial), draws in searches(curves).items():
        if ranking := ranked_accuracies(draws, column.unseen, rule):
            ranked.setdefault(method, {}).setdefault(column, {})[trial] = ranking
    result = {}
    for method, by_column in ranked.items():
        most = min(len(ranking) for by_trial in by_column.values() for ranking in by_trial.values())
        scores = (
            {column: {t: expected(r, k) for t, r in by_trial.items()} for column, by_trial in by_column.items()}
            for k in range(1, 1 + most)
        )
        averages = [average(of_k, columns) for of_k in scores]
        result[method] = [one for one in averages if one is not None]
    return result


def ranked_accuracies(curves: Sequence[Curve], unseen: str, rule: str) -> list[float]:
    """Accuracies, in per cent, of the rule's first choice, of its choice among the remaining draws, and so on."""
    remaining, ranking = list(curves), []
    while choice := select(remaining, unseen, rule):
        ranking.append(100 * choice.accuracy)
        remaining = [curve for curve in remaining if curve.run != choice.run]
    return ranking


def expected(ranked: Sequence[float], k: int) -> float:
    """The mean of a choice over all sets of k draws: draw j of n, best first, is the choice of C(n - 1 - j, k - 1)."""
    n = len(ranked)
    return sum(math.comb(n - 1 - j, k - 1) * value for j, value in enumerate(ranked)) / math.comb(n, k)


def paired(a: ByTrial, b: ByTrial) -> Difference | None:
    """Over all (column, trial) that both have, None if there are none; the error is from the sample deviation.

    One training domain evaluated on several unseen ones is one pair, by its mean over them.
    """
    by_pair: dict[tuple[str, int], list[float]] = {}
    for column in (column for column in a if column in b):
        for trial in (trial for trial in a[column] if trial in b[column]):
            pair = (column.source or column.unseen, trial)
            by_pair.setdefault(pair, []).append(a[column][trial] - b[column][trial])
    if not by_pair:
        return None
    gaps = [float(np.mean(pair)) for pair in by_pair.values()]
    error = float(np.std(gaps, ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else None
    return Difference(float(np.mean(gaps)), error, sum(g > 0 for g in gaps), sum(g < 0 for g in gaps), len(gaps))
