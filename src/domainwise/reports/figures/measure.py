"""The data of figures: every run's accuracy and hyper-parameters, levels of a hyper-parameter, regression."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, Floats, select

DISTINCT = 10
"""More values than these of one hyper-parameter are put into ranges of half a decade."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Point:
    """A run on an unseen domain: its accuracy, in per cent, at the step that the rule chooses within this run."""

    run: Run
    unseen: str
    accuracy: float

    def number(self, name: str) -> float:
        return float(self.run.hparams[name] or 0)


def points(curves: Sequence[Curve], rule: str) -> list[Point]:
    """One per run and unseen domain with the evaluations that the rule needs, of trained weights alone."""
    result = []
    for curve in (curve for curve in curves if not curve.average and not curve.run.combination):
        for unseen in curve.run.test_domains:
            choice = select([curve], unseen, rule)
            if choice is not None:
                result.append(Point(curve.run, unseen, 100 * choice.accuracy))
    return result


def levels(values: Iterable[float]) -> dict[float, float]:
    """{value: the level it belongs to}: itself, or where there are many the middle of its half decade."""
    distinct = sorted(set(values))
    if len(distinct) <= DISTINCT:
        return {value: value for value in distinct}
    return {value: 10 ** ((math.floor(2 * math.log10(value)) + 0.5) / 2) for value in distinct}


def adjusted(runs: Sequence[Point]) -> list[float]:
    """Accuracies with the difficulty of their domains taken out: plus the mean of all, minus that of the domain."""
    everything = float(np.mean([point.accuracy for point in runs]))
    domains = {point.unseen for point in runs}
    mean = {d: float(np.mean([point.accuracy for point in runs if point.unseen == d])) for d in domains}
    return [point.accuracy - mean[point.unseen] + everything for point in runs]


@dataclass(frozen=True)
class Fit:
    """Least squares y = intercept + slope x, and what is needed for the confidence of its line."""

    slope: float
    intercept: float
    slope_error: float
    n: int
    centre: float
    spread: float
    residual: float

    @classmethod
    def of(cls, x: Sequence[float], y: Sequence[float]) -> "Fit | None":
        """None where there is no line: fewer than three points, or all above each other."""
        a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        spread = float(((a - a.mean()) ** 2).sum()) if len(a) else 0.0
        if len(a) < 3 or spread == 0:
            return None
        slope = float(((a - a.mean()) * (b - b.mean())).sum()) / spread
        intercept = float(b.mean() - slope * a.mean())
        residual = math.sqrt(float(((b - intercept - slope * a) ** 2).sum()) / (len(a) - 2))
        return cls(slope, intercept, residual / math.sqrt(spread), len(a), float(a.mean()), spread, residual)

    def line(self, x: Floats) -> Floats:
        return self.intercept + self.slope * x

    def half_width(self, x: Floats) -> Floats:
        """Of the confidence band of the mean: t s sqrt(1/n + (x - centre)^2 / spread)."""
        return self.quantile * self.residual * np.sqrt(1 / self.n + (x - self.centre) ** 2 / self.spread)

    @property
    def slope_half_width(self) -> float:
        return self.quantile * self.slope_error

    @property
    def quantile(self) -> float:
        """Of Student's distribution, for the two-sided confidence."""
        from scipy.special import stdtrit

        return float(stdtrit(self.n - 2, (1 + CONFIDENCE) / 2))
