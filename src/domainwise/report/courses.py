"""Courses: how a method's accuracy on an unseen domain develops while it trains, over the trials of what was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from domainwise.protocol.selection import Choice, Curve
from domainwise.report.statistics import ARROW, Choices, estimate

POINTS = 100
"""Longer curves are thinned to this many points."""


@dataclass(frozen=True)
class Course:
    """One method's accuracy on one unseen domain over the steps: mean, standard error, and the selected points."""

    method: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    error: tuple[float, ...]
    chosen: tuple[tuple[int, float, int], ...]
    """(step, accuracy, trial)."""
    runs: tuple[tuple[float, ...], ...]
    """Of every trial its accuracies at these steps, as far as it reached."""


def course(method: str, curves: Sequence[tuple[Curve, Choice]], unseen: str) -> Course:
    """Over the selected run of every trial; at each step, over the trials that reached it."""
    reached: list[dict[int, float]] = []
    for curve, _ in curves:
        accuracies = 100 * curve.accuracy[unseen, "in"]
        reached.append(dict(zip(curve.steps, accuracies.tolist(), strict=True)))
    steps = sorted({step for own in reached for step in own})
    if len(steps) > POINTS:
        steps = [steps[i] for i in np.linspace(0, len(steps) - 1, POINTS).round().astype(int)]
    at_each = [estimate([own[step] for own in reached if step in own]) for step in steps]
    mean, error = tuple(found.mean for found in at_each), tuple(found.error for found in at_each)
    chosen = tuple((choice.step, 100 * choice.accuracy, choice.run.trial) for _, choice in curves)
    runs = tuple(tuple(own[step] for step in steps if step in own) for own in reached)
    return Course(method, tuple(steps), mean, error, chosen, runs)


def courses(curves: Sequence[Curve], found: Choices, columns: Sequence[str]) -> dict[str, list[Course]]:
    """{column: a course per method that has one}, from what a rule chose."""
    by_run = {curve.run.id: curve for curve in curves}
    result: dict[str, list[Course]] = {}
    for column in columns:
        for method, own in found.items():
            if column in own:
                pairs = [(by_run[choice.run.id], choice) for _, choice in sorted(own[column].items())]
                result.setdefault(column, []).append(course(method, pairs, column.split(ARROW)[-1]))
    return result
