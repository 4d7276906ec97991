"""Courses: how a method's accuracy develops while it trains, over the trials of what was chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from domainwise.protocol.selection import Choice, Curve, Floats
from domainwise.protocol.statistics import ARROW, Choices, estimate

POINTS = 100
"""Longer curves are thinned to this many points."""


@dataclass(frozen=True)
class Course:
    """One method's accuracy, with one domain unseen, over the steps: mean, standard error, and the selected points."""

    method: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    error: tuple[float, ...]
    chosen: tuple[tuple[int, float, int], ...]
    """(step, accuracy, trial)."""
    runs: tuple[tuple[float, ...], ...]
    """Of every trial its accuracies at these steps, as far as it reached."""


Accuracy = Callable[[Curve, str], Floats | None]
"""Of a run and its unseen domain, per evaluation; None where it was not judged."""


def unseen_accuracy(curve: Curve, unseen: str) -> Floats | None:
    """On the unseen domain."""
    return curve.accuracy.get((unseen, "in"))


def learned_by_heart(curve: Curve, unseen: str) -> Floats | None:  # noqa: ARG001 (it looks at the others)
    """How much higher on the images trained on than on others of the same domains."""
    trained, others = (curve.mean(curve.run.train_domains, split) for split in ("in", "out"))
    return None if trained is None or others is None else trained - others


def course(method: str, curves: Sequence[tuple[Curve, Choice]], unseen: str, of: Accuracy) -> Course | None:
    """Over the selected run of every trial; at each step, over the trials that reached it. None without any."""
    judged = [(curve, choice, found) for curve, choice in curves if (found := of(curve, unseen)) is not None]
    if not judged:
        return None
    reached = [dict(zip(curve.steps, (100 * found).tolist(), strict=True)) for curve, _, found in judged]
    steps = sorted({step for own in reached for step in own})
    if len(steps) > POINTS:
        steps = [steps[i] for i in np.linspace(0, len(steps) - 1, POINTS).round().astype(int)]
    at_each = [estimate([own[step] for own in reached if step in own]) for step in steps]
    mean, error = tuple(found.mean for found in at_each), tuple(found.error for found in at_each)
    chosen = tuple(
        (choice.step, own[choice.step], choice.run.trial) for (_, choice, _), own in zip(judged, reached, strict=True)
    )
    runs = tuple(tuple(own[step] for step in steps if step in own) for own in reached)
    return Course(method, tuple(steps), mean, error, chosen, runs)


def courses(
    curves: Sequence[Curve], found: Choices, columns: Sequence[str], of: Accuracy = unseen_accuracy
) -> dict[str, list[Course]]:
    """{column: a course per method that has one}, from what a rule chose."""
    by_run = {curve.run.id: curve for curve in curves}
    result: dict[str, list[Course]] = {}
    for column in columns:
        for method, own in found.items():
            if column in own:
                pairs = [(by_run[choice.run.id], choice) for _, choice in sorted(own[column].items())]
                if (drawn := course(method, pairs, column.split(ARROW)[-1], of)) is not None:
                    result.setdefault(column, []).append(drawn)
    return result
