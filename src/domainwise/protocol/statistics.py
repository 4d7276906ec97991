"""Means and standard errors of selected accuracies, and the one test that says whether a difference is clear.

The test is a paired t-test over (unseen domain, trial) pairs: both methods share the pair's domain, trial and splits.
It takes the differences of pairs for independent and roughly normal. It tests against the noise of runs on these
domains and says nothing about other domains. Accuracies are coarse, so that a few differences may be equal by chance:
p is at least that of a sign test in which all pairs agree, and fewer than six pairs are never clear. The level holds
for all comparisons of a table together (Bonferroni).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from domainwise.core.phrasing import counted
from domainwise.protocol.metrics import ACCURACY, Metric
from domainwise.protocol.selection import Column, Curve, Floats, Method, Selection, rank, searches, select

ByTrial = Mapping[Column, Mapping[int, float]]
Scores = dict[Method, dict[Column, dict[int, float]]]
"""method -> column -> trial -> selected accuracy in per cent."""
Choices = dict[Method, dict[Column, dict[int, Selection]]]
"""method -> column -> trial -> the choice of a rule."""
AVERAGE = Column("average")
"""The column of the average over all others."""
LEVEL = 0.05
"""The probability that a difference is called clear although it is noise, for all comparisons of a table together."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n values and its standard error, which one value does not have."""

    mean: float
    error: float | None
    n: int
    metric: Metric = ACCURACY

    def __str__(self) -> str:
        mean = self.metric.format(self.mean)
        return mean if self.error is None else f"{mean} ± {self.metric.format(self.error)}"

    def as_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "error": self.error, "n": self.n}

    @property
    def bar(self) -> float:
        """The length of its error bar: none where the error is unknown."""
        return self.error or 0.0

    def as_domainbed(self) -> "Estimate":
        """With the error of DomainBed's and the paper's tables: the population deviation / sqrt(n)."""
        return self if self.error is None else replace(self, error=self.error * math.sqrt((self.n - 1) / self.n))


