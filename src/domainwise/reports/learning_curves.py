"""Learning curves: what was measured over the steps of training, over the trials of a method's selected runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from domainwise.protocol.metrics import ACCURACY, Metric
from domainwise.protocol.selection import Column, Curve, Floats, Method, Selection
from domainwise.protocol.statistics import Choices, Estimate, estimate

POINTS = 100
"""Longer curves are thinned to this many points."""


@dataclass(frozen=True)
class LearningCurve:
    """One method in one column, over the steps: estimates over trials, and the selected points."""

    method: Method
    steps: tuple[int, ...]
    estimates: tuple[Estimate, ...]
    chosen: tuple[tuple[int, float, int], ...]
    """(step, value, trial)."""
    runs: tuple[tuple[float, ...], ...]
    """The values of every trial at these steps, as far as it reached."""

    @property
    def mean(self) -> list[float]:
        return [one.mean for one in self.estimates]

    @property
    def error(self) -> list[float]:
        """Half the height of its band: zero where only one trial came so far."""
        return [one.bar for one in self.estimates]


Measure = Callable[[Curve, str], Floats | None]
"""Values of a run and its unseen domain, one per evaluation; None where they were not recorded."""


def on_unseen(metric: Metric) -> Measure:
    """A metric on the unseen domain, as tables show it."""

    def measure(curve: Curve, unseen: str) -> Floats | None:
        values = curve.values(metric).get((unseen, "in"))
        return None if values is None else np.array([metric.shown(value) for value in values])

    return measure


unseen_accuracy = on_unseen(ACCURACY)
"""In per cent."""


def generalisation_gap(curve: Curve, unseen: str) -> Floats | None:  # noqa: ARG001 (it uses the training domains)
    """Accuracy on the images trained on minus that on held-out images of the same domains, in points."""
    trained, held_out = (curve.mean(curve.run.train_domains, split) for split in ("in", "out"))
    return None if trained is None or held_out is None else 100 * (trained - held_out)


def training_loss(curve: Curve, unseen: str) -> Floats | None:  # noqa: ARG001 (it is that of the training domains)
    """What the algorithm minimised, mean over the steps since the evaluation before."""
    return curve.training_loss


def learning_curve(
    method: Method, selected: Sequence[tuple[Curve, Selection]], unseen: str, measure: Measure
) -> LearningCurve | None:
    """Over the selected run of every trial; at each step, over the trials that reached it. None without any."""
    evaluated = [(curve, choice, v) for curve, choice in selected if (v := measure(curve, unseen)) is not None]
    if not evaluated:
        return None
    by_step = [dict(zip(curve.steps, values.tolist(), strict=True)) for curve, _, values in evaluated]
    steps = sorted({step for values in by_step for step in values})
    if len(steps) > POINTS:
        steps = [steps[i] for i in np.linspace(0, len(steps) - 1, POINTS).round().astype(int)]
    estimates = tuple(estimate([values[step] for values in by_step if step in values]) for step in steps)
    chosen = tuple(
        (choice.step, values[choice.step], choice.run.trial)
        for (_, choice, _), values in zip(evaluated, by_step, strict=True)
    )
    runs = tuple(tuple(values[step] for step in steps if step in values) for values in by_step)
    return LearningCurve(method, tuple(steps), estimates, chosen, runs)


def learning_curves(
    curves: Sequence[Curve], chosen: Choices, columns: Sequence[Column], measure: Measure = unseen_accuracy
) -> dict[Column, list[LearningCurve]]:
    """{column: the learning curve of every method that has one}, from the choices of a rule; soups do not learn."""
    by_run = {(curve.run.id, curve.average): curve for curve in curves}
    result: dict[Column, list[LearningCurve]] = {}
    for column in columns:
        for method, by_column in chosen.items():
            if column in by_column and not method.combined:
                selected = sorted(by_column[column].items())
                pairs = [(by_run[choice.run.id, method.average], choice) for _, choice in selected]
                if (curve := learning_curve(method, pairs, column.unseen, measure)) is not None:
                    result.setdefault(column, []).append(curve)
    return result