def estimate(values: Sequence[float], metric: Metric = ACCURACY) -> Estimate:
    """Mean, and the sample deviation (n - 1) / sqrt(n)."""
    n = len(values)
    error = float(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else None
    return Estimate(float(np.mean(values)), error, n, metric)


def wilson(share: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share of n samples: (p + z^2/2n +- z sqrt(p(1 - p)/n + z^2/4n^2)) / (1 + z^2/n).

    Paper: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.
    """
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = ((middle + side) / (1 + z * z / n) for side in (-half, half))
    return max(0.0, low), min(1.0, high)


@dataclass(frozen=True)
class Difference:
    """A minus B over pairs that share domain, trial and splits, and where both chose the same draw also initial weights
    and batches."""

    mean: float
    error: float | None  # unknown from a single pair
    ahead: int
    behind: int
    n: int
    comparisons: int = 1
    """Methods compared with B in the same table, this one included."""
    metric: Metric = ACCURACY

    def __str__(self) -> str:
        mean = self.metric.format(self.mean, "+")
        return mean if self.error is None else f"{mean} ± {self.metric.format(self.error)}"

    @property
    def gain(self) -> float:
        """The mean, above zero where A is better."""
        return self.metric.goodness(self.mean)

    @property
    def p(self) -> float:
        """The probability of a mean at least this far from zero if neither is better: the test of this module."""
        if self.error is None or self.mean == 0:
            return 1.0
        agreeing = 2.0 ** (1 - self.n)
        return agreeing if self.error == 0 else max(agreeing, student_t_tails(self.mean / self.error, self.n - 1))

    @property
    def clear(self) -> bool:
        """Whether it is more than noise, at the level that holds for all comparisons together."""
        return self.p <= LEVEL / self.comparisons

    @property
    def verdict(self) -> str:
        """In words, to be followed by the name of B."""
        if not self.clear:
            return "not clearly different from"
        return "clearly ahead of" if self.gain > 0 else "clearly behind"

    @property
    def measured(self) -> str:
        """The numbers behind the verdict."""
        return self._measured()

    @property
    def judged(self) -> str:
        """The same, and in brackets whether it is clear."""
        return self._measured(", clear" if self.clear else ", not clear")

    def _measured(self, verdict: str = "") -> str:
        p = f"p = {self.p:.2g}" if self.p >= 1e-4 else "p < 0.0001"
        unit = " points" if self.metric.percent else ""
        return f"{self}{unit} over {counted(self.n, 'pair')} ({p}{verdict})"

    def sentence(self, a: object, b: object) -> str:
        return f"{a} is {self.verdict} {b}: {self.measured}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"p": self.p, "verdict": self.verdict, "metric": self.metric.name}


def the_test(comparisons: int) -> str:
    """The test of this module in one sentence, for below a table with so many comparisons."""
    together = f" for the {comparisons} comparisons together" if comparisons > 1 else ""
    return (
        f"Clear: p at most {LEVEL / max(1, comparisons):.2g} (5 %{together}) by a paired t-test over runs that share "
        "domain, trial and splits. It tests against the noise of runs on these domains and says nothing about others."
    )


def student_t_tails(t: float, dof: int) -> float:
    """P(|T| >= |t|) for Student's distribution: the incomplete beta function at dof / (dof + t^2), by its series.

    scipy.stats has it too, but takes longer to import than a table takes.
    """
    x = dof / (dof + t * t)
    return _beta(dof / 2, 0.5, x) if abs(t) > 1 else 1 - _beta(0.5, dof / 2, 1 - x)


def _beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function for x < 1: all terms of the series are positive."""
    if x == 0:
        return 0.0
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    total = term = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    n = 0
    while term > 1e-16 * total:
        term *= x * (a + b + n) / (a + 1 + n)
        total += term
        n += 1
    return total


def choices(curves: Sequence[Curve], rule: str, metric: Metric = ACCURACY) -> Choices:
    """The rule's choice for every search whose draws have what the rule needs."""
    chosen: Choices = {}
    for (method, column, trial), draws in searches(curves).items():
        choice = select(draws, column.unseen, rule, metric)
        if choice is not None:
            chosen.setdefault(method, {}).setdefault(column, {})[trial] = choice
    return chosen


def accuracies(chosen: Choices, metric: Metric = ACCURACY) -> Scores:
    """The accuracy of every choice, in per cent, or another metric where it is known, as tables show it."""
    return {
        method: {
            column: {
                trial: metric.shown(value)
                for trial, choice in by_trial.items()
                if (value := choice.value(metric)) is not None
            }
            for column, by_trial in by_column.items()
        }
        for method, by_column in chosen.items()
    }


def selected(curves: Sequence[Curve], rule: str, metric: Metric = ACCURACY) -> Scores:
    """The accuracies of the rule's choices, in per cent; with another metric, chosen and shown by that."""
    return accuracies(choices(curves, rule, metric), metric)


def average(scores: ByTrial, columns: Sequence[Column], metric: Metric = ACCURACY) -> Estimate | None:
    """Over these columns: their mean per trial first, then over the trials that have all of them; None without any."""
    trials = set.intersection(*(set(scores.get(column, {})) for column in columns)) if columns else set()
    if not trials:
        return None
    means = [float(np.mean([scores[column][trial] for column in columns])) for trial in sorted(trials)]
    return estimate(means, metric)


def averages_by_draws(curves: Sequence[Curve], columns: Sequence[Column], rule: str) -> dict[Method, list[Estimate]]:
    """{method: the expected average over these columns with 1, 2, ... draws to choose from}."""
    by_draws: dict[Method, dict[Column, dict[int, Floats]]] = {}
    for (method, column, trial), draws in searches(curves).items():
        if ranking := rank(draws, column.unseen, rule):
            accuracies = [100 * choice.accuracy for choice in ranking]
            by_draws.setdefault(method, {}).setdefault(column, {})[trial] = expected(accuracies)
    result = {}
    for method, by_column in by_draws.items():
        most = min(len(values) for by_trial in by_column.values() for values in by_trial.values())
        scores = (
            {column: {t: float(v[k]) for t, v in by_trial.items()} for column, by_trial in by_column.items()}
            for k in range(most)
        )
        averages = [average(of_k, columns) for of_k in scores]
        result[method] = [one for one in averages if one is not None]
    return result


def expected(ranked: Sequence[float]) -> Floats:
    """The mean of a choice over all sets of k draws, for k = 1, 2, ...; `ranked` has the values of draws, best first.

    Draw j of n is the choice in C(n - 1 - j, k - 1) of the C(n, k) sets. These shares are built up by their ratios:
    binomial coefficients of a thousand draws are larger than any float.
    """
    n, values = len(ranked), np.asarray(ranked, dtype=np.float64)
    result = np.empty(n)
    below = np.arange(n - 1, 0, -1)  # draws after each but the last
    for k in range(1, n + 1):
        ratios = np.maximum(below + 1 - k, 0) / below
        result[k - 1] = k / n * (np.cumprod(np.concatenate(([1.0], ratios))) @ values)
    return result


def paired(a: ByTrial, b: ByTrial, metric: Metric = ACCURACY) -> Difference | None:
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
    gains = [metric.goodness(gap) for gap in gaps]
    ahead, behind = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    return Difference(float(np.mean(gaps)), error, ahead, behind, len(gaps), metric=metric)
